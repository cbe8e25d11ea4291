package main

import (
	"context"
	"fmt"
	"iter"
	"strconv"
	"strings"

	callboard "callboard/clients/go"
)

func typeOf(t callboard.DType) string { return fmt.Sprintf("type=%d:%d:%d", t.Code, t.Bits, t.Lanes) }

func (d *driver) read(c command) (*answer, error) {
	q, err := get[*callboard.Query](d, c.arg(0))
	if err != nil {
		return nil, err
	}
	var o callboard.ReadOptions
	if c.has("at") {
		at := c.number("at")
		o.At = &at
	}
	if c.has("since") {
		since := c.number("since")
		o.Since = &since
	}
	o.Common, o.Nearest = c.has("common"), c.has("nearest")
	if c.has("stamp") {
		stamp := c.number("stamp")
		o.StampNs = &stamp
	}
	ctx, cancel := limit()
	defer cancel()
	r, err := d.stage.ReadAttributes(ctx, q, c.args[1:], o)
	return d.groups(c, r, err)
}

func (d *driver) snapshot(c command) (*answer, error) {
	s, err := d.stage.Snapshot(context.Background())
	if err != nil {
		return nil, err
	}
	d.handles[c.arg(0)] = s
	d.cursors[s.Epoch()] = s.Cursor()
	return (&answer{}).add("epoch", s.Epoch()).add("stamp", s.StampNs()).add("floor", s.GlobalFloor()), nil
}

func (d *driver) snapshotRead(c command) (*answer, error) {
	s, err := get[*callboard.Snapshot](d, c.arg(0))
	if err != nil {
		return nil, err
	}
	q, err := get[*callboard.Query](d, c.arg(1))
	if err != nil {
		return nil, err
	}
	if c.has("since") { // the epoch of a snapshot that the scenario took
		cursor, ok := d.cursors[c.number("since")]
		if !ok {
			return nil, fmt.Errorf("no snapshot was taken at epoch %d", c.number("since"))
		}
		r, err := s.ReadSince(context.Background(), q, cursor, c.args[2:]...)
		return d.groups(c, r, err)
	}
	r, err := s.Read(context.Background(), q, c.args[2:]...)
	return d.groups(c, r, err)
}

func (d *driver) frontier(c command) (*answer, error) {
	frontier, err := d.stage.Frontier(c.arg(0))
	return (&answer{}).add("frontier", frontier), err
}

func (d *driver) snapshotFloor(c command) (*answer, error) {
	s, err := get[*callboard.Snapshot](d, c.arg(0))
	if err != nil {
		return nil, err
	}
	floor, err := s.Floor(c.arg(1))
	return (&answer{}).add("floor", floor), err
}

// groups fetches all groups of a read, describes them and gives the read back, and the groups too unless they are to
// be held.
func (d *driver) groups(c command, r *callboard.Read, err error) (*answer, error) {
	if err != nil {
		return nil, err
	}
	a, n := (&answer{}).add("epoch", r.Epoch()), 0
	next, stop := iter.Pull2(r.Groups())
	defer stop()
	var all []*callboard.Group
	for {
		g, err, more := next()
		if !more {
			break
		}
		if err != nil {
			return nil, fetched{err}
		}
		all = append(all, g)
	}
	_, _, more := next() // END, twice
	r.Release()
	for _, g := range all {
		if err := d.describe(a, g); err != nil {
			return nil, err
		}
		if c.has("hold") {
			d.handles[holdName(c.opt["hold"], n)] = g
			n++
		} else {
			g.Release()
		}
	}
	a.parts = append([]string{"ended=" + strconv.FormatBool(!more)}, a.parts...)
	return a, nil
}

// holdName numbers the groups behind the first.
func holdName(name string, n int) string {
	if n == 0 {
		return name
	}
	return name + "." + strconv.Itoa(n)
}

func (d *driver) describe(a *answer, g *callboard.Group) error {
	kind, shape, data := "fixed", "", ""
	if g.IsArray() {
		var err error
		n := len(g.Prims())
		if g.IsDelete() {
			n = 0
		}
		if shape, data, err = raggedRows(g, n); err != nil {
			return err
		}
		kind = "array"
	} else {
		bytes, err := g.Bytes()
		if err != nil {
			return err
		}
		shape, data = join(g.Shape()), hexOf(bytes)
	}
	paths, err := d.stage.Resolve(g.Prims()...)
	if err != nil {
		return err
	}
	for i := range paths {
		paths[i] = quote(paths[i])
	}
	rows := "-"
	if g.IndexMap() != nil {
		rows = join(g.IndexMap())
	}
	a.parts = append(a.parts, "/", "attribute="+quote(g.Attribute()), "kind="+kind, typeOf(g.DType()), "shape="+shape, "data="+data,
		"paths="+strings.Join(paths, ","), "map="+rows)
	a.add("rows", g.Rows()).add("semantic", uint32(g.Semantic())).add("ordinal", g.Ordinal()).add("floor", g.Floor()).add("epoch", g.Epoch())
	a.add("generation", g.LayoutGeneration()).add("stamp", g.StampNs()).add("deleted", g.IsDelete()).add("ordinals", join(g.RowOrdinals()))
	return nil
}

func (d *driver) show(c command) (*answer, error) {
	g, err := get[*callboard.Group](d, c.arg(0))
	if err != nil {
		return nil, err
	}
	a := &answer{}
	return a, d.describe(a, g)
}

func (d *driver) latest(c command) (*answer, error) {
	g, err := d.stage.Latest(context.Background(), c.arg(0))
	if err != nil {
		return nil, err
	}
	a := &answer{}
	err = d.describe(a, g)
	if c.has("hold") {
		d.handles[c.opt["hold"]] = g
	} else {
		g.Release()
	}
	return a, err
}
