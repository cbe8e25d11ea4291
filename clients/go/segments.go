package callboard

import (
	"context"
	"errors"
	"os"
	"sync/atomic"

	"callboard/protocol"
	"callboard/shm"
)

// mapped is a segment in this process. One that became ours after it was mapped
// read-only has both mappings: views of the first may be alive.
type mapped struct {
	readable, writable *shm.Mapping
}

func (m *mapped) close() {
	for _, x := range []*shm.Mapping{m.readable, m.writable} {
		if x != nil {
			_ = x.Close()
		}
	}
}

// segment resolves an id for the reader; a warm call takes no memory.
func (c *client) segment(id uint64) ([]byte, error) {
	c.mapping.RLock()
	m := c.segments[id]
	c.mapping.RUnlock()
	if m != nil && m.readable != nil {
		return m.readable.Bytes(), nil
	}
	x, err := c.pull(id, false)
	if err != nil {
		return nil, err
	}
	return x.Bytes(), nil
}

// writableSegment resolves the id of a segment that this client may write.
func (c *client) writableSegment(id uint64) (*shm.Mapping, error) {
	c.mapping.RLock()
	m := c.segments[id]
	c.mapping.RUnlock()
	if m != nil && m.writable != nil {
		return m.writable, nil
	}
	return c.pull(id, true)
}

// segmentNow is segment for whoever takes this client up again: it does not wait for the
// end of that.
func (c *client) segmentNow(id uint64) ([]byte, error) {
	x, err := c.pullOnce(id, false)
	if err != nil {
		return nil, err
	}
	return x.Bytes(), nil
}

// pull asks the broker for a segment and maps it (rule S2), or the next broker when there
// is none now.
func (c *client) pull(id uint64, writable bool) (*shm.Mapping, error) {
	broker := c.broker.Load()
	for {
		x, err := c.pullOnce(id, writable)
		if errors.Is(err, ErrNotFound) && c.broker.Load() != broker {
			return nil, fail(protocol.StatusBrokerRestarted, "the broker restarted, and segment %d is of the time before: what lay there was not sealed; do it again", id)
		}
		if !errors.Is(err, ErrBrokerRestarted) {
			return x, err
		}
		if err := c.settle(context.Background()); err != nil {
			return nil, err
		}
	}
}

// pullOnce fails with BROKER_RESTARTED when the broker went meanwhile.
func (c *client) pullOnce(id uint64, writable bool) (*shm.Mapping, error) {
	c.talking.Lock()
	defer c.talking.Unlock()
	c.mapping.RLock()
	m := c.segments[id]
	c.mapping.RUnlock()
	if m != nil && writable && m.writable != nil { // somebody else was faster
		return m.writable, nil
	}
	if m != nil && !writable && m.readable != nil {
		return m.readable, nil
	}
	if err := c.alive(); err != nil {
		return nil, err
	}
	request := protocol.SegmentRequest{Header: messageHeader[protocol.SegmentRequest](protocol.MessageSegmentRequest), Segment: id}
	var buf [protocol.MessageBytesMax]byte
	msg, files, err := c.talk(bytesOf(&request), buf[:])
	defer files.close()
	if err != nil {
		return nil, err
	}
	reply, ok := decode[protocol.SegmentReply](msg)
	if err := checkMessage(msg, ok, protocol.MessageSegmentReply); err != nil {
		return nil, err
	}
	if reply.Segment != id {
		return nil, fail(protocol.StatusInternal, "the broker answered for segment %d, asked was %d", reply.Segment, id)
	}
	if status := protocol.Status(reply.Status); status != protocol.StatusOK {
		return nil, fail(status, "the broker has no segment %d (any more)", id)
	}
	if len(files) != 1 {
		return nil, fail(protocol.StatusInternal, "the broker passed %d descriptors for segment %d, expected 1", len(files), id)
	}
	if writable && reply.Writable == 0 {
		return nil, fail(protocol.StatusInternal, "segment %d is not this client's to write: it belongs to %#x", id, reply.OwnerIncarnation)
	}
	x, err := shm.Map(files[0], reply.SizeBytes, writable) // refuses an object that is smaller
	if err != nil {
		return nil, err
	}
	err = checkSegment(x.Bytes(), id, c.reader.Generation())
	if err == nil {
		err = x.DontFork()
	}
	if err != nil {
		_ = x.Close()
		return nil, err
	}
	c.mapping.Lock()
	defer c.mapping.Unlock()
	next := mapped{}
	if old := c.segments[id]; old != nil {
		next = *old
	}
	if writable {
		next.writable = x
	} else {
		next.readable = x
	}
	c.segments[id] = &next
	return x, nil
}

