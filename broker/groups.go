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
	t.StagingType, t.StagingID = args.StagingType, args.StagingID
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
	if on := m.Device(); on != nil {
		err := b.lostOn(on)
		if err == nil && !m.Split() && b.findLease(c, m.ID, 0) == nil { // onGroup found none that is free
			err = b.noEvent(on)
		}
		if err != nil {
			if job != nil {
				job.Abort()
			}
			b.store.AbortSession(m)
			b.dropLeases(c, m.ID)
			return out, nil, err
		}
		b.endUnfilled(b.findLease(c, m.ID, 0), job) // there is no job of a session of several groups
	}
	g = b.group(c, m, 0)
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
	m, index, err := b.store.Claimable(e.Handle, e.Value)
	if err != nil { // before it is said that no event is free
		return out, nil, err
	}
	var event *lease
	if on := m.Device(); on != nil {
		if err := b.lostOn(on); err != nil {
			return out, nil, err
		}
		if event = b.leaseEvent(c, on, m.ID, uint64(index)); event == nil {
			return out, nil, b.noEvent(on)
		}
	}
	if m, index, job, err = b.store.Claim(c, m.ID, uint64(index)); err != nil {
		b.endLease(event, whole)
		return out, nil, err
	}
	if event != nil {
		b.endUnfilled(event, job)
	}
	name := m.Name()
	results = protocol.ClaimResults{Group: b.group(c, m, index), Schema: m.Schema(), NameBytes: uint32(len(name)), GroupCount: uint32(m.Groups())}
	copy(room, encode(&results))
	copy(room[size:], name)
	out.Handle, out.Value, out.Ordinal, out.resultBytes = m.ID, uint64(index), results.Group.Ordinal, uint32(size+len(name))
	return out, job, nil
}

// unmapGroup runs OpUnmapGroup.
func (b *Broker) unmapGroup(c *client, e *protocol.SubmissionEntry) (out outcome, job *snapshot.Job, err error) {
	lease := b.findLease(c, e.Handle, e.Value)
	m, err := b.store.FindGroup(c, e.Handle, e.Value)
	if err == snapshot.ErrRetry {
		return out, nil, err
	}
	if err == nil && e.Flags&protocol.FlagAbort != 0 {
		if err = b.store.GiveUp(m, e.Value); err == nil {
			b.endLease(lease, unsure)
		}
		return out, nil, err
	}
	selection, used, wrong := c.unmapArguments(lease, false)
	if err != nil { // of a session that was aborted the group's memory comes back
		wait, end := b.awaits(lease, used && wrong == nil)
		if wait == nil {
			*end = unsure
		}
		job = b.store.HandBack(c, e.Handle, e.Value, wait, err)
		if b.endWith(lease, job, end); job != nil {
			err = nil
		}
		return out, job, err
	}
	if wrong != nil {
		return out, nil, wrong
	}
	out.Outcome, job, err = b.unmap(m, e.Value, selection, e.Flags, lease, used)
	return out, job, err
}

// unmapArguments tells what of a group is committed, and whether its event is waited for; without
// arguments all of it, and the event as silent says.
func (c *client) unmapArguments(l *lease, silent bool) (selection tensor.Selection, used bool, err error) {
	if len(c.arguments) == 0 {
		return tensor.Selection{Count: tensor.All}, silent, nil
	}
	args, ok := decode[protocol.UnmapArguments](c.arguments, 0)
	if !ok {
		return selection, false, c.short("UnmapArguments", len(encode(&args)))
	}
	if selection, err = c.selection(&args.Selection); err == nil {
		used, err = l.given(&args)
	}
	return selection, used, err
}

// unmap hands a group back, once its event has completed where used says that there is one
// to wait for (rule C3). The lease of the event ends with the operation.
func (b *Broker) unmap(m *snapshot.Session, index uint64, selection tensor.Selection, flags uint32, l *lease, used bool) (out snapshot.Outcome, job *snapshot.Job, err error) {
	adopt, seal := flags&protocol.FlagCopy == 0, flags&protocol.FlagSeal != 0
	if l == nil {
		return b.store.UnmapGroup(m, index, selection, adopt, seal)
	}
	if err := m.MayUnmap(index, seal); err != nil {
		return out, nil, err
	}
	if err := b.lostOn(l.device.store); err != nil {
		b.endLease(l, missed)
		if m.Split() {
			b.store.FailSession(m, err)
			_ = b.store.GiveUp(m, index)
		} else {
			b.store.AbortSession(m)
		}
		return out, nil, err
	}
	wait, end := b.awaits(l, used)
	if out, job, err = b.store.UnmapAfter(wait, m, index, selection, adopt, seal); err != snapshot.ErrRetry {
		b.endWith(l, job, end)
	}
	return out, job, err
}

