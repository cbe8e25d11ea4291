package callboard

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"

	"callboard/protocol"
	"callboard/snapshot"
)

// Query is an ordered list of prims. It is independent of what it was made from
// (behaviour 173) and may be used by any number of goroutines.
type Query struct {
	handle *queryHandle
	prims  *snapshot.PrimList
	search *search // of a filter; nil: prims are known
}

type queryHandle struct {
	client   *client
	id       atomic.Uint64 // another one after each restart of the broker
	life     uint64        // that id is of; changed under client.mutex
	prims    []uint64
	released atomic.Bool
	list     atomic.Pointer[PathList] // that it was made of, nil: none
}

// Pieces that a long list travels in.
const (
	pathsPerOp     = 8192
	pathBytesPerOp = 128 << 10
)

// QueryFromPathList makes a query of explicit paths, each starting with "/"; they
// need not exist yet (behaviour 231). Order is kept, and so are duplicates. It waits
// for the broker. Give back with Release.
//
// Errors: INVALID_ARGUMENT names the path.
func (s *Stage) QueryFromPathList(ctx context.Context, paths []string) (*Query, error) {
	c := s.client
	if err := c.enter(); err != nil {
		return nil, err
	}
	defer c.leave()
	return c.queryPaths(ctx, paths)
}

func (c *client) queryPaths(ctx context.Context, paths []string) (*Query, error) {
	for _, path := range paths {
		if err := snapshot.CheckPath(path); err != nil {
			return nil, refused(err)
		}
	}
	for {
		q, err := c.makeQuery(ctx, paths)
		if !errors.Is(err, ErrBrokerRestarted) {
			return q, err
		}
	}
}

// makeQuery is one attempt, which a restart of the broker may spoil half-way.
func (c *client) makeQuery(ctx context.Context, paths []string) (*Query, error) {
	h := &queryHandle{client: c}
	ids, life := make([]uint64, 0, len(paths)), uint64(0)
	for first := true; first || len(paths) > 0; first = false {
		n, size := 0, 0
		for n < len(paths) && n < pathsPerOp && size < pathBytesPerOp {
			size += 8 + len(paths[n])
			n++
		}
		r := stringsRequest("making a query", protocol.OpQueryPaths, h.id.Load(), 0, paths[:n])
		r.life = life
		op, err := c.call(ctx, r)
		if err != nil {
			h.release()
			return nil, err
		}
		life = op.life
		got, ok := sliceOf[uint64](op.content)
		if !ok || len(got) != n {
			h.release()
			return nil, fail(protocol.StatusInternal, "the broker answered %d path ids for %d paths", len(got), n)
		}
		h.id.Store(op.completion.Handle)
		h.life = life
		ids = append(ids, got...)
		paths = paths[n:]
	}
	q := &Query{handle: h, prims: snapshot.NewPrimList(ids)}
	if !c.keep(h, ids, life) {
		h.released.Store(true)
		return nil, fail(protocol.StatusBrokerRestarted, "making a query: the broker was restarted meanwhile")
	}
	runtime.AddCleanup(q, forgetQuery, h)
	return q, nil
}

// forgetQuery gives back what was dropped without a Release.
func forgetQuery(h *queryHandle) {
	if h.release() {
		h.client.forgot("a query")
	}
}

// Len is the number of logical elements, duplicates counted.
func (q *Query) Len() int { return len(q.list().IDs()) }

// Prims are the path ids, in the query's order. Do not change them.
func (q *Query) Prims() []uint64 { return q.list().IDs() }

// Release gives the query back. Operations that were submitted with it go on; later
// calls do nothing.
func (q *Query) Release() { q.handle.release() }

