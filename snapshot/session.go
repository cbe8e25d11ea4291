package snapshot

import (
	"sync/atomic"

	"callboard/fault"
	"callboard/protocol"
	"callboard/tensor"
)

// Session is reserved memory that is filled in groups (rules M1–M3). Nothing of it
// exists for others before it is unmapped. One of a single group is its owner's alone
// and lies in the owner's arena; one of several has an arena of its own, and whoever
// claims a group fills it (groups.go).
type Session struct {
	ID      uint64
	Owner   any // whose handle it is; compared only
	target  Target
	rows    uint64 // of all groups
	row     uint64 // bytes of a row; of an array none: its groups say
	ordinal uint64
	init    uint32
	staging *Device // where its rows are filled; nil: in the host's memory
	column  uint32  // its index, NoColumn where the attribute does not exist yet
	groups  []group
	left    int    // groups that were not unmapped
	arena   *Arena // of a session of several groups, else nil
	sealing uint64 // the ordinal that its rows were accepted at, 0 while they were not
	failed  error  // why it can never be committed
	ended   bool

	only [1]group    // memory of groups
	gone atomic.Bool // and of its word
}

// group is a run of a session's rows. One client at a time fills it.
type group struct {
	query    *Query // its prims; of a session of one group it may have grown since
	first    uint64 // its place in the session's query
	rows     uint64
	starts   []uint64     // of an array: where each row begins in the block, in bytes, and the last one ends
	block    *Block       // nil once it was unmapped; while it is unclaimed: the next claim leases one
	words    *Block       // of one of several on a device: what its claimant is told of its rows, on the host; with block
	claimant any          // nil: nobody; compared only
	attempt  uint32       // from 1
	busy     bool         // a job fills the block
	filing   bool         // a job copies what was handed back
	unmapped bool         // it was handed back
	gone     *atomic.Bool // nobody can claim this attempt any more
}

// Map leases memory for the rows of t (behaviour 175, 176): in arena, the client's
// own, or, where groupRows makes several groups of them, in an arena of the session's.
// init says what a group holds when it is claimed.
func (s *Store) Map(owner any, arena *Arena, t *Target, init uint32, groupRows uint64) (*Session, *Job, error) {
	m, err := s.openSession(owner, arena, t, init, groupRows)
	if err != ErrRetry {
		s.endOpening(owner, err == nil)
	}
	if err != nil {
		return nil, nil, err
	}
	s.lastSession++
	m.ID = s.lastSession
	s.sessions[m.ID] = m
	var job *Job
	if m.arena == nil {
		job = s.fillGroup(m, 0)
	}
	for i := range m.groups {
		s.announce(m, uint32(i))
	}
	return m, job, nil
}

// openSession checks a map and leases its memory; nobody knows of the session yet.
func (s *Store) openSession(owner any, arena *Arena, t *Target, init uint32, groupRows uint64) (*Session, error) {
	r, err := s.resolve(t)
	if err != nil {
		return nil, err
	}
	ordinal, err := s.admit(t.Name, t.Ordinal, t.Next)
	if err != nil {
		return nil, err
	}
	ask := capture{ordinal: ordinal, prims: t.Query.prims}
	if err := s.checkPrims(r, &ask, t.Insert); err != nil {
		return nil, err
	}
	rows := t.Query.Size()
	starts, err := sessionStarts(t, &r.schema, rows)
	if err != nil {
		return nil, err
	}
	if r.schema.Kind == protocol.KindArray {
		r.rowBytes = 0
	}
	size, err := bytesOf(t.Name, rows, r.rowBytes)
	if err != nil {
		return nil, err
	}
	if starts != nil {
		size = starts[rows]
	}
	staging, err := s.stagingOf(t, &r)
	if err != nil {
		return nil, err
	}
	if init > protocol.InitCurrent {
		return nil, protocol.Errorf(protocol.StatusInvalidArgument, "init is %d: expected %d (none), %d (zero) or %d (current)", init, protocol.InitNone, protocol.InitZero, protocol.InitCurrent)
	}
	if size == 0 {
		staging = nil
	}
	m := &Session{Owner: owner, target: *t, rows: rows, row: r.rowBytes, ordinal: ordinal, init: init, staging: staging, column: protocol.NoColumn}
	m.target.Schema, m.target.Ordinal, m.target.ElementSizes = r.schema, ordinal, nil
	if r.column != nil {
		m.column = r.column.index
	}
	if groupRows != 0 && groupRows < rows {
		err = s.split(m, arena, groupRows, starts)
	} else {
		m.groups, m.left = m.only[:], 1
		m.only[0] = group{query: t.Query, rows: rows, starts: starts, claimant: owner, attempt: 1, gone: &m.gone}
		m.only[0].block, err = s.memory.Alloc(s.memory.arenaOn(arena, staging), size)
	}
	return m, err
}

