package snapshot

import (
	"math"
	"slices"

	"callboard/protocol"
)

// What lay on a device went with the broker that had it there (rule B3). A recovery finds
// the versions in the directory, and nothing that they could be made of. Those that are
// dead stay in their slots while pins are on them; a column whose newest version is one of
// them is lost: it has no layout and no prims from then on, and the next epoch, whatever it
// is of, shows that by a version without rows. Its ordinals are behind the floor, so that a
// read as of before finds none of its own, and the frontier is there as well: which rows
// went is not listed as deletes, whoever asks what changed since is sent to read anew.

// gone tells whether the version's rows went with another life of the broker.
func (v *version) gone() bool { return v.block.arena != nil && v.block.arena.space == nil } // a recovery has put no other into an arena yet

// gone is how many of the column's oldest versions there are up to the last one that is
// gone. One without rows may be among them: it lay nowhere.
func (c *column) gone() (n int) {
	if !c.onDevice() {
		return 0
	}
	for n = len(c.versions); n > 0 && !c.versions[n-1].gone(); n-- {
	}
	return n
}

// lost tells whether the fold is of a lost column.
func (f *fold) lost() bool { return f.column != nil && f.column.lost }

// emptied gives a lost column the ordinals of the version that shows it, where nothing was
// written: behind all that anybody has read as of.
func (f *fold) emptied(s *Store) {
	if f.lowest > f.highest {
		f.lowest = s.behindFloor(f.column)
		f.highest = f.lowest
	}
}

// behindFloor is the first ordinal that nobody has sealed the column at.
func (s *Store) behindFloor(c *column) uint64 {
	floor := s.floorOfID(c.nameID)
	return floor + min(1, math.MaxUint64-floor)
}

// lose makes a recovered column lost.
func (s *Store) lose(c *column) {
	c.lost = true
	s.lost = append(s.lost, c)
}

// moveFrontiers says of lost columns, before the floors move, that changes are known from
// now on only.
func (s *Store) moveFrontiers() {
	for _, c := range s.lost {
		if from := s.behindFloor(c); from > c.entry.FrontierOrdinal {
			store64(&c.entry.FrontierOrdinal, from)
		}
	}
}

// found ends the loss of columns: an epoch has shown it.
func (s *Store) found() {
	for _, c := range s.lost {
		c.lost = false
		s.closeGone(c)
		s.noteExcess(c)
	}
	s.lost = nil
}

// closeGone raises a column's horizon to the death of what is gone, whoever has pinned that:
// nobody begins to look at it any more.
func (s *Store) closeGone(c *column) {
	n := c.gone()
	if n == 0 || c.lost {
		return
	}
	if death := c.versions[n-1].death; death > c.entry.Horizon {
		store64(&c.entry.Horizon, death)
		if death > s.root.HorizonAny {
			store64(&s.root.HorizonAny, death)
		}
	}
}

// ShowLost makes at once the epoch that shows Recovered.Lost without prims; without it,
// the next seal does. PinsComplete tries it. ErrRetry: memory is being made, or a seal is
// on its way.
func (s *Store) ShowLost() error {
	if len(s.lost) == 0 {
		return nil
	}
	z := s.newSealing(0)
	err := z.plan()
	if err == nil {
		err = z.lease()
	}
	if err != nil {
		z.drop()
		return err
	}
	z.copy()
	z.commit()
	return nil
}

// claimGone is the block of a version that is gone: it keeps the place that its slot and the records tell of.
func (r *recovery) claimGone(what string, c *column, e *protocol.RecordEntry, lengthBytes uint64) (*Block, error) {
	b := e.Block
	if raw, ok := r.store.segments.have(b.Segment - 1); ok && b.Segment <= r.root.SegmentCount {
		if s := at[protocol.SegmentEntry](raw, 0); s.State != protocol.SegmentFree && (s.Sort&protocol.SegmentOnDevice == 0 || b.OffsetBytes > s.SizeBytes || b.LengthBytes > s.SizeBytes-b.OffsetBytes) {
			return nil, corrupt("%s lies in %+v on a device, and segment %d has %d bytes and sort %#x", what, b, s.Segment, s.SizeBytes, s.Sort)
		}
	}
	if !c.onDevice() || b.Segment == 0 || b.Segment > 1<<40 || r.byID[b.Segment] != nil || b.LengthBytes < lengthBytes {
		return nil, corrupt("%s of %d bytes lies in %+v on a device, and its column on %d, %d", what, lengthBytes, b, c.schema.DeviceType, c.schema.DeviceID)
	}
	r.goneMax = max(r.goneMax, b.Segment)
	if r.gone == nil {
		r.gone = &Arena{Sort: protocol.SegmentClient | protocol.SegmentOnDevice, Label: "device memory of another life"}
	}
	return &Block{Ref: b, arena: r.gone, refs: 1}, nil
}

// loseColumn makes a column lost whose newest version is gone.
func (r *recovery) loseColumn(c *column) bool {
	v := c.latest()
	if v == nil || !v.gone() {
		return false
	}
	r.store.lose(c)
	if !slices.Contains(r.lost, c.name) {
		r.lost = append(r.lost, c.name)
	}
	return true
}
