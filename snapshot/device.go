package snapshot

import (
	"callboard/protocol"
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
	// less than 2 GiB.
	Rows               uint64
	DstPitch, SrcPitch uint64
}

// Place is where one side of a DeviceCopy begins: in host memory, of as many bytes as are
// copied, or at an address of a device's memory.
type Place struct {
	Host    []byte // nil: it is Address
	Address uint64
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
func (a *Arena) Device() *Device { return a.device }

// Device is where a group's rows are filled; nil: in the host's memory. The descriptor of
// such a group has DeviceNumber and ArenaGeneration; the event is the broker's to lease and
// to name (rule C3).
func (m *Session) Device(index uint32) *Device { return nil } // TODO with staging

// Lost is what a recovery could not keep (rule B3).
//
// Recovered.Lost names the attributes whose rows lay on a device; what they had sealed is
// gone, and the next epoch, whatever it is of, shows them without prims. ShowLost makes
// that epoch at once; PinsComplete tries it.
func (s *Store) ShowLost() error { return nil } // TODO

// Mirror gives the rows of a version in other memory (rule C5): the version of column that
// was born at an epoch, on a device, or with number 0 on the host. The asker has a pin that
// covers it. ErrRetry: the same mirror is being made, or memory is. With a Job, the mirror
// is there when that has ended: ask again then. It is there as long as the version.
//
// Errors: OUT_OF_RANGE where the version is not there any more, NOT_FOUND for a column or a
// device that does not exist, NOT_SUPPORTED for arrays, OUT_OF_MEMORY.
func (s *Store) Mirror(column uint32, birth uint64, number uint32) (protocol.MirrorResults, *Job, error) {
	return protocol.MirrorResults{}, nil, protocol.Errorf(protocol.StatusNotSupported, "mirrors are not made yet")
}
