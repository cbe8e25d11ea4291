package tensor

import "math/bits"

// AnyRows tells FoldFixed that an index map decides which rows are read, so the
// leading dimension is free.
const AnyRows = ^uint64(0)

// FoldFixed reads a tensor as rows of a fixed column: dimension 0 counts rows,
// the next ones are the row shape of schema, and all that trail fold into the
// lanes of the element. A nil schema means that the column is new and has no
// declared row shape: then everything behind dimension 0 folds.
//
// It returns the number of rows in the tensor and the element type that the
// column has. Folding moves no byte: the tensor's elements in row-major order
// are the rows.
//
// Errors: INVALID_ARGUMENT when the tensor has rank zero, the leading dimension
// is not rows (a flat buffer is never re-cut), or row shape or element type
// differ from the schema; NOT_SUPPORTED when a row folds to 256 lanes or more.
// Device and semantic are not looked at.
func FoldFixed(t *Tensor, schema *Schema, rows uint64) (uint64, DType, error) {
	if _, err := t.Elements(); err != nil {
		return 0, DType{}, err
	}
	if len(t.Shape) == 0 {
		return 0, DType{}, invalid("tensor has rank 0: expected at least 1 dimension, counting rows; " +
			"give a single value the shape (1,)")
	}
	have := uint64(t.Shape[0])
	if rows != AnyRows && have != rows {
		return 0, DType{}, invalid("tensor of shape %s has %d rows: expected %d in its leading dimension, one per addressed prim",
			formatShape(t.Shape), have, rows)
	}
	trailing := t.Shape[1:]
	if schema != nil {
		var err error
		if trailing, err = cutRowShape(t, schema); err != nil {
			return 0, DType{}, err
		}
	}
	dtype, err := foldLanes(t, trailing)
	if err != nil {
		return 0, DType{}, err
	}
	if schema != nil && dtype != schema.DType {
		return 0, DType{}, invalid("tensor of shape %s and element type %s makes rows of %s: the attribute holds rows of %s, shape %s",
			formatShape(t.Shape), t.DType, dtype, schema.DType, formatShape(schema.ViewShape(0)[1:]))
	}
	return have, dtype, nil
}

// cutRowShape takes the declared row shape off the dimensions behind the first
// and returns what is left for the lanes.
func cutRowShape(t *Tensor, schema *Schema) ([]int64, error) {
	if schema.Kind != Fixed {
		return nil, invalid("tensor is written as kind fixed but the attribute holds kind %s", schema.Kind)
	}
	trailing := t.Shape[1:]
	same := len(trailing) >= len(schema.RowShape)
	for i := 0; same && i < len(schema.RowShape); i++ {
		same = uint64(trailing[i]) == schema.RowShape[i]
	}
	if !same {
		return nil, invalid("tensor of shape %s has rows of shape %s: the declared row_shape is %s of %s",
			formatShape(t.Shape), formatShape(trailing), formatShape(schema.RowShape), schema.DType)
	}
	return trailing[len(schema.RowShape):], nil
}

func foldLanes(t *Tensor, trailing []int64) (DType, error) {
	lanes, wide := uint64(t.DType.Lanes), false
	for _, dim := range trailing {
		if dim == 0 {
			return DType{}, invalid("tensor of shape %s has rows of 0 elements: a fixed row has at least one; "+
				"use kind array for rows that may be empty", formatShape(t.Shape))
		}
		hi, lo := bits.Mul64(lanes, uint64(dim))
		wide = wide || hi != 0
		lanes = lo
	}
	if wide || lanes > MaxLanes {
		return DType{}, notSupported("tensor of shape %s and element type %s folds to more than %d lanes a row; "+
			"declare row_shape=%s", formatShape(t.Shape), t.DType, MaxLanes, formatShape(t.Shape[1:]))
	}
	dtype := t.DType
	dtype.Lanes = uint16(lanes)
	return dtype, nil
}

// FoldLanes gives the same bytes with trailing dimensions folded into elements
// of n lanes: (2, 3) as 3 lanes is (2,). Only whole dimensions fold, and only
// where they lie compact, since a lane has no stride.
func (t *Tensor) FoldLanes(n int) (Tensor, error) {
	if _, err := t.Elements(); err != nil {
		return Tensor{}, err
	}
	if err := checkLanes(n); err != nil {
		return Tensor{}, err
	}
	rank, lanes := len(t.Shape), int64(t.DType.Lanes)
	for lanes < int64(n) && rank > 0 {
		rank--
		if dim := t.Shape[rank]; dim != 1 {
			if dim == 0 || dim > MaxLanes {
				break
			}
			if t.Strides != nil && t.Strides[rank] != lanes/int64(t.DType.Lanes) {
				return Tensor{}, invalid("tensor of shape %s has stride %d in dimension %d: expected %d, since lanes lie compact",
					formatShape(t.Shape), t.Strides[rank], rank, lanes/int64(t.DType.Lanes))
			}
			lanes *= dim
		}
	}
	if lanes != int64(n) {
		return Tensor{}, invalid("tensor of shape %s and element type %s cannot be described with %d lanes: "+
			"its trailing dimensions do not multiply to that", formatShape(t.Shape), t.DType, n)
	}
	f := *t
	f.Shape = t.Shape[:rank:rank]
	f.DType.Lanes = uint16(n)
	if t.Strides != nil {
		grow := lanes / int64(t.DType.Lanes)
		f.Strides = make([]int64, rank)
		for i := range f.Strides {
			if t.Shape[i] <= 1 { // never stepped over, so any stride will do
				continue
			}
			if t.Strides[i]%grow != 0 {
				return Tensor{}, invalid("tensor of shape %s has stride %d in dimension %d: it is no multiple of %d lanes",
					formatShape(t.Shape), t.Strides[i], i, n)
			}
			f.Strides[i] = t.Strides[i] / grow
		}
	}
	return f, nil
}

// SplitLanes gives the same bytes with the lanes as a last dimension, the form
// that array libraries take: (2,) of 3 lanes is (2, 3). One lane stays as it is.
// The tensor must have passed CheckBounds.
func (t *Tensor) SplitLanes() Tensor {
	s := *t
	lanes := int64(t.DType.Lanes)
	if lanes <= 1 {
		return s
	}
	rank := len(t.Shape)
	s.DType.Lanes = 1
	s.Shape = append(t.Shape[:rank:rank], lanes)
	if t.Strides != nil {
		s.Strides = make([]int64, rank+1)
		for i := range t.Strides {
			s.Strides[i] = t.Strides[i] * lanes
		}
		s.Strides[rank] = 1
	}
	return s
}
