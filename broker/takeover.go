package broker

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"callboard/protocol"
	"callboard/shm"
)

// leaveWait bounds how long a running broker may take to answer. Its loop does, which
// never waits.
const leaveWait = 5 * time.Second

// askToLeave asks the running broker to exit and to remove nothing. It gives its locks
// up a little after its answer.
func (b *Broker) askToLeave() error {
	fail := func(err error) error {
		return fmt.Errorf("taking stage %q over: %w; stop the running broker instead", b.config.Stage, err)
	}
	conn, err := shm.Dial(filepath.Join(b.runtimeDir, shm.AttachSocket))
	if err != nil {
		return fail(err)
	}
	defer conn.Close()
	request := protocol.TakeoverRequest{Header: header(protocol.MessageTakeoverRequest)}
	request.Header.SizeBytes = uint32(len(encode(&request)))
	if err := conn.Send(encode(&request)); err != nil {
		return fail(err)
	}
	var buf [protocol.MessageBytesMax]byte
	n, files, err := conn.RecvWithin(leaveWait, buf[:])
	if errors.Is(err, shm.ErrTimeout) {
		// Both sides must agree on who serves: from here on no answer can be sent, and
		// one that was sent before is heard.
		if err = conn.StopReceiving(); err == nil {
			n, files, err = conn.Recv(buf[:])
		}
		if errors.Is(err, io.EOF) {
			err = fmt.Errorf("it is stopped or hangs, nothing came within %v", leaveWait)
		}
	}
	for _, f := range files {
		_ = f.Close()
	}
	if err != nil {
		return fail(fmt.Errorf("the running broker did not answer: %w", err))
	}
	if refusal, ok := decode[protocol.ErrorReply](buf[:n], 0); ok && refusal.Header.Type == protocol.MessageErrorReply {
		return fail(errors.New(cleanName(refusal.Text[:])))
	}
	reply, ok := decode[protocol.TakeoverReply](buf[:n], 0)
	if !ok || reply.Header.Magic != protocol.MagicMessage || reply.Header.Type != protocol.MessageTakeoverReply || reply.Status != uint32(protocol.StatusOK) {
		return fail(fmt.Errorf("the running broker answered %d bytes of type %d", n, reply.Header.Type))
	}
	b.config.Log.Info("the running broker leaves its stage to this one", "generation", reply.Generation)
	return nil
}

// leaveTo serves a TakeoverRequest: the loop ends where no seal is half-way. The answer
// is what decides: one that cannot be sent changes nothing. An error without text: it was
// answered, or nobody is there to be told.
func (b *Broker) leaveTo(conn *shm.Conn, msg []byte) *protocol.Error {
	request, ok := decode[protocol.TakeoverRequest](msg, 0)
	_, uid, _, err := conn.PeerCred()
	switch {
	case err != nil || int(uid) != os.Geteuid():
		return protocol.Errorf(protocol.StatusAccessDenied, "user %d may not take stage %q over: it belongs to user %d", uid, b.config.Stage, os.Geteuid())
	case !ok || len(msg) != len(encode(&request)) || int(request.Header.SizeBytes) != len(msg):
		return protocol.Errorf(protocol.StatusInvalidArgument, "malformed takeover request: %d bytes that say %d, expected %d", len(msg), request.Header.SizeBytes, len(encode(&request)))
	case request.Generation != 0 && request.Generation != b.generation.Number:
		return protocol.Errorf(protocol.StatusNotFound, "stage %q has generation %d, not %d", b.config.Stage, b.generation.Number, request.Generation)
	}
	reply := protocol.TakeoverReply{Header: header(protocol.MessageTakeoverReply), Generation: b.generation.Number, Status: uint32(protocol.StatusOK)}
	reply.Header.SizeBytes = uint32(len(encode(&reply)))
	leaves := false
	running := b.do(func() {
		if b.stopping { // for good, or for another one that takes over
			return
		}
		if err = conn.SendWithin(0, encode(&reply)); err == nil {
			leaves, b.stopping, b.leaving = true, true, true
		}
	})
	switch {
	case running && err != nil:
		b.config.Log.Warn("a broker that wanted to take this stage over went away; this one goes on", "error", err)
		return &protocol.Error{}
	case !running || !leaves:
		return protocol.Errorf(protocol.StatusSessionEnded, "the broker is stopping")
	}
	b.looping.Wait()
	b.config.Log.Info("another broker takes this stage over; nothing is removed", "generation", b.generation.Number)
	close(b.left)
	return &protocol.Error{}
}
