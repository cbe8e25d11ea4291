package tensor

import "unsafe"

// Buffer is what Python's Py_buffer is to say of a tensor. It borrows the data.
type Buffer struct {
	Data        unsafe.Pointer // of the first element
	ItemBytes   uint64         // of one lane
	LengthBytes uint64         // of all elements
	Format      string         // as the struct module writes it
	ReadOnly    bool
	Shape       []int64 // lanes above 1 are one more dimension, the last
	Strides     []int64 // in bytes
}

// BufferOf describes t for the buffer protocol. Errors as of ExportManaged; NOT_SUPPORTED where lanes are a dimension
// too many.
func BufferOf(t *Tensor) (Buffer, error) {
	if t == nil {
		return Buffer{}, invalid("tensor is NULL")
	}
	if err := t.checkHost(); err != nil {
		return Buffer{}, err
	}
	size, err := t.Bytes()
	if err != nil {
		return Buffer{}, err
	}
	lanes, rank := int64(t.DType.Lanes), len(t.Shape)
	if lanes > 1 && rank == MaxDims {
		return Buffer{}, notSupported("tensor has %d dimensions and %d lanes: a buffer has at most %d dimensions", rank, lanes, MaxDims)
	}
	item := int64(t.DType.Bits) / 8
	b := Buffer{ItemBytes: uint64(item), LengthBytes: uint64(size), Format: BufferFormat(t.DType), ReadOnly: t.ReadOnly,
		Shape: append([]int64{}, t.Shape...), Strides: append([]int64{}, t.Strides...)}
	if len(t.Data) > 0 {
		b.Data = unsafe.Add(unsafe.Pointer(unsafe.SliceData(t.Data)), int(t.ByteOffset))
	}
	if t.Strides == nil {
		b.Strides = make([]int64, rank)
		canonicalStrides(b.Strides, b.Shape)
	}
	for i := range b.Strides {
		b.Strides[i] *= item * lanes // one that is not used may wrap
	}
	if lanes > 1 {
		b.Shape, b.Strides = append(b.Shape, lanes), append(b.Strides, item)
	}
	return b, nil
}

// BufferFormat is the format of one lane: "f" of float32. Types that Python has no letter for, bfloat16 and float8, are
// unsigned integers of their width. "" for what is no type.
func BufferFormat(d DType) string {
	if d.scalarName() == "" {
		return ""
	}
	power := map[uint8]int{8: 0, 16: 1, 32: 2, 64: 3, 128: 4}[d.Bits]
	switch d.Code {
	case CodeInt:
		return "bhiq"[power:][:1]
	case CodeFloat:
		return " efd"[power:][:1]
	case CodeComplex:
		return "Z" + " efd"[power-1:][:1]
	case CodeBool:
		return "?"
	}
	return "BHIQ"[power:][:1]
}
