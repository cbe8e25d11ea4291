package snapshot

import (
	"slices"

	"callboard/protocol"
	"callboard/tensor"

	"github.com/stretchr/testify/require"
)

// historyShare is a session of several groups, which random clients fill.
type historyShare struct {
	owner    *historyClient
	session  *Session
	onDevice bool
	prims    []uint64
	name     string
	rowBytes int
	init     uint32
	groups   []historyGroup
	ops      []*uint64 // first prim of each op of the naive store that is the session's, to find it by
	failed   bool
}

type historyGroup struct {
	first, rows int
	claimant    *historyClient
	attempt     uint32
	fresh       []string
	late        bool // it is there when the event has completed
	done        bool
}

// shareSome opens a session of several groups, or does some things with one that is open.
func (h *history) shareSome(c *historyClient) {
	if len(h.shares) == 0 || len(h.shares) < 3 && h.random.IntN(4) == 0 {
		h.openShare(c)
	}
	if len(h.shares) == 0 {
		return
	}
	h.settle() // a seal on its way may pass the session
	s := h.shares[h.random.IntN(len(h.shares))]
	for range h.random.IntN(12) {
		if slices.Contains(h.shares, s) {
			h.share(s, h.clients[h.random.IntN(len(h.clients))])
		}
	}
}

func (h *history) share(s *historyShare, c *historyClient) {
	i := h.random.IntN(len(s.groups))
	g := &s.groups[i]
	over := s.failed || s.session.ordinal <= h.naive.floor(s.name) && !s.done()
	switch {
	case over || h.random.IntN(20) == 0:
		h.endShare(s, false)
	case s.done():
		h.endShare(s, h.random.IntN(4) > 0)
	case g.done:
	case g.claimant == nil:
		h.claimGroup(s, i, c)
	case h.random.IntN(5) == 0:
		h.step(func() { require.NoError(h.t, h.store.GiveUp(s.session, uint64(i))) })
		g.claimant = nil
		g.attempt++
	default:
		h.unmapShared(s, i)
	}
}

func (s *historyShare) done() bool {
	return !slices.ContainsFunc(s.groups, func(g historyGroup) bool { return !g.done })
}

func (h *history) openShare(c *historyClient) {
	name, rowBytes, ordinal := h.what()
	q := h.queries[h.random.IntN(len(h.queries))]
	if q.Size() < 2 || rowBytes < 0 { // arrays have one group
		return
	}
	h.settle()
	size := 1 + h.random.IntN(int(q.Size())-1)
	s := &historyShare{owner: c, prims: slices.Clone(q.prims), name: name, rowBytes: rowBytes, init: uint32(h.random.IntN(3))}
	want := h.naive.admits(name, rowBytes, ordinal, false, s.prims)
	t := Target{Query: q, Name: name, Schema: historySchema(name, rowBytes), Ordinal: ordinal}
	switch h.random.IntN(4) { // where groups are filled
	case 0:
		t.StagingType = tensor.DeviceCPU
	case 1:
		t.StagingType, t.StagingID = tensor.DeviceCUDA, uint32(h.random.IntN(2))
	}
	err := h.try(func() (err error) {
		s.session, _, err = h.store.Map(c, c.arena, &t, s.init, uint64(size))
		return err
	})
	if !h.outcome(want, err, "share "+name) {
		return
	}
	for first := 0; first < len(s.prims); first += size {
		s.groups = append(s.groups, historyGroup{first: first, rows: min(size, len(s.prims)-first), attempt: 1})
	}
	require.Len(h.t, s.groups, s.session.Groups())
	s.onDevice = s.session.Device() != nil
	h.shares = append(h.shares, s)
}

func (h *history) claimGroup(s *historyShare, i int, c *historyClient) {
	g := &s.groups[i]
	_, err := h.run(func() (Outcome, *Job, error) {
		_, _, job, err := h.store.Claim(c, s.session.ID, uint64(i))
		return Outcome{}, job, err
	})
	require.NoError(h.t, err)
	d := s.session.Group(uint32(i))
	require.Equal(h.t, g.attempt, d.Attempt)
	require.Equal(h.t, s.onDevice, d.DeviceNumber != 0)
	if !s.onDevice {
		require.Zero(h.t, d.Block.OffsetBytes%4096)
	}
	g.claimant, g.fresh, g.late = c, nil, s.onDevice && h.random.IntN(2) == 0
	bytes := h.get(s.session, uint32(i))
	for k := range g.rows {
		row := bytes[k*s.rowBytes : (k+1)*s.rowBytes]
		want := string(make([]byte, s.rowBytes))
		if n := h.naive.find(s.name, s.rowBytes); n != nil && s.init == protocol.InitCurrent && n.sealed[s.prims[g.first+k]].Value != "" {
			want = n.sealed[s.prims[g.first+k]].Value
		}
		if s.init != protocol.InitNone {
			require.Equal(h.t, want, string(row), "init %d of attempt %d", s.init, g.attempt)
		}
		if s.init == protocol.InitNone || h.random.IntN(2) == 0 {
			row = []byte(h.row(s.rowBytes))
			if !g.late {
				h.put(s.session, uint32(i), uint64(k*s.rowBytes), row)
			}
		}
		g.fresh = append(g.fresh, string(row))
	}
}

