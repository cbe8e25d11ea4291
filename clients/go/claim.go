package callboard

import (
	"context"
	"errors"
	"runtime"

	"callboard/protocol"
	"callboard/tensor"
)

// OpenGroup is a group that waits for somebody to claim and fill it.
type OpenGroup struct {
	// Session and Index name it, in a claim.
	Session uint64
	Index   int
	// Ordinal is the session's, First the place of the group's first prim in its query.
	Ordinal     uint64
	First, Rows int
	// Attempt counts from 1; it is higher when a claimant died, or gave the group up.
	Attempt int
}

// group gives group i for Groups: nil after the last. Of a split session it is one that
// is held here, or one that it claims.
func (m *session) group(ctx context.Context, i int) (*MapGroup, error) {
	m.mutex.Lock()
	split, have := m.split && !m.ended, len(m.groups)
	m.mutex.Unlock()
	if i >= have {
		if !split {
			return nil, nil
		}
		if err := m.claimNext(ctx); err != nil {
			if errors.Is(err, ErrEnd) {
				return nil, nil
			}
			return nil, err
		}
	}
	m.mutex.Lock()
	defer m.mutex.Unlock()
	if err := m.usable(i); err != nil {
		return nil, err
	}
	return m.mapGroup(i), nil
}

// mapGroup makes group i's handle. The caller holds mutex.
func (m *session) mapGroup(i int) *MapGroup {
	g := &MapGroup{inner: m, index: i, place: m.groups[i]}
	first := min(g.place.FirstPrim, uint64(len(m.prims)))
	g.prims = m.prims[first:min(first+g.place.PrimCount, uint64(len(m.prims)))]
	return g
}

// claimNext claims one more group of our own split session.
func (m *session) claimNext(ctx context.Context) error {
	c := m.client
	if err := c.enter(); err != nil {
		return err
	}
	defer c.leave()
	r, _, life, err := c.claim(ctx, m.id, protocol.AnyGroup, m.life)
	if err != nil {
		return err
	}
	m.mutex.Lock()
	defer m.mutex.Unlock()
	if m.schema.Kind == tensor.Array {
		_, err = m.behindRows(&r.Group)
	}
	if err == nil {
		err = m.take(r.Group)
	}
	if err != nil { // what stays claimed is committed with the session, unfilled
		m.starts = m.starts[:min(len(m.starts), len(m.groups))]
		c.giveUp(m.id, uint64(r.Group.GroupIndex), life)
	}
	return err
}

// behindRows copies what a claimed group's block tells of its rows, or, of a group in device
// memory, a segment of the host: the path ids, which it returns, and of kind array their
// sizes, which become the group's starts. Whoever else has claimed groups could change
// them: they are looked at once.
func (m *session) behindRows(g *protocol.GroupDescriptor) (prims []uint64, err error) {
	words, array := uint64(1), m.schema.Kind == tensor.Array
	if array {
		words = 2
	}
	block := protocol.BlockRef{Segment: g.Block.Segment, OffsetBytes: g.Block.OffsetBytes, LengthBytes: g.LeaseBytes}
	if g.DeviceNumber != 0 {
		block = protocol.BlockRef{Segment: g.PrimsSegment}
	}
	x, err := m.client.writableSegment(block.Segment)
	if err != nil {
		return nil, err
	}
	size := x.Size()
	if g.DeviceNumber != 0 {
		block.LengthBytes = size
	}
	if g.PrimCount != g.Rows || block.OffsetBytes > size || block.LengthBytes > size-block.OffsetBytes ||
		g.Rows > block.LengthBytes/(8*words) || g.PrimsOffsetBytes > block.LengthBytes-8*words*g.Rows || g.PrimsOffsetBytes%8 != 0 {
		return nil, fail(protocol.StatusInternal, "the broker says %d path ids at %d of a block of %d bytes", g.PrimCount, g.PrimsOffsetBytes, block.LengthBytes)
	}
	all := make([]uint64, words*g.Rows)
	copy(bytesOfSlice(all), x.Bytes()[block.OffsetBytes:][g.PrimsOffsetBytes:])
	if array {
		starts, err := m.startsOf(g, all[g.Rows:])
		if err != nil {
			return nil, err
		}
		m.starts = append(m.starts, starts)
	}
	return all[:g.Rows:g.Rows], nil
}

// claim submits a claim and waits. A caller that gives up leaves no claim behind.
func (c *client) claim(ctx context.Context, session, index, life uint64) (r protocol.ClaimResults, name string, since uint64, err error) {
	head := sizeOf[protocol.ClaimResults]()
	op, err := c.submitPatiently(ctx, request{what: "claiming a group", opcode: protocol.OpClaimGroup, handle: session, value: index, life: life, results: head + protocol.NameBytesMax})
	if err != nil {
		return r, "", 0, err
	}
	if err := op.Wait(ctx); err != nil {
		if !op.done.Load() {
			go func() {
				if op.Wait(context.Background()) == nil {
					c.giveUp(session, op.completion.Value, op.life)
				}
			}()
		}
		return r, "", 0, err
	}
	r, ok := decode[protocol.ClaimResults](op.content)
	if !ok || uint64(r.NameBytes) > uint64(len(op.content)-head) {
		return r, "", 0, fail(protocol.StatusInternal, "the broker described a claim in %d bytes", len(op.content))
	}
	return r, string(op.content[head:][:r.NameBytes]), op.life, nil
}

func (c *client) giveUp(session, index, life uint64) {
	c.insist(request{what: "giving a group up", opcode: protocol.OpUnmapGroup, flags: protocol.FlagAbort, handle: session, value: index, life: life})
}

