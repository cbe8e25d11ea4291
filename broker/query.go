package broker

import (
	"context"
	"encoding/json"
	"time"

	"callboard/control"
	"callboard/protocol"
	"callboard/shm"
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
	filter, failure := filterOf(&q)
	if failure != nil {
		return nil, failure
	}
	wanted, err := b.findPaths(q.Paths)
	if err != nil {
		return nil, rpcError(err)
	}
	ids, epoch, err := b.filterNow(ctx, filter)
	if err != nil {
		return nil, rpcError(err)
	}
	failure = b.look(ctx, func(r *looking) error {
		answer = &control.QueryResponse{Source: b.identity().Source(epoch), First: uint64(q.First), Prims: []control.Prim{}}
		if q.Paths != nil {
			ids = among(wanted, ids)
		}
		return r.page(answer, &q, ids, b.payload())
	})
	if failure != nil {
		return nil, failure
	}
	return answer, nil
}

var operators = map[string]uint32{"has": protocol.FilterHas, "in": protocol.FilterIn, "contains": protocol.FilterContains, "prefix": protocol.FilterPrefix,
	"lt": protocol.FilterLess, "le": protocol.FilterLessEqual, "gt": protocol.FilterGreater, "ge": protocol.FilterGreaterEqual}

// filterOf makes the filter of a request. Its paths are left to the caller, who keeps
// their order.
func filterOf(q *control.QueryRequest) (*snapshot.Filter, *control.RPCError) {
	f := &snapshot.Filter{Sealed: true, Scoped: len(q.Has)+len(q.Where) > 0}
	if q.Prefix != "" {
		f.Predicates = append(f.Predicates, snapshot.Predicate{Operator: protocol.FilterPrefix, Name: snapshot.PathName, Values: []string{q.Prefix}})
	}
	for _, name := range q.Has {
		f.Predicates = append(f.Predicates, snapshot.Predicate{Operator: protocol.FilterHas, Name: name})
	}
	for i, c := range q.Where {
		operator, known := operators[c.Operator]
		if !known {
			return nil, refuse(control.CodeBadRequest, "where[%d]: operator is %q: expected has, in, contains, prefix, lt, le, gt or ge", i, c.Operator)
		}
		f.Predicates = append(f.Predicates, snapshot.Predicate{Operator: operator, Name: c.Attribute, Values: c.Values})
	}
	return f, nil
}

// retryPause is how long a filter waits for a seal that writes where it would look.
const retryPause = time.Millisecond

// filterNow evaluates a filter as the stage is now: what is long runs here, beside the
// loop.
func (b *Broker) filterNow(ctx context.Context, f *snapshot.Filter) (prims []uint64, epoch uint64, err error) {
	var out snapshot.Outcome
	var job *snapshot.Job
	begin := func() {
		fault := shm.Guard(func() {
			out, job, err = b.store.Filter(f, func(q *snapshot.Query) { prims = q.Prims() })
		})
		if fault != nil {
			err = fault
		}
	}
	for first := true; first || err == snapshot.ErrRetry; first = false {
		if !first {
			select {
			case <-ctx.Done():
				return nil, 0, ctx.Err()
			case <-time.After(retryPause):
			}
		}
		if !b.do(begin) {
			return nil, 0, errStopping
		}
	}
	if err != nil || job == nil {
		return prims, out.Epoch, err
	}
	fault := shm.Guard(job.Run)
	if !b.do(func() {
		if fault != nil {
			job.Abort()
			err = fault
		} else {
			out, err = job.Finish()
		}
	}) {
		return nil, 0, errStopping
	}
	return prims, out.Epoch, err
}

// among gives those of wanted that were found, in wanted's order.
func among(wanted, found []uint64) (ids []uint64) {
	there := make(map[uint64]struct{}, len(found))
	for _, id := range found {
		there[id] = struct{}{}
	}
	for _, id := range wanted {
		if _, ok := there[id]; ok {
			ids = append(ids, id)
		}
	}
	return ids
}

// page puts as many of the prims that match into the answer as were asked for and fit.
func (r *looking) page(answer *control.QueryResponse, q *control.QueryRequest, ids []uint64, room int) error {
	answer.Count = uint64(len(ids))
	for _, id := range ids[min(q.First, len(ids)):] {
		if err := r.alive(); err != nil {
			return err
		}
		if len(answer.Prims) == q.Limit {
			break
		}
		path, err := r.Text(id)
		if err != nil {
			return err
		}
		prim := control.Prim{Path: path, ID: id}
		text, err := json.Marshal(prim)
		if err != nil {
			return err
		}
		if room -= len(text) + 1; room < 0 {
			break // the next page begins here
		}
		answer.Prims = append(answer.Prims, prim)
	}
	return nil
}
