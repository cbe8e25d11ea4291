package callboard

import (
	"reflect"
	"unsafe"

	"callboard/protocol"
	"callboard/tensor"
)

// Rowed is memory with rows: a Group, a MapGroup, a MapSession of one group.
type Rowed interface {
	Bytes() ([]byte, error)
	rowSchema() *tensor.Schema
}

// Rows is the memory of v as one T for each row, in place: float32 for float32 rows,
// [3]float32 for rows of 3 lanes or of row_shape (3,), or a struct of the row's size
// without pointers. The rules of v.Bytes hold: read-only for a Group, dead after its
// end.
//
// Errors: INVALID_ARGUMENT names both sizes or element types.
func Rows[T any](v Rowed) ([]T, error) {
	s := v.rowSchema()
	if s.Kind == tensor.Array {
		return nil, fail(protocol.StatusInvalidArgument, "the attribute is of kind array: each prim's row has a length of its own; use Row")
	}
	if err := fits(reflect.TypeFor[T](), s); err != nil {
		return nil, err
	}
	return typed[T](v)
}

// Values is the memory of v as one flat slice of its base elements, in place. T must
// be the element type: float32 for rows of float32x3.
func Values[T any](v Rowed) ([]T, error) {
	t, s := reflect.TypeFor[T](), v.rowSchema()
	if err := sameElement(t, s); err != nil {
		return nil, err
	}
	return typed[T](v)
}

func typed[T any](v Rowed) ([]T, error) {
	b, err := v.Bytes()
	if err != nil {
		return nil, err
	}
	return typedBytes[T](b)
}

func typedBytes[T any](b []byte) ([]T, error) {
	rows, ok := sliceOf[T](b)
	if !ok {
		return nil, fail(protocol.StatusInvalidArgument, "rows start at address %p, which is not aligned for %s", unsafe.SliceData(b), reflect.TypeFor[T]())
	}
	return rows, nil
}

// fits tells whether a row of s can be seen as a t.
func fits(t reflect.Type, s *tensor.Schema) error {
	rowBytes, err := s.RowBytes()
	if err != nil {
		return asError(err)
	}
	if uint64(t.Size()) != rowBytes {
		return fail(protocol.StatusInvalidArgument, "a row is %s of %d bytes: %s has %d", s.String(), rowBytes, t, t.Size())
	}
	base := t
	for base.Kind() == reflect.Array {
		base = base.Elem()
	}
	if base.Kind() == reflect.Struct {
		if hasPointers(base) {
			return fail(protocol.StatusInvalidArgument, "%s holds pointers, strings or the like: rows are plain bytes", t)
		}
		return nil
	}
	return sameElement(base, s)
}

func sameElement(t reflect.Type, s *tensor.Schema) error {
	lane := s.DType
	lane.Lanes = 1
	if got, ok := dtypeOf(t.Kind()); !ok || got != lane {
		return fail(protocol.StatusInvalidArgument, "elements are %s: %s is not", lane, t)
	}
	return nil
}

func hasPointers(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Array:
		return hasPointers(t.Elem())
	case reflect.Struct:
		for i := range t.NumField() {
			if hasPointers(t.Field(i).Type) {
				return true
			}
		}
		return false
	case reflect.Int, reflect.Uint, reflect.Uintptr:
		return false
	}
	_, plain := dtypeOf(t.Kind())
	return !plain
}
