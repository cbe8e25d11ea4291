package callboard

import (
	"context"
	"sync"

	"callboard/protocol"
	"callboard/shm"
	"callboard/tensor"
)

// session is an open map session, or a group that was claimed of another client's. It
// holds the client until it ended.
type session struct {
	client *client
	id     uint64
	life   uint64 // of the broker that leased its memory
	name   string
	schema tensor.Schema
	row    uint64 // bytes of a row; of an array's element
	prims  []uint64
	next   bool // its ordinal is taken at the end, and sealed (rule O8)
	split  bool // it has several groups, which are claimed one by one

	mutex  sync.Mutex
	groups []protocol.GroupDescriptor // of a split session: those that were claimed here
	starts [][]uint64                 // of kind array: where each group's rows begin in bytes, and the last one ends
	gone   []bool                     // groups that were handed back
	lent   map[int]int                // exports that are alive, by group
	device []deviceGroup              // of device memory: what each group needs there; else nil
	ended  bool
	lost   bool // it ended with a restart of the broker
	last   *Op  // the final unmap of a split session, which may take long
}

// mapRequest is OpMap after its checks.
type mapRequest struct {
	query   *queryHandle
	name    string
	schema  protocol.Schema
	ordinal uint64
	flags   uint32
	init    uint32
	rows    uint64 // of a group; 0: one group
	prims   []uint64
	sizes   []uint64 // of kind array: the elements of each prim's row
	staging Device   // by the broker's number; zero: where the attribute lies
	// primMode is protocol.ModeUpsert or ModeInsert.
	primMode uint32
}

// openSession opens a session and waits for its groups. The caller has entered.
func (c *client) openSession(ctx context.Context, r mapRequest) (*session, error) {
	if err := c.settle(ctx); err != nil {
		return nil, err
	}
	args, group := sizeOf[protocol.MapArguments](), sizeOf[protocol.GroupDescriptor]()
	sizes := args + align8(len(r.name))
	op, err := c.submitPatiently(ctx, request{what: "mapping attribute " + r.name, opcode: protocol.OpMap, flags: r.flags, query: r.query, ordinal: r.ordinal,
		size: sizes + 8*len(r.sizes), results: group + 8*len(r.sizes), names: []string{r.name}, fill: func(dst []byte) error {
			a := protocol.MapArguments{Schema: r.schema, NameOffsetBytes: uint32(args), NameBytes: uint32(len(r.name)), PrimMode: r.primMode, Init: r.init, GroupRows: r.rows,
				StagingType: r.staging.Type, StagingID: r.staging.ID}
			if len(r.sizes) > 0 {
				a.ElementSizesOffsetBytes, a.ElementSizesCount = uint32(sizes), uint32(len(r.sizes))
			}
			copy(dst, bytesOf(&a))
			copy(dst[args:], r.name)
			copy(dst[sizes:], bytesOfSlice(r.sizes))
			return nil
		}})
	if err != nil {
		return nil, err
	}
	m := &session{client: c, name: r.name, prims: r.prims, next: r.flags&protocol.FlagNextOrdinal != 0, life: op.life}
	if err := op.Wait(ctx); err != nil {
		if !op.done.Load() { // given up by the caller, not by the broker
			go func() {
				if op.Wait(context.Background()) == nil && c.enter() == nil {
					m.id = op.completion.Handle
					m.abort()
				}
			}()
		}
		return nil, err
	}
	if err := c.enter(); err != nil { // the session's own hold
		return nil, err
	}
	m.id = op.completion.Handle
	m.split = op.completion.Count > 1
	if err := m.adopt(op, &r.schema); err != nil {
		m.abort()
		if c.doomed(m.life) {
			err = m.over()
		}
		return nil, err
	}
	c.mutex.Lock()
	current := m.life == c.life
	c.sessions[m] = current
	if !current { // nobody has its memory yet
		delete(c.sessions, m)
	}
	c.mutex.Unlock()
	if !current {
		m.abort()
		return nil, m.over()
	}
	return m, nil
}

// over is the error of a session whose broker was restarted.
func (m *session) over() *Error {
	return fail(protocol.StatusBrokerRestarted, "the map session of attribute %q ended with a restart of the broker; map it again", m.name)
}

// describe takes what the rows are.
func (m *session) describe(wire *protocol.Schema) (err error) {
	m.schema = tensor.Schema{Kind: tensor.Kind(wire.Kind), DType: DType{Code: wire.DtypeCode, Bits: wire.DtypeBits, Lanes: wire.DtypeLanes},
		RowShape: wire.RowShape[:wire.RowDimensions], Semantic: Semantic(wire.Semantic), Device: tensor.CPU}
	m.row, err = m.schema.RowBytes()
	return asError(err)
}

