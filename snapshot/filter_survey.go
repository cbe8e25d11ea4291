package snapshot

import (
	"math/bits"
	"slices"
	"strings"
	"sync/atomic"

	"callboard/fault"
	"callboard/protocol"
	"callboard/shm"
	"callboard/tensor"
)

// survey is what a filter looks at: the newest versions, and what was accepted since, as
// they were when it began. It holds all of it, so that it stays as it is while the loop
// goes on.
type survey struct {
	store      *Store
	epoch      uint64
	strings    stringTable
	filter     *Filter
	attributes []surveyAttribute
	predicates []surveyPredicate
	cost       uint64 // rows, and elements of arrays, that may be looked at
	blocks     []*Block
	pins       []Pin                    // of array columns: their data blocks stay as their versions do (rule V8)
	segments   map[uint64]surveySegment // that data blocks may lie in; nil where no predicate looks there
	found      *Query
}

type surveySegment struct {
	bytes   []byte
	clients bool // a client may cut it off
}

type surveyAttribute struct {
	id       uint64
	columns  []surveyColumn
	reported bool
}

type surveyColumn struct {
	rowBytes uint64
	array    bool                 // rows are RowRefs
	layout   []protocol.LayoutRow // of the version's rows
	data     []byte
	pending  []surveyCapture
}

// surveyCapture is a capture as it was; what is accepted later may join the capture, but
// never changes what is in it.
type surveyCapture struct {
	deletes bool
	prims   []uint64
	from    []uint32
	bytes   []byte
}

// surveyPredicate is a predicate on an attribute: a test for each of its columns, nil
// where it is HAS.
type surveyPredicate struct {
	attribute int // −1: nobody wrote or declared the name
	tests     []func(row []byte) bool
}

// never is the test of columns whose values have no such operator.
func never([]byte) bool { return false }

// survey prepares a filter. ErrRetry: a seal writes where a predicate would look.
func (s *Store) survey(f *Filter) (*survey, error) {
	l := &survey{store: s, epoch: s.epoch, filter: f, strings: stringTable{s.root.IdentityTag, s.dictionary.texts[:len(s.dictionary.texts):len(s.dictionary.texts)]}}
	err := CheckFilter(f, func(name string) (all []tensor.Schema, err error) {
		if a := s.byName[name]; a != nil {
			for _, c := range a.columns {
				all = append(all, c.known())
			}
		}
		return all, nil
	})
	if err == nil {
		err = l.busy()
	}
	if err != nil {
		return nil, err
	}
	places := map[*attribute]int{}
	everything := !f.Scoped || !slices.ContainsFunc(f.Predicates, func(p Predicate) bool { return p.Name != PathName })
	for _, c := range s.columns[1:] {
		if !everything && !f.names(c.name) {
			continue
		}
		if _, known := places[c.attribute]; !known {
			places[c.attribute] = len(l.attributes)
			l.attributes = append(l.attributes, l.attribute(c.attribute))
		}
	}
	for i := range f.Predicates {
		p := &f.Predicates[i]
		if p.Name == PathName {
			continue
		}
		made := surveyPredicate{attribute: -1}
		if a := s.byName[p.Name]; a != nil {
			made.attribute = places[a]
			for _, c := range a.columns {
				var test func(row []byte) bool
				if p.Operator != protocol.FilterHas {
					schema := c.known()
					if test, err = p.test(&schema, &l.strings); err != nil {
						test = never
					} else if c.ragged != nil {
						l.lookInto(c)
					}
				}
				made.tests = append(made.tests, test)
			}
		}
		l.predicates = append(l.predicates, made)
	}
	l.cost += uint64(len(l.strings.texts)) / 64
	if len(l.pins) > 0 {
		s.AddPins(l)
	}
	return l, nil
}

// lookInto keeps an array column's data as it is now. What its pending captures refer to
// is held; what its newest version does is as many blocks as it has rows, so that the
// version is pinned instead.
func (l *survey) lookInto(c *column) {
	if l.segments == nil {
		l.segments = map[uint64]surveySegment{}
		for id, seg := range l.store.memory.segments {
			l.segments[id] = surveySegment{seg.Bytes, seg.Sort == protocol.SegmentClient}
		}
	}
	l.pins = append(l.pins, Pin{Attribute: c.index, Epoch: l.epoch})
	l.cost += c.ragged.liveBytes / 8
	if l.filter.Sealed {
		return
	}
	for _, k := range c.pending {
		if !k.filling && k.data != nil {
			l.hold(k.data)
			l.cost += k.dataBytes / 8
		}
	}
}

