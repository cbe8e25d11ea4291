package callboard

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"callboard/protocol"
	"callboard/ring"
)

// Op is one operation that was submitted. Its outcome belongs to it and may be asked
// for by any number of goroutines. Nothing needs to be given back.
type Op struct {
	client     *client
	id         uint64
	request    request // without its fill
	life       uint64  // of the client when it was submitted
	arguments  room
	results    room
	done       atomic.Bool
	released   atomic.Bool
	err        *Error                   // from here on: valid once done
	completion protocol.CompletionEntry //
	content    []byte                   // a copy of the results
}

func (o *Op) what() string { return o.request.what }

// ID is the operation's number, from 1 and growing for each Stage.
func (o *Op) ID() uint64 { return o.id }

// Done tells without waiting whether the operation has ended.
func (o *Op) Done() bool {
	if !o.done.Load() && o.client.enter() == nil {
		o.client.drain()
		o.client.leave()
	}
	return o.done.Load()
}

// Ordinal is the ordinal that the operation ended up with; Epoch the newest epoch
// when it ended, a seal's own included. Both are 0 before its end.
func (o *Op) Ordinal() uint64 { return o.ended().Ordinal }

// Epoch: see Ordinal.
func (o *Op) Epoch() uint64 { return o.ended().Epoch }

// Floor is the write floor after a seal; 0 for other operations.
func (o *Op) Floor() uint64 { return o.ended().Value }

// Adopted tells whether the block that was handed over became the version itself,
// without a copy.
func (o *Op) Adopted() bool { return o.ended().Flags&protocol.CompletionAdopted != 0 }

// SealedMaybe tells, of an operation that ended with ErrBrokerRestarted, whether it may
// have been sealed before the broker went. Else it left nothing behind.
func (o *Op) SealedMaybe() bool { return o.ended().Flags&protocol.CompletionSealedMaybe != 0 }

func (o *Op) ended() protocol.CompletionEntry {
	if !o.done.Load() {
		return protocol.CompletionEntry{}
	}
	return o.completion
}

// Release forgets the outcome; a later Wait is ErrInvalidHandle (behaviour 214).
// It need not be called.
func (o *Op) Release() { o.released.Store(true) }

// Wait waits until the operation has ended and returns its error. When ctx ends
// first the error is ErrTimeout and wraps the context's; the operation goes on and
// may be waited for again. A context that is over already polls.
func (o *Op) Wait(ctx context.Context) error {
	if o.released.Load() {
		return fail(protocol.StatusInvalidHandle, "%s: operation %d was released", o.what(), o.id)
	}
	if !o.done.Load() {
		if err := o.await(ctx); err != nil {
			return err
		}
	}
	if o.err != nil {
		return o.err
	}
	return nil
}

// await returns nil once o is done.
func (o *Op) await(ctx context.Context) error {
	c := o.client
	if err := c.enter(); err != nil {
		if o.done.Load() { // closed meanwhile, which ends every op
			return nil
		}
		return err
	}
	defer c.leave()
	for {
		// Listen comes before the look: then a completion after it ends the wait.
		heard := c.ring.Listen()
		c.drain()
		if o.done.Load() {
			return nil
		}
		if ctx.Err() != nil {
			return gaveUp(ctx, fmt.Sprintf("%s (op %d; op %d is the lowest that it waits for)", o.what(), o.id, c.lowestPending(o)))
		}
		c.waitTurn(ctx, heard)
	}
}

// waitTurn waits for what comes after heard, for a turn at most (rule R4); when nothing
// comes it looks whether the broker is there.
func (c *client) waitTurn(ctx context.Context, heard uint32) {
	turn := turnMax
	if end, ok := ctx.Deadline(); ok {
		turn = min(turn, time.Until(end))
	}
	rung, err := c.ring.Wait(heard, turn)
	if err != nil {
		c.end(fail(protocol.StatusInternal, "waiting for the broker: %v", err))
	}
	if !rung {
		c.lookAtSocket()
	}
}

// finish stores the outcome. The caller holds client.mutex and has taken o out of
// the table.
func (o *Op) finish(err *Error, completion *protocol.CompletionEntry, content []byte) {
	o.err, o.content = err, content
	if completion != nil {
		o.completion = *completion
	}
	o.client.arguments.give(o.arguments)
	o.client.results.give(o.results)
	o.done.Store(true)
}

// request is an operation before it is submitted.
type request struct {
	what    string // for errors: "writing attribute "x""
	opcode  uint32
	flags   uint32
	handle  uint64
	query   *queryHandle // nil: handle says it
	ordinal uint64
	value   uint64
	size    int                    // of the arguments, in bytes
	fill    func(dst []byte) error // writes them; dst is shared memory, not cleared
	results int                    // room for results, in bytes

	names []string  // of the attributes that it is about
	at    uint64    // the ordinal of what it commits; that of the entry where 0
	life  uint64    // of the session or query that it belongs to; 0: any
	epoch uint64    // the newest one when it was submitted
	event *imported // that it names: the broker waits for it
}

// changes tells whether it is a producer's.
func (r *request) changes() bool {
	switch r.opcode {
	case protocol.OpWrite, protocol.OpMap, protocol.OpUnmapGroup, protocol.OpUnmapAttribute, protocol.OpSeal, protocol.OpDelete:
		return true
	}
	return false
}

