package snapshot

import (
	"fmt"
	"testing"

	"callboard/protocol"

	"github.com/stretchr/testify/require"
)

// lostStage is a stage with an attribute on a device and one on the host, at ordinal 3, and
// with a reader; then its broker ends.
func lostStage(t testing.TB) *history {
	h := &history{fixture: newDeviceFixture(t, Config{Retain: 3})}
	h.prims = h.paths(3)
	h.attachReader()
	for ordinal := uint64(1); ordinal <= 3; ordinal++ {
		require.NoError(t, h.write4("a", ordinal, h.prims, string(letters('a'+3*byte(ordinal-1), 3, 1)), all))
		_, err := h.write(queryOf(h.prims...), "host", bytesSchema(1), ordinal, letters('A'+3*byte(ordinal-1), 3, 1))
		require.NoError(t, err)
		h.seal(ordinal, protocol.ScopeAll)
	}
	return h
}

// again starts the next broker on what is left, with devices or without any.
func (h *history) again(devices bool) *Recovered {
	var segments []*Segment
	for _, seg := range h.memory.segments {
		if seg.Device == nil {
			segments = append(segments, &Segment{ID: seg.ID, Bytes: seg.Bytes})
		}
	}
	return h.revive(devices, segments)
}

func (h *history) revive(devices bool, segments []*Segment) *Recovered {
	h.memory = NewMemory(h.memory.LimitBytes)
	h.memory.Grow, h.memory.Retired = func(r GrowRequest) { h.grown(r) }, func(*Segment) {}
	config := h.store.config
	config.Incarnation++
	config.NoDevice = "it is gone"
	h.fakes = h.fakes.again()
	if config.Devices = nil; devices {
		config.Devices = h.fakes.config()
	}
	r, err := Recover(config, h.root, h.memory, segments)
	require.NoError(h.t, err)
	h.store, h.epochs = r.Store, [2]uint64{}
	if h.pinned != nil {
		h.store.AddPins(h.pinned)
	}
	return r
}

// asOf is how a read as of an ordinal ends.
func (h *history) asOf(column int, ordinal uint64) error {
	var p Pinned
	err := h.reader.PinAt(&p, AsOf(ordinal), h.readerColumns()[column])
	if err == nil {
		p.Release()
	}
	return err
}