// fillGroup brings a group's block to what init asks for: zeros, then the sealed values on
// top. Claimants learn from the block, behind the rows, which prims the rows are for, and
// how long those of an array are; on a device from a block of the host's.
func (s *Store) fillGroup(m *Session, index int) *Job {
	g := &m.groups[index]
	size := m.bytesOf(g, g.rows)
	if g.rows == 0 || m.arena == nil && (m.init == protocol.InitNone || size == 0) {
		return nil
	}
	g.busy = true
	attempt, dst, words := g.attempt, g.block.Hold(), g.words
	if words != nil {
		words.Hold()
	}
	var src *Block
	var rows []uint32
	var count uint64
	var pieces []sealedRow
	if c := s.columnOf(m); c != nil && m.init == protocol.InitCurrent && !fault.On(fault.InitCurrentZero) {
		if from := c.latest(); from != nil && from.rows > 0 && !from.gone() {
			found, _, _ := g.query.lookUp(c.layout)
			if g.starts != nil {
				pieces = s.sealedRows(g, c, found[:g.rows])
			} else {
				rows = append(rows, found[:g.rows]...) // the query may be used for another layout meanwhile
				src, count = from.block.Hold(), from.rows
			}
		}
	}
	end := func() {
		if g.attempt == attempt {
			g.busy = false
		}
		s.memory.Drop(dst)
		s.memory.Drop(words)
		s.memory.Drop(src)
		for i := range pieces {
			s.memory.Drop(pieces[i].from)
		}
	}
	prims := g.query.prims[:g.rows]
	device := deviceOf(dst, src)
	if m.init == protocol.InitNone {
		device, size = nil, 0
	}
	var failed error
	job := &Job{
		Bytes:  size,
		Device: device != nil,
		Run: func() {
			if device != nil {
				failed = m.fillByDevice(device, dst, src, size, rows, count)
			} else {
				if m.init != protocol.InitNone {
					clear(dst.Bytes[:size])
				}
				for i, row := range rows {
					if uint64(row) < count {
						copy(dst.Bytes[uint64(i)*m.row:][:m.row], src.Bytes[uint64(row)*m.row:])
					}
				}
			}
			for i := range pieces {
				pieces[i].copyTo(dst.Bytes)
			}
			if m.arena != nil {
				m.putBehind(dst, words, g, prims)
			}
		},
		Finish: func() (Outcome, error) {
			end()
			if failed != nil {
				s.endUnfilled(m, index, attempt)
			}
			return Outcome{}, failed
		},
		Abort: end,
	}
	if m.arena != nil {
		job.Bytes += m.wordBytes(g)
	}
	if job.Bytes > s.config.CopyInlineBytes || job.Device {
		return job
	}
	defer end() // nothing is left behind when the client's memory is gone
	job.Run()
	return nil
}

// columnOf is the session's column, nil while it does not exist.
func (s *Store) columnOf(m *Session) *column {
	if m.column == protocol.NoColumn {
		if a := s.byName[m.target.Name]; a != nil {
			for _, c := range a.columns {
				if c.schema == m.target.Schema {
					m.column = c.index
				}
			}
		}
	}
	if m.column == protocol.NoColumn {
		return nil
	}
	return s.columns[m.column]
}

