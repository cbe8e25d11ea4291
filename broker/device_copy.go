package broker

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"callboard/cudaipc"
	"callboard/protocol"
	"callboard/snapshot"
)

const (
	// bounceBytes is the host memory of a lane. What lies in memory that clients share goes
	// through it: the driver could not outlive a page that one of them cuts off (rule S3).
	bounceBytes = 1 << 20
	// copiesAtOnce bounds how many copies the device's thread queues in one go: it does
	// nothing else meanwhile.
	copiesAtOnce = 512
	// Pauses between two questions whether a stream is done.
	laneEager    = 16
	lanePauseMin = 10 * time.Microsecond
	lanePauseMax = time.Millisecond
	// attributeMaxPitch is CU_DEVICE_ATTRIBUTE_MAX_PITCH: the longest distance of rows in bytes.
	attributeMaxPitch cudaipc.Attribute = 11
)

// lanes are streams of a device with host memory of their own. A job takes one for as long as
// it copies, so that jobs copy side by side and wait for their own work alone.
type lanes struct {
	device *device
	fail   func(*device, error) error // says what an error of the driver means

	mu   sync.Mutex
	free []*lane
}

type lane struct {
	device *device
	thread *cudaipc.Thread
	stream cudaipc.Stream
	host   *cudaipc.Host
	queued []func(cudaipc.Driver) error // not yet given to the driver
}

func (l *lanes) take() (*lane, error) {
	l.mu.Lock()
	if n := len(l.free); n > 0 {
		defer l.mu.Unlock()
		one := l.free[n-1]
		l.free = l.free[:n-1]
		return one, nil
	}
	l.mu.Unlock()
	one := &lane{device: l.device, thread: l.device.thread}
	var err error
	if one.host, err = cudaipc.NewHost(bounceBytes); err != nil {
		return nil, err
	}
	_ = one.host.Register(one.thread) // faster; nothing depends on it
	err = one.thread.Do(func(d cudaipc.Driver) (err error) {
		one.stream, err = d.StreamCreate()
		return err
	})
	if err != nil {
		return nil, errors.Join(err, one.host.Close())
	}
	return one, nil
}

