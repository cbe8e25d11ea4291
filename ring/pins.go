package ring

import "sync/atomic"

// Pins is the broker's side of a channel's pin slots. It outlives the session: a
// client may have closed with views alive (rule I2). One goroutine uses it.
type Pins struct {
	parts parts
	high  uint32 // slots below it are scanned; it only grows
}

// NewPins takes a channel's pin slots. l is the broker's own layout; mem must
// stay mapped while the Pins are used.
func NewPins(mem []byte, l Layout) (*Pins, error) {
	p, err := partsOf(mem, &l)
	if err != nil {
		return nil, err
	}
	return &Pins{parts: p}, nil
}

// Scan calls fn for each pin: slot index, epoch (never 0), and column or
// protocol.PinAll. It is the scan of rules V2 and V3: the caller has stored the
// horizon before.
//
// A slot that is released and taken anew during the scan may be told with the old
// epoch and the new column. That keeps a block longer, never shorter: the new pin
// itself was stored after the horizon, so its reader sees that and backs out or
// is not in the way.
//
// Error: *CorruptError when the client's high-water mark is beyond the slots. All
// slots were scanned then; the session must end, the pins still count.
func (p *Pins) Scan(fn func(slot int, epoch uint64, attribute uint32)) error {
	err := p.raise()
	acquireEdge(edgePin)
	slots := p.parts.pins[:p.high]
	for i := range slots {
		if epoch := atomic.LoadUint64(&slots[i].Epoch); epoch != 0 {
			fn(i, epoch, atomic.LoadUint32(&slots[i].Attribute))
		}
	}
	return err
}

// raise takes the client's high-water mark over. One that goes back is not
// followed: slots that were in use may still be.
func (p *Pins) raise() error {
	word := atomic.LoadUint32(&p.parts.control.PinHighWater) // pairs with the store in PinTable.Acquire
	count := uint32(len(p.parts.pins))
	p.high = max(p.high, min(word, count))
	if word > count {
		return atMost("PinHighWater", uint64(word), uint64(count))
	}
	return nil
}

// Store puts epoch into a slot that the client named in OpPin and returns the
// column that stands there. Only then does the broker write pins: it alone raises
// horizons, so this pin needs no check (rule V2).
// Error: *CorruptError when there is no such slot or it holds an epoch already.
func (p *Pins) Store(slot uint32, epoch uint64) (attribute uint32, err error) {
	if slot >= uint32(len(p.parts.pins)) {
		return 0, atMost("pin slot", uint64(slot), uint64(len(p.parts.pins)-1))
	}
	s := &p.parts.pins[slot]
	attribute = atomic.LoadUint32(&s.Attribute)
	// The next Scan must look here, whatever the client's mark says.
	p.high = max(p.high, slot+1)
	if !atomic.CompareAndSwapUint64(&s.Epoch, 0, epoch) {
		return 0, exactly("PinSlot.Epoch", atomic.LoadUint64(&s.Epoch), 0)
	}
	return attribute, nil
}

// Clear empties every slot. Precondition: the client's process is proven dead
// (rule I3); a living one would read memory that is used anew.
func (p *Pins) Clear() {
	for i := range p.parts.pins {
		atomic.StoreUint64(&p.parts.pins[i].Epoch, 0)
	}
}

// PinnedBytes is what the client's library says it has pinned; for display.
func (p *Pins) PinnedBytes() uint64 { return atomic.LoadUint64(&p.parts.control.PinnedBytes) }