// talk sends a request over the socket and gives the answer, which lies in buf; the
// descriptors are the caller's, with an error too. It fails with BROKER_RESTARTED when the
// broker went meanwhile. The caller holds talking, and has seen that the session goes on.
func (c *client) talk(request, buf []byte) (msg []byte, files closers, err error) {
	conn := c.conn.Load()
	err = conn.Send(request)
	var n int
	if err == nil {
		n, files, err = conn.RecvWithin(requestWait, buf)
	}
	if err != nil {
		if errors.Is(err, shm.ErrTimeout) {
			// A late answer would be taken for that of the next request.
			c.end(fail(protocol.StatusSessionEnded, "the broker did not answer a request within %v", requestWait))
		} else {
			c.hungUp()
		}
		if over := c.alive(); over != nil {
			return nil, files, over
		}
		return nil, files, &Error{Status: protocol.StatusBrokerRestarted, Text: "the broker went before it answered", cause: err}
	}
	if err := errorIn(buf[:n]); err != nil {
		var said *Error
		if errors.As(err, &said) {
			c.end(said)
		}
		return nil, files, c.alive()
	}
	return buf[:n], files, nil
}

// checkSegment makes sure that what was mapped is the segment that was meant: an id
// names one creation, whatever a descriptor or a name leads to (rule S2, field report
// A25).
func checkSegment(mem []byte, id, generation uint64) error {
	h, err := shm.View[protocol.RegionHeader](mem, 0)
	if err != nil {
		return fail(protocol.StatusInternal, "segment %d has no header: %v", id, err)
	}
	switch version := atomic.LoadUint32(&h.Version); {
	case h.Magic != protocol.MagicSegment || version == 0:
		return fail(protocol.StatusInternal, "segment %d is none: its magic is %#x and its version %#x, expected %#x and %#x", id, h.Magic, version, uint64(protocol.MagicSegment), uint32(protocol.VersionWord))
	case version>>16 != protocol.ABIMajor:
		return fail(protocol.StatusIncompatibleVersion, "segment %d is of protocol version %s, this library speaks %s", id, protocol.VersionText(version), protocol.VersionText(protocol.VersionWord))
	case h.RegionID != id || h.Generation != generation:
		return fail(protocol.StatusInternal, "the object for segment %d of generation %d is segment %d of generation %d: it was made anew; attach again", id, generation, h.RegionID, h.Generation)
	}
	return nil
}

// dropRetired unmaps segments that left service; every call begins with it. Nothing that
// is pinned or leased lies in one: the broker retires only what is wholly free (rule S2).
// What a DLPack consumer has of a session that ended does: it is kept until the deleter.
func (c *client) dropRetired() {
	count := c.reader.RetiredCount()
	if c.retired.Load() == count || c.retired.Swap(count) == count {
		return
	}
	c.devices.stale.Store(true)
	c.mapping.RLock()
	ids := make([]uint64, 0, len(c.segments))
	for id := range c.segments {
		ids = append(ids, id)
	}
	c.mapping.RUnlock()
	for _, id := range ids {
		e, ok, err := c.reader.Segment(id)
		if err != nil || !ok || e.State != protocol.SegmentRetired {
			continue
		}
		c.mapping.Lock()
		switch m := c.segments[id]; {
		case m != nil && c.kept[id] > 0:
			c.retired.Store(count - 1) // the next call looks again
		case m != nil:
			delete(c.segments, id)
			m.close()
		}
		c.mapping.Unlock()
	}
}

type closers []*os.File

func (f closers) close() {
	for _, x := range f {
		_ = x.Close()
	}
}
