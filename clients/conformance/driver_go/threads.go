package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	callboard "callboard/clients/go"
)

// waits has several goroutines wait for one operation.
func (d *driver) waits(c command) (*answer, error) {
	op, err := get[*callboard.Op](d, c.arg(0))
	if err != nil {
		return nil, err
	}
	var group sync.WaitGroup
	var ok atomic.Int32
	for range c.number("threads") {
		group.Go(func() {
			ctx, cancel := limit()
			defer cancel()
			if op.Wait(ctx) == nil {
				ok.Add(1)
			}
		})
	}
	group.Wait()
	return (&answer{}).add("ok", ok.Load()), nil
}

// flood submits one write over and over until it is refused; drain waits for all.
func (d *driver) flood(c command) (*answer, error) {
	q, err := get[*callboard.Query](d, c.arg(0))
	if err != nil {
		return nil, err
	}
	values, err := c.values()
	if err != nil {
		return nil, err
	}
	code := "OK"
	for len(d.flooded) < 20000 {
		op, err := d.stage.WriteAttribute(context.Background(), q, c.arg(1), values, callboard.WriteOptions{Ordinal: c.number("ordinal")})
		if e := (*callboard.Error)(nil); errors.As(err, &e) {
			code = e.Status.String()
			break
		}
		d.flooded = append(d.flooded, op)
	}
	return (&answer{}).add("submitted", len(d.flooded)).add("code", code), nil
}

func (d *driver) drain(command) (*answer, error) {
	failed := 0
	for _, op := range d.flooded {
		ctx, cancel := limit()
		if op.Wait(ctx) != nil {
			failed++
		}
		cancel()
	}
	d.flooded = nil
	return (&answer{}).add("failed", failed), nil
}

// threads has goroutines that each write, seal and read an attribute of their own.
func (d *driver) threads(c command) (*answer, error) {
	q, err := get[*callboard.Query](d, c.arg(0))
	if err != nil {
		return nil, err
	}
	var group sync.WaitGroup
	var wrong atomic.Int32
	for thread := range c.number("threads") {
		group.Go(func() {
			name := fmt.Sprint(c.arg(1), thread)
			for i := int32(1); i <= int32(c.number("rounds")); i++ {
				if d.round(q, name, i) != nil {
					wrong.Add(1)
				}
			}
		})
	}
	group.Wait()
	return (&answer{}).add("wrong", wrong.Load()), nil
}

func (d *driver) round(q *callboard.Query, name string, i int32) error {
	ctx, cancel := limit()
	defer cancel()
	if _, err := d.stage.WriteAttribute(ctx, q, name, []int32{i}, callboard.WriteOptions{Ordinal: uint64(i)}); err != nil {
		return err
	}
	op, err := d.stage.AdvanceWriteFloor(uint64(i), callboard.SealOptions{Scope: callboard.ScopeInclude, Attributes: []string{name}})
	if err != nil {
		return err
	}
	if err := op.Wait(ctx); err != nil {
		return err
	}
	read, err := d.stage.ReadAttributes(ctx, q, []string{name}, callboard.ReadOptions{})
	if err != nil {
		return err
	}
	defer read.Release()
	g, err := read.Group(name)
	if err != nil {
		return err
	}
	defer g.Release()
	values, err := callboard.Values[int32](g)
	if err == nil && values[0] != i {
		err = fmt.Errorf("read %d after %d", values[0], i)
	}
	return err
}

// ticks writes and seals n ordinals: all values of tick i are i.
func (d *driver) ticks(c command) (*answer, error) {
	q, err := get[*callboard.Query](d, c.arg(0))
	if err != nil {
		return nil, err
	}
	values, ctx := make([]int64, q.Len()), context.Background()
	var last *callboard.Op
	for i := uint64(1); i <= c.number("n"); i++ {
		for j := range values {
			values[j] = int64(i)
		}
		if _, err := d.stage.WriteAttribute(ctx, q, c.arg(1), values, callboard.WriteOptions{Ordinal: i}); err != nil {
			return nil, err
		}
		op, err := d.stage.AdvanceWriteFloor(i, callboard.SealOptions{Scope: callboard.ScopeInclude, Attributes: []string{c.arg(1)}})
		if err != nil {
			return nil, err
		}
		if last = op; i%32 == 0 || i == c.number("n") { // some ticks are on their way at a time
			if err := last.Wait(ctx); err != nil {
				return nil, late{err}
			}
		}
	}
	return outcome(last), nil
}

// chase reads at its own rate until it has seen tick n; ticks must not go backwards or be torn. With deltas it reads what
// changed from cursor to cursor: then no tick may come twice either.
func (d *driver) chase(c command) (*answer, error) {
	q, err := get[*callboard.Query](d, c.arg(0))
	if err != nil {
		return nil, err
	}
	ctx, cancel := limit()
	defer cancel()
	reads, seen, epoch := 0, int64(0), uint64(0)
	var cursor callboard.Cursor
	for seen < int64(c.number("n")) {
		if epoch, err = d.stage.Follow(ctx, epoch); err != nil {
			return nil, err
		}
		var read *callboard.Read
		if c.has("deltas") {
			read, cursor, err = d.delta(ctx, q, c.arg(1), cursor)
		} else {
			read, err = d.stage.ReadAttributes(ctx, q, []string{c.arg(1)}, callboard.ReadOptions{})
		}
		if err != nil {
			return nil, err
		}
		for g, err := range read.Groups() {
			if err != nil {
				return nil, err
			}
			values, err := callboard.Values[int64](g)
			if err != nil {
				return nil, err
			}
			for _, v := range values {
				if v < seen || v != values[0] || uint64(v) != g.Ordinal() || c.has("deltas") && v == seen {
					return nil, fmt.Errorf("after tick %d: values %v at ordinal %d", seen, values, g.Ordinal())
				}
			}
			seen = values[0]
			g.Release()
			reads++
		}
		read.Release()
	}
	return (&answer{}).add("seen", seen).add("reads", reads), nil
}

// delta reads what changed since a cursor, and gives the next one.
func (d *driver) delta(ctx context.Context, q *callboard.Query, name string, since callboard.Cursor) (*callboard.Read, callboard.Cursor, error) {
	s, err := d.stage.Snapshot(ctx)
	if err != nil {
		return nil, since, err
	}
	defer s.Release()
	read, err := s.ReadSince(ctx, q, since, name)
	return read, s.Cursor(), err
}
