package snapshot

import (
	"sync/atomic"

	"callboard/fault"
	"callboard/protocol"
	"callboard/tensor"
)

// Session is a reserved block that one client fills (rule M1–M3). Nothing of it
// exists for others before it is unmapped.
type Session struct {
	ID      uint64
	Owner   any // whose handle it is; compared only
	target  Target
	block   *Block
	rows    uint64
	row     uint64   // bytes of a row; of an array none: starts says
	starts  []uint64 // of an array: where each row begins in bytes, and the last one ends
	ordinal uint64
	column  uint32 // its index, NoColumn where the attribute does not exist yet
	done    bool   // its only group was unmapped
	sealing uint64 // the ordinal that its rows were accepted at, 0 while they were not
	busy    bool   // a job reads or fills the block
	gone    atomic.Bool
}

// Gone tells whether the session's block was handed back or given up. Any goroutine
// may ask.
func (m *Session) Gone() bool { return m.gone.Load() }

// Map leases a block of the client's own memory for the rows of t (behaviour 175,
// 176). init says what it holds at first.
func (s *Store) Map(owner any, arena *Arena, t *Target, init uint32, groupRows uint64) (*Session, *Job, error) {
	r, err := s.resolve(t)
	if err != nil {
		return nil, nil, err
	}
	c, schema, rowBytes := r.column, r.schema, r.rowBytes
	ordinal, err := s.admit(t.Name, t.Ordinal, t.Next)
	if err != nil {
		return nil, nil, err
	}
	ask := capture{ordinal: ordinal, prims: t.Query.prims}
	if err := s.checkPrims(r, &ask, t.Insert); err != nil {
		return nil, nil, err
	}
	rows := t.Query.Size()
	if groupRows != 0 && groupRows < rows {
		return nil, nil, protocol.Errorf(protocol.StatusNotSupported, "group_rows is %d for %d prims: sessions of several groups are not part of this version; use 0", groupRows, rows)
	}
	starts, err := sessionStarts(t, &schema, rows)
	if err != nil {
		return nil, nil, err
	}
	if schema.Kind == protocol.KindArray {
		rowBytes = 0
	}
	size, err := bytesOf(t.Name, rows, rowBytes)
	if err != nil {
		return nil, nil, err
	}
	if starts != nil {
		size = starts[rows]
	}
	if init > protocol.InitCurrent {
		return nil, nil, protocol.Errorf(protocol.StatusInvalidArgument, "init is %d: expected %d (none), %d (zero) or %d (current)", init, protocol.InitNone, protocol.InitZero, protocol.InitCurrent)
	}
	block, err := s.memory.Alloc(arena, size)
	if err != nil {
		return nil, nil, err
	}
	s.lastSession++
	m := &Session{ID: s.lastSession, Owner: owner, target: *t, block: block, rows: rows, row: rowBytes, starts: starts, ordinal: ordinal, column: protocol.NoColumn}
	if c != nil {
		m.column = c.index
	}
	m.target.Schema = schema
	m.target.Ordinal, m.target.ElementSizes = ordinal, nil
	s.sessions[m.ID] = m
	if init == protocol.InitNone || size == 0 {
		return m, nil, nil
	}
	fill := s.fillSession(m, c, init)
	if size > s.config.CopyInlineBytes {
		return m, fill, nil
	}
	defer fill.Abort() // nothing is left behind when the client's memory is gone
	fill.Run()
	return m, nil, nil
}

// fillSession prepares what init asks for: zeros, then the sealed values on top.
func (s *Store) fillSession(m *Session, c *column, init uint32) *Job {
	m.busy = true
	dst := m.block.Hold()
	var src *Block
	end := func() {
		m.busy = false
		s.memory.Drop(dst)
		s.memory.Drop(src)
	}
	finish := func() (Outcome, error) { end(); return Outcome{}, nil }
	var from *version
	if c != nil && init == protocol.InitCurrent && !fault.On(fault.InitCurrentZero) {
		from = c.latest()
	}
	size := m.offset(m.rows)
	if from == nil || from.rows == 0 {
		return &Job{Bytes: size, Run: func() { clear(dst.Bytes[:size]) }, Finish: finish, Abort: end}
	}
	rows, _, _ := m.target.Query.lookUp(c.layout)
	if m.starts != nil {
		return s.fillRagged(m, c, rows, end)
	}
	rows = append([]uint32(nil), rows...) // the query may be used for another layout meanwhile
	src = from.block.Hold()
	count := from.rows
	return &Job{
		Bytes: size,
		Run: func() {
			clear(dst.Bytes[:size])
			for i, row := range rows {
				if uint64(row) < count {
					copy(dst.Bytes[uint64(i)*m.row:][:m.row], src.Bytes[uint64(row)*m.row:])
				}
			}
		},
		Finish: finish,
		Abort:  end,
	}
}

