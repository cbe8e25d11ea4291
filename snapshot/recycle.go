package snapshot

import (
	"fmt"
	"iter"
	"math/bits"
	"slices"

	"callboard/fault"
	"callboard/tensor"
)

// logVersions is how many versions back it is known which rows changed (rule O7).
const logVersions = 16

// sparesMax is how many blocks of older versions a column keeps for the next ones.
const sparesMax = 2

// changed is what one version changed of the one before.
type changed struct {
	all    bool // more than it is worth to list
	spans  []span
	single []uint32 // rows that are no part of a run
	own    struct { // memory of these
		spans  []span
		single []uint32
	}
	count   uint64
	ordinal uint64   // of all these rows; 0: they are of several
	list    *rowList // these rows, all too; nil: they are of no list, or of several
}

// runMin is how many neighbours are copied as a run.
const runMin = 4

func (d *changed) begin(all bool) {
	d.all, d.spans, d.single, d.count, d.ordinal, d.list = all, d.own.spans[:0], d.own.single[:0], 0, 0, nil
}

// take notes the rows of a list, and no others.
func (d *changed) take(list *rowList, total uint64) {
	d.list, d.count = list, uint64(len(list.rows))
	if d.all = 2*d.count > total; !d.all {
		d.spans, d.single = list.spans, list.single
	}
}

// add notes rows of a column of total rows. Half a column is all of it.
func (d *changed) add(rows []uint32, total uint64) {
	if d.list != nil {
		panic(fmt.Sprintf("snapshot: %d rows are added to a log entry that is of a list of %d", len(rows), len(d.list.rows)))
	}
	if d.all {
		return
	}
	if d.count += uint64(len(rows)); 2*d.count > total {
		d.begin(true)
		return
	}
	d.spans, d.single = split(rows, d.spans, d.single)
	d.own.spans, d.own.single = d.spans, d.single
}

// split appends rows to runs and to what is no part of a run.
func split(rows []uint32, spans []span, single []uint32) ([]span, []uint32) {
	alone := 0 // where the rows begin that are in no run yet
	for i := 0; i < len(rows); {
		run := 1
		for i+run < len(rows) && rows[i+run] == rows[i+run-1]+1 {
			run++
		}
		if run >= runMin {
			single = append(single, rows[alone:i]...)
			spans = append(spans, span{rows[i], uint32(run)})
			alone = i + run
		}
		i += run
	}
	return spans, append(single, rows[alone:]...)
}

// spare is the storage of a reclaimed version, for a later one of the same column:
// only what changed since must be copied into it.
type spare struct {
	block    *Block
	ordinals *Block
	sequence uint64
	progress progress
}

// keepSpare takes a reclaimed version's storage over, if it is the stage's own and
// nobody else refers to it.
func (c *column) keepSpare(s *Store, v *version) bool {
	if !v.block.arena.own() || v.block.device() != c.device || v.block.refs != 1 || len(c.spares) >= sparesMax || v.sequence == 0 || c.latest().sequence-v.sequence > logVersions {
		return false
	}
	x := spare{block: v.block, sequence: v.sequence}
	if v.ordinals != nil && v.ordinals.refs == 1 {
		x.ordinals = v.ordinals
	} else {
		s.memory.Drop(v.ordinals)
	}
	c.spares = append(c.spares, x)
	s.noteLag(c)
	return true
}

// newestSpare is the one that takeSpare gives, if it has room; nil: there is none.
func (c *column) newestSpare() (newest *spare) {
	for i := range c.spares {
		if x := &c.spares[i]; newest == nil || x.sequence > newest.sequence {
			newest = x
		}
	}
	return newest
}

// takeSpare gives the newest spare that has room for need bytes and tells how many
// versions it is behind. Those that will never do are given up.
func (c *column) takeSpare(s *Store, need uint64) (best spare, behind uint64) {
	now, kept := c.sequence(), c.spares[:0]
	for _, x := range c.spares {
		if now-x.sequence > logVersions || uint64(len(x.block.Bytes)) < need {
			x.drop(s)
			continue
		}
		if best.block == nil || x.sequence > best.sequence {
			best, x = x, best
		}
		if x.block != nil {
			kept = append(kept, x)
		}
	}
	clear(c.spares[len(kept):])
	c.spares = kept
	return best, now - best.sequence
}

func (x *spare) drop(s *Store) {
	s.memory.Drop(x.block)
	s.memory.Drop(x.ordinals)
	*x = spare{}
}

// dropSpares gives up what columns of a device, or with nil of the host, keep for their
// next versions.
func (s *Store) dropSpares(d *Device) (dropped bool) {
	for _, c := range s.columns {
		if c.device != d {
			continue
		}
		for i := range c.spares {
			c.spares[i].drop(s)
			dropped = true
		}
		c.spares = c.spares[:0]
	}
	return dropped
}

