package snapshot

import (
	"math"

	"callboard/fault"
	"callboard/protocol"
	"callboard/shm"
	"callboard/tensor"
)

// fold makes the next version of a column out of the last one and the captures that a
// seal covers, in their order. plan finds the rows, lease takes all that is needed,
// copy may run anywhere, commit cannot fail; drop undoes plan and lease.
type fold struct {
	column   *column // nil until it is made
	device   *Device // where its rows lie; nil: on the host
	rowBytes uint64
	pending  int        // how many of the column's pending captures it takes
	captures []*capture // those, and one that is written in the same step
	steps    []placed   // the rows of each capture; none where it is whole
	rows     []uint32   // memory of their rows, where they are of no list
	places   []uint32   // and of their places, where those of the list will not do
	plan     rowPlan
	whole    int    // the last capture that is all rows there are then, in order; −1
	first    int    // the first capture whose rows are put into the block; those before it do not matter
	partial  bool   // there is such a capture
	fresh    bool   // that one is all rows there are, so the block may hold anything
	publish  bool   // there is something to publish
	lowest   uint64 // ordinals of the first and the last capture that change anything
	highest  uint64

	base     *Block // what the new block starts from, nil: itself
	baseRows uint64
	table    *Block // the base's row ordinals; nil: all are of baseOrdinal
	ordinal  uint64 // of the base where it has no table
	spare    spare  // block and ordinals of an older version, behind by behind versions
	behind   uint64
	last     uint64   // sequence of the base version
	again    *rowList // rows that the last version wrote as well: what older ones made of them need not be caught up with
	block    *Block   // the new version's
	ordinals *Block
	adopted  bool
	copied   uint64

	movedRows  []uint32 // of an array column: rows that leave data blocks which are mostly dead
	movedBytes uint64
	moved      *Block     // where they go
	cursor     *dataBlock // the block of which only the rows before cursorNext go
	cursorNext int
}

// placed is which rows a capture writes to: those of a list, or else count of fold.rows. sorted:
// they are in another order than the capture's prims, and the list's places, or those of
// fold.places from place on, say which rows of its bytes go there.
type placed struct {
	first, count uint32
	list         *rowList
	sorted       bool
	place        int // −1: the list's
}

func (f *fold) rowsOf(step *placed) []uint32 {
	if step.list != nil {
		return step.list.rows
	}
	return f.rows[step.first:][:step.count]
}

func (f *fold) placesOf(step *placed) []uint32 {
	if step.place < 0 {
		return step.list.places
	}
	return f.places[step.place:][:step.count]
}

// span is a run of rows.
type span struct{ first, count uint32 }

// planFold finds the rows of the captures. captures must be set.
func (f *fold) planFold() {
	var from *layout
	if f.column != nil {
		from = f.column.layout
	}
	f.plan.begin(from)
	if f.lost() {
		f.plan.compact = true // to no rows: the layout is a new one
	}
	f.steps, f.rows, f.places, f.whole, f.first, f.partial, f.fresh, f.publish = f.steps[:0], f.rows[:0], f.places[:0], -1, 0, false, false, false
	f.lowest, f.highest = math.MaxUint64, 0
	for i, k := range f.captures {
		if k.deletes {
			if f.plan.remove(k) {
				f.lowest, f.highest = min(f.lowest, k.ordinal), k.ordinal
			}
			f.steps = append(f.steps, placed{})
			continue
		}
		f.lowest, f.highest = min(f.lowest, k.ordinal), k.ordinal
		if len(f.captures) == 1 && f.plan.take(k) {
			f.steps, f.whole, f.first, f.publish = append(f.steps, placed{}), 0, 1, true
			continue
		}
		step := placed{first: uint32(len(f.rows)), place: -1}
		var whole, covers bool
		f.rows, step.list, whole, covers = f.plan.place(k, f.rows)
		step.count = uint32(len(f.rows)) - step.first
		if step.list != nil {
			step.count, step.sorted = uint32(len(step.list.rows)), step.list.places != nil
			if step.sorted && k.from != nil {
				step.place = len(f.places)
				for _, place := range step.list.places {
					f.places = append(f.places, k.from[place])
				}
			}
		}
		f.steps = append(f.steps, step)
		switch {
		case whole:
			f.whole, f.first, f.partial, f.fresh = i, i+1, false, false
		case covers:
			f.whole, f.first, f.partial, f.fresh = -1, i, true, true
		default:
			f.partial = true
		}
		f.publish = true
	}
	f.publish = f.publish || len(f.plan.deaths) > 0 || f.lost()
	if !f.partial && f.whole < 0 {
		f.plan.empty()
	}
}

