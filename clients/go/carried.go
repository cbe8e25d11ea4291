package callboard

import (
	"callboard/protocol"
	"callboard/snapshot"
	"callboard/tensor"
)

// carried is the first of columns that prims of q carry in sealed state; nil: none.
func (c *client) carried(q *Query, columns []*snapshot.Column) (*snapshot.Column, uint64, error) {
	for _, column := range columns {
		var p snapshot.Pinned
		if err := c.reader.Pin(&p, column); err != nil {
			return nil, 0, asError(err)
		}
		var rows *snapshot.RowMap
		var err error
		if v := p.Version(0); v.Column != nil {
			rows, err = c.reader.Rows(q.list(), v)
		}
		p.Release()
		if err != nil {
			return nil, 0, asError(err)
		}
		if rows != nil && len(rows.Prims) > 0 {
			return column, rows.Prims[0], nil
		}
	}
	return nil, 0, nil
}

// fit finds the column of a name that takes what try makes of its schema. Where none
// does, try gets nil and makes the schema of a new one (behaviour 46), unless the
// query's prims carry the name already: then what differs is the error.
func (c *client) fit(q *Query, name string, try func(stored *tensor.Schema) error) error {
	columns, err := c.reader.Columns(name)
	if err != nil {
		return asError(err)
	}
	var match *tensor.Schema
	var first error
	var others []*snapshot.Column
	for _, column := range columns {
		err := column.Unreadable
		if err == nil {
			err = try(&column.Schema)
		}
		if err == nil && match == nil {
			match = &column.Schema
			continue
		}
		others = append(others, column)
		if first == nil && err != nil {
			first = err
		}
	}
	if len(others) > 0 && !c.deletes.unsealed(c, name) {
		column, _, err := c.carried(q, others)
		switch {
		case err != nil:
			return err
		case column != nil && column.Unreadable == nil:
			if err := try(&column.Schema); err != nil {
				return err
			}
		case match == nil && (column != nil || q.Len() == 0 && !q.running()):
			return first
		}
	}
	if match != nil && len(others) == 0 {
		return nil
	}
	return try(match)
}

// checkInsert refuses an INSERT of prims that exist in sealed state (behaviour 94). What
// is not sealed yet only the broker knows.
func (c *client) checkInsert(q *Query) error {
	columns, err := c.reader.AllColumns()
	if err != nil || c.deletes.any() {
		return asError(err)
	}
	column, prim, err := c.carried(q, columns)
	if err != nil || column == nil {
		return nil // the broker will say
	}
	path, err := c.reader.Text(prim)
	if err != nil {
		return asError(err)
	}
	return fail(protocol.StatusAlreadyExists, "prim %s exists: it carries attribute %q; INSERT is for prims that carry none, use UPSERT", path, column.Name)
}
