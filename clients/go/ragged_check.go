package callboard

import (
	"reflect"
	"slices"

	"callboard/protocol"
	"callboard/tensor"
)

// sourceRows are the values of an array write as they were given: a tensor for each row,
// or one that is cut into rows of equal length (packed).
type sourceRows struct {
	tensors []Tensor
	packed  bool
}

// toRows takes what a caller hands in as values of kind array: a slice of tensors, of
// slices, or of strings has a row each; a group of kind array its rows; anything else
// that toTensor takes is packed.
func toRows(values any) (s sourceRows, err error) {
	one := func(i int, value any) error {
		t, err := toHostTensor(value)
		if err != nil {
			return inRow(i, err)
		}
		s.tensors = append(s.tensors, t)
		return nil
	}
	switch v := values.(type) {
	case []string:
		for i := range v {
			if err := one(i, []byte(v[i])); err != nil {
				return s, err
			}
		}
		return s, nil
	case *Group:
		if v.IsArray() {
			for i := range v.Prims() {
				t, err := v.Tensor(i)
				if err != nil {
					return s, err
				}
				if err := one(i, t); err != nil {
					return s, err
				}
			}
			return s, nil
		}
	}
	if v := reflect.ValueOf(values); v.IsValid() && v.Kind() == reflect.Slice {
		if e := v.Type().Elem(); e.Kind() == reflect.Slice || e == reflect.TypeFor[Tensor]() || e == reflect.TypeFor[*Tensor]() || e.Kind() == reflect.Interface {
			for i := range v.Len() {
				if err := one(i, v.Index(i).Interface()); err != nil {
					return s, err
				}
			}
			return s, nil
		}
	}
	t, err := toHostTensor(values)
	return sourceRows{tensors: []Tensor{t}, packed: true}, err
}

// inRow says in which tensor of several something is wrong.
func inRow(i int, err error) error {
	e, ok := asError(err).(*Error)
	if !ok {
		return err
	}
	return fail(e.Status, "tensor %d: %s", i, e.Text)
}

// dtype is the element type that all tensors have; the text names the row that differs
// (behaviour 34). Nothing folds into it (behaviour 24).
func (s *sourceRows) dtype() (DType, error) {
	var first DType
	for i := range s.tensors {
		t := &s.tensors[i]
		if err := t.DType.Validate(); err != nil {
			return first, inRow(i, err)
		}
		if len(t.Shape) == 0 {
			return first, inRow(i, fail(protocol.StatusInvalidArgument, "it has rank 0: give a single element the shape (1,)"))
		}
		if i == 0 {
			first = t.DType
		} else if t.DType != first {
			return first, fail(protocol.StatusInvalidArgument, "tensor %d has elements of %s: those before it have %s, and a write has one element type", i, t.DType, first)
		}
	}
	return first, nil
}

// empty tells whether nothing at all is given.
func (s *sourceRows) empty() bool {
	if !s.packed {
		return len(s.tensors) == 0
	}
	n, err := s.tensors[0].Elements()
	return n == 0 && err == nil
}

// resolve gives the bytes of each addressed prim's row, in order.
func (s *sourceRows) resolve(selection *Selection, size uint64, dtype DType) (rows [][]byte, err error) {
	all := make([][]byte, len(s.tensors)) // compact
	for i := range s.tensors {
		if all[i], err = compactBytes(&s.tensors[i]); err != nil {
			return nil, inRow(i, err)
		}
	}
	if s.packed {
		element := uint64(dtype.Size())
		n, each, err := selection.PackedRows(size, uint64(len(all[0]))/element)
		if err != nil {
			return nil, asError(err)
		}
		whole := all[0]
		all = make([][]byte, n)
		for i := range all {
			all[i] = whole[uint64(i)*each*element:][:each*element]
		}
	}
	n, err := selection.Resolve(size, uint64(len(all)))
	if err != nil {
		return nil, s.explain(selection, size, uint64(len(all)), err)
	}
	if selection.IndexMap == nil {
		return all, nil
	}
	rows = make([][]byte, n)
	for i := range rows {
		rows[i] = all[selection.IndexMap[i]]
	}
	return rows, nil
}

// explain names the tensor that is missing or one too many (behaviour 33).
func (s *sourceRows) explain(selection *Selection, size, have uint64, err error) error {
	want := selection.Count
	if want == AllPrims {
		want = size
	}
	if s.packed || selection.IndexMap != nil || want > size || want == have {
		return asError(err)
	}
	which := "there is none for prim"
	if have > want {
		which = "there is no prim for tensor"
	}
	text := ""
	if selection.Mask != nil {
		text = "; a mask leaves out targets, not rows of the payload"
	}
	return fail(protocol.StatusInvalidArgument, "%d tensors are given for %d addressed prims: %s %d%s", have, want, which, min(have, want), text)
}

// compactBytes are a tensor's elements in row-major order, in place where they lie so.
func compactBytes(t *Tensor) ([]byte, error) {
	size, err := t.Bytes()
	if err != nil {
		return nil, asError(err)
	}
	if size == 0 {
		return nil, nil
	}
	if t.Compact() {
		return t.Data[t.ByteOffset:][:size], nil
	}
	b := make([]byte, size)
	return b, asError(t.Gather(b))
}

// checkRagged is check for kind array; size is how many prims there are to address.
func (c *client) checkRagged(q *Query, w *writeChecks, selection *Selection, size uint64) (p payload, err error) {
	source, err := toRows(w.values)
	var dtype DType
	if err == nil {
		dtype, err = source.dtype()
	}
	if err != nil {
		return p, err
	}
	device, err := c.ofBroker(w.device)
	if err != nil {
		return p, err
	}
	given := tensor.Schema{Kind: tensor.Array, DType: dtype, RowShape: w.rowShape, Semantic: w.semantic}
	err = c.fit(q, w.name, func(stored *tensor.Schema) error {
		given.Device = deviceFor(device, stored)
		if stored != nil {
			if len(source.tensors) == 0 {
				given.DType = stored.DType
			}
			return stored.Accept(&given)
		}
		return given.Validate()
	})
	if err == nil && w.insert && w.selection == nil {
		err = c.checkInsert(q)
	}
	if err != nil {
		return p, err
	}
	if q.running() && w.selection == nil {
		if source.packed {
			return p, fail(protocol.StatusInvalidArgument, "the query is still running: into how many rows one tensor is cut is not known; give a count or a tensor for each row, or wait for the query")
		}
		size = uint64(len(source.tensors)) // the broker will compare
	}
	if size > 0 || !source.empty() { // behaviour 19
		if p.ragged, err = source.resolve(selection, size, dtype); err != nil {
			return p, err
		}
	}
	p.name, p.schema, p.rows, p.prims = w.name, givenSchema(&given, device), uint64(len(p.ragged)), q.Len()
	p.count, p.mask = selection.Count, selection.Mask
	if selection.IndexMap != nil {
		p.count = p.rows
	}
	element := uint64(given.DType.Size())
	p.sizes = make([]uint64, len(p.ragged))
	for i, row := range p.ragged {
		p.sizes[i] = uint64(len(row)) / element
		p.sizeBytes += uint64(len(row))
	}
	return p, nil
}

// sessionSizes are the sizes of the rows of a session for the whole query: those that
// the payload leaves out are empty. nil for the fixed kind.
func (p *payload) sessionSizes() []uint64 {
	if p.ragged == nil {
		return nil
	}
	return append(slices.Clone(p.sizes), make([]uint64, max(0, p.prims-len(p.sizes)))...)
}
