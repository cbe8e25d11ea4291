package ring

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"callboard/protocol"
)

type pinned struct {
	slot      int
	epoch     uint64
	attribute uint32
}

func newPins(t *testing.T) (*pair, *PinTable, *Pins) {
	p := newPair(t, 4, 4)
	table, err := NewPinTable(p.mem, p.layout)
	require.NoError(t, err)
	pins, err := NewPins(p.mem, p.layout)
	require.NoError(t, err)
	return p, table, pins
}

func scan(p *Pins) (found []pinned, err error) {
	err = p.Scan(func(slot int, epoch uint64, attribute uint32) {
		found = append(found, pinned{slot, epoch, attribute})
	})
	return found, err
}

// TestPinsAreSeenFromStoreToRelease is rule V1's slot life.
func TestPinsAreSeenFromStoreToRelease(t *testing.T) {
	_, table, pins := newPins(t)
	a, err := table.Acquire()
	require.NoError(t, err)
	found, err := scan(pins)
	require.NoError(t, err)
	require.Empty(t, found, "an acquired slot is no pin yet")
	table.Store(a, 3, 17)
	b, err := table.Acquire()
	require.NoError(t, err)
	table.Store(b, protocol.PinAll, 18)
	require.EqualValues(t, 18, table.Epoch(b))
	found, err = scan(pins)
	require.NoError(t, err)
	require.Equal(t, []pinned{{a, 17, 3}, {b, 18, protocol.PinAll}}, found)
	table.Release(a)
	found, err = scan(pins)
	require.NoError(t, err)
	require.Equal(t, []pinned{{b, 18, protocol.PinAll}}, found)
	require.Equal(t, 1, table.InUse())
}

func TestPinTableReusesTheLastSlotAndRefusesTheSeventeenth(t *testing.T) {
	p, table, _ := newPins(t)
	for want := range 16 {
		slot, err := table.Acquire()
		require.NoError(t, err)
		require.Equal(t, want, slot)
		require.EqualValues(t, want+1, p.control().PinHighWater, "the mark precedes the slot")
	}
	_, err := table.Acquire()
	require.ErrorIs(t, err, ErrPinLimit)
	require.ErrorContains(t, err, "all 16 are in use")
	table.Release(9)
	slot, err := table.Acquire()
	require.NoError(t, err)
	require.Equal(t, 9, slot)
	table.Release(9)
	require.PanicsWithValue(t, "ring: pin slot 9 is released but not in use", func() { table.Release(9) })
}

// TestBrokerStoresAPinForAReaderThatRetriedTooOften is op PIN of rule V2.
func TestBrokerStoresAPinForAReaderThatRetriedTooOften(t *testing.T) {
	p, table, pins := newPins(t)
	slot, err := table.Acquire()
	require.NoError(t, err)
	table.Store(slot, 5, 0)
	p.control().PinHighWater = 0 // a client that forgot its mark is scanned all the same
	attribute, err := pins.Store(uint32(slot), 40)
	require.NoError(t, err)
	require.EqualValues(t, 5, attribute)
	require.EqualValues(t, 40, table.Epoch(slot))
	found, err := scan(pins)
	require.NoError(t, err)
	require.Equal(t, []pinned{{slot, 40, 5}}, found)

	_, err = pins.Store(uint32(slot), 41)
	corrupt(t, err, "PinSlot.Epoch", 40, "exactly", 0)
	_, err = pins.Store(16, 41)
	corrupt(t, err, "pin slot", 16, "at most", 15)
	_, err = pins.Store(1<<32-1, 41)
	corrupt(t, err, "pin slot", 1<<32-1, "at most", 15)
}

func TestCorruptPinHighWaterBeyondTheSlotsScansThemAll(t *testing.T) {
	p, table, pins := newPins(t)
	slot, err := table.Acquire()
	require.NoError(t, err)
	table.Store(slot, 1, 2)
	p.control().PinHighWater = 1<<32 - 1
	found, err := scan(pins)
	corrupt(t, err, "PinHighWater", 1<<32-1, "at most", 16)
	require.Equal(t, []pinned{{slot, 2, 1}}, found, "pins count even so")
}

func TestPinHighWaterThatGoesBackHidesNoPin(t *testing.T) {
	p, table, pins := newPins(t)
	slot, err := table.Acquire()
	require.NoError(t, err)
	table.Store(slot, 1, 2)
	_, err = scan(pins)
	require.NoError(t, err)
	p.control().PinHighWater = 0
	found, err := scan(pins)
	require.NoError(t, err)
	require.Len(t, found, 1)
}

// TestPinsOutliveTheSessionUntilCleared is rules I2 and I3.
func TestPinsOutliveTheSessionUntilCleared(t *testing.T) {
	_, table, pins := newPins(t)
	for range 3 {
		slot, err := table.Acquire()
		require.NoError(t, err)
		table.Store(slot, 1, 2)
	}
	table.SetPinnedBytes(4096)
	require.EqualValues(t, 4096, pins.PinnedBytes())
	found, err := scan(pins)
	require.NoError(t, err)
	require.Len(t, found, 3)
	pins.Clear()
	found, err = scan(pins)
	require.NoError(t, err)
	require.Empty(t, found)
}

// TestPinSlotsAreNeverGivenTwice: many goroutines take and release at once, and
// each must find its own epoch in its slot while the broker scans.
func TestPinSlotsAreNeverGivenTwice(t *testing.T) {
	_, table, pins := newPins(t)
	var readers sync.WaitGroup
	for reader := range 12 {
		readers.Go(func() {
			for i := range 3000 {
				slot, err := table.Acquire()
				if err != nil {
					t.Errorf("12 readers with 16 slots: %v", err)
					return
				}
				mine := uint64(reader+1)<<32 | uint64(i)
				table.Store(slot, uint32(reader), mine)
				if got := table.Epoch(slot); got != mine {
					t.Errorf("slot %d holds %x, its owner stored %x", slot, got, mine)
				}
				table.Release(slot)
			}
		})
	}
	finished := make(chan struct{})
	go func() { readers.Wait(); close(finished) }()
	for {
		require.NoError(t, pins.Scan(func(slot int, epoch uint64, attribute uint32) {
			require.Less(t, attribute, uint32(12))
			require.NotZero(t, epoch>>32)
		}))
		select {
		case <-finished:
			require.Zero(t, table.InUse())
			found, err := scan(pins)
			require.NoError(t, err)
			require.Empty(t, found)
			return
		default:
		}
	}
}

func TestPinningAllocatesNothing(t *testing.T) {
	_, table, pins := newPins(t)
	count := 0
	fn := func(int, uint64, uint32) { count++ }
	require.Zero(t, testing.AllocsPerRun(100, func() {
		slot, err := table.Acquire()
		if err != nil {
			panic(err)
		}
		table.Store(slot, 1, 2)
		_ = pins.Scan(fn)
		table.Release(slot)
	}))
	require.Equal(t, 101, count)
}
