package ring

import (
	"fmt"
	"sync"
	"sync/atomic"
)

// PinTable is the client's side of a channel's pin slots (rules V1, V2). All
// methods may be called by any number of goroutines; a slot between its Acquire
// and its Release belongs to whoever acquired it.
//
// A slot's life: Acquire → Store (again and again while a read retries) → Release.
type PinTable struct {
	parts parts

	mutex sync.Mutex
	free  []uint32 // released slots, the last one first, so that low slots stay warm
	used  []bool   // by slot; catches a slot that is released twice
	next  uint32   // slots from here on were never used; PinHighWater is the same
}

// NewPinTable takes the pin slots of a channel that was not used before. mem must
// stay mapped until the last slot is released.
func NewPinTable(mem []byte, l Layout) (*PinTable, error) {
	p, err := partsOf(mem, &l)
	if err != nil {
		return nil, err
	}
	return &PinTable{
		parts: p,
		free:  make([]uint32, 0, l.PinCount),
		used:  make([]bool, l.PinCount),
	}, nil
}

// Acquire takes a free slot; its epoch is 0. Error: wraps ErrPinLimit.
func (t *PinTable) Acquire() (slot int, err error) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if last := len(t.free) - 1; last >= 0 {
		slot = int(t.free[last])
		t.free = t.free[:last]
	} else {
		if int(t.next) == len(t.used) {
			return 0, fmt.Errorf("%w: all %d are in use", ErrPinLimit, len(t.used))
		}
		slot = int(t.next)
		t.next++
		// Before the slot's first epoch: a scan that starts after that looks this far.
		atomic.StoreUint32(&t.parts.control.PinHighWater, t.next)
	}
	t.used[slot] = true
	return slot, nil
}

// Store pins column attribute, or PinAll, at epoch. The attribute goes first, so
// that whoever sees the epoch sees what it is about. The reader checks horizons
// after it (rule V2). Epoch 0 states the attribute alone, for OpPin.
func (t *PinTable) Store(slot int, attribute uint32, epoch uint64) {
	s := &t.parts.pins[slot]
	atomic.StoreUint32(&s.Attribute, attribute)
	releaseEdge(edgePin)
	atomic.StoreUint64(&s.Epoch, epoch) // pairs with the load in Pins.Scan
}

// Unpin takes the epoch out of a slot and leaves its attribute, for another OpPin: a
// broker that was killed may have stored one already.
func (t *PinTable) Unpin(slot int) { atomic.StoreUint64(&t.parts.pins[slot].Epoch, 0) }

// Epoch is the epoch in the slot: what Store put there, or the broker for OpPin.
func (t *PinTable) Epoch(slot int) uint64 { return atomic.LoadUint64(&t.parts.pins[slot].Epoch) }

// Release ends the pin and gives the slot back. Nothing that it kept alive may be
// read after the call. Panics when the slot is not acquired.
func (t *PinTable) Release(slot int) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if !t.used[slot] {
		panic(fmt.Sprintf("ring: pin slot %d is released but not in use", slot))
	}
	releaseEdge(edgePin)
	// An exchange is a full barrier: a plain store might linger behind the reader's
	// next pin and make it appear at two versions within a scan (rule V1).
	atomic.SwapUint64(&t.parts.pins[slot].Epoch, 0)
	t.used[slot] = false
	t.free = append(t.free, uint32(slot)) // never beyond its capacity, the number of slots
}

// InUse is how many slots are acquired.
func (t *PinTable) InUse() int {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	return int(t.next) - len(t.free)
}

// SetPinnedBytes shows how many bytes of distinct versions are pinned (rule V7).
func (t *PinTable) SetPinnedBytes(sizeBytes uint64) {
	atomic.StoreUint64(&t.parts.control.PinnedBytes, sizeBytes)
}
