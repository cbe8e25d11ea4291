package tensor

import (
	"os"
	"runtime"
	"strconv"
	"structs"
	"sync"
	"sync/atomic"
	"unsafe"
)

// ExportManaged gives a tensor to a DLPack consumer in this process. Whoever gets the struct calls its deleter once, on
// any thread; then release is called, on a goroutine that all exports share: it must not block.
//
//	release nil   a view: the data must outlive the consumer, and nothing says so but the program
//	release       ownership: the data lives until release, which only a success leads to
//
// flags: FlagReadOnly (a ReadOnly tensor has it anyway), and FlagIsCopied, which asks for a copy: then nothing is lent,
// and release is called before this returns. To several consumers the same data goes by several exports.
//
// Strides are always written, and of compact data they are the canonical ones also where a dimension has size 1, since
// consumers differ in what they expect there. Rank zero has neither shape nor strides. Pinned host memory is given as
// plain host memory. Of device memory data is the address of the first element, whose bytes must be there: an export
// waits for no stream. The struct is Go memory that does not move; data in Go's heap is kept, and where it is, until the
// deleter was called. So both may be passed by cgo or without it, as an unsafe.Pointer.
//
// Errors: INVALID_ARGUMENT for nil, other flags and a tensor that is not valid; NOT_SUPPORTED for an element type or a
// device that this version has not, for FlagIsCopied of device memory, and for FlagReadOnly without FlagIsCopied, which
// this form cannot say.
func ExportManaged(t *Tensor, flags uint64, release func()) (*DLManagedTensor, error) {
	e, err := export(t, flags, release, false)
	if err != nil {
		return nil, err
	}
	out := &legacyExport{managed: DLManagedTensor{Tensor: e.tensor, Deleter: deleterAddress()}}
	return lend(&out.managed, &out.link, e)
}

// ExportVersioned is ExportManaged in the form since DLPack 1.0, which can say that it is read-only.
func ExportVersioned(t *Tensor, flags uint64, release func()) (*DLManagedTensorVersioned, error) {
	e, err := export(t, flags, release, true)
	if err != nil {
		return nil, err
	}
	out := &versionedExport{managed: DLManagedTensorVersioned{Version: DLPackVersion{Major: DLPackMajor}, Tensor: e.tensor, Flags: e.flags,
		Deleter: deleterAddress()}}
	return lend(&out.managed, &out.link, e)
}

// Discard calls the deleter of an export that no consumer took.
func Discard[M DLManagedTensor | DLManagedTensorVersioned](m *M) { callDeleter(unsafe.Pointer(m)) }

// What a consumer holds. The managed struct comes first, since its address is what comes back, and the deleter writes
// the link that follows it, at the same place in both.
type legacyExport struct {
	_       structs.HostLayout
	managed DLManagedTensor
	_       [16]byte
	link    uintptr // the export that was returned before this one
}

type versionedExport struct {
	_       structs.HostLayout
	managed DLManagedTensorVersioned
	link    uintptr
}

// exported is what keeps an export while a consumer has it.
type exported struct {
	tensor  DLTensor
	flags   uint64
	extents []int64 // shape, then strides
	data    []byte
	link    *uintptr
	pinner  runtime.Pinner
	release func()
}

func export(t *Tensor, flags uint64, release func(), versioned bool) (*exported, error) {
	if t == nil {
		return nil, invalid("tensor is NULL")
	}
	check := t.checkHost
	if t.Device.Type == DeviceCUDA && flags&FlagIsCopied == 0 {
		check = t.checkCUDA
	}
	if err := check(); err != nil {
		return nil, err
	}
	if flags&^(FlagReadOnly|FlagIsCopied) != 0 {
		return nil, invalid("flags are %#x: expected FlagReadOnly (1) and FlagIsCopied (2) at most", flags)
	}
	if t.ReadOnly {
		flags |= FlagReadOnly
	}
	switch {
	case flags&FlagIsCopied != 0:
		c, err := t.Copy()
		if err != nil {
			return nil, err
		}
		if release != nil {
			release()
		}
		t, release, flags = &c, nil, FlagIsCopied // a copy is the consumer's to write
	case flags&FlagReadOnly != 0 && !versioned:
		return nil, notSupported("the data is read-only, and a DLManagedTensor cannot say so: export it versioned, or with FlagIsCopied")
	}
	e := &exported{flags: flags, data: t.Data, release: release}
	e.describe(t)
	return e, nil
}

// describe fills e.tensor. t was checked.
func (e *exported) describe(t *Tensor) {
	rank := len(t.Shape)
	e.tensor = DLTensor{Device: DLDevice{Type: int32(DeviceCPU)}, NDim: int32(rank), DType: t.DType}
	switch {
	case t.Device.Type == DeviceCUDA:
		e.tensor.Device = DLDevice{Type: int32(DeviceCUDA), ID: int32(t.Device.ID)}
		// A number all the same: Go's pointers never lead where the driver has reserved addresses.
		*(*uintptr)(unsafe.Pointer(&e.tensor.Data)) = t.Address + uintptr(t.ByteOffset)
	case len(t.Data) > 0:
		e.tensor.Data = unsafe.Pointer(&t.Data[min(t.ByteOffset, uint64(len(t.Data)-1))]) // of no elements it may lie anywhere
	}
	if rank == 0 {
		return
	}
	e.extents = make([]int64, 2*rank)
	copy(e.extents, t.Shape)
	strides := e.extents[rank:]
	if t.Compact() {
		canonicalStrides(strides, t.Shape)
	} else {
		copy(strides, t.Strides)
	}
	e.tensor.Shape, e.tensor.Strides = &e.extents[0], &strides[0]
}

