package cudaipc

import (
	"errors"
	"fmt"
	"sync"

	"callboard/protocol"
)

// Imports is what this process has open of another's device memory and events, on one
// device: each thing once, however many use it. The driver reserves address space for
// every open, older ones refuse a second one, and an event may block while it is opened
// (field reports F4, F8). Methods may be called from any goroutine.
type Imports struct {
	thread *Thread

	mu     sync.Mutex // held across the driver's calls, so that nothing is opened twice
	arenas map[importKey]*Import
	events map[importKey]*Import
}

// importKey is what tells exports apart. An index would not do: one is of a device, of a sort,
// and of a broker. Of a broker that was started anew nothing is taken for what was before.
type importKey struct {
	sort       uint32
	generation uint64
	handle     Handle
}

func (x Export) key() importKey { return importKey{x.Sort, x.Generation, x.Handle} }

// Import is one opened arena or event. Close it once for each time it was opened.
type Import struct {
	Export  Export
	Address Pointer // where an arena begins in this process
	Event   Event   // an event, in this process

	of   *Imports
	uses int // under of.mu
}

// NewImports makes an empty cache for a device.
func NewImports(t *Thread) *Imports {
	return &Imports{thread: t, arenas: map[importKey]*Import{}, events: map[importKey]*Import{}}
}

// Open opens what a broker exported, or counts one more use of it.
//
// ErrOtherDevice: it lies on another device than this Thread's; FindDevice finds the
// right one, and none is used that has another UUID (field report F10). *ImportError: the
// driver refused, and why that may be.
func (i *Imports) Open(x Export) (*Import, error) {
	if x.UUID != i.thread.info.UUID {
		return nil, fmt.Errorf("%w: the broker's memory lies on %v, this is %v", ErrOtherDevice, x.UUID, i.thread.info.UUID)
	}
	open, known := i.openArena, i.arenas
	if x.Sort == protocol.DeviceEvent {
		open, known = i.openEvent, i.events
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	key := x.key()
	if in := known[key]; in != nil {
		in.uses++
		return in, nil
	}
	in := &Import{Export: x, of: i, uses: 1}
	if err := i.thread.Do(func(d Driver) error { return open(d, in) }); err != nil {
		return nil, &ImportError{Export: x, Cause: why(CodeOf(err)), Err: err}
	}
	known[key] = in
	return in, nil
}

func (i *Imports) openArena(d Driver, in *Import) (err error) {
	if in.Address, err = d.IPCOpenMemHandle(in.Export.Handle); err != nil {
		return err
	}
	// Offsets come from the broker and lead into this memory: it must be as long as it says
	// (field report F5). A driver that cannot tell how long an import is is no reason to refuse.
	base, bytes, unknown := d.AddressRange(in.Address)
	if unknown == nil && (base != in.Address || bytes < in.Export.Bytes) {
		err = fmt.Errorf("the arena has %d bytes from %#x, opened at %#x: expected %d bytes", bytes, base, in.Address, in.Export.Bytes)
		err = errors.Join(err, d.IPCCloseMemHandle(in.Address))
	}
	return err
}

func (i *Imports) openEvent(d Driver, in *Import) (err error) {
	in.Event, err = d.IPCOpenEventHandle(in.Export.Handle)
	return err
}

// Close gives one use back; the last one closes it in the driver, and last says so: the
// broker is to be told then.
//
// Preconditions: nothing of this process on the device uses it any more, if this is its
// last use.
func (in *Import) Close() (last bool, err error) {
	i := in.of
	i.mu.Lock()
	defer i.mu.Unlock()
	if in.uses <= 0 {
		panic(fmt.Sprintf("cudaipc: index %d of generation %d is closed more often than it was opened", in.Export.Index, in.Export.Generation))
	}
	if in.uses--; in.uses > 0 {
		return false, nil
	}
	if in.Export.Sort == protocol.DeviceEvent {
		delete(i.events, in.Export.key())
		err = i.thread.Do(func(d Driver) error { return d.EventDestroy(in.Event) })
	} else {
		delete(i.arenas, in.Export.key())
		err = i.thread.Do(func(d Driver) error { return d.IPCCloseMemHandle(in.Address) })
	}
	if err != nil {
		return true, fmt.Errorf("closing index %d of generation %d: %w", in.Export.Index, in.Export.Generation, err)
	}
	return true, nil
}

// Count tells how many arenas and events are open.
func (i *Imports) Count() (arenas, events int) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return len(i.arenas), len(i.events)
}

// ImportError says that the driver did not open what another process exported.
type ImportError struct {
	Export Export
	Cause  Cause
	Err    error
}

func (e *ImportError) Error() string {
	what := fmt.Sprintf("arena %d of %d bytes", e.Export.Index, e.Export.Bytes)
	if e.Export.Sort == protocol.DeviceEvent {
		what = fmt.Sprintf("event %d", e.Export.Index)
	}
	return fmt.Sprintf("opening %s of device %v: %v: %s: %s", what, e.Export.UUID, e.Err, e.Cause.Reason, e.Cause.Advice)
}

// Unwrap gives the driver's error.
func (e *ImportError) Unwrap() error { return e.Err }
