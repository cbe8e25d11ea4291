package broker

import (
	"fmt"
	"os"
	"slices"
	"time"

	"callboard/control"
	"callboard/protocol"
	"callboard/ring"
	"callboard/shm"
	"callboard/snapshot"
)

const storeFeatures = snapshot.Features

// client is one attached process, or what is left of one.
type client struct {
	broker      *Broker
	conn        *shm.Conn
	incarnation uint64
	name        string
	language    uint32
	pid         int      // for display only
	process     *os.File // its pidfd, nil across pid namespaces
	flags       uint32
	layout      ring.Layout

	// ringGeneration grows when the rings begin anew after a restart (rule B1).
	ringGeneration uint64
	back           chan struct{} // of a found one: closed when its client comes back
	object         *shm.Object
	mapping        *shm.Mapping

	// The loop's own.
	server    *ring.Server
	pins      *ring.Pins
	arena     *snapshot.Arena
	queries   map[uint64]*snapshot.Query
	lastQuery uint64
	waiting   []protocol.SubmissionEntry // drained, not yet executed
	entries   []snapshot.Entry           // of the write that runs
	arguments []byte                     // private copy of the op's arguments
	attached  bool                       // its socket is open
	drained   time.Time                  // when the last of waiting were
	stalled   bool                       // its next op waits for memory or another op
	copying   bool                       // a copy job of its last op runs, and its next op waits
	beside    int                        // jobs that its next op does not wait for
	worked    bool
	left      bool   // its end was announced
	died      bool   // its process was gone when the socket closed
	hadEvents bool   // it was given an interprocess event's handle
	lingers   bool   // it is forgotten, but for the events that its process may have open
	pinless   bool   // its pins were taken away: what is left of it waits for its process
	found     bool   // an earlier life of the broker had attached it, and it is not back yet
	spoilt    bool   // found, but its channel cannot be read
	turn      func() // runs what it asked for, under Guard
	look      func() // sets worked when there is something to do, under Guard
	appendTo  []snapshot.Pin
	addPin    func(slot int, epoch uint64, attribute uint32)
}

// makeChannel makes the client's region and both of our views of it.
func (c *client) makeChannel() (err error) {
	b := c.broker
	if c.object, c.mapping, err = b.makeObject(fmt.Sprintf("%s%016x", shm.ChannelPrefix, c.incarnation), c.layout.TotalBytes); err != nil {
		return err
	}
	if err := c.layout.WriteHeader(c.mapping.Bytes(), c.identity()); err != nil {
		return err
	}
	return c.open()
}

func (c *client) identity() ring.Identity {
	return ring.Identity{Incarnation: c.incarnation, Generation: c.broker.generation.Number, BrokerIncarnation: c.broker.incarnation,
		RingGeneration: c.ringGeneration, Features: storeFeatures, Flags: c.flags, Name: c.name}
}

// open makes our side of the channel.
func (c *client) open() (err error) {
	b, mem := c.broker, c.mapping.Bytes()
	if c.server, err = ring.NewServer(mem, c.layout); err != nil {
		return err
	}
	if c.pins, err = ring.NewPins(mem, c.layout); err != nil {
		return err
	}
	c.queries = map[uint64]*snapshot.Query{}
	c.turn = func() { b.run(c) }
	c.look = func() { c.worked = c.runnable() }
	c.addPin = func(_ int, epoch uint64, attribute uint32) {
		c.appendTo = append(c.appendTo, snapshot.Pin{Epoch: epoch, Attribute: attribute})
	}
	return nil
}

// AppendPins is the scan of rules V2 and V3. A spoilt high-water mark does not hide
// pins: all slots are scanned then.
func (c *client) AppendPins(pins []snapshot.Pin) []snapshot.Pin {
	if c.spoilt {
		return pins
	}
	c.appendTo = pins
	if err := shm.Guard(c.scan); err != nil && c.attached {
		c.broker.later(func() {
			c.broker.end(c, protocol.Errorf(protocol.StatusSessionEnded, "the pins of this client cannot be read any more: %v", err))
		})
	}
	return c.appendTo
}

func (c *client) scan() {
	if err := c.pins.Scan(c.addPin); err != nil && c.attached {
		c.broker.later(func() {
			c.broker.end(c, protocol.Errorf(protocol.StatusSessionEnded, "malformed pins: %v", err))
		})
	}
}

// runnable tells whether the client's turn would find work.
func (c *client) runnable() bool {
	return !c.copying && !c.stalled && (len(c.waiting) > 0 || c.server.Pending())
}

// free gives the channel's own resources back and removes it.
func (c *client) free() {
	if c.object != nil {
		_ = c.object.Remove()
	}
	c.close()
}

