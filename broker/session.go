package broker

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"callboard/protocol"
	"callboard/ring"
	"callboard/shm"
)

const (
	helloWait   = 2 * time.Second
	deathLook   = 100 * time.Millisecond // between two looks at a lock (rule I3)
	acceptPause = 50 * time.Millisecond
)

// accept takes clients in until the listener is closed.
func (b *Broker) accept() {
	for {
		conn, err := b.listener.Accept()
		switch {
		case err == nil:
			b.workers.Go(func() { b.session(conn) })
		case errors.Is(err, net.ErrClosed):
			return
		default:
			// Out of descriptors, most likely: say so loudly and go on (field report B9).
			b.config.Log.Error("a client could not be accepted", "error", err)
			b.health("error", "accept", err.Error(), nil)
			select {
			case <-b.ctx.Done():
				return
			case <-time.After(acceptPause):
			}
		}
	}
}

// session serves one connection: hello, then segment requests, until it hangs up.
func (b *Broker) session(conn *shm.Conn) {
	stop := make(chan struct{})
	defer close(stop)
	go func() { // a stopping broker ends what waits in Recv
		select {
		case <-b.ctx.Done():
		case <-stop:
		}
		_ = conn.Close()
	}()
	c, refusal := b.hello(conn)
	if refusal != nil {
		if refusal.Text != "" {
			b.config.Log.Info("a client was refused", "status", refusal.Status.String(), "reason", refusal.Text)
			_ = conn.Send(errorReply(refusal))
		}
		return
	}
	var buf [protocol.MessageBytesMax]byte
	for {
		n, files, err := conn.Recv(buf[:])
		for _, f := range files { // nobody asked for descriptors
			_ = f.Close()
		}
		if err != nil {
			var cut *shm.TruncatedError
			if errors.As(err, &cut) {
				b.endLater(c, protocol.Errorf(protocol.StatusSessionEnded, "malformed message: %v", err))
			}
			break
		}
		if failure := b.answer(c, buf[:n]); failure != nil {
			b.endLater(c, failure)
			break
		}
	}
	b.do(func() { b.detach(c) })
	b.awaitDeath(c, nil)
}

// hello checks who is there and gives it a channel.
func (b *Broker) hello(conn *shm.Conn) (*client, *protocol.Error) {
	var buf [protocol.MessageBytesMax]byte
	n, files, err := conn.RecvWithin(helloWait, buf[:])
	for _, f := range files {
		_ = f.Close()
	}
	if err != nil {
		if errors.Is(err, shm.ErrTimeout) {
			return nil, protocol.Errorf(protocol.StatusTimeout, "no hello came within %v", helloWait)
		}
		return nil, &protocol.Error{} // hung up: a probe, or a client that died
	}
	pid, refusal := b.admit(conn)
	if refusal != nil {
		return nil, refusal
	}
	head, ok := decode[protocol.MessageHeader](buf[:n], 0)
	if !ok || head.Magic != protocol.MagicMessage {
		return nil, protocol.Errorf(protocol.StatusInvalidArgument, "malformed hello: %d bytes with magic %#x, expected a HelloRequest with magic %#x", n, head.Magic, uint32(protocol.MagicMessage))
	}
	if head.Version>>16 != protocol.ABIMajor {
		return nil, protocol.Errorf(protocol.StatusIncompatibleVersion, "the client speaks protocol version %s, this broker %s: use a client library of major version %d",
			protocol.VersionText(head.Version), protocol.VersionText(protocol.VersionWord), protocol.ABIMajor)
	}
	request, ok := decode[protocol.HelloRequest](buf[:n], 0)
	switch {
	case head.Type == protocol.MessageTakeoverRequest:
		return nil, b.leaveTo(conn, buf[:n])
	case head.Type != protocol.MessageHelloRequest:
		return nil, protocol.Errorf(protocol.StatusInvalidArgument, "malformed hello: message type is %d, expected %d", head.Type, protocol.MessageHelloRequest)
	case !ok || int(head.SizeBytes) != n || n != len(encode(&request)):
		return nil, protocol.Errorf(protocol.StatusInvalidArgument, "malformed hello: %d bytes that say %d, expected %d", n, head.SizeBytes, len(encode(&request)))
	}
	if request.Incarnation != 0 {
		return b.reattach(conn, &request, pid)
	}
	return b.attach(conn, &request, pid)
}

func attachFlags(request *protocol.HelloRequest) uint32 {
	return request.Flags & (protocol.AttachGuard | protocol.AttachReadOnly)
}

// reattach gives a client of an earlier life of this broker its channel back.
func (b *Broker) reattach(conn *shm.Conn, request *protocol.HelloRequest, pid int) (c *client, refusal *protocol.Error) {
	process, _ := conn.PidFD()
	running := b.do(func() { c, refusal = b.takeBack(conn, request, pid, process) })
	if c == nil && process != nil {
		_ = process.Close()
	}
	switch {
	case !running:
		return nil, &protocol.Error{} // it tries again at who comes after us
	case refusal != nil:
		return nil, refusal
	}
	return b.welcome(c, request.Features, true)
}

