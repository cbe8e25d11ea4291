package snapshot

import (
	"cmp"
	"slices"
	"sort"

	"callboard/protocol"
)

// remembered is a delete that was accepted and is not sealed for all that it is about.
type remembered struct {
	number  uint64 // as accepted, from 1
	ordinal uint64
	names   []string // in order; none: all
	query   *Query
	prims   []uint64
	columns map[*column]struct{} // that have a capture of it
	waits   string               // the name whose floor it waits for, in deletes.waiting
	indexed bool                 // in deletes.about
	gone    bool
	asked   uint64 // the last search that met it
}

// rememberedMax bounds the prims of the deletes that are remembered: the oldest ones
// are forgotten beyond it, and reach then only what is there.
const rememberedMax = 1 << 20

// deletes are those that are remembered. However many there are, a write looks at those
// of its own prims, each once for a column, and a seal at those that its floors pass.
type deletes struct {
	list    []*remembered            // as accepted; the first one is not gone
	gone    int                      // of list
	prims   int                      // of those that are not gone
	waiting map[string][]*remembered // for the floor of a name, "" the standard one; by ordinal, then as they came
	about   byPrim[*remembered]      // of those before the last write that asked
	number  uint64                   // of the last one
	asks    uint64                   // searches until now
}

func (s *Store) remember(r *remembered) {
	d := &s.deletes
	d.number++
	r.number = d.number
	d.list = append(d.list, r)
	d.prims += len(r.prims)
	slices.Sort(r.names)
	if len(r.names) > 0 {
		d.wait(r, r.names[0])
	} else {
		d.wait(r, "")
	}
	for d.prims > rememberedMax && len(d.list) > 1 {
		oldest := d.list[0]
		d.waitNoMore(oldest)
		d.forget([]*remembered{oldest})
	}
}

func (d *deletes) wait(r *remembered, name string) {
	if d.waiting == nil {
		d.waiting = map[string][]*remembered{}
	}
	list := d.waiting[name]
	d.waiting[name], r.waits = slices.Insert(list, waitingThrough(list, r.ordinal), r), name
}

// waitingThrough is how many of a list that waits are at or below an ordinal.
func waitingThrough(list []*remembered, ordinal uint64) int {
	return sort.Search(len(list), func(i int) bool { return list[i].ordinal > ordinal })
}

func (d *deletes) waitNoMore(r *remembered) {
	list := d.waiting[r.waits]
	at := sort.Search(len(list), func(i int) bool { return list[i].ordinal >= r.ordinal })
	for list[at] != r {
		at++
	}
	switch {
	case len(list) == 1:
		delete(d.waiting, r.waits)
	case at == 0:
		d.waiting[r.waits] = list[1:]
	default:
		d.waiting[r.waits] = slices.Delete(list, at, at+1)
	}
}

// index finds the deletes that came since the last time by their prims.
func (d *deletes) index() {
	first := len(d.list)
	for first > 0 && !d.list[first-1].indexed {
		first--
	}
	for _, r := range d.list[first:] {
		if r.indexed = true; r.gone {
			continue
		}
		if d.about == nil {
			d.about = make(byPrim[*remembered], len(r.prims))
		}
		d.about.add(r.prims, r, func(r *remembered) uint64 { return r.number })
	}
}

// reaching are the remembered deletes that a write of prims must meet in its column
// when ordinals above after are sealed, and that the column, nil for a new one, does
// not have yet. some: there are deletes of these prims.
func (s *Store) reaching(c *column, name string, prims []uint64, after uint64) (list []*remembered, some bool) {
	d := &s.deletes
	if len(d.list) == 0 {
		return nil, false
	}
	d.index()
	d.asks++
	for _, prim := range prims {
		p := d.about[prim]
		if p == nil {
			continue
		}
		some = true
		met := uint64(0)
		if c != nil {
			met = p.met[c.index]
		}
		for i := len(p.all) - 1; i >= 0 && p.all[i].number > met; i-- {
			r := p.all[i]
			if r.asked == d.asks {
				continue
			}
			r.asked = d.asks
			if r.ordinal > after && r.of(name) && !r.in(c) {
				list = append(list, r)
			}
		}
	}
	slices.SortFunc(list, func(a, b *remembered) int { return cmp.Compare(a.number, b.number) })
	return list, some
}

func (r *remembered) of(name string) bool {
	_, named := slices.BinarySearch(r.names, name)
	return named || len(r.names) == 0
}

func (r *remembered) in(c *column) bool {
	_, ok := r.columns[c]
	return ok
}

// met notes that a column has all deletes of prims that are known and must reach it:
// what is accepted later finds these prims there.
func (d *deletes) met(c *column, prims []uint64) {
	for _, prim := range prims {
		p := d.about[prim]
		if p == nil {
			continue
		}
		if p.met == nil {
			p.met = map[uint32]uint64{}
		}
		p.met[c.index] = p.all[len(p.all)-1].number
	}
}

// unmeet is for a seal that fails: what it covered was past for writes that came since.
func (d *deletes) unmeet() {
	for _, p := range d.about {
		p.met = nil
	}
}

// forgetDeletes forgets those below whose ordinals nobody can write any more, now that a
// seal has raised its floors.
func (s *Store) forgetDeletes(z *sealing) {
	d := &s.deletes
	if len(d.list) == 0 {
		return
	}
	var over []*remembered
	if z.scope == protocol.ScopeAll {
		for name := range d.waiting {
			over = s.passDeletes(name, over)
		}
	} else {
		for _, id := range z.ids {
			name, _ := s.Text(id)
			over = s.passDeletes(name, over)
		}
	}
	d.forget(over)
}

// passDeletes lets those that waited for a name's floor wait for another of their names,
// or else appends them to over.
func (s *Store) passDeletes(name string, over []*remembered) []*remembered {
	d, floor := &s.deletes, s.floors.standard
	if name != "" {
		floor = s.floorOf(name)
	}
	list := d.waiting[name]
	n := waitingThrough(list, floor)
	if d.waiting[name] = list[n:]; n == len(list) {
		delete(d.waiting, name)
	}
	for _, r := range list[:n] {
		if next := slices.IndexFunc(r.names, func(name string) bool { return s.floorOf(name) < r.ordinal }); next >= 0 {
			d.wait(r, r.names[next])
		} else {
			over = append(over, r)
		}
	}
	return over
}

// forget forgets deletes that wait no more.
func (d *deletes) forget(over []*remembered) {
	for _, r := range over {
		r.gone = true
		d.gone++
		d.prims -= len(r.prims)
	}
	for len(d.list) > 0 && d.list[0].gone {
		d.list[0], d.list = nil, d.list[1:]
		d.gone--
	}
	if len(d.list) == 0 {
		*d = deletes{number: d.number, asks: d.asks}
		return
	}
	if 2*d.gone > len(d.list) {
		d.list, d.gone = slices.DeleteFunc(d.list, func(r *remembered) bool { return r.gone }), 0
	}
	for _, r := range over {
		if r.indexed {
			d.about.remove(r.prims, r)
		}
	}
}