// Group describes a group; without a block while nobody has claimed it, and once it
// was unmapped.
func (m *Session) Group(index uint32) protocol.GroupDescriptor {
	g := &m.groups[index]
	d := protocol.GroupDescriptor{Session: m.ID, Ordinal: m.ordinal, Rows: g.rows, FirstPrim: g.first, PrimCount: g.rows,
		GroupIndex: index, Attempt: g.attempt, Column: m.column, State: g.state()}
	if m.target.Next {
		d.Ordinal = 0
	}
	if g.block != nil && g.claimant != nil {
		d.Block, d.LeaseBytes = g.block.Ref, g.block.Ref.LengthBytes
		d.Block.LengthBytes = m.bytesOf(g, g.rows)
		d.DeviceNumber, d.ArenaGeneration = g.block.device().number(), g.block.life()
		switch {
		case g.words != nil:
			d.PrimsSegment, d.PrimsOffsetBytes = g.words.Ref.Segment, g.words.Ref.OffsetBytes
		case m.arena != nil:
			d.PrimsOffsetBytes = m.primsOffset(g)
		}
	}
	return d
}

func (g *group) state() uint32 {
	switch {
	case g.unmapped:
		return protocol.GroupUnmapped
	case g.claimant != nil:
		return protocol.GroupClaimed
	}
	return protocol.GroupUnclaimed
}

// Gone gives what tells whether nobody can claim the group's present attempt any more.
// Any goroutine may ask it.
func (m *Session) Gone(index uint32) func() bool { return m.groups[index].gone.Load }

// bytesOf is how many bytes the leading rows of a group have.
func (m *Session) bytesOf(g *group, rows uint64) uint64 {
	if g.starts != nil {
		return g.starts[rows]
	}
	return rows * m.row
}

// Name is the attribute's name, Schema its schema, Insert its prim mode.
func (m *Session) Name() string            { return m.target.Name }
func (m *Session) Insert() bool            { return m.target.Insert }
func (m *Session) Schema() protocol.Schema { return m.target.Schema }

// Groups is the number of groups, Prims that of the whole query's prims.
func (m *Session) Groups() int   { return len(m.groups) }
func (m *Session) Prims() uint64 { return m.rows }

// FindSession gives the session behind a handle of owner.
func (s *Store) FindSession(owner any, id uint64) (*Session, error) {
	m := s.sessions[id]
	if m == nil || m.Owner != owner {
		return nil, protocol.Errorf(protocol.StatusInvalidHandle, "session %d is unknown or was ended", id)
	}
	if m.arena == nil && (m.only[0].busy || m.only[0].filing) {
		return nil, ErrRetry
	}
	return m, nil
}

// UnmapGroup commits what the client put into group index. adopt: nobody holds a
// view of the block any more (rule M1). The lease ends whatever comes of it, except for
// ErrRetry and what MayUnmap refuses.
func (s *Store) UnmapGroup(m *Session, index uint64, selection tensor.Selection, adopt, seal bool) (Outcome, *Job, error) {
	return s.UnmapAfter(nil, m, index, selection, adopt, seal)
}

// UnmapAfter is UnmapGroup of what is there when wait has returned (rule C3). wait is
// called by the Job that there is then, before all else; it may block. Its error is that of
// the operation, nothing of the group becomes visible, and the block stays with its
// client until ReleaseLent: work of that client may still write to it (rule B4). An
// operation that fails for another reason still ends when wait has returned.
func (s *Store) UnmapAfter(wait func() error, m *Session, index uint64, selection tensor.Selection, adopt, seal bool) (Outcome, *Job, error) {
	if err := m.MayUnmap(index, seal); err != nil {
		return Outcome{}, nil, err
	}
	g := &m.groups[index]
	rows := g.rows
	if selection.IndexMap == nil && selection.Count != tensor.All && selection.Count < rows {
		rows = selection.Count // the leading rows of the group
	}
	if g.query.Size() != g.rows { // it was extended since
		g.query = g.query.first(g.rows)
	}
	p := payload{bytes: g.block.Bytes[:m.bytesOf(g, rows)], rows: rows, selection: selection, staged: g.block, adopt: adopt, wait: wait, holder: g.claimant}
	if m.arena != nil {
		p.session = m
	}
	if g.starts != nil {
		p.starts = g.starts[:rows+1]
	}
	m.target.Query = g.query
	out, job, err := s.put(&m.target, p, seal)
	if err == ErrRetry {
		return out, nil, err
	}
	if err != nil && wait != nil {
		job, err = s.waitOut(wait, g.block, g.claimant, err), nil
	}
	s.counters.Unmaps++
	if err != nil && m.arena != nil && s.again(m, index, err) {
		return out, nil, err
	}
	s.dropGroup(g)
	g.gone.Store(true)
	if err == nil {
		out.Handle = m.ID
	}
	if job != nil {
		s.file(m, index, job)
	} else {
		m.unmapped(index, out.Ordinal)
	}
	return out, job, err
}

