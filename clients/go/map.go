package callboard

import (
	"context"
	"iter"
	"runtime"

	"callboard/protocol"
	"callboard/tensor"
)

// Init says what mapped memory holds at first.
type Init uint32

// What a mapped buffer holds at first (behaviour 180).
const (
	// InitNone: unspecified bytes; everything that is committed must be written.
	InitNone Init = protocol.InitNone
	// InitZero: zeros.
	InitZero Init = protocol.InitZero
	// InitCurrent: the sealed values.
	InitCurrent Init = protocol.InitCurrent
)

// MapOptions say what is mapped.
type MapOptions struct {
	// Ordinal is the application's key; it must lie above the attribute's write floor.
	Ordinal uint64
	// DType is the element type; the zero value takes that of an attribute that exists.
	DType DType
	// RowShape declares the shape of a row of a new attribute.
	RowShape []uint64
	Semantic Semantic
	Init     Init
	// Insert refuses prims that exist, with ALREADY_EXISTS (behaviour 186).
	Insert bool
	// GroupRows splits the session into groups of so many rows, which other processes may
	// claim as well (WorkOn); 0: one group, filled here.
	GroupRows uint64
	// IsArray maps kind array: of each prim a row of as many elements as ElementSizes
	// says, one count for each of the query's prims (behaviour 182). Without a DType the
	// kind is that of the attribute that exists.
	IsArray      bool
	ElementSizes []uint64
	// Device is where a new attribute lies; the zero Device is the host, or where the
	// attribute lies that exists.
	Device Device
	// Staging is in what memory the groups are filled; the zero Device is where the attribute
	// lies. What is filled elsewhere is copied at unmap and never adopted (rule C5).
	Staging Device
}

// MapSession is memory of the stage that this process fills in place: no copy is made
// when it covers the whole attribute. End it with Commit, or UnmapAttribute, or Abort;
// `defer session.Abort()` is right in every case, since an ended session is left
// alone. Nothing of it is visible before it is committed and sealed.
type MapSession struct{ inner *session }

// MapAttribute leases memory for an attribute of the query's prims and waits for it.
//
// Errors at once: INVALID_ARGUMENT for a new attribute without a DType, or one that
// differs; FLOOR_VIOLATION; NOT_SUPPORTED. The broker's: OUT_OF_MEMORY, QUEUE_FULL and those
// that lost a race.
func (s *Stage) MapAttribute(ctx context.Context, q *Query, name string, o MapOptions) (*MapSession, error) {
	c := s.client
	if err := c.enter(); err != nil {
		return nil, err
	}
	defer c.leave()
	query, err := q.use(c)
	if err != nil {
		return nil, err
	}
	if err := q.Wait(ctx); err != nil {
		return nil, err
	}
	schema, err := c.mapSchema(q, name, &o)
	if err == nil {
		err = c.checkOrdinal(name, o.Ordinal)
	}
	var staging Device
	if err == nil {
		staging, err = c.staging(name, &o)
	}
	if err != nil {
		return nil, refused(err)
	}
	r := mapRequest{query: query, name: name, schema: schema, ordinal: o.Ordinal, init: uint32(o.Init), rows: o.GroupRows, prims: q.Prims(), sizes: o.ElementSizes, staging: staging}
	if o.Insert {
		r.primMode = protocol.ModeInsert
	}
	return c.mapSession(ctx, r)
}

