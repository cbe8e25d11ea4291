package callboard

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"

	"callboard/protocol"
	"callboard/snapshot"
	"callboard/tensor"
)

// Term is a part of a filter: a condition on a prim, or what else Query is told. All
// conditions must hold. Values are texts: "1.5", or the text of a token; texts are
// compared by bytes (behaviour 243).
type Term func(*snapshot.Filter)

func condition(operator uint32, name string, values ...string) Term {
	return func(f *snapshot.Filter) {
		f.Predicates = append(f.Predicates, snapshot.Predicate{Operator: operator, Name: name, Values: values})
	}
}

// Has holds for prims that carry an attribute.
func Has(name string) Term { return condition(protocol.FilterHas, name) }

// PathIn holds for prims whose path is one of paths (behaviour 237).
func PathIn(paths ...string) Term {
	return condition(protocol.FilterIn, snapshot.PathName, paths...)
}

// PathPrefix holds for prims whose path begins with prefix: "/World/" takes all that is
// below /World.
func PathPrefix(prefix string) Term {
	return condition(protocol.FilterPrefix, snapshot.PathName, prefix)
}

// In holds where an attribute's value is one of values. It and the comparisons work on
// attributes of one number or one token id for each prim. A number is decimal, as "10",
// "-0.5" or "1e3", or "inf" or "nan".
func In(name string, values ...string) Term { return condition(protocol.FilterIn, name, values...) }

// Contains holds where one of the values is among the tokens of an attribute's row; for
// all of several give one Contains each (behaviour 241).
func Contains(name string, values ...string) Term {
	return condition(protocol.FilterContains, name, values...)
}

// Less holds where an attribute's value is below value.
func Less(name, value string) Term { return condition(protocol.FilterLess, name, value) }

// LessEqual holds where an attribute's value is not above value.
func LessEqual(name, value string) Term { return condition(protocol.FilterLessEqual, name, value) }

// Greater holds where an attribute's value is above value.
func Greater(name, value string) Term { return condition(protocol.FilterGreater, name, value) }

// GreaterEqual holds where an attribute's value is not below value.
func GreaterEqual(name, value string) Term {
	return condition(protocol.FilterGreaterEqual, name, value)
}

// SealedOnly looks at what is sealed; without it a query sees what was written since,
// too (behaviour 233).
func SealedOnly() Term { return func(f *snapshot.Filter) { f.Sealed = true } }

// Reporting limits the attributes that are reported to those of names that the prims
// carry (behaviour 235).
func Reporting(names ...string) Term {
	return func(f *snapshot.Filter) { f.Scoped, f.Attributes = true, append(f.Attributes, names...) }
}

// QueryResult is what a filter found: a plain value, with nothing to give back but the
// Query (behaviour 236, 246).
type QueryResult struct {
	Query *Query
	// Total is the number of prims.
	Total int
	// Attributes are what they carry, in the order in which the names came up first.
	Attributes []string
}

// Query makes a query of the prims that satisfy all terms; without one, of every prim,
// that is, whatever carries an attribute. It waits for the broker, which evaluates it
// once: later changes do not change it (behaviour 245). Prims are in the order in which
// their paths came up first. Give back with Release.
//
// Errors: INVALID_ARGUMENT for what is no name, path or number; NOT_SUPPORTED, before
// anything is made, for a condition that the attribute does not know (behaviour 242): a
// comparison of rows of several numbers, PathPrefix's like on an attribute, a reserved
// name.
func (s *Stage) Query(ctx context.Context, terms ...Term) (*Query, error) {
	c := s.client
	if err := c.enter(); err != nil {
		return nil, err
	}
	defer c.leave()
	for {
		if err := c.settle(ctx); err != nil {
			return nil, err
		}
		q, err := s.submitQuery(terms, func(r request) (*Op, error) { return c.submitPatiently(ctx, r) })
		if err == nil {
			if err = q.Wait(ctx); err == nil {
				return q, nil
			}
			q.Release()
		}
		if !errors.Is(err, ErrBrokerRestarted) { // else it is asked anew
			return nil, err
		}
	}
}