// lacking gives what changed in each of the behind versions up to number now, but for those
// that changed just the rows of again: who catches up writes to all of these next, values
// and ordinals (nil: to no such list).
func (c *column) lacking(now, behind uint64, again *rowList) iter.Seq[*changed] {
	return func(yield func(*changed) bool) {
		for q := now - behind + 1; q <= now; q++ {
			if d := &c.log[q%logVersions]; (again == nil || d.list != again) && !yield(d) {
				return
			}
		}
	}
}

// changedRows is how many rows are lacking, at most all; some may be counted twice.
func (c *column) changedRows(now, behind, all uint64, again *rowList) (rows uint64) {
	for d := range c.lacking(now, behind, again) {
		if d.all {
			return all
		}
		rows += d.count
	}
	return min(rows, all)
}

// catchUp copies to dst, which is as the column was behind versions before number now,
// the rows that have changed since, from src, which is that version: all rows of
// rowBytes, but those that are lacking for again. The log does not change while a seal of
// the column is on its way.
func (c *column) catchUp(now, behind, all, rowBytes uint64, dst, src []byte, again *rowList) {
	if fault.On(fault.DirtyRangeLost) {
		return
	}
	if rows := c.changedRows(now, behind, all, again); rows == all || costsAll(rows, all, rowBytes) {
		copy(dst, src[:all*rowBytes])
		return
	}
	if single := c.due.of(c, now, behind, all, again); len(single) > 0 { // lists of none would mean all rows
		if err := tensor.CopyRows(dst[:all*rowBytes], src[:all*rowBytes], int(rowBytes), single, single); err != nil {
			panic("snapshot: copying rows of the log: " + err.Error())
		}
	}
	for d := range c.lacking(now, behind, again) {
		for _, run := range d.spans {
			first, end := uint64(run.first)*rowBytes, uint64(run.first+run.count)*rowBytes
			copy(dst[first:end], src[first:end])
		}
	}
}

// catchUpOrdinals is catchUp for the table of row ordinals. What the log says of them
// need not be read from src.
func (c *column) catchUpOrdinals(now, behind, all uint64, dst, src []byte, again *rowList) {
	known := c.changedRows(now, behind, all, again) < all
	for d := range c.lacking(now, behind, again) {
		known = known && d.ordinal != 0
	}
	if !known || fault.On(fault.DirtyRangeLost) {
		c.catchUp(now, behind, all, 8, dst, src, again)
		return
	}
	ordinals := slice[uint64](dst, 0, int(all))
	for d := range c.lacking(now, behind, again) {
		tensor.FillRows(ordinals, d.single, d.ordinal)
		for _, run := range d.spans {
			for i := range run.count {
				ordinals[run.first+i] = d.ordinal
			}
		}
	}
}

// cacheLine is what a row costs at least to be moved alone.
const cacheLine = 64

// costsAll tells whether to move rows alone costs no less than to move all of them.
func costsAll(rows, all, rowBytes uint64) bool { return rows*max(rowBytes, cacheLine) > all*rowBytes }

// due is the rows that are no part of a run and have changed in some versions, each
// once and in order where they are many: then neighbours share pages and lines, and
// copying them costs half of what it costs in any order.
type due struct {
	now, behind uint64 // what rows are of
	again       *rowList
	rows        []uint32
	marks       []uint64 // a bit for each row of the column; all 0 between calls
}

func (d *due) of(c *column, now, behind, all uint64, again *rowList) []uint32 {
	if d.now == now && d.behind == behind && d.again == again { // the row ordinals come after the rows
		return d.rows
	}
	count, versions := 0, 0
	var one []uint32
	for x := range c.lacking(now, behind, again) {
		one, count, versions = x.single, count+len(x.single), versions+1
	}
	if versions <= 1 && slices.IsSorted(one) {
		return one
	}
	d.now, d.behind, d.again, d.rows = now, behind, again, d.rows[:0]
	words := int(all+63) / 64
	if count < words/16 { // to look through the marks would cost more than they save
		for x := range c.lacking(now, behind, again) {
			d.rows = append(d.rows, x.single...)
		}
		return d.rows
	}
	if len(d.marks) < words {
		d.marks = make([]uint64, words+words/4)
	}
	for x := range c.lacking(now, behind, again) {
		for _, row := range x.single {
			d.marks[row/64] |= 1 << (row % 64)
		}
	}
	for i, word := range d.marks[:words] {
		for ; word != 0; word &= word - 1 {
			d.rows = append(d.rows, uint32(i*64+bits.TrailingZeros64(word)))
		}
	}
	clear(d.marks[:words])
	return d.rows
}
