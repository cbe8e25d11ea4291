package broker

import (
	"slices"

	"callboard/cudaipc"
	"callboard/protocol"
	"callboard/shm"
)

// answerDevice serves a DeviceRequest (rule C2). What is not there is a status; what makes
// no sense ends the session.
func (b *Broker) answerDevice(c *client, msg []byte) *protocol.Error {
	request, ok := decode[protocol.DeviceRequest](msg, 0)
	if !ok || int(request.Header.SizeBytes) != len(msg) || len(msg) != len(encode(&request)) {
		return protocol.Errorf(protocol.StatusSessionEnded, "malformed message: a DeviceRequest of %d bytes that says %d, expected %d", len(msg), request.Header.SizeBytes, len(encode(&request)))
	}
	reply := protocol.DeviceReply{Header: header(protocol.MessageDeviceReply), Sort: request.Sort, Index: request.Index, Status: uint32(protocol.StatusNotFound)}
	reply.Header.SizeBytes = uint32(len(encode(&reply)))
	find := func() {}
	switch {
	case request.Sort == protocol.DeviceInfo && request.Segment == 0:
		if b.devices.served(request.Index) == nil {
			b.tryDevices() // behaviour 306: on this client's time
		}
		b.deviceInfo(&reply)
	case request.Sort == protocol.DeviceArena && request.Index == 0:
		find = func() { b.openArena(c, request.Segment, &reply) }
	case request.Sort == protocol.DeviceEvent && request.Segment == 0:
		find = func() { b.openEvent(c, &reply) }
	default:
		return protocol.Errorf(protocol.StatusSessionEnded, "malformed message: a DeviceRequest of sort %d with index %d and segment %d: expected sort %d with a segment, or %d or %d with an index", request.Sort, request.Index, request.Segment,
			protocol.DeviceArena, protocol.DeviceEvent, protocol.DeviceInfo)
	}
	if !b.do(find) {
		return protocol.Errorf(protocol.StatusSessionEnded, "the broker is stopping")
	}
	return b.sendTo(c, encode(&reply))
}

// deviceLife is the life that arenas and events are of (rule B3).
func (b *Broker) deviceLife() uint64 {
	root, err := shm.View[protocol.DirectoryHeader](b.directoryMap.Bytes(), 0)
	if err != nil {
		panic("broker: our own directory: " + err.Error())
	}
	return root.StartedNs
}

// deviceInfo tells which device an index stands for.
func (b *Broker) deviceInfo(r *protocol.DeviceReply) {
	g := b.devices.served(r.Index)
	switch {
	case g != nil:
		r.Status, r.DeviceID, r.SizeBytes, r.ArenaGeneration, r.Uuid = uint32(protocol.StatusOK), g.index, g.info.MemoryBytes, b.deviceLife(), g.info.UUID
	case b.devices.named(r.Index, &r.Uuid): // not there now, but others may follow
	case len(b.devices.all()) == 0:
		r.Status = uint32(protocol.StatusNotSupported) // `callboard info` says why
	}
}

// openArena gives an arena's handle to a client that may see what lies in it: it counts as
// having it open from now on.
func (b *Broker) openArena(c *client, segment uint64, r *protocol.DeviceReply) {
	a := b.arenas[segment]
	if a == nil || a.retired || !c.attached || !b.maySee(c, a) {
		return
	}
	if !slices.Contains(a.importers, c.incarnation) {
		a.importers = append(a.importers, c.incarnation)
	}
	a.device.shared = true
	r.Status, r.DeviceID, r.SizeBytes, r.ArenaGeneration = uint32(protocol.StatusOK), a.device.index, a.bytes, b.deviceLife()
	r.Uuid, r.Handle = a.device.info.UUID, a.handle
}

// maySee tells whether something of a client's or for it lies in an arena: what it opens it
// can write to, so that the staging of others is not for it before it is published.
func (b *Broker) maySee(c *client, a *arena) bool {
	return a.segment.Owner == c.incarnation || b.store.Claims(c, a.id) || b.store.Shows(a.id)
}

// openEvent gives the handle of an event to the client whose group it belongs to.
func (b *Broker) openEvent(c *client, r *protocol.DeviceReply) {
	for _, l := range b.leasesOf(c) {
		if l.index() != r.Index || !c.attached {
			continue
		}
		export, err := l.device.events.Export(l.event.Index)
		if err == nil {
			err = l.device.events.Opened(l.event.Index, c.incarnation)
		}
		if err != nil {
			return
		}
		c.hadEvents, l.device.shared = true, true
		r.Status, r.DeviceID, r.ArenaGeneration = uint32(protocol.StatusOK), l.device.index, b.deviceLife()
		r.Uuid, r.Handle = l.device.info.UUID, cudaipc.Handle(export.Handle)
	}
}
