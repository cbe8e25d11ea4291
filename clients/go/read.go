package callboard

import (
	"context"
	"iter"
	"runtime"
	"strings"

	"callboard/protocol"
	"callboard/snapshot"
)

// ReadOptions narrow a read in time. Both are not part of this version: leave them
// nil.
type ReadOptions struct {
	// At reads as of an ordinal, Since what changed after one.
	At, Since *uint64
}

// Read is sealed data of some attributes at one epoch. Give back with Release; the
// groups got from it are independent of it.
type Read struct {
	hold   *hold
	query  *Query
	floors snapshot.Floors
	parts  []part
}

// part is one group before somebody asks for it.
type part struct {
	name    string
	version snapshot.Version
	rows    *snapshot.RowMap
	floor   uint64
}

// ReadAttributes looks at the newest sealed state of attributes, all at one epoch. An
// attribute that no prim of the query carries gives no group; one never sealed
// neither: that is no error (behaviour 125, protocols O5). It asks the broker only
// for memory that this process meets for the first time.
//
// Errors: LIMIT when this client pins too much already; it names the oldest views.
func (s *Stage) ReadAttributes(ctx context.Context, q *Query, names []string, o ReadOptions) (*Read, error) {
	c := s.client
	if err := c.enter(); err != nil {
		return nil, err
	}
	defer c.leave()
	if ctx.Err() != nil {
		return nil, gaveUp(ctx, "reading")
	}
	if _, err := q.use(c); err != nil {
		return nil, err
	}
	if o.At != nil || o.Since != nil {
		return nil, fail(protocol.StatusNotSupported, "reads as of an ordinal and of changes since one are not part of this version; read the newest state")
	}
	columns, err := c.columns(names)
	if err != nil {
		return nil, err
	}
	h, err := c.pin(false, columns)
	if err != nil {
		return nil, err
	}
	return newRead(h, q, columns, func(i int) (snapshot.Version, error) { return *h.view.pinned.Version(i), nil })
}

// columns finds all columns of all names.
func (c *client) columns(names []string) ([]*snapshot.Column, error) {
	var all []*snapshot.Column
	for _, name := range names {
		if strings.HasPrefix(name, "@") {
			return nil, fail(protocol.StatusNotSupported, "attribute %q: reserved names are not part of this version", name)
		}
		if err := checkName(name); err != nil {
			return nil, err
		}
		columns, err := c.reader.Columns(name)
		if err != nil {
			return nil, asError(err)
		}
		all = append(all, columns...)
	}
	return all, nil
}

// newRead maps a query onto versions. It owns h from here on.
func newRead(h *hold, q *Query, columns []*snapshot.Column, version func(i int) (snapshot.Version, error)) (*Read, error) {
	r := &Read{hold: h, query: q}
	var err error
	if r.floors, err = h.view.pinned.Floors(); err != nil {
		h.release()
		return nil, asError(err)
	}
	for i, column := range columns {
		v, err := version(i)
		var rows *snapshot.RowMap
		if err == nil && v.Column != nil {
			rows, err = h.view.client.reader.Rows(q.prims, &v)
		}
		if err != nil {
			h.release()
			return nil, asError(err)
		}
		if rows != nil && len(rows.Prims) > 0 {
			r.parts = append(r.parts, part{name: column.Name, version: v, rows: rows, floor: r.floors.Of(column.NameID)})
		}
	}
	runtime.AddCleanup(r, func(h *hold) {
		if h.release() {
			h.view.client.forgot("a read")
		}
	}, h)
	return r, nil
}

// Epoch is the epoch that the read is of; 0 when nothing was ever sealed.
func (r *Read) Epoch() uint64 { return r.hold.view.pinned.Epoch() }

// Groups gives a group for each attribute that prims of the query carry. Each is the
// caller's to Release, on its own and in any order. It may be ranged over again.
func (r *Read) Groups() iter.Seq2[*Group, error] {
	return func(yield func(*Group, error) bool) {
		for i := range r.parts {
			g, err := newGroup(r.hold, &r.parts[i])
			if !yield(g, err) || err != nil {
				return
			}
		}
	}
}

// Group gives the first group of an attribute: NOT_FOUND when no prim of the query
// carries it. It is the caller's to Release.
func (r *Read) Group(name string) (*Group, error) {
	for i := range r.parts {
		if r.parts[i].name == name {
			return newGroup(r.hold, &r.parts[i])
		}
	}
	return nil, fail(protocol.StatusNotFound, "attribute %q: no prim of the query carries it at epoch %d", name, r.Epoch())
}

// Release gives the read back; its groups stay. Later calls do nothing.
func (r *Read) Release() { r.hold.release() }
