package snapshot

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"callboard/protocol"
	"callboard/tensor"

	"github.com/stretchr/testify/require"
)

// damaged is a picture of a stage with all sorts of things in it.
func damaged(t testing.TB, seed uint64) *history {
	h := newHistory(t, seed, Config{Retain: 3, Handoff: protocol.HandoffAdopt, CopyInlineBytes: 1 << 30}, false)
	for range 120 {
		h.next()
	}
	return h
}

// places are words of the directory that are in use, where damage is likely to be met:
// the root, and what lies in the directory's own segments.
func (h *history) places(p *picture, r *rand.Rand, root []byte, segments []*Segment) (bytes []byte, at int) {
	if r.IntN(3) == 0 {
		return root, r.IntN(len(root))
	}
	seg := segments[r.IntN(len(segments))]
	if r.IntN(3) > 0 {
		for _, s := range segments {
			if h.memory.segments[s.ID].arena == h.store.meta {
				seg = s
			}
		}
	}
	for range 200 { // not in memory that nobody ever used
		at = r.IntN(len(seg.Bytes)) &^ 7
		if word := *load(seg.Bytes, at); word != 0 && word != 0xaa {
			break
		}
	}
	return seg.Bytes, at + r.IntN(8)
}

func load(b []byte, place int) *uint64 { return at[uint64](b, uint64(place)) }

// TestDamagedDirectoriesAreRefusedOrConsistent: bytes are flipped anywhere in what a
// recovery reads. It refuses with an INTERNAL error that says why, and has changed
// nothing; or it gives a store whose books agree, that goes on (rule B2; design D11).
func TestDamagedDirectoriesAreRefusedOrConsistent(t *testing.T) {
	refused, served := 0, 0
	seeds(t, 4*time.Second, func(t *testing.T, seed uint64) {
		h := damaged(t, seed)
		p := h.picture(nil)
		r := rand.New(rand.NewPCG(seed, 5))
		for i := range 150 {
			root, segments := p.copies(&h.scratch)
			what := ""
			for range 1 + r.IntN(4) {
				bytes, place := h.places(p, r, root, segments)
				was := bytes[place]
				switch r.IntN(4) {
				case 0:
					bytes[place] ^= 1 << r.IntN(8)
				case 1:
					bytes[place] = 0xff
				case 2:
					bytes[place] = 0
				default:
					bytes[place]++
				}
				what += fmt.Sprintf(" %d: %d→%d", place, was, bytes[place])
			}
			if h.recoverDamaged(root, segments, what) {
				served++
			} else {
				refused++
			}
			if t.Failed() {
				fmt.Fprintf(os.Stderr, "damage failed: CALLBOARD_SEED=%d round %d%s\n", seed, i, what)
				return
			}
		}
	})
	t.Logf("%d refused, %d served", refused, served)
	require.Positive(t, refused)
	require.Positive(t, served)
}

