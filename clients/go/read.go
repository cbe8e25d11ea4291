package callboard

import (
	"context"
	"iter"
	"runtime"
	"slices"

	"callboard/protocol"
	"callboard/snapshot"
	"callboard/tensor"
)

// ReadOptions narrow a read in time. Ordinal makes the pointers.
type ReadOptions struct {
	// At reads the state as of an ordinal, exactly: never a newer one. It must not be
	// above the attributes' write floors.
	At *uint64
	// Since leaves only what changed after an ordinal, deletes included: groups of the
	// rows that were written, and groups with IsDelete of prims that are gone. 0 is a
	// legal start.
	Since *uint64
	// Common reads as of the highest ordinal through which all of the attributes are
	// sealed, which Read.Ordinal tells: attributes of producers that are not equally
	// far, at one tick. Those that nobody wrote or sealed do not count.
	Common bool
	// StampNs reads of each attribute what was sealed last with a stamp of at most so
	// many ns: attributes that have no ordinals in common, at one time. Group.StampNs
	// tells what was found; one that was sealed first after it gives no group. Stamps are
	// those of the seals (SealOptions.StampNs, or the broker's clock) and are expected to rise.
	StampNs *uint64
	// Nearest, with StampNs: what was sealed after that where its stamp is nearer.
	Nearest bool
	// Device is where the groups' rows are wanted: CPU for those of an attribute in device
	// memory on the host. The zero Device is where each attribute lies, and costs nothing;
	// elsewhere the broker makes a copy once for all who ask (rule C5). See Group.On.
	Device Device
}

// Ordinal is a pointer to n, for ReadOptions.
func Ordinal(n uint64) *uint64 { return &n }

// moment is which state is read; nil: the newest.
func (o *ReadOptions) moment() (*snapshot.Moment, error) {
	var m snapshot.Moment
	n := 0
	if o.At != nil {
		m, n = snapshot.AsOf(*o.At), n+1
	}
	if o.Common {
		m, n = snapshot.Common(), n+1
	}
	if o.StampNs != nil {
		m, n = snapshot.AtStamp(*o.StampNs, o.Nearest), n+1
	}
	switch {
	case n > 1:
		return nil, fail(protocol.StatusInvalidArgument, "of At, Common and StampNs %d are given; a read is as of one of them", n)
	case o.Nearest && o.StampNs == nil:
		return nil, fail(protocol.StatusInvalidArgument, "Nearest is given without StampNs, the stamp to be near to")
	case o.Since != nil && o.StampNs != nil:
		return nil, fail(protocol.StatusInvalidArgument, "Since, an ordinal, together with a stamp: read what changed up to an ordinal, or the state at a stamp")
	case o.Since != nil && o.At != nil && *o.Since > *o.At:
		return nil, sinceAbove(*o.Since, *o.At)
	case n == 0:
		return nil, nil
	}
	return &m, nil
}

func sinceAbove(since, end uint64) error {
	return fail(protocol.StatusInvalidArgument, "since is %d, above the end %d; give an ordinal at or below it", since, end)
}

// Read is sealed data of some attributes at one epoch. Give back with Release; the
// groups got from it are independent of it.
type Read struct {
	hold   *hold
	query  *Query
	floors snapshot.Floors
	parts  []part
	later  *later // of a query that was running: then this is all there is
}

// part is one group before somebody asks for it.
type part struct {
	name    string
	version snapshot.Version
	place   place            // of the version in device memory; number 0: on the host
	schema  *tensor.Schema   // of a mirror; nil: the column's
	rows    *snapshot.RowMap // of what is shown of the version
	floor   uint64
	ragged  [][]byte             // of kind array: the row of each prim
	deleted []snapshot.Tombstone // not nil: the group is of deletes, and version has a column alone
}

