package callboard

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"time"

	"callboard/protocol"
	"callboard/shm"
	"callboard/snapshot"
)

// How a client looks for a broker that is being restarted.
const (
	reattachWait = 10 * time.Second
	firstPause   = 20 * time.Millisecond
	longestPause = 200 * time.Millisecond
)

// gap is the time between the end of a broker and the moment at which this client is
// attached to the next one. Nobody but reattach touches the rings meanwhile: the next
// broker begins them anew (rule B1).
type gap struct{ over chan struct{} }

// lose begins a gap, unless there is one. What the broker had completed before it went
// stands. The caller holds the client.
func (c *client) lose() {
	c.mutex.Lock()
	why := c.drainLocked()
	if why == nil && c.gap.Load() == nil && c.ended.Load() == nil {
		g := &gap{over: make(chan struct{})}
		c.gap.Store(g)
		c.holders.Add(1)
		tell(slog.LevelWarn, logSession, "stage %s: the broker hung up; another one is looked for, for up to %v", c.options.Stage, c.options.ReattachWait)
		go c.reattach(g)
	}
	c.mutex.Unlock()
	if why != nil {
		c.end(why)
	}
}

// notice looks at the socket when another broker serves the stage already.
func (c *client) notice() {
	if c.reader.BrokerIncarnation() != c.broker.Load() {
		c.lookAtSocket()
	}
}

// settle waits for the end of a gap. Calls that wait for the broker begin with it.
func (c *client) settle(ctx context.Context) error {
	c.notice()
	for {
		g := c.gap.Load()
		if g == nil {
			return nil
		}
		select {
		case <-g.over:
		case <-ctx.Done():
			return gaveUp(ctx, "attaching again after a restart of the broker")
		}
	}
}

// reattach looks for the next broker until it has taken this client up, or says that it
// does not know it, or the time is over.
func (c *client) reattach(g *gap) {
	defer c.leave()
	defer func() {
		c.gap.CompareAndSwap(g, nil)
		close(g.over)
	}()
	deadline := time.Now().Add(c.options.ReattachWait)
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		conn, reply, err := c.hail(time.Until(deadline))
		if err == nil {
			if err = c.resume(conn, reply); err == nil {
				tell(slog.LevelInfo, logSession, "stage %s: broker %d took the session up again", c.options.Stage, reply.BrokerIncarnation)
				return
			}
			_ = conn.Close()
			deadline = time.Now().Add(c.options.ReattachWait)
		}
		var said *Error
		if errors.As(err, &said) && said.cause == nil {
			c.end(fail(protocol.StatusSessionEnded, "the broker was restarted: %s", said.Text))
			return
		}
		if time.Until(deadline) < pause {
			c.end(fail(protocol.StatusSessionEnded, "the broker hung up: it was killed or has crashed, and within %v none was there to go on (%v); dial again when it is back",
				c.options.ReattachWait, err))
			return
		}
		select {
		case <-c.over:
			return
		case <-time.After(pause):
		}
	}
}

// hail says hello as who this client was. An error with a cause may pass; one without is
// the broker's word.
func (c *client) hail(limit time.Duration) (*shm.Conn, *protocol.HelloReply, error) {
	conn, err := dialIn(c.dir)
	if err != nil {
		return nil, nil, err
	}
	hello := c.hello()
	hello.Incarnation, hello.Generation = c.identity.Incarnation, c.identity.Generation
	reply, files, err := greet(conn, &hello, min(helloWait, max(limit, firstPause)))
	if err == nil {
		err = c.recognise(reply, files)
	}
	files.close() // the channel's descriptor of before is as good: it is locked and stays open
	if err != nil {
		_ = conn.Close()
		return nil, nil, err
	}
	return conn, reply, nil
}

// recognise makes sure that the answer is about the same memory as before.
func (c *client) recognise(reply *protocol.HelloReply, files closers) error {
	if reply.Reattached == 0 || reply.Incarnation != c.identity.Incarnation || reply.Generation != c.identity.Generation {
		return fail(protocol.StatusSessionEnded, "it does not know this client; dial anew")
	}
	before, err := c.channelFile.Stat()
	if err != nil {
		return fail(protocol.StatusInternal, "%v", err)
	}
	if now, err := files[0].Stat(); err != nil || !os.SameFile(before, now) {
		return fail(protocol.StatusInternal, "it passed another channel than this client has; dial anew")
	}
	return nil
}

