package broker

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	"callboard/control"
	"callboard/snapshot"
)

// primsNow answers the request query: the prims that match, as sealed at one epoch.
func (b *Broker) primsNow(ctx context.Context, q control.QueryRequest) (answer *control.QueryResponse, failure *control.RPCError) {
	if q.First < 0 || q.Limit < 0 || q.Limit > control.QueryPage {
		return nil, refuse(control.CodeBadRequest, "first is %d and limit %d: expected first from 0, limit from 0 to %d", q.First, q.Limit, control.QueryPage)
	}
	if q.Limit == 0 {
		q.Limit = control.QueryPage
	}
	for _, name := range q.Has {
		if err := snapshot.CheckName(name); err != nil {
			return nil, rpcError(err)
		}
	}
	wanted, err := b.findPaths(q.Paths)
	if err != nil {
		return nil, rpcError(err)
	}
	failure = b.look(ctx, func(r *looking) error {
		found, err := r.carriers(q.Has)
		if err != nil {
			return err
		}
		ids := wanted
		if q.Paths == nil {
			ids = make([]uint64, 0, len(found))
			for id := range found {
				ids = append(ids, id)
			}
			slices.Sort(ids) // ids rise in the order in which paths were first named: pages do not shift
		}
		answer = &control.QueryResponse{Source: b.identity().Source(r.pin.Epoch()), First: uint64(q.First), Prims: []control.Prim{}}
		return r.page(answer, &q, ids, found, b.payload())
	})
	if failure != nil {
		return nil, failure
	}
	return answer, nil
}

// carriers are the prims that carry all of names, or anything at all without names.
func (r *looking) carriers(names []string) (map[uint64]struct{}, error) {
	if len(names) == 0 {
		columns, err := r.AllColumns()
		if err != nil {
			return nil, err
		}
		all := map[uint64]struct{}{}
		return all, r.addCarriers(all, columns)
	}
	var both map[uint64]struct{}
	for _, name := range names {
		columns, err := r.Columns(name)
		if err != nil {
			return nil, err
		}
		of := map[uint64]struct{}{}
		if err := r.addCarriers(of, columns); err != nil {
			return nil, err
		}
		for id := range both {
			if _, carries := of[id]; !carries {
				delete(both, id)
			}
		}
		if both == nil {
			both = of
		}
	}
	return both, nil
}

func (r *looking) addCarriers(to map[uint64]struct{}, columns []*snapshot.Column) error {
	for _, c := range columns {
		if err := r.ctx.Err(); err != nil {
			return err
		}
		if c.Unreadable != nil {
			continue
		}
		v, err := r.pin.Find(c)
		if err != nil {
			return err
		}
		if v.Column == nil {
			continue
		}
		prims, err := r.Prims(&v)
		if err != nil {
			return err
		}
		for _, id := range prims {
			if id != 0 {
				to[id] = struct{}{}
			}
		}
	}
	return nil
}

// page counts the prims that match and puts as many into the answer as fit.
func (r *looking) page(answer *control.QueryResponse, q *control.QueryRequest, ids []uint64, found map[uint64]struct{}, room int) error {
	full := false
	for i, id := range ids {
		if err := r.alive(); err != nil {
			return err
		}
		if _, ok := found[id]; !ok {
			continue
		}
		wanted := answer.Count >= uint64(q.First) && len(answer.Prims) < q.Limit && !full
		if q.Prefix == "" && !wanted {
			answer.Count++ // its text is not needed
			continue
		}
		path := ""
		if q.Paths != nil {
			path = q.Paths[i]
		} else {
			var err error
			if path, err = r.Text(id); err != nil {
				return err
			}
		}
		if !strings.HasPrefix(path, q.Prefix) {
			continue
		}
		answer.Count++
		if !wanted {
			continue
		}
		prim := control.Prim{Path: path, ID: id}
		text, err := json.Marshal(prim)
		if err != nil {
			return err
		}
		if room -= len(text) + 1; room < 0 {
			full = true // the next page begins here
			continue
		}
		answer.Prims = append(answer.Prims, prim)
	}
	return nil
}