// MayUnmap refuses what is no unmap of a group at all: then its lease goes on.
func (m *Session) MayUnmap(index uint64, seal bool) error {
	switch {
	case index >= uint64(len(m.groups)):
		return protocol.Errorf(protocol.StatusInvalidHandle, "group %d of session %d is unknown: the number of its groups is %d", index, m.ID, len(m.groups))
	case m.groups[index].unmapped || m.groups[index].filing:
		return protocol.Errorf(protocol.StatusInvalidHandle, "group %d of session %d was unmapped before", index, m.ID)
	case seal && m.arena != nil:
		return protocol.Errorf(protocol.StatusInvalidArgument, "group %d is one of %d of session %d: it cannot be sealed alone; seal when the session is unmapped", index, len(m.groups), m.ID)
	}
	return nil
}

// unmapped notes that a group was handed back, and the ordinal that it was accepted at.
func (m *Session) unmapped(index, ordinal uint64) {
	m.groups[index].unmapped = true
	m.left--
	if ordinal != 0 {
		m.sealing = ordinal
	}
}

// file makes a group unmapped when the job of its copy has ended.
func (s *Store) file(m *Session, index uint64, job *Job) {
	g := &m.groups[index]
	g.filing = true
	finish, abort := job.Finish, job.Abort
	job.Finish = func() (Outcome, error) {
		g.filing = false
		out, err := finish()
		if err != nil && m.arena != nil && !m.ended && s.again(m, index, err) {
			return out, err
		}
		m.unmapped(index, out.Ordinal)
		if m.ended && m.arena != nil { // it was aborted meanwhile
			s.withdraw(m)
			return Outcome{}, protocol.Errorf(protocol.StatusInvalidHandle, "session %d was aborted", m.ID)
		}
		return out, err
	}
	job.Abort = func() {
		g.filing = false
		abort()
		if m.arena != nil && !m.ended {
			s.giveUp(m, index)
		}
	}
}

// EndSession forgets a session. What it did not hand back never becomes visible; of
// several groups none does then.
func (s *Store) EndSession(m *Session) { s.endSession(m, m.Done()) }

// AbortSession ends a session in nothing (rule M3): of several groups, those that were
// handed back are taken back, unless they are sealed.
func (s *Store) AbortSession(m *Session) { s.endSession(m, m.Done() && m.arena == nil) }

func (s *Store) endSession(m *Session, committed bool) {
	if s.sessions[m.ID] != m {
		return
	}
	delete(s.sessions, m.ID)
	m.ended = true
	for i := range m.groups {
		g := &m.groups[i]
		committed = committed || m.arena == nil && g.filing
		if g.block != nil && g.claimant != nil && g.claimant != m.Owner {
			s.lend(m, uint64(i)) // its claimant may write until it learns of this
		}
		s.dropGroup(g)
		g.gone.Store(true)
	}
	if !committed {
		s.counters.Aborts++
		if m.arena != nil {
			s.withdraw(m)
		}
	}
	if m.arena != nil {
		s.memory.CloseArena(m.arena)
	}
}

// SealSession seals what the session handed back before it ended: the attribute, at
// the ordinal of its rows. Nothing was accepted: nothing is sealed.
func (s *Store) SealSession(m *Session) (Outcome, *Job, error) {
	if m.sealing == 0 {
		return Outcome{Epoch: s.epoch}, nil, nil
	}
	return s.Seal(m.sealing, protocol.ScopeInclude, []string{m.target.Name}, 0)
}

// Done tells whether everything of the session was handed back.
func (m *Session) Done() bool { return m.left == 0 && m.failed == nil }

// AbortSessions ends all sessions of a client that hung up, gives up its claims, and
// returns how many sessions there were. What it could still write to in shared memory
// is not used again before its process is proven dead: see ReleaseLent. Of its own
// arena nobody else leases.
func (s *Store) AbortSessions(owner any) (n int) {
	s.endOpening(owner, false)
	for _, m := range s.sessions {
		if m.arena != nil {
			s.giveUpClaims(m, owner)
		}
		if m.Owner == owner {
			s.AbortSession(m)
			n++
		}
	}
	return n
}