// admit lets in whom the operator admits, by what the kernel says of the peer (rule I5).
func (b *Broker) admit(conn *shm.Conn) (pid int, refusal *protocol.Error) {
	pid, uid, gid, err := conn.PeerCred()
	if err != nil {
		return 0, protocol.Errorf(protocol.StatusAccessDenied, "the kernel does not say who connects: %v", err)
	}
	groups := []uint32{gid}
	if len(b.config.Access.GIDs) > 0 {
		more, err := conn.PeerGroups()
		if err != nil {
			b.config.Log.Warn("only a client's first group counts", "error", err)
		}
		groups = append(groups, more...)
	}
	if !b.config.Access.Admits(uid, groups) {
		return 0, protocol.Errorf(protocol.StatusAccessDenied, "user %d of groups %v may not attach: stage %q belongs to user %d and admits users %v and groups %v beside; its operator can admit more with `serve --allow-uid` or `--allow-gid`",
			uid, groups, b.config.Stage, os.Geteuid(), b.config.Access.UIDs, b.config.Access.GIDs)
	}
	return pid, nil
}

// attach makes the channel, registers it with the loop, and only then gives it away.
func (b *Broker) attach(conn *shm.Conn, request *protocol.HelloRequest, pid int) (*client, *protocol.Error) {
	layout, err := ring.NewLayout(request.SqEntries, request.CqEntries, request.PinCount, request.ArgumentBytes, request.ResultBytes)
	if err != nil {
		return nil, protocol.Errorf(protocol.StatusInvalidArgument, "%v", err)
	}
	c := &client{broker: b, conn: conn, incarnation: randomID(), layout: layout, pid: pid, language: request.Language,
		flags: attachFlags(request), name: cleanName(request.Name[:]), ringGeneration: 1}
	c.process, _ = conn.PidFD() // without one the lock alone is the proof
	if err := c.makeChannel(); err != nil {
		c.free()
		status := protocol.StatusInternal
		var full *shm.NoSpaceError
		if errors.As(err, &full) {
			status = protocol.StatusOutOfMemory
		}
		return nil, protocol.Errorf(status, "no channel could be made: %v", err)
	}
	if !b.do(func() { b.join(c) }) {
		c.free()
		return nil, protocol.Errorf(protocol.StatusSessionEnded, "the broker is stopping")
	}
	return b.welcome(c, request.Features, false)
}

// welcome answers the hello of a client that has joined.
func (b *Broker) welcome(c *client, features uint64, reattached bool) (*client, *protocol.Error) {
	if err := b.sendHello(c, features, reattached); err != nil {
		b.config.Log.Info("a client went away while it attached", "client", c.name, "error", err)
		_ = c.conn.SendWithin(0, errorReply(protocol.Errorf(protocol.StatusInternal, "no channel could be passed: %v", err)))
		b.do(func() { b.detach(c) })
		b.awaitDeath(c, nil)
		return nil, &protocol.Error{}
	}
	return c, nil
}

// sendHello passes the three descriptors. The channel's is locked shared: the
// client keeps it for as long as it lives (rule I3).
func (b *Broker) sendHello(c *client, features uint64, reattached bool) error {
	channel, err := reopen(c.object, true)
	if err != nil {
		return err
	}
	defer channel.Close()
	if err := shm.LockShared(channel); err != nil {
		return err
	}
	directory, err := reopen(b.directory, false)
	if err != nil {
		return err
	}
	defer directory.Close()
	doorbell, err := reopen(b.doorbell, true)
	if err != nil {
		return err
	}
	defer doorbell.Close()
	reply := protocol.HelloReply{Header: header(protocol.MessageHelloReply), Features: features & storeFeatures, Incarnation: c.incarnation,
		Generation: b.generation.Number, BrokerIncarnation: b.incarnation, ChannelBytes: c.layout.TotalBytes,
		DirectoryBytes: protocol.DirectoryBytes, DoorbellBytes: protocol.DoorbellBytes, RingGeneration: c.ringGeneration}
	if reply.DeviceCount = uint32(len(b.devices.all())); reply.DeviceCount > 0 {
		reply.Features |= features & protocol.FeatureDevice
	}
	if reattached {
		reply.Reattached = 1
	}
	reply.Header.SizeBytes = uint32(len(encode(&reply)))
	return c.conn.Send(encode(&reply), int(channel.Fd()), int(directory.Fd()), int(doorbell.Fd()))
}