// close lets go of the channel, which stays.
func (c *client) close() {
	if c.process != nil && !c.lingers {
		_ = c.process.Close()
	}
	if c.mapping != nil {
		_ = c.mapping.Close()
	}
	if c.object != nil {
		_ = c.object.Close()
	}
}

// join registers a client with the loop, before it learns of its channel.
func (b *Broker) join(c *client) {
	c.attached = true
	c.arena = b.memory.NewArena(protocol.SegmentClient, c.incarnation, "client "+c.name, c.flags&protocol.AttachGuard != 0)
	b.clients = append(b.clients, c)
	b.store.AddPins(c)
	b.announceClient(c, control.ClientJoin, "")
	b.config.Log.Info("client joined", "client", c.String(), "pid", c.pid)
}

// end ends a session from our side: the client reads why, then the hang-up. Its
// pins and memory stay until its process is proven dead.
func (b *Broker) end(c *client, why *protocol.Error) {
	if !c.attached {
		return
	}
	b.config.Log.Warn("a session was ended", "client", c.String(), "reason", why.Text)
	b.release(c)
	b.announceClient(c, control.ClientLeave, why.Text)
	c.left = true
	_ = c.conn.SendWithin(0, errorReply(why))
	_ = c.conn.Close() // its goroutine goes on to wait for the proof
}

func (b *Broker) endLater(c *client, why *protocol.Error) { b.do(func() { b.end(c, why) }) }

// detach notices that the socket is closed.
func (b *Broker) detach(c *client) {
	if !c.attached {
		return
	}
	c.died = c.exited()
	b.release(c)
	b.config.Log.Info("client hung up", "client", c.String())
}

// release gives back what belongs to the session: map sessions, queries, waiting
// ops. Nothing of them becomes visible (rules I2, M3).
func (b *Broker) release(c *client) {
	c.attached = false
	if n := b.store.AbortSessions(c); n > 0 {
		b.config.Log.Info("map sessions were aborted", "client", c.String(), "sessions", n)
	}
	b.forgetParked(c)
	c.queries = nil
	c.waiting = nil
}

// bury forgets a client whose lock is free: its process is dead, or it closed and
// has no view left. Its pins go first, then its memory is used again (rule S5). false: what
// it has on a device, or what a job still reads of it, must be waited for; try again.
func (b *Broker) bury(c *client) bool {
	i := slices.Index(b.clients, c)
	if i < 0 {
		return true
	}
	if c.copying || c.beside > 0 { // a copy still reads from its memory
		return false
	}
	if !c.pinless {
		c.pinless = true
		b.store.RemovePins(c)
	}
	if b.imports(c) && c.process != nil && !c.exited() {
		return false // its work on a device outlives its socket and its views (rule B4)
	}
	b.clients = slices.Delete(b.clients, i, i+1)
	c.lingers = c.hadEvents && c.process != nil && !c.exited()
	b.closeImports(c)
	b.store.ReleaseLent(c)
	b.mendSegments(c)
	b.memory.CloseArena(c.arena)
	c.free()
	if c.left {
		return true // it was announced when we ended it
	}
	if c.found {
		b.announceClient(c, control.ClientDied, "it did not come back after a restart of the broker")
	} else if c.died {
		b.announceClient(c, control.ClientDied, "its process ended without closing the session")
	} else {
		b.announceClient(c, control.ClientLeave, "")
	}
	b.config.Log.Info("client is gone", "client", c.String())
	return true
}

// mendSegments gives segments that the client truncated their length back, before the
// next client gets them: it must not meet the fault of this one (rule S3).
func (b *Broker) mendSegments(c *client) {
	for id, s := range b.objects {
		if seg := b.memory.Segment(id); seg == nil || seg.Owner != c.incarnation && seg.Sort != protocol.SegmentShared {
			continue
		}
		info, err := s.object.File().Stat()
		if err != nil || uint64(info.Size()) >= s.object.Size() {
			continue
		}
		b.config.Log.Warn("a segment was truncated by a process of this user; it is made whole", "client", c.name, "segment", id)
		if err := s.object.File().Truncate(int64(s.object.Size())); err != nil {
			b.config.Log.Error("a segment cannot be made whole", "segment", id, "error", err)
		}
	}
}

// exited tells whether the process is known to have ended.
func (c *client) exited() bool {
	if c.process == nil {
		return false
	}
	gone, err := shm.Exited(c.process)
	return err == nil && gone
}

// endAll ends every session when the broker stops.
func (b *Broker) endAll() {
	for _, c := range b.clients {
		b.end(c, protocol.Errorf(protocol.StatusSessionEnded, "the broker of stage %q was stopped", b.config.Stage))
	}
}

// pinnedBytes is what the client's library counts; for display.
func (c *client) pinnedBytes() (n uint64) {
	if !c.spoilt {
		_ = shm.Guard(func() { n = c.pins.PinnedBytes() }) // truncated: 0
	}
	return n
}