// AppendPins makes a survey a reader of the array columns that it looks into.
func (l *survey) AppendPins(to []Pin) []Pin { return append(to, l.pins...) }

// names tells whether the filter names an attribute.
func (f *Filter) names(name string) bool {
	return slices.Contains(f.Attributes, name) || slices.ContainsFunc(f.Predicates, func(p Predicate) bool { return p.Name == name })
}

// known is the column's schema, which was checked when it was made.
func (c *column) known() tensor.Schema {
	schema, _, err := schemaOf(&c.schema)
	if err != nil {
		panic("snapshot: stored schema of " + c.name + " is not valid: " + err.Error())
	}
	return schema
}

// busy tells whether a seal on its way may write into memory that a predicate looks at:
// its first capture's own.
func (l *survey) busy() error {
	for _, z := range l.store.active {
		for _, p := range l.filter.Predicates {
			if p.Name != PathName && p.Operator != protocol.FilterHas && z.coversName(p.Name) {
				return ErrRetry
			}
		}
	}
	return nil
}

func (l *survey) attribute(a *attribute) surveyAttribute {
	out := surveyAttribute{id: a.id, reported: !l.filter.Scoped || slices.Contains(l.filter.Attributes, a.name)}
	for _, c := range a.columns {
		out.columns = append(out.columns, l.column(c))
	}
	return out
}

func (l *survey) column(c *column) surveyColumn {
	out := surveyColumn{rowBytes: c.rowBytes, array: c.ragged != nil}
	if v := c.latest(); v != nil && v.layoutBlock != nil && !v.gone() {
		out.layout = slice[protocol.LayoutRow](v.layoutBlock.Bytes, sizeOf[protocol.LayoutHeader](), int(v.rows))
		out.data = v.block.Bytes
		l.hold(v.layoutBlock)
		l.hold(v.block)
		l.cost += v.rows
	}
	if l.filter.Sealed {
		return out
	}
	for _, k := range c.pending {
		if k.filling {
			continue // not complete yet
		}
		k.watched = true
		out.pending = append(out.pending, surveyCapture{deletes: k.deletes, prims: k.prims, from: k.from, bytes: k.bytes})
		if k.block != nil {
			l.hold(k.block)
		}
		l.cost += uint64(len(k.prims))
	}
	return out
}

func (l *survey) hold(b *Block) { l.blocks = append(l.blocks, b.Hold()) }

// release lets go of what was looked at; in the loop.
func (l *survey) release() {
	for _, b := range l.blocks {
		l.store.memory.Drop(b)
	}
	l.blocks = nil
	if len(l.pins) > 0 {
		l.pins = nil
		l.store.RemovePins(l)
	}
}

// set is a set of strings of the table, by index.
type set []uint64

func (l *survey) newSet() set { return make(set, (len(l.strings.texts)+63)/64) }

func (s set) add(i uint64)      { s[i/64] |= 1 << (i % 64) }
func (s set) remove(i uint64)   { s[i/64] &^= 1 << (i % 64) }
func (s set) has(i uint64) bool { return s[i/64]&(1<<(i%64)) != 0 }
func (s set) join(other set) {
	for i := range s {
		s[i] |= other[i]
	}
}
func (s set) meet(other set) {
	for i := range s {
		s[i] &= other[i]
	}
}

// each goes through the set in order, until do returns false.
func (s set) each(do func(i uint64) bool) {
	for w, word := range s {
		for ; word != 0; word &= word - 1 {
			if !do(uint64(w)*64 + uint64(bits.TrailingZeros64(word))) {
				return
			}
		}
	}
}

// index is a prim's place in the string table.
func (l *survey) index(prim uint64) uint64 { return prim&(1<<40-1) - 1 }

// lives tells whether a row of a layout has a prim at the epoch.
func (l *survey) lives(row *protocol.LayoutRow) bool {
	return atomic.LoadUint64(&row.Birth) <= l.epoch && l.epoch < atomic.LoadUint64(&row.Death)
}