// SubmitQuery is Query without the wait. The query may be used at once: operations with
// it run after it (behaviour 215), and fail when it does. Len, Prims and Result know
// nothing before Wait has returned nil. Give back with Release in any case.
func (s *Stage) SubmitQuery(terms ...Term) (*Query, error) {
	return s.submitQuery(terms, s.client.submit)
}

func (s *Stage) submitQuery(terms []Term, submit func(request) (*Op, error)) (*Query, error) {
	c := s.client
	if err := c.enter(); err != nil {
		return nil, err
	}
	defer c.leave()
	var f snapshot.Filter
	for _, term := range terms {
		term(&f)
	}
	if c.reader.Directory().Header.Features&protocol.FeatureFilter == 0 {
		return nil, refused(fail(protocol.StatusNotSupported, "queries by filter are not part of this broker's version"))
	}
	if err := snapshot.CheckFilter(&f, c.schemas); err != nil {
		return nil, refused(err)
	}
	h := &queryHandle{client: c}
	h.id.Store(c.lastQuery.Add(1) | protocol.ClientHandle)
	op, err := submit(filterRequest(h.id.Load(), &f))
	if err != nil {
		return nil, refused(err)
	}
	h.life = op.life
	q := &Query{handle: h, search: &search{op: op}}
	runtime.AddCleanup(q, forgetQuery, h)
	return q, nil
}

// schemas are those that a name has.
func (c *client) schemas(name string) (all []tensor.Schema, err error) {
	columns, err := c.reader.Columns(name)
	for _, column := range columns {
		if column.Unreadable == nil {
			all = append(all, column.Schema)
		}
	}
	return all, err
}

// filterRequest is OpQueryFilter.
func filterRequest(handle uint64, f *snapshot.Filter) request {
	entry := sizeOf[protocol.FilterPredicate]()
	heads := sizeOf[protocol.FilterArguments]() + len(f.Predicates)*entry
	size := heads
	for i := range f.Predicates {
		size += (len(f.Predicates[i].Name)+3)&^3 + stringListBytes(f.Predicates[i].Values)
	}
	if f.Scoped {
		size += stringListBytes(f.Attributes)
	}
	return request{what: "making a query", opcode: protocol.OpQueryFilter, handle: handle, size: size, fill: func(dst []byte) error {
		args := protocol.FilterArguments{PredicateCount: uint32(len(f.Predicates))}
		if f.Sealed {
			args.Flags = protocol.FilterSealed
		}
		at := heads
		list := func(texts []string) (offset uint32) {
			offset = uint32(at)
			putStringList(dst[at:], texts)
			at += stringListBytes(texts)
			return offset
		}
		for i := range f.Predicates {
			p := &f.Predicates[i]
			e := protocol.FilterPredicate{Relation: p.Operator, NameBytes: uint32(len(p.Name)), NameOffsetBytes: uint32(at)}
			at += (copy(dst[at:], p.Name) + 3) &^ 3
			if len(p.Values) > 0 {
				e.ValuesOffsetBytes = list(p.Values)
			}
			copy(dst[sizeOf[protocol.FilterArguments]()+i*entry:], bytesOf(&e))
		}
		if f.Scoped {
			args.AttributesOffsetBytes = list(f.Attributes)
		}
		copy(dst, bytesOf(&args))
		return nil
	}}
}

// search is a filter's way to its result.
type search struct {
	op         *Op
	mutex      sync.Mutex // one goroutine fetches
	err        error      // of the filter; final
	attributes []string
	prims      atomic.Pointer[snapshot.PrimList] // stored last
}

