//go:build linux && (amd64 || arm64) && !nogpu

package cudaipc

import (
	"cmp"
	"fmt"
	"os"
	"strings"

	"github.com/ebitengine/purego"
)

// The versioned names: their unversioned twins are old ABIs with 32-bit sizes, and drivers
// keep every version.
var symbolNames = [symbols]string{
	cuInit:                    "cuInit",
	cuGetErrorName:            "cuGetErrorName",
	cuGetErrorString:          "cuGetErrorString",
	cuDriverGetVersion:        "cuDriverGetVersion",
	cuDeviceGetCount:          "cuDeviceGetCount",
	cuDeviceGet:               "cuDeviceGet",
	cuDeviceGetName:           "cuDeviceGetName",
	cuDeviceGetUuid:           "cuDeviceGetUuid_v2",
	cuDeviceGetAttribute:      "cuDeviceGetAttribute",
	cuDeviceTotalMem:          "cuDeviceTotalMem_v2",
	cuDevicePrimaryCtxRetain:  "cuDevicePrimaryCtxRetain",
	cuDevicePrimaryCtxRelease: "cuDevicePrimaryCtxRelease_v2",
	cuCtxSetCurrent:           "cuCtxSetCurrent",
	cuMemAlloc:                "cuMemAlloc_v2",
	cuMemFree:                 "cuMemFree_v2",
	cuMemGetInfo:              "cuMemGetInfo_v2",
	cuMemGetAddressRange:      "cuMemGetAddressRange_v2",
	cuPointerGetAttribute:     "cuPointerGetAttribute",
	cuMemHostRegister:         "cuMemHostRegister_v2",
	cuMemHostUnregister:       "cuMemHostUnregister",
	cuMemcpyDtoDAsync:         "cuMemcpyDtoDAsync_v2",
	cuMemcpyHtoDAsync:         "cuMemcpyHtoDAsync_v2",
	cuMemcpyDtoHAsync:         "cuMemcpyDtoHAsync_v2",
	cuMemcpy2DAsync:           "cuMemcpy2DAsync_v2",
	cuMemsetD8Async:           "cuMemsetD8Async",
	cuStreamCreate:            "cuStreamCreate",
	cuStreamDestroy:           "cuStreamDestroy_v2",
	cuStreamQuery:             "cuStreamQuery",
	cuStreamSynchronize:       "cuStreamSynchronize",
	cuStreamWaitEvent:         "cuStreamWaitEvent",
	cuEventCreate:             "cuEventCreate",
	cuEventDestroy:            "cuEventDestroy_v2",
	cuEventRecord:             "cuEventRecord",
	cuEventQuery:              "cuEventQuery",
	cuIpcGetMemHandle:         "cuIpcGetMemHandle",
	cuIpcOpenMemHandle:        "cuIpcOpenMemHandle_v2",
	cuIpcCloseMemHandle:       "cuIpcCloseMemHandle",
	cuIpcGetEventHandle:       "cuIpcGetEventHandle",
	cuIpcOpenEventHandle:      "cuIpcOpenEventHandle",
}

// A symbol is a function of the driver, by its place in library.at.
type symbol int

const (
	cuInit symbol = iota
	cuGetErrorName
	cuGetErrorString
	cuDriverGetVersion
	cuDeviceGetCount
	cuDeviceGet
	cuDeviceGetName
	cuDeviceGetUuid
	cuDeviceGetAttribute
	cuDeviceTotalMem
	cuDevicePrimaryCtxRetain
	cuDevicePrimaryCtxRelease
	cuCtxSetCurrent
	cuMemAlloc
	cuMemFree
	cuMemGetInfo
	cuMemGetAddressRange
	cuPointerGetAttribute
	cuMemHostRegister
	cuMemHostUnregister
	cuMemcpyDtoDAsync
	cuMemcpyHtoDAsync
	cuMemcpyDtoHAsync
	cuMemcpy2DAsync
	cuMemsetD8Async
	cuStreamCreate
	cuStreamDestroy
	cuStreamQuery
	cuStreamSynchronize
	cuStreamWaitEvent
	cuEventCreate
	cuEventDestroy
	cuEventRecord
	cuEventQuery
	cuIpcGetMemHandle
	cuIpcOpenMemHandle
	cuIpcCloseMemHandle
	cuIpcGetEventHandle
	cuIpcOpenEventHandle
	symbols // how many there are
)

// emulatorSymbol is in an emulated driver and in no real one.
const emulatorSymbol = "callboard_cudaemu_version"

// library is a Driver: a loaded driver library. Its methods may be called from any
// goroutine; what the driver makes of the thread is another matter.
type library struct {
	at   [symbols]uintptr
	name string

	openMem   func(out uintptr, h handleByValue, flags uint32) int32
	openEvent func(out uintptr, h handleByValue) int32
}

// handleByValue is a Handle as C passes it: a structure, not an array.
type handleByValue struct{ Bytes Handle }

// Load loads a driver library and initialises it. An empty path means what LibraryEnv
// says, else DefaultLibrary.
//
// A *LibraryError: there is none. An *Error of cuInit: it does not work here; Probe says
// what to do. Neither is remembered: a later Load tries again (behaviour 306). A library
// stays loaded for good, since it may have started threads.
func Load(path string) (Driver, error) {
	path = cmp.Or(path, os.Getenv(LibraryEnv), DefaultLibrary)
	loaded, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return nil, &LibraryError{Path: path, Reason: strings.TrimPrefix(err.Error(), path+": ")}
	}
	l := &library{}
	for s, name := range symbolNames {
		if l.at[s], err = purego.Dlsym(loaded, name); err != nil {
			return nil, &LibraryError{Path: path, Reason: fmt.Sprintf("it has no %s: it is no CUDA driver of version 11.4 or later", name)}
		}
	}
	purego.RegisterFunc(&l.openMem, l.at[cuIpcOpenMemHandle])
	purego.RegisterFunc(&l.openEvent, l.at[cuIpcOpenEventHandle])
	if err := l.check(cuInit, l.call(cuInit, 0)); err != nil {
		return nil, err
	}
	_, err = purego.Dlsym(loaded, emulatorSymbol)
	l.name = l.nameIt(err == nil)
	return l, nil
}

func (l *library) nameIt(emulated bool) string {
	if emulated {
		return "emulated"
	}
	version, _ := l.Version()
	device := "without a device"
	if _, info, err := Describe(l, 0); err == nil {
		device = strings.TrimPrefix(info.Name, "NVIDIA ")
	}
	return fmt.Sprintf("NVIDIA %s, driver %d.%d", device, version/1000, version%1000/10)
}

// Name implements Driver.
func (l *library) Name() string { return l.name }

// check makes an error of a result, with the driver's own words.
func (l *library) check(s symbol, c Code) error {
	if c == 0 {
		return nil
	}
	return &Error{Code: c, Function: symbolNames[s], Name: l.text(cuGetErrorName, c), Text: l.text(cuGetErrorString, c)}
}

// query is check for what may not be ready.
func (l *library) query(s symbol, c Code) (bool, error) {
	if c == ErrNotReady {
		return false, nil
	}
	return c == 0, l.check(s, c)
}