// TestRowsOfADeviceAreLost: rule B3. The first epoch of the new life shows the attribute
// without prims, its floor stays, reads as of before are OUT_OF_RANGE and so is what changed
// since; the host's attribute is as it was. Whoever pinned the version keeps its slot. Then it
// is written as before.
func TestRowsOfADeviceAreLost(t *testing.T) {
	for _, show := range []string{"at once", "by a seal of another", "by its own seal"} {
		for _, devices := range []bool{true, false} {
			t.Run(fmt.Sprint(show, devices), func(t *testing.T) {
				h := lostStage(t)
				var p Pinned
				require.NoError(t, h.reader.PinAll(&p))
				column := h.readerColumns()[0]
				before, err := p.Find(column)
				require.NoError(t, err)
				slot := *h.versionAt(1, 3)
				arenas := map[uint64]bool{}
				for id, seg := range h.memory.segments {
					arenas[id] = seg.Device != nil
				}
				r := h.again(devices)
				require.Equal(t, []string{"a"}, r.Lost)
				require.EqualValues(t, 3, r.Epoch)
				for id, onDevice := range arenas {
					e := walkEntry[protocol.SegmentEntry](h.fixture, protocol.SegmentPageBase, h.header().SegmentPages[:], id-1)
					require.Equal(t, onDevice, e.State == protocol.SegmentRetired)
					require.Less(t, id, h.memory.nextID)
				}
				again, err := p.Find(column)
				require.NoError(t, err)
				require.True(t, again.Void)
				require.False(t, before.Void)
				require.NoError(t, h.store.Declare("host", bytesSchema(1), 0, 0))
				if !devices {
					text := requireStatus(t, protocol.StatusNotSupported, h.write4("a", 4, h.prims, "xyz", all)).Text
					require.Contains(t, text, "it is gone")
				}

				epoch := uint64(4)
				shown := "..."
				switch show {
				case "at once":
					h.store.PinsComplete()
					require.NoError(t, h.store.ShowLost(), "nothing is left to show")
				case "by a seal of another":
					h.seal(9, protocol.ScopeInclude, "other")
				case "by its own seal":
					if !devices {
						h.delete(4, queryOf(h.prims...), "a")
						h.seal(4, protocol.ScopeInclude, "a")
						break
					}
					require.NoError(t, h.write4("a", 4, h.prims[1:2], "x", all))
					h.seal(4, protocol.ScopeInclude, "a")
					shown = ".x."
				}
				require.Equal(t, epoch, h.store.Epoch())
				require.Equal(t, shown, h.valuesAt("a", h.prims))
				require.Equal(t, "GHI", h.valuesAt("host", h.prims))
				require.EqualValues(t, 3, h.versionAt(2, epoch).Birth, "the host's version goes on")
				floor := uint64(3)
				if show == "by its own seal" {
					floor = 4
				}
				require.Equal(t, floor, h.store.FloorOf("a"))
				require.EqualValues(t, 3, h.store.FloorOf("host"))
				for ordinal := uint64(1); ordinal <= 3; ordinal++ {
					requireStatus(t, protocol.StatusOutOfRange, h.asOf(0, ordinal))
					require.NoError(t, h.asOf(1, ordinal))
					_, err := h.reader.Tombstones(h.list, column, epoch, ordinal, protocol.Infinite)
					requireStatus(t, protocol.StatusOutOfRange, err)
				}
				require.EqualValues(t, 4, column.Frontier())
				require.EqualValues(t, slot.Birth, h.versionAt(1, 3).Birth, "it is pinned")
				require.Equal(t, slot.Block, h.versionAt(1, 3).Block)
				again, err = p.Find(column)
				require.NoError(t, err)
				rows, err := h.reader.Rows(h.list, &again)
				require.NoError(t, err)
				require.Len(t, rows.Prims, 3)
				p.Release()

				h.again(true) // what is gone since two lives is as gone
				require.Equal(t, shown == ".x.", len(h.store.lost) == 1, "only what was written anew is lost anew")
				h.store.PinsComplete()
				for ordinal := uint64(1); ordinal <= 3; ordinal++ {
					requireStatus(t, protocol.StatusOutOfRange, h.asOf(0, ordinal))
				}
				require.Equal(t, "...", h.valuesAt("a", h.prims))
				require.NoError(t, h.write4("a", 20, h.prims, "uvw", all))
				h.seal(20, protocol.ScopeAll)
				require.Equal(t, "uvw", h.valuesAt("a", h.prims))
				require.NoError(t, h.asOf(0, 20))
				_, err = h.reader.Tombstones(h.list, column, h.store.Epoch(), 20, protocol.Infinite)
				require.NoError(t, err)
				h.checkBooks()
			})
		}
	}
}

// TestOneSealShowsWhatIsLost: rules B3, L1. While the seal that shows it copies, no other
// seal begins: there is one first epoch.
func TestOneSealShowsWhatIsLost(t *testing.T) {
	h := lostStage(t)
	h.again(true)
	require.NoError(t, h.write4("a", 4, h.prims[1:], "xy", all))
	_, err := h.write(queryOf(h.prims...), "other", onDevice(bytesSchema(4), 1), 4, letters('x', 3, 4))
	require.NoError(t, err)
	require.NoError(t, h.write4("a", 4, h.prims[:1], "z", all))
	job := h.start(func() (Outcome, *Job, error) { return h.store.Seal(4, protocol.ScopeInclude, []string{"a"}, 1) })
	_, _, err = h.store.Seal(4, protocol.ScopeInclude, []string{"host"}, 1)
	require.ErrorIs(t, err, ErrRetry)
	require.ErrorIs(t, h.store.ShowLost(), ErrRetry)
	job.Run()
	_, err = job.Finish()
	require.NoError(t, err)
	require.Equal(t, "zxy", h.valuesAt("a", h.prims))
	h.seal(4, protocol.ScopeAll)
	require.EqualValues(t, 5, h.store.Epoch())
	h.checkBooks()
}

