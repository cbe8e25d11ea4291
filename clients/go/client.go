package callboard

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"

	"callboard/protocol"
	"callboard/ring"
	"callboard/shm"
	"callboard/snapshot"
)

// Stage is an attached stage. It may be used by any number of goroutines.
type Stage struct{ client *client }

// client is the attachment itself, which views, sessions and ops share with the Stage.
type client struct {
	options     Options
	dir         string // the stage's runtime directory
	identity    ring.Identity
	guard       bool
	conn        atomic.Pointer[shm.Conn]
	channelFile *os.File
	channel     *shm.Mapping
	directory   *shm.Mapping
	doorbell    *shm.Mapping
	pins        *ring.PinTable
	reader      *snapshot.Reader

	// holders counts the open Stage, each call in progress, each view and each open
	// session. With the last one the mappings go (invariant G1).
	holders atomic.Int64
	telling atomic.Int64 // of these, goroutines of Epochs
	closed  atomic.Bool
	ended   atomic.Pointer[Error] // why the session is over
	over    chan struct{}         // closed with it

	broker atomic.Uint64       // the incarnation of the broker that this client is attached to
	gap    atomic.Pointer[gap] // stored under mutex

	mutex     sync.Mutex // the ring, ops, both areas and all up to results
	ring      *ring.Client
	ops       map[uint64]*Op
	lastOp    uint64
	deferred  []request // nobody waits for them; see flush
	patient   int       // calls that wait for room
	life      uint64    // the ring generation: grows with each restart of the broker
	queries   map[*queryHandle]struct{}
	sessions  map[*session]bool
	orphans   int  // sessions of earlier lives that are open here
	confirmed bool // that there are none
	unsealed  unsealed
	lost      []string // what was unsealed at a restart, to be told once
	arguments area
	results   area

	talking sync.Mutex // requests over the socket, one at a time

	mapping  sync.RWMutex // segments
	segments map[uint64]*mapped
	kept     map[uint64]int // exports of their memory
	retired  atomic.Uint32

	deletes deletes
	devices devices

	lastQuery atomic.Uint64 // that this client numbered itself
	lastList  atomic.Uint64

	rooting sync.Mutex // root
	root    *Query     // of the single prim "/"
}

// enter keeps the mappings for a call; leave ends it.
func (c *client) enter() error {
	for {
		n := c.holders.Load()
		if n == 0 || c.closed.Load() {
			return fail(protocol.StatusSessionEnded, "this stage was closed; dial again")
		}
		if c.holders.CompareAndSwap(n, n+1) {
			if c.reader != nil { // not while it attaches
				c.dropRetired()
				c.dropImports()
			}
			return nil
		}
	}
}

func (c *client) leave() {
	if c.holders.Add(-1) == 0 {
		c.unmap()
	}
}

// unmap gives every resource back, as far as there are any.
func (c *client) unmap() {
	c.mapping.Lock()
	for _, m := range c.segments {
		m.close()
	}
	c.segments = map[uint64]*mapped{}
	c.mapping.Unlock()
	c.devices.close()
	for _, m := range []*shm.Mapping{c.channel, c.directory, c.doorbell} {
		if m != nil {
			_ = m.Close()
		}
	}
	if c.channelFile != nil {
		_ = c.channelFile.Close()
	}
}

// Close detaches: open map sessions are aborted, operations that are not done fail
// with ErrSessionEnded, queries are released. Views that are alive stay valid until
// their own Release. Later calls do nothing.
//
// Where device memory was used it waits, for 1 s at most, for work there that was handed
// over, and, for 2 s at most, until the broker has heard of the arenas that were closed.
// Work that takes longer keeps the arenas open to this process until it ends.
func (s *Stage) Close() error {
	s.client.close()
	return nil
}

func (c *client) close() {
	if c.closed.Swap(true) {
		return
	}
	c.leaveDevices()
	c.end(fail(protocol.StatusSessionEnded, "this stage was closed; dial again"))
	_ = c.conn.Load().Close()
	c.rooting.Lock()
	if c.root != nil {
		c.root.handle.released.Store(true) // ours, and not forgotten by anybody
	}
	c.rooting.Unlock()
	tell(slog.LevelInfo, logSession, "closed stage %s", c.options.Stage)
	c.leave()
}

// end makes the session over, once: all that is outstanding fails.
func (c *client) end(why *Error) {
	if c.ended.CompareAndSwap(nil, why) {
		close(c.over)
		if !c.closed.Load() {
			tell(slog.LevelWarn, logSession, "stage %s: the session is over: %s", c.options.Stage, why.Text)
		}
	}
	why = c.ended.Load()
	c.mutex.Lock()
	defer c.mutex.Unlock()
	for id, op := range c.ops {
		op.finish(&Error{Status: why.Status, Text: op.what() + ": " + why.Text, OpID: op.id, operation: true}, nil, nil)
		delete(c.ops, id)
	}
}

// alive is the reason why the session is over, or nil.
func (c *client) alive() error {
	if why := c.ended.Load(); why != nil {
		e := *why
		return &e
	}
	return nil
}

// lookAtSocket notices a broker that hung up, after a turn without news (rule R4).
func (c *client) lookAtSocket() {
	if c.ended.Load() != nil || !c.conn.Load().HungUp() || !c.talking.TryLock() {
		return // whoever talks notices it as well
	}
	defer c.talking.Unlock()
	if c.conn.Load().HungUp() { // it may be another one since
		c.hungUp()
	}
}

// hungUp reads what the broker said last: it ended the session, or else it is gone itself
// and the next one is looked for. The caller holds talking.
func (c *client) hungUp() {
	if c.gap.Load() != nil {
		return
	}
	var why *Error
	var buf [protocol.MessageBytesMax]byte
	for {
		n, files, err := c.conn.Load().RecvWithin(turnMax, buf[:])
		for _, f := range files {
			_ = f.Close()
		}
		if err != nil {
			break
		}
		var said *Error
		if errors.As(errorIn(buf[:n]), &said) {
			why = said
		}
	}
	switch {
	case why != nil && why.Status != protocol.StatusBrokerRestarted:
		c.end(why)
	case c.options.ReattachWait < 0:
		c.end(fail(protocol.StatusSessionEnded, "the broker hung up: it was killed or has crashed; dial again when it is back"))
	default:
		c.lose()
	}
}

const turnMax = ring.TurnMax

// forgot tells the program of something that was dropped without being given back.
func (c *client) forgot(what string) {
	tell(slog.LevelWarn, logHandle, "stage %s: %s was dropped without being given back", c.options.Stage, what)
	if c.options.Forgotten != nil {
		c.options.Forgotten(what)
	}
}

// pinByBroker is operation PIN (rule V2). It waits for as long as the session lives:
// the slots may be stored into until then. A restart of the broker does not show.
func (c *client) pinByBroker(slots []uint32) (uint64, error) {
	for {
		op, err := c.submitPatiently(context.Background(), request{what: "pinning", opcode: protocol.OpPin, size: 4 * len(slots), fill: func(dst []byte) error {
			copy(dst, bytesOfSlice(slots))
			return nil
		}})
		if err == nil {
			if err = op.Wait(context.Background()); err == nil {
				return op.completion.Epoch, nil
			}
		}
		if !errors.Is(err, ErrBrokerRestarted) {
			return 0, err
		}
		if err := c.settle(context.Background()); err != nil {
			return 0, err
		}
		for _, slot := range slots {
			c.pins.Unpin(int(slot))
		}
	}
}
