package broker

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"callboard/protocol"
	"callboard/shm"
)

// stringListBytes is a protocol.StringList.
func stringListBytes(texts ...string) []byte {
	b := binary.LittleEndian.AppendUint32(nil, uint32(len(texts)))
	b = append(b, 0, 0, 0, 0)
	for _, text := range texts {
		b = binary.LittleEndian.AppendUint32(b, uint32(len(text)))
		b = append(b, text...)
		for len(b)%4 != 0 {
			b = append(b, 0)
		}
	}
	binary.LittleEndian.PutUint32(b[4:], uint32(len(b)))
	return b
}

func (p *peer) rows(v protocol.VersionSlot) []byte {
	_, m := p.segment(v.Block.Segment)
	return m.Bytes()[v.Block.OffsetBytes:][:v.Block.LengthBytes]
}

// Rule O1, behaviour 109, 113: ordinals wait side by side, each for its seal.
func TestOrdinalsAheadWaitForTheirSeals(t *testing.T) {
	b := startBroker(t, nil)
	p := attachPeer(t, b)
	q := p.query("/a", "/b")
	for _, ordinal := range []uint64{6, 4, 7, 5} {
		p.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpWrite, Handle: q, Ordinal: ordinal}, writeArguments("x", float32s, 2, floats(float32(ordinal), 0)))
	}
	p.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpSeal, Ordinal: 5, Value: protocol.ScopeExclude}, append(make([]byte, 16), stringListBytes("other")...))
	require.Equal(t, floats(5, 0), p.rows(p.latest(1)))
	p.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpSeal, Ordinal: 8, Value: protocol.ScopeAll}, nil)
	v := p.latest(1)
	require.Equal(t, floats(7, 0), p.rows(v))
	require.Equal(t, []uint64{6, 7}, []uint64{v.OrdinalLowest, v.OrdinalHighest})
}

// Behaviour 147, 149, 153: a delete is ordered like a write; what is wrong with it is
// said; another element type is accepted after it.
func TestDeleteOverTheRing(t *testing.T) {
	b := startBroker(t, nil)
	p := attachPeer(t, b)
	q, one := p.query("/a", "/b"), p.query("/a")
	p.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpWrite, Handle: q, Ordinal: 1}, writeArguments("x", float32s, 2, floats(1, 2)))
	p.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpSeal, Ordinal: 1}, nil)
	other := float32s
	other.DtypeBits = 16
	for status, e := range map[protocol.Status]protocol.SubmissionEntry{
		protocol.StatusFloorViolation:  {Opcode: protocol.OpDelete, Handle: one, Ordinal: 1},
		protocol.StatusInvalidHandle:   {Opcode: protocol.OpDelete, Handle: 999, Ordinal: 2},
		protocol.StatusInvalidArgument: {Opcode: protocol.OpDelete, Handle: one, Ordinal: 2, Flags: protocol.FlagSeal},
	} {
		p.do(status, e, stringListBytes("x"))
	}
	p.do(protocol.StatusNotSupported, protocol.SubmissionEntry{Opcode: protocol.OpDelete, Handle: one, Ordinal: 2}, stringListBytes("@path"))
	p.do(protocol.StatusInvalidArgument, protocol.SubmissionEntry{Opcode: protocol.OpWrite, Handle: one, Ordinal: 3}, writeArguments("x", other, 1, []byte{1, 2}))
	p.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpDelete, Handle: one, Ordinal: 2}, stringListBytes("x"))
	p.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpWrite, Handle: one, Ordinal: 3}, writeArguments("x", other, 1, []byte{1, 2}))
	p.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpSeal, Ordinal: 3}, nil)
	require.Equal(t, []byte{1, 2}, p.rows(p.latest(2)), "the second column of the name")
	layout := p.latest(1).Layout
	_, m := p.segment(layout.Segment)
	rows, err := shm.Slice[protocol.LayoutRow](m.Bytes(), layout.OffsetBytes+64, 2)
	require.NoError(t, err)
	require.EqualValues(t, 2, rows[0].Death, "epoch 2 shows it")
	require.EqualValues(t, uint64(protocol.Infinite), rows[1].Death)

	p.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpDelete, Handle: q, Ordinal: 4}, nil) // the prims
	p.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpSeal, Ordinal: 4}, nil)
	require.EqualValues(t, 2, b.store.Describe().Columns[0].Versions-1)
}
