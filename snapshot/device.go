package snapshot

import (
	"callboard/protocol"
	"callboard/shm"
	"callboard/tensor"
)

// Device is a GPU that the broker serves: what the store needs of it. The store itself
// never calls the driver. The broker makes the Devices, and leaves them as they are for
// the life of the store.
//
// Arenas: Memory.Grow is asked for a segment of a device where GrowRequest.Arena.Device()
// is not nil; its size is a multiple of ArenaAlign. Memory.Grown gets a Segment whose Base
// is the device's address of it, and whose Bytes are shm.Reserve of the same size, in which
// nobody reads or writes. Memory.Retired tells that the store does not need it any more; it
// counts for the limit until Memory.Freed. The broker calls that when no client has the
// segment open any more (rule C6), at the latest before the driver gets the next request
// for memory of the device.
type Device struct {
	// Index is the broker's index of the device: Schema.DeviceID, DeviceNumber − 1.
	Index uint32
	// LimitBytes bounds the sum of the device's segments.
	LimitBytes uint64
	// Copy makes copies, in order, as if each began when the one before it had ended, and
	// returns when all of them have. It is called in Job.Run alone, of Jobs with Device set,
	// by any goroutines, also by several at once; an error is the driver's text.
	//
	// Bytes of the host may lie in memory that a client can cut off (rule S3): a driver that
	// met the fault would end the process. Copy reads and writes them by Go code, by way of
	// memory of its own, and lets the fault pass through to whoever guards Run.
	Copy func([]DeviceCopy) error
	// Zero makes bytes from an address on zeros, and returns when they are; for the rest as Copy.
	Zero func(address, bytes uint64) error
}

// DeviceCopy is one copy from or to a device's memory. Both sides may be of devices, also
// of two; of the host is at most one. They do not overlap.
type DeviceCopy struct {
	Dst, Src Place
	// Bytes is how many bytes are copied; of each row, if there are several.
	Bytes uint64
	// Rows is how many such runs of bytes there are: more than one only where both sides are
	// of devices. Each begins a pitch of bytes behind the one before it, at least Bytes and
	// less than 2 GiB. All of a side are of one allocation.
	Rows               uint64
	DstPitch, SrcPitch uint64
}

// Place is where one side of a DeviceCopy begins: in host memory, of as many bytes as are
// copied, or at an address of a device's memory.
type Place struct {
	Host    []byte // nil: it is Address
	Address uint64
	block   *Block // that it lies in, where it lies in one: no copy goes beyond it
}

// ArenaAlign is what the size of a device's segments is a multiple of: smaller allocations
// share what the driver exports (rule C1).
const ArenaAlign = 2 << 20

// number is the device's DeviceNumber; 0 of the host, which is nil.
func (d *Device) number() uint32 {
	if d == nil {
		return 0
	}
	return d.Index + 1
}

// Device is where the arena's memory lies; nil: in the host's.
func (a *Arena) Device() *Device { return a.space.device }

// arenaOn is the arena of the same writer in a device's memory; nil: in the host's.
func (m *Memory) arenaOn(a *Arena, d *Device) *Arena {
	if d == nil {
		return a
	}
	for _, other := range a.devices {
		if other.space.device == d {
			return other
		}
	}
	other := &Arena{Sort: a.Sort | protocol.SegmentOnDevice, Owner: a.Owner, Label: a.Label + " on " + d.String(), space: m.on(d), pool: shm.NewPool(0),
		segments: map[uint64]*Segment{}, closed: a.closed}
	a.devices = append(a.devices, other)
	return other
}

func (d *Device) String() string {
	if d == nil {
		return "the host"
	}
	return tensor.Device{Type: tensor.DeviceCUDA, ID: d.Index}.String()
}

// dataOn leases memory of the stage's own for rows, on a device or with nil on the host.
// What has no bytes lies on the host.
func (s *Store) dataOn(d *Device, size uint64) (*Block, error) {
	if d == nil || size == 0 {
		return s.data(size)
	}
	return s.memory.Alloc(s.memory.arenaOn(s.broker, d), size)
}

// device finds the device of a DLPack type and the broker's index; nil: the host. what
// names the argument.
func (s *Store) device(what string, kind, id uint32) (*Device, error) {
	switch {
	case kind == tensor.DeviceCPU && id == 0:
		return nil, nil
	case kind != tensor.DeviceCUDA:
		return nil, protocol.Errorf(protocol.StatusInvalidArgument, "%s is %s: expected cpu (DLPack device 1, 0) or a CUDA device (2)", what, tensor.Device{Type: kind, ID: id})
	}
	known := ""
	for _, d := range s.config.Devices {
		if d.Index == id {
			return d, nil
		}
		known += ", " + d.String()
	}
	if s.config.Absent != nil {
		if text := s.config.Absent(id); text != "" {
			return nil, protocol.Errorf(protocol.StatusNotSupported, "%s is %s: %s", what, tensor.Device{Type: kind, ID: id}, text)
		}
	}
	if len(s.config.Devices) == 0 {
		why := s.config.NoDevice
		if why == "" {
			why = "it was started without any"
		}
		return nil, protocol.Errorf(protocol.StatusNotSupported, "%s is %s: this broker serves host memory only: %s", what, tensor.Device{Type: kind, ID: id}, why)
	}
	return nil, protocol.Errorf(protocol.StatusInvalidArgument, "%s is %s, which does not exist: this broker serves %s", what, tensor.Device{Type: kind, ID: id}, known[2:])
}

// onDevice tells whether the column's rows lie on a device, served or not.
func (c *column) onDevice() bool { return c.schema.DeviceType == tensor.DeviceCUDA }

// Device is where the session's rows are filled; nil: in the host's memory. The descriptor
// of a group on a device has DeviceNumber and ArenaGeneration; the event is the broker's to
// lease and to name (rule C3).
func (m *Session) Device() *Device { return m.staging }

// served is the device of a stored schema, nil also where it is not there in this life.
func (s *Store) served(w *protocol.Schema) *Device {
	d, _ := s.device("device", w.DeviceType, w.DeviceID)
	return d
}