// answer serves one message of an attached client; an error ends the session.
func (b *Broker) answer(c *client, msg []byte) *protocol.Error {
	if head, ok := decode[protocol.MessageHeader](msg, 0); ok && head.Magic == protocol.MagicMessage && head.Type == protocol.MessageDeviceRequest {
		return b.answerDevice(c, msg)
	}
	request, ok := decode[protocol.SegmentRequest](msg, 0)
	h := request.Header
	switch {
	case !ok || h.Magic != protocol.MagicMessage || int(h.SizeBytes) != len(msg) || len(msg) != len(encode(&request)):
		return protocol.Errorf(protocol.StatusSessionEnded, "malformed message: %d bytes, magic %#x, size %d; expected a SegmentRequest of %d bytes", len(msg), h.Magic, h.SizeBytes, len(encode(&request)))
	case h.Type != protocol.MessageSegmentRequest:
		return protocol.Errorf(protocol.StatusSessionEnded, "malformed message: type %d, expected %d", h.Type, protocol.MessageSegmentRequest)
	}
	reply := protocol.SegmentReply{Header: header(protocol.MessageSegmentReply), Segment: request.Segment, Status: uint32(protocol.StatusNotFound)}
	reply.Header.SizeBytes = uint32(len(encode(&reply)))
	var file *os.File
	var failure error
	running := b.do(func() {
		seg, object := b.memory.Segment(request.Segment), b.objects[request.Segment]
		if a := b.arenas[request.Segment]; a != nil && seg != nil { // it is imported, not mapped (rule C1)
			reply.Status, reply.SizeBytes, reply.OwnerIncarnation, reply.Sort = uint32(protocol.StatusNotSupported), a.bytes, seg.Owner, seg.Sort
		}
		if seg == nil || object == nil {
			return
		}
		reply.SizeBytes, reply.OwnerIncarnation, reply.Sort = uint64(len(seg.Bytes)), seg.Owner, seg.Sort
		if c.attached && (seg.Owner == c.incarnation || b.store.Claims(c, request.Segment)) {
			reply.Writable = 1
		}
		file, failure = reopen(object.object, reply.Writable == 1)
	})
	if !running { // no answer is better than a wrong one: another broker may go on with the stage
		return protocol.Errorf(protocol.StatusSessionEnded, "the broker is stopping")
	}
	if failure != nil {
		b.config.Log.Error("a segment could not be opened for a client", "client", c.name, "segment", request.Segment, "error", failure)
		reply.Status = uint32(protocol.StatusInternal)
	}
	if file == nil {
		return b.sendTo(c, encode(&reply))
	}
	defer file.Close()
	reply.Status = uint32(protocol.StatusOK)
	return b.sendTo(c, encode(&reply), int(file.Fd()))
}

// reopen gives an object's file description for a client. When somebody has removed the
// name, or put another file in its place, our own descriptor still leads to the object
// (field report A1).
func reopen(o *shm.Object, writable bool) (*os.File, error) {
	byName, mode := o.ReadOnlyFile, os.O_RDONLY
	if writable {
		byName, mode = o.WritableFile, os.O_RDWR
	}
	file, err := byName()
	if err != nil {
		if own, problem := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", o.File().Fd()), mode, 0); problem == nil {
			return own, nil
		}
	}
	return file, err
}

func (b *Broker) sendTo(c *client, msg []byte, fds ...int) *protocol.Error {
	if err := c.conn.Send(msg, fds...); err != nil {
		return protocol.Errorf(protocol.StatusSessionEnded, "the client does not read its socket: %v", err)
	}
	return nil
}

// awaitDeath looks for the proof that a client's process is gone, or that it closed
// without any view left; then its pins and memory go (rules I2, I3). What it had on a
// device waits for its process (rule B4). It ends when a client that was found comes back.
func (b *Broker) awaitDeath(c *client, back <-chan struct{}) {
	for {
		free, err := c.object.Unused()
		if err != nil {
			b.config.Log.Error("looking at a client's lock", "client", c.name, "error", err)
		}
		if free {
			buried := false
			if !b.do(func() { buried = b.bury(c) }) || buried {
				b.awaitExit(c)
				return
			}
		}
		select {
		case <-b.ctx.Done():
			return
		case <-back:
			return
		case <-time.After(deathLook):
		}
	}
}

// awaitExit waits for the end of a process that may have events open, after its client was
// forgotten: an event that is out of use is destroyed only then.
func (b *Broker) awaitExit(c *client) {
	for c.lingers {
		select {
		case <-b.ctx.Done():
		case <-time.After(deathLook):
			if !c.exited() {
				continue
			}
			b.do(func() { b.closeEvents(c) })
		}
		c.lingers = false
		_ = c.process.Close()
	}
}

func header(kind uint32) protocol.MessageHeader {
	return protocol.MessageHeader{Magic: protocol.MagicMessage, Version: protocol.VersionWord, Type: kind}
}

func errorReply(e *protocol.Error) []byte {
	reply := protocol.ErrorReply{Header: header(protocol.MessageErrorReply), Status: uint32(e.Status), BrokerVersion: protocol.VersionWord}
	reply.Header.SizeBytes = uint32(len(encode(&reply)))
	copy(reply.Text[:len(reply.Text)-1], clipText(e.Text, len(reply.Text)-1))
	return encode(&reply)
}

// cleanName makes a client's name fit for logs and tables.
func cleanName(raw []byte) string {
	if end := bytes.IndexByte(raw, 0); end >= 0 {
		raw = raw[:end]
	}
	name := bytes.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == 0xfffd {
			return '?'
		}
		return r
	}, raw)
	if len(name) == 0 {
		return "unnamed"
	}
	return string(name)
}

func (c *client) String() string { return fmt.Sprintf("%s (%016x)", c.name, c.incarnation) }
