package tensor

import (
	"encoding/binary"
	"slices"
)

// Gather copies the elements of a host tensor, row-major and without gaps, to
// dst, whatever its strides: negative and zero ones included.
//
// Preconditions: len(dst) is Bytes(); dst and t.Data do not overlap. Nothing is
// written when an error is returned.
func (t *Tensor) Gather(dst []byte) error {
	size, err := t.Bytes()
	if err != nil {
		return err
	}
	if int64(len(dst)) != size {
		return invalid("tensor of shape %s and element type %s has %d bytes: the destination has %d",
			formatShape(t.Shape), t.DType, size, len(dst))
	}
	if !t.Device.Host() {
		return notSupported("tensor lies on %s: only host memory can be gathered here", t.Device)
	}
	if err := t.CheckBounds(); err != nil {
		return err
	}
	if size == 0 {
		return nil
	}
	if t.Compact() {
		copy(dst, t.Data[t.ByteOffset:])
		return nil
	}
	w := t.walk()
	w.copyTo(dst, t.Data, int(t.ByteOffset))
	return nil
}

const (
	copyAlignment = 64      // of copies: a cache line, and what vector units like
	copyBytesMax  = 1 << 46 // more than this no address space has; strides of 0 can ask for it
)

// Copy makes a tensor of the same elements in memory of its own, row-major, which may be written. OUT_OF_MEMORY.
func (t *Tensor) Copy() (Tensor, error) {
	if t == nil {
		return Tensor{}, invalid("tensor is NULL")
	}
	size, err := t.Bytes()
	if err == nil {
		err = t.checkHost()
	}
	if err != nil {
		return Tensor{}, err
	}
	data, err := alignedBytes(size)
	if err != nil {
		return Tensor{}, err
	}
	return Tensor{Data: data, Shape: slices.Clone(t.Shape), DType: t.DType, Device: CPU}, t.Gather(data)
}

// CheckBools reports the first byte of a tensor of bools, in row-major order, that is neither 0 nor 1. Other bytes in a
// bool column would be undefined behaviour in readers that trust the type (field report G9). Of other types nothing is
// looked at. The tensor must have passed CheckBounds.
func (t *Tensor) CheckBools() error {
	if t.DType.Code != CodeBool || !t.Device.Host() {
		return nil
	}
	n, err := t.Elements()
	if err != nil || n == 0 {
		return err
	}
	lanes := int(t.DType.Lanes)
	if t.Compact() {
		return checkBools(t.Data[t.ByteOffset:][:int(n)*lanes], 0)
	}
	var index [MaxDims]int64
	at := int64(t.ByteOffset)
	for value := 0; ; value += lanes {
		if err := checkBools(t.Data[at:][:lanes], value); err != nil {
			return err
		}
		k := len(t.Shape) - 1
		for ; k >= 0; k-- {
			step := t.Strides[k] * int64(lanes)
			if index[k]++; index[k] < t.Shape[k] {
				at += step
				break
			}
			at -= step * (t.Shape[k] - 1)
			index[k] = 0
		}
		if k < 0 {
			return nil
		}
	}
}

// checkBools is CheckBools of bytes whose first one is value number first.
func checkBools(data []byte, first int) error {
	for i, b := range data {
		if b > 1 {
			return invalid("bool value %d is byte %#02x: expected 0 or 1; write it as uint8 if the bytes carry more", first+i, b)
		}
	}
	return nil
}

// walk is the order in which the pieces of a strided tensor are visited: an
// inner loop of count pieces, step bytes apart, of run bytes each, inside dims
// outer loops. It is a value so that Gather allocates nothing.
type walk struct {
	run, count, step int
	dims             int
	size, stride     [MaxDims]int // outer loops; stride in bytes
}

// walk joins neighbouring dimensions that step evenly, so that the common cases
// (a cropped image, every second row) become few long runs. The extent has been
// checked against the data, hence no product here can overflow.
func (t *Tensor) walk() walk {
	element := t.DType.Size()
	var w walk
	for i, dim := range t.Shape {
		if dim == 1 {
			continue
		}
		n, s := int(dim), int(t.Strides[i])*element
		if k := w.dims - 1; k >= 0 && w.stride[k] == s*n {
			w.size[k] *= n
			w.stride[k] = s
			continue
		}
		w.size[w.dims], w.stride[w.dims] = n, s
		w.dims++
	}
	w.run, w.count = element, 1
	if k := w.dims - 1; k >= 0 && w.stride[k] == element {
		w.run *= w.size[k]
		w.dims--
	}
	if k := w.dims - 1; k >= 0 {
		w.count, w.step = w.size[k], w.stride[k]
		w.dims--
	}
	return w
}

func (w *walk) copyTo(dst, src []byte, from int) {
	var index [MaxDims]int
	for {
		copyStepped(dst, src, from, w.count, w.step, w.run)
		dst = dst[w.count*w.run:]
		k := w.dims - 1
		for ; k >= 0; k-- {
			index[k]++
			from += w.stride[k]
			if index[k] < w.size[k] {
				break
			}
			from -= w.stride[k] * w.size[k]
			index[k] = 0
		}
		if k < 0 {
			return
		}
	}
}

// copyStepped copies count pieces of run bytes. The usual widths of one element
// have loops of their own: a call to copy costs more than moving 8 bytes.
func copyStepped(dst, src []byte, from, count, step, run int) {
	le := binary.LittleEndian
	switch run {
	case 1:
		for i := range dst[:count] {
			dst[i] = src[from]
			from += step
		}
	case 2:
		for ; count > 0; count-- {
			le.PutUint16(dst, le.Uint16(src[from:]))
			dst, from = dst[2:], from+step
		}
	case 4:
		for ; count > 0; count-- {
			le.PutUint32(dst, le.Uint32(src[from:]))
			dst, from = dst[4:], from+step
		}
	case 8:
		for ; count > 0; count-- {
			le.PutUint64(dst, le.Uint64(src[from:]))
			dst, from = dst[8:], from+step
		}
	default:
		for ; count > 0; count-- {
			copy(dst[:run], src[from:])
			dst, from = dst[run:], from+step
		}
	}
}
