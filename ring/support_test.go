package ring

import (
	"testing"

	"github.com/stretchr/testify/require"

	"callboard/protocol"
)

// pair is a channel with both sides on it, in one process.
type pair struct {
	mem       []byte
	layout    Layout
	doorbell  []byte
	directory []byte
	bell      *Bell
	client    *Client
	server    *Server
}

// newPair makes a channel with areas of one page and 16 pin slots.
func newPair(t testing.TB, sqEntries, cqEntries uint32) *pair {
	t.Helper()
	l, err := NewLayout(sqEntries, cqEntries, 16, PageBytes, PageBytes)
	require.NoError(t, err)
	p := &pair{
		mem:       heapBytes(l.TotalBytes),
		layout:    l,
		doorbell:  heapBytes(protocol.DoorbellBytes),
		directory: heapBytes(protocol.DirectoryBytes),
	}
	require.NoError(t, l.WriteHeader(p.mem, Identity{Incarnation: 7, Name: "test"}))
	p.reset(t)
	return p
}

// reset starts both sides anew on control words of zero.
func (p *pair) reset(t testing.TB) {
	clear(p.mem[protocol.ChannelControlOffset:PageBytes])
	var err error
	p.bell, err = NewBell(p.doorbell, p.directory)
	require.NoError(t, err)
	p.client, err = NewClient(p.mem, p.layout, p.bell)
	require.NoError(t, err)
	p.server, err = NewServer(p.mem, p.layout)
	require.NoError(t, err)
}

func (p *pair) control() *protocol.ChannelControl { return p.server.parts.control }

// op is a well-formed entry whose every field follows from its number.
func op(id uint64) protocol.SubmissionEntry {
	return protocol.SubmissionEntry{
		OpID: id, Opcode: protocol.OpWrite, Handle: id * 3, Ordinal: id * 5, Value: ^id,
		ArgumentOffsetBytes: uint32(id%500) * 8, ArgumentBytes: 8,
		ResultOffsetBytes: uint32(id%499) * 8, ResultBytes: 16,
	}
}

// done is the completion of op(id).
func done(id uint64) protocol.CompletionEntry {
	return protocol.CompletionEntry{OpID: id, Value: id * 7, Epoch: id * 11, Count: ^id, Ordinal: id * 5}
}

// corrupt asserts a *CorruptError about word, with these numbers.
func corrupt(t testing.TB, err error, word string, value uint64, expect string, limit uint64) {
	t.Helper()
	var got *CorruptError
	require.ErrorAs(t, err, &got)
	require.Equal(t, CorruptError{Word: word, Value: value, Expect: expect, Limit: limit}, *got)
}
