package snapshot

import (
	"testing"

	"callboard/protocol"

	"github.com/stretchr/testify/require"
)

// Rule V7: of an array version the table counts when it is pinned, the elements when
// somebody looks at them, and all of it until the release.
func TestElementsThatAreLookedAtCountAsPinned(t *testing.T) {
	s := newReaderStage(t, Config{PinnedBytesMax: 1000}, 64<<20)
	ids := []uint64{s.path("/a"), s.path("/b"), s.path("/c")}
	write := func(ordinal uint64, sizes ...uint64) {
		target := Target{Query: s.query(ids...), Name: "x", Schema: arraySchema(1), Ordinal: ordinal, ElementSizes: sizes}
		size := uint64(0)
		for _, n := range sizes {
			size += n
		}
		_, _, err := s.store.Write(&target, make([]byte, size), 3, everything(), true)
		require.NoError(t, err)
	}
	write(1, 300, 0, 200)
	r, table := s.reader(64)
	column := s.column(r, "x")
	list := NewPrimList(ids)
	pin := func() (*Pinned, *RowMap) {
		p := &Pinned{}
		require.NoError(t, r.Pin(p, column))
		m, err := r.Rows(list, p.Version(0))
		require.NoError(t, err)
		return p, m
	}
	p, m := pin()
	floors := r.accounts.bytes - 3*refBytes
	rows, err := p.Ragged(p.Version(0), m)
	require.NoError(t, err)
	require.Len(t, rows, 3)
	require.Equal(t, []int{300, 0, 200}, []int{len(rows[0]), len(rows[1]), len(rows[2])})
	require.Equal(t, floors+3*refBytes+500, r.accounts.bytes)
	first, err := p.Ragged(p.Version(0), m.Changed(p.Version(0), 0))
	require.NoError(t, err)
	require.Len(t, first, 3)
	require.Equal(t, floors+3*refBytes+500, r.accounts.bytes, "the same once more")

	write(2, 300, 100, 200)
	other, m := pin()
	_, err = other.Ragged(other.Version(0), m)
	text := requireStatus(t, protocol.StatusLimit, err).Text
	require.Contains(t, text, "has 600 bytes")
	require.Contains(t, text, "at most 1000")
	p.Release()
	_, err = other.Ragged(other.Version(0), m)
	require.NoError(t, err)
	other.Release()
	require.Zero(t, r.accounts.bytes)
	require.Zero(t, table.InUse())
}

// Rule R5: a place that cannot be is an error with its numbers.
func TestRowsThatLieNowhereAreRefused(t *testing.T) {
	s := newReaderStage(t, Config{}, 64<<20)
	id := s.path("/a")
	target := Target{Query: s.query(id), Name: "x", Schema: arraySchema(4), Ordinal: 1}
	_, _, err := s.store.Write(&target, make([]byte, 40), 1, everything(), true)
	require.NoError(t, err)
	r, _ := s.reader(64)
	var p Pinned
	require.NoError(t, r.Pin(&p, s.column(r, "x")))
	defer p.Release()
	v := p.Version(0)
	m, err := r.Rows(NewPrimList([]uint64{id}), v)
	require.NoError(t, err)
	ref := at[protocol.RowRef](v.Data, 0)
	sound := *ref
	size := uint64(len(s.segments[sound.Segment]))
	for text, spoilt := range map[string]protocol.RowRef{
		"has no place (segment 0)":                  {Segment: 0, OffsetBytes: 0, LengthBytes: 4},
		"no segment 77":                             {Segment: 77, OffsetBytes: 0, LengthBytes: 4},
		"has 6 bytes":                               {Segment: sound.Segment, OffsetBytes: sound.OffsetBytes, LengthBytes: 6},
		"has 8 bytes at offset":                     {Segment: sound.Segment, OffsetBytes: size - 4, LengthBytes: 8},
		"at offset 18446744073709551612 of segment": {Segment: sound.Segment, OffsetBytes: 1<<64 - 4, LengthBytes: 8},
		"has 18446744073709551612 bytes":            {Segment: sound.Segment, OffsetBytes: 8, LengthBytes: 1<<64 - 4},
	} {
		*ref = spoilt
		_, err := p.Ragged(v, m)
		require.ErrorContains(t, err, text)
	}
	*ref = sound
	rows, err := p.Ragged(v, m)
	require.NoError(t, err)
	require.Len(t, rows[0], 40)
}
