package conformance

import (
	"fmt"
	"maps"
	"slices"
)

// oracle plays a history the slow and obvious way: what was accepted is kept in lists, and a seal plays them onto maps
// that are copied as a whole. A move that it cannot make, since a shorter history lacks what it refers to, is left out.
type oracle struct {
	retain    int
	columns   map[string]*oracleColumn
	floors    map[string]uint64
	standard  uint64
	sessions  map[string]move
	snapshots map[string]*oracleState
}

type oracleColumn struct {
	sealed   map[int]oracleRow
	deleted  map[int]uint64 // the ordinal of each prim's last sealed delete
	pending  []oracleOp     // by ordinal, then as accepted
	versions []oracleVersion
}

type oracleRow struct {
	value   string
	ordinal uint64
}

// oracleOp writes values to prims or, without values, deletes them.
type oracleOp struct {
	role    int
	ordinal uint64
	insert  bool
	prims   []int
	values  []string
}

type oracleVersion struct {
	lowest, highest uint64
	rows            map[int]oracleRow
}

// oracleState is what a snapshot shows.
type oracleState struct {
	rows    map[string]map[int]oracleRow
	deleted map[string]map[int]uint64
	floors  map[string]uint64
}

// expected is what must come of a move.
type expected struct {
	skip   bool                      // it cannot be made
	codes  []string                  // of errors, one of which it is (behaviour 225); none: it succeeds
	reads  bool                      // groups matter
	values map[string]map[int]string // by attribute and prim
	gone   map[string][]int          // prims of tombstone groups
	either bool                      // or OUT_OF_RANGE: it is beyond what must be retained
}

func newOracle(retain int) *oracle {
	o := &oracle{retain: retain, columns: map[string]*oracleColumn{}, floors: map[string]uint64{}, sessions: map[string]move{}, snapshots: map[string]*oracleState{}}
	for _, s := range subjects {
		o.columns[s.name] = &oracleColumn{deleted: map[int]uint64{}}
	}
	return o
}

func (o *oracle) floor(name string) uint64 { return max(o.floors[name], o.standard) }

func (o *oracle) play(m move) (e expected) {
	switch m.verb {
	case "write":
		prims, values := m.targets()
		if e.skip = m.insert && o.hidden(m.role, prims); e.skip {
			return e
		}
		e.codes = o.accept(m.names[0], oracleOp{m.role, m.ordinal, m.insert, prims, values})
	case "map":
		if e.codes = o.admits(m.names[0], oracleOp{m.role, m.ordinal, false, m.prims, m.rows}); e.codes == nil {
			o.sessions[m.handle] = m
		}
	case "unmap", "abort":
		session, known := o.sessions[m.handle]
		if e.skip = !known; known && m.verb == "unmap" {
			e.codes = o.accept(session.names[0], oracleOp{session.role, session.ordinal, false, session.prims, session.rows})
		}
		delete(o.sessions, m.handle)
	case "delete":
		for _, name := range m.names {
			if m.ordinal <= o.floor(name) {
				return expected{codes: []string{"FLOOR_VIOLATION"}}
			}
		}
		for _, name := range m.names {
			o.columns[name].add(oracleOp{role: m.role, ordinal: m.ordinal, prims: m.prims})
		}
	case "seal":
		o.seal(m)
	case "read":
		e = o.read(m)
	case "snapshot":
		s := &oracleState{rows: map[string]map[int]oracleRow{}, deleted: map[string]map[int]uint64{}, floors: map[string]uint64{}}
		for name, c := range o.columns {
			s.rows[name], s.deleted[name], s.floors[name] = c.sealed, c.deleted, o.floor(name)
		}
		o.snapshots[m.handle] = s
	case "sread":
		e = o.snapshotRead(m)
	case "drop":
		e.skip = o.snapshots[m.handle] == nil
		delete(o.snapshots, m.handle)
	default:
		panic(fmt.Sprintf("the oracle knows no verb %q", m.verb))
	}
	return e
}

// targets are the prims that a write is for, and their values: gather, behaviour 70.
func (m *move) targets() (prims []int, values []string) {
	count := len(m.prims)
	if m.count != 0 {
		count = int(m.count)
	}
	for i := range count {
		row := i
		if m.gather != nil {
			row = int(m.gather[i])
		}
		if m.mask == nil || m.mask[0]>>i&1 == 1 {
			prims, values = append(prims, m.prims[i]), append(values, m.rows[row])
		}
	}
	return prims, values
}

// carried tells whether a prim has the attribute before an op at ordinal, and whether what comes next for it is a write.
func (c *oracleColumn) carried(prim int, ordinal uint64) (before, written bool) {
	_, before = c.sealed[prim]
	for _, op := range c.pending {
		switch {
		case !slices.Contains(op.prims, prim):
		case op.ordinal > ordinal:
			return before, op.values != nil
		default:
			before = op.values != nil
		}
	}
	return before, false
}

