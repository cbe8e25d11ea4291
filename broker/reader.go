package broker

import (
	"context"
	"fmt"
	"sync"

	"callboard/control"
	"callboard/protocol"
	"callboard/ring"
	"callboard/shm"
	"callboard/snapshot"
)

// ownReader reads sealed data in place for requests over NATS. It does so beside the
// loop, as any client does, with pins of its own in memory that nobody else has (rule
// K2). A page that somebody truncates ends a request with an error (rule S3).
type ownReader struct {
	*snapshot.Reader
	pins     *ring.Pins
	segments sync.Map // id → bytes of a segment in service; the loop keeps it
}

// readerPins are enough for the requests that run at once: each holds one.
const readerPins = 64

// makeReader makes the broker's own reader and joins its pins to the store's.
func (b *Broker) makeReader() error {
	layout, err := ring.NewLayout(0, 0, readerPins, 0, 0)
	if err != nil {
		return err
	}
	mem := make([]byte, layout.TotalBytes)
	table, err := ring.NewPinTable(mem, layout)
	if err != nil {
		return err
	}
	if b.reader.pins, err = ring.NewPins(mem, layout); err != nil {
		return err
	}
	b.reader.Reader, err = snapshot.NewReader(b.directoryMap.Bytes(), b.reader.segment, table)
	if err != nil {
		return err
	}
	b.reader.PinByBroker = b.pinForReader
	b.store.AddPins(&b.reader)
	return nil
}

func (r *ownReader) segment(id uint64) ([]byte, error) {
	if mem, ok := r.segments.Load(id); ok {
		return mem.([]byte), nil
	}
	return nil, protocol.Errorf(protocol.StatusNotFound, "segment %d is not in service", id)
}

// AppendPins is the scan of rules V2 and V3.
func (r *ownReader) AppendPins(pins []snapshot.Pin) []snapshot.Pin {
	err := r.pins.Scan(func(_ int, epoch uint64, attribute uint32) {
		pins = append(pins, snapshot.Pin{Epoch: epoch, Attribute: attribute})
	})
	if err != nil {
		panic("broker: the pins of the broker's own reader: " + err.Error())
	}
	return pins
}

// pinForReader is operation PIN for the broker's own reader (rule V2).
func (b *Broker) pinForReader(slots []uint32) (epoch uint64, err error) {
	ran := b.do(func() {
		epoch = b.store.Epoch()
		for _, slot := range slots {
			if _, failed := b.reader.pins.Store(slot, epoch); failed != nil {
				panic("broker: the pins of the broker's own reader: " + failed.Error())
			}
		}
	})
	if !ran {
		return 0, errStopping
	}
	return epoch, nil
}

var errStopping = protocol.Errorf(protocol.StatusSessionEnded, "the broker is stopping")

// look runs a request on the reader's data at one epoch: pin holds everything
// meanwhile.
func (b *Broker) look(ctx context.Context, request func(r *looking) error) *control.RPCError {
	r := &looking{Reader: b.reader.Reader, ctx: ctx}
	var err error
	fault := shm.Guard(func() {
		if err = r.PinAll(&r.pin); err == nil {
			defer r.pin.Release()
			err = request(r)
		}
	})
	if fault != nil {
		err = fault
	}
	return rpcError(err)
}

// looking is one request's look at the stage.
type looking struct {
	*snapshot.Reader
	pin   snapshot.Pinned
	ctx   context.Context
	steps int
}

// alive is asked before each step of long work: an error once the caller was told
// that there is no answer.
func (r *looking) alive() error {
	if r.steps++; r.steps%256 != 0 {
		return nil
	}
	return r.ctx.Err()
}

func rpcError(err error) *control.RPCError {
	if err == nil {
		return nil
	}
	if own, ok := err.(*control.RPCError); ok {
		return own
	}
	failure, code := snapshot.StatusError(err), control.CodeBroken
	switch failure.Status {
	case protocol.StatusInvalidArgument:
		code = control.CodeBadRequest
	case protocol.StatusNotFound:
		code = control.CodeNotFound
	case protocol.StatusNotSupported:
		code = control.CodeNotServed
	case protocol.StatusLimit:
		code = control.CodeTooLarge
	case protocol.StatusTimeout:
		code = control.CodeBusy
	}
	return &control.RPCError{Code: code, Text: failure.Text}
}

func refuse(code, format string, args ...any) *control.RPCError {
	return &control.RPCError{Code: code, Text: fmt.Sprintf(format, args...)}
}

// findPaths gives the ids of paths; 0 for a path that nobody has named yet.
func (b *Broker) findPaths(paths []string) ([]uint64, error) {
	for _, path := range paths {
		if err := snapshot.CheckPath(path); err != nil {
			return nil, err
		}
	}
	ids := make([]uint64, len(paths))
	// At most a few thousand: a request has 64 KiB.
	if !b.do(func() {
		for i, path := range paths {
			ids[i], _ = b.store.Find(protocol.StringPath, path)
		}
	}) {
		return nil, errStopping
	}
	return ids, nil
}

// payload is how many bytes of an answer NATS takes beside what begins every document.
func (b *Broker) payload() int { return int(b.nats.Requests().MaxPayload()) - documentBytes }

const documentBytes = 4 << 10
