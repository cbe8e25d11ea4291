package snapshot

import "callboard/protocol"

// copyList gathers the copies of one Job. Neighbours that continue each other on both sides
// become one; rows at equal distances on devices become one of several runs. What is added
// later may depend on what was added before.
type copyList struct {
	copies []DeviceCopy
	bytes  uint64
}

// pitchMax is the longest distance of runs: CUDA takes less than 2 GiB.
const pitchMax = 1<<31 - 1

// add notes a copy of some bytes.
func (l *copyList) add(dst, src Place, bytes uint64) {
	if bytes == 0 {
		return
	}
	l.bytes += bytes
	if n := len(l.copies); n > 0 && l.copies[n-1].takes(dst, src, bytes) {
		return
	}
	l.copies = append(l.copies, DeviceCopy{Dst: dst, Src: src, Bytes: bytes, Rows: 1})
}

// takes makes bytes that come next a part of the copy, if it can: what lies in two blocks may
// be two allocations, however near, and of two devices.
func (c *DeviceCopy) takes(dst, src Place, bytes uint64) bool {
	if dst.block != c.Dst.block || src.block != c.Src.block {
		return false
	}
	if c.Rows == 1 && c.Dst.ends(c.Bytes, dst) && c.Src.ends(c.Bytes, src) {
		c.Bytes += bytes
		c.Dst.grow(bytes)
		c.Src.grow(bytes)
		return true
	}
	if bytes != c.Bytes || c.Dst.Host != nil || c.Src.Host != nil || dst.Host != nil || src.Host != nil {
		return false
	}
	last := c.Rows - 1
	up, forth := dst.Address-(c.Dst.Address+last*c.DstPitch), src.Address-(c.Src.Address+last*c.SrcPitch) // huge where it goes down
	if up < bytes || forth < bytes || up > pitchMax || forth > pitchMax || last > 0 && (up != c.DstPitch || forth != c.SrcPitch) {
		return false
	}
	c.DstPitch, c.SrcPitch = up, forth
	c.Rows++
	return true
}

// ends tells whether next begins where bytes from p on end.
func (p *Place) ends(bytes uint64, next Place) bool {
	if p.Host == nil || next.Host == nil {
		return p.Host == nil && next.Host == nil && p.Address+bytes == next.Address
	}
	return uint64(cap(p.Host)) > bytes && &p.Host[:bytes+1][bytes] == &next.Host[0]
}

// grow makes room for more bytes behind those of p; they are there.
func (p *Place) grow(more uint64) {
	if p.Host != nil {
		p.Host = p.Host[:uint64(len(p.Host))+more]
	}
}

// run makes the copies.
func (l *copyList) run(d *Device) error {
	if len(l.copies) == 0 {
		return nil
	}
	return failedOn(d, d.Copy(l.copies))
}

// failedOn is a driver's error for people; what has a status of its own is passed on.
func failedOn(d *Device, err error) error {
	if err == nil {
		return nil
	}
	e := StatusError(err)
	if e.Status == protocol.StatusInternal {
		e.Status = protocol.StatusOpFailed
	}
	return protocol.Errorf(e.Status, "%s: %s", d, e.Text)
}

// deviceOf is the device that copies between two blocks, or fills the first where src is
// nil; nil: none has to.
func deviceOf(dst, src *Block) *Device {
	if d := dst.device(); d != nil || src == nil {
		return d
	}
	return src.device()
}
