//go:build callboard_kill

package snapshot

import (
	"bytes"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"callboard/protocol"
	"callboard/tensor"

	"github.com/stretchr/testify/require"
)

// pictures takes what has just been done to shared memory, store by store: one picture
// for each of those that take picks. It leaves atStep as it was.
func (h *history) pictures(take func(n int) bool, what func()) (all []*picture) {
	n, last := 0, (*picture)(nil)
	atStep = func() {
		if take(n) {
			last = h.picture(last)
			all = append(all, last)
		}
		n++
	}
	defer func() { atStep = nil }()
	what()
	return all
}

// TestKilledAtEveryStep: the broker is killed at random stores of random operations, at
// all of them for a few, in recoveries too; what was sealed is there, and the seal that
// was under way is there as a whole or not at all (rules B2, V6; behaviour of D9).
func TestKilledAtEveryStep(t *testing.T) {
	killed, forward, halves := 0, 0, 0
	seeds(t, 8*time.Second, func(t *testing.T, seed uint64) {
		names := slices.Sorted(maps.Keys(historyConfigs))
		c := historyConfigs[names[seed%uint64(len(names))]]
		h := newHistory(t, seed, c.config, c.delayed)
		for range 60 {
			some := h.lazy.IntN(12)
			if some == 0 {
				some = 1 // every one
			}
			first := h.lazy.IntN(some)
			before := h.naive.epoch
			if h.lazy.IntN(3) > 0 {
				h.next()
				continue
			}
			all := h.pictures(func(n int) bool { return n%some == first }, h.next)
			for i, p := range all {
				if i > 0 && h.lazy.IntN(10) > 0 && some > 1 {
					continue
				}
				r := h.examine(p, seed)
				require.GreaterOrEqual(t, r.Epoch, before, "what was sealed before the operation")
				killed++
				if r.RolledForward {
					forward++
				}
				if h.lazy.IntN(16) > 0 {
					continue
				}
				some := h.killedRecovery(p)
				h.lazy.Shuffle(len(some), func(i, k int) { some[i], some[k] = some[k], some[i] })
				for _, half := range some[:min(3, len(some))] {
					require.Equal(t, r.Epoch, h.examine(half, seed).Epoch, "a recovery after one that was killed")
					halves++
				}
			}
			if len(all) > 0 && h.lazy.IntN(3) == 0 {
				h.restart(all[h.lazy.IntN(len(all))])
				killed++
			}
		}
		h.finale()
	})
	t.Logf("killed %d times, and %d times in a recovery, rolled forward %d times", killed, halves, forward)
}

// TestKilledWhileARingOfDeletesGrows: whatever store it is that a broker is killed at,
// all deletes that were sealed are known, and none that was not (rule O7); a seal that
// committed its record is rolled forward (rule B2).
func TestKilledWhileARingOfDeletesGrows(t *testing.T) {
	h := &history{fixture: newFixture(t, Config{Retain: 2}, 1<<30)}
	h.prims = h.paths(80)
	query := queryOf(h.prims...)
	remove := func(ordinal uint64, prims []uint64) {
		require.NoError(t, h.try(func() error { _, err := h.store.Delete(queryOf(prims...), []string{"a"}, ordinal); return err }))
	}
	_, err := h.write(query, "a", bytesSchema(1), 1, bytes.Repeat([]byte{7}, len(h.prims)))
	require.NoError(t, err)
	h.seal(1, protocol.ScopeAll)
	deleted := map[uint64]int{1: 0, 2: 60, 3: 70}
	for ordinal := uint64(2); ordinal <= 3; ordinal++ { // the first ring, then one that is larger
		remove(ordinal, h.prims[deleted[ordinal-1]:deleted[ordinal]])
		all := h.pictures(func(int) bool { return true }, func() { h.seal(ordinal, protocol.ScopeAll) })
		require.Greater(t, len(all), 50)
		forward := 0
		for _, p := range all {
			var scratch [][]byte
			other := &history{fixture: &fixture{t: t, store: h.store, memory: h.memory, fakes: h.fakes}, prims: h.prims, pinned: &pinSet{}}
			var segments []*Segment
			other.root, segments = p.copies(&scratch)
			other.lazy = rand.New(rand.NewPCG(1, 1))
			r := other.recover(segments)
			if r.RolledForward {
				forward++
			}
			check := func(epoch uint64) {
				other.attachReader()
				found, err := other.reader.Tombstones(other.list, other.readerColumns()[0], epoch, 0, protocol.Infinite)
				require.NoError(t, err)
				require.Len(t, found, deleted[epoch])
				require.Len(t, other.rowsAt(1, epoch), len(h.prims)-deleted[epoch])
			}
			require.GreaterOrEqual(t, r.Epoch, ordinal-1)
			check(r.Epoch)
			if r.Epoch < ordinal {
				require.NoError(t, other.try(func() error {
					_, err := other.store.Delete(queryOf(h.prims[deleted[ordinal-1]:deleted[ordinal]]...), []string{"a"}, ordinal)
					return err
				}))
				other.memory.Grow = func(r GrowRequest) { other.grown(r) }
				other.seal(ordinal, protocol.ScopeAll)
			}
			check(ordinal)
			require.Less(t, other.attribute(1).FrontierOrdinal, uint64(1))
		}
		require.Positive(t, forward)
	}
}