// adopt takes the groups that the broker leased with a map.
func (m *session) adopt(op *Op, wire *protocol.Schema) error {
	if err := m.describe(wire); err != nil || m.split {
		return err
	}
	size := sizeOf[protocol.GroupDescriptor]()
	if op.completion.Count > uint64(len(op.content)/size) {
		return fail(protocol.StatusInternal, "the broker says %d groups in %d bytes", op.completion.Count, len(op.content))
	}
	for i := range op.completion.Count {
		g, _ := decode[protocol.GroupDescriptor](op.content[int(i)*size:])
		if m.schema.Kind == tensor.Array {
			starts, err := m.groupStarts(&g, op.content)
			if err != nil {
				return err
			}
			m.starts = append(m.starts, starts)
		}
		if err := m.take(g); err != nil {
			return err
		}
	}
	return nil
}

// take adds a group that the broker leased to this client; nobody else looks at the
// session, or the caller holds mutex.
func (m *session) take(g protocol.GroupDescriptor) error {
	if m.schema.Kind == tensor.Fixed && m.row != 0 && g.Rows > g.Block.LengthBytes/m.row {
		return fail(protocol.StatusInternal, "the broker leased %d bytes for %d rows of %d bytes", g.Block.LengthBytes, g.Rows, m.row)
	}
	if g.DeviceNumber != 0 {
		d, err := m.client.takeGroup(&g)
		if err != nil {
			return err
		}
		m.device = append(m.device, d)
	} else if g.Block.Segment != 0 {
		x, err := m.client.writableSegment(g.Block.Segment)
		if err != nil {
			return err
		}
		if size := x.Size(); g.Block.OffsetBytes > size || g.Block.LengthBytes > size-g.Block.OffsetBytes {
			return fail(protocol.StatusInternal, "the broker leased %d bytes at %d of segment %d, which has %d", g.Block.LengthBytes, g.Block.OffsetBytes, g.Block.Segment, size)
		}
		if m.client.guard {
			if err := x.ProtectWritable(g.Block.OffsetBytes, pages(g.LeaseBytes)); err != nil {
				return asError(err)
			}
		}
	}
	m.groups, m.gone = append(m.groups, g), append(m.gone, false)
	return nil
}

func pages(n uint64) uint64 { return (n + shm.PageAlign - 1) &^ (shm.PageAlign - 1) }

// memory is the writable bytes of group i.
func (m *session) memory(i int) ([]byte, error) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	if i >= len(m.groups) && !m.ended {
		return nil, nil // of an empty query
	}
	if err := m.usable(i); err != nil {
		return nil, err
	}
	g := &m.groups[i]
	size := g.Rows * m.row
	if m.schema.Kind == tensor.Array {
		size = g.Block.LengthBytes
	}
	if size == 0 {
		return nil, nil
	}
	if m.device != nil {
		return nil, refused(fail(protocol.StatusInvalidArgument, "attribute %q: the group is device memory (%s), which the host cannot touch: fill it there, at DevicePointer, or map with Staging: CPU", m.name, m.device[i].where()))
	}
	x, err := m.client.writableSegment(g.Block.Segment)
	if err != nil {
		return nil, err
	}
	return x.Bytes()[g.Block.OffsetBytes:][:size:size], nil
}

// array describes the memory of group i, of the fixed kind, wherever it lies.
func (m *session) array(i, rows int) (t Tensor, err error) {
	if d := m.onDevice(i); d != nil {
		t, err = m.schema.ViewAt(uintptr(d.arena.at(d.place)), d.device(), rows, false)
		return t, asError(err)
	}
	b, err := m.memory(i)
	if err == nil {
		t, err = m.schema.View(b, rows, false)
	}
	return t, asError(err)
}

func (m *session) usable(i int) error {
	switch {
	case m.lost || !m.ended && m.client.doomed(m.life):
		return refused(m.over())
	case m.ended:
		return refused(fail(protocol.StatusInvalidHandle, "the map session of attribute %q has ended", m.name))
	case i >= len(m.groups):
		return refused(fail(protocol.StatusInvalidHandle, "attribute %q: the session has %d groups, there is no group %d", m.name, len(m.groups), i))
	case m.gone[i]:
		return refused(fail(protocol.StatusInvalidHandle, "attribute %q: group %d was unmapped", m.name, m.groups[i].GroupIndex))
	}
	return nil
}

// protect makes group i read-only in this process when GUARD was granted (rule M1).
func (m *session) protect(i int, readOnly bool) {
	g := &m.groups[i]
	if !m.client.guard || g.Block.Segment == 0 || m.device != nil {
		return
	}
	x, err := m.client.writableSegment(g.Block.Segment)
	if err != nil {
		return
	}
	if readOnly {
		err = x.ProtectReadOnly(g.Block.OffsetBytes, pages(g.LeaseBytes))
	} else {
		err = x.ProtectWritable(g.Block.OffsetBytes, pages(g.LeaseBytes))
	}
	if err != nil {
		panic("callboard: guarding a leased block: " + err.Error()) // its place was checked
	}
}

