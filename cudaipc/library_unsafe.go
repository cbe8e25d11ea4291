//go:build linux && (amd64 || arm64) && !nogpu

package cudaipc

import (
	"bytes"
	"strings"
	"sync"
	"unsafe"

	"github.com/ebitengine/purego"
)

// scratch is memory that C reads and writes during one call. It is on the heap, where
// nothing moves, and is used again, so that a call allocates nothing.
type scratch struct {
	args [8]uintptr
	out  [2]uint64
	text [256]byte
	copy memcpy2D
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// call calls a function. args do not escape: they are copied into memory that lives on.
func (l *library) call(f symbol, args ...uintptr) Code {
	s := scratches.Get().(*scratch)
	n := copy(s.args[:], args)
	result, _, _ := purego.SyscallN(l.at[f], s.args[:n]...)
	scratches.Put(s)
	return Code(int32(result))
}

// with lends scratch memory whose out words are 0.
func with() *scratch {
	s := scratches.Get().(*scratch)
	s.out = [2]uint64{}
	return s
}

func (s *scratch) first() uintptr  { return uintptr(unsafe.Pointer(&s.out[0])) }
func (s *scratch) second() uintptr { return uintptr(unsafe.Pointer(&s.out[1])) }
func (s *scratch) buffer() uintptr { return uintptr(unsafe.Pointer(&s.text[0])) }

// done gives the scratch memory back. It comes after the call, so it also keeps the
// memory alive during it.
func (s *scratch) done() { scratches.Put(s) }

// text asks the driver about a code: cuGetErrorName or cuGetErrorString.
func (l *library) text(f symbol, c Code) string {
	s := with()
	defer s.done()
	if l.call(f, uintptr(c), s.first()) != 0 || s.out[0] == 0 {
		return strings.TrimPrefix(c.Error(), "CUDA error ")
	}
	// The driver's own constant. Reading the word as a pointer keeps vet's rule about
	// integers that become pointers for what it is made for.
	p := *(*unsafe.Pointer)(unsafe.Pointer(&s.out[0]))
	n := 0
	for n < 256 && *(*byte)(unsafe.Add(p, n)) != 0 {
		n++
	}
	return string(unsafe.Slice((*byte)(p), n))
}

// give is for functions with one result.
func (l *library) give(f symbol, s *scratch, c Code) (uint64, error) {
	out := s.out[0]
	s.done()
	return out, l.check(f, c)
}

func (l *library) Version() (int, error) {
	s := with()
	out, err := l.give(cuDriverGetVersion, s, l.call(cuDriverGetVersion, s.first()))
	return int(int32(out)), err
}

func (l *library) DeviceCount() (int, error) {
	s := with()
	out, err := l.give(cuDeviceGetCount, s, l.call(cuDeviceGetCount, s.first()))
	return int(int32(out)), err
}

func (l *library) DeviceGet(ordinal int) (Device, error) {
	s := with()
	out, err := l.give(cuDeviceGet, s, l.call(cuDeviceGet, s.first(), uintptr(ordinal)))
	return Device(int32(out)), err
}

func (l *library) DeviceName(d Device) (string, error) {
	s := with()
	defer s.done()
	s.text = [256]byte{}
	if err := l.check(cuDeviceGetName, l.call(cuDeviceGetName, s.buffer(), uintptr(len(s.text)), uintptr(d))); err != nil {
		return "", err
	}
	name, _, _ := bytes.Cut(s.text[:], []byte{0})
	return string(name), nil
}

func (l *library) DeviceUUID(d Device) (UUID, error) {
	s := with()
	defer s.done()
	s.text = [256]byte{}
	err := l.check(cuDeviceGetUuid, l.call(cuDeviceGetUuid, s.buffer(), uintptr(d)))
	return UUID(s.text[:16]), err
}

func (l *library) DeviceAttribute(d Device, what Attribute) (int, error) {
	s := with()
	out, err := l.give(cuDeviceGetAttribute, s, l.call(cuDeviceGetAttribute, s.first(), uintptr(what), uintptr(d)))
	return int(int32(out)), err
}

func (l *library) DeviceMemory(d Device) (uint64, error) {
	s := with()
	return l.give(cuDeviceTotalMem, s, l.call(cuDeviceTotalMem, s.first(), uintptr(d)))
}

func (l *library) RetainPrimary(d Device) (Context, error) {
	s := with()
	out, err := l.give(cuDevicePrimaryCtxRetain, s, l.call(cuDevicePrimaryCtxRetain, s.first(), uintptr(d)))
	return Context(out), err
}

func (l *library) ReleasePrimary(d Device) error {
	return l.check(cuDevicePrimaryCtxRelease, l.call(cuDevicePrimaryCtxRelease, uintptr(d)))
}

func (l *library) SetCurrent(c Context) error {
	return l.check(cuCtxSetCurrent, l.call(cuCtxSetCurrent, uintptr(c)))
}

func (l *library) MemAlloc(size uint64) (Pointer, error) {
	s := with()
	out, err := l.give(cuMemAlloc, s, l.call(cuMemAlloc, s.first(), uintptr(size)))
	return Pointer(out), err
}

func (l *library) MemFree(p Pointer) error {
	return l.check(cuMemFree, l.call(cuMemFree, uintptr(p)))
}

func (l *library) MemInfo() (free, total uint64, err error) {
	s := with()
	defer s.done()
	err = l.check(cuMemGetInfo, l.call(cuMemGetInfo, s.first(), s.second()))
	return s.out[0], s.out[1], err
}

func (l *library) AddressRange(p Pointer) (base Pointer, size uint64, err error) {
	s := with()
	defer s.done()
	err = l.check(cuMemGetAddressRange, l.call(cuMemGetAddressRange, s.first(), s.second(), uintptr(p)))
	return Pointer(s.out[0]), s.out[1], err
}

func (l *library) PointerAttribute(address uint64, what PointerAttribute) (uint64, error) {
	s := with()
	return l.give(cuPointerGetAttribute, s, l.call(cuPointerGetAttribute, s.first(), uintptr(what), uintptr(address)))
}

func (l *library) HostRegister(at HostAddress, size uint64) error {
	const portable = 1 // CU_MEMHOSTREGISTER_PORTABLE: pinned for every context of this process
	return l.check(cuMemHostRegister, l.call(cuMemHostRegister, at.address, uintptr(size), portable))
}

func (l *library) HostUnregister(at HostAddress) error {
	return l.check(cuMemHostUnregister, l.call(cuMemHostUnregister, at.address))
}

func (l *library) CopyDtoDAsync(dst, src Pointer, size uint64, stream Stream) error {
	return l.check(cuMemcpyDtoDAsync, l.call(cuMemcpyDtoDAsync, uintptr(dst), uintptr(src), uintptr(size), uintptr(stream)))
}

func (l *library) CopyHtoDAsync(dst Pointer, src HostAddress, size uint64, stream Stream) error {
	return l.check(cuMemcpyHtoDAsync, l.call(cuMemcpyHtoDAsync, uintptr(dst), src.address, uintptr(size), uintptr(stream)))
}

func (l *library) CopyDtoHAsync(dst HostAddress, src Pointer, size uint64, stream Stream) error {
	return l.check(cuMemcpyDtoHAsync, l.call(cuMemcpyDtoHAsync, dst.address, uintptr(src), uintptr(size), uintptr(stream)))
}

// memcpy2D is CUDA_MEMCPY2D_v2.
type memcpy2D struct {
	srcX, srcY    uint64
	srcType       uint32
	_             uint32
	srcHost       uint64
	srcDevice     uint64
	srcArray      uint64
	srcPitch      uint64
	dstX, dstY    uint64
	dstType       uint32
	_             uint32
	dstHost       uint64
	dstDevice     uint64
	dstArray      uint64
	dstPitch      uint64
	width, height uint64
}

var _ = [1]struct{}{}[unsafe.Sizeof(memcpy2D{})-128]

func (l *library) Copy2DAsync(c Copy2D, stream Stream) error {
	s := with()
	defer s.done()
	s.copy = memcpy2D{
		srcType: MemoryDevice, srcDevice: c.Src, srcPitch: c.SrcPitch,
		dstType: MemoryDevice, dstDevice: c.Dst, dstPitch: c.DstPitch,
		width: c.Width, height: c.Height,
	}
	return l.check(cuMemcpy2DAsync, l.call(cuMemcpy2DAsync, uintptr(unsafe.Pointer(&s.copy)), uintptr(stream)))
}

func (l *library) MemsetD8Async(dst Pointer, value byte, size uint64, stream Stream) error {
	return l.check(cuMemsetD8Async, l.call(cuMemsetD8Async, uintptr(dst), uintptr(value), uintptr(size), uintptr(stream)))
}

func (l *library) StreamCreate() (Stream, error) {
	const nonBlocking = 1
	s := with()
	out, err := l.give(cuStreamCreate, s, l.call(cuStreamCreate, s.first(), nonBlocking))
	return Stream(out), err
}

func (l *library) StreamDestroy(stream Stream) error {
	return l.check(cuStreamDestroy, l.call(cuStreamDestroy, uintptr(stream)))
}

func (l *library) StreamQuery(stream Stream) (bool, error) {
	return l.query(cuStreamQuery, l.call(cuStreamQuery, uintptr(stream)))
}

func (l *library) StreamSynchronize(stream Stream) error {
	return l.check(cuStreamSynchronize, l.call(cuStreamSynchronize, uintptr(stream)))
}

func (l *library) StreamWaitEvent(stream Stream, e Event) error {
	return l.check(cuStreamWaitEvent, l.call(cuStreamWaitEvent, uintptr(stream), uintptr(e), 0))
}

func (l *library) EventCreate(flags EventFlags) (Event, error) {
	s := with()
	out, err := l.give(cuEventCreate, s, l.call(cuEventCreate, s.first(), uintptr(flags)))
	return Event(out), err
}

func (l *library) EventDestroy(e Event) error {
	return l.check(cuEventDestroy, l.call(cuEventDestroy, uintptr(e)))
}

func (l *library) EventRecord(e Event, stream Stream) error {
	return l.check(cuEventRecord, l.call(cuEventRecord, uintptr(e), uintptr(stream)))
}

func (l *library) EventQuery(e Event) (bool, error) {
	return l.query(cuEventQuery, l.call(cuEventQuery, uintptr(e)))
}

func (l *library) exportHandle(f symbol, what uintptr) (Handle, error) {
	s := with()
	defer s.done()
	err := l.check(f, l.call(f, s.buffer(), what))
	return Handle(s.text[:64]), err
}

func (l *library) IPCGetMemHandle(p Pointer) (Handle, error) {
	return l.exportHandle(cuIpcGetMemHandle, uintptr(p))
}

func (l *library) IPCGetEventHandle(e Event) (Handle, error) {
	return l.exportHandle(cuIpcGetEventHandle, uintptr(e))
}

// The two that open take the handle by value, for which purego knows the conventions of
// both architectures. They are rare.

func (l *library) IPCOpenMemHandle(h Handle) (Pointer, error) {
	const lazyPeerAccess = 1 // the only flag there is, and it must be given
	s := with()
	out, err := l.give(cuIpcOpenMemHandle, s, Code(l.openMem(s.first(), handleByValue{h}, lazyPeerAccess)))
	return Pointer(out), err
}

func (l *library) IPCOpenEventHandle(h Handle) (Event, error) {
	s := with()
	out, err := l.give(cuIpcOpenEventHandle, s, Code(l.openEvent(s.first(), handleByValue{h})))
	return Event(out), err
}

func (l *library) IPCCloseMemHandle(p Pointer) error {
	return l.check(cuIpcCloseMemHandle, l.call(cuIpcCloseMemHandle, uintptr(p)))
}