// lease takes the blocks, and the room in the layout and for tombstones.
func (f *fold) lease(s *Store, name string) error {
	if !f.publish {
		return nil
	}
	if err := f.plan.lease(s); err != nil {
		return err
	}
	f.planMoves()
	need, err := bytesOf(name, f.plan.total, f.rowBytes)
	if err != nil {
		return err
	}
	var last *version
	if f.column != nil {
		last, f.last = f.column.latest(), f.column.sequence()
	}
	if f.lost() {
		last = nil
		f.emptied(s)
	}
	if len(f.plan.buried) > 0 {
		if err := s.reserveTombstones(f.column, len(f.plan.buried)); err != nil {
			return err
		}
	}
	switch {
	case f.whole >= 0:
		k := f.captures[f.whole]
		f.ordinal, f.baseRows = k.ordinal, uint64(len(k.prims))
		if !k.shared() && (!f.partial || f.mayExtend(k, need)) {
			f.block, f.adopted = k.block.Hold(), k.staged || k.adopted
		} else {
			f.base = k.block.Hold()
		}
	case last == nil:
	case f.fresh:
		f.spare, f.behind = f.column.takeSpare(s, need)
		s.memory.Drop(f.spare.ordinals)
		f.block, f.spare.ordinals = f.spare.block, nil
		f.ordinal = f.captures[f.first].ordinal
	case !f.partial && !f.plan.compact && len(f.movedRows) == 0: // deletes alone change no row
		f.block, f.adopted, f.baseRows, f.ordinal, f.table = last.block.Hold(), last.adopted, last.rows, last.highest, hold(last.ordinals)
	default:
		f.base, f.baseRows, f.ordinal, f.table = last.block.Hold(), last.rows, last.highest, hold(last.ordinals)
		if !f.plan.compact {
			f.spare, f.behind = f.column.takeSpare(s, need)
			f.block = f.spare.block
			f.again = f.rewritten()
		}
	}
	if f.block == nil {
		if f.block, err = s.dataOn(f.device, need); err != nil {
			return err
		}
	}
	if f.movedBytes > 0 {
		if f.moved, err = s.data(f.movedBytes); err != nil {
			return err
		}
	}
	return f.leaseOrdinals(s)
}

// rewritten is the list of rows that the last version wrote and this one writes again, as a
// producer does who has the same prims in each tick; nil: there is none.
func (f *fold) rewritten() *rowList {
	if len(f.movedRows) > 0 {
		return nil // where they are now must be known
	}
	list := f.column.log[f.last%logVersions].list
	for i := f.first; list != nil && i < len(f.steps); i++ {
		if f.steps[i].list == list {
			return list
		}
	}
	return nil
}

// only is the list that is all rows that change; nil: there is no such list.
func (f *fold) only() (list *rowList) {
	if len(f.movedRows) > 0 {
		return nil
	}
	for i := f.first; i < len(f.steps); i++ {
		if f.steps[i].count == 0 {
			continue
		}
		if list != nil {
			return nil
		}
		if list = f.steps[i].list; list == nil {
			return nil
		}
	}
	return list
}

// mayExtend tells whether later captures can be applied in the capture's own block. A
// producer's is never written to; and what lies in a producer's memory may turn out to
// be gone, or a device fail, which must leave this block as it is.
func (f *fold) mayExtend(k *capture, need uint64) bool {
	if f.device != nil {
		return false
	}
	for _, later := range f.captures[f.whole+1:] {
		if later.staged {
			return false
		}
	}
	return !k.staged && k.block.refs == 1 && uint64(len(k.block.Bytes)) >= need
}

func hold(b *Block) *Block {
	if b != nil {
		b.Hold()
	}
	return b
}