// canonicalStrides are those of a compact row-major tensor. A dimension of size
// 0 counts as 1, so that empty tensors get sound strides too; since such a shape
// has no checked product, the strides may wrap there, where none is ever used.
func canonicalStrides(strides, shape []int64) {
	step := int64(1)
	for i := len(shape) - 1; i >= 0; i-- {
		strides[i] = step
		step *= max(shape[i], 1)
	}
}

var onFault atomic.Pointer[func(string)]

// OnFault says who is told of consumers' faults that no call can return, on the goroutine that collects exports. There
// is one such function in the process; nil, and none at first: nobody is told.
func OnFault(report func(text string)) {
	if report == nil {
		onFault.Store(nil)
		return
	}
	onFault.Store(&report)
}

// lent is every export that a consumer has, by the address of its struct: this keeps it from the garbage collector.
var lent = struct {
	mutex sync.Mutex
	by    map[uintptr]*exported
	start sync.Once
	err   error
}{by: map[uintptr]*exported{}}

func lend[M DLManagedTensor | DLManagedTensorVersioned](managed *M, link *uintptr, e *exported) (*M, error) {
	if lent.start.Do(startCollector); lent.err != nil {
		return nil, notSupported("what consumers return cannot be collected: %v", lent.err)
	}
	e.link = link
	e.pinner.Pin(managed)
	if e.extents != nil {
		e.pinner.Pin(&e.extents[0])
	}
	if len(e.data) > 0 {
		e.pinner.Pin(&e.data[0]) // does nothing to memory that is not Go's
	}
	lent.mutex.Lock()
	lent.by[uintptr(unsafe.Pointer(managed))] = e
	lent.mutex.Unlock()
	return managed, nil
}

// The deleter is a few instructions of assembly, so that it needs neither a goroutine nor a thread that the Go runtime
// knows, allocates nothing and waits for nobody: it puts the export in front of a list and, where the list was empty,
// writes a byte to a pipe. A goroutine waits there.
var (
	returned uintptr // head of the list: the export returned last
	//lint:ignore U1000 the assembly reads it
	returnedFD int32 // the pipe's writing end
)

// deleter has C's calling convention: void deleter(struct DLManagedTensor *) or (struct DLManagedTensorVersioned *).
//
//lint:ignore U1000 deleterAddress, in assembly, refers to it
func deleter()

// deleterAddress is where deleter lies.
func deleterAddress() unsafe.Pointer

// callDeleter calls deleter as C does.
func callDeleter(managed unsafe.Pointer)

func startCollector() {
	r, w, err := os.Pipe()
	if err == nil {
		var raw interface{ Control(func(uintptr)) error }
		if raw, err = w.SyscallConn(); err == nil {
			err = raw.Control(func(fd uintptr) { returnedFD = int32(fd) }) // w.Fd() would make writes wait
		}
	}
	if err != nil {
		lent.err = err
		return
	}
	go func() {
		var bytes [64]byte
		for {
			if _, err := r.Read(bytes[:]); err != nil {
				panic("tensor: reading the pipe of returned exports: " + err.Error())
			}
			collect()
			runtime.KeepAlive(w)
		}
	}()
}

// collect ends what consumers have returned.
func collect() {
	for at := atomic.SwapUintptr(&returned, 0); at != 0; {
		lent.mutex.Lock()
		e := lent.by[at]
		delete(lent.by, at)
		lent.mutex.Unlock()
		if e == nil {
			// A deleter was called twice: what the link says cannot be believed.
			if report := onFault.Load(); report != nil {
				(*report)("a consumer called the deleter of an exported tensor twice, which is one time too many: others that came back beside it may never be released")
			}
			return
		}
		at = *e.link
		e.pinner.Unpin()
		if e.release != nil {
			e.release()
		}
	}
}

// checkHost is CheckBounds of a tensor in host memory that exists.
func (t *Tensor) checkHost() error {
	if err := t.CheckBounds(); err != nil {
		return err
	}
	if !t.Device.Host() {
		return notSupported("the tensor lies on device type %d: this takes host memory only; copy it there first", t.Device.Type)
	}
	if t.Device.Type == DeviceCPU && t.Device.ID != 0 {
		return invalid("the tensor lies on CPU device %d: expected 0, there is no other", t.Device.ID)
	}
	return nil
}

// checkCUDA is CheckBounds of a tensor in device memory that may be exported.
func (t *Tensor) checkCUDA() error {
	n, err := t.Elements()
	if err == nil {
		err = t.CheckBounds()
	}
	if err != nil {
		return err
	}
	if n > 0 && t.Address == 0 {
		return invalid("the tensor lies on %s and has no address", t.Device)
	}
	return nil
}

// alignedBytes makes room that begins at a multiple of copyAlignment.
func alignedBytes(size int64) ([]byte, error) {
	if size > copyBytesMax {
		return nil, &Error{Code: OutOfMemory, Text: "no memory for a copy of " + strconv.FormatInt(size, 10) + " bytes"}
	}
	b := make([]byte, size+copyAlignment-1)
	first := -uintptr(unsafe.Pointer(unsafe.SliceData(b))) % copyAlignment
	return b[first:][:size:size], nil
}
