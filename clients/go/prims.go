package callboard

import (
	"slices"

	"callboard/protocol"
)

// PrimsOf are the path ids of all prims that carry an attribute at this epoch, in the
// order of its rows: for tools that do not know the stage; others make a Query of the
// prims they mean. Resolve gives their paths. NOT_FOUND when nobody wrote or declared
// the name; one that was never sealed has none.
func (s *Snapshot) PrimsOf(name string) ([]uint64, error) {
	h, err := s.hold.again()
	if err != nil {
		return nil, err
	}
	defer h.release()
	c := h.view.client
	columns, err := c.columns([]string{name})
	if err != nil {
		return nil, err
	}
	if len(columns) == 0 {
		return nil, fail(protocol.StatusNotFound, "there is no attribute %q on this stage", name)
	}
	var prims []uint64
	for _, column := range columns {
		v, err := h.view.pinned.Find(column)
		if err != nil {
			return nil, asError(err)
		}
		if v.Column == nil {
			continue
		}
		rows, err := c.reader.Prims(&v)
		if err != nil {
			return nil, asError(err)
		}
		prims = append(prims, slices.DeleteFunc(rows, func(id uint64) bool { return id == 0 })...)
	}
	return prims, nil
}

// Frontier is the ordinal after which all changes of an attribute are known exactly: a
// read since an earlier one is OUT_OF_RANGE (behaviour 119). It rises when more was
// deleted than is kept, which is at least 65 536 deletes.
func (s *Stage) Frontier(name string) (uint64, error) {
	c := s.client
	if err := c.enter(); err != nil {
		return 0, err
	}
	defer c.leave()
	columns, err := c.columns([]string{name})
	frontier := uint64(0)
	for _, column := range columns {
		frontier = max(frontier, column.Frontier())
	}
	return frontier, err
}
