package broker

import (
	"fmt"
	"slices"

	"callboard/control"
	"callboard/cudaipc"
	"callboard/protocol"
	"callboard/shm"
	"callboard/snapshot"
)

// An event's index names its device too: handles are asked for by it alone.
const eventDeviceShift = 24

// lease is an interprocess event that a client records when it hands a group back (rule
// C3). It is leased with the group and ends with the op that ends the group; one of a client
// that hung up, with its process.
type lease struct {
	client         *client
	session, group uint64
	device         *device
	event          cudaipc.Lease
	waiting        bool // a job waits for it, and ends it
}

func (l *lease) index() uint32 { return l.device.index<<eventDeviceShift | l.event.Index }

// How a lease ends.
type ending int

const (
	whole  ending = iota // what was recorded has completed, if anything was
	unsure               // nobody said whether it was recorded
	missed               // it was, and did not complete in time: it is never used again
)

// leaseEvent leases an event for a group of device memory that a client gets; nil: all are
// leased.
func (b *Broker) leaseEvent(c *client, on *snapshot.Device, session, group uint64) *lease {
	g := b.devices.served(on.Index)
	event, err := g.events.Lease()
	if err != nil {
		return nil
	}
	l := &lease{client: c, session: session, group: group, device: g, event: event}
	b.leases = append(b.leases, l)
	return l
}

// noEvent says that a group was refused for want of one.
func (b *Broker) noEvent(on *snapshot.Device) error {
	s := b.devices.served(on.Index).events.Stats()
	return protocol.Errorf(protocol.StatusQueueFull, "all interprocess events of device %d are taken: %d belong to groups that are mapped, %d are given up; hand groups back, or raise `serve --gpu-events` (%d)",
		on.Index, s.Leased, s.Retired, b.config.GPU.Events)
}

// group describes a group to the client that has claimed it.
func (b *Broker) group(c *client, m *snapshot.Session, index uint32) protocol.GroupDescriptor {
	g := m.Group(index)
	if l := b.findLease(c, m.ID, uint64(index)); l != nil {
		g.EventIndex = l.index()
	}
	return g
}

// given checks what an unmap says of its event, and tells whether there is one to wait for.
func (l *lease) given(args *protocol.UnmapArguments) (used bool, err error) {
	switch {
	case args.EventUsed == 0:
		return false, nil
	case args.EventUsed != 1:
		return false, protocol.Errorf(protocol.StatusInvalidArgument, "event_used is %d: expected 0 or 1", args.EventUsed)
	case l == nil:
		return false, protocol.Errorf(protocol.StatusInvalidArgument, "event_index %d is given with a group that has no event: its rows lie in host memory", args.EventIndex)
	case l.index() != args.EventIndex:
		return false, protocol.Errorf(protocol.StatusInvalidArgument, "event_index is %d: the group's own event is %d", args.EventIndex, l.index())
	}
	return true, nil
}

// findLease finds the event of a group; nil: it has none, or it is another client's.
func (b *Broker) findLease(c *client, session, group uint64) *lease {
	for _, l := range b.leases {
		if l.client == c && l.session == session && l.group == group && !l.waiting {
			return l
		}
	}
	return nil
}

func (b *Broker) leasesOf(c *client) (all []*lease) {
	for _, l := range b.leases {
		if l.client == c {
			all = append(all, l)
		}
	}
	return all
}

// endLease gives an event back, or retires it. nil: there is none.
func (b *Broker) endLease(l *lease, how ending) {
	i := slices.Index(b.leases, l)
	if i < 0 {
		return
	}
	b.leases = slices.Delete(b.leases, i, i+1)
	if how == whole {
		l.device.events.Return(l.event.Index)
		return
	}
	b.deviceWork.Go(func() {
		done := false
		if how == unsure {
			_ = l.device.thread.Do(func(d cudaipc.Driver) (err error) {
				done, err = d.EventQuery(l.event.Event)
				return err
			})
		}
		if done {
			l.device.events.Return(l.event.Index)
		} else if err := l.device.events.Retire(l.event.Index); err != nil {
			b.config.Log.Warn("an interprocess event was given up, and there is none in its place", "device", l.device.index, "error", err)
		}
	})
}

// dropLeases ends what a client leased with groups of a session that is over.
func (b *Broker) dropLeases(c *client, session uint64) {
	for _, l := range b.leasesOf(c) {
		if l.session == session && !l.waiting {
			b.endLease(l, unsure)
		}
	}
}

// endLeases ends the leases of a client whose process has exited. Whether it recorded them
// nobody knows, so that they are not used again.
func (b *Broker) endLeases(c *client) {
	for _, l := range b.leasesOf(c) {
		switch {
		case l.waiting: // its job is about to end it
		case c.hadEvents:
			b.endLease(l, missed)
		default:
			b.endLease(l, whole)
		}
	}
	if !c.lingers {
		b.closeEvents(c)
	}
}

// closeEvents forgets the events that a process had open, since it has exited.
func (b *Broker) closeEvents(c *client) {
	for _, g := range b.devices.all() {
		if c.hadEvents {
			b.deviceWork.Go(func() { _ = g.events.ClientGone(c.incarnation) })
		}
	}
}

// waiter gives what a job calls before it touches the rows that a client put on a device
// (rule C3): it returns when the client's work there is done. It asks the event, with a
// deadline and a look at whether the client's process lives; the device itself never waits.
func (b *Broker) waiter(l *lease) func() error {
	c, g := l.client, l.device
	deadline := c.drained.Add(b.config.GPU.Timeout) // since the unmap came: of several that had to wait each is as old
	alive := func() bool {
		if b.ctx.Err() != nil {
			return false
		}
		if c.process == nil {
			return !c.conn.HungUp()
		}
		gone, err := shm.Exited(c.process)
		return err != nil || !gone
	}
	return func() error {
		err := g.thread.WaitFor(l.event.Event, deadline, alive)
		switch {
		case err == nil:
			return nil
		case cudaipc.CodeOf(err).ContextLost():
			return b.loseDevice(g, err)
		case b.ctx.Err() != nil:
			return protocol.Errorf(protocol.StatusSessionEnded, "the broker is stopping")
		}
		text := fmt.Sprintf("event %d of device %d, that %s recorded: %v; a deadline is `serve --gpu-timeout` (%v)", l.index(), g.index, c.name, err, b.config.GPU.Timeout)
		b.health(control.LevelWarning, control.HealthGPUEvent, text, map[string]control.Number{"device": control.Number(g.index), "event": control.Number(l.index())})
		return protocol.Errorf(protocol.StatusTimeout, "%s", text)
	}
}