// TestGoneOnBothSidesOfNone: rule B3. A version without rows lies nowhere, and stays among
// others that are gone; nobody begins to read those before it nor those after it.
func TestGoneOnBothSidesOfNone(t *testing.T) {
	for _, seal := range []bool{true, false} { // the first epoch of the new life is a seal's; or two lives show none
		h := lostStage(t)
		h.delete(4, queryOf(h.prims...), "a")
		h.seal(4, protocol.ScopeAll)
		require.NoError(t, h.write4("a", 5, h.prims, "xyz", all))
		h.seal(5, protocol.ScopeAll)
		h.again(true)
		if !seal {
			h.store.PinsComplete()
			h.again(true)
		}
		h.seal(6, protocol.ScopeInclude, "host")
		for ordinal := uint64(1); ordinal <= 5; ordinal++ {
			requireStatus(t, protocol.StatusOutOfRange, h.asOf(0, ordinal))
		}
		require.Equal(t, "...", h.valuesAt("a", h.prims))
		require.Len(t, h.births("a"), 1, "nobody keeps them")
		h.checkBooks()
	}
}

// TestADeviceThatComesLater: a broker that begins without a device may get it later; then
// what lay there is written as before.
func TestADeviceThatComesLater(t *testing.T) {
	h := lostStage(t)
	h.again(false)
	h.store.PinsComplete()
	requireStatus(t, protocol.StatusNotSupported, h.write4("a", 4, h.prims, "xyz", all))
	h.store.AddDevice(h.fakes.config()[0])
	require.NoError(t, h.write4("a", 4, h.prims, "xyz", all))
	h.seal(4, protocol.ScopeAll)
	require.Equal(t, "xyz", h.valuesAt("a", h.prims))
	require.Equal(t, h.header().StartedNs, h.versionAt(1, h.store.Epoch()).ArenaGeneration)
	h.checkBooks()
}

// TestAMirrorOnTheHostOutlivesItsBroker: rules C5, V8. Whoever looks at a device's rows by
// their copy on the host goes on after a restart: no later version is put there.
func TestAMirrorOnTheHostOutlivesItsBroker(t *testing.T) {
	h := lostStage(t)
	place, err := h.mirrorOf(1, 3, 0)
	require.NoError(t, err)
	bytes := h.content(place.Block.Segment, place.Block.OffsetBytes, place.Block.LengthBytes)
	require.Equal(t, "gggghhhhiiii", string(bytes))
	r := h.again(true)
	require.Len(t, r.Unused, 1)
	require.Equal(t, place.Block.Segment, r.Unused[0].ID)
	h.store.PinsComplete()
	for ordinal := uint64(4); ordinal < 20; ordinal++ {
		require.NoError(t, h.write4("a", ordinal, h.prims, "xyz", all))
		_, err := h.write(queryOf(h.prims...), "host", bytesSchema(1), ordinal, letters('A', 3, 1))
		require.NoError(t, err)
		h.seal(ordinal, protocol.ScopeAll)
		_, err = h.mirrorOf(1, h.store.Epoch(), 0)
		require.NoError(t, err)
	}
	require.Equal(t, "gggghhhhiiii", string(bytes))
	_, err = h.mirrorOf(1, 3, 0)
	requireStatus(t, protocol.StatusOutOfRange, err)
	h.checkBooks()
}
