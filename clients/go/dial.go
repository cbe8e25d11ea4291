package callboard

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"callboard/protocol"
	"callboard/ring"
	"callboard/shm"
	"callboard/snapshot"
)

// Options say how to attach. The zero value attaches to $CALLBOARD_STAGE, or to the
// stage "default".
type Options struct {
	// Stage is the stage's name.
	Stage string
	// RuntimeDir is the directory that holds the broker's attach.sock, where the usual
	// places are not to be looked at.
	RuntimeDir string
	// Name is shown to people who look at the broker; the program's name.
	Name string
	// Guard makes memory read-only in this process once it was unmapped, so that a late
	// store faults where it is made (rule M1). CALLBOARD_GUARD=1 in the environment sets it.
	Guard bool
	// ReadOnly attaches without the right to write.
	ReadOnly bool
	// PinCount asks for a number of pin slots: how many attributes may be held by views
	// at once, the floors of each view included; 0 for 4096.
	PinCount uint32
	// ReattachWait is how long a broker that is gone without a word is waited for. One that
	// comes back and has recovered the stage takes this client up again: reads go on all
	// the time, and operations that were not sealed end with ErrBrokerRestarted. 0: ten
	// seconds; negative: the session ends at once.
	ReattachWait time.Duration
	// Forgotten is told of views, sessions and queries that were dropped without
	// having been given back, once they have been (invariant G5). It runs on a
	// goroutine of the runtime's and must not block.
	Forgotten func(what string)
}

// helloWait bounds the attach, requestWait an answer to a request.
const (
	helloWait   = 5 * time.Second
	requestWait = 5 * time.Second
)

// Dial attaches to a stage's broker. On failure nothing stays behind. Close the Stage
// when done: one that is merely dropped may stay attached until the process ends.
//
// Errors: NOT_FOUND lists every place that was looked at and what was wrong with
// each; INCOMPATIBLE_VERSION names both versions; ACCESS_DENIED.
func Dial(ctx context.Context, o Options) (*Stage, error) {
	if o.Stage == "" {
		o.Stage = os.Getenv("CALLBOARD_STAGE")
	}
	named := o.Stage != "" // else whatever a $CALLBOARD_RUNTIME_DIR serves is meant
	if !named {
		o.Stage = "default"
	}
	if o.Name == "" {
		o.Name = filepath.Base(os.Args[0])
	}
	if o.ReattachWait == 0 {
		o.ReattachWait = reattachWait
	}
	o.Guard = o.Guard || os.Getenv("CALLBOARD_GUARD") == "1"
	if err := shm.CheckStage(o.Stage); err != nil {
		return nil, fail(protocol.StatusInvalidArgument, "%v", err)
	}
	if err := ctx.Err(); err != nil {
		return nil, gaveUp(ctx, "attaching")
	}
	dir, err := o.RuntimeDir, error(nil)
	if dir == "" {
		dir, err = shm.FindRuntime(o.Stage)
	}
	if err != nil {
		return nil, &Error{Status: protocol.StatusNotFound, Text: err.Error(), cause: err}
	}
	conn, err := dialIn(dir)
	if err != nil {
		return nil, err
	}
	c := &client{options: o, dir: dir, ops: map[uint64]*Op{}, segments: map[uint64]*mapped{}, kept: map[uint64]int{}, over: make(chan struct{}),
		queries: map[*queryHandle]struct{}{}, sessions: map[*session]bool{}, confirmed: true, unsealed: unsealed{}}
	c.conn.Store(conn)
	err = c.attach(ctx, conn)
	if err == nil && named {
		err = c.checkStage(dir)
	}
	if err != nil {
		_ = conn.Close()
		c.unmap()
		tell(slog.LevelWarn, logSession, "not attached to stage %s: %v", o.Stage, err)
		return nil, asError(err)
	}
	c.holders.Store(1)
	tell(slog.LevelInfo, logSession, "attached to stage %s, generation %d, as client %d of broker %d", o.Stage, c.identity.Generation, c.identity.Incarnation, c.broker.Load())
	return &Stage{client: c}, nil
}