// TestSegmentsWithoutTheirHeadersAreNotServed: clients refuse a segment that does not
// begin with its header. Where versions or tables lie in it the recovery is refused, else
// the segment is left out and its id never comes again (rule S1).
func TestSegmentsWithoutTheirHeadersAreNotServed(t *testing.T) {
	spoil := map[string]func(h *protocol.RegionHeader){
		"zeros":      func(h *protocol.RegionHeader) { *h = protocol.RegionHeader{} },
		"magic":      func(h *protocol.RegionHeader) { h.Magic = protocol.MagicChannel },
		"version":    func(h *protocol.RegionHeader) { h.Version++ },
		"generation": func(h *protocol.RegionHeader) { h.Generation++ },
		"id":         func(h *protocol.RegionHeader) { h.RegionID++ },
		"size":       func(h *protocol.RegionHeader) { h.SizeBytes-- },
	}
	h := damaged(t, 7)
	idle := h.memory.NewArena(protocol.SegmentClient, 99, "a client that wrote nothing", false)
	_, err := h.memory.Alloc(idle, 1<<20)
	for errors.Is(err, ErrRetry) {
		_, err = h.memory.Alloc(idle, 1<<20)
	}
	require.NoError(t, err)
	for range 40 { // a seal writes into the table that the segment is there
		h.next()
	}
	p := h.picture(nil)
	recovered := func(root []byte, segments []*Segment) (*Recovered, *Memory) {
		m := NewMemory(h.memory.LimitBytes)
		r, err := Recover(h.store.config, root, m, segments)
		require.NoError(t, err)
		for _, a := range r.Arenas {
			m.CloseArena(a)
		}
		return r, m
	}
	root, segments := p.copies(&h.scratch)
	_, whole := recovered(root, segments)
	holds := map[uint64]bool{}
	for id, seg := range whole.segments {
		holds[id] = seg.arena != nil && !seg.arena.pool.SegmentFree(id)
	}
	require.Contains(t, slices.Collect(maps.Values(holds)), true)
	require.Contains(t, slices.Collect(maps.Values(holds)), false)
	for name, what := range spoil {
		for i, seg := range p.segments {
			spoilt := func() (root []byte, segments []*Segment) {
				root, segments = p.copies(&h.scratch)
				what(at[protocol.RegionHeader](segments[i].Bytes, 0))
				return root, segments
			}
			root, segments := spoilt()
			require.Equal(t, !holds[seg.id], h.recoverDamaged(root, segments, name), "segment %d: %s", seg.id, name)
			if holds[seg.id] {
				continue
			}
			root, segments = spoilt()
			r, m := recovered(root, segments)
			require.Contains(t, r.Unused, segments[i])
			require.Nil(t, m.Segment(seg.id))
			require.Greater(t, m.nextID, seg.id)
		}
	}
}

// recoverDamaged recovers, and if it is served, lets the stage go on.
func (h *history) recoverDamaged(root []byte, segments []*Segment, what string) bool {
	before := slices.Clone(root)
	var first [][]byte
	for _, seg := range segments {
		first = append(first, slices.Clone(seg.Bytes))
	}
	f := &fixture{t: h.t, root: root, fakes: h.fakes}
	f.memory = NewMemory(h.memory.LimitBytes)
	f.memory.Grow = func(r GrowRequest) { f.grown(r) }
	config := h.store.config
	config.Incarnation++
	r, err := Recover(config, root, f.memory, segments)
	if err != nil {
		require.Contains(h.t, []protocol.Status{protocol.StatusInternal, protocol.StatusIncompatibleVersion}, StatusError(err).Status, "%v", err)
		require.Equal(h.t, before, root, "a refused recovery wrote to the root")
		for i, seg := range segments {
			require.Equal(h.t, first[i], seg.Bytes, "a refused recovery wrote to segment %d", seg.ID)
		}
		require.Empty(h.t, f.memory.segments)
		return false
	}
	f.store = r.Store
	for _, a := range r.Arenas {
		f.memory.CloseArena(a)
	}
	f.store.PinsComplete()
	ordinal := uint64(1)
	for _, c := range f.store.columns[1:] {
		if floor := f.store.floorOfID(c.nameID); floor < 1<<40 {
			ordinal = max(ordinal, floor+1)
		}
	}
	for range 3 {
		for _, name := range []string{"a", "g", "fresh"} {
			t := Target{Query: queryOf(h.prims[:3]...), Name: name, Schema: historySchema(name, max(1, historyRowBytes[name])), Ordinal: ordinal}
			var err error
			if name == "g" {
				t.Schema, t.ElementSizes = historySchema(name, -2), []uint64{1, 2, 3}
				_, _, err = f.store.Write(&t, make([]byte, 12), 3, tensor.Selection{Count: tensor.All}, false)
			} else {
				_, _, err = f.store.Write(&t, make([]byte, 3), 3, tensor.Selection{Count: tensor.All}, false)
			}
			if err != nil {
				StatusError(err)
			}
		}
		if _, _, err := f.store.Seal(ordinal, protocol.ScopeAll, nil, 1); err != nil {
			require.ErrorIs(h.t, err, ErrRetry, what)
		}
		ordinal++
	}
	again := &fixture{t: h.t, root: root, memory: NewMemory(h.memory.LimitBytes)}
	var live []*Segment
	for _, seg := range f.memory.segments {
		if seg.Device != nil {
			continue
		}
		live = append(live, &Segment{ID: seg.ID, Bytes: seg.Bytes})
	}
	_, err = Recover(config, root, again.memory, live)
	require.NoError(h.t, err, "what was recovered from damage cannot be recovered again:%s", what)
	return true
}
