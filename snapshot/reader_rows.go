package snapshot

import (
	"sync"
	"sync/atomic"

	"callboard/protocol"
)

// PrimList is an ordered list of prims as a reader asks for them, with the row maps
// that it has met. It may be used by any number of goroutines.
type PrimList struct {
	ids   []uint64
	last  atomic.Pointer[RowMap]
	mutex sync.Mutex
	maps  map[rowMapKey]*RowMap
	first map[uint64]uint32 // the first place of each prim, made when somebody asks
}

// rowMapKey names a row map: a generation fixes which prim has which row, and the
// rows are those that the version has of it.
type rowMapKey struct {
	generation, rows uint64
}

// rowMapsMax bounds the maps kept: readers meet the newest generation of each
// attribute, not all that ever were.
const rowMapsMax = 64

// RowMap says where the prims of a list lie in versions of one layout generation.
// It does not change.
type RowMap struct {
	// Prims are the path ids of the prims that have a row, in the list's order.
	Prims []uint64
	// Rows are their rows, one for each of Prims.
	Rows []uint32
	// Elements are their places in the list.
	Elements []uint32
	// Dense: the rows are First, First+1 … in order; no index map is needed.
	Dense bool
	First uint32

	key rowMapKey
}

// NewPrimList makes a list of path ids, duplicates allowed. The slice is kept.
func NewPrimList(ids []uint64) *PrimList {
	return &PrimList{ids: ids, maps: map[rowMapKey]*RowMap{}}
}

// IDs are the path ids. Do not change them.
func (l *PrimList) IDs() []uint64 { return l.ids }

// index gives the first place of each prim.
func (l *PrimList) index() map[uint64]uint32 {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.first == nil {
		l.first = make(map[uint64]uint32, len(l.ids))
		for i, id := range l.ids {
			if _, ok := l.first[id]; !ok {
				l.first[id] = uint32(i)
			}
		}
	}
	return l.first
}

// Rows gives the rows of the list's prims in v, which must be pinned (rule L2). A
// warm call takes no memory.
func (r *Reader) Rows(l *PrimList, v *Version) (*RowMap, error) {
	key := rowMapKey{v.LayoutGeneration, v.Rows}
	if m := l.last.Load(); m != nil && m.key == key {
		return m, nil
	}
	l.mutex.Lock()
	defer l.mutex.Unlock()
	m := l.maps[key]
	if m == nil {
		var err error
		if m, err = r.readRows(l, v, key); err != nil {
			return nil, err
		}
		if len(l.maps) >= rowMapsMax {
			clear(l.maps)
		}
		l.maps[key] = m
	}
	l.last.Store(m)
	return m, nil
}

// Prims gives the path id of every row of v, 0 for a row that is not there.
func (r *Reader) Prims(v *Version) ([]uint64, error) {
	rows, err := r.layoutRows(v)
	if err != nil {
		return nil, err
	}
	prims := make([]uint64, len(rows))
	for i := range rows {
		if present(&rows[i], v.Birth) {
			prims[i] = rows[i].PathID
		}
	}
	return prims, nil
}

// readRows reads a layout. Its rows below v.Rows do not change while v is pinned.
func (r *Reader) readRows(l *PrimList, v *Version, key rowMapKey) (*RowMap, error) {
	rows, err := r.layoutRows(v)
	if err != nil {
		return nil, err
	}
	m := &RowMap{key: key}
	add := func(element int, row uint32) {
		m.Prims, m.Rows, m.Elements = append(m.Prims, l.ids[element]), append(m.Rows, row), append(m.Elements, uint32(element))
	}
	if sameOrder(l.ids, rows, v.Birth) {
		for i := range rows {
			add(i, uint32(i))
		}
	} else {
		byPath := make(map[uint64]uint32, len(rows))
		for i := range rows {
			if present(&rows[i], v.Birth) {
				byPath[rows[i].PathID] = uint32(i)
			}
		}
		for i, id := range l.ids {
			if row, ok := byPath[id]; ok {
				add(i, row)
			}
		}
	}
	m.findRun()
	return m, nil
}

// findRun tells whether the rows are a run.
func (m *RowMap) findRun() {
	m.Dense = true
	for i, row := range m.Rows {
		m.First = m.Rows[0]
		if row != m.First+uint32(i) {
			m.Dense = false
			return
		}
	}
}

// present tells whether a row is there at an epoch. That of the version's birth
// will do for all its life: membership changes only with the generation.
func present(row *protocol.LayoutRow, epoch uint64) bool {
	return atomic.LoadUint64(&row.Birth) <= epoch && atomic.LoadUint64(&row.Death) > epoch
}

func sameOrder(ids []uint64, rows []protocol.LayoutRow, epoch uint64) bool {
	if len(ids) != len(rows) {
		return false
	}
	for i := range rows {
		if rows[i].PathID != ids[i] || !present(&rows[i], epoch) {
			return false
		}
	}
	return true
}

// layoutRows are the rows of v's layout that are of v.
func (r *Reader) layoutRows(v *Version) ([]protocol.LayoutRow, error) {
	if v.Rows == 0 {
		return nil, nil
	}
	head, err := view[protocol.LayoutHeader](r, v.layout, "a layout")
	if err != nil {
		return nil, err
	}
	if capacity := head.Capacity; v.Rows > capacity || v.Rows > 1<<32-1 {
		return nil, corrupt("attribute %q: a version has %d rows, its layout %d", v.Column.Name, v.Rows, capacity)
	}
	place := protocol.Ref{Segment: v.layout.Segment, OffsetBytes: v.layout.OffsetBytes + sizeOf[protocol.LayoutHeader]()}
	return views[protocol.LayoutRow](r, place, v.Rows, "a layout's rows")
}
