package cudaipc

import "fmt"

// LibraryEnv names the driver library to load, for machines that keep it elsewhere and for
// tests; without it DefaultLibrary is looked for where the dynamic linker looks.
const (
	LibraryEnv     = "CALLBOARD_CUDA_LIBRARY"
	DefaultLibrary = "libcuda.so.1"
)

type (
	// Device is what the driver calls a device in this process.
	Device int32
	// Context is a device's primary context.
	Context uint64
	// Pointer is an address in a device's memory, as this process sees it. It is a number:
	// the host cannot follow it, and another process has another one for the same byte.
	Pointer uint64
	// Stream is a queue of work on one device.
	Stream uint64
	// Event is a point in a stream.
	Event uint64
	// Handle is what the driver exports of memory or of an event: 64 bytes that only it can
	// read. Who has them can open the thing.
	Handle [64]byte
	// UUID names a device in every process, whatever its ordinal is there.
	UUID [16]byte
)

// String is how NVIDIA's tools write it.
func (u UUID) String() string {
	return fmt.Sprintf("GPU-%x-%x-%x-%x-%x", u[0:4], u[4:6], u[6:8], u[8:10], u[10:16])
}

// Attribute is a property of a device, by the driver's number.
type Attribute int32

// The attributes that decide about IPC.
const (
	AttributeIntegrated        Attribute = 18
	AttributeComputeMode       Attribute = 20
	AttributeUnifiedAddressing Attribute = 41
	AttributeIPCEvents         Attribute = 125 // drivers before CUDA 12 do not know it
)

// PointerAttribute is a property of an address, by the driver's number.
type PointerAttribute int32

// What is asked about addresses that a framework hands in.
const (
	PointerMemoryType    PointerAttribute = 2 // MemoryHost, MemoryDevice
	PointerIsManaged     PointerAttribute = 8
	PointerDeviceOrdinal PointerAttribute = 9
)

// Values of PointerMemoryType.
const (
	MemoryHost   = 1
	MemoryDevice = 2
)

// EventFlags are properties of a new event.
type EventFlags uint32

const (
	// EventLocal is an event for this process.
	EventLocal EventFlags = 2 // CU_EVENT_DISABLE_TIMING
	// EventShared is an event that can be exported; the driver demands that it keeps no time.
	EventShared EventFlags = 2 | 4 // and CU_EVENT_INTERPROCESS
)

// Copy2D copies Height rows of Width bytes within a device's memory. Pitches are bytes
// from one row to the next, at least Width.
type Copy2D struct {
	Dst, DstPitch uint64
	Src, SrcPitch uint64
	Width, Height uint64
}

// Driver is what Callboard uses of NVIDIA's driver API, one method to a function. Load
// gives one.
//
// The driver knows a current context per operating-system thread: everything below
// SetCurrent gives ErrInvalidContext on a thread without one, so it is called through a
// Thread. Errors are *Error. No method but the Synchronize one waits for the device. Async
// methods return before their memory has been used.
type Driver interface {
	// Name says what runs: "emulated", or "NVIDIA <device>, driver <version>".
	Name() string
	// Version is the CUDA version that the driver supports, 12040 for 12.4.
	Version() (int, error)

	DeviceCount() (int, error)
	DeviceGet(ordinal int) (Device, error)
	DeviceName(Device) (string, error)
	DeviceUUID(Device) (UUID, error)
	DeviceAttribute(Device, Attribute) (int, error)
	// DeviceMemory is the device's memory in bytes.
	DeviceMemory(Device) (uint64, error)

	RetainPrimary(Device) (Context, error)
	ReleasePrimary(Device) error
	// SetCurrent makes c the context of this operating-system thread; 0: none.
	SetCurrent(c Context) error

	MemAlloc(bytes uint64) (Pointer, error)
	MemFree(Pointer) error
	MemInfo() (free, total uint64, err error)
	// AddressRange gives the allocation that an address lies in.
	AddressRange(Pointer) (base Pointer, bytes uint64, err error)
	// PointerAttribute also answers for addresses of the host, which is why it takes any.
	PointerAttribute(address uint64, what PointerAttribute) (uint64, error)
	// HostRegister pins memory of this process for the device.
	HostRegister(at HostAddress, bytes uint64) error
	HostUnregister(at HostAddress) error

	CopyDtoDAsync(dst, src Pointer, bytes uint64, s Stream) error
	CopyHtoDAsync(dst Pointer, src HostAddress, bytes uint64, s Stream) error
	CopyDtoHAsync(dst HostAddress, src Pointer, bytes uint64, s Stream) error
	Copy2DAsync(c Copy2D, s Stream) error
	MemsetD8Async(dst Pointer, value byte, bytes uint64, s Stream) error

	// StreamCreate makes a stream that does not wait for the legacy default stream.
	StreamCreate() (Stream, error)
	StreamDestroy(Stream) error
	// StreamQuery tells whether everything in the stream has completed.
	StreamQuery(Stream) (bool, error)
	StreamSynchronize(Stream) error
	// StreamWaitEvent makes the stream wait for the latest record of e before this call.
	StreamWaitEvent(s Stream, e Event) error

	EventCreate(EventFlags) (Event, error)
	EventDestroy(Event) error
	EventRecord(e Event, s Stream) error
	// EventQuery tells whether the latest record has completed. An event that was never
	// recorded counts as complete.
	EventQuery(e Event) (bool, error)

	// IPCGetMemHandle exports the whole allocation that p lies in.
	IPCGetMemHandle(p Pointer) (Handle, error)
	// IPCOpenMemHandle maps an exported allocation; never in the process that exported it.
	IPCOpenMemHandle(Handle) (Pointer, error)
	IPCCloseMemHandle(Pointer) error
	IPCGetEventHandle(Event) (Handle, error)
	IPCOpenEventHandle(Handle) (Event, error)
}

// DeviceInfo describes a device.
type DeviceInfo struct {
	Ordinal     int // in this process
	Name        string
	UUID        UUID
	MemoryBytes uint64
}

// Describe asks the driver about the device with an ordinal.
func Describe(d Driver, ordinal int) (Device, DeviceInfo, error) {
	device, err := d.DeviceGet(ordinal)
	if err != nil {
		return 0, DeviceInfo{}, fmt.Errorf("looking at device %d: %w", ordinal, err)
	}
	info := DeviceInfo{Ordinal: ordinal}
	if info.Name, err = d.DeviceName(device); err == nil {
		if info.UUID, err = d.DeviceUUID(device); err == nil {
			info.MemoryBytes, err = d.DeviceMemory(device)
		}
	}
	if err != nil {
		return 0, DeviceInfo{}, fmt.Errorf("looking at device %d: %w", ordinal, err)
	}
	return device, info, nil
}

// FindDevice gives this process's ordinal of a device. CUDA_VISIBLE_DEVICES gives every
// process an order of its own, so ordinals are never exchanged (field reports F10, G18).
func FindDevice(d Driver, uuid UUID) (int, error) {
	count, err := d.DeviceCount()
	if err != nil {
		return 0, fmt.Errorf("looking for device %v: %w", uuid, err)
	}
	for ordinal := range count {
		_, info, err := Describe(d, ordinal)
		if err != nil {
			return 0, err
		}
		if info.UUID == uuid {
			return ordinal, nil
		}
	}
	return 0, fmt.Errorf("%w: %v is none of the %d devices that this process sees: add it to CUDA_VISIBLE_DEVICES, or give the container the device", ErrOtherDevice, uuid, count)
}
