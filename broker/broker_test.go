package broker

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"callboard/control"
	"callboard/protocol"
	"callboard/shm"
)

func floats(values ...float32) []byte {
	out := []byte{}
	for _, v := range values {
		out = binary.LittleEndian.AppendUint32(out, math.Float32bits(v))
	}
	return out
}

// attribute finds a column's entry by hand.
func (p *peer) attribute(column uint64) *protocol.AttributeEntry {
	p.t.Helper()
	root := p.root()
	_, pages := p.segment(root.AttributePages[0].Segment)
	entry, err := shm.View[protocol.AttributeEntry](pages.Bytes(), root.AttributePages[0].OffsetBytes+column*256)
	require.NoError(p.t, err)
	return entry
}

// latest finds the newest version of a column by hand.
func (p *peer) latest(column uint64) protocol.VersionSlot {
	p.t.Helper()
	entry := p.attribute(column)
	_, slots := p.segment(entry.SlotPages.Segment)
	page, err := shm.View[protocol.SlotPage](slots.Bytes(), entry.SlotPages.OffsetBytes)
	require.NoError(p.t, err)
	return page.Slots[entry.LatestSlot]
}

// behaviour 1: a write is readable after its seal, bit for bit, and not before (120).
func TestWriteThenSeal(t *testing.T) {
	b := startBroker(t, nil)
	p := attachPeer(t, b)
	q := p.query("/a", "/b", "/c")
	p.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpWrite, Handle: q, Ordinal: 1}, writeArguments("x", float32s, 3, floats(2.5, -1, 0)))
	require.Zero(t, p.root().Epoch)
	done, _ := p.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpSeal, Ordinal: 1, Value: protocol.ScopeAll}, nil)
	require.EqualValues(t, 1, done.Epoch)
	require.EqualValues(t, 1, done.Value, "the floor")
	require.EqualValues(t, 1, p.root().Epoch)
	v := p.latest(1)
	require.EqualValues(t, 3, v.Rows)
	reply, data := p.segment(v.Block.Segment)
	require.Zero(t, reply.Writable, "versions are read-only for clients")
	require.Equal(t, floats(2.5, -1, 0), data.Bytes()[v.Block.OffsetBytes:][:12])
}

// behaviour 175, M1: a mapped whole column is adopted, not copied.
func TestMapUnmapAdopts(t *testing.T) {
	b := startBroker(t, nil)
	p := attachPeer(t, b)
	q := p.query("/a", "/b")
	for ordinal := uint64(1); ordinal <= 3; ordinal++ {
		done, raw := p.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpMap, Handle: q, Ordinal: ordinal}, mapArguments("x", float32s))
		g, ok := decode[protocol.GroupDescriptor](raw, 0)
		require.True(t, ok)
		require.EqualValues(t, 8, g.Block.LengthBytes)
		reply, m := p.segment(g.Block.Segment)
		require.EqualValues(t, 1, reply.Writable, "its own staging")
		copy(m.Bytes()[g.Block.OffsetBytes:], floats(float32(ordinal), 7))
		un, _ := p.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpUnmapAttribute, Handle: done.Handle}, nil)
		require.EqualValues(t, protocol.CompletionAdopted, un.Flags)
		p.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpSeal, Ordinal: ordinal}, nil)
		v := p.latest(1)
		require.Equal(t, g.Block.OffsetBytes, v.Block.OffsetBytes, "the block is the version")
		require.Equal(t, floats(float32(ordinal), 7), m.Bytes()[v.Block.OffsetBytes:][:8])
		p.do(protocol.StatusInvalidHandle, protocol.SubmissionEntry{Opcode: protocol.OpUnmapAttribute, Handle: done.Handle}, nil) // behaviour 187
	}
}

