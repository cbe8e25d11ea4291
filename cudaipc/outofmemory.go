package cudaipc

import (
	"errors"
	"fmt"
	"strings"
)

// OutOfMemoryError says that a block found no room on a device, and who has it.
// errors.Is(err, ErrOutOfMemory) holds.
type OutOfMemoryError struct {
	Device      DeviceInfo
	NeedBytes   uint64 // the block
	ArenaBytes  uint64 // the smallest arena that holds it
	FreeBytes   uint64 // of the device, for everybody; 0 where the driver did not say
	TotalBytes  uint64
	Use         ArenasStats
	LimitBroken bool  // it is our limit, not the device
	Err         error // the driver's
}

func (e *OutOfMemoryError) Error() string {
	var text strings.Builder
	fmt.Fprintf(&text, "no room for %d bytes on device %d (%s): an arena of %d bytes would be needed", e.NeedBytes, e.Device.Ordinal, e.Device.Name, e.ArenaBytes)
	if e.LimitBroken {
		fmt.Fprintf(&text, ", and with the %d bytes held that is more than the limit of %d bytes: raise --gpu-memory or free data", e.Use.Held, e.Use.Limit)
	} else {
		fmt.Fprintf(&text, ", and the device has %d of %d bytes free, with other processes' memory on it: end one that uses it (nvidia-smi lists them) or free data", e.FreeBytes, e.TotalBytes)
	}
	fmt.Fprintf(&text, "; held: %d bytes in %d arenas, %d of them leased in %d blocks, the longest free run %d", e.Use.Held, len(e.Use.Arenas), e.Use.Leased, e.Use.Blocks, e.Use.LargestFree)
	for _, in := range e.Use.Arenas {
		if len(in.Importers) > 0 {
			fmt.Fprintf(&text, "; arena %d of %d bytes is open in clients %x", in.Index, in.Bytes, in.Importers)
		}
	}
	return text.String()
}

// Unwrap gives ErrOutOfMemory and the driver's error.
func (e *OutOfMemoryError) Unwrap() []error { return []error{ErrOutOfMemory, e.Err} }

func (a *Arenas) outOfMemory(bytes, need uint64, err error) error {
	e := &OutOfMemoryError{Device: a.thread.info, NeedBytes: bytes, ArenaBytes: need, Use: a.Stats(), Err: err}
	var fromDriver *Error
	e.LimitBroken = !errors.As(err, &fromDriver)
	_ = a.thread.Do(func(d Driver) (err error) {
		e.FreeBytes, e.TotalBytes, err = d.MemInfo()
		return err
	})
	return e
}
