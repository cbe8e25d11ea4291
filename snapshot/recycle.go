package snapshot

import (
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
	all     bool // more than it is worth to list
	spans   []span
	single  []uint32 // rows that are no part of a run
	count   uint64
	ordinal uint64 // of all these rows; 0: they are of several
}

// runMin is how many neighbours are copied as a run.
const runMin = 4

func (d *changed) begin(all bool) {
	d.all, d.spans, d.single, d.count, d.ordinal = all, d.spans[:0], d.single[:0], 0, 0
}

// add notes rows of a column of total rows. Half a column is all of it.
func (d *changed) add(rows []uint32, total uint64) {
	if d.all {
		return
	}
	if d.count += uint64(len(rows)); 2*d.count > total {
		d.begin(true)
		return
	}
	alone := 0 // where the rows begin that are in no run yet
	for i := 0; i < len(rows); {
		run := 1
		for i+run < len(rows) && rows[i+run] == rows[i+run-1]+1 {
			run++
		}
		if run >= runMin {
			d.single = append(d.single, rows[alone:i]...)
			d.spans = append(d.spans, span{rows[i], uint32(run)})
			alone = i + run
		}
		i += run
	}
	d.single = append(d.single, rows[alone:]...)
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

// changedRows is how many rows changed in the behind versions up to number now, at most
// all; some may be counted twice.
func (c *column) changedRows(now, behind, all uint64) (rows uint64) {
	for q := now - behind + 1; q <= now; q++ {
		d := &c.log[q%logVersions]
		if d.all {
			return all
		}
		rows += d.count
	}
	return min(rows, all)
}

// catchUp copies to dst, which is as the column was behind versions before number now,
// the rows that have changed since, from src, which is that version: all rows of
// rowBytes. The log does not change while a seal of the column is on its way.
func (c *column) catchUp(now, behind, all, rowBytes uint64, dst, src []byte) {
	if fault.On(fault.DirtyRangeLost) {
		return
	}
	if rows := c.changedRows(now, behind, all); rows == all || costsAll(rows, all, rowBytes) {
		copy(dst, src[:all*rowBytes])
		return
	}
	if single := c.due.of(c, now, behind, all); len(single) > 0 { // lists of none would mean all rows
		if err := tensor.CopyRows(dst[:all*rowBytes], src[:all*rowBytes], int(rowBytes), single, single); err != nil {
			panic("snapshot: copying rows of the log: " + err.Error())
		}
	}
	for q := now - behind + 1; q <= now; q++ {
		for _, run := range c.log[q%logVersions].spans {
			first, end := uint64(run.first)*rowBytes, uint64(run.first+run.count)*rowBytes
			copy(dst[first:end], src[first:end])
		}
	}
}

// catchUpOrdinals is catchUp for the table of row ordinals. What the log says of them
// need not be read from src.
func (c *column) catchUpOrdinals(now, behind, all uint64, dst, src []byte) {
	known := c.changedRows(now, behind, all) < all
	for q := now - behind + 1; q <= now; q++ {
		known = known && c.log[q%logVersions].ordinal != 0
	}
	if !known || fault.On(fault.DirtyRangeLost) {
		c.catchUp(now, behind, all, 8, dst, src)
		return
	}
	ordinals := slice[uint64](dst, 0, int(all))
	for q := now - behind + 1; q <= now; q++ {
		d := &c.log[q%logVersions]
		setOrdinals(ordinals, d.single, d.ordinal)
		for _, run := range d.spans {
			for i := range run.count {
				ordinals[run.first+i] = d.ordinal
			}
		}
	}
}

func setOrdinals(ordinals []uint64, rows []uint32, ordinal uint64) {
	for _, row := range rows {
		ordinals[row] = ordinal
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
	rows        []uint32
	marks       []uint64 // a bit for each row of the column; all 0 between calls
}

func (d *due) of(c *column, now, behind, all uint64) []uint32 {
	if one := c.log[now%logVersions].single; behind == 1 && slices.IsSorted(one) {
		return one
	}
	if d.now == now && d.behind == behind { // the row ordinals come after the rows
		return d.rows
	}
	d.now, d.behind, d.rows = now, behind, d.rows[:0]
	count := 0
	for q := now - behind + 1; q <= now; q++ {
		count += len(c.log[q%logVersions].single)
	}
	words := int(all+63) / 64
	if count < words/16 { // to look through the marks would cost more than they save
		for q := now - behind + 1; q <= now; q++ {
			d.rows = append(d.rows, c.log[q%logVersions].single...)
		}
		return d.rows
	}
	if len(d.marks) < words {
		d.marks = make([]uint64, words+words/4)
	}
	for q := now - behind + 1; q <= now; q++ {
		for _, row := range c.log[q%logVersions].single {
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
