package modelcheck

import "hash/maphash"

// store is the set of states found so far, in the order they were found, each with the number of the state it was
// found from. A map would hold every state twice (key and queue); here the hash table holds numbers only.
type store[S comparable] struct {
	chunks [][]found[S] // chunkStates each, never moved: pointers into them stay good
	count  int
	table  []uint32 // open addressing; 0 is empty, else the state's number + 1
	seed   maphash.Seed
}

type found[S comparable] struct {
	state S
	from  uint32
}

const chunkStates = 1 << 12

func newStore[S comparable]() *store[S] {
	return &store[S]{table: make([]uint32, 1<<12), seed: maphash.MakeSeed()}
}

func (st *store[S]) at(i int) *found[S] { return &st.chunks[i/chunkStates][i%chunkStates] }
func (st *store[S]) state(i int) *S     { return &st.at(i).state }
func (st *store[S]) parent(i int) int   { return int(st.at(i).from) }
func (st *store[S]) slot(s S) (slot int) {
	return int(maphash.Comparable(st.seed, s)) & (len(st.table) - 1)
}

// add puts s in, unless it is there already.
func (st *store[S]) add(s S, from int) {
	slot := st.slot(s)
	for st.table[slot] != 0 {
		if *st.state(int(st.table[slot] - 1)) == s {
			return
		}
		slot = (slot + 1) & (len(st.table) - 1)
	}
	if st.count%chunkStates == 0 {
		st.chunks = append(st.chunks, make([]found[S], chunkStates))
	}
	*st.at(st.count) = found[S]{s, uint32(from)}
	st.count++
	st.table[slot] = uint32(st.count)
	if st.count*4 > len(st.table)*3 {
		st.grow()
	}
}

func (st *store[S]) grow() {
	st.table = make([]uint32, 2*len(st.table))
	for i := range st.count {
		slot := st.slot(*st.state(i))
		for st.table[slot] != 0 {
			slot = (slot + 1) & (len(st.table) - 1)
		}
		st.table[slot] = uint32(i + 1)
	}
}
