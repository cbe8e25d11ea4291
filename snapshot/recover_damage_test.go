package snapshot

import (
	"fmt"
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

// recoverDamaged recovers, and if it is served, lets the stage go on.
func (h *history) recoverDamaged(root []byte, segments []*Segment, what string) bool {
	before := slices.Clone(root)
	var first [][]byte
	for _, seg := range segments {
		first = append(first, slices.Clone(seg.Bytes))
	}
	f := &fixture{t: h.t, root: root}
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
			t := Target{Query: queryOf(h.prims[:3]...), Name: name, Schema: historySchema(max(1, historyRowBytes[name])), Ordinal: ordinal}
			var err error
			if name == "g" {
				t.Schema, t.ElementSizes = historySchema(-2), []uint64{1, 2, 3}
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
		live = append(live, &Segment{ID: seg.ID, Bytes: seg.Bytes})
	}
	_, err = Recover(config, root, again.memory, live)
	require.NoError(h.t, err, "what was recovered from damage cannot be recovered again:%s", what)
	return true
}
