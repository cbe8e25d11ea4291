package snapshot

import (
	"encoding/binary"
	"maps"
	"slices"
	"sync/atomic"

	"callboard/fault"
	"callboard/protocol"
	"callboard/shm"
)

// A session of several groups (rule M2) lies in an arena of its own, of segments that
// nothing else lies in, since its claimants write there. Its groups start unclaimed. What
// is handed back is captured at the session's ordinal, group by group, and taken back when
// the session is aborted before a seal.
//
//	unclaimed ── Claim ──▶ claimed ── UnmapGroup ──▶ unmapped ── all of them: Done
//	    ▲                     │
//	    └─ giveUp, attempt+1 ─┘  dropped; or its claimant died: then its block is lent

// lent is a block that its last claimant may still write to: it is leased until the
// claimant hands it back or is proven dead.
type lent struct {
	claimant       any
	session, index uint64
	block          *Block
	late           bool // work that was queued may still come: handing it back does not end that
}

// split makes groups of so many rows and leases their blocks. starts: of an array, where
// its rows begin when they lie one after the other.
func (s *Store) split(m *Session, arena *Arena, groupRows uint64, starts []uint64) error {
	count := (m.rows-1)/groupRows + 1
	if count > protocol.GroupsMax {
		return protocol.Errorf(protocol.StatusLimit, "group_rows is %d: %d prims make %d groups, the limit is %d; use %d or more", groupRows, m.rows, count, protocol.GroupsMax, (m.rows-1)/protocol.GroupsMax+1)
	}
	if m.target.Next {
		return protocol.Errorf(protocol.StatusNotSupported, "group_rows is %d for %d prims: a session of several groups needs an ordinal, since the next one may be another for each group", groupRows, m.rows)
	}
	m.arena = s.opening[m.Owner]
	if m.arena == nil {
		m.arena = s.memory.NewArena(protocol.SegmentShared, arena.Owner, arena.Label+", shared", true)
		s.opening[m.Owner] = m.arena
	}
	m.groups, m.left = make([]group, count), int(count)
	var total, onDevice uint64
	for i := range m.groups {
		first := uint64(i) * groupRows
		rows := min(groupRows, m.rows-first)
		m.groups[i] = group{query: &Query{prims: m.target.Query.prims[first:][:rows:rows]}, first: first, rows: rows, attempt: 1, gone: new(atomic.Bool)}
		if starts != nil {
			m.groups[i].starts = startsFrom(starts[first:][:rows+1])
		}
		host, device := m.groupBytes(&m.groups[i])
		total += (host + shm.PageAlign - 1) &^ (shm.PageAlign - 1)
		onDevice += (device + shm.BlockAlign - 1) &^ (shm.BlockAlign - 1)
	}
	if err := s.makeRoom(m.arena, total); err != nil {
		return err
	}
	if m.staging != nil {
		if err := s.makeRoom(s.memory.arenaOn(m.arena, m.staging), onDevice); err != nil {
			return err
		}
	}
	for i := range m.groups {
		if err := s.leaseGroup(m, &m.groups[i]); err != nil {
			for k := range m.groups[:i] {
				s.dropGroup(&m.groups[k])
			}
			return err
		}
	}
	return nil
}

// makeRoom sees to it that one segment has room for all of a session's groups.
func (s *Store) makeRoom(arena *Arena, total uint64) error {
	whole, err := s.memory.Alloc(arena, total)
	s.memory.Drop(whole)
	return err
}

// leaseGroup takes the memory that a group's claimant fills, and that which tells it what.
func (s *Store) leaseGroup(m *Session, g *group) (err error) {
	host, device := m.groupBytes(g)
	if m.staging == nil {
		g.block, err = s.memory.Alloc(m.arena, host)
		return err
	}
	if g.words, err = s.memory.Alloc(m.arena, host); err != nil {
		return err
	}
	if g.block, err = s.memory.Alloc(s.memory.arenaOn(m.arena, m.staging), device); err != nil {
		s.dropGroup(g)
	}
	return err
}

