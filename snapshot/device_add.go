package snapshot

import "slices"

// AddDevice serves a device that was not to be had when the store was made.
func (s *Store) AddDevice(d *Device) {
	s.config.Devices = append(s.config.Devices, d)
	s.memory.devices = append(s.memory.devices, &space{device: d, LimitBytes: d.LimitBytes, life: s.root.StartedNs})
}

// SetLimits says anew what may wait for a seal (rule O2) and what one client may pin (rule V7).
func (s *Store) SetLimits(unsealedBytes, pinnedBytes uint64) {
	s.config.UnsealedBytesMax, s.config.PinnedBytesMax = unsealedBytes, pinnedBytes
	s.tellLimits()
}

// NoDevice says why there still is no device.
func (s *Store) NoDevice(why string) { s.config.NoDevice = why }

// Shows tells whether a version, or a copy of one, lies in a segment.
func (s *Store) Shows(segment uint64) bool {
	for _, c := range s.columns {
		for _, v := range c.versions {
			if v.block.in(segment) || slices.ContainsFunc(v.mirrors, func(m mirror) bool { return m.block.in(segment) }) {
				return true
			}
		}
	}
	return false
}
