package snapshot

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"callboard/protocol"
)

// accounts counts the bytes of the distinct versions that this client pins, and
// keeps its pins in the order of their age (rule V7). Of an array version it counts the
// table of rows, and as many elements as the largest look at it took: to count them all
// would cost the column at each epoch, however few rows are read.
type accounts struct {
	mutex          sync.Mutex
	held           map[versionKey]holding
	bytes          uint64
	oldest, newest *Pinned
}

// versionKey names one version in the stage's life.
type versionKey struct {
	column uint32
	birth  uint64
}

type holding struct {
	pins  int
	bytes uint64 // with data
	data  uint64 // of an array: of the elements
}

// oldestNamed is how many pins an error names.
const oldestNamed = 3

// open counts what p holds. LIMIT: nothing is counted.
func (a *accounts) open(r *Reader, p *Pinned) error {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	for i := range p.versions {
		if v := &p.versions[i]; v.Column != nil {
			if err := a.count(r, p, v); err != nil {
				a.uncount(p)
				return err
			}
		}
	}
	p.since = time.Now()
	p.older, p.newer = a.newest, nil
	if a.newest != nil {
		a.newest.newer = p
	} else {
		a.oldest = p
	}
	a.newest = p
	r.pins.SetPinnedBytes(a.bytes)
	return nil
}

// add counts one more version of p, which is open.
func (a *accounts) add(r *Reader, p *Pinned, v *Version) error {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	err := a.count(r, p, v)
	r.pins.SetPinnedBytes(a.bytes)
	return err
}

// addRows counts elements of an array version that p has counted.
func (a *accounts) addRows(r *Reader, p *Pinned, v *Version, bytes uint64) error {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	key := versionKey{column: v.Column.Index, birth: v.Birth}
	h := a.held[key]
	if h.pins == 0 || bytes <= h.data {
		return nil
	}
	more := bytes - h.data
	if limit := r.PinnedBytesMax(); limit != 0 && a.bytes+more > limit {
		return a.limit(v, more, limit)
	}
	a.bytes += more
	h.bytes, h.data = h.bytes+more, bytes
	a.held[key] = h
	r.pins.SetPinnedBytes(a.bytes)
	return nil
}

func (a *accounts) close(r *Reader, p *Pinned) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	a.uncount(p)
	if p.older != nil {
		p.older.newer = p.newer
	} else {
		a.oldest = p.newer
	}
	if p.newer != nil {
		p.newer.older = p.older
	} else {
		a.newest = p.older
	}
	p.older, p.newer = nil, nil
	r.pins.SetPinnedBytes(a.bytes)
}

func (a *accounts) count(r *Reader, p *Pinned, v *Version) error {
	key := versionKey{column: v.Column.Index, birth: v.Birth}
	for _, k := range p.counted {
		if k == key {
			return nil
		}
	}
	h := a.held[key]
	if h.pins == 0 {
		h.bytes, h.data = v.Block.LengthBytes, 0
		if limit := r.PinnedBytesMax(); limit != 0 && a.bytes+h.bytes > limit {
			return a.limit(v, h.bytes, limit)
		}
		a.bytes += h.bytes
	}
	h.pins++
	a.held[key] = h
	p.counted = append(p.counted, key)
	return nil
}

func (a *accounts) uncount(p *Pinned) {
	for _, key := range p.counted {
		h := a.held[key]
		if h.pins--; h.pins > 0 {
			a.held[key] = h
			continue
		}
		a.bytes -= h.bytes
		delete(a.held, key)
	}
	p.counted = p.counted[:0]
}

func (a *accounts) limit(v *Version, more, limit uint64) error {
	var names strings.Builder
	n := 0
	for p := a.oldest; p != nil && n < oldestNamed; p = p.newer {
		if n++; n > 1 {
			names.WriteString(", ")
		}
		fmt.Fprintf(&names, "%s at epoch %d (held for %.1f s)", p.describe(), p.epoch, time.Since(p.since).Seconds())
	}
	hold := "this read alone is too large"
	if n > 0 {
		hold = "the oldest that are held: " + names.String()
	}
	return protocol.Errorf(protocol.StatusLimit, "attribute %q at epoch %d has %d bytes; this client pins %d of at most %d already, and %s; release them, or raise `serve --memory`",
		v.Column.Name, v.Birth, more, a.bytes, limit, hold)
}

// describe names what a pin is of.
func (p *Pinned) describe() string {
	if p.all {
		return "a snapshot"
	}
	for _, c := range p.columns {
		if c.Name != floorName {
			if len(p.columns) > 2 {
				return fmt.Sprintf("%q and %d more", c.Name, len(p.columns)-2)
			}
			return fmt.Sprintf("%q", c.Name)
		}
	}
	return "the floors"
}