// ReadAttributes looks at the newest sealed state of attributes, all at one epoch, or
// as of an ordinal, or at what changed. An attribute that no prim of the query carries
// gives no group; one never sealed neither: that is no error (behaviour 125, rule O5).
// An attribute whose prims have several schemas gives a group for each (behaviour 46).
// "@path" gives the path ids of all prims of the query (behaviour 271). A query that is
// still running is waited for, with ctx, when the first group is fetched: its errors
// come there (behaviour 140).
// It asks the broker only for memory that this process meets for the first time.
//
// Errors: LIMIT when this client pins too much already; it names the oldest views.
// With At: FLOOR_VIOLATION above an attribute's write floor. With At, Common or StampNs:
// OUT_OF_RANGE where that state is not retained: an attribute that runs ahead of others
// needs as many versions as it is ahead (DeclareOptions.Retain). With Since:
// INVALID_ARGUMENT when it is above the end or goes with a stamp, OUT_OF_RANGE
// when deletes after it are not all known any more.
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
	moment, err := o.moment()
	if err != nil {
		return nil, err
	}
	if q.running() {
		return laterRead(ctx, q, func() (*Read, error) { return s.ReadAttributes(ctx, q, names, o) }), nil
	}
	names, paths := withoutPath(names)
	for _, name := range names {
		if err := checkName(name); err != nil {
			return nil, err
		}
	}
	if o.At != nil { // before the pin: who is born meanwhile is looked at there
		if err := c.unborn(names, *o.At); err != nil {
			return nil, err
		}
	}
	h, err := c.pin(pinColumns{names: names, at: moment})
	if err != nil {
		return nil, err
	}
	if o.Common {
		o.At = Ordinal(h.view.pinned.Ordinal())
		if o.Since != nil && *o.Since > *o.At {
			h.release()
			return nil, sinceAbove(*o.Since, *o.At)
		}
	}
	r, err := newRead(h, q, h.view.pinned.Columns(), o.window(paths), func(i int) (snapshot.Version, error) { return *h.view.pinned.Version(i), nil })
	if err != nil || o.Device == (Device{}) {
		return r, err
	}
	for i := range r.parts {
		if err := r.hold.elsewhere(ctx, &r.parts[i], o.Device); err != nil {
			r.Release()
			return nil, err
		}
	}
	return r, nil
}

// unborn refuses an end above the floor of names that nobody wrote yet.
func (c *client) unborn(names []string, at uint64) error {
	for _, name := range names {
		columns, err := c.reader.Columns(name)
		if err != nil || len(columns) > 0 {
			continue // they are looked at when they are pinned
		}
		floor, err := c.reader.WriteFloor(name)
		if err != nil {
			return asError(err)
		}
		if at > floor {
			return fail(protocol.StatusFloorViolation, "attribute %q: a read as of ordinal %d is above the write floor %d; seal it first, or read the newest state", name, at, floor)
		}
	}
	return nil
}

// changes is what part of the state a read shows.
type changes struct {
	delta bool                                 // only what changed
	since func(column *snapshot.Column) uint64 // after which ordinal
	end   uint64
	fresh bool // nothing was read before: deletes tell nothing
	paths bool // @path was asked for as well
}

func (o *ReadOptions) window(paths bool) changes {
	w := changes{delta: o.Since != nil, end: protocol.Infinite, paths: paths}
	if o.At != nil {
		w.end = *o.At
	}
	if o.Since != nil {
		since := *o.Since
		w.since = func(*snapshot.Column) uint64 { return since }
	}
	return w
}

