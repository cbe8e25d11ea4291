package callboard

import (
	"fmt"
	"sync"

	"callboard/protocol"
)

// DeleteAttributes takes attributes from the query's prims at an ordinal; without names
// it takes all that they carry, so that the prims are gone (behaviour 147, 148). A
// delete is ordered like a write and shows with the seal of its ordinal: newest reads
// leave the prims out, reads of changes have a group with IsDelete, and what readers
// hold stays as it is. Afterwards another element type is accepted.
//
// A prim that does not carry an attribute, and an attribute that nobody wrote, are no
// errors. Errors at once: INVALID_ARGUMENT, FLOOR_VIOLATION, NOT_SUPPORTED for a reserved
// name; the broker's: FLOOR_VIOLATION of an attribute that is not named, QUEUE_FULL.
func (s *Stage) DeleteAttributes(q *Query, names []string, ordinal uint64) (*Op, error) {
	c := s.client
	if err := c.enter(); err != nil {
		return nil, err
	}
	defer c.leave()
	query, err := q.use(c)
	if err != nil {
		return nil, err
	}
	if err = c.mayWrite(); err == nil && ordinal == 0 {
		err = fail(protocol.StatusFloorViolation, "a delete at ordinal 0 is at or below every write floor; delete above it")
	}
	for _, name := range names {
		if err == nil {
			err = checkName(name)
		}
		if err == nil {
			err = c.checkOrdinal(name, ordinal)
		}
	}
	if err != nil {
		return nil, refused(err)
	}
	what := "deleting prims"
	if len(names) > 0 {
		what = fmt.Sprintf("deleting %q", names)
	}
	op, err := c.submit(request{what: what, opcode: protocol.OpDelete, query: query, ordinal: ordinal, size: stringListBytes(names), names: names,
		fill: func(dst []byte) error { putStringList(dst, names); return nil }})
	if err == nil {
		c.deletes.note(names, ordinal)
	}
	return op, refused(err)
}

// deletes are the highest ordinals of this client's deletes by name. Until they are
// sealed, sealed state does not tell what a write may be.
type deletes struct {
	mutex sync.Mutex
	names map[string]uint64 // "": of prims
}

func (d *deletes) note(names []string, ordinal uint64) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if d.names == nil {
		d.names = map[string]uint64{}
	}
	if len(names) == 0 {
		names = []string{""}
	}
	for _, name := range names {
		d.names[name] = max(d.names[name], ordinal)
	}
}

// forget: a restart of the broker leaves nothing unsealed.
func (d *deletes) forget() {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	clear(d.names)
}

func (d *deletes) any() bool {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	return len(d.names) > 0
}

// unsealed tells whether a delete of the name may wait for its seal.
func (d *deletes) unsealed(c *client, name string) bool {
	d.mutex.Lock()
	highest := max(d.names[name], d.names[""])
	d.mutex.Unlock()
	if highest == 0 {
		return false
	}
	floor, err := c.reader.WriteFloor(name)
	return err != nil || floor < highest
}
