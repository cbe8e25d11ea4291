package snapshot

import "fmt"

// MemoryUse says what the segments' bytes are used for, of the host or of a device. What
// is none of it is staging of clients.
type MemoryUse struct {
	Device *Device // nil: the host
	Usage
	OpenBytes      uint64 // retired, but still open in clients (rule C6); part of HeldBytes
	LiveBytes      uint64 // the newest version of each column
	RetainedBytes  uint64 // older ones, within retention
	PinnedBytes    uint64 // older ones that only readers keep
	MirrorBytes    uint64 // copies of versions that lie elsewhere
	RecycledBytes  uint64 // storage of reclaimed versions, for the next ones; given up before memory is refused
	WaitingBytes   uint64 // captures that wait for their seal
	DirectoryBytes uint64 // attributes, strings, layouts, floors
}

// StoreUse is the use of all memory.
type StoreUse struct {
	MemoryUse // of the host
	Devices   []MemoryUse
}

// Usage adds up what the memory is used for. A block that several versions refer to
// counts once, for the newest of them.
func (s *Store) Usage() StoreUse {
	u := StoreUse{MemoryUse: MemoryUse{Usage: s.memory.Usage()}}
	of := map[*space]*MemoryUse{&s.memory.space: &u.MemoryUse}
	for _, sp := range s.memory.devices {
		u.Devices = append(u.Devices, MemoryUse{Device: sp.device, Usage: s.memory.usage(sp), OpenBytes: sp.openBytes})
	}
	for i, sp := range s.memory.devices {
		of[sp] = &u.Devices[i]
	}
	seen := map[*Block]bool{nil: true}
	add := func(to func(*MemoryUse) *uint64, blocks ...*Block) {
		for _, b := range blocks {
			if !seen[b] && b.arena.space != nil {
				seen[b] = true
				*to(of[b.arena.space]) += b.Ref.LengthBytes
			}
		}
	}
	for _, c := range s.columns[min(1, len(s.columns)):] { // even the first may be in the making
		for i := len(c.versions) - 1; i >= 0; i-- {
			v := c.versions[i]
			to := func(u *MemoryUse) *uint64 { return &u.PinnedBytes }
			switch age := len(c.versions) - 1 - i; {
			case age == 0:
				to = func(u *MemoryUse) *uint64 { return &u.LiveBytes }
			case age < c.retain:
				to = func(u *MemoryUse) *uint64 { return &u.RetainedBytes }
			}
			add(to, v.block, v.ordinals)
			for _, d := range v.data {
				add(to, d.block)
			}
			for k := range v.mirrors {
				add(func(u *MemoryUse) *uint64 { return &u.MirrorBytes }, v.mirrors[k].block)
			}
		}
		if c.ragged != nil {
			u.LiveBytes += c.ragged.sizeBytes
		}
		for _, k := range c.pending {
			add(func(u *MemoryUse) *uint64 { return &u.WaitingBytes }, k.block, k.data)
		}
		for _, x := range c.spares {
			add(func(u *MemoryUse) *uint64 { return &u.RecycledBytes }, x.block, x.ordinals)
		}
	}
	u.DirectoryBytes = s.meta.pool.Stats().Leased
	return u
}

// explainMemory tells in an error what memory of a device, or with nil of the host, is used
// for, and what would help. All that can be given up was given up before.
func (s *Store) explainMemory(d *Device) string {
	all := s.Usage()
	u, what, option, held := &all.MemoryUse, "segments", "--memory", s.memory.quarantinedBytes()
	for i := range all.Devices {
		if all.Devices[i].Device == d {
			u, what, option, held = &all.Devices[i], "segments on "+d.String(), "--gpu-memory", 0
		}
	}
	known := u.FreeBytes + u.OpenBytes + u.LiveBytes + u.RetainedBytes + u.PinnedBytes + u.MirrorBytes + u.RecycledBytes + u.WaitingBytes + u.DirectoryBytes
	text := fmt.Sprintf("; %d bytes of the %s are free, newest versions take %d, older ones that readers pin %d, unsealed data %d, the directory %d, staging of clients %d",
		u.FreeBytes, what, u.LiveBytes, u.PinnedBytes, u.WaitingBytes, u.DirectoryBytes, u.HeldBytes-min(u.HeldBytes, known))
	if u.MirrorBytes > 0 {
		text += fmt.Sprintf(", copies of versions that lie elsewhere %d", u.MirrorBytes)
	}
	if u.OpenBytes > 0 {
		text += fmt.Sprintf(", and %d are retired, but still open in clients", u.OpenBytes)
	}
	if held > 0 {
		text += fmt.Sprintf(" (%d of it of before a restart, until those clients have ended their map sessions of then)", held)
	}
	switch {
	case held > max(u.PinnedBytes, u.WaitingBytes):
		text += "; let go of views of map sessions of before the restart"
	case u.PinnedBytes > 0:
		text += "; release reads"
	case u.WaitingBytes > 0:
		text += "; seal what waits"
	case len(s.sessions) > 0:
		text += "; hand back or abort map sessions"
	default:
		text += "; delete attributes"
	}
	return text + ", or raise `serve " + option + "`"
}

// smallBytes is the largest block that lies with the small ones. A few of those would
// otherwise keep large segments in service after large attributes are gone.
const smallBytes = 64 << 10

// data leases memory of the stage's own for rows.
func (s *Store) data(size uint64) (*Block, error) {
	if size > smallBytes {
		return s.memory.Alloc(s.broker, size)
	}
	return s.memory.Alloc(s.smallArena(), size)
}

func (s *Store) smallArena() *Arena {
	if s.small == nil {
		s.small = s.memory.NewArena(s.broker.Sort, s.broker.Owner, s.broker.Label, false)
		s.small.beside = s.broker
	}
	return s.small
}