// dropGroup gives a group's memory back.
func (s *Store) dropGroup(g *group) {
	s.memory.Drop(g.block)
	s.memory.Drop(g.words)
	g.block, g.words = nil, nil
}

// endOpening forgets the arena of the session that owner tries to open. ErrRetry keeps
// it: the next try finds the segment that was made for this one.
func (s *Store) endOpening(owner any, opened bool) {
	if a := s.opening[owner]; a != nil {
		delete(s.opening, owner)
		if !opened {
			s.memory.CloseArena(a)
		}
	}
}

// primsOffset is where the path ids of a group lie in its block: behind the rows, and
// not at 0 where these are empty, since that says that there are none.
func (m *Session) primsOffset(g *group) uint64 { return max(m.bytesOf(g, g.rows)+7, 8) &^ 7 }

// wordBytes is the size of what lies behind the rows: path ids, and of an array then the
// rows' element counts.
func (m *Session) wordBytes(g *group) uint64 {
	if g.starts != nil {
		return 16 * g.rows
	}
	return 8 * g.rows
}

// groupBytes is how much memory of the host, and of the device that it is filled on, a group
// takes.
func (m *Session) groupBytes(g *group) (host, device uint64) {
	if m.staging != nil {
		return m.wordBytes(g), m.bytesOf(g, g.rows)
	}
	return m.primsOffset(g) + m.wordBytes(g), 0
}

// putBehind writes what lies behind a group's rows, or in a block of its own. Claimants can
// write there too: nothing of it is read again.
func (m *Session) putBehind(block, beside *Block, g *group, prims []uint64) {
	var words []byte
	if beside != nil {
		words = beside.Bytes
	} else {
		words = block.Bytes[m.primsOffset(g):]
	}
	for i, prim := range prims {
		binary.LittleEndian.PutUint64(words[8*i:], prim)
	}
	if g.starts == nil {
		return
	}
	words, element := words[8*len(prims):], elementBytes(&m.target.Schema)
	for i := range prims {
		binary.LittleEndian.PutUint64(words[8*i:], (g.starts[i+1]-g.starts[i])/element)
	}
}

// announce tells that a group waits to be filled.
func (s *Store) announce(m *Session, index uint32) {
	if s.config.OnGroup != nil {
		s.config.OnGroup(m, index)
	}
}

// Split tells whether the session has several groups, which anybody may claim.
func (m *Session) Split() bool { return m.arena != nil }

// Failed is why the session can never be committed, nil while it can: a seal reached
// its ordinal (rule O3), or a group was refused for good.
func (s *Store) Failed(m *Session) error {
	if m.failed == nil && m.left > 0 {
		if _, err := s.admit(m.target.Name, m.ordinal, false); err != nil && err != ErrRetry {
			m.failed = err
		}
	}
	return m.failed
}

// Settled tells whether nothing more will come of the session's groups.
func (s *Store) Settled(m *Session) bool { return m.ended || m.left == 0 || s.Failed(m) != nil }

// Claimable finds group index of session id, or with AnyGroup the first that nobody has (rule
// M2). END: there is none.
func (s *Store) Claimable(id, index uint64) (*Session, uint32, error) {
	refuse := func(status protocol.Status, format string, v ...any) (*Session, uint32, error) {
		return nil, 0, protocol.Errorf(status, format, v...)
	}
	m := s.sessions[id]
	if m == nil {
		return refuse(protocol.StatusInvalidHandle, "session %d is unknown or was ended", id)
	}
	if m.arena == nil {
		return refuse(protocol.StatusInvalidHandle, "session %d has one group, which is its owner's", id)
	}
	if err := s.Failed(m); err != nil {
		return refuse(protocol.StatusInvalidHandle, "session %d cannot be committed any more: %v", id, err)
	}
	if index == protocol.AnyGroup {
		i := slices.IndexFunc(m.groups, func(g group) bool { return g.state() == protocol.GroupUnclaimed && !g.filing })
		if i < 0 {
			return refuse(protocol.StatusEnd, "session %d has no unclaimed group", id)
		}
		index = uint64(i)
	}
	if index >= uint64(len(m.groups)) {
		return refuse(protocol.StatusInvalidHandle, "group %d of session %d is unknown: the number of its groups is %d", index, id, len(m.groups))
	}
	g := &m.groups[index]
	if (g.state() != protocol.GroupUnclaimed || g.filing) && !fault.On(fault.ClaimedTwice) {
		return refuse(protocol.StatusInvalidHandle, "group %d of session %d was claimed before, as attempt %d", index, id, g.attempt)
	}
	return m, uint32(index), nil
}

