package cudaipc

import "fmt"

// scatter queues copies in a stream. Neighbours that continue each other on both sides go
// as one: a column in order is one copy, whatever its rows are.
//
// A call to the driver costs microseconds, so thousands of tiny rows that do not continue
// each other would want a kernel that walks the list on the device. Here is its place: it
// would take the list as it is.
func scatter(d Driver, copies []Copy, s Stream) error {
	for i := 0; i < len(copies); {
		run := copies[i]
		for i++; i < len(copies) && copies[i].Dst == run.Dst+Pointer(run.Bytes) && copies[i].Src == run.Src+Pointer(run.Bytes); i++ {
			run.Bytes += copies[i].Bytes
		}
		if run.Bytes == 0 {
			continue
		}
		if err := d.CopyDtoDAsync(run.Dst, run.Src, run.Bytes, s); err != nil {
			return fmt.Errorf("copying %d bytes on the device: %w", run.Bytes, err)
		}
	}
	return nil
}
