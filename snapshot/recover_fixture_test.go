package snapshot

import (
	"bytes"
	"maps"
	"slices"

	"callboard/protocol"

	"github.com/stretchr/testify/require"
)

// picture is all shared memory at one moment: what is left when the broker is killed.
type picture struct {
	root     []byte
	segments []pictureSegment
}

type pictureSegment struct {
	id     uint64
	mapped []byte // where it lies in this process
	bytes  []byte
}

// before is an earlier picture, of which what has not changed is used again, or nil.
func (f *fixture) picture(before *picture) *picture {
	p := &picture{root: slices.Clone(f.root)}
	for id, seg := range f.memory.segments {
		if seg.Device != nil {
			continue // it goes with the broker (rule B3)
		}
		now := pictureSegment{id: id, mapped: seg.Bytes}
		if before != nil {
			for _, was := range before.segments {
				if was.id == id && bytes.Equal(was.bytes, seg.Bytes) {
					now.bytes = was.bytes
				}
			}
		}
		if now.bytes == nil {
			now.bytes = slices.Clone(seg.Bytes)
		}
		p.segments = append(p.segments, now)
	}
	return p
}

// copies are the segments elsewhere, for a broker that nobody else sees, in scratch
// memory: the copies of another picture are no more.
func (p *picture) copies(scratch *[][]byte) (root []byte, segments []*Segment) {
	for i, seg := range p.segments {
		if i == len(*scratch) {
			*scratch = append(*scratch, nil)
		}
		(*scratch)[i] = append((*scratch)[i][:0], seg.bytes...)
		segments = append(segments, &Segment{ID: seg.id, Bytes: (*scratch)[i]})
	}
	return slices.Clone(p.root), segments
}

// at is the naive store as it was at an epoch, with nothing accepted.
func (n *naive) at(epoch uint64) naive {
	past := naive{floors: map[string]uint64{}, epochs: map[uint64]*naiveEpoch{}, epoch: epoch}
	if e := n.epochs[epoch]; e != nil {
		past.floors, past.standard = maps.Clone(e.floors), e.standard
	}
	for e, what := range n.epochs {
		if e <= epoch {
			past.epochs[e] = what
		}
	}
	for _, c := range n.columns {
		old := &naiveColumn{name: c.name, index: c.index, rowBytes: c.rowBytes, retain: c.retain, deleted: map[uint64]uint64{}}
		if e := n.epochs[epoch]; e != nil && e.rows[c.index] != nil {
			old.sealed, old.deleted = e.rows[c.index], e.deleted[c.index]
		}
		for _, v := range c.versions {
			if v.birth <= epoch {
				old.versions = append(old.versions, v)
			}
		}
		past.columns = append(past.columns, old)
	}
	return past
}

// recover starts the broker again on what is in f.root and segments.
func (h *history) recover(segments []*Segment) *Recovered {
	old := h.memory
	h.memory = NewMemory(old.LimitBytes)
	h.memory.Grow, h.memory.Retired = old.Grow, old.Retired
	config := h.store.config
	config.Incarnation += 1<<32 + 1
	h.fakes = h.fakes.again()
	config.Devices = h.fakes.config()
	r, err := Recover(config, h.root, h.memory, segments)
	require.NoError(h.t, err)
	h.store = r.Store
	h.jobs, h.grow, h.epochs = nil, nil, [2]uint64{}
	require.Equal(h.t, r.Epoch, h.store.Epoch())
	require.Equal(h.t, r.Epoch, h.header().Epoch)

	h.naive = h.naive.at(r.Epoch)
	for i, c := range h.store.columns[1:] {
		rowBytes := historyBytes(c)
		if i == len(h.naive.columns) { // made by an operation that was not accepted
			h.naive.column(c.name, rowBytes, c.retain)
		}
		n := h.naive.columns[i]
		require.Equal(h.t, []any{c.name, rowBytes, c.index}, []any{n.name, n.rowBytes, n.index})
		n.retain = c.retain
		require.Equal(h.t, c.lost, slices.Contains(h.store.lost, c))
		if c.lost {
			require.Contains(h.t, r.Lost, c.name)
			n.lose()
		}
	}
	h.naive.columns = h.naive.columns[:len(h.store.columns)-1]

	h.store.AddPins(h.pinned)
	h.shares = nil // they ended with the broker
	for _, c := range h.clients {
		pages := c.arena.pages
		if c.arena = r.Arenas[c.incarnation]; c.arena == nil {
			c.arena = h.memory.NewArena(protocol.SegmentClient, c.incarnation, "client", false)
		}
		c.arena.WholePages(pages)
		delete(r.Arenas, c.incarnation)
		c.sessions = nil
		c.pins = slices.DeleteFunc(c.pins, func(p Pin) bool { return p.Epoch > r.Epoch })
		h.store.AddPins(&c.pinSet)
	}
	for _, a := range r.Arenas { // of clients that died before
		h.memory.CloseArena(a)
	}
	h.views = slices.DeleteFunc(h.views, func(v *heldView) bool {
		late := v.pinned.Epoch() > r.Epoch
		if late {
			v.pinned.Release()
		}
		return late
	})
	if h.lazy.IntN(2) == 0 {
		h.step(h.store.PinsComplete)
		if h.store.Epoch() > r.Epoch {
			require.NotEmpty(h.t, r.Lost)
			h.naive.publish(0, nil, h.naive.behindFloors())
		}
	}
	return r
}

// restart kills the broker, as it was in p or else as it is, and starts another; the
// clients and the reader stay, and look at the same memory.
func (h *history) restart(p *picture) *Recovered {
	past := p != nil
	if !past {
		p = h.picture(nil)
	}
	copy(h.root, p.root)
	var segments []*Segment
	for _, seg := range p.segments {
		copy(seg.mapped, seg.bytes)
		segments = append(segments, &Segment{ID: seg.id, Bytes: seg.mapped})
	}
	if past { // what the reader knows by now is from a time that will not have been
		for _, v := range h.views {
			v.pinned.Release()
		}
		h.views = nil
	}
	r := h.recover(segments)
	if past {
		h.store.sources = slices.DeleteFunc(h.store.sources, func(p PinSource) bool { return p == h.pinned })
		h.attachReader()
	}
	h.check()
	h.checkBooks()
	for _, c := range h.clients {
		if h.lazy.IntN(2) == 0 {
			h.memory.ReleaseQuarantine(c.arena)
		}
	}
	return r
}
