package main

import (
	"context"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"

	callboard "callboard/clients/go"
	"callboard/protocol"
)

func (d *driver) query(c command) (*answer, error) {
	ctx, cancel := limit()
	defer cancel()
	q, err := d.stage.QueryFromPathList(ctx, c.args[1:])
	if err != nil {
		return nil, err
	}
	d.handles[c.arg(0)] = q
	return (&answer{}).add("size", q.Len()).add("prims", join(q.Prims())), nil
}

// finish waits for an operation, or keeps it where the line says async.
func (d *driver) finish(c command, op *callboard.Op, err error) (*answer, error) {
	if err != nil {
		return nil, err
	}
	if c.has("async") {
		d.handles[c.opt["async"]] = op
		return (&answer{}).add("id", op.ID()), nil
	}
	ctx, cancel := limit()
	defer cancel()
	if err := op.Wait(ctx); err != nil {
		return nil, late{err}
	}
	return outcome(op), nil
}

func outcome(op *callboard.Op) *answer {
	return (&answer{}).add("id", op.ID()).add("ordinal", op.Ordinal()).add("epoch", op.Epoch()).add("floor", op.Floor()).add("adopted", op.Adopted())
}

func (d *driver) write(c command) (*answer, error) {
	q, err := get[*callboard.Query](d, c.arg(0))
	if err != nil {
		return nil, err
	}
	values, err := c.values()
	if err != nil {
		return nil, err
	}
	ctx, cancel := limit()
	defer cancel()
	op, err := d.stage.WriteAttribute(ctx, q, c.arg(1), values, callboard.WriteOptions{Ordinal: c.number("ordinal"), Semantic: callboard.Semantic(c.number("semantic")),
		RowShape: c.rowShape(), Selection: c.selection(), IsArray: c.has("array"), Insert: c.has("insert")})
	return d.finish(c, op, err)
}

func (d *driver) batch(c command) (*answer, error) {
	q, err := get[*callboard.Query](d, c.arg(0))
	if err != nil {
		return nil, err
	}
	var writes []callboard.Write
	for _, e := range c.more {
		values, err := e.values()
		if err != nil {
			return nil, err
		}
		writes = append(writes, callboard.Write{Name: e.arg(0), Values: values, Semantic: callboard.Semantic(e.number("semantic")), RowShape: e.rowShape(), Selection: e.selection(), IsArray: e.has("array")})
	}
	ctx, cancel := limit()
	defer cancel()
	op, err := d.stage.WriteAttributes(ctx, q, c.number("ordinal"), writes...)
	return d.finish(c, op, err)
}

func (d *driver) publish(c command) (*answer, error) {
	values, err := c.values()
	if err != nil {
		return nil, err
	}
	ctx, cancel := limit()
	defer cancel()
	ordinal, err := d.stage.Publish(ctx, c.arg(0), values)
	return (&answer{}).add("ordinal", ordinal), err
}

func (d *driver) seal(c command) (*answer, error) {
	o := callboard.SealOptions{Attributes: c.args, StampNs: c.number("stamp")}
	switch c.opt["scope"] {
	case "include":
		o.Scope = callboard.ScopeInclude
	case "exclude":
		o.Scope = callboard.ScopeExclude
	}
	op, err := d.stage.AdvanceWriteFloor(c.number("ordinal"), o)
	return d.finish(c, op, err)
}

func (d *driver) delete(c command) (*answer, error) {
	q, err := get[*callboard.Query](d, c.arg(0))
	if err != nil {
		return nil, err
	}
	op, err := d.stage.DeleteAttributes(q, c.args[1:], c.number("ordinal"))
	return d.finish(c, op, err)
}

func (d *driver) declare(c command) (*answer, error) {
	ctx, cancel := limit()
	defer cancel()
	return &answer{}, d.stage.Declare(ctx, c.arg(0), callboard.DeclareOptions{DType: dtypeOf(c.opt["type"]), RowShape: c.rowShape(),
		Semantic: callboard.Semantic(c.number("semantic")), Retain: uint32(c.number("retain")), IsArray: c.has("array")})
}

func (d *driver) wait(c command) (*answer, error) {
	op, err := get[*callboard.Op](d, c.arg(0))
	if err != nil {
		return nil, err
	}
	ctx, cancel := limit()
	if c.has("timeout") {
		ctx, cancel = context.WithTimeout(context.Background(), time.Duration(c.number("timeout")))
	}
	defer cancel()
	if err := op.Wait(ctx); err != nil {
		return nil, late{err}
	}
	return outcome(op), nil
}

func (d *driver) op(c command) (*answer, error) {
	op, err := get[*callboard.Op](d, c.arg(0))
	if err != nil {
		return nil, err
	}
	return (&answer{}).add("id", op.ID()), nil
}

func (d *driver) floor(c command) (*answer, error) {
	if len(c.args) == 0 {
		s, err := d.stage.Snapshot(context.Background())
		if err != nil {
			return nil, err
		}
		defer s.Release()
		return (&answer{}).add("floor", s.GlobalFloor()), nil
	}
	floor, err := d.stage.WriteFloor(c.arg(0))
	return (&answer{}).add("floor", floor), err
}

