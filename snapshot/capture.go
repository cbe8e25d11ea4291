package snapshot

import (
	"fmt"
	"slices"
	"sort"

	"callboard/fault"
	"callboard/protocol"
	"callboard/tensor"
)

// capture is one accepted operation on one column that waits for its seal: rows and
// the prims that they are for, or prims that are deleted. All captures of an ordinal
// are that ordinal's overlay (rule O1). Rows are addressed by prim, so it does not
// matter how the layout changes meanwhile (behaviour 194).
type capture struct {
	ordinal uint64
	deletes bool
	insert  bool
	query   *Query   // whose first prims these are, nil if they are not; for its row map
	prims   []uint64 // in order; of duplicates the last one wins
	from    []uint32 // bytes' row for each of prims; nil: row i
	block   *Block   // what bytes lie in
	bytes   []byte   // rows; of an array column where the rows lie, in data
	staged  bool     // block is a producer's: it may become a version, it is never written to (rule S4)
	filling bool     // a Job copies into block
	session *Session // of several groups, which may take it back until it is sealed; else nil
	watched bool     // a filter looks at prims and from, or has
	charged uint64   // of Store.unsealedBytes
	copied  uint64   // bytes that were copied into block and data

	data      *Block // of an array column; nil: all rows are empty
	dataBytes uint64 // what was written there
	adopted   bool   // data is a producer's own

	ownPrims []uint64 // memory of prims and from, kept for the next one
	ownFrom  []uint32
	indexed  bool              // in column.about
	rows     map[uint64]uint32 // the row of each prim in a layout of these alone; made beside the loop, for a first write
}

const (
	// joinBytesMax is the largest payload that joins the capture before it.
	joinBytesMax = 4 << 10
	// joinRoomMax is how much room is leased for such payloads at once.
	joinRoomMax = 64 << 10
)

// newCapture is an empty capture.
func (s *Store) newCapture() *capture {
	n := len(s.captures)
	if n == 0 {
		return &capture{}
	}
	k := s.captures[n-1]
	s.captures = s.captures[:n-1]
	return k
}

// dropCapture gives back what a capture holds.
func (s *Store) dropCapture(k *capture) {
	s.memory.Drop(k.block)
	s.memory.Drop(k.data)
	s.unsealedBytes -= k.charged
	if k.watched {
		return
	}
	*k = capture{ownPrims: k.ownPrims[:0], ownFrom: k.ownFrom[:0]}
	s.captures = append(s.captures, k)
}

// aim says which prims the capture is for: those of q that a selection addresses.
// With a mask only the rows that are selected are captured.
func (k *capture) aim(q *Query, selection *tensor.Selection, count uint64) {
	switch {
	case selection.Mask != nil:
		k.prims, k.from = k.ownPrims[:0], k.ownFrom[:0]
		for target, row := range selection.Rows(0, count) {
			k.prims, k.from = append(k.prims, q.prims[target]), append(k.from, uint32(row))
		}
		k.ownPrims, k.ownFrom = k.prims, k.from
	default:
		k.query, k.prims = q, q.prims[:count:count] // a query only grows
		if selection.IndexMap != nil {
			k.from = append(k.ownFrom[:0], selection.IndexMap[:count]...)
			k.ownFrom = k.from
		}
		if fault.On(fault.MapScattered) && selection.IndexMap != nil {
			for i, row := range selection.IndexMap[:count] {
				if uint64(row) < count {
					k.from[row] = uint32(i)
				}
			}
		}
		if fault.On(fault.CountTrails) {
			k.query, k.prims = nil, q.prims[len(q.prims)-int(count):]
		}
	}
}

// shared tells whether others than its producer may write to the capture's block: it
// never becomes a version.
func (k *capture) shared() bool {
	return k.block != nil && k.block.arena.Sort&^protocol.SegmentOnDevice == protocol.SegmentShared
}

// insertCapture puts a capture where its ordinal belongs, behind those accepted
// before it.
func (c *column) insertCapture(k *capture) {
	at := c.through(k.ordinal)
	if fault.On(fault.SameOrdinalReversed) {
		at = c.through(k.ordinal - 1)
	}
	c.pending = append(c.pending, nil)
	copy(c.pending[at+1:], c.pending[at:])
	c.pending[at] = k
	c.unindexed = append(c.unindexed, k)
}

// removeCapture takes back a capture whose copy failed.
func (c *column) removeCapture(k *capture) {
	c.pending = removeLast(c.pending, c.through(k.ordinal), k)
	if k.indexed {
		c.about.remove(k.prims, k)
	} else {
		c.unindexed = removeLast(c.unindexed, len(c.unindexed), k)
	}
}

// removeLast removes a capture that is among the first n of a list, near their end mostly.
func removeLast(list []*capture, n int, k *capture) []*capture {
	for i := n - 1; i >= 0; i-- {
		if list[i] == k {
			return slices.Delete(list, i, i+1)
		}
	}
	panic(fmt.Sprintf("snapshot: a capture at ordinal %d of %d prims is not among the %d that wait", k.ordinal, len(k.prims), n))
}

// takePending takes the first n captures away, which a seal has published.
func (c *column) takePending(n int) {
	for _, k := range c.pending[:n] {
		if k.indexed && n < len(c.pending) {
			c.about.remove(k.prims, k)
		}
	}
	if through := c.pending[n-1].ordinal; n < len(c.pending) {
		c.unindexed = slices.DeleteFunc(c.unindexed, func(k *capture) bool { return k.ordinal <= through })
	} else {
		clear(c.unindexed)
		c.about, c.unindexed = nil, c.unindexed[:0]
	}
	c.pending = slices.Delete(c.pending, 0, n)
}

