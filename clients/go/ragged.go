package callboard

import (
	"reflect"

	"callboard/protocol"
	"callboard/tensor"
)

// Ragged is memory of kind array, with a row of its own length for each prim: a Group or
// a MapGroup.
type Ragged interface {
	// IsArray tells whether it is; other kinds have Rows and Values.
	IsArray() bool
	row(i int) ([]byte, error)
	rowSchema() *tensor.Schema
}

// Row is the i-th prim's row of an array attribute as one T for each element, in place:
// float32 for float32 elements, [3]float32 for elements of 3 lanes, or a struct of the
// element's size without pointers. An empty row has length 0. The rules of Tensor hold:
// read-only for a Group, dead after its end.
//
// Errors: INVALID_ARGUMENT for the fixed kind, an i out of range, and for a T that
// differs, with both sizes or element types.
func Row[T any](v Ragged, i int) ([]T, error) {
	if err := fits(reflect.TypeFor[T](), v.rowSchema()); err != nil {
		return nil, err
	}
	b, err := v.row(i)
	if err != nil {
		return nil, err
	}
	return typedBytes[T](b)
}

// Texts are the rows of a group of uint8 arrays as text: what was written, byte by byte,
// copied.
func Texts(g *Group) ([]string, error) {
	s := g.rowSchema()
	if s.Kind != tensor.Array || s.DType != tensor.Uint8 {
		return nil, fail(protocol.StatusInvalidArgument, "attribute %q is %s: text is kind array of uint8", g.Attribute(), s.String())
	}
	texts := make([]string, len(g.Prims()))
	for i := range texts {
		b, err := g.row(i)
		if err != nil {
			return nil, err
		}
		texts[i] = string(b)
	}
	return texts, nil
}

func kindOf(isArray bool) tensor.Kind {
	if isArray {
		return tensor.Array
	}
	return tensor.Fixed
}

// rowTensor describes one row of kind array: (n[, lanes]).
func rowTensor(s *tensor.Schema, row []byte, readOnly bool) (Tensor, error) {
	element := tensor.Schema{Kind: tensor.Fixed, DType: s.DType, Semantic: s.Semantic, Device: s.Device}
	size := s.DType.Size()
	if row == nil {
		row = []byte{}
	}
	t, err := element.View(row, len(row)/size, readOnly)
	return t, asError(err)
}

// notRagged refuses what kind array alone has.
func notRagged(name string) error {
	return fail(protocol.StatusInvalidArgument, "attribute %q is of kind fixed: its rows are one array; use Array, Rows or Values", name)
}

// isRagged refuses what the fixed kind alone has.
func isRagged(name string) error {
	return fail(protocol.StatusInvalidArgument, "attribute %q is of kind array: each prim's row has a length of its own; use Tensor or Row", name)
}

func outOfRows(name string, i, n int) error {
	return fail(protocol.StatusInvalidArgument, "attribute %q: row %d of a group of %d prims: expected 0 to %d", name, i, n, n-1)
}
