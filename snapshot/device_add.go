package snapshot

// AddDevice serves a device that was not to be had when the store was made.
func (s *Store) AddDevice(d *Device) {
	s.config.Devices = append(s.config.Devices, d)
	s.memory.devices = append(s.memory.devices, &space{device: d, LimitBytes: d.LimitBytes, life: s.root.StartedNs})
}