// onQuery tells whether its handle is a query's.
func (r *request) onQuery() bool {
	switch r.opcode {
	case protocol.OpQueryPaths, protocol.OpQueryRelease, protocol.OpWrite, protocol.OpMap, protocol.OpDelete:
		return true
	}
	return false
}

// errorRoom is the least room of an op, so that the text of an error fits.
const errorRoom = 512

// submit hands an operation over. It never waits for the broker (rule R6): ErrQueueFull
// when too much is outstanding, ErrBrokerRestarted while there is none. The caller has
// entered.
func (c *client) submit(r request) (*Op, error) {
	c.notice()
	c.drain() // makes room; also notices a session that is over
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if err := c.alive(); err != nil {
		return nil, err
	}
	if c.gap.Load() != nil || r.life != 0 && r.life != c.life {
		return nil, fail(protocol.StatusBrokerRestarted, "%s: the broker is being restarted, or was; this was not submitted", r.what)
	}
	if len(c.lost) > 0 && r.changes() && r.flags&protocol.FlagAbort == 0 {
		return nil, c.refuseOnce()
	}
	if r.query != nil {
		r.handle = r.query.id.Load() // now: a restart changes it under mutex
	}
	c.confirm()
	return c.enqueue(&r)
}

// enqueue puts an operation into the ring. The caller holds mutex.
func (c *client) enqueue(r *request) (*Op, error) {
	r.at, r.epoch = max(r.at, r.ordinal), c.reader.Epoch()
	op := &Op{client: c, request: *r, life: c.life}
	op.request.fill = nil
	var err error
	if op.arguments, op.results, err = c.leaseFor(r.size, max(r.results, errorRoom)); err != nil {
		return nil, err
	}
	giveUp := func(err error) (*Op, error) {
		c.arguments.give(op.arguments)
		c.results.give(op.results)
		return nil, err
	}
	if r.size > 0 {
		dst, err := c.ring.Arguments(op.arguments.offset, uint32(r.size))
		if err == nil {
			err = r.fill(dst)
		}
		if err != nil {
			return giveUp(err)
		}
	}
	op.id = c.lastOp + 1
	e := protocol.SubmissionEntry{OpID: op.id, Opcode: r.opcode, Flags: r.flags, Handle: r.handle, Ordinal: r.ordinal, Value: r.value,
		ArgumentOffsetBytes: op.arguments.offset, ArgumentBytes: uint32(r.size), ResultOffsetBytes: op.results.offset, ResultBytes: op.results.size}
	if err := c.ring.Submit(&e); err != nil {
		if errors.Is(err, ring.ErrFull) {
			return giveUp(fail(protocol.StatusQueueFull, "%d operations are outstanding, as many as this channel has room for; wait for some", c.ring.Outstanding()))
		}
		return giveUp(fail(protocol.StatusInternal, "%v", err))
	}
	c.lastOp = op.id
	c.ops[op.id] = op
	return op, nil
}

// drain takes the completions that are there, and gives their room to what is deferred.
func (c *client) drain() {
	c.mutex.Lock()
	why := c.drainLocked()
	if why == nil {
		c.flush()
	}
	c.mutex.Unlock()
	if why != nil {
		c.end(why)
	}
}

// drainLocked returns why the broker cannot be believed any more, or nil. In a gap there
// is nothing to take.
func (c *client) drainLocked() *Error {
	if c.gap.Load() != nil {
		return nil
	}
	return c.poll()
}

// poll takes completions. The caller holds mutex.
func (c *client) poll() *Error {
	var e protocol.CompletionEntry
	for {
		ok, err := c.ring.Poll(&e)
		if err != nil {
			return fail(protocol.StatusInternal, "%v", err)
		}
		if !ok {
			return nil
		}
		op := c.ops[e.OpID]
		if op == nil {
			return fail(protocol.StatusInternal, "the broker completed operation %d, which is not outstanding", e.OpID)
		}
		if e.ResultBytes > op.results.size {
			return fail(protocol.StatusInternal, "the broker says that operation %d has %d bytes of results, in a room of %d", e.OpID, e.ResultBytes, op.results.size)
		}
		var content []byte
		if e.ResultBytes > 0 {
			shared, err := c.ring.Result(op.results.offset, e.ResultBytes)
			if err != nil {
				return fail(protocol.StatusInternal, "%v", err)
			}
			content = append([]byte(nil), shared...)
		}
		delete(c.ops, e.OpID)
		if status := protocol.Status(e.Status); status != protocol.StatusOK {
			op.finish(&Error{Status: status, Text: op.what() + ": " + string(content), OpID: op.id, operation: true}, &e, nil)
			continue
		}
		if op.request.event != nil {
			op.request.event.queued.Store(false)
		}
		c.unsealed.note(&op.request)
		op.finish(nil, &e, content)
	}
}

// call submits an operation that may be done twice, and waits for it: a restart of the
// broker does not show.
func (c *client) call(ctx context.Context, r request) (op *Op, err error) {
	for {
		if err := c.settle(ctx); err != nil {
			return nil, err
		}
		if op, err = c.submitPatiently(ctx, r); err == nil {
			err = op.Wait(ctx)
		}
		if !errors.Is(err, ErrBrokerRestarted) || r.life != 0 {
			return op, err
		}
	}
}
