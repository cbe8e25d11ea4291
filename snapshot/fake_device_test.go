package snapshot

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"callboard/protocol"
	"callboard/shm"
	"callboard/tensor"

	"github.com/stretchr/testify/require"
)

// fakes are the devices of one life of a broker: memory in pages that are made when
// somebody writes there, at addresses that no other life uses.
type fakes struct {
	t       testing.TB
	devices []*fakeDevice
	arenas  []*fakeArena
	pages   map[uint64]*[fakePage]byte
	looping bool // the loop is at work, which waits for no device
	open    bool // clients have arenas open: what is retired is not freed
	retired []*Segment
}

type fakeArena struct {
	device     *Device
	base, size uint64
	sort       uint32
}

// fakeDevice is one of them.
type fakeDevice struct {
	Device
	of     *fakes
	fail   error // what the driver says
	after  int   // how many copies it makes before that
	copies int   // runs of bytes that were copied
	lists  int
}

const fakePage = 4096

// fakeGap lies between two arenas: they never touch, and rows of two are at a distance that a
// copy could take (pitchMax).
const fakeGap = 1 << 24

// fakeNext is the first address that no device has used yet.
var fakeNext atomic.Uint64

// fakeReservation stands for all memory of all devices: nobody may touch it.
var fakeReservation = sync.OnceValue(func() []byte {
	m, err := shm.Reserve(8 << 30)
	if err != nil {
		panic(err)
	}
	return m.Bytes()
})

// newFakes makes devices with limits.
func newFakes(t testing.TB, limits ...uint64) *fakes {
	f := &fakes{t: t, pages: map[uint64]*[fakePage]byte{}}
	for i, limit := range limits {
		d := &fakeDevice{of: f}
		d.Device = Device{Index: uint32(i), LimitBytes: limit, Copy: d.copy, Zero: d.zero}
		f.devices = append(f.devices, d)
	}
	return f
}

// again are devices as these for the next life of the broker, with nothing in them.
func (f *fakes) again() *fakes {
	if f == nil {
		return nil
	}
	var limits []uint64
	for _, d := range f.devices {
		limits = append(limits, d.LimitBytes)
	}
	return newFakes(f.t, limits...)
}

// config is what a store is told of them.
func (f *fakes) config() (all []*Device) {
	if f != nil {
		for _, d := range f.devices {
			all = append(all, &d.Device)
		}
	}
	return all
}

// grown serves a request for a segment.
func (f *fakes) grown(r GrowRequest) *Segment {
	require.Zero(f.t, r.SizeBytes%ArenaAlign, "rule C1")
	require.NotZero(f.t, r.Arena.Sort&protocol.SegmentOnDevice)
	fakeNext.CompareAndSwap(0, 0x7f00_0000_0000)
	end := fakeNext.Add(r.SizeBytes + fakeGap)
	a := &fakeArena{device: r.Arena.Device(), base: end - r.SizeBytes - fakeGap, size: r.SizeBytes, sort: r.Arena.Sort}
	f.arenas = append(f.arenas, a)
	return &Segment{ID: r.ID, Bytes: fakeReservation()[:r.SizeBytes:r.SizeBytes], Base: a.base}
}

// retire is what a broker does when an arena left service (rule C6).
func (f *fakes) retire(m *Memory, seg *Segment) {
	if f.open {
		f.retired = append(f.retired, seg)
		return
	}
	f.arenas = slices.DeleteFunc(f.arenas, func(a *fakeArena) bool { return a.base == seg.Base })
	m.Freed(seg)
}

// within insists that bytes lie in an arena, of a device or of any.
func (f *fakes) within(d *Device, address, bytes uint64) *fakeArena {
	for _, a := range f.arenas {
		if (d == nil || a.device == d) && address >= a.base && bytes <= a.size && address-a.base <= a.size-bytes {
			return a
		}
	}
	require.Failf(f.t, "a stray device address", "%d bytes at %#x", bytes, address)
	return nil
}

func (f *fakes) read(address, bytes uint64) []byte {
	f.within(nil, address, bytes)
	out := make([]byte, bytes)
	for i := uint64(0); i < bytes; {
		page, at := f.pages[(address+i)/fakePage], (address+i)%fakePage
		if n := min(bytes-i, fakePage-at); page != nil {
			copy(out[i:i+n], page[at:])
			i += n
		} else {
			for ; n > 0; n-- { // new memory is not zeros
				out[i] = 0xaa
				i++
			}
		}
	}
	return out
}

func (f *fakes) write(address uint64, data []byte) {
	f.within(nil, address, uint64(len(data)))
	for len(data) > 0 {
		page, at := f.pages[address/fakePage], address%fakePage
		if page == nil {
			page = new([fakePage]byte)
			for i := range page {
				page[i] = 0xaa
			}
			f.pages[address/fakePage] = page
		}
		n := copy(page[at:], data)
		address, data = address+uint64(n), data[n:]
	}
}

