package snapshot

import (
	"slices"

	"callboard/fault"
	"callboard/protocol"
)

// victim is a dead version that no pin was seen to keep.
type victim struct {
	column  *column
	version *version
}

// noteExcess remembers a column that has versions beyond its retention.
func (s *Store) noteExcess(c *column) {
	if !c.excess && (len(c.versions) > c.retain || c.gone() > 0) {
		c.excess = true
		s.excess = append(s.excess, c)
	}
}

// reclaim gives back versions that are dead, beyond retention and not pinned
// (rule V3): look at the pins, raise the horizons, look again. hard: also what
// only retention keeps.
func (s *Store) reclaim(hard bool) (freed bool) {
	if len(s.excess) == 0 || s.reclaiming || s.pinsUnknown {
		return false // a block given back may retire a segment, whose note may need memory
	}
	s.reclaiming = true
	defer func() { s.reclaiming = false }()
	s.victims = s.victims[:0]
	s.scanPins()
	for _, c := range s.excess {
		keep := c.retain
		if hard && c.hard || fault.On(fault.RetainOneLess) {
			keep = 1
		}
		horizon := c.entry.Horizon
		for _, v := range c.versions[:max(0, len(c.versions)-keep, c.gone())] {
			if v.death > s.epoch {
				break // only the newest lives; what is being replaced is not dead yet
			}
			if s.pinned(c, v) {
				continue
			}
			horizon = max(horizon, v.death)
			s.victims = append(s.victims, victim{c, v})
		}
		if horizon > c.entry.Horizon {
			store64(&c.entry.Horizon, horizon)
			if horizon > s.root.HorizonAny {
				store64(&s.root.HorizonAny, horizon)
			}
		}
	}
	if len(s.victims) > 0 {
		s.scanPins() // after the horizons: whoever pinned meanwhile sees them, or is seen here
		for _, w := range s.victims {
			if !s.pinned(w.column, w.version) {
				s.free(w.column, w.version)
				freed = true
			}
		}
	}
	s.excess = slices.DeleteFunc(s.excess, func(c *column) bool {
		c.excess, c.hard = len(c.versions) > c.retain || c.gone() > 0, false
		return !c.excess
	})
	return freed
}

// reclaimUnderPressure gives up spare blocks, then retained states, before memory of a
// device, or with nil of the host, is refused (rule V7).
func (s *Store) reclaimUnderPressure(d *Device) bool {
	if s.dropSpares(d) {
		return true
	}
	for _, c := range s.columns {
		c.hard = c.uses(d)
		if c.hard && len(c.versions) > 1 && !c.excess {
			c.excess = true
			s.excess = append(s.excess, c)
		}
	}
	return s.reclaim(true)
}

// uses tells whether rows of the column lie on a device, or with nil on the host.
func (c *column) uses(d *Device) bool {
	if c.device == d {
		return true
	}
	return slices.ContainsFunc(c.versions, func(v *version) bool { return v.mirror(d.number()) != nil })
}

func (s *Store) scanPins() {
	s.pins = s.pins[:0]
	for _, p := range s.sources {
		s.pins = p.AppendPins(s.pins)
	}
}

// pinned tells whether a pin that was seen keeps v: birth ≤ pin < death.
func (s *Store) pinned(c *column, v *version) bool {
	if fault.On(fault.PinsIgnored) {
		return false
	}
	for _, p := range s.pins {
		if (p.Attribute == c.index || p.Attribute == protocol.PinAll) && v.birth <= p.Epoch && p.Epoch < v.death {
			return true
		}
	}
	return false
}

// free gives a version back: its slot first, then its block (rule V4).
func (s *Store) free(c *column, v *version) {
	i := slices.Index(c.versions, v)
	c.versions = slices.Delete(c.versions, i, i+1)
	s.records.set(c.slots[v.slot].record, protocol.RecordEntry{})
	c.freeSlots = append(c.freeSlots, v.slot)
	if !c.keepSpare(s, v) {
		s.memory.Drop(v.block)
		s.memory.Drop(v.ordinals)
	}
	s.memory.Drop(v.layoutBlock)
	s.dropMirrors(v)
	for n, b := range v.data {
		c.handDown(s, b, v.sequence)
		v.data[n] = nil
	}
	v.data = v.data[:0]
	s.counters.Reclaimed++
	c.cache = v
}