// run finds the prims. It may run anywhere.
func (l *survey) run() {
	var prims set
	for i := range l.predicates {
		p, satisfied := &l.predicates[i], l.newSet()
		if p.attribute >= 0 {
			columns := l.attributes[p.attribute].columns
			for k := range columns {
				satisfied.join(l.carrying(&columns[k], p.tests[k]))
			}
		}
		if prims == nil || fault.On(fault.LastTermAlone) {
			prims = satisfied
		} else {
			prims.meet(satisfied)
		}
	}
	if prims == nil {
		prims = l.existing()
	}
	for i := range l.filter.Predicates {
		if p := &l.filter.Predicates[i]; p.Name == PathName {
			l.paths(p, prims)
		}
	}
	l.found = NewQuery()
	prims.each(func(i uint64) bool {
		l.found.prims = append(l.found.prims, protocol.StringID(l.strings.tag, i))
		return true
	})
	for i := range l.attributes {
		if a := &l.attributes[i]; a.reported && slices.ContainsFunc(a.columns, func(c surveyColumn) bool { return l.meets(&c, prims) }) {
			l.found.attributes = append(l.found.attributes, a.id)
		}
	}
}

// carrying gives the prims that carry a column and pass the test; nil passes all.
func (l *survey) carrying(c *surveyColumn, test func(row []byte) bool) set {
	prims := l.newSet()
	for i := range c.layout {
		if l.lives(&c.layout[i]) && l.passes(c, test, c.data, uint64(i)) {
			prims.add(l.index(c.layout[i].PathID))
		}
	}
	for _, k := range c.pending {
		for i, prim := range k.prims {
			row := uint64(i)
			if k.from != nil {
				row = uint64(k.from[i])
			}
			if !k.deletes && l.passes(c, test, k.bytes, row) {
				prims.add(l.index(prim))
			} else {
				prims.remove(l.index(prim))
			}
		}
	}
	return prims
}

// passes runs a test on a row; nil passes all. What a client has cut off passes none.
func (l *survey) passes(c *surveyColumn, test func(row []byte) bool, bytes []byte, row uint64) (ok bool) {
	switch {
	case test == nil:
		return true
	case !c.array:
		return test(bytes[row*c.rowBytes:][:c.rowBytes])
	}
	ref := at[protocol.RowRef](bytes, row*refBytes)
	if ref.LengthBytes == 0 {
		return test(nil)
	}
	from := l.segments[ref.Segment]
	elements := from.bytes[ref.OffsetBytes:][:ref.LengthBytes]
	if !from.clients {
		return test(elements)
	}
	return shm.Guard(func() { ok = test(elements) }) == nil && ok
}

// existing gives every prim that carries anything.
func (l *survey) existing() set {
	prims := l.newSet()
	var seen []*protocol.LayoutRow // layouts of which as many rows were looked at already
	for i := range l.attributes {
		for k := range l.attributes[i].columns {
			c := &l.attributes[i].columns[k]
			if len(c.pending) == 0 && len(c.layout) > 0 {
				last := &c.layout[len(c.layout)-1]
				if slices.Contains(seen, last) {
					continue
				}
				seen = append(seen, last)
			}
			prims.join(l.carrying(c, nil))
		}
	}
	return prims
}

// meets tells whether any of prims carries the column.
func (l *survey) meets(c *surveyColumn, prims set) bool {
	if len(c.pending) > 0 {
		found := false
		carrying := l.carrying(c, nil)
		carrying.meet(prims)
		carrying.each(func(uint64) bool { found = true; return false })
		return found
	}
	for i := range c.layout {
		if prims.has(l.index(c.layout[i].PathID)) && l.lives(&c.layout[i]) {
			return true
		}
	}
	return false
}

// paths leaves the prims whose path satisfies a predicate (behaviour 237).
func (l *survey) paths(p *Predicate, prims set) {
	wanted := map[string]struct{}{}
	for _, value := range p.Values {
		wanted[value] = struct{}{}
	}
	prims.each(func(i uint64) bool {
		text := l.strings.texts[i]
		satisfied := strings.HasPrefix(text, p.Values[0])
		if p.Operator == protocol.FilterIn {
			_, satisfied = wanted[text]
		}
		if !satisfied {
			prims.remove(i)
		}
		return true
	})
}
