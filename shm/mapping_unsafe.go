package shm

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mapFile maps size bytes of f; from hugePage on at a multiple of that, if nobody takes
// the place meanwhile: only there can the object lie in huge pages.
func mapFile(f *os.File, size uint64, protection int) ([]byte, error) {
	var place unsafe.Pointer
	if size >= hugePage {
		// The kernel's choice for that much more has such a multiple in it.
		room, err := unix.MmapPtr(-1, 0, nil, uintptr(size+hugePage), unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
		if err == nil {
			place = unsafe.Add(room, -uintptr(room)&(hugePage-1))
			_ = unix.MunmapPtr(room, uintptr(size+hugePage))
		}
	}
	at, err := unix.MmapPtr(int(f.Fd()), 0, place, uintptr(size), protection, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	return unsafe.Slice((*byte)(at), size), nil
}

func unmap(mem []byte) error {
	return unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(mem)), uintptr(len(mem)))
}
