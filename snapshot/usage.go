package snapshot

import "fmt"

// MemoryUse says what the segments' bytes are used for. What is none of it is staging of
// clients.
type MemoryUse struct {
	Usage
	LiveBytes      uint64 // the newest version of each column
	RetainedBytes  uint64 // older ones, within retention
	PinnedBytes    uint64 // older ones that only readers keep
	RecycledBytes  uint64 // storage of reclaimed versions, for the next ones; given up before memory is refused
	WaitingBytes   uint64 // captures that wait for their seal
	DirectoryBytes uint64 // attributes, strings, layouts, floors
}

// Usage adds up what the memory is used for. A block that several versions refer to
// counts once, for the newest of them.
func (s *Store) Usage() MemoryUse {
	u := MemoryUse{Usage: s.memory.Usage()}
	seen := map[*Block]bool{nil: true}
	add := func(to *uint64, blocks ...*Block) {
		for _, b := range blocks {
			if !seen[b] {
				seen[b] = true
				*to += b.Ref.LengthBytes
			}
		}
	}
	for _, c := range s.columns[min(1, len(s.columns)):] { // even the first may be in the making
		for i := len(c.versions) - 1; i >= 0; i-- {
			to := &u.PinnedBytes
			switch age := len(c.versions) - 1 - i; {
			case age == 0:
				to = &u.LiveBytes
			case age < c.retain:
				to = &u.RetainedBytes
			}
			add(to, c.versions[i].block, c.versions[i].ordinals)
			for _, d := range c.versions[i].data {
				add(to, d.block)
			}
		}
		if c.ragged != nil {
			u.LiveBytes += c.ragged.sizeBytes
		}
		for _, k := range c.pending {
			add(&u.WaitingBytes, k.block, k.data)
		}
		for _, x := range c.spares {
			add(&u.RecycledBytes, x.block, x.ordinals)
		}
	}
	u.DirectoryBytes = s.meta.pool.Stats().Leased
	return u
}

// explainMemory tells in an error what memory is used for, and what would help. All that
// can be given up was given up before.
func (s *Store) explainMemory() string {
	u := s.Usage()
	known := u.FreeBytes + u.LiveBytes + u.RetainedBytes + u.PinnedBytes + u.RecycledBytes + u.WaitingBytes + u.DirectoryBytes
	held := s.memory.quarantinedBytes()
	text := fmt.Sprintf("; %d bytes of the segments are free, newest versions take %d, older ones that readers pin %d, unsealed data %d, the directory %d, staging of clients %d",
		u.FreeBytes, u.LiveBytes, u.PinnedBytes, u.WaitingBytes, u.DirectoryBytes, u.HeldBytes-min(u.HeldBytes, known))
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
	return text + ", or raise `serve --memory`"
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