// captured are the pending captures of a prim, in their order.
func (c *column) captured(prim uint64) []*capture {
	for _, k := range c.unindexed {
		if c.about == nil {
			c.about = make(byPrim[*capture], len(k.prims))
		}
		c.about.add(k.prims, k, (*capture).order)
		k.indexed = true
	}
	clear(c.unindexed)
	c.unindexed = c.unindexed[:0]
	if p := c.about[prim]; p != nil {
		return p.all
	}
	return nil
}

func (k *capture) order() uint64 { return k.ordinal }

// through is how many captures a seal at ordinal covers.
func (c *column) through(ordinal uint64) int {
	n := len(c.pending)
	if n == 0 || c.pending[n-1].ordinal <= ordinal {
		return n
	}
	return sort.Search(n, func(i int) bool { return c.pending[i].ordinal > ordinal })
}

// superseded is the last capture of k's ordinal, if it is of exactly the same prims:
// then nobody will see its values (behaviour 107).
func (c *column) superseded(k *capture) *capture {
	at := c.through(k.ordinal) - 1
	if at < 0 {
		return nil
	}
	old := c.pending[at]
	if old.ordinal != k.ordinal || old.deletes || old.filling || len(old.prims) != len(k.prims) || &old.prims[0] != &k.prims[0] {
		return nil
	}
	return old
}

// tail is the capture that a small payload may join: the last one of its ordinal.
func (c *column) tail(ordinal uint64, size uint64) *capture {
	at := c.through(ordinal) - 1
	if at < 0 || size > joinBytesMax {
		return nil
	}
	k := c.pending[at]
	if k.ordinal != ordinal || k.deletes || k.staged || k.filling || k.session != nil || k.from != nil || k.block == nil || k.block.refs != 1 || len(k.bytes) > joinRoomMax {
		return nil
	}
	return k
}

// join appends rows to a capture of the column, which has room for them.
func (c *column) join(k *capture, prims []uint64, bytes []byte) {
	if k.query != nil {
		k.ownPrims = append(k.ownPrims[:0], k.prims...)
		k.query, k.prims = nil, k.ownPrims
	}
	k.prims = append(k.prims, prims...)
	k.ownPrims = k.prims
	n := len(k.bytes)
	k.bytes = k.block.Bytes[:n+len(bytes)]
	copy(k.bytes[n:], bytes)
	k.copied += uint64(len(bytes))
	k.rows = nil
	if k.indexed {
		c.about.add(prims, k, (*capture).order)
	}
}

// standing tells what sealed data and accepted operations make of a prim in this
// column: whether it has it right before an operation at ordinal that is accepted now,
// and whether the next accepted operation on it after that is a write.
func (c *column) standing(prim, ordinal uint64) (before, written bool) {
	if c.layout != nil {
		_, before = c.layout.rows[prim]
	}
	list := c.captured(prim)
	at := sort.Search(len(list), func(i int) bool { return list[i].ordinal > ordinal })
	if at > 0 {
		before = !list[at-1].deletes
	}
	return before, at < len(list) && !list[at].deletes
}

// checkInsert refuses an INSERT of prims that exist (behaviour 93–98).
func (s *Store) checkInsert(k *capture, ordinal uint64) error {
	for _, prim := range k.prims {
		for _, c := range s.columns[1:] {
			before, written := c.standing(prim, ordinal)
			if before || written {
				return protocol.Errorf(protocol.StatusAlreadyExists, "prim %s exists: it carries attribute %q; INSERT is for prims that carry none, use UPSERT", s.pathText(prim), c.name)
			}
		}
	}
	return nil
}

// checkEarlier refuses a write, an INSERT too, below an INSERT that was accepted, which
// it would make wrong (rule O2).
func (s *Store) checkEarlier(k *capture, ordinal uint64) error {
	for _, prim := range k.prims {
		p := s.inserts[prim]
		if p == nil {
			continue
		}
		if i := p.all[len(p.all)-1]; ordinal < i.ordinal {
			return protocol.Errorf(protocol.StatusAlreadyExists, "prim %s was inserted at ordinal %d, which is not sealed yet: a write at ordinal %d would make it exist before; write at %d or above", s.pathText(prim), i.ordinal, ordinal, i.ordinal)
		}
	}
	return nil
}

// checkSchema refuses a write to prims that carry the name in another schema, before
// it or by what was accepted for after it (behaviour 46; rules O2, L6).
func (s *Store) checkSchema(a *attribute, c *column, differs error, k *capture, ordinal uint64) error {
	if a == nil || len(a.columns) == 1 && a.columns[0] == c || fault.On(fault.SchemaUnchecked) {
		return nil
	}
	for _, other := range a.columns {
		if other == c {
			continue
		}
		for _, prim := range k.prims {
			before, written := other.standing(prim, ordinal)
			if !before && !written {
				continue
			}
			if other == a.columns[0] && differs != nil {
				return named(a.name, differs)
			}
			stored, _, err := schemaOf(&other.schema)
			if err != nil {
				panic("snapshot: stored schema of " + other.name + " is not valid: " + err.Error())
			}
			return protocol.Errorf(protocol.StatusInvalidArgument, "attribute %q: prim %s carries it as %s; delete the attribute on these prims first to change it", a.name, s.pathText(prim), stored.String())
		}
	}
	return nil
}

// pathText is a prim's path for people.
func (s *Store) pathText(prim uint64) string {
	if text, ok := s.Text(prim); ok {
		return text
	}
	return "(unknown)"
}
