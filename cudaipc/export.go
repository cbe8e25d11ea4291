package cudaipc

import (
	"fmt"

	"callboard/protocol"
)

// ArenaAlign is what the size of an exported allocation is a multiple of. The driver may cut
// smaller ones from one of its own, and a handle shares that as a whole (field report F5).
const ArenaAlign = 2 << 20

// Export is what another process needs to open an arena or an event.
type Export struct {
	Sort       uint32 // protocol.DeviceArena or DeviceEvent
	Index      uint32
	Device     uint32 // the exporter's ordinal, for people: UUID counts
	Generation uint64
	Bytes      uint64 // of an arena
	UUID       UUID
	Handle     Handle
}

// Fill writes an export into the reply that carries it.
func (x Export) Fill(r *protocol.DeviceReply) {
	r.Sort, r.Index, r.DeviceID, r.ArenaGeneration, r.SizeBytes = x.Sort, x.Index, x.Device, x.Generation, x.Bytes
	r.Uuid, r.Handle = x.UUID, x.Handle
}

// ExportOf reads the reply of a broker.
func ExportOf(r *protocol.DeviceReply) (Export, error) {
	if r.Sort != protocol.DeviceArena && r.Sort != protocol.DeviceEvent {
		return Export{}, fmt.Errorf("the broker sent a device object of sort %d: expected %d or %d", r.Sort, protocol.DeviceArena, protocol.DeviceEvent)
	}
	return Export{
		Sort: r.Sort, Index: r.Index, Device: r.DeviceID, Generation: r.ArenaGeneration,
		Bytes: r.SizeBytes, UUID: r.Uuid, Handle: r.Handle,
	}, nil
}
