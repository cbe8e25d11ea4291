package main

import (
	"errors"
	"runtime"
	"strconv"
	"time"

	callboard "callboard/clients/go"
)

// race inserts a prim per round when the clock strikes, and tells in which rounds it was the first; another process does
// the same.
func (d *driver) race(c command) (*answer, error) {
	var won, lost []uint64
	start := time.UnixMilli(int64(c.number("clock")))
	for i := range c.number("n") {
		ctx, cancel := limit()
		q, err := d.stage.QueryFromPathList(ctx, []string{c.arg(1) + "/" + strconv.FormatUint(i, 10)})
		if err == nil {
			time.Sleep(time.Until(start.Add(time.Duration(i) * roundPeriod)))
			var op *callboard.Op
			if op, err = d.stage.WriteAttribute(ctx, q, c.arg(0), []uint64{c.number("value")}, callboard.WriteOptions{Ordinal: 1, Insert: true}); err == nil {
				err = op.Wait(ctx)
			}
			q.Release()
		}
		cancel()
		switch {
		case err == nil:
			won = append(won, i)
		case errors.Is(err, callboard.ErrAlreadyExists):
			lost = append(lost, i)
		default:
			return nil, err
		}
	}
	return (&answer{}).add("won", join(won)).add("lost", join(lost)), nil
}

const roundPeriod = 3 * time.Millisecond

// deletes writes, deletes and seals all rows n times, at ordinals of their own.
func (d *driver) deletes(c command) (*answer, error) {
	q, err := get[*callboard.Query](d, c.arg(0))
	if err != nil {
		return nil, err
	}
	ctx, cancel := limit()
	defer cancel()
	name, values := c.arg(1), make([]uint8, q.Len())
	for i := uint64(1); i <= 2*c.number("n"); i += 2 {
		if _, err := d.stage.WriteAttribute(ctx, q, name, values, callboard.WriteOptions{Ordinal: i}); err != nil {
			return nil, err
		}
		if _, err := d.stage.DeleteAttributes(q, []string{name}, i+1); err != nil {
			return nil, err
		}
		op, err := d.stage.AdvanceWriteFloor(i+1, callboard.SealOptions{Scope: callboard.ScopeInclude, Attributes: []string{name}})
		if err != nil {
			return nil, err
		}
		if err := op.Wait(ctx); err != nil {
			return nil, late{err}
		}
	}
	return &answer{}, nil
}

// cycles makes lists and gives them back, and tells by how many bytes the heap grew.
func (d *driver) cycles(c command) (*answer, error) {
	before := heap()
	for range c.number("n") {
		list := d.stage.NewList(1, 2, 3)
		if err := list.Release(); err != nil {
			return nil, err
		}
	}
	return (&answer{}).add("grown", max(0, heap()-before)), nil
}

func heap() int64 {
	var stats runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}

// frames reads with one query, and a snapshot each time.
func (d *driver) frames(c command) (*answer, error) {
	q, err := get[*callboard.Query](d, c.arg(0))
	if err != nil {
		return nil, err
	}
	ctx, cancel := limit()
	defer cancel()
	groups := 0
	for range c.number("n") {
		s, err := d.stage.Snapshot(ctx)
		if err != nil {
			return nil, err
		}
		r, err := s.Read(ctx, q, c.arg(1))
		if err != nil {
			return nil, err
		}
		for g, err := range r.Groups() {
			if err != nil {
				return nil, err
			}
			g.Release()
			groups++
		}
		r.Release()
		s.Release()
	}
	return (&answer{}).add("groups", groups), nil
}