// awaits gives what waits for a group's event, nil where it is not used, and how its lease
// ends.
func (b *Broker) awaits(l *lease, used bool) (wait func() error, end *ending) {
	end = new(ending)
	if l == nil || !used {
		return nil, end
	}
	done := b.waiter(l)
	*end = unsure // until it was waited for
	return func() (err error) {
		if err = done(); err != nil {
			*end = missed
		} else {
			*end = whole
		}
		return err
	}, end
}

// endUnfilled ends the lease of a group whose memory cannot be filled at first: nobody gets it.
func (b *Broker) endUnfilled(l *lease, job *snapshot.Job) {
	if job == nil {
		return
	}
	finish := job.Finish
	job.Finish = func() (snapshot.Outcome, error) {
		out, err := finish()
		if err != nil {
			b.endLease(l, whole)
		}
		return out, err
	}
}

// endWith ends a lease with the job of its operation; nil: at once.
func (b *Broker) endWith(l *lease, job *snapshot.Job, end *ending) {
	if l == nil {
		return
	}
	if job == nil {
		b.endLease(l, *end)
		return
	}
	l.waiting = true
	finish, abort := job.Finish, job.Abort
	job.Finish = func() (snapshot.Outcome, error) {
		b.endLease(l, *end)
		return finish()
	}
	job.Abort = func() {
		b.endLease(l, *end)
		abort()
	}
}

// unmapAttribute runs OpUnmapAttribute: it commits what is left, or aborts.
func (b *Broker) unmapAttribute(c *client, e *protocol.SubmissionEntry) (out outcome, job *snapshot.Job, err error) {
	m, err := b.store.FindSession(c, e.Handle)
	if err != nil {
		return out, nil, err
	}
	seal := e.Flags&protocol.FlagSeal != 0
	if len(c.arguments) > 0 && (e.Flags&protocol.FlagAbort != 0 || m.Split() || m.Done()) {
		return out, nil, protocol.Errorf(protocol.StatusInvalidArgument, "the end of a session has %d bytes of arguments: UnmapArguments are for a session of one group that is still mapped, and committed", len(c.arguments))
	}
	switch {
	case e.Flags&protocol.FlagAbort != 0:
		b.store.AbortSession(m)
		b.dropLeases(c, m.ID)
		return out, nil, nil
	case m.Split():
		out, job, err = b.unmapShared(c, m, e)
		if err == errParked {
			b.parked = append(b.parked, parked{c, *e, m})
			return out, nil, err
		}
	case !m.Done():
		l := b.findLease(c, m.ID, 0)
		selection, used, wrong := c.unmapArguments(l, true) // an event that nobody says was recorded, and was not, counts as complete
		if wrong != nil {
			return out, nil, wrong
		}
		out.Outcome, job, err = b.unmap(m, 0, selection, e.Flags, l, used)
	case seal:
		out.Outcome, job, err = b.store.SealSession(m)
	}
	if err == snapshot.ErrRetry {
		return out, job, err
	}
	b.store.EndSession(m)
	b.dropLeases(c, m.ID)
	return out, job, err
}

// unmapShared commits what the owner itself holds of a session of several groups, side by
// side, then waits for all groups.
func (b *Broker) unmapShared(c *client, m *snapshot.Session, e *protocol.SubmissionEntry) (out outcome, job *snapshot.Job, err error) {
	for _, index := range m.Held(c) {
		if out.Outcome, job, err = b.unmap(m, index, tensor.Selection{Count: tensor.All}, e.Flags&protocol.FlagCopy, b.findLease(c, m.ID, index), true); err != nil {
			return out, nil, err
		}
		if job != nil {
			b.startCopy(&copyJob{client: c, entry: *e, job: job, part: m})
		}
	}
	job = nil
	if err := b.store.Failed(m); err != nil {
		return out, nil, err
	}
	if !m.Done() {
		return out, nil, errParked
	}
	out.Handle, out.Ordinal = m.ID, m.Group(0).Ordinal
	if e.Flags&protocol.FlagSeal != 0 {
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