func (d *driver) epoch(command) (*answer, error) {
	return (&answer{}).add("epoch", d.stage.Epoch()), nil
}

func (d *driver) follow(c command) (*answer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(c.number("timeout")))
	defer cancel()
	epoch, err := d.stage.Follow(ctx, c.number("after"))
	return (&answer{}).add("epoch", epoch), err
}

func (d *driver) intern(c command) (*answer, error) {
	ctx, cancel := limit()
	defer cancel()
	if c.arg(0) == "paths" {
		ids, err := d.stage.Paths(ctx, c.args[1:]...)
		return (&answer{}).add("ids", join(ids)), err
	}
	ids, err := d.stage.Tokens(ctx, c.args[1:]...)
	return (&answer{}).add("ids", join(ids)), err
}

func (d *driver) resolve(c command) (*answer, error) {
	var ids []uint64
	for _, text := range c.args {
		id, err := strconv.ParseUint(text, 0, 64)
		if err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	texts, err := d.stage.Resolve(ids...)
	for i := range texts {
		texts[i] = quote(texts[i])
	}
	return (&answer{}).add("texts", strings.Join(texts, ",")), err
}

func (d *driver) statuses(command) (*answer, error) {
	a := &answer{}
	for s := protocol.Status(0); s < protocol.StatusCount; s++ {
		a.add(s.String(), quote(s.Text()))
	}
	return a, nil
}

func (d *driver) version(command) (*answer, error) {
	// A Go program has its client built in: the two can be no different.
	version := fmt.Sprintf("%d,%d,%d", callboard.VersionMajor, callboard.VersionMinor, callboard.VersionPatch)
	return (&answer{}).add("abi", fmt.Sprintf("%d.%d", protocol.ABIMajor, protocol.ABIMinor)).add("version", version).add("built", version), nil
}

func (d *driver) attributes(c command) (*answer, error) {
	info, err := d.stage.Info()
	if err != nil {
		return nil, err
	}
	var names []string
	for _, a := range info.Attributes {
		names = append(names, quote(a.Name))
	}
	return (&answer{}).add("names", strings.Join(names, ",")), nil
}

func (d *driver) count(command) (*answer, error) {
	info, err := d.stage.Info()
	return (&answer{}).add("pins", info.Pins), err
}

func (d *driver) mapAttribute(c command) (*answer, error) {
	q, err := get[*callboard.Query](d, c.arg(1))
	if err != nil {
		return nil, err
	}
	o := callboard.MapOptions{Insert: c.has("insert"), Ordinal: c.number("ordinal"), RowShape: c.rowShape(), Semantic: callboard.Semantic(c.number("semantic")), GroupRows: c.number("group_rows"), IsArray: c.has("array")}
	if c.has("sizes") {
		o.ElementSizes = list[uint64](c.opt["sizes"])
	}
	if c.has("type") {
		o.DType = dtypeOf(c.opt["type"])
	}
	switch c.opt["init"] {
	case "zero":
		o.Init = callboard.InitZero
	case "current":
		o.Init = callboard.InitCurrent
	}
	ctx, cancel := limit()
	defer cancel()
	m, err := d.stage.MapAttribute(ctx, q, c.arg(2), o)
	if err != nil {
		return nil, err
	}
	d.handles[c.arg(0)] = m
	a := &answer{}
	if c.has("share") { // others may claim its groups
		return a, nil
	}
	for g, err := range m.Groups(context.Background()) {
		if err != nil {
			return nil, err
		}
		if _, err := d.hold(a, c.arg(0)+"."+strconv.Itoa(g.Index()), g); err != nil {
			return nil, err
		}
	}
	return a, nil
}

func (d *driver) fill(c command) (*answer, error) {
	g, err := get[mapped](d, c.arg(0))
	if err != nil {
		return nil, err
	}
	if g.IsArray() {
		return fillRow(g, c)
	}
	data, err := hex.DecodeString(c.opt["data"])
	if err != nil {
		return nil, err
	}
	bytes, err := g.Bytes()
	if err != nil {
		return nil, err
	}
	if copy(bytes[c.number("at"):], data) < len(data) {
		return nil, fmt.Errorf("%d bytes at %d do not fit into %d", len(data), c.number("at"), len(bytes))
	}
	return &answer{}, nil
}

func (d *driver) unmap(c command) (*answer, error) {
	if g, err := get[mapped](d, c.arg(0)); err == nil {
		op, err := g.Unmap()
		return d.finish(c, op, err)
	}
	m, err := get[*callboard.MapSession](d, c.arg(0))
	if err != nil {
		return nil, err
	}
	op, err := m.UnmapAttribute()
	return d.finish(c, op, err)
}

func (d *driver) abort(c command) (*answer, error) {
	m, err := get[*callboard.MapSession](d, c.arg(0))
	if err == nil {
		m.Abort()
	}
	return &answer{}, err
}