// Claim gives who the right to fill what Claimable finds. The group's block is ready when
// the Job has ended.
func (s *Store) Claim(who any, id, index uint64) (*Session, uint32, *Job, error) {
	m, found, err := s.Claimable(id, index)
	if err != nil {
		return nil, 0, nil, err
	}
	g := &m.groups[found]
	if g.block == nil {
		if err := s.leaseGroup(m, g); err != nil {
			return nil, 0, nil, err
		}
	}
	job := s.fillGroup(m, int(found))
	g.claimant = who
	g.gone.Store(true)
	return m, found, job, nil
}

// FindGroup gives the session of a group that who has claimed. Where the session was
// aborted meanwhile, HandBack follows.
func (s *Store) FindGroup(who any, id, index uint64) (*Session, error) {
	m := s.sessions[id]
	if m == nil || m.arena == nil {
		return s.FindSession(who, id)
	}
	if index >= uint64(len(m.groups)) {
		return m, nil // UnmapGroup says it
	}
	switch g := &m.groups[index]; {
	case g.unmapped || g.filing:
	case g.claimant != who:
		return nil, protocol.Errorf(protocol.StatusInvalidHandle, "group %d of session %d is not claimed by this client", index, id)
	case g.busy:
		return nil, ErrRetry
	}
	return m, nil
}

// HandBack takes back what a claimant has of a group of a session that was aborted
// meanwhile. With wait its work may still write there: that is over when wait has returned
// (rule B4), and the Job, which ends with the error failed, waits for it. No Job: there is
// nothing to wait for.
func (s *Store) HandBack(who any, id, index uint64, wait func() error, failed error) (job *Job) {
	if s.sessions[id] != nil {
		return nil
	}
	s.dropLent(func(l *lent) bool {
		back := !l.late && l.claimant == who && l.session == id && l.index == index
		if back && wait != nil && l.block.device() != nil {
			job = s.waitOut(wait, l.block, who, failed)
		}
		return back
	})
	return job
}

// Held lists the groups that who has claimed and not handed back.
func (m *Session) Held(who any) (held []uint64) {
	for i := range m.groups {
		if g := &m.groups[i]; g.claimant == who && !g.unmapped && !g.filing {
			held = append(held, uint64(i))
		}
	}
	return held
}

// GiveUp takes a claim back that FindGroup found: the group waits for another attempt,
// in the same block.
func (s *Store) GiveUp(m *Session, index uint64) error {
	if m.arena == nil {
		return protocol.Errorf(protocol.StatusInvalidArgument, "session %d has one group, which ends with the session: abort that", m.ID)
	}
	if index >= uint64(len(m.groups)) || m.groups[index].unmapped || m.groups[index].filing {
		return protocol.Errorf(protocol.StatusInvalidHandle, "group %d of session %d was unmapped before, or is unknown", index, m.ID)
	}
	s.giveUp(m, index)
	return nil
}

func (s *Store) giveUp(m *Session, index uint64) {
	g := &m.groups[index]
	g.claimant, g.busy = nil, false
	g.attempt++
	g.gone.Store(true)
	g.gone = new(atomic.Bool)
	s.announce(m, uint32(index))
}

// again decides about a group that was refused. What waiting may cure, and what went wrong
// with a device or with the claimant's work there, is another attempt's; anything else ends
// the session's prospects: the next attempt would meet it as well.
func (s *Store) again(m *Session, index uint64, err error) bool {
	switch StatusError(err).Status {
	case protocol.StatusQueueFull, protocol.StatusOutOfMemory, protocol.StatusTimeout, protocol.StatusOpFailed:
		if s.brokenBy(m.staging) == nil && s.brokenBy(s.served(&m.target.Schema)) == nil {
			s.giveUp(m, index)
			return true
		}
	}
	s.FailSession(m, err)
	return false
}