func (d *fakeDevice) copy(list []DeviceCopy) error {
	require.False(d.of.t, d.of.looping, "the loop waits for no device (rule L1)")
	d.lists++
	for i := range list {
		c := &list[i]
		if d.fail != nil && i >= d.after {
			return d.fail
		}
		require.NotZero(d.of.t, c.Bytes)
		require.NotZero(d.of.t, c.Rows)
		onHost := c.Dst.Host != nil || c.Src.Host != nil
		require.False(d.of.t, c.Dst.Host != nil && c.Src.Host != nil, "a copy from host to host")
		if c.Rows > 1 {
			require.False(d.of.t, onHost, "several runs from or to the host")
			require.GreaterOrEqual(d.of.t, min(c.DstPitch, c.SrcPitch), c.Bytes)
			require.LessOrEqual(d.of.t, max(c.DstPitch, c.SrcPitch), uint64(pitchMax))
		}
		for _, side := range []struct {
			at    Place
			pitch uint64
		}{{c.Dst, c.DstPitch}, {c.Src, c.SrcPitch}} {
			if side.at.Host == nil {
				d.of.within(nil, side.at.Address, (c.Rows-1)*side.pitch+c.Bytes) // of one allocation
			}
		}
		for row := range c.Rows {
			d.copies++
			var data []byte
			if c.Src.Host != nil {
				data = c.Src.Host[:c.Bytes]
			} else {
				data = d.of.read(c.Src.Address+row*c.SrcPitch, c.Bytes)
			}
			if c.Dst.Host != nil {
				require.Equal(d.of.t, int(c.Bytes), copy(c.Dst.Host, data))
				continue
			}
			d.of.within(&d.Device, c.Dst.Address+row*c.DstPitch, c.Bytes)
			d.of.write(c.Dst.Address+row*c.DstPitch, data)
		}
	}
	if d.fail != nil {
		return d.fail
	}
	return nil
}

func (d *fakeDevice) zero(address, bytes uint64) error {
	require.False(d.of.t, d.of.looping, "the loop waits for no device (rule L1)")
	d.of.within(&d.Device, address, bytes)
	if d.fail != nil {
		return d.fail
	}
	d.of.write(address, make([]byte, bytes))
	return nil
}

var errDriver = errors.New("CUDA_ERROR_ILLEGAL_ADDRESS (700)")

// newDeviceFixture is a store with two devices.
func newDeviceFixture(t testing.TB, config Config, limits ...uint64) *fixture {
	if len(limits) == 0 {
		limits = []uint64{1 << 30, 1 << 30}
	}
	return newFixtureOf(t, config, 1<<30, newFakes(t, limits...))
}

// onDevice is a schema on a device.
func onDevice(s protocol.Schema, id uint32) protocol.Schema {
	s.DeviceType, s.DeviceID = tensor.DeviceCUDA, id
	return s
}

// address is where a segment lies on a device; 0: it is the host's.
func (f *fixture) address(segment uint64) uint64 {
	seg := f.memory.Segment(segment)
	require.NotNil(f.t, seg, "segment %d is not there", segment)
	return seg.Base
}

// content is what lies in a place, on the host or on a device.
func (f *fixture) content(segment, offset, length uint64) []byte {
	if base := f.address(segment); base != 0 {
		require.LessOrEqual(f.t, offset+length, uint64(len(f.memory.Segment(segment).Bytes)))
		return f.fakes.read(base+offset, length)
	}
	return f.bytes(segment, offset, length)
}

// put writes to a group of a session, as its client or a kernel of it does.
func (f *fixture) put(m *Session, index uint32, offset uint64, data []byte) {
	b := m.groups[index].block
	if b.device() == nil {
		copy(b.Bytes[offset:], data)
		return
	}
	f.fakes.write(b.base+offset, data)
}

// get is what a group of a session holds.
func (f *fixture) get(m *Session, index uint32) []byte {
	b := m.Group(index).Block
	return f.content(b.Segment, b.OffsetBytes, b.LengthBytes)
}

// isVoid tells whether the version of a column at an epoch went with another life.
func (f *fixture) isVoid(column uint32, epoch uint64) bool {
	v := f.versionAt(column, epoch)
	return v != nil && v.DeviceNumber != 0 && v.ArenaGeneration != f.header().StartedNs
}

// unmap hands a session's group back after wait, and ends the session.
func (f *fixture) unmap(wait func() error, m *Session, selection tensor.Selection, adopt, seal bool) (Outcome, error) {
	out, err := f.run(func() (Outcome, *Job, error) { return f.store.UnmapAfter(wait, m, 0, selection, adopt, seal) })
	f.store.EndSession(m)
	return out, err
}

// letters are n rows of so many bytes, of letters from first on.
func letters(first byte, n, rowBytes int) (bytes []byte) {
	for i := range n {
		for range rowBytes {
			bytes = append(bytes, first+byte(i%26))
		}
	}
	return bytes
}

// valuesAt are the first letters of a column's rows, by the order of prims.
func (f *fixture) valuesAt(name string, prims []uint64) (text string) {
	c := f.store.findColumn(name)
	rows := f.rowsAt(c.index, f.store.Epoch())
	for _, prim := range prims {
		row, ok := rows[prim]
		if !ok {
			text += "."
			continue
		}
		require.Equal(f.t, string(slices.Repeat([]byte{row[0]}, len(row))), row, "a row in pieces")
		text += row[:1]
	}
	return text
}