// A column of more than CopyInlineBytes goes through a copy job and comes out whole (L1).
func TestLongCopy(t *testing.T) {
	b := startBroker(t, func(c *Config) { c.Handoff = protocol.HandoffCopy })
	p := attachPeer(t, b)
	q := p.query("/")
	image := float32s
	image.RowDimensions, image.RowShape = 2, [6]uint64{500, 700}
	for ordinal := uint64(1); ordinal <= 3; ordinal++ {
		done, raw := p.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpMap, Handle: q, Ordinal: ordinal}, mapArguments("image", image))
		g, _ := decode[protocol.GroupDescriptor](raw, 0)
		_, m := p.segment(g.Block.Segment)
		for i := range g.Block.LengthBytes {
			m.Bytes()[g.Block.OffsetBytes+i] = byte(ordinal + i)
		}
		p.submit(protocol.SubmissionEntry{Opcode: protocol.OpUnmapAttribute, Handle: done.Handle}, nil)
		p.submit(protocol.SubmissionEntry{Opcode: protocol.OpSeal, Ordinal: ordinal}, nil)
		un, text := p.wait()
		require.Zero(t, un.Status, "%s", text)
		sealed, text := p.wait()
		require.Zero(t, sealed.Status, "%s", text)
		require.Equal(t, ordinal, sealed.Epoch)
		v := p.latest(1)
		_, data := p.segment(v.Block.Segment)
		for i := range v.Block.LengthBytes {
			require.Equal(t, byte(ordinal+i), data.Bytes()[v.Block.OffsetBytes+i])
		}
	}
}

// O7, L1: what a spare block lacks is copied when nobody rings, and a seal after that
// copies only what is new.
func TestTheLoopCopiesAheadWhenNobodyRings(t *testing.T) {
	b := startBroker(t, func(c *Config) { c.Retain = 1 })
	p := attachPeer(t, b)
	whole, one := p.query("/a", "/b", "/c", "/d", "/e", "/f", "/g", "/h"), p.query("/c")
	write := func(ordinal, query uint64, values ...float32) {
		p.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpWrite, Handle: query, Ordinal: ordinal}, writeArguments("x", float32s, uint64(len(values)), floats(values...)))
		p.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpSeal, Ordinal: ordinal, Value: protocol.ScopeAll}, nil)
	}
	copied := func() uint64 { return atomic.LoadUint64(&p.attribute(1).CopiedBytes) }
	catchUp := func() {
		for wait := time.Now(); !caughtUp(b) && time.Since(wait) < patience; time.Sleep(5 * time.Millisecond) {
		}
		require.True(t, caughtUp(b), "a block lags, and nobody rings")
	}
	write(1, whole, 0, 1, 2, 3, 4, 5, 6, 7)
	for ordinal := uint64(2); ordinal < 12; ordinal++ {
		before := copied()
		write(ordinal, one, float32(ordinal))
		v := p.latest(1)
		_, data := p.segment(v.Block.Segment)
		require.Equal(t, floats(0, 1, float32(ordinal), 3, 4, 5, 6, 7), data.Bytes()[v.Block.OffsetBytes:][:32])
		catchUp()
		if ordinal > 4 { // blocks go round
			require.EqualValues(t, before+4+4+8*4, copied(), "a row is captured and put into the block; then, of so few, all are copied ahead")
		}
	}
}

// caughtUp asks the loop whether all spare blocks are up to date.
func caughtUp(b *Broker) (done bool) {
	b.do(func() { done = !b.store.Lags() })
	return done
}

// I3, S5: the memory of a client that is gone is used again; its open
// session leaves nothing (behaviour 192).
func TestHangUpReturnsMemory(t *testing.T) {
	b := startBroker(t, nil)
	p := attachPeer(t, b)
	q := p.query("/a")
	p.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpMap, Handle: q, Ordinal: 1}, mapArguments("x", float32s))
	_ = p.conn.Close()
	time.Sleep(150 * time.Millisecond)
	var clients int
	var spare uint64
	look := func() { clients, spare = len(b.clients), b.memory.Usage().SpareBytes }
	b.do(look)
	require.Equal(t, 1, clients, "its lock is held: it may have views")
	require.Zero(t, spare)
	_ = p.lock.Close()
	p.lock = nil
	_ = p.channel.Close() // a mapping holds the lock as the descriptor does
	require.Eventually(t, func() bool { b.do(look); return clients == 0 && spare > 0 }, patience, 5*time.Millisecond)
}

