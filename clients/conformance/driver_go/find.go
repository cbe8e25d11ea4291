package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	callboard "callboard/clients/go"
	"callboard/snapshot"
)

// terms are the filters of a line: has:name prefix:/path in:/path,… op:name:value,… only:name,…
func terms(c command) (out []callboard.Term, err error) {
	for _, word := range c.args[1:] {
		op, rest, _ := strings.Cut(word, ":")
		name, value, _ := strings.Cut(rest, ":")
		values := strings.Split(value, ",")
		switch {
		case op == "has":
			out = append(out, callboard.Has(name))
		case op == "prefix" && strings.HasPrefix(rest, "/"):
			out = append(out, callboard.PathPrefix(rest))
		case op == "in" && strings.HasPrefix(rest, "/"):
			out = append(out, callboard.PathIn(strings.Split(rest, ",")...))
		case op == "in":
			out = append(out, callboard.In(name, values...))
		case op == "contains":
			out = append(out, callboard.Contains(name, values...))
		case op == "lt":
			out = append(out, callboard.Less(name, value))
		case op == "le":
			out = append(out, callboard.LessEqual(name, value))
		case op == "gt":
			out = append(out, callboard.Greater(name, value))
		case op == "ge":
			out = append(out, callboard.GreaterEqual(name, value))
		case op == "only":
			out = append(out, callboard.Reporting(strings.Split(rest, ",")...))
		case op == "raw": // an operator by its number, on whatever name
			number, rest, _ := strings.Cut(rest, ":")
			n, err := strconv.ParseUint(number, 10, 32)
			if err != nil {
				return nil, err
			}
			name, value, has := strings.Cut(rest, ":")
			p := snapshot.Predicate{Operator: uint32(n), Name: name}
			if has {
				p.Values = strings.Split(value, ",")
			}
			out = append(out, func(f *snapshot.Filter) { f.Predicates = append(f.Predicates, p) })
		default:
			return nil, fmt.Errorf("no filter %q", word)
		}
	}
	if c.has("sealed") {
		out = append(out, callboard.SealedOnly())
	}
	return out, nil
}

func (d *driver) find(c command) (*answer, error) {
	all, err := terms(c)
	if err != nil {
		return nil, err
	}
	ctx, cancel := limit()
	defer cancel()
	if c.has("async") {
		q, err := d.stage.SubmitQuery(all...)
		if err != nil {
			return nil, err
		}
		d.handles[c.arg(0)] = q
		return (&answer{}).add("size", q.Len()), nil
	}
	q, err := d.stage.Query(ctx, all...)
	if err != nil {
		return nil, err
	}
	d.handles[c.arg(0)] = q
	r, err := q.Result(ctx)
	if err == nil && c.has("result") {
		d.handles[c.opt["result"]] = r
	}
	return described(r), err
}

func described(r callboard.QueryResult) *answer {
	var names []string
	for _, name := range r.Attributes {
		names = append(names, quote(name))
	}
	return (&answer{}).add("size", r.Total).add("attributes", strings.Join(names, ",")).add("prims", join(r.Query.Prims()))
}

// await waits for a query that was made async.
func (d *driver) await(c command) (*answer, error) {
	q, err := get[*callboard.Query](d, c.arg(0))
	if err != nil {
		return nil, err
	}
	ctx, cancel := limit()
	if c.has("timeout") {
		ctx, cancel = context.WithCancel(context.Background())
		cancel()
	}
	defer cancel()
	r, err := q.Result(ctx)
	if err != nil {
		return nil, late{err}
	}
	return described(r), nil
}

func (d *driver) numbers(c command, from int) (ids []uint64, err error) {
	for _, text := range c.args[from:] {
		id, err := strconv.ParseUint(text, 0, 64)
		if err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, nil
}

// pathList finds a list; "none" is no list.
func (d *driver) pathList(c command, i int) (*callboard.PathList, error) {
	if c.arg(i) == "none" {
		return nil, nil
	}
	return get[*callboard.PathList](d, c.arg(i))
}

func (d *driver) list(c command) (*answer, error) {
	ids, err := d.numbers(c, 1)
	if err != nil {
		return nil, err
	}
	l := d.stage.NewList(ids...)
	d.handles[c.arg(0)] = l
	return (&answer{}).add("number", l.Number()), nil
}

func (d *driver) listed(c command) (*answer, error) {
	l, err := d.pathList(c, 0)
	if err != nil {
		return nil, err
	}
	ids, err := l.IDs()
	return (&answer{}).add("number", l.Number()).add("count", len(ids)).add("ids", join(ids)), err
}

func (d *driver) retain(c command) (*answer, error) {
	l, err := d.pathList(c, 0)
	if err == nil {
		err = l.Retain()
	}
	return &answer{}, err
}

func (d *driver) unlist(c command) (*answer, error) {
	l, err := d.pathList(c, 0)
	if err == nil {
		err = l.Release()
	}
	return &answer{}, err
}

func (d *driver) slice(c command) (*answer, error) {
	l, err := d.pathList(c, 1)
	if err != nil {
		return nil, err
	}
	part, err := l.Slice(int(c.number("first")), int(c.number("n")))
	if err != nil {
		return nil, err
	}
	d.handles[c.arg(0)] = part
	return (&answer{}).add("number", part.Number()), nil
}

func (d *driver) queryList(c command) (*answer, error) {
	l, err := d.pathList(c, 1)
	if err != nil {
		return nil, err
	}
	ctx, cancel := limit()
	defer cancel()
	q, err := d.stage.QueryFromList(ctx, l)
	if err != nil {
		return nil, err
	}
	d.handles[c.arg(0)] = q
	return (&answer{}).add("size", q.Len()).add("prims", join(q.Prims())), nil
}

func (d *driver) joinTokens(c command) (*answer, error) {
	ids, err := d.numbers(c, 0)
	if err != nil {
		return nil, err
	}
	ctx, cancel := limit()
	defer cancel()
	path, err := d.stage.PathFromTokens(ctx, ids...)
	return (&answer{}).add("path", path), err
}

func (d *driver) split(c command) (*answer, error) {
	ids, err := d.numbers(c, 0)
	if err != nil {
		return nil, err
	}
	ctx, cancel := limit()
	defer cancel()
	tokens, err := d.stage.PathTokens(ctx, ids[0])
	return (&answer{}).add("count", len(tokens)).add("tokens", join(tokens)), err
}