// TestKilledWhileLostRowsAreShown: whatever store it is that a broker is killed at, in the
// recovery after one that had rows on a device, or in the epoch that shows that they are
// lost: the next one shows them lost, and nothing else has changed (rules B2, B3).
func TestKilledWhileLostRowsAreShown(t *testing.T) {
	h := lostStage(t)
	var pinned Pinned
	require.NoError(t, h.reader.PinAll(&pinned)) // its slots stay
	all := h.killedRecovery(h.picture(nil))
	require.NotEmpty(t, all)
	h.again(true)
	shown := h.pictures(func(int) bool { return true }, h.store.PinsComplete)
	require.Greater(t, len(shown), 50)
	forward, lost := 0, 0
	for _, p := range append(all, shown...) {
		var scratch [][]byte
		other := &history{fixture: &fixture{t: t, store: h.store, memory: h.memory, fakes: h.fakes}, prims: h.prims}
		var segments []*Segment
		other.root, segments = p.copies(&scratch)
		r := other.revive(true, segments)
		other.attachReader()
		if r.RolledForward {
			forward++
		}
		lost += len(r.Lost)
		require.Contains(t, []uint64{3, 4}, r.Epoch)
		require.Equal(t, r.Epoch == 3, len(r.Lost) == 1)
		if r.Epoch == 3 {
			require.True(t, other.isVoid(1, 3))
		}
		other.step(other.store.PinsComplete)
		require.EqualValues(t, 4, other.store.Epoch())
		require.Equal(t, "...", other.valuesAt("a", h.prims))
		require.Equal(t, "GHI", other.valuesAt("host", h.prims))
		require.EqualValues(t, 3, other.store.FloorOf("a"))
		for ordinal := uint64(1); ordinal <= 3; ordinal++ {
			requireStatus(t, protocol.StatusOutOfRange, other.asOf(0, ordinal))
			require.NoError(t, other.asOf(1, ordinal))
		}
		require.EqualValues(t, 4, other.readerColumns()[0].Frontier())
		require.NoError(t, other.write4("a", 4, h.prims[:1], "x", tensor.Selection{Count: tensor.All}))
		other.seal(4, protocol.ScopeAll)
		require.Equal(t, "x..", other.valuesAt("a", h.prims))
		other.checkBooks()
	}
	require.Positive(t, forward)
	require.Positive(t, lost)
}

// killedRecovery recovers a picture and gives what is there after each store of that.
func (h *history) killedRecovery(p *picture) (all []*picture) {
	var scratch [][]byte
	root, segments := p.copies(&scratch)
	atStep = func() {
		half := &picture{root: slices.Clone(root)}
		for i, seg := range segments {
			half.segments = append(half.segments, pictureSegment{id: seg.ID, mapped: p.segments[i].mapped, bytes: slices.Clone(seg.Bytes)})
		}
		all = append(all, half)
	}
	defer func() { atStep = nil }()
	_, err := Recover(h.store.config, root, NewMemory(h.memory.LimitBytes), segments)
	require.NoError(h.t, err)
	return all
}

// examine recovers a picture elsewhere and compares what comes of it with the naive
// store, as a reader that comes then would.
func (h *history) examine(p *picture, seed uint64) *Recovered {
	root, segments := p.copies(&h.scratch)
	other := &history{fixture: &fixture{t: h.t, root: root, store: h.store, memory: h.memory, fakes: h.fakes}, naive: h.naive, prims: h.prims, queries: h.queries, handoff: h.handoff,
		random: rand.New(rand.NewPCG(seed, 3)), lazy: rand.New(rand.NewPCG(seed, 4)), stamp: h.stamp, pinned: &pinSet{}}
	for _, c := range h.clients {
		mine := &historyClient{incarnation: c.incarnation, arena: c.arena}
		mine.pins = slices.Clone(c.pins)
		other.clients = append(other.clients, mine)
	}
	other.memory = NewMemory(h.memory.LimitBytes)
	other.memory.Grow = func(r GrowRequest) { other.grown(r) }
	other.memory.Retired = func(seg *Segment) {
		if seg.Device != nil {
			other.memory.Freed(seg)
		}
	}
	r := other.recover(segments)
	other.attachReader()
	other.check()
	other.checkBooks()
	// A seal that moves a floor alone: what a seal that was undone left would show now.
	ordinal := other.naive.floor("unborn") + 1
	other.seal(ordinal, protocol.ScopeInclude, "unborn")
	other.naive.seal(ordinal, protocol.ScopeInclude, []string{"unborn"})
	other.check()
	if other.random.IntN(8) == 0 { // it goes on
		for range 6 {
			other.next()
		}
		other.settle()
		other.checkBooks()
	}
	return r
}