// R5: what is malformed ends the session with a text; the broker and others live on.
func TestMalformedEntryEndsTheSession(t *testing.T) {
	b := startBroker(t, nil)
	other := attachPeer(t, b)
	p := attachPeer(t, b)
	e := protocol.SubmissionEntry{OpID: 1, Opcode: protocol.OpWrite, ArgumentOffsetBytes: math.MaxUint32 &^ 7, ArgumentBytes: 64}
	require.NoError(t, p.ring.Submit(&e))
	var buf [protocol.MessageBytesMax]byte
	n, _, err := p.conn.RecvWithin(patience, buf[:])
	require.NoError(t, err)
	reply, _ := decode[protocol.ErrorReply](buf[:n], 0)
	require.Equal(t, protocol.StatusSessionEnded, protocol.Status(reply.Status))
	require.Contains(t, string(reply.Text[:]), "ArgumentOffsetBytes")
	other.query("/still/here")
}

// S3: a client that truncates its channel, its segment or the doorbell hurts nobody else.
func TestTruncatedObjects(t *testing.T) {
	b := startBroker(t, func(c *Config) { c.Handoff = protocol.HandoffCopy })
	other := attachPeer(t, b)
	for _, pattern := range []string{"channel-*", "doorbell"} {
		p := attachPeer(t, b)
		files, err := filepath.Glob(filepath.Join(b.MemoryDir(), pattern))
		require.NoError(t, err)
		for _, f := range files {
			info, err := os.Stat(f)
			require.NoError(t, err)
			if pattern == "doorbell" || uint64(info.Size()) == p.layout.TotalBytes && f != filepath.Join(b.MemoryDir(), channelName(other)) {
				require.NoError(t, os.Truncate(f, 0))
			}
		}
		time.Sleep(20 * time.Millisecond)
		b.ring()
		if pattern == "doorbell" {
			time.Sleep(300 * time.Millisecond) // at most one idle turn
		}
		other.query("/still/here")
	}
}

func channelName(p *peer) string {
	id := p.hello.Incarnation
	const digits = "0123456789abcdef"
	out := []byte("channel-0000000000000000")
	for i := range 16 {
		out[len(out)-1-i] = digits[id>>(4*i)&15]
	}
	return string(out)
}

// D1: another major version is refused with both versions named; garbage is refused.
func TestHelloIsChecked(t *testing.T) {
	b := startBroker(t, nil)
	hello := func(change func(*protocol.HelloRequest)) protocol.ErrorReply {
		conn, err := shm.Dial(filepath.Join(b.RuntimeDir(), shm.AttachSocket))
		require.NoError(t, err)
		defer conn.Close()
		r := protocol.HelloRequest{Header: header(protocol.MessageHelloRequest)}
		r.Header.SizeBytes = uint32(len(encode(&r)))
		change(&r)
		require.NoError(t, conn.Send(encode(&r)))
		var buf [protocol.MessageBytesMax]byte
		n, _, err := conn.RecvWithin(patience, buf[:])
		require.NoError(t, err)
		reply, ok := decode[protocol.ErrorReply](buf[:n], 0)
		require.True(t, ok, "%d bytes", n)
		return reply
	}
	old := hello(func(r *protocol.HelloRequest) { r.Header.Version = 7<<16 | 3 })
	require.Equal(t, protocol.StatusIncompatibleVersion, protocol.Status(old.Status))
	require.Contains(t, string(old.Text[:]), "7.3")
	require.Contains(t, string(old.Text[:]), protocol.VersionText(protocol.VersionWord))
	garbage := hello(func(r *protocol.HelloRequest) { r.Header.Magic = 0xdeadbeef })
	require.Equal(t, protocol.StatusInvalidArgument, protocol.Status(garbage.Status))
	rings := hello(func(r *protocol.HelloRequest) { r.SqEntries = 3 })
	require.Contains(t, string(rings.Text[:]), "SqEntries is 3")
	attachPeer(t, b).query("/fine")
}

// O8: publish takes the floor + 1 and seals in one step; two publishers cannot collide.
func TestNextOrdinal(t *testing.T) {
	b := startBroker(t, nil)
	p, o := attachPeer(t, b), attachPeer(t, b)
	for i := uint64(1); i <= 10; i++ {
		for k, peer := range []*peer{p, o} {
			q := peer.query("/")
			done, _ := peer.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpWrite, Handle: q, Flags: protocol.FlagNextOrdinal | protocol.FlagSeal}, writeArguments("x", float32s, 1, floats(1)))
			require.Equal(t, 2*i-1+uint64(k), done.Ordinal)
			require.Equal(t, 2*i-1+uint64(k), done.Epoch)
		}
	}
}