// resume goes on over a new connection: what was in flight ends, and queries are made
// anew. An error with a cause: the broker went again.
func (c *client) resume(conn *shm.Conn, reply *protocol.HelloReply) error {
	c.talking.Lock()
	c.mutex.Lock()
	over := c.ended.Load()
	if over == nil {
		_ = c.conn.Swap(conn).Close()
	}
	c.mutex.Unlock()
	c.talking.Unlock()
	if over != nil {
		return over
	}
	c.ring.Restart()
	c.broker.Store(reply.BrokerIncarnation)
	c.devices.restarted()
	// A reader of its own: one that does not wait for the end of this gap.
	r, err := snapshot.NewReader(c.directory.Bytes(), c.segmentNow, c.pins)
	if err != nil {
		return asError(err)
	}
	queries := c.settleAll(r, reply.RingGeneration)
	moved := make(map[uint64]uint64, len(queries))
	for _, h := range queries {
		if moved[h.id.Load()], err = c.makeAnew(conn, r, h.prims); err != nil {
			return err
		}
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	for _, h := range queries {
		if _, kept := c.queries[h]; !kept { // released meanwhile
			c.deferred = append(c.deferred, releaseRequest(moved[h.id.Load()], c.life))
			continue
		}
		h.id.Store(moved[h.id.Load()])
		h.life = c.life
	}
	c.gap.Store(nil) // under the lock: the next submission finds everything in place
	c.confirm()
	return nil
}

// settleAll ends everything of the life before, and gives the queries to make anew.
func (c *client) settleAll(r *snapshot.Reader, life uint64) (queries []*queryHandle) {
	floors := floorsNow(r)
	defer floors.release()
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.settleOps(floors)
	c.lost = append(c.lost, c.unsealed.above(floors)...)
	c.life, c.orphans, c.confirmed = life, len(c.sessions), false
	clear(c.unsealed)
	c.deletes.forget()
	for h := range c.queries {
		queries = append(queries, h)
	}
	return queries
}

// makeAnew registers a query with the broker; its prims have the ids that they had (rule
// L3).
func (c *client) makeAnew(conn *shm.Conn, r *snapshot.Reader, prims []uint64) (handle uint64, err error) {
	for first := true; first || len(prims) > 0; first = false {
		var paths []string
		for size := 0; len(prims) > 0 && len(paths) < pathsPerOp && size < pathBytesPerOp; prims = prims[1:] {
			path, err := r.Text(prims[0])
			if err != nil {
				return 0, asError(err)
			}
			paths = append(paths, path)
			size += 8 + len(path)
		}
		done, err := c.exchange(conn, stringsRequest("making a query again", protocol.OpQueryPaths, handle, 0, paths))
		if err != nil {
			return 0, err
		}
		handle = done.Handle
	}
	return handle, nil
}

// exchange runs one operation within a gap, when the rings are reattach's alone.
func (c *client) exchange(conn *shm.Conn, r request) (e protocol.CompletionEntry, err error) {
	c.mutex.Lock()
	op, err := c.enqueue(&r)
	c.mutex.Unlock()
	if err != nil {
		return e, err
	}
	for {
		heard := c.ring.Listen()
		c.mutex.Lock()
		why := c.poll()
		c.mutex.Unlock()
		switch {
		case why != nil:
			return e, why
		case op.done.Load() && op.err != nil:
			return e, op.err
		case op.done.Load():
			return op.completion, nil
		}
		if rung, err := c.ring.Wait(heard, turnMax); err != nil || !rung && conn.HungUp() {
			gone := &Error{Status: protocol.StatusBrokerRestarted, Text: "the broker hung up again", cause: io.EOF}
			c.mutex.Lock()
			if c.ops[op.id] == op {
				delete(c.ops, op.id)
				op.finish(gone, nil, nil)
			}
			c.mutex.Unlock()
			return e, gone
		}
	}
}

// confirm tells the broker, once, that no session of an earlier life of it is open here
// any more: nobody writes into that memory (rule B1). It is tried again with the next
// submission when there is no room. The caller holds mutex.
func (c *client) confirm() {
	if c.confirmed || c.orphans > 0 || c.gap.Load() != nil || c.ended.Load() != nil {
		return
	}
	_, err := c.enqueue(&request{what: "closing sessions of before", opcode: protocol.OpSessionsClosed})
	c.confirmed = err == nil
}

// forget takes a session off the list. The caller does not hold mutex.
func (c *client) forget(m *session) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if !c.sessions[m] {
		return
	}
	delete(c.sessions, m)
	if m.life != c.life {
		c.orphans--
		c.confirm()
	}
}

// doomed tells whether what was begun in a life of the broker is over with it.
func (c *client) doomed(life uint64) bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.gap.Load() != nil || life != c.life
}