// mapSchema decides what the directory decides of a map (rule R6).
func (c *client) mapSchema(q *Query, name string, o *MapOptions) (w protocol.Schema, err error) {
	if err := checkName(name); err != nil {
		return w, err
	}
	if err := c.mayWrite(); err != nil {
		return w, err
	}
	if o.Init > InitCurrent {
		return w, fail(protocol.StatusInvalidArgument, "init is %d: expected InitNone, InitZero or InitCurrent", o.Init)
	}
	open := o.DType == (DType{})
	device, err := c.ofBroker(o.Device)
	if err != nil {
		return w, named(name, err)
	}
	var given tensor.Schema
	err = c.fit(q, name, func(stored *tensor.Schema) error {
		given = tensor.Schema{Kind: kindOf(o.IsArray), DType: o.DType, RowShape: o.RowShape, Semantic: o.Semantic, Device: deviceFor(device, stored)}
		switch {
		case stored == nil && open:
			return fail(protocol.StatusInvalidArgument, "it does not exist: an element type is needed to make it")
		case stored == nil:
			return given.Validate()
		case open:
			given.DType = stored.DType
			if !o.IsArray {
				given.Kind = stored.Kind
			}
		}
		if o.RowShape == nil {
			given.RowShape = stored.RowShape
		}
		return stored.Accept(&given)
	})
	if err == nil && o.Insert {
		err = c.checkInsert(q)
	}
	if err != nil {
		return w, named(name, err)
	}
	if open {
		// Of several schemas it is the one that the prims carry.
		columns, err := c.reader.Columns(name)
		if err != nil {
			return w, asError(err)
		}
		if len(columns) > 1 {
			column, _, err := c.carried(q, columns)
			if err != nil {
				return w, err
			}
			if column == nil {
				return w, fail(protocol.StatusInvalidArgument, "attribute %q has %d schemas and none on these prims: an element type is needed to choose", name, len(columns))
			}
			given.Kind, given.DType, given.RowShape = column.Schema.Kind, column.Schema.DType, column.Schema.RowShape
		}
	}
	switch n := len(o.ElementSizes); {
	case given.Kind == tensor.Fixed && n > 0:
		return w, fail(protocol.StatusInvalidArgument, "attribute %q: element_sizes has %d entries but the kind is fixed: rows of a fixed attribute have one size", name, n)
	case given.Kind == tensor.Array && n != q.Len() && !q.running():
		return w, fail(protocol.StatusInvalidArgument, "attribute %q: element_sizes has %d entries for %d prims: a session of kind array needs one element count per prim", name, n, q.Len())
	}
	return givenSchema(&given, device), nil
}

// staging is the memory that a session is filled in, by the broker's number.
func (c *client) staging(name string, o *MapOptions) (Device, error) {
	staging, err := c.ofBroker(o.Staging)
	if err != nil {
		return staging, fail(asError(err).(*Error).Status, "attribute %q: Staging: %s", name, asError(err).(*Error).Text)
	}
	return staging, nil
}

func (c *client) mapSession(ctx context.Context, r mapRequest) (*MapSession, error) {
	m, err := c.openSession(ctx, r)
	if err != nil {
		return nil, refused(err)
	}
	out := &MapSession{inner: m}
	runtime.AddCleanup(out, func(m *session) {
		if m.abort() {
			m.client.forgot("a map session of attribute " + m.name)
		}
	}, m)
	return out, nil
}

// Attribute is the attribute's name.
func (m *MapSession) Attribute() string { return m.inner.name }

// Groups gives the session's groups. It may be ranged over again. Of a session of
// several (GroupRows) it gives those that this process has claimed and not handed back,
// then it claims one after the other until nobody has left any: a group that is filled is
// best handed back at once, so that other workers get the rest meanwhile. A claim waits for
// the broker, and for no longer than ctx.
func (m *MapSession) Groups(ctx context.Context) iter.Seq2[*MapGroup, error] {
	return func(yield func(*MapGroup, error) bool) {
		for i := 0; ; i++ {
			g, err := m.inner.group(ctx, i)
			if g == nil && err == nil {
				return
			}
			if err != nil {
				yield(nil, err)
				return
			}
			g.session = m
			if !yield(g, nil) {
				return
			}
		}
	}
}

// MapGroup is a piece of a session: rows for a run of the query's prims, in order.
// It is dead once it was unmapped; bytes got from it must not be touched then.
type MapGroup struct {
	session *MapSession // keeps it from being forgotten; nil: of another client's session
	inner   *session
	index   int
	place   protocol.GroupDescriptor
	prims   []uint64
}

// Attribute is the attribute's name, Ordinal the session's ordinal; 0: it is taken at
// the end.
func (g *MapGroup) Attribute() string { return g.inner.name }

// Ordinal: see Attribute.
func (g *MapGroup) Ordinal() uint64 { return g.place.Ordinal }

// Index is the group's number in its session, Attempt how often it has been claimed.
func (g *MapGroup) Index() int { return int(g.place.GroupIndex) }

// Attempt: see Index.
func (g *MapGroup) Attempt() int { return int(g.place.Attempt) }