// M2: groups handed back one by one are sealed with their session, too.
func TestSealAfterAllGroupsWereUnmapped(t *testing.T) {
	for _, handoff := range []uint32{protocol.HandoffAdopt, protocol.HandoffCopy} {
		b := startBroker(t, func(c *Config) { c.Handoff = handoff })
		p := attachPeer(t, b)
		q := p.query("/")
		image := float32s
		image.RowDimensions, image.RowShape = 2, [6]uint64{300, 300} // long enough for a copy job
		for i := uint64(1); i <= 3; i++ {
			done, _ := p.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpMap, Handle: q, Flags: protocol.FlagNextOrdinal}, mapArguments("x", image))
			p.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpUnmapGroup, Handle: done.Handle}, nil)
			require.Equal(t, i-1, p.root().Epoch)
			end, _ := p.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpUnmapAttribute, Handle: done.Handle, Flags: protocol.FlagNextOrdinal | protocol.FlagSeal}, nil)
			require.Equal(t, i, end.Ordinal)
			require.Equal(t, i, end.Epoch)
			require.Equal(t, i, p.root().Epoch)
		}
	}
}

// R3: nobody believes the doorbell, so a stray write into it refuses nobody.
func TestSpoiltDoorbell(t *testing.T) {
	b := startBroker(t, nil)
	p := attachPeer(t, b)
	for i := range p.doorbell.Bytes() {
		p.doorbell.Bytes()[i] = 0xa5
	}
	attachPeer(t, b).query("/a")
	p.query("/b")
}

// behaviour 224: names as long as they may be are announced; longer ones are refused.
func TestLongNames(t *testing.T) {
	b := startBroker(t, nil)
	p := attachPeer(t, b)
	q := p.query("/")
	for n, want := range map[int]protocol.Status{513: protocol.StatusOK, protocol.NameBytesMax: protocol.StatusOK, protocol.NameBytesMax + 1: protocol.StatusInvalidArgument} {
		p.do(want, protocol.SubmissionEntry{Opcode: protocol.OpMap, Handle: q, Ordinal: 1}, mapArguments(strings.Repeat(".", n), float32s))
	}
	time.Sleep(50 * time.Millisecond) // the announcer takes its turn
	p.query("/still/here")
}

// Field report B15: a row that no memory of this stage holds is refused when its schema is stated.
func TestRowsLargerThanTheStage(t *testing.T) {
	b := startBroker(t, nil)
	p := attachPeer(t, b)
	huge := float32s
	huge.RowDimensions, huge.RowShape = 1, [6]uint64{1 << 40}
	d := protocol.DeclareArguments{Schema: huge, NameOffsetBytes: uint32(len(encode(&protocol.DeclareArguments{}))), NameBytes: 1}
	_, text := p.do(protocol.StatusOutOfMemory, protocol.SubmissionEntry{Opcode: protocol.OpDeclare}, append(append([]byte{}, encode(&d)...), 'x'))
	require.Contains(t, string(text), "67108864")
}

// An answer holds a page of attributes; all pages together are complete (field report B9: nothing is dropped silently).
func TestDescribeInPages(t *testing.T) {
	b := startBroker(t, nil)
	p := attachPeer(t, b)
	q := p.query("/")
	const n = control.DescribePage + 7
	for i := range n {
		p.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpWrite, Handle: q, Ordinal: 1}, writeArguments(fmt.Sprintf("a%d", i), float32s, 1, floats(1)))
	}
	first, err := b.describe(context.Background(), control.DescribeRequest{})
	require.Nil(t, err)
	require.Len(t, first.Attributes, control.DescribePage)
	require.Equal(t, n, first.AttributeCount)
	rest, err := b.describe(context.Background(), control.DescribeRequest{FirstAttribute: control.DescribePage})
	require.Nil(t, err)
	require.Len(t, rest.Attributes, 7)
	_, err = b.describe(context.Background(), control.DescribeRequest{FirstAttribute: -1})
	require.NotNil(t, err)
}
