package callboard

import (
	"context"

	"callboard/protocol"
)

// rootQuery is the query of the single prim "/", made at its first use.
func (c *client) rootQuery(ctx context.Context) (*Query, error) {
	c.rooting.Lock()
	defer c.rooting.Unlock()
	if c.root == nil {
		q, err := c.queryPaths(ctx, []string{"/"})
		if err != nil {
			return nil, err
		}
		c.root = q
	}
	return c.root, nil
}

// Publish copies values and seals them as the attribute's next ordinal, which it
// returns: two publishers of one name cannot collide (rule O8). The value lies on
// the prim "/" and is one row, whatever its shape: a frame of (480, 640, 3) is one
// row of that shape. values is a Tensor, a slice, an array or a number. What fills a tensor
// in device memory must be done: this waits for no stream, but for the copy. Declare the
// attribute first where it is to lie on a device itself.
func (s *Stage) Publish(ctx context.Context, name string, values any) (ordinal uint64, err error) {
	c := s.client
	if err := c.enter(); err != nil {
		return 0, err
	}
	defer c.leave()
	q, err := c.rootQuery(ctx)
	if err != nil {
		return 0, err
	}
	t, err := toTensor(values)
	if err != nil {
		return 0, refused(err)
	}
	w := writeChecks{name: name, rowShape: []uint64{}}
	for _, dim := range t.Shape {
		w.rowShape = append(w.rowShape, uint64(dim))
	}
	row := t
	row.Shape = append([]int64{1}, t.Shape...)
	if t.Strides != nil {
		row.Strides = append([]int64{0}, t.Strides...)
	}
	w.values = row
	if err := checkName(name); err != nil {
		return 0, refused(err)
	}
	if columns, err := c.reader.Columns(name); err != nil {
		return 0, asError(err)
	} else if len(columns) > 0 {
		w.rowShape, w.newShape = nil, w.rowShape // its own decides, and says what differs
	}
	p, query, err := c.prepare(q, &w)
	if err != nil {
		return 0, refused(err)
	}
	op, err := c.write(ctx, query, &p, 0, protocol.FlagNextOrdinal|protocol.FlagSeal)
	if err != nil {
		return 0, refused(err)
	}
	err = op.Wait(ctx)
	return op.Ordinal(), err
}

// Map leases memory for one value of the given shape and element type, to be filled in
// place: no copy is made. Commit seals it as the attribute's next ordinal. See Publish
// for where it lies.
//
//	m, err := stage.Map(ctx, "camera/rgb", []int{480, 640, 3}, dtype)
//	defer m.Abort()
//	pixels, err := callboard.Values[uint8](m)
//	...
//	err = m.Commit(ctx)
func (s *Stage) Map(ctx context.Context, name string, shape []int, dtype DType) (*MapSession, error) {
	c := s.client
	if err := c.enter(); err != nil {
		return nil, err
	}
	defer c.leave()
	o := MapOptions{DType: dtype, RowShape: []uint64{}}
	for _, dim := range shape {
		if dim < 0 {
			return nil, refused(fail(protocol.StatusInvalidArgument, "attribute %q: shape %v has %d in it: dimensions are at least 1", name, shape, dim))
		}
		o.RowShape = append(o.RowShape, uint64(dim))
	}
	q, err := c.rootQuery(ctx)
	if err != nil {
		return nil, err
	}
	schema, err := c.mapSchema(q, name, &o)
	if err != nil {
		return nil, refused(err)
	}
	query, err := q.use(c)
	if err != nil {
		return nil, err
	}
	return c.mapSession(ctx, mapRequest{query: query, name: name, schema: schema, flags: protocol.FlagNextOrdinal, prims: q.Prims()})
}

// Latest is the newest sealed value of an attribute on the prim "/", as a view in place
// without an axis of rows: what Publish and Map made. NOT_FOUND when there is none.
// It is the caller's to Release.
func (s *Stage) Latest(ctx context.Context, name string) (*Group, error) {
	c := s.client
	if err := c.enter(); err != nil {
		return nil, err
	}
	defer c.leave()
	q, err := c.rootQuery(ctx)
	if err != nil {
		return nil, err
	}
	r, err := s.ReadAttributes(ctx, q, []string{name}, ReadOptions{})
	if err != nil {
		return nil, err
	}
	defer r.Release()
	return r.latest(name)
}