func (h *history) unmapShared(s *historyShare, i int) {
	g := &s.groups[i]
	sel, _ := h.selection(g.rows, true)
	prims, values := targetsOf(s.prims[g.first:][:g.rows], g.fresh, &sel)
	want := h.naive.admits(s.name, s.rowBytes, s.session.ordinal, false, prims)
	adopt := h.random.IntN(3) > 0
	var wait func() error
	if base := s.session.groups[i].block.base; g.late {
		wait = func() error { // what its claimant has queued is done
			for k, row := range g.fresh {
				h.fakes.write(base+uint64(k*s.rowBytes), []byte(row))
			}
			return nil
		}
	}
	unmap := func() (Outcome, *Job, error) {
		m, err := h.store.FindGroup(g.claimant, s.session.ID, uint64(i))
		require.NoError(h.t, err)
		return h.store.UnmapAfter(wait, m, uint64(i), sel, adopt, false)
	}
	if wait != nil && want != protocol.StatusOK { // the op ends when that is done, with its error
		_, err := h.run(unmap)
		h.outcome(want, err, "unmap a group of "+s.name)
		g.done, g.claimant, s.failed = true, nil, true
		return
	}
	h.finish(want, "unmap a group of "+s.name, unmap, func() {
		h.accept(s.name, s.rowBytes, naiveOp{s.session.ordinal, false, prims, values})
		if len(prims) > 0 {
			s.ops = append(s.ops, &prims[0])
		}
	}, func() {})
	h.settle()
	g.done, g.claimant, s.failed = true, nil, want != protocol.StatusOK
}

// endShare commits or aborts; what was handed back and not sealed is taken back then.
func (h *history) endShare(s *historyShare, commit bool) {
	h.shares = slices.DeleteFunc(h.shares, func(other *historyShare) bool { return other == s })
	if commit {
		require.True(h.t, s.session.Done())
		h.step(func() { h.store.EndSession(s.session) })
		return
	}
	h.step(func() { h.store.AbortSession(s.session) })
	h.withdrawn(s)
	for i := range s.groups {
		if c := s.groups[i].claimant; c != nil && c != s.owner {
			_, err := h.store.FindGroup(c, s.session.ID, uint64(i)) // it learns of the end
			requireStatus(h.t, protocol.StatusInvalidHandle, err)
			h.step(func() { require.Nil(h.t, h.store.HandBack(c, s.session.ID, uint64(i), nil, err)) })
		}
	}
	require.Empty(h.t, h.store.lent)
}

// withdrawn takes the session's ops out of the naive store.
func (h *history) withdrawn(s *historyShare) {
	for _, c := range h.naive.named(s.name) {
		c.pending = slices.DeleteFunc(c.pending, func(op naiveOp) bool {
			return len(op.prims) > 0 && slices.Contains(s.ops, &op.prims[0])
		})
	}
}

// dieSharing notes what a client's death does to sessions of several groups: its own end,
// and what it had claimed waits for another attempt. It tells how many were its own.
func (h *history) dieSharing(c *historyClient) (own int) {
	for _, s := range slices.Clone(h.shares) {
		for i := range s.groups {
			g := &s.groups[i]
			if g.claimant == c {
				g.claimant = nil
				g.attempt++
			}
		}
		if s.owner != c {
			continue
		}
		own++
		h.withdrawn(s)
		h.shares = slices.DeleteFunc(h.shares, func(other *historyShare) bool { return other == s })
	}
	return own
}

// dropLentOf ends the leases of a client that is proven dead, and of claimants whose
// session it owned: they learn of its end.
func (h *history) dropLentOf(c *historyClient) {
	h.store.ReleaseLent(c)
	for len(h.store.lent) > 0 {
		l := h.store.lent[0]
		_, err := h.store.FindGroup(l.claimant, l.session, l.index)
		requireStatus(h.t, protocol.StatusInvalidHandle, err)
		require.Nil(h.t, h.store.HandBack(l.claimant, l.session, l.index, nil, err))
	}
}
