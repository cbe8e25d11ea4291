package cudaipc

import (
	"errors"
	"fmt"
	"sync"

	"callboard/protocol"
)

// Events is a broker's pool of interprocess events on one device, of fixed size: drivers
// have limits, and events that pile up were a leak elsewhere (field report F11). The
// broker makes them all; producers open them and record what they have queued. So every
// lifetime is the broker's.
//
// An event carries one record at a time: who leased it records once, and it goes back when
// that has completed. One of which this cannot be known is retired: it is never leased
// again, and destroyed once no process has it open; another one takes its place, under an
// index of its own. Methods may be called from any goroutine; only Retire, ClientGone and
// Close call the driver.
type Events struct {
	thread *Thread

	mu        sync.Mutex
	events    map[uint32]*sharedEvent
	free      []uint32 // returned last, leased first
	importers importers
	next      uint32
	closed    bool
}

type sharedEvent struct {
	event   Event
	handle  Handle
	leased  bool
	retired bool
}

// Lease is one event for one record.
type Lease struct {
	Index uint32
	Event Event
}

// NewEvents makes a pool of count events and exports them.
func NewEvents(t *Thread, count int) (*Events, error) {
	p := &Events{thread: t, events: map[uint32]*sharedEvent{}, importers: importers{}}
	for n := range count {
		if err := p.add(); err != nil {
			return nil, errors.Join(fmt.Errorf("making interprocess event %d of %d: %w", n+1, count, err), p.Close())
		}
	}
	return p, nil
}

func (p *Events) add() error {
	e := &sharedEvent{}
	err := p.thread.Do(func(d Driver) (err error) {
		if e.event, err = d.EventCreate(EventShared); err != nil {
			return err
		}
		if e.handle, err = d.IPCGetEventHandle(e.event); err != nil {
			err = errors.Join(err, d.EventDestroy(e.event))
		}
		return err
	})
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.events[p.next] = e
	p.free = append(p.free, p.next)
	p.next++
	return nil
}

// Lease takes an event that nobody uses. ErrNoEvents: wait until one is returned.
func (p *Events) Lease() (Lease, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return Lease{}, fmt.Errorf("events of device %d: %w", p.thread.info.Ordinal, ErrClosed)
	}
	n := len(p.free)
	if n == 0 {
		return Lease{}, ErrNoEvents
	}
	index := p.free[n-1]
	p.free = p.free[:n-1]
	e := p.events[index]
	e.leased = true
	return Lease{Index: index, Event: e.event}, nil
}

// Return gives a leased event back.
//
// Preconditions: it was never recorded in this lease, or the record has completed.
func (p *Events) Return(index uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leased(index).leased = false
	p.free = append(p.free, index)
}

// Retire takes a leased event out of use for good, because something may still complete
// it, and makes another one. An error says that there is one less now.
func (p *Events) Retire(index uint32) error {
	p.mu.Lock()
	e := p.leased(index)
	e.leased, e.retired = false, true
	p.mu.Unlock()
	err := p.destroyRetired()
	if e := p.add(); e != nil {
		err = errors.Join(err, fmt.Errorf("making an interprocess event in place of %d: %w", index, e))
	}
	return err
}

func (p *Events) leased(index uint32) *sharedEvent {
	e := p.events[index]
	if e == nil || !e.leased {
		panic(fmt.Sprintf("cudaipc: event %d of device %d is given back but not leased", index, p.thread.info.Ordinal))
	}
	return e
}

// Export describes an event to who wants to open it; the broker says of which life of its own
// it is. ErrStale: there is none, or it is retired.
func (p *Events) Export(index uint32) (Export, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.events[index]
	if e == nil || e.retired {
		return Export{}, fmt.Errorf("event %d on device %d: %w", index, p.thread.info.Ordinal, ErrStale)
	}
	return Export{
		Sort: protocol.DeviceEvent, Index: index, Device: uint32(p.thread.info.Ordinal),
		UUID: p.thread.info.UUID, Handle: e.handle,
	}, nil
}

// Opened notes that a client may have an event open. It comes before the client gets the
// handle.
func (p *Events) Opened(index uint32, client uint64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e := p.events[index]; e == nil || e.retired {
		return fmt.Errorf("event %d on device %d: %w", index, p.thread.info.Ordinal, ErrStale)
	}
	p.importers.opened(index, client)
	return nil
}

// ClientGone notes that a client's process has exited, and its imports with it, and
// destroys retired events that nobody has open any more. What the client had leased is
// returned or retired by who leased it.
//
// Preconditions: the exit is proven, by its process descriptor and not by its socket.
func (p *Events) ClientGone(client uint64) error {
	p.mu.Lock()
	p.importers.gone(client)
	p.mu.Unlock()
	return p.destroyRetired()
}

func (p *Events) destroyRetired() error {
	p.mu.Lock()
	var going []Event
	for index, e := range p.events {
		if e.retired && !p.importers.have(index) {
			going = append(going, e.event)
			delete(p.events, index)
		}
	}
	p.mu.Unlock()
	return p.destroy(going)
}

func (p *Events) destroy(events []Event) error {
	return p.thread.Do(func(d Driver) (err error) {
		for _, e := range events {
			err = errors.Join(err, d.EventDestroy(e))
		}
		return err
	})
}

// Close destroys the events that nobody has open. The others go with this process: using
// an imported event after it was destroyed is undefined behaviour of the driver.
func (p *Events) Close() error {
	p.mu.Lock()
	p.closed = true
	p.free = nil
	var going []Event
	for index, e := range p.events {
		if !p.importers.have(index) {
			going = append(going, e.event)
			delete(p.events, index)
		}
	}
	p.mu.Unlock()
	return p.destroy(going)
}

// EventsStats tells how a pool of events is used.
type EventsStats struct {
	Free, Leased int
	Retired      int // kept because a process has them open
}

// Stats counts; it is for people.
func (p *Events) Stats() EventsStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	stats := EventsStats{Free: len(p.free)}
	for _, e := range p.events {
		switch {
		case e.leased:
			stats.Leased++
		case e.retired:
			stats.Retired++
		}
	}
	return stats
}