// columns finds all columns of all names.
func (c *client) columns(names []string) ([]*snapshot.Column, error) {
	var all []*snapshot.Column
	for _, name := range names {
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
func newRead(h *hold, q *Query, columns []*snapshot.Column, w changes, version func(i int) (snapshot.Version, error)) (*Read, error) {
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
			rows, err = h.view.client.reader.Rows(q.list(), &v)
		}
		if err != nil {
			h.release()
			return nil, asError(err)
		}
		if rows == nil {
			continue
		}
		p := part{name: column.Name, version: v, place: h.view.client.placeOf(&v), rows: rows, floor: r.floors.Of(column.NameID)}
		if w.delta {
			if r.parts, err = r.changed(h.view.client, p, &w); err != nil {
				h.release()
				return nil, asError(err)
			}
		} else if len(rows.Prims) > 0 {
			r.parts = append(r.parts, p)
		}
	}
	r.parts = withoutReturned(r.parts)
	for i := range r.parts {
		if p := &r.parts[i]; p.version.Column.IsArray() && p.deleted == nil {
			if p.ragged, err = h.view.pinned.Ragged(&p.version, p.rows); err != nil {
				h.release()
				return nil, asError(err)
			}
		}
	}
	r.addPaths(&w)
	runtime.AddCleanup(r, func(h *hold) {
		if h.release() {
			h.view.client.forgot("a read")
		}
	}, h)
	return r, nil
}

// changed gives what changed of a part: a group of rows, and one of deletes that holds
// all rows of its column until withoutReturned has seen them.
func (r *Read) changed(c *client, p part, w *changes) ([]part, error) {
	parts, since, all := r.parts, w.since(p.version.Column), p.rows
	if p.rows = all.Changed(&p.version, since); len(p.rows.Prims) > 0 {
		parts = append(parts, p)
	}
	if w.fresh {
		return parts, nil
	}
	deleted, err := c.reader.Tombstones(r.query.list(), p.version.Column, max(r.Epoch(), p.version.Birth), since, w.end)
	if err == nil && (len(deleted) > 0 || len(all.Prims) > 0) {
		p.rows, p.deleted = all, append([]snapshot.Tombstone{}, deleted...)
		parts = append(parts, p)
	}
	return parts, err
}

// withoutReturned leaves of groups of deletes the prims that do not carry the attribute
// now, in any of its schemas, and puts these groups at the end.
func withoutReturned(parts []part) []part {
	if !slices.ContainsFunc(parts, func(p part) bool { return p.deleted != nil }) {
		return parts
	}
	var kept, deletes []part
	for _, p := range parts {
		if p.deleted == nil {
			kept = append(kept, p)
			continue
		}
		gone := slices.DeleteFunc(slices.Clone(p.deleted), func(t snapshot.Tombstone) bool {
			return slices.ContainsFunc(parts, func(other part) bool {
				return other.deleted != nil && other.name == p.name && other.rows.Has(t.Element)
			})
		})
		if len(gone) > 0 {
			p.deleted = gone
			deletes = append(deletes, p)
		}
	}
	return append(kept, deletes...)
}

// Epoch is the epoch that the read is of; 0 when nothing was ever sealed.
func (r *Read) Epoch() uint64 {
	r, err := r.opened()
	if err != nil {
		return 0
	}
	return r.hold.view.pinned.Epoch()
}

// Ordinal is the ordinal that the read is as of, At or the common one; 0: it is of the newest state or of a stamp.
func (r *Read) Ordinal() uint64 {
	r, err := r.opened()
	if err != nil {
		return 0
	}
	return r.hold.view.pinned.Ordinal()
}

// Groups gives a group for each attribute that prims of the query carry. Each is the
// caller's to Release, on its own and in any order. It may be ranged over again.
func (r *Read) Groups() iter.Seq2[*Group, error] {
	return func(yield func(*Group, error) bool) {
		r, err := r.opened()
		if err != nil {
			yield(nil, err)
			return
		}
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
	r, err := r.opened()
	if err != nil {
		return nil, err
	}
	for i := range r.parts {
		if r.parts[i].name == name {
			return newGroup(r.hold, &r.parts[i])
		}
	}
	return nil, fail(protocol.StatusNotFound, "attribute %q: no prim of the query carries it at epoch %d", name, r.Epoch())
}

// Release gives the read back; its groups stay. Later calls do nothing.
func (r *Read) Release() {
	if r.later != nil {
		r.later.release()
		return
	}
	r.hold.release()
}
