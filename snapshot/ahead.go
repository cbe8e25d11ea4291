package snapshot

import (
	"slices"

	"callboard/fault"
	"callboard/protocol"
	"callboard/tensor"
)

// progress is how far a spare block has come towards the version after its own: that
// many of its lone rows, that many of its runs, and of the run after them that many
// rows. A block that is left half-way is still good for its sequence: what was copied
// is copied again, or is newer than it need be.
type progress struct {
	toward uint64 // instead, all rows up to this version, as one run; 0: what the log says
	single int
	spans  int
	rows   uint32
}

// noteLag remembers a column whose spare blocks may lag behind its last version.
func (s *Store) noteLag(c *column) {
	if len(c.spares) > 0 && !c.lags {
		c.lags = true
		s.lagging = append(s.lagging, c)
	}
}

// Lags tells whether CatchUp may have something to do.
func (s *Store) Lags() bool { return len(s.lagging) > 0 && len(s.active) == 0 }

// CatchUp brings spare blocks up to date before a seal needs them, a piece of at most
// CopyInlineBytes at each call, so that the seal copies only what is new. The loop calls
// it when it has nothing else to do. It writes to reclaimed blocks only, and while a
// seal's Job is on its way it does nothing: that reads the log, and has what it needs.
func (s *Store) CatchUp() (worked bool) {
	budget := s.config.CopyInlineBytes
	for budget > 0 && s.Lags() {
		c := s.lagging[0]
		copied, cost, lags := c.catchUpSpare(s.config.CopyInlineBytes, budget)
		if !lags {
			s.lagging = slices.Delete(s.lagging, 0, 1)
			c.lags = false
			continue
		}
		count(&c.entry.CopiedBytes, copied)
		s.counters.CopiedBytes += copied
		budget -= min(budget, cost)
		worked = true
	}
	return worked
}

// catchUpSpare copies a piece of what the spare that takeSpare would give lacks, and
// tells how many bytes of rows these were, and what it cost. lags: there may be more. On a
// device the loop copies nothing.
func (c *column) catchUpSpare(limit, budget uint64) (copied, cost uint64, lags bool) {
	v, x := c.latest(), c.newestSpare()
	if v == nil || x == nil || c.onDevice() || x.sequence == v.sequence || v.block.arena.Sort != protocol.SegmentBroker || fault.On(fault.DirtyRangeLost) {
		return 0, 0, false
	}
	all := v.rows * c.rowBytes
	if v.sequence-x.sequence > logVersions || uint64(len(x.block.Bytes)) < all || c.rowBytes > limit {
		return 0, 0, false // of no use, or for a Job
	}
	p := catchUpPiece{rowBytes: c.rowBytes, dst: x.block.Bytes[:all], src: v.block.Bytes[:all]}
	if x.ordinals != nil && v.ordinals != nil && uint64(len(x.ordinals.Bytes)) >= 8*v.rows {
		p.ordinals, p.table = slice[uint64](x.ordinals.Bytes, 0, int(v.rows)), slice[uint64](v.ordinals.Bytes, 0, int(v.rows))
	} else if x.ordinals != nil {
		return 0, 0, false // the next seal makes a table of its own
	}
	for q := x.sequence + 1; q <= v.sequence; q++ {
		if c.log[q%logVersions].all {
			return 0, 0, false // rows have moved; or who writes all of them does so again, and then nothing is needed
		}
	}
	rows := c.changedRows(v.sequence, v.sequence-x.sequence, v.rows, nil)
	if x.progress == (progress{}) && (rows == v.rows || costsAll(rows, v.rows, c.rowBytes)) {
		x.progress.toward = v.sequence
	}
	rows, cost = x.advance(c, v, &p, budget)
	return rows * c.rowBytes, cost, true
}

// advance copies the next piece.
func (x *spare) advance(c *column, v *version, p *catchUpPiece, budget uint64) (rows, cost uint64) {
	at, d, next := &x.progress, &c.log[(x.sequence+1)%logVersions], x.sequence+1
	single, spans := d.single, d.spans
	if at.toward != 0 {
		single, spans, next = nil, []span{{0, uint32(v.rows)}}, at.toward
	} else {
		p.ordinal = d.ordinal
	}
	alone := max(c.rowBytes, cacheLine) + cacheLine
	switch {
	case at.single < len(single):
		n := min(len(single)-at.single, int(max(1, budget/alone)))
		p.copyRows(single[at.single:][:n])
		at.single += n
		return uint64(n), uint64(n) * alone
	case at.spans < len(spans):
		run := spans[at.spans]
		n := uint32(min(uint64(run.count-at.rows), max(1, budget/(c.rowBytes+8))))
		p.copyRun(uint64(run.first+at.rows), uint64(n))
		if at.rows += n; at.rows == run.count {
			at.spans, at.rows = at.spans+1, 0
		}
		return uint64(n), uint64(n) * (c.rowBytes + 8)
	}
	x.sequence, x.progress = next, progress{}
	return 0, 0
}

// catchUpPiece copies rows and their ordinals to a spare from the last version.
type catchUpPiece struct {
	rowBytes        uint64
	dst, src        []byte
	ordinals, table []uint64 // none: the spare has no table
	ordinal         uint64   // of all rows that are copied; 0: what table says
}

func (p *catchUpPiece) copyRows(rows []uint32) {
	if err := tensor.CopyRows(p.dst, p.src, int(p.rowBytes), rows, rows); err != nil {
		panic("snapshot: copying rows of the log: " + err.Error())
	}
	if p.ordinals == nil {
		return
	}
	if p.ordinal != 0 {
		tensor.FillRows(p.ordinals, rows, p.ordinal)
		return
	}
	for _, row := range rows {
		p.ordinals[row] = p.table[row]
	}
}

func (p *catchUpPiece) copyRun(first, count uint64) {
	copy(p.dst[first*p.rowBytes:(first+count)*p.rowBytes], p.src[first*p.rowBytes:])
	if p.ordinals != nil {
		copy(p.ordinals[first:first+count], p.table[first:])
	}
}