// FailSession says why a session of several groups can never be committed; the first reason
// counts.
func (s *Store) FailSession(m *Session, err error) {
	if m.failed == nil {
		m.failed = err
	}
}

// giveUpClaims gives up what a client that hung up has claimed of a session. Until its
// death is proven it may write to the blocks (rules I3, M2).
func (s *Store) giveUpClaims(m *Session, who any) {
	for _, index := range m.Held(who) {
		s.lend(m, index)
		if m.Owner != who { // else it ends with the session
			s.giveUp(m, index)
		}
	}
}

// lend keeps a group's block for its claimant.
func (s *Store) lend(m *Session, index uint64) {
	g := &m.groups[index]
	for _, block := range []*Block{g.block, g.words} {
		if block != nil {
			s.lent = append(s.lent, lent{claimant: g.claimant, session: m.ID, index: index, block: block})
		}
	}
	g.block, g.words = nil, nil
}

func (s *Store) dropLent(which func(*lent) bool) {
	kept := s.lent[:0]
	for i := range s.lent {
		if l := &s.lent[i]; which(l) {
			s.memory.Drop(l.block)
		} else {
			kept = append(kept, *l)
		}
	}
	clear(s.lent[len(kept):])
	s.lent = kept
}

// ReleaseLent gives back the blocks that a client could write to; its process is proven
// dead (rule I3).
func (s *Store) ReleaseLent(who any) { s.dropLent(func(l *lent) bool { return l.claimant == who }) }

// Claims tells whether who has claimed, or may still write to, a group that lies in a
// segment.
func (s *Store) Claims(who any, segment uint64) bool {
	for _, m := range s.sessions {
		if m.arena == nil {
			continue
		}
		for i := range m.groups {
			if g := &m.groups[i]; g.claimant == who && (g.block.in(segment) || g.words.in(segment)) {
				return true
			}
		}
	}
	return slices.ContainsFunc(s.lent, func(l lent) bool { return l.claimant == who && l.block.in(segment) })
}

// Unclaimed calls yield with each group that can be claimed: of session id, or of all
// where it is 0; of the attribute of that name, or of all where it is empty.
func (s *Store) Unclaimed(id uint64, name string, yield func(*Session, uint32)) error {
	ids := []uint64{id}
	if id == 0 {
		ids = slices.Sorted(maps.Keys(s.sessions))
	} else if s.sessions[id] == nil {
		return protocol.Errorf(protocol.StatusInvalidHandle, "session %d is unknown or was ended", id)
	}
	for _, id := range ids {
		m := s.sessions[id]
		if m.arena == nil || name != "" && m.target.Name != name || s.Failed(m) != nil {
			continue
		}
		for i := range m.groups {
			if g := &m.groups[i]; g.state() == protocol.GroupUnclaimed && !g.filing {
				yield(m, uint32(i))
			}
		}
	}
	return nil
}

// withdraw takes back what an aborted session's groups brought (rule M3), unless a seal
// has taken it already. One that is about to may fail: the session is looked at again then.
func (s *Store) withdraw(m *Session) {
	a := s.byName[m.target.Name]
	if a == nil {
		return
	}
	for _, z := range s.active {
		if m.ordinal <= z.ordinal && z.coversName(m.target.Name) {
			s.withheld = append(s.withheld, m)
			return
		}
	}
	for _, c := range a.columns {
		for _, k := range slices.Clone(c.pending) {
			if k.session == m && !k.filling {
				c.removeCapture(k)
				s.forgetInserts(k)
				s.dropCapture(k)
			}
		}
	}
}

// withdrawHeld withdraws what a seal on its way kept from it, now that the seal has ended.
func (s *Store) withdrawHeld() {
	held := s.withheld
	s.withheld = nil
	for _, m := range held {
		s.withdraw(m)
	}
}