// Group describes the session's only group; without a block once it was unmapped.
func (m *Session) Group() protocol.GroupDescriptor {
	g := protocol.GroupDescriptor{Session: m.ID, Ordinal: m.ordinal, Rows: m.rows, PrimCount: m.rows,
		Attempt: 1, Column: m.column, State: protocol.GroupClaimed}
	if m.target.Next {
		g.Ordinal = 0
	}
	if m.block != nil {
		g.Block, g.LeaseBytes = m.block.Ref, m.block.Ref.LengthBytes
		g.Block.LengthBytes = m.offset(m.rows)
	}
	return g
}

// offset is where a row begins in the session's bytes.
func (m *Session) offset(row uint64) uint64 {
	if m.starts != nil {
		return m.starts[row]
	}
	return row * m.row
}

// Name is the attribute's name, Schema its schema, Insert its prim mode.
func (m *Session) Name() string            { return m.target.Name }
func (m *Session) Insert() bool            { return m.target.Insert }
func (m *Session) Schema() protocol.Schema { return m.target.Schema }

// FindSession gives the session behind a handle of owner.
func (s *Store) FindSession(owner any, id uint64) (*Session, error) {
	m := s.sessions[id]
	if m == nil || m.Owner != owner {
		return nil, protocol.Errorf(protocol.StatusInvalidHandle, "session %d is unknown or was ended", id)
	}
	if m.busy {
		return nil, ErrRetry
	}
	return m, nil
}

// UnmapGroup commits what the client put into group index. adopt: nobody holds a
// view of the block any more (rule M1). The lease ends whatever comes of it,
// except for ErrRetry.
func (s *Store) UnmapGroup(m *Session, index uint64, selection tensor.Selection, adopt, seal bool) (Outcome, *Job, error) {
	if index != 0 {
		return Outcome{}, nil, protocol.Errorf(protocol.StatusInvalidHandle, "group %d of session %d is unknown: it has 1 group", index, m.ID)
	}
	if m.done {
		return Outcome{}, nil, protocol.Errorf(protocol.StatusInvalidHandle, "group %d of session %d was unmapped before", index, m.ID)
	}
	rows := m.rows
	if selection.IndexMap == nil && selection.Count != tensor.All && selection.Count < rows {
		rows = selection.Count // the leading rows of the group
	}
	if m.target.Query.Size() != m.rows { // it was extended since
		m.target.Query = m.target.Query.first(m.rows)
	}
	p := payload{bytes: m.block.Bytes[:m.offset(rows)], rows: rows, selection: selection, staged: m.block, adopt: adopt}
	if m.starts != nil {
		p.starts = m.starts[:rows+1]
	}
	out, job, err := s.put(&m.target, p, seal)
	if err == ErrRetry {
		return out, nil, err
	}
	m.done = true
	s.counters.Unmaps++
	if err == nil {
		out.Handle, m.sealing = m.ID, out.Ordinal
	}
	if job != nil {
		finish := job.Finish
		job.Finish = func() (Outcome, error) {
			out, err := finish()
			m.sealing = out.Ordinal
			return out, err
		}
	}
	s.memory.Drop(m.block)
	m.block = nil
	m.gone.Store(true)
	return out, job, err
}

// EndSession forgets a session; without a commit nothing of it becomes visible
// (rule M3).
func (s *Store) EndSession(m *Session) {
	if s.sessions[m.ID] != m {
		return
	}
	delete(s.sessions, m.ID)
	if m.block != nil {
		s.counters.Aborts++
		s.memory.Drop(m.block)
		m.block = nil
		m.gone.Store(true)
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
func (m *Session) Done() bool { return m.done }

// AbortSessions ends all sessions of an owner and returns how many there were.
// Their blocks go back to the owner's arena; nobody else leases from it.
func (s *Store) AbortSessions(owner any) (n int) {
	for _, m := range s.sessions {
		if m.Owner == owner {
			s.EndSession(m)
			n++
		}
	}
	return n
}