// unmapGroup hands group i back. count and mask as in a write's selection.
func (m *session) unmapGroup(i int, sync CUDASync, flags uint32) (*Op, error) {
	c := m.client
	m.mutex.Lock()
	defer m.mutex.Unlock()
	if err := m.usable(i); err != nil {
		return nil, err
	}
	if err := c.enter(); err != nil {
		return nil, err
	}
	defer c.leave()
	r, err := m.unmapRequest(i, AllPrims, nil, sync, flags)
	if err != nil {
		return nil, refused(err)
	}
	m.protect(i, true) // before the broker may read: a late store faults where it is made
	op, err := c.submit(r)
	if err != nil {
		m.protect(i, false)
		return nil, refused(err)
	}
	m.gone[i] = true
	return op, nil
}

// unmapRequest is OpUnmapGroup of group i. The caller holds mutex.
func (m *session) unmapRequest(i int, count uint64, mask []uint64, sync CUDASync, flags uint32) (request, error) {
	r := request{what: "unmapping attribute " + m.name, opcode: protocol.OpUnmapGroup, flags: flags | m.copyIfLent(i), handle: m.id, value: uint64(m.groups[i].GroupIndex),
		names: []string{m.name}, at: m.groups[i].Ordinal, life: m.life}
	event, used, err := m.record(i, sync)
	if err != nil {
		return r, err
	}
	if used != 0 {
		r.event = m.device[i].event
	}
	if count != AllPrims || mask != nil || used != 0 {
		head := sizeOf[protocol.UnmapArguments]()
		r.size = head + 8*len(mask)
		r.fill = func(dst []byte) error {
			a := protocol.UnmapArguments{Selection: protocol.Selection{Count: count, Sort: protocol.SelectRows}, EventIndex: event, EventUsed: used}
			if mask != nil {
				a.Selection.Sort, a.Selection.WordsOffsetBytes, a.Selection.WordCount = protocol.SelectMask, uint32(head), uint32(len(mask))
			}
			copy(dst, bytesOf(&a))
			copy(dst[head:], bytesOfSlice(mask))
			return nil
		}
	}
	return r, nil
}

// unmapAttribute ends the session: what is left is committed; of its one group, count rows,
// or those that mask selects.
func (m *session) unmapAttribute(count uint64, mask []uint64, sync CUDASync, flags uint32) (*Op, error) {
	c := m.client
	m.mutex.Lock()
	defer m.mutex.Unlock()
	if m.lost {
		return nil, refused(m.over())
	}
	if m.ended {
		return nil, refused(fail(protocol.StatusInvalidHandle, "the map session of attribute %q has ended", m.name))
	}
	if err := c.enter(); err != nil {
		return nil, err
	}
	defer c.leave()
	r, err := m.endRequest(count, mask, sync, flags)
	if err != nil {
		return nil, refused(err)
	}
	for i := range m.groups {
		if !m.gone[i] {
			m.protect(i, true)
			r.flags |= m.copyIfLent(i)
		}
	}
	op, err := c.submit(r)
	if err != nil && c.doomed(m.life) {
		m.lost = true
		m.end()
		return nil, refused(m.over())
	}
	if err != nil {
		for i := range m.groups {
			if !m.gone[i] {
				m.protect(i, false)
			}
		}
		return nil, refused(err)
	}
	if m.split {
		m.last = op
	}
	m.end()
	return op, nil
}

// endRequest is what ends the session with a commit of what is left. The caller holds mutex.
func (m *session) endRequest(count uint64, mask []uint64, sync CUDASync, flags uint32) (request, error) {
	r := request{what: "unmapping attribute " + m.name, opcode: protocol.OpUnmapAttribute, flags: flags, handle: m.id, names: []string{m.name}, life: m.life}
	if len(m.groups) > 0 {
		r.at = m.groups[0].Ordinal
	}
	if sync != (CUDASync{}) && (m.device == nil || m.split) {
		return r, m.noSync()
	}
	if len(m.groups) == 1 && !m.split && !m.gone[0] {
		r, err := m.unmapRequest(0, count, mask, sync, flags)
		r.opcode, r.value = protocol.OpUnmapAttribute, 0
		return r, err
	}
	return r, nil
}

// end forgets the session, unless somebody may still write to its memory. The caller holds mutex.
func (m *session) end() {
	m.ended = true
	if len(m.lent) == 0 {
		m.client.forget(m)
		m.leaveDevice()
	}
	m.client.leave()
}

// abort ends the session without a trace (rule M3) and tells whether it was open.
func (m *session) abort() (open bool) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	if m.ended {
		return false
	}
	defer m.end()
	m.client.insist(request{what: "aborting the session of attribute " + m.name, opcode: protocol.OpUnmapAttribute, flags: protocol.FlagAbort, handle: m.id, life: m.life})
	return true
}

// abortLast aborts a split session whose final unmap waits for other clients.
func (m *session) abortLast() {
	m.mutex.Lock()
	last := m.last
	m.last = nil
	m.mutex.Unlock()
	if last != nil && !last.Done() {
		m.client.insist(request{what: "aborting the session of attribute " + m.name, opcode: protocol.OpUnmapAttribute, flags: protocol.FlagAbort, handle: m.id, life: m.life})
	}
}