// Wait waits until a query of SubmitQuery is made and known here, and returns its error.
// When ctx ends first the error is ErrTimeout: wait again. Other queries are known
// already.
func (q *Query) Wait(ctx context.Context) error {
	s := q.search
	if s == nil || s.prims.Load() != nil {
		return nil
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.prims.Load() != nil || s.err != nil {
		return s.err
	}
	err := s.op.Wait(ctx)
	if s.op.done.Load() && err != nil && s.op.err != nil {
		s.err = err
	}
	if err != nil {
		return err
	}
	c := q.handle.client
	if err := c.enter(); err != nil {
		return err
	}
	defer c.leave()
	names, err := c.page(ctx, protocol.OpQueryAttributes, q.handle, s.op.life)
	if err != nil {
		return s.final(err)
	}
	s.attributes = s.attributes[:0]
	for _, id := range names {
		name, err := c.reader.Text(id)
		if err != nil {
			return asError(err)
		}
		s.attributes = append(s.attributes, name)
	}
	ids, err := c.page(ctx, protocol.OpQueryPrims, q.handle, s.op.life)
	if err == nil && !c.keep(q.handle, ids, s.op.life) {
		err = fail(protocol.StatusBrokerRestarted, "making a query: the broker was restarted meanwhile; query again")
	}
	if err == nil {
		s.prims.Store(snapshot.NewPrimList(ids))
	}
	return s.final(err)
}

// final keeps the error of a query that a restart of the broker took.
func (s *search) final(err error) error {
	if errors.Is(err, ErrBrokerRestarted) {
		s.err = err
	}
	return err
}

// page lists all prims or attributes of a query, page by page.
func (c *client) page(ctx context.Context, opcode uint32, h *queryHandle, life uint64) (ids []uint64, err error) {
	for {
		op, err := c.call(ctx, request{what: "listing what a query found", opcode: opcode, handle: h.id.Load(), life: life, value: uint64(len(ids)), results: 8 * protocol.QueryPageMax})
		if err != nil {
			return nil, err
		}
		got, ok := sliceOf[uint64](op.content)
		ids = append(ids, got...)
		total := op.completion.Count
		if uint64(len(ids)) == total {
			return ids, nil
		}
		if !ok || len(got) == 0 || uint64(len(ids)) > total {
			return nil, fail(protocol.StatusInternal, "the broker listed %d of %d ids of a query", len(ids), total)
		}
	}
}

// Result waits for what a filter found. A query of explicit paths reports no attributes.
func (q *Query) Result(ctx context.Context) (QueryResult, error) {
	if err := q.Wait(ctx); err != nil {
		return QueryResult{}, err
	}
	r := QueryResult{Query: q, Total: q.Len()}
	if q.search != nil {
		r.Attributes = append(r.Attributes, q.search.attributes...)
	}
	return r, nil
}

// noPrims is what is known of a query before it was waited for.
var noPrims = snapshot.NewPrimList(nil)

// list is the query's prims as far as they are known.
func (q *Query) list() *snapshot.PrimList {
	if q.search == nil {
		return q.prims
	}
	if prims := q.search.prims.Load(); prims != nil {
		return prims
	}
	return noPrims
}

// running tells whether the query's prims are not known yet.
func (q *Query) running() bool { return q.search != nil && q.search.prims.Load() == nil }

// later is a read of a running query: it opens with the first fetch (behaviour 140).
type later struct {
	mutex    sync.Mutex
	open     func() (*Read, error)
	read     *Read
	released bool
}

// laterRead is a read whose errors surface when its groups are fetched: the query's own,
// or those of the read.
func laterRead(ctx context.Context, q *Query, open func() (*Read, error)) *Read {
	return &Read{later: &later{open: func() (*Read, error) {
		if err := q.Wait(ctx); err != nil {
			return nil, err
		}
		return open()
	}}}
}

// opened is the read itself.
func (r *Read) opened() (*Read, error) {
	if r.later == nil {
		return r, nil
	}
	l := r.later
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.read == nil {
		if l.released {
			return nil, fail(protocol.StatusInvalidHandle, "the read was released")
		}
		read, err := l.open()
		if err != nil {
			return nil, err
		}
		l.read = read
	}
	return l.read, nil
}

func (l *later) release() {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.released = true
	if l.read != nil {
		l.read.Release()
	}
}
