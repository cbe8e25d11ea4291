package snapshot

import (
	"maps"
	"slices"
	"sort"
)

// byPrim finds captures or deletes by the prims that they are about.
type byPrim[T comparable] map[uint64]*primList[T]

// primList is all that is about a prim, or about several prims that only the one thing
// is about.
type primList[T comparable] struct {
	all []T
	met map[uint32]uint64 // of deletes, by column: the number up to which what must reach it has
}

// add adds what to the lists of prims, behind all that is not above it in order.
func (x byPrim[T]) add(prims []uint64, what T, order func(T) uint64) {
	alone := &primList[T]{all: []T{what}}
	for _, prim := range prims {
		p := x[prim]
		if p == nil {
			x[prim] = alone
			continue
		}
		at := len(p.all)
		if order(p.all[at-1]) > order(what) {
			at = sort.Search(at, func(i int) bool { return order(p.all[i]) > order(what) })
		}
		switch {
		case at > 0 && p.all[at-1] == what: // a prim may come twice
		case len(p.all) == 1:
			x[prim] = &primList[T]{slices.Insert(slices.Clone(p.all), at, what), maps.Clone(p.met)}
		default:
			p.all = slices.Insert(p.all, at, what)
		}
	}
}

// remove takes what from the lists of prims where it is there.
func (x byPrim[T]) remove(prims []uint64, what T) {
	for _, prim := range prims {
		p := x[prim]
		if p == nil {
			continue
		}
		switch at := slices.Index(p.all, what); {
		case at < 0:
		case len(p.all) == 1:
			delete(x, prim)
		case at == 0:
			p.all = p.all[1:]
		default:
			p.all = slices.Delete(p.all, at, at+1)
		}
	}
}