// ListGroups lists the groups of an attribute's sessions that wait for somebody to claim
// them: also those whose announcement was lost. An empty name lists those of all.
func (s *Stage) ListGroups(ctx context.Context, attribute string) (list []OpenGroup, err error) {
	c := s.client
	if err := c.enter(); err != nil {
		return nil, err
	}
	defer c.leave()
	size := sizeOf[protocol.GroupDescriptor]()
	for {
		op, err := c.call(ctx, request{what: "listing groups", opcode: protocol.OpListGroups, value: uint64(len(list)), size: len(attribute), results: 64 * size,
			fill: func(dst []byte) error { copy(dst, attribute); return nil }})
		if err != nil {
			return nil, refused(err)
		}
		count := op.completion.Count
		if count > uint64(len(op.content)/size) {
			return nil, fail(protocol.StatusInternal, "the broker says %d groups in %d bytes", count, len(op.content))
		}
		for i := range count {
			g, _ := decode[protocol.GroupDescriptor](op.content[int(i)*size:])
			list = append(list, OpenGroup{Session: g.Session, Index: int(g.GroupIndex), Ordinal: g.Ordinal, First: int(g.FirstPrim), Rows: int(g.Rows), Attempt: int(g.Attempt)})
		}
		if count == 0 || uint64(len(list)) >= op.completion.Value {
			return list, nil
		}
	}
}

// AnyGroup, as the index of a claim, is whichever group of the session is unclaimed.
const AnyGroup = -1

// ClaimGroup claims a group of another client's session, or of an own one, to fill it:
// the first claim wins (rule M2). End it with Unmap or GiveUp; one that is dropped is
// given up when the garbage collector finds it.
//
// Errors: INVALID_HANDLE when somebody else was faster or the session is over; END with
// AnyGroup when no group is left; ACCESS_DENIED.
func (s *Stage) ClaimGroup(ctx context.Context, session uint64, index int) (*MapGroup, error) {
	c := s.client
	if err := c.enter(); err != nil {
		return nil, err
	}
	defer c.leave()
	if err := c.mayWrite(); err != nil {
		return nil, refused(err)
	}
	wanted := uint64(index)
	if index < 0 {
		wanted = protocol.AnyGroup
	}
	r, name, life, err := c.claim(ctx, session, wanted, 0)
	if err != nil {
		return nil, refused(err)
	}
	return c.claimed(&r, name, life)
}

// claimed makes a group of what a claim gave. It checks that first: what the broker says
// is only believed as far as it fits the memory.
func (c *client) claimed(r *protocol.ClaimResults, name string, life uint64) (*MapGroup, error) {
	g := r.Group
	m := &session{client: c, id: g.Session, name: name, next: g.Ordinal == 0, life: life}
	var prims []uint64
	err := m.describe(&r.Schema)
	if err == nil {
		prims, err = m.behindRows(&g)
	}
	if err == nil {
		err = m.take(g)
	}
	if err == nil {
		err = c.enter() // the group's own hold
	}
	if err != nil {
		if c.doomed(life) {
			err = fail(protocol.StatusBrokerRestarted, "the broker was restarted after it gave a group of attribute %q away; claim another one", name)
		}
		c.giveUp(g.Session, uint64(g.GroupIndex), life)
		return nil, err
	}
	c.mutex.Lock()
	if life == c.life {
		c.sessions[m] = true
	}
	c.mutex.Unlock()
	out := &MapGroup{inner: m, place: g, prims: prims}
	runtime.AddCleanup(out, func(m *session) {
		if m.giveUp() {
			m.client.forgot("a claimed group of attribute " + m.name)
		}
	}, m)
	return out, nil
}

// giveUp gives a claimed group back unfilled and tells whether it was open.
func (m *session) giveUp() (open bool) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	if m.ended {
		return false
	}
	m.client.giveUp(m.id, uint64(m.groups[0].GroupIndex), m.life)
	m.end()
	return true
}

// Unmap hands the group back for its commit; its memory is dead from here on. Twice is
// INVALID_HANDLE. The Op fails with INVALID_HANDLE when the session was aborted
// meanwhile, with FLOOR_VIOLATION when a seal passed its ordinal, and with QUEUE_FULL or
// OUT_OF_MEMORY when there is no room, TIMEOUT when what it waits for on a device does not
// come: then the group waits for another claim.
//
// sync, at most one, is what rows in device memory wait for: see UnmapAttribute.
func (g *MapGroup) Unmap(sync ...CUDASync) (*Op, error) {
	s, err := one(sync)
	if err != nil {
		return nil, err
	}
	if g.session != nil {
		return g.inner.unmapGroup(g.index, s, g.session.flags())
	}
	op, err := g.inner.unmapGroup(g.index, s, 0)
	if err == nil {
		g.inner.mutex.Lock()
		g.inner.end()
		g.inner.mutex.Unlock()
	}
	return op, err
}

// GiveUp gives a group of a session of several back unfilled: it waits for the next
// attempt, anybody's. It does nothing to a group that was handed back. Of device memory, what
// is queued to fill it must have ended.
func (g *MapGroup) GiveUp() {
	m := g.inner
	if g.session == nil {
		m.giveUp()
		return
	}
	m.mutex.Lock()
	defer m.mutex.Unlock()
	if m.split && m.usable(g.index) == nil {
		m.gone[g.index] = true
		m.client.giveUp(m.id, uint64(g.place.GroupIndex), m.life)
	}
}