// checkStage refuses a directory that serves another stage than the one that was named.
func (c *client) checkStage(dir string) error {
	name := c.reader.Directory().StageName
	if serves := text(name[:]); serves != c.options.Stage {
		return fail(protocol.StatusNotFound, "runtime directory %s serves stage %q, not %q; name that one, or point CALLBOARD_RUNTIME_DIR at the directory of the other", dir, serves, c.options.Stage)
	}
	return nil
}

// dialIn connects to the broker whose socket is in a directory.
func dialIn(dir string) (*shm.Conn, error) {
	trusted, err := shm.TrustedUIDs()
	if err == nil {
		err = shm.VerifyDir(dir, trusted...)
	}
	if err != nil {
		return nil, &Error{Status: protocol.StatusNotFound, Text: err.Error(), cause: err}
	}
	conn, err := shm.Dial(filepath.Join(dir, shm.AttachSocket))
	if err != nil {
		return nil, &Error{Status: protocol.StatusNotFound, Text: "attaching: " + err.Error(), cause: err}
	}
	return conn, nil
}

// hello is what this client says of itself.
func (c *client) hello() protocol.HelloRequest {
	hello := protocol.HelloRequest{Header: messageHeader[protocol.HelloRequest](protocol.MessageHelloRequest), Features: snapshot.Features,
		Language: protocol.LanguageGo, Pid: uint32(os.Getpid()), PinCount: c.options.PinCount}
	if c.options.Guard {
		hello.Flags |= protocol.AttachGuard
	}
	if c.options.ReadOnly {
		hello.Flags |= protocol.AttachReadOnly
	}
	copy(hello.Name[:len(hello.Name)-1], c.options.Name)
	return hello
}

// greet says hello and takes the answer. The descriptors are the caller's to close, with
// an error as well. An error with a cause is not the broker's word.
func greet(conn *shm.Conn, hello *protocol.HelloRequest, limit time.Duration) (*protocol.HelloReply, closers, error) {
	if err := conn.Send(bytesOf(hello)); err != nil {
		return nil, nil, &Error{Status: protocol.StatusSessionEnded, Text: "attaching: " + err.Error(), cause: err}
	}
	var buf [protocol.MessageBytesMax]byte
	n, files, err := conn.RecvWithin(limit, buf[:])
	if errors.Is(err, shm.ErrTimeout) {
		return nil, nil, &Error{Status: protocol.StatusTimeout, Text: fmt.Sprintf("attaching: the broker did not answer within %v", limit), cause: err}
	}
	if err != nil {
		return nil, nil, &Error{Status: protocol.StatusSessionEnded, Text: "attaching: " + err.Error(), cause: err}
	}
	if err := errorIn(buf[:n]); err != nil {
		return nil, files, err
	}
	reply, ok := decode[protocol.HelloReply](buf[:n])
	if err := checkMessage(buf[:n], ok, protocol.MessageHelloReply); err != nil {
		return nil, files, err
	}
	if len(files) != 3 {
		return nil, files, fail(protocol.StatusInternal, "attaching: the broker passed %d descriptors, expected 3", len(files))
	}
	if reply.DirectoryBytes != protocol.DirectoryBytes || reply.DoorbellBytes != protocol.DoorbellBytes {
		return nil, files, fail(protocol.StatusIncompatibleVersion, "attaching: the broker's directory has %d bytes and its doorbell %d; this library expects %d and %d",
			reply.DirectoryBytes, reply.DoorbellBytes, protocol.DirectoryBytes, protocol.DoorbellBytes)
	}
	return &reply, files, nil
}