// leaseOrdinals takes the table of row ordinals, unless one ordinal is that of all.
func (f *fold) leaseOrdinals(s *Store) (err error) {
	if f.plan.total == 0 {
		return nil
	}
	last := f.captures[len(f.captures)-1]
	if f.fresh && f.first == len(f.captures)-1 || f.whole == len(f.captures)-1 || f.whole >= 0 && !f.partial && f.captures[f.whole].ordinal == last.ordinal {
		return nil
	}
	need := f.plan.total * 8
	if f.table != nil && !f.partial && !f.plan.compact { // deletes alone
		s.memory.Drop(f.spare.ordinals)
		f.ordinals, f.spare.ordinals = f.table.Hold(), nil
		return nil
	}
	if f.spare.ordinals != nil {
		if uint64(len(f.spare.ordinals.Bytes)) >= need && f.table != nil {
			f.ordinals = f.spare.ordinals
			return nil
		}
		s.memory.Drop(f.spare.ordinals)
		f.spare.ordinals = nil
	}
	f.ordinals, err = s.data(need)
	return err
}

// cost is how many bytes copy will move.
func (f *fold) cost() (bytes uint64) {
	if !f.publish {
		return 0
	}
	switch {
	case f.base == nil:
	case f.plan.compact && f.whole < 0:
		bytes = uint64(len(f.plan.live)) * f.rowBytes
	case f.spare.block != nil:
		bytes = f.column.changedRows(f.last, f.behind, f.baseRows, f.again) * f.rowBytes
	default:
		bytes = f.baseRows * f.rowBytes
	}
	for i := f.first; i < len(f.captures); i++ {
		bytes += uint64(f.steps[i].count) * f.rowBytes
	}
	bytes += f.movedBytes
	f.copied = bytes
	if f.ordinals != nil && f.ordinals != f.table && f.spare.ordinals == nil {
		bytes += f.plan.total * 8
	}
	return bytes
}

// copy brings block and ordinals up to the base, then applies the captures after it.
// What lies in a producer's memory may be gone, if that producer cut it off: then the
// rows are zeros, since a seal is not its client's alone and must not fail for ever.
func (f *fold) copy() {
	if !f.publish {
		return
	}
	dst := f.block.Bytes
	if f.base != nil {
		if f.base.arena.Sort == protocol.SegmentBroker {
			f.copyBase(dst)
		} else if shm.Guard(func() { f.copyBase(dst) }) != nil {
			clear(dst[:f.plan.total*f.rowBytes])
		}
	}
	if len(f.movedRows) > 0 {
		f.move(slice[protocol.RowRef](dst, 0, int(f.plan.total)))
	}
	var ordinals []uint64
	if f.ordinals != nil && f.ordinals != f.table {
		ordinals = f.copyOrdinals()
	}
	for i := f.first; i < len(f.captures); i++ {
		k, step := f.captures[i], &f.steps[i]
		if step.count == 0 {
			continue
		}
		rows, from, all := f.rowsOf(step), k.from, dst[:f.plan.total*f.rowBytes]
		if step.sorted {
			from = f.placesOf(step)
		}
		if !k.staged {
			f.apply(all, k.bytes, f.rowBytes, rows, from)
		} else if shm.Guard(func() { f.apply(all, k.bytes, f.rowBytes, rows, from) }) != nil {
			for _, row := range rows {
				clear(all[uint64(row)*f.rowBytes:][:f.rowBytes])
			}
		}
		if ordinals != nil && !fault.On(fault.RowOrdinalsStale) {
			tensor.FillRows(ordinals, rows, k.ordinal)
		}
	}
}

func (f *fold) copyBase(dst []byte) {
	src := f.base.Bytes[:f.baseRows*f.rowBytes]
	switch {
	case f.plan.compact && f.whole < 0:
		f.apply(dst[:f.plan.total*f.rowBytes], src, f.rowBytes, nil, f.plan.live)
	case f.spare.block != nil:
		f.column.catchUp(f.last, f.behind, f.baseRows, f.rowBytes, dst, src, f.again)
	default:
		copy(dst, src)
	}
}

func (f *fold) apply(dst, src []byte, rowBytes uint64, dstRows, srcRows []uint32) {
	if len(dstRows) == 0 && len(srcRows) == 0 {
		return
	}
	if err := tensor.CopyRows(dst, src, int(rowBytes), dstRows, srcRows); err != nil {
		panic("snapshot: copying checked rows: " + err.Error())
	}
}

