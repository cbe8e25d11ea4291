package broker

import (
	"errors"
	"slices"

	"callboard/protocol"
	"callboard/snapshot"
	"callboard/tensor"
)

// errParked says that an op waits for other clients' ops: it goes on when its session
// is complete or can never be.
var errParked = errors.New("broker: the op is parked")

// parked is an UnmapAttribute that waits until every group of its session is unmapped.
type parked struct {
	client  *client
	entry   protocol.SubmissionEntry
	session *snapshot.Session
}

// mapAttribute runs OpMap.
func (b *Broker) mapAttribute(c *client, e *protocol.SubmissionEntry) (out outcome, job *snapshot.Job, err error) {
	if err := c.writer(); err != nil {
		return out, nil, err
	}
	args, ok := decode[protocol.MapArguments](c.arguments, 0)
	if !ok {
		return out, nil, c.short("MapArguments", len(encode(&args)))
	}
	t, err := c.target(e, &args.Schema, args.NameOffsetBytes, args.NameBytes, args.PrimMode)
	if err != nil {
		return out, nil, err
	}
	if t.ElementSizes, err = c.elementSizes(args.ElementSizesOffsetBytes, args.ElementSizesCount); err != nil {
		return out, nil, err
	}
	var g protocol.GroupDescriptor
	head := len(encode(&g))
	room, err := c.resultRoom(e, head+8*len(t.ElementSizes), "the group's descriptor and element_sizes")
	if err != nil {
		return out, nil, err
	}
	m, job, err := b.store.Map(c, c.arena, t, args.Init, args.GroupRows)
	if err != nil {
		return out, nil, err
	}
	g = m.Group(0)
	out.Handle, out.Count, out.Ordinal = m.ID, uint64(m.Groups()), g.Ordinal
	switch {
	case m.Prims() == 0:
		out.Count = 0
	case !m.Split():
		if len(t.ElementSizes) > 0 {
			g.ElementSizesOffsetBytes = uint32(head)
			for i, n := range t.ElementSizes {
				putWord(room[head:], i, n)
			}
		}
		out.resultBytes = uint32(copy(room, encode(&g)) + 8*len(t.ElementSizes))
	}
	return out, job, nil
}

// listGroups runs OpListGroups.
func (b *Broker) listGroups(c *client, e *protocol.SubmissionEntry) (out outcome, err error) {
	name, err := c.attributeName(0, uint32(len(c.arguments)))
	if err != nil {
		return out, err
	}
	room, err := c.resultRoom(e, 0, "")
	if err != nil {
		return out, err
	}
	err = b.store.Unclaimed(e.Handle, name, func(m *snapshot.Session, index uint32) {
		g := m.Group(index)
		if raw := encode(&g); out.Value >= e.Value && len(room) >= len(raw) {
			n := copy(room, raw)
			room = room[n:]
			out.resultBytes += uint32(n)
			out.Count++
		}
		out.Value++
	})
	return out, err
}

// claimGroup runs OpClaimGroup.
func (b *Broker) claimGroup(c *client, e *protocol.SubmissionEntry) (out outcome, job *snapshot.Job, err error) {
	if err := c.writer(); err != nil {
		return out, nil, err
	}
	var results protocol.ClaimResults
	size := len(encode(&results))
	room, err := c.resultRoom(e, size+protocol.NameBytesMax, "what a claim gives")
	if err != nil {
		return out, nil, err
	}
	m, index, job, err := b.store.Claim(c, e.Handle, e.Value)
	if err != nil {
		return out, nil, err
	}
	name := m.Name()
	results = protocol.ClaimResults{Group: m.Group(index), Schema: m.Schema(), NameBytes: uint32(len(name)), GroupCount: uint32(m.Groups())}
	copy(room, encode(&results))
	copy(room[size:], name)
	out.Handle, out.Value, out.Ordinal, out.resultBytes = m.ID, uint64(index), results.Group.Ordinal, uint32(size+len(name))
	return out, job, nil
}

// unmapGroup runs OpUnmapGroup.
func (b *Broker) unmapGroup(c *client, e *protocol.SubmissionEntry) (out outcome, job *snapshot.Job, err error) {
	m, err := b.store.FindGroup(c, e.Handle, e.Value)
	if err != nil {
		return out, nil, err
	}
	if e.Flags&protocol.FlagAbort != 0 {
		return out, nil, b.store.GiveUp(m, e.Value)
	}
	selection := tensor.Selection{Count: tensor.All}
	if len(c.arguments) > 0 {
		args, ok := decode[protocol.UnmapArguments](c.arguments, 0)
		if !ok {
			return out, nil, c.short("UnmapArguments", len(encode(&args)))
		}
		if selection, err = c.selection(&args.Selection); err != nil {
			return out, nil, err
		}
	}
	out.Outcome, job, err = b.store.UnmapGroup(m, e.Value, selection, e.Flags&protocol.FlagCopy == 0, e.Flags&protocol.FlagSeal != 0)
	return out, job, err
}

// unmapAttribute runs OpUnmapAttribute: it commits what is left, or aborts.
func (b *Broker) unmapAttribute(c *client, e *protocol.SubmissionEntry) (out outcome, job *snapshot.Job, err error) {
	m, err := b.store.FindSession(c, e.Handle)
	if err != nil {
		return out, nil, err
	}
	seal := e.Flags&protocol.FlagSeal != 0
	switch {
	case e.Flags&protocol.FlagAbort != 0:
		b.store.AbortSession(m)
		return out, nil, nil
	case m.Split():
		out, job, err = b.unmapShared(c, m, e.Flags)
		if err == errParked {
			b.parked = append(b.parked, parked{c, *e, m})
			return out, nil, err
		}
	case !m.Done():
		out.Outcome, job, err = b.store.UnmapGroup(m, 0, tensor.Selection{Count: tensor.All}, e.Flags&protocol.FlagCopy == 0, seal)
	case seal:
		out.Outcome, job, err = b.store.SealSession(m)
	}
	if err == snapshot.ErrRetry || out.again {
		return out, job, err
	}
	b.store.EndSession(m)
	return out, job, err
}

// unmapShared commits what the owner itself holds of a session of several groups, then
// waits for the other groups.
func (b *Broker) unmapShared(c *client, m *snapshot.Session, flags uint32) (out outcome, job *snapshot.Job, err error) {
	for _, index := range m.Held(c) {
		if out.Outcome, job, err = b.store.UnmapGroup(m, index, tensor.Selection{Count: tensor.All}, flags&protocol.FlagCopy == 0, false); err != nil {
			return out, nil, err
		}
		if job != nil {
			out.again = true
			return out, job, nil
		}
	}
	if err := b.store.Failed(m); err != nil {
		return out, nil, err
	}
	if !m.Done() {
		return out, nil, errParked
	}
	out.Handle, out.Ordinal = m.ID, m.Group(0).Ordinal
	if flags&protocol.FlagSeal != 0 {
		out.Outcome, job, err = b.store.SealSession(m)
	}
	return out, job, err
}

// unpark puts ops that need not wait any longer back to the front of their clients' and
// tells whether there were any.
func (b *Broker) unpark() (any bool) {
	b.parked = slices.DeleteFunc(b.parked, func(p parked) bool {
		if !b.store.Settled(p.session) {
			return false
		}
		p.client.waiting = slices.Insert(p.client.waiting, 0, p.entry)
		p.client.stalled = false
		any = true
		return true
	})
	return any
}

// forgetParked drops the parked ops of a session that is over.
func (b *Broker) forgetParked(c *client) {
	b.parked = slices.DeleteFunc(b.parked, func(p parked) bool { return p.client == c })
}