// attach says hello and maps what comes back.
func (c *client) attach(ctx context.Context, conn *shm.Conn) error {
	limit := helloWait
	if end, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(end))
	}
	hello := c.hello()
	reply, files, err := greet(conn, &hello, limit)
	defer func() {
		for _, f := range files {
			if f != c.channelFile {
				_ = f.Close()
			}
		}
	}()
	if err != nil {
		return err
	}
	c.channelFile = files[0] // open until the last pin is gone: its lock is our proof of life (rule I3)
	if c.channel, err = shm.Map(files[0], reply.ChannelBytes, true); err != nil {
		return err
	}
	if c.directory, err = shm.Map(files[1], reply.DirectoryBytes, false); err != nil {
		return err
	}
	if c.doorbell, err = shm.Map(files[2], reply.DoorbellBytes, true); err != nil {
		return err
	}
	for _, m := range []*shm.Mapping{c.channel, c.doorbell} {
		if err := m.DontFork(); err != nil {
			return err
		}
	}
	return c.open(reply)
}

// open makes the parts of the client over the three mappings.
func (c *client) open(reply *protocol.HelloReply) error {
	layout, id, err := ring.ReadHeader(c.channel.Bytes())
	if err != nil {
		return err
	}
	bell, err := ring.NewBell(c.doorbell.Bytes(), c.directory.Bytes())
	if err != nil {
		return err
	}
	if c.ring, err = ring.NewClient(c.channel.Bytes(), layout, bell); err != nil {
		return err
	}
	if c.pins, err = ring.NewPinTable(c.channel.Bytes(), layout); err != nil {
		return err
	}
	if c.reader, err = snapshot.NewReader(c.directory.Bytes(), c.segment, c.pins); err != nil {
		return err
	}
	if g := reply.Generation; g != id.Generation || g != c.reader.Generation() {
		return fail(protocol.StatusInternal, "the regions are of different generations: the broker says %d, the channel %d, the directory %d; attach again",
			g, id.Generation, c.reader.Generation())
	}
	c.identity, c.guard = id, id.Flags&protocol.AttachGuard != 0
	c.life = reply.RingGeneration
	c.broker.Store(reply.BrokerIncarnation)
	c.arguments, c.results = newArea(layout.ArgumentBytes), newArea(layout.ResultBytes)
	c.reader.PinByBroker = c.pinByBroker
	return nil
}

func messageHeader[T any](kind uint32) protocol.MessageHeader {
	return protocol.MessageHeader{Magic: protocol.MagicMessage, Version: protocol.VersionWord, Type: kind, SizeBytes: uint32(sizeOf[T]())}
}

// errorIn is the error that a message carries, nil if it is another message.
func errorIn(msg []byte) error {
	head, ok := decode[protocol.MessageHeader](msg)
	if !ok || head.Magic != protocol.MagicMessage || head.Type != protocol.MessageErrorReply {
		return nil
	}
	reply, ok := decode[protocol.ErrorReply](msg)
	if !ok {
		return fail(protocol.StatusInternal, "the broker sent an error of %d bytes, expected %d", len(msg), sizeOf[protocol.ErrorReply]())
	}
	text, _, _ := bytes.Cut(reply.Text[:], []byte{0})
	return fail(protocol.Status(reply.Status), "%s", text)
}

// checkMessage looks at the head first: another major version may have other sizes.
// whole tells that msg holds the struct that was expected.
func checkMessage(msg []byte, whole bool, kind uint32) error {
	h, ok := decode[protocol.MessageHeader](msg)
	switch {
	case !ok || h.Magic != protocol.MagicMessage:
		return fail(protocol.StatusInternal, "the broker sent %d bytes with magic %#x where a message of type %d was expected", len(msg), h.Magic, kind)
	case h.Version>>16 != protocol.ABIMajor:
		return fail(protocol.StatusIncompatibleVersion, "the broker speaks protocol version %s, this library %s: use the same major version on both sides",
			protocol.VersionText(h.Version), protocol.VersionText(protocol.VersionWord))
	case h.Type != kind:
		return fail(protocol.StatusInternal, "the broker sent a message of type %d, expected %d", h.Type, kind)
	case !whole || int(h.SizeBytes) != len(msg):
		return fail(protocol.StatusInternal, "the broker sent %d bytes that say size %d in a message of type %d", len(msg), h.SizeBytes, kind)
	}
	return nil
}
