package main

import (
	"context"
	"errors"
	"strconv"

	callboard "callboard/clients/go"
)

// mapped is a group that is held, of an own session or claimed of another's.
type mapped struct{ *callboard.MapGroup }

// Release gives a claim up when the scenario drops it.
func (m mapped) Release() { m.GiveUp() }

// hold keeps a group and describes it.
func (d *driver) hold(a *answer, name string, g *callboard.MapGroup) (*answer, error) {
	kind, shape, data := "fixed", "", ""
	var err error
	if g.IsArray() {
		kind = "array"
		shape, data, err = raggedRows(g, g.Rows())
	} else {
		var array callboard.Tensor
		array, err = g.Array()
		shape, data = join(array.Shape), hexOf(array.Data)
	}
	if err != nil {
		return nil, err
	}
	d.handles[name] = mapped{g}
	a.parts = append(a.parts, "/", "rows="+strconv.Itoa(g.Rows()), "index="+strconv.Itoa(g.Index()), "attempt="+strconv.Itoa(g.Attempt()), "prims="+join(g.Prims()),
		"kind="+kind, "shape="+shape, typeOf(g.DType()), "data="+data)
	return a, nil
}

// next claims a session's next group, or gives none.
func (d *driver) next(c command) (*answer, error) {
	m, err := get[*callboard.MapSession](d, c.arg(0))
	if err != nil {
		return nil, err
	}
	for g, err := range m.Groups(context.Background()) {
		if err != nil {
			return nil, err
		}
		name := c.arg(0) + "." + strconv.Itoa(g.Index())
		if _, held := d.handles[name]; !held { // one that an earlier next has given comes first
			return d.hold(&answer{}, name, g)
		}
	}
	return &answer{}, nil
}

func (d *driver) open(c command) (*answer, error) {
	ctx, cancel := limit()
	defer cancel()
	list, err := d.stage.ListGroups(ctx, c.arg(0))
	if err != nil {
		return nil, err
	}
	var indexes, attempts, rows []int
	for _, g := range list {
		indexes, attempts, rows = append(indexes, g.Index), append(attempts, g.Attempt), append(rows, g.Rows)
		if d.sessions == nil {
			d.sessions = map[string]uint64{}
		}
		d.sessions[c.arg(0)] = g.Session
	}
	return (&answer{}).add("open", len(list)).add("indexes", join(indexes)).add("attempts", join(attempts)).add("rows", join(rows)), nil
}

// claim claims a group of the session that open saw last.
func (d *driver) claim(c command) (*answer, error) {
	ctx, cancel := limit()
	defer cancel()
	index := callboard.AnyGroup
	if c.has("index") {
		index = int(c.number("index"))
	}
	g, err := d.stage.ClaimGroup(ctx, d.sessions[c.arg(1)], index)
	if errors.Is(err, callboard.ErrEnd) {
		return &answer{}, nil
	}
	if err != nil {
		return nil, err
	}
	return d.hold(&answer{}, c.arg(0), g)
}

func (d *driver) giveUp(c command) (*answer, error) {
	g, err := get[mapped](d, c.arg(0))
	if err == nil {
		g.GiveUp()
	}
	return &answer{}, err
}

// work fills n groups: each byte of a row is the place of its prim in the session's query.
func (d *driver) work(c command) (*answer, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	left := c.number("n")
	err := d.stage.WorkOn(ctx, c.arg(0), callboard.WorkOptions{}, func(g *callboard.MapGroup) error {
		if err := fillPlaces(g); err != nil {
			return err
		}
		op, err := g.Unmap()
		if err == nil {
			err = op.Wait(ctx)
		}
		if left--; left == 0 {
			cancel()
		}
		return err
	})
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	return &answer{}, err
}

func fillPlaces(g *callboard.MapGroup) error {
	b, err := g.Bytes()
	if err != nil {
		return err
	}
	for i := range g.Rows() {
		row := b[i*len(b)/g.Rows() : (i+1)*len(b)/g.Rows()]
		if g.IsArray() {
			t, err := g.Tensor(i)
			if err != nil {
				return err
			}
			row = t.Data
		}
		for k := range row {
			row[k] = byte(g.First() + i)
		}
	}
	return nil
}
