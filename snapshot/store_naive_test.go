package snapshot

import (
	"maps"
	"slices"

	"callboard/protocol"
	"callboard/tensor"
)

// naive is the slow, obvious store that the real one must agree with: a list of what
// was accepted, played in order at each seal onto maps that are copied as a whole.
type naive struct {
	columns  []*naiveColumn // by index, from 1
	deletes  []naiveDelete  // all that were accepted
	floors   map[string]uint64
	standard uint64
	epochs   map[uint64]*naiveEpoch
	epoch    uint64
}

type naiveColumn struct {
	name     string
	index    uint32
	rowBytes int // below 0: of kind array, with elements of so many bytes
	retain   int
	sealed   map[uint64]naiveRow // by path id; nil: never sealed
	deleted  map[uint64]uint64   // ordinal of each prim's last sealed delete
	pending  []naiveOp           // by ordinal, then as accepted
	versions []naiveVersion
	lost     bool // what was sealed lay on a device of a broker that ended (rule B3)
}

type naiveRow struct {
	Value   string
	Ordinal uint64
}

// naiveOp writes values to prims or, without values, deletes them.
type naiveOp struct {
	ordinal uint64
	insert  bool
	prims   []uint64
	values  []string
}

// naiveDelete is of names, or of all names that there are and will be.
type naiveDelete struct {
	naiveOp
	names []string
}

type naiveVersion struct {
	birth, lowest, highest uint64
	rows                   map[uint64]naiveRow
}

// naiveEpoch is what readers of an epoch see.
type naiveEpoch struct {
	rows             map[uint32]map[uint64]naiveRow
	deleted          map[uint32]map[uint64]uint64
	floors           map[string]uint64
	standard, global uint64
}

func (e *naiveEpoch) floor(name string) uint64 { return max(e.floors[name], e.standard) }

// values are a column's rows without their ordinals.
func (e *naiveEpoch) values(index uint32) map[uint64]string {
	if e.rows[index] == nil {
		return nil
	}
	out := map[uint64]string{}
	for prim, row := range e.rows[index] {
		out[prim] = row.Value
	}
	return out
}

func (n *naive) floor(name string) uint64 { return max(n.floors[name], n.standard) }

func (n *naive) named(name string) (columns []*naiveColumn) {
	for _, c := range n.columns {
		if c.name == name {
			columns = append(columns, c)
		}
	}
	return columns
}

func (n *naive) find(name string, rowBytes int) *naiveColumn {
	for _, c := range n.named(name) {
		if c.rowBytes == rowBytes {
			return c
		}
	}
	return nil
}

func (n *naive) column(name string, rowBytes, retain int) *naiveColumn {
	c := n.find(name, rowBytes)
	if c == nil {
		c = &naiveColumn{name: name, index: uint32(len(n.columns) + 1), rowBytes: rowBytes, retain: retain, deleted: map[uint64]uint64{}}
		n.columns = append(n.columns, c)
		for _, d := range n.deletes {
			n.deleteIn(c, d)
		}
	}
	return c
}

// delete reaches every column of its names, those of later too (behaviour 147).
func (n *naive) delete(d naiveDelete) {
	n.deletes = append(n.deletes, d)
	for _, c := range n.columns {
		n.deleteIn(c, d)
	}
}

func (n *naive) deleteIn(c *naiveColumn, d naiveDelete) {
	if d.ordinal > n.floor(c.name) && (len(d.names) == 0 || slices.Contains(d.names, c.name)) {
		c.accept(d.naiveOp)
	}
}