// Rows is the number of rows, one for each of Prims.
func (g *MapGroup) Rows() int { return int(g.place.Rows) }

// First is the place, in the session's query, of the first of Prims.
func (g *MapGroup) First() int { return int(g.place.FirstPrim) }

// Prims are the path ids of the group's prims; do not change them.
func (g *MapGroup) Prims() []uint64 { return g.prims }

// Bytes is the group's memory: Rows rows, one after the other, writable, of kind array
// too. INVALID_HANDLE once it was unmapped, INVALID_ARGUMENT for device memory, which has
// DevicePointer.
func (g *MapGroup) Bytes() ([]byte, error) { return g.inner.memory(g.index) }

// Array describes the memory of a group of the fixed kind as (rows, *row_shape[, lanes]):
// on the host its bytes, on a device its address.
func (g *MapGroup) Array() (Tensor, error) {
	if g.IsArray() {
		return Tensor{}, isRagged(g.inner.name)
	}
	return g.inner.array(g.index, g.Rows())
}

func (g *MapGroup) rowSchema() *tensor.Schema { return &g.inner.schema }

// UnmapGroup hands a group back for its commit. Twice is INVALID_HANDLE. See MapGroup.Unmap
// for sync.
func (m *MapSession) UnmapGroup(g *MapGroup, sync ...CUDASync) (*Op, error) {
	if g.inner != m.inner {
		return nil, refused(fail(protocol.StatusInvalidHandle, "the group is of another session"))
	}
	return g.Unmap(sync...)
}

// UnmapAttribute ends the session and commits all that was not handed back; the
// session's memory is dead from here on. Of the short form it also seals. Of a session of
// several groups the Op is done when every group was unmapped, by whomever: what a worker
// that dies had claimed is another's to fill meanwhile.
//
// sync, at most one, is what rows in device memory wait for: the Op is done when they are
// there and what the broker had to copy of them is. What is queued goes on filling the
// memory until then; it must not be freed or reused by the process's own work, nor the
// Stage closed.
func (m *MapSession) UnmapAttribute(sync ...CUDASync) (*Op, error) {
	s, err := one(sync)
	if err != nil {
		return nil, err
	}
	return m.inner.unmapAttribute(AllPrims, nil, s, m.flags())
}

func (m *MapSession) flags() uint32 {
	if m.inner.next {
		return protocol.FlagNextOrdinal | protocol.FlagSeal
	}
	return 0
}

// Commit is UnmapAttribute, waited for.
func (m *MapSession) Commit(ctx context.Context, sync ...CUDASync) error {
	op, err := m.UnmapAttribute(sync...)
	if err != nil {
		return err
	}
	return op.Wait(ctx)
}

// Abort ends the session without a commit: nothing of it becomes visible. It does
// nothing to a session that has ended. One of several groups has not ended while its
// UnmapAttribute, or a Commit that was given up, still waits for other workers.
//
// Abort does not wait for the broker: another client that is told of it must not seal
// the ordinal before an operation that was submitted after the Abort has ended (R7). Of
// device memory, wait for what is queued to fill it before you abort: it is somebody else's
// next.
func (m *MapSession) Abort() {
	if !m.inner.abort() {
		m.inner.abortLast()
	}
}

// Bytes is the memory of a session of one group, as the short form makes it.
// INVALID_ARGUMENT where there are several: Groups claims them.
func (m *MapSession) Bytes() ([]byte, error) {
	if m.inner.split {
		return nil, m.several()
	}
	return m.inner.memory(0)
}

func (m *MapSession) several() error {
	return refused(fail(protocol.StatusInvalidArgument, "attribute %q: the session has several groups, each with memory of its own; range over Groups", m.inner.name))
}

// Array describes a session of one group. Of the short form's single row the axis
// of rows is left out: the shape is row_shape[, lanes].
func (m *MapSession) Array() (Tensor, error) {
	if m.inner.split {
		return Tensor{}, m.several()
	}
	rows := 0
	if len(m.inner.groups) > 0 {
		rows = int(m.inner.groups[0].Rows)
	}
	t, err := m.inner.array(0, rows)
	if err == nil && m.inner.next && rows == 1 {
		t.Shape = t.Shape[1:]
	}
	return t, asError(err)
}

func (m *MapSession) rowSchema() *tensor.Schema { return &m.inner.schema }
