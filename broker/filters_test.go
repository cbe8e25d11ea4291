package broker

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"callboard/protocol"
)

// filterArguments are those of one predicate.
func filterArguments(operator uint32, name string, values ...string) []byte {
	heads := uint32(len(encode(&protocol.FilterArguments{})) + len(encode(&protocol.FilterPredicate{})))
	args := protocol.FilterArguments{PredicateCount: 1}
	p := protocol.FilterPredicate{Relation: operator, NameOffsetBytes: heads, NameBytes: uint32(len(name))}
	out := append(append(append([]byte{}, encode(&args)...), encode(&p)...), name...)
	for len(out)%4 != 0 {
		out = append(out, 0)
	}
	if len(values) > 0 {
		binary.LittleEndian.PutUint32(out[len(encode(&args))+12:], uint32(len(out)))
		out = append(out, listOf(values...)...)
	}
	return out
}

// Handles of the client's own choice, pages of what was found, and refusals that make
// nothing (behaviour 215, 242; rule R5).
func TestFilterOverTheRing(t *testing.T) {
	b := startBroker(t, nil)
	p := attachPeer(t, b)
	q := p.query("/a", "/b", "/c")
	p.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpWrite, Handle: q, Ordinal: 1}, writeArguments("x", float32s, 3, floats(1, 2, 3)))
	const own = uint64(protocol.ClientHandle | 7)
	done, _ := p.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpQueryFilter, Handle: own}, filterArguments(protocol.FilterGreater, "x", "1"))
	require.EqualValues(t, own, done.Handle)
	require.EqualValues(t, []uint64{2, 1}, []uint64{done.Count, done.Value})
	first, ids := p.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpQueryPrims, Handle: own}, nil)
	require.EqualValues(t, 2, first.Count)
	_, last := p.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpQueryPrims, Handle: own, Value: 1}, nil)
	require.Equal(t, ids[8:], last)
	_, behind := p.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpQueryPrims, Handle: own, Value: 1 << 60}, nil)
	require.Empty(t, behind)
	_, names := p.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpQueryAttributes, Handle: own}, nil)
	text, _ := b.store.Text(binary.LittleEndian.Uint64(names))
	require.Equal(t, "x", text)
	p.do(protocol.StatusInvalidHandle, protocol.SubmissionEntry{Opcode: protocol.OpQueryPrims, Handle: 99}, nil)

	good := filterArguments(protocol.FilterGreater, "x", "1")
	change := func(at int, value uint32) []byte {
		bad := append([]byte{}, good...)
		binary.LittleEndian.PutUint32(bad[at:], value)
		return bad
	}
	for what, c := range map[string]struct {
		handle    uint64
		arguments []byte
		status    protocol.Status
	}{
		"no arguments":           {0, nil, protocol.StatusInvalidArgument},
		"a handle in use":        {own, good, protocol.StatusInvalidArgument},
		"a handle of the broker": {q, good, protocol.StatusInvalidArgument},
		"too many predicates":    {0, change(0, 2), protocol.StatusInvalidArgument},
		"far too many":           {0, change(0, 1<<31), protocol.StatusInvalidArgument},
		"unknown flags":          {0, change(4, 2), protocol.StatusInvalidArgument},
		"attributes outside":     {0, change(8, 1<<20), protocol.StatusInvalidArgument},
		"an operator of 0":       {0, change(16, 0), protocol.StatusInvalidArgument},
		"a name too long":        {0, change(20, 1<<20), protocol.StatusInvalidArgument},
		"values outside":         {0, change(28, 1<<20), protocol.StatusInvalidArgument},
		"values that end before": {0, change(36, 1<<20), protocol.StatusInvalidArgument},
		"no such pairing":        {0, filterArguments(protocol.FilterPrefix, "x", "1"), protocol.StatusNotSupported},
		"a reserved name":        {0, filterArguments(protocol.FilterHas, "@active"), protocol.StatusNotSupported},
	} {
		t.Log(what)
		refused, _ := p.do(c.status, protocol.SubmissionEntry{Opcode: protocol.OpQueryFilter, Handle: c.handle}, c.arguments)
		require.Zero(t, refused.Handle, what)
		require.Len(t, b.clients[0].queries, 2, what)
	}
	p.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpQueryRelease, Handle: own}, nil)
	p.do(protocol.StatusInvalidHandle, protocol.SubmissionEntry{Opcode: protocol.OpQueryPrims, Handle: own}, nil)
}