// hidden tells whether another client's unsealed delete is about prims: a client refuses an INSERT by what is sealed
// and by its own deletes (behaviour 94), so it depends on who asks.
func (o *oracle) hidden(role int, prims []int) bool {
	for _, c := range o.columns {
		for _, op := range c.pending {
			if op.role != role && op.values == nil && slices.ContainsFunc(op.prims, func(p int) bool { return slices.Contains(prims, p) }) {
				return true
			}
		}
	}
	return false
}

func (o *oracle) admits(name string, op oracleOp) (codes []string) {
	if op.ordinal <= o.floor(name) {
		codes = append(codes, "FLOOR_VIOLATION")
	}
	for _, prim := range op.prims {
		for _, c := range o.columns {
			before, written := c.carried(prim, op.ordinal)
			earlier := slices.ContainsFunc(c.pending, func(other oracleOp) bool {
				return other.insert && other.ordinal > op.ordinal && slices.Contains(other.prims, prim)
			})
			if op.insert && (before || written) || earlier {
				return append(codes, "ALREADY_EXISTS")
			}
		}
	}
	return codes
}

func (o *oracle) accept(name string, op oracleOp) (codes []string) {
	if codes = o.admits(name, op); codes == nil && len(op.prims) > 0 {
		o.columns[name].add(op)
	}
	return codes
}

func (c *oracleColumn) add(op oracleOp) {
	at := 0
	for at < len(c.pending) && c.pending[at].ordinal <= op.ordinal {
		at++
	}
	c.pending = slices.Insert(c.pending, at, op)
}

func (o *oracle) seal(m move) {
	for name, c := range o.columns {
		named := slices.Contains(m.names, name)
		if m.scope == "include" && !named || m.scope == "exclude" && named {
			continue
		}
		if m.ordinal > o.floor(name) {
			o.floors[name] = m.ordinal
			c.publish(m.ordinal)
		}
	}
	if m.scope == "all" {
		o.standard = max(o.standard, m.ordinal)
	}
}

// publish plays what was accepted through an ordinal.
func (c *oracleColumn) publish(ordinal uint64) {
	v := oracleVersion{lowest: ^uint64(0), rows: maps.Clone(c.sealed)}
	if v.rows == nil {
		v.rows = map[int]oracleRow{}
	}
	deleted, changed := maps.Clone(c.deleted), false
	for len(c.pending) > 0 && c.pending[0].ordinal <= ordinal {
		op, did := c.pending[0], false
		c.pending = c.pending[1:]
		for i, prim := range op.prims {
			if op.values != nil {
				v.rows[prim], did = oracleRow{op.values[i], op.ordinal}, true
			} else if _, ok := v.rows[prim]; ok {
				delete(v.rows, prim)
				deleted[prim], did = op.ordinal, true
			}
		}
		if did { // a delete of what is not there leaves no trace
			v.lowest, v.highest, changed = min(v.lowest, op.ordinal), max(v.highest, op.ordinal), true
		}
	}
	if changed {
		c.sealed, c.deleted = v.rows, deleted
		c.versions = append(c.versions, v)
	}
}

func (o *oracle) read(m move) expected {
	e := expected{reads: true, values: map[string]map[int]string{}}
	if m.at == 0 {
		for _, name := range m.names {
			e.show(name, o.columns[name].sealed, m.prims)
		}
		return e
	}
	name := m.names[0]
	c := o.columns[name]
	if m.at > o.floor(name) {
		return expected{codes: []string{"FLOOR_VIOLATION"}}
	}
	found := -1
	for i, v := range c.versions {
		if v.lowest <= m.at {
			found = i
		}
	}
	e.either = found < len(c.versions)-o.retain
	if found >= 0 {
		if c.versions[found].highest > m.at {
			return expected{codes: []string{"OUT_OF_RANGE"}}
		}
		e.show(name, c.versions[found].rows, m.prims)
	}
	return e
}

func (o *oracle) snapshotRead(m move) expected {
	s, cursor := o.snapshots[m.handle], o.snapshots[m.since]
	if s == nil || m.since != "" && cursor == nil {
		return expected{skip: true}
	}
	e := expected{reads: true, values: map[string]map[int]string{}, gone: map[string][]int{}}
	for _, name := range m.names {
		rows := s.rows[name]
		if cursor != nil {
			since := cursor.floors[name]
			rows = maps.Clone(rows)
			maps.DeleteFunc(rows, func(_ int, r oracleRow) bool { return r.ordinal <= since })
			for prim, ordinal := range s.deleted[name] {
				if _, carries := s.rows[name][prim]; ordinal > since && !carries && slices.Contains(m.prims, prim) {
					e.gone[name] = append(e.gone[name], prim)
				}
			}
			slices.Sort(e.gone[name])
			e.gone[name] = slices.Compact(e.gone[name])
			if len(e.gone[name]) == 0 {
				delete(e.gone, name)
			}
		}
		e.show(name, rows, m.prims)
	}
	return e
}

// show notes the values of prims, if any has one.
func (e *expected) show(name string, rows map[int]oracleRow, prims []int) {
	for _, prim := range prims {
		if row, ok := rows[prim]; ok {
			if e.values[name] == nil {
				e.values[name] = map[int]string{}
			}
			e.values[name][prim] = row.value
		}
	}
}
