package broker

import (
	"errors"
	"runtime"
	"time"

	"callboard/protocol"
	"callboard/shm"
	"callboard/snapshot"
)

const (
	// drainBatch is how many entries of one client are looked at before the next client's turn.
	drainBatch = 64
	// sleepMax bounds a sleep (rule R3). A blocking wait gives the processor back to
	// Go: a raw one that keeps it starved copies and sockets on one processor.
	sleepMax = 100 * time.Millisecond
	// trimPause is how long memory must be wholly free before it leaves the machine.
	trimPause = 10 * time.Second
	// quietPause is how long nobody must ring before the loop copies ahead: who asks again
	// at once, maybe on the same processor, is served first.
	quietPause = 200 * time.Microsecond
	// troublePause keeps a loop that cannot sleep from burning a processor.
	troublePause = time.Millisecond
)

// loop is the stage loop: it owns everything of the stage until it stops.
func (b *Broker) loop() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for !b.stopping {
		if b.turn() {
			b.quiet = false
			continue
		}
		if b.quiet && b.store.CatchUp() {
			continue
		}
		b.trim()
		if err := shm.Guard(b.sleepOnce); err != nil {
			b.mendDoorbell(err)
		}
	}
	for _, work := range b.mailbox.end() {
		work()
	}
	if !b.leaving {
		b.endAll()
	}
}

// trim gives back memory that nobody used for a while, when there is nothing else to do.
func (b *Broker) trim() {
	if now := time.Now(); now.Sub(b.trimmed) >= trimPause {
		b.trimmed = now
		if freed := b.memory.TrimIdle(); freed > 0 {
			b.config.Log.Info("memory that was not used any more was given back", "bytes", freed)
		}
	}
}

// sleep waits until somebody rings, unless there is work already (rule R3).
func (b *Broker) sleep() {
	value, pause := b.bell.Arm(), sleepMax
	if b.quiet = b.store.Lags(); b.quiet {
		pause = quietPause
	}
	if !b.anyWork() {
		if err := b.bell.Wait(value, pause); err != nil {
			b.config.Log.Error("waiting on the doorbell", "error", err)
			time.Sleep(troublePause)
		}
	}
	b.bell.Disarm()
}

// mendDoorbell gives a doorbell that a client truncated its page back (rule S3).
func (b *Broker) mendDoorbell(fault error) {
	b.config.Log.Error("the doorbell was truncated by a process of this user; it is made whole", "error", fault)
	b.health("error", "doorbell", "the doorbell was truncated by a process of this user", nil)
	if err := b.doorbell.File().Truncate(protocol.DoorbellBytes); err != nil {
		b.config.Log.Error("the doorbell cannot be made whole", "error", err)
		time.Sleep(troublePause)
		return
	}
	writeRegionHeader(b.doorbellMap.Bytes(), protocol.MagicDoorbell, b.generation.Number, 0, 0)
}

// ring wakes the loop from another goroutine.
func (b *Broker) ring() {
	// A fault here is met by the loop as well, and mended there.
	_ = shm.Guard(b.bell.Ring)
}

// turn does the work that is there now and tells whether there was any.
func (b *Broker) turn() (worked bool) {
	for _, work := range b.mailbox.take() {
		work()
		worked = true
	}
	if worked { // memory came, a copy ended: what had to wait may go on
		for _, c := range b.clients {
			c.stalled = false
		}
	}
	for _, c := range b.clients {
		if c.attached {
			worked = b.serve(c) || worked
		}
	}
	if len(b.parked) > 0 {
		worked = b.unpark() || worked
	}
	return worked
}

func (b *Broker) anyWork() bool {
	if b.mailbox.pending() {
		return true
	}
	for _, c := range b.clients {
		// A fault counts as work: the client's turn meets it and ends the session.
		if c.attached && (shm.Guard(c.look) != nil || c.worked) {
			return true
		}
	}
	return false
}

// serve gives a client its turn. A memory fault in its objects ends its session
// (rule S3).
func (b *Broker) serve(c *client) (worked bool) {
	c.worked = false
	if err := shm.Guard(c.turn); err != nil {
		b.end(c, protocol.Errorf(protocol.StatusSessionEnded, "the memory of this client cannot be read any more: %v", err))
	}
	return c.worked
}

// run is a client's turn: entries that wait first, then new ones, until one must
// wait or a batch is done.
func (b *Broker) run(c *client) {
	if !c.runnable() {
		return
	}
	defer c.server.Flush()
	if len(c.waiting) == 0 {
		n, err := c.server.Drain(b.entries[:])
		c.waiting, c.drained = append(c.waiting[:0], b.entries[:n]...), time.Now()
		if err != nil {
			b.end(c, protocol.Errorf(protocol.StatusSessionEnded, "malformed ring entry: %v", err))
			return
		}
	}
	for len(c.waiting) > 0 && c.attached {
		e := c.waiting[0]
		c.worked = true
		out, job, err := b.execute(c, &e)
		if errors.Is(err, snapshot.ErrRetry) || c.beside > 0 && awaitsRoom(&e, err) {
			c.stalled = true
			return
		}
		c.waiting = c.waiting[1:]
		if errors.Is(err, errParked) {
			continue
		}
		if job != nil {
			if b.startCopy(&copyJob{client: c, entry: e, out: out, job: job}); c.copying {
				return
			}
			continue
		}
		b.complete(c, &e, out, err)
	}
}

// complete writes an op's completion: its outcome, or the text of its error.
func (b *Broker) complete(c *client, e *protocol.SubmissionEntry, out outcome, err error) {
	if !c.attached {
		return
	}
	done := protocol.CompletionEntry{OpID: e.OpID, Handle: out.Handle, Value: out.Value, Ordinal: out.Ordinal, Epoch: out.Epoch,
		Count: out.Count, Flags: out.Flags, ResultBytes: out.resultBytes}
	if done.Ordinal == 0 {
		done.Ordinal = e.Ordinal
	}
	if done.Epoch == 0 {
		done.Epoch = b.store.Epoch()
	}
	if err != nil {
		failure := snapshot.StatusError(err)
		done.Status = uint32(failure.Status)
		room, roomErr := c.server.Result(e.ResultOffsetBytes, e.ResultBytes)
		if roomErr != nil {
			panic("broker: the room of a checked entry is gone: " + roomErr.Error())
		}
		done.ResultBytes = uint32(copy(room, clipText(failure.Text, len(room))))
		if failure.Status == protocol.StatusInternal {
			b.config.Log.Error("an operation failed for a reason of our own", "client", c.name, "opcode", e.Opcode, "error", failure.Text)
		}
	}
	c.server.Complete(&done)
}

// clipText cuts text to n bytes without cutting a character.
func clipText(text string, n int) string {
	if len(text) <= n {
		return text
	}
	for n > 0 && text[n]&0xc0 == 0x80 {
		n--
	}
	return text[:n]
}