// carried plays what was accepted: whether the column has a prim before an op at
// ordinal, and whether what comes next for it is a write.
func (c *naiveColumn) carried(prim, ordinal uint64) (before, written bool) {
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

// admits tells the status that a write of prims must end with.
func (n *naive) admits(name string, rowBytes int, ordinal uint64, insert bool, prims []uint64) protocol.Status {
	if ordinal <= n.floor(name) {
		return protocol.StatusFloorViolation
	}
	for _, prim := range prims {
		for _, c := range n.columns {
			if before, written := c.carried(prim, ordinal); insert && (before || written) {
				return protocol.StatusAlreadyExists
			}
			for _, op := range c.pending {
				if op.insert && op.ordinal > ordinal && slices.Contains(op.prims, prim) {
					return protocol.StatusAlreadyExists
				}
			}
		}
	}
	for _, prim := range prims {
		for _, c := range n.named(name) {
			if before, written := c.carried(prim, ordinal); c.rowBytes != rowBytes && (before || written) {
				return protocol.StatusInvalidArgument
			}
		}
	}
	return protocol.StatusOK
}

// targets are the prims that a selection addresses, and their values.
func targetsOf(prims []uint64, rows []string, sel *tensor.Selection) (out []uint64, values []string) {
	for i := range min(sel.Count, uint64(len(prims))) {
		row := uint32(i)
		if sel.IndexMap != nil {
			row = sel.IndexMap[i]
		}
		if sel.Mask == nil || sel.Mask[i/64]>>(i%64)&1 == 1 {
			out = append(out, prims[i])
			if rows != nil {
				values = append(values, rows[row])
			}
		}
	}
	return out, values
}

func (c *naiveColumn) accept(op naiveOp) {
	at := 0
	for at < len(c.pending) && c.pending[at].ordinal <= op.ordinal {
		at++
	}
	c.pending = slices.Insert(c.pending, at, op)
}

// seal publishes as behaviour 111 to 116 say.
func (n *naive) seal(ordinal, scope uint64, names []string) {
	if scope == protocol.ScopeExclude && len(names) == 0 {
		scope = protocol.ScopeAll
	}
	covered := map[string]bool{}
	for _, name := range names {
		covered[name] = scope == protocol.ScopeInclude
	}
	if scope != protocol.ScopeInclude {
		for _, c := range n.columns {
			covered[c.name] = !slices.Contains(names, c.name)
		}
	}
	moved, first := false, n.behindFloors()
	for name, yes := range covered {
		if yes && ordinal > n.floor(name) {
			n.floors[name], moved = ordinal, true
		}
	}
	if scope == protocol.ScopeAll && ordinal > n.standard {
		n.standard, moved = ordinal, true
	}
	if !moved {
		return
	}
	n.publish(ordinal, covered, first)
}

// behindFloors is the first ordinal of each column that is not sealed.
func (n *naive) behindFloors() map[*naiveColumn]uint64 {
	first := map[*naiveColumn]uint64{}
	for _, c := range n.columns {
		first[c] = n.floor(c.name) + 1
	}
	return first
}

// publish makes an epoch of what the floors cover, and shows what was lost.
func (n *naive) publish(ordinal uint64, covered map[string]bool, first map[*naiveColumn]uint64) {
	n.epoch++
	e := &naiveEpoch{rows: map[uint32]map[uint64]naiveRow{}, deleted: map[uint32]map[uint64]uint64{}, floors: maps.Clone(n.floors), standard: n.standard, global: ^uint64(0)}
	for _, c := range n.columns {
		if covered[c.name] {
			c.publish(ordinal, n.epoch)
		}
		if c.lost && (len(c.versions) == 0 || c.versions[len(c.versions)-1].birth != n.epoch) {
			c.versions = append(c.versions, naiveVersion{birth: n.epoch, lowest: first[c], highest: first[c]})
		}
		c.lost = false
		if c.sealed != nil {
			e.rows[c.index], e.deleted[c.index] = c.sealed, c.deleted
		}
		e.global = min(e.global, n.floor(c.name))
	}
	if len(n.columns) == 0 {
		e.global = n.standard
	}
	n.epochs[n.epoch] = e
}

// lose makes the sealed rows of a column lost.
func (c *naiveColumn) lose() { c.lost, c.sealed, c.versions = true, map[uint64]naiveRow{}, nil }

// publish plays the accepted ops through ordinal.
func (c *naiveColumn) publish(ordinal, epoch uint64) {
	v := naiveVersion{birth: epoch, lowest: ^uint64(0), rows: map[uint64]naiveRow{}}
	maps.Copy(v.rows, c.sealed)
	deleted, changed := maps.Clone(c.deleted), false
	for len(c.pending) > 0 && c.pending[0].ordinal <= ordinal {
		op := c.pending[0]
		c.pending = c.pending[1:]
		for i, prim := range op.prims {
			if op.values != nil {
				v.rows[prim] = naiveRow{op.values[i], op.ordinal}
			} else if _, ok := v.rows[prim]; ok {
				delete(v.rows, prim)
				deleted[prim] = op.ordinal
			} else {
				continue // nothing of it
			}
			v.lowest, v.highest, changed = min(v.lowest, op.ordinal), max(v.highest, op.ordinal), true
		}
	}
	if changed {
		c.sealed, c.deleted = v.rows, deleted
		c.versions = append(c.versions, v)
	}
}

// asOf is the state at an ordinal, if there is a version that is exactly that.
func (c *naiveColumn) asOf(ordinal uint64) (birth uint64, exact bool) {
	for _, v := range c.versions {
		if v.lowest > ordinal {
			break
		}
		birth, exact = v.birth, v.highest <= ordinal
	}
	return birth, exact
}