// give takes a lane back. One that is left in the middle of its work may be at it for ever:
// then it is not used again.
func (l *lanes) give(one *lane, whole bool) {
	if !whole {
		one.queued = one.queued[:0]
		done := false
		err := one.thread.Do(func(d cudaipc.Driver) (err error) {
			done, err = d.StreamQuery(one.stream)
			return err
		})
		if !done || err != nil {
			return
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.free = append(l.free, one)
}

// run has f copy in a lane.
func (l *lanes) run(f func(*lane) error) (err error) {
	one, err := l.take()
	if err != nil {
		return l.fail(l.device, err)
	}
	whole := false
	defer func() { // also when a page of a client's is gone: the fault goes on
		l.give(one, whole)
	}()
	if err := f(one); err != nil {
		return l.fail(l.device, err)
	}
	whole = true
	return nil
}

// queue adds a step; flush gives the steps to the driver, finish waits for them too.
func (one *lane) queue(step func(cudaipc.Driver) error) error {
	if one.queued = append(one.queued, step); len(one.queued) >= copiesAtOnce {
		return one.flush()
	}
	return nil
}

func (one *lane) flush() error {
	if len(one.queued) == 0 {
		return nil
	}
	steps := one.queued
	one.queued = one.queued[:0]
	for len(steps) > 0 {
		err := one.thread.Do(func(d cudaipc.Driver) error {
			for len(steps) > 0 {
				step := steps[0]
				steps = steps[1:]
				if err := step(d); err != nil {
					return err
				}
			}
			return nil
		})
		if odd, ok := errors.AsType[*oddPitch](err); ok {
			err = one.rows(odd.copy) // what comes after it may depend on it
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (one *lane) finish() error {
	if err := one.flush(); err != nil {
		return err
	}
	done := false
	ask := func(d cudaipc.Driver) (err error) {
		done, err = d.StreamQuery(one.stream)
		return err
	}
	for turn := 0; ; turn++ {
		if err := one.thread.Do(ask); done || err != nil {
			return err
		}
		if turn >= laneEager {
			time.Sleep(min(lanePauseMin<<min(turn-laneEager, 10), lanePauseMax))
		}
	}
}

// copyAll makes copies in order.
func (b *Broker) copyAll(g *device, copies []snapshot.DeviceCopy) error {
	several := len(b.devices.all()) > 1
	return g.lanes.run(func(one *lane) error {
		for i := range copies {
			c := &copies[i]
			var err error
			switch {
			case c.Dst.Host != nil:
				err = one.download(c.Dst.Host[:c.Bytes], cudaipc.Pointer(c.Src.Address))
			case c.Src.Host != nil:
				err = one.upload(cudaipc.Pointer(c.Dst.Address), c.Src.Host[:c.Bytes])
			case several && b.devices.of(c.Src.Address) != b.devices.of(c.Dst.Address):
				if err = one.finish(); err == nil {
					err = b.copyBetween(c)
				}
			default:
				err = one.within(c)
			}
			if err != nil {
				return err
			}
		}
		return one.finish()
	})
}

// zero makes bytes of the device zeros.
func (g *device) zero(address, bytes uint64) error {
	return g.lanes.run(func(one *lane) error {
		err := one.queue(func(d cudaipc.Driver) error {
			return d.MemsetD8Async(cudaipc.Pointer(address), 0, bytes, one.stream)
		})
		return errors.Join(err, one.finish())
	})
}

// oddPitch says that the device does not take a copy of rows at a distance in one go.
type oddPitch struct{ copy *snapshot.DeviceCopy }

func (e *oddPitch) Error() string {
	return fmt.Sprintf("copies of rows %d and %d bytes apart are refused", e.copy.SrcPitch, e.copy.DstPitch)
}

// maxPitch is the longest distance of rows that a device takes; 0: it does not say.
func maxPitch(d cudaipc.Driver, ordinal int) uint64 {
	g, err := d.DeviceGet(ordinal)
	if err != nil {
		return 0
	}
	n, err := d.DeviceAttribute(g, attributeMaxPitch)
	if err != nil || n < 0 {
		return 0
	}
	return uint64(n)
}

// strided queues a copy of rows at a distance, from a step. The driver "may fail for pitches
// not computed by cuMemAllocPitch" (its reference, cuMemcpy2DAsync), and ours are whatever the
// rows' layouts give: a device that refused one is not asked again.
func (one *lane) strided(d cudaipc.Driver, c *snapshot.DeviceCopy) error {
	g := one.device
	if g.oddPitches.Load() || g.maxPitch > 0 && max(c.SrcPitch, c.DstPitch) > g.maxPitch {
		return &oddPitch{c}
	}
	err := d.Copy2DAsync(cudaipc.Copy2D{Dst: c.Dst.Address, DstPitch: c.DstPitch, Src: c.Src.Address, SrcPitch: c.SrcPitch, Width: c.Bytes, Height: c.Rows}, one.stream)
	if cudaipc.CodeOf(err) == cudaipc.ErrInvalidValue {
		g.oddPitches.Store(true)
		return &oddPitch{c}
	}
	return err
}

// rows gives the driver a copy of rows at a distance one by one.
func (one *lane) rows(c *snapshot.DeviceCopy) error {
	for first := uint64(0); first < c.Rows; first += copiesAtOnce {
		err := one.thread.Do(func(d cudaipc.Driver) error {
			for row := first; row < min(first+copiesAtOnce, c.Rows); row++ {
				err := d.CopyDtoDAsync(cudaipc.Pointer(c.Dst.Address+row*c.DstPitch), cudaipc.Pointer(c.Src.Address+row*c.SrcPitch), c.Bytes, one.stream)
				if err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// within queues a copy on one device. This is the place for a kernel: one that takes many tiny
// rows at any distance would go where copies of one row, and those that strided refuses, do.
func (one *lane) within(c *snapshot.DeviceCopy) error {
	if c.Bytes == 0 || c.Rows == 0 {
		return nil
	}
	return one.queue(func(d cudaipc.Driver) error {
		if c.Rows == 1 {
			return d.CopyDtoDAsync(cudaipc.Pointer(c.Dst.Address), cudaipc.Pointer(c.Src.Address), c.Bytes, one.stream)
		}
		return one.strided(d, c)
	})
}

// upload copies from host memory; what was queued before it is done first, since it uses the
// lane's memory.
func (one *lane) upload(dst cudaipc.Pointer, src []byte) error {
	for len(src) > 0 {
		if err := one.finish(); err != nil {
			return err
		}
		n := copy(one.host.Bytes(), src)
		to := dst
		if err := one.queue(func(d cudaipc.Driver) error {
			return d.CopyHtoDAsync(to, one.host.At(0, uint64(n)), uint64(n), one.stream)
		}); err != nil {
			return err
		}
		src, dst = src[n:], dst+cudaipc.Pointer(n)
	}
	return nil
}

func (one *lane) download(dst []byte, src cudaipc.Pointer) error {
	for len(dst) > 0 {
		if err := one.finish(); err != nil { // an upload may still use the lane's memory
			return err
		}
		n := uint64(min(len(dst), bounceBytes))
		err := one.queue(func(d cudaipc.Driver) error { return d.CopyDtoHAsync(one.host.At(0, n), src, n, one.stream) })
		if err = errors.Join(err, one.finish()); err != nil {
			return err
		}
		copy(dst[:n], one.host.Bytes())
		dst, src = dst[n:], src+cudaipc.Pointer(n)
	}
	return nil
}

// copyBetween copies between two devices by way of the host: nobody has shown that they
// reach each other.
func (b *Broker) copyBetween(c *snapshot.DeviceCopy) error {
	from, to := b.devices.of(c.Src.Address), b.devices.of(c.Dst.Address)
	if from == nil || to == nil {
		panic(fmt.Sprintf("broker: a copy from %#x to %#x, and not both lie in an arena", c.Src.Address, c.Dst.Address))
	}
	buffer := make([]byte, min(c.Bytes, bounceBytes))
	for row := range c.Rows {
		for at := uint64(0); at < c.Bytes; at += uint64(len(buffer)) {
			n := min(c.Bytes-at, uint64(len(buffer)))
			src := snapshot.DeviceCopy{Dst: snapshot.Place{Host: buffer[:n]}, Src: snapshot.Place{Address: c.Src.Address + row*c.SrcPitch + at}, Bytes: n, Rows: 1}
			dst := snapshot.DeviceCopy{Dst: snapshot.Place{Address: c.Dst.Address + row*c.DstPitch + at}, Src: snapshot.Place{Host: buffer[:n]}, Bytes: n, Rows: 1}
			if err := b.copyAll(from, []snapshot.DeviceCopy{src}); err != nil {
				return err
			}
			if err := b.copyAll(to, []snapshot.DeviceCopy{dst}); err != nil {
				return err
			}
		}
	}
	return nil
}

// downloadRows gives the bytes of a version's rows on a device, which the caller has pinned.
func (b *Broker) downloadRows(v *snapshot.Version, rows []uint32) (places [][]byte, err error) {
	var a *arena
	if !b.do(func() { a = b.arenas[v.Block.Segment] }) {
		return nil, errStopping
	}
	width := v.Column.RowBytes
	if a == nil || v.Void {
		return nil, protocol.Errorf(protocol.StatusNotFound, "attribute %q lies in memory of a device that is gone", v.Column.Name)
	}
	all := make([]byte, width*uint64(len(rows)))
	var copies []snapshot.DeviceCopy
	for i, row := range rows {
		place := all[uint64(i)*width:][:width]
		places = append(places, place)
		from := v.Block.OffsetBytes + uint64(row)*width
		if from+width > a.bytes {
			return nil, protocol.Errorf(protocol.StatusInternal, "row %d of attribute %q lies at %d of an arena of %d bytes", row, v.Column.Name, from, a.bytes)
		}
		if n := len(copies); n > 0 && copies[n-1].Src.Address+copies[n-1].Bytes == uint64(a.base)+from {
			last := &copies[n-1]
			last.Bytes += width
			last.Dst.Host = last.Dst.Host[:last.Bytes]
			continue
		}
		copies = append(copies, snapshot.DeviceCopy{Dst: snapshot.Place{Host: all[uint64(i)*width:][:width]}, Src: snapshot.Place{Address: uint64(a.base) + from}, Bytes: width, Rows: 1})
	}
	return places, b.copyAll(a.device, copies)
}