func (h *queryHandle) release() (first bool) {
	if h.released.Swap(true) {
		return false
	}
	_ = h.list.Load().Release()
	c := h.client
	if h.id.Load() == 0 || c.enter() != nil {
		return true // the end of the session releases it as well
	}
	defer c.leave()
	c.mutex.Lock()
	delete(c.queries, h) // not made anew from here on; where that is under way it is released by resume
	handle, life := h.id.Load(), h.life
	c.mutex.Unlock()
	c.insist(releaseRequest(handle, life))
	return true
}

func releaseRequest(handle, life uint64) request {
	return request{what: "releasing a query", opcode: protocol.OpQueryRelease, handle: handle, life: life}
}

// keep notes a query that was made in a life of the broker, so that it is made anew in
// the next one; false: that one has begun.
func (c *client) keep(h *queryHandle, prims []uint64, life uint64) bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if life != c.life {
		return false
	}
	if !h.released.Load() {
		h.prims, c.queries[h] = prims, struct{}{}
	}
	return true
}

// use gives what an operation names the query by. Its number is looked up when the operation is submitted: each restart
// of the broker gives it another one.
func (q *Query) use(c *client) (*queryHandle, error) {
	switch {
	case q == nil:
		return nil, refused(fail(protocol.StatusInvalidArgument, "the query is nil"))
	case q.handle.client != c:
		return nil, refused(fail(protocol.StatusInvalidHandle, "the query belongs to another attachment; queries are not shared"))
	case q.handle.released.Load():
		return nil, refused(fail(protocol.StatusInvalidHandle, "query %d was released", q.handle.id.Load()))
	}
	return q.handle, nil
}

// stringsRequest is an operation whose arguments are a list of strings and whose
// results are their ids.
func stringsRequest(what string, opcode uint32, handle, value uint64, texts []string) request {
	return request{what: what, opcode: opcode, handle: handle, value: value, size: stringListBytes(texts), results: 8 * len(texts),
		fill: func(dst []byte) error { putStringList(dst, texts); return nil }}
}

// stringListBytes is the size of protocol.StringList with texts.
func stringListBytes(texts []string) int {
	n := sizeOf[protocol.StringList]()
	for _, text := range texts {
		n += 4 + (len(text)+3)&^3
	}
	return n
}

func putStringList(dst []byte, texts []string) {
	head := protocol.StringList{Count: uint32(len(texts)), TotalBytes: uint32(stringListBytes(texts))}
	at := copy(dst, bytesOf(&head))
	for _, text := range texts {
		length := uint32(len(text))
		at += copy(dst[at:], bytesOf(&length))
		end := at + (len(text)+3)&^3
		at += copy(dst[at:], text)
		clear(dst[at:end])
		at = end
	}
}

// Resolve gives the paths of prims, or the texts of tokens. No broker is involved.
// NOT_FOUND names an id that this generation of the stage never gave out.
func (s *Stage) Resolve(ids ...uint64) ([]string, error) {
	c := s.client
	if err := c.enter(); err != nil {
		return nil, err
	}
	defer c.leave()
	texts := make([]string, len(ids))
	for i, id := range ids {
		var err error
		if texts[i], err = c.reader.Text(id); err != nil {
			return nil, asError(err)
		}
	}
	return texts, nil
}

// Tokens interns texts and gives their ids, which are the same for everyone on the
// stage (behaviour 248). It waits for the broker.
func (s *Stage) Tokens(ctx context.Context, texts ...string) ([]uint64, error) {
	return s.intern(ctx, protocol.StringToken, texts)
}

func (s *Stage) intern(ctx context.Context, sort uint64, texts []string) ([]uint64, error) {
	c := s.client
	if err := c.enter(); err != nil {
		return nil, err
	}
	defer c.leave()
	op, err := c.call(ctx, stringsRequest("interning texts", protocol.OpIntern, 0, sort, texts))
	if err != nil {
		return nil, err
	}
	ids, ok := sliceOf[uint64](op.content)
	if !ok || len(ids) != len(texts) {
		return nil, fail(protocol.StatusInternal, "the broker answered %d ids for %d texts", len(ids), len(texts))
	}
	return ids, nil
}