// copyOrdinals brings the table of row ordinals up to the base.
func (f *fold) copyOrdinals() []uint64 {
	dst := slice[uint64](f.ordinals.Bytes, 0, int(f.plan.total))
	switch {
	case f.whole >= 0 || f.table == nil:
		for i := range dst {
			dst[i] = f.ordinal
		}
	case f.plan.compact:
		src := slice[uint64](f.table.Bytes, 0, int(f.baseRows))
		for i, row := range f.plan.live {
			dst[i] = src[row]
		}
	case f.spare.ordinals != nil:
		f.column.catchUpOrdinals(f.last, f.behind, f.baseRows, f.ordinals.Bytes, f.table.Bytes, f.again)
	default:
		copy(dst, slice[uint64](f.table.Bytes, 0, int(f.baseRows)))
	}
	return dst
}

// commit changes the layout and appends the version, not yet in a slot.
func (f *fold) commit(s *Store, epoch uint64) *version {
	c := f.column
	f.plan.commit(s, c)
	last := f.last
	log := &c.log[(last+1)%logVersions]
	more := f.whole >= 0 || f.fresh || f.plan.compact || last == 0 // than rows of steps
	log.begin(more)
	if list := f.only(); list != nil && !more {
		log.take(list, f.plan.total)
	} else {
		for i := f.first; i < len(f.steps); i++ {
			log.add(f.rowsOf(&f.steps[i]), f.plan.total)
		}
		log.add(f.movedRows, f.plan.total)
	}
	if f.lowest == f.highest && len(f.movedRows) == 0 { // a row that moves keeps its ordinal
		log.ordinal = f.highest
	}
	v := c.newVersion()
	*v = version{birth: epoch, death: protocol.Infinite, block: f.block, ordinals: f.ordinals, rows: f.plan.total, layoutBlock: c.layout.block.Hold(),
		generation: c.layout.generation, lowest: f.lowest, highest: f.highest, sequence: last + 1, adopted: f.adopted, data: v.data[:0]}
	if fault.On(fault.GenerationAlways) {
		s.layoutGeneration++
		v.generation = s.layoutGeneration
	}
	f.block, f.ordinals, f.spare = nil, nil, spare{}
	if c.ragged != nil {
		c.ragged.commit(s, f, v)
	}
	captured := uint64(0)
	for _, k := range f.captures {
		captured += k.copied
	}
	count(&c.entry.CopiedBytes, f.copied+captured)
	s.counters.CopiedBytes += f.copied + captured
	if f.adopted && f.whole >= 0 {
		count(&c.entry.AdoptedCount, 1)
		s.counters.Adopted++
	} else {
		count(&c.entry.ScatteredCount, 1)
		s.counters.Scattered++
	}
	return v
}

// end gives back what only the making needed.
func (f *fold) end(s *Store) {
	s.memory.Drop(f.base)
	s.memory.Drop(f.table)
	s.memory.Drop(f.moved) // its rows hold it
	f.base, f.table, f.moved = nil, nil, nil
	if f.pending > 0 {
		f.column.takePending(f.pending)
	}
	for _, k := range f.captures[:f.pending] {
		s.forgetInserts(k)
		s.dropCapture(k)
	}
	f.clear()
}

// drop gives back what plan and lease took.
func (f *fold) drop(s *Store) {
	if f.publish {
		f.plan.drop(s)
	}
	if f.ordinals != f.spare.ordinals {
		s.memory.Drop(f.ordinals)
	}
	s.memory.Drop(f.spare.ordinals)
	s.memory.Drop(f.block) // the spare's, if there is one: its rows are not what its sequence says any more
	s.memory.Drop(f.base)
	s.memory.Drop(f.table)
	s.memory.Drop(f.moved)
	f.clear()
}

func (f *fold) clear() {
	clear(f.captures)
	clear(f.steps)
	*f = fold{captures: f.captures[:0], steps: f.steps[:0], rows: f.rows[:0], places: f.places[:0], movedRows: f.movedRows[:0], plan: f.plan}
	f.plan.from, f.plan.join = nil, nil
}
