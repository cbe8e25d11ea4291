package callboard

import (
	"callboard/protocol"
	"callboard/tensor"
)

// ExportManaged gives a tensor of the group to a DLPack consumer in this process, by cgo or without: of the fixed kind
// i is 0 and the tensor is Array, of kind array it is Tensor(i). The export holds the view itself: it is independent of
// the group and of the Stage, and its deleter, which may be called on any thread, gives it back. What is read is
// read-only, which this form cannot say: NOT_SUPPORTED unless flags has tensor.FlagIsCopied. See tensor.ExportManaged.
func (g *Group) ExportManaged(i int, flags uint64) (*tensor.DLManagedTensor, error) {
	return exportGroup(g, i, flags, tensor.ExportManaged)
}

// ExportVersioned is ExportManaged in the form since DLPack 1.0, with its flag for read-only data.
func (g *Group) ExportVersioned(i int, flags uint64) (*tensor.DLManagedTensorVersioned, error) {
	return exportGroup(g, i, flags, tensor.ExportVersioned)
}

func exportGroup[M any](g *Group, i int, flags uint64, export func(*Tensor, uint64, func()) (*M, error)) (*M, error) {
	h, err := g.hold.again()
	if err != nil {
		return nil, err
	}
	release := func() { h.release() }
	if g.IsDelete() {
		release()
		return nil, fail(protocol.StatusInvalidArgument, "the group of attribute %q lists %d prims that were deleted: it has no data", g.Attribute(), len(g.Prims()))
	}
	return exportTensor(g, i, flags, export, release)
}

// ExportManaged gives a tensor of the group to a DLPack consumer that fills it: of the fixed kind i is 0 and the tensor
// is Array, of kind array it is Tensor(i). The memory stays mapped until the deleter was called. It must not be written
// after the unmap: while an export is alive then, the broker copies the data instead of taking the memory over (rule
// M1), and what the memory holds afterwards is nobody's business. INVALID_HANDLE once the group was unmapped.
func (g *MapGroup) ExportManaged(i int, flags uint64) (*tensor.DLManagedTensor, error) {
	return exportMapGroup(g, i, flags, tensor.ExportManaged)
}

// ExportVersioned is ExportManaged in the form since DLPack 1.0.
func (g *MapGroup) ExportVersioned(i int, flags uint64) (*tensor.DLManagedTensorVersioned, error) {
	return exportMapGroup(g, i, flags, tensor.ExportVersioned)
}

func exportMapGroup[M any](g *MapGroup, i int, flags uint64, export func(*Tensor, uint64, func()) (*M, error)) (*M, error) {
	m := g.inner
	if err := m.lend(g.index); err != nil {
		return nil, err
	}
	return exportTensor(g, i, flags, export, func() { m.unlend(g.index) })
}

// tensors is what both kinds of group have to export.
type tensors interface {
	Attribute() string
	IsArray() bool
	Array() (Tensor, error)
	Tensor(i int) (Tensor, error)
}

// exportTensor exports tensor i. The export's end calls release, and so does a failure.
func exportTensor[M any](g tensors, i int, flags uint64, export func(*Tensor, uint64, func()) (*M, error), release func()) (*M, error) {
	var t Tensor
	var err error
	switch {
	case g.IsArray():
		t, err = g.Tensor(i)
	case i != 0:
		err = outOfRows(g.Attribute(), i, 1)
	default:
		t, err = g.Array()
	}
	var managed *M
	if err == nil {
		managed, err = export(&t, flags, release)
	}
	if err != nil {
		release()
		return nil, asError(err)
	}
	return managed, nil
}

// lend keeps the memory of group i for an export, and lets its unmap copy, until unlend.
func (m *session) lend(i int) error {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	if i >= len(m.groups) && !m.ended { // of an empty query
		return fail(protocol.StatusInvalidArgument, "attribute %q: the session has no rows to export", m.name)
	}
	if err := m.usable(i); err != nil {
		return err
	}
	if err := m.client.enter(); err != nil {
		return err
	}
	if m.lent == nil {
		m.lent = map[int]int{}
	}
	m.lent[i]++
	if m.device == nil {
		m.client.keepSegment(m.groups[i].Block.Segment, 1)
	}
	return nil
}

func (m *session) unlend(i int) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	if m.lent[i]--; m.lent[i] == 0 {
		delete(m.lent, i)
	}
	if m.device == nil {
		m.client.keepSegment(m.groups[i].Block.Segment, -1)
	}
	if m.ended && len(m.lent) == 0 {
		m.client.forget(m)
		m.leaveDevice()
	}
	m.client.leave()
}

// copyIfLent keeps the broker from adopting memory that others still look at (rule M1).
func (m *session) copyIfLent(i int) uint32 {
	if m.lent[i] > 0 {
		return protocol.FlagCopy
	}
	return 0
}

// keepSegment counts exports of a segment's memory: one that is retired stays mapped meanwhile.
func (c *client) keepSegment(id uint64, more int) {
	c.mapping.Lock()
	defer c.mapping.Unlock()
	if c.kept[id] += more; c.kept[id] == 0 {
		delete(c.kept, id)
	}
}
