package snapshot

import (
	"callboard/protocol"
)

// CloseArena gives up a dead client's arena: segments without leased blocks
// become spares now, the others when their last block is dropped (rule S5).
func (m *Memory) CloseArena(a *Arena) {
	for _, d := range a.devices {
		m.CloseArena(d)
	}
	m.ReleaseQuarantine(a)
	a.closed = true
	for id, seg := range a.segments {
		if a.pool.SegmentFree(id) {
			m.spare(seg)
		}
	}
}

// ReleaseQuarantine makes what is not live in a recovered client's arena free: the
// client has said that its sessions of before are closed, or is proven dead (rule B1).
func (m *Memory) ReleaseQuarantine(a *Arena) {
	held := a.quarantine
	a.quarantined, a.quarantine = false, nil
	for _, b := range held {
		m.Drop(b)
	}
}

// quarantinedBytes is what clients of before a restart keep from use (rule B1).
func (m *Memory) quarantinedBytes() (total uint64) {
	seen := map[*Arena]bool{nil: true}
	for _, seg := range m.segments {
		if a := seg.arena; !seen[a] {
			seen[a] = true
			for _, b := range a.quarantine {
				total += b.Ref.LengthBytes
			}
		}
	}
	return total
}

// spare takes a segment out of its arena and keeps it warm for the next client, or,
// where claimants have it mapped, for the next session of several groups.
func (m *Memory) spare(seg *Segment) {
	sp := seg.arena.space
	seg.arena.pool.RemoveSegment(seg.ID)
	delete(seg.arena.segments, seg.ID)
	seg.arena, seg.Owner = nil, 0
	if sp.spareBytes+uint64(len(seg.Bytes)) > sp.LimitBytes/8 {
		m.retire(seg)
		return
	}
	sp.spares = append(sp.spares, seg)
	sp.spareBytes += uint64(len(seg.Bytes))
	if m.table != nil {
		m.table(seg, protocol.SegmentLive)
	}
}

// reuse gives a spare that holds size bytes to arena a.
func (m *Memory) reuse(a *Arena, size uint64) bool {
	sp, best := a.space, -1
	_, least := a.segmentSizes(size)
	for i, seg := range sp.spares {
		if seg.Sort == a.Sort && uint64(len(seg.Bytes)) >= least && (best < 0 || len(seg.Bytes) < len(sp.spares[best].Bytes)) {
			best = i
		}
	}
	if best < 0 {
		return false
	}
	seg := sp.spares[best]
	sp.spares = append(sp.spares[:best], sp.spares[best+1:]...)
	sp.spareBytes -= uint64(len(seg.Bytes))
	m.add(a, seg)
	return true
}

func (m *Memory) dropSpares(sp *space, want uint64) bool {
	dropped := false
	for want > 0 && len(sp.spares) > 0 {
		seg := sp.spares[len(sp.spares)-1]
		sp.spares = sp.spares[:len(sp.spares)-1]
		sp.spareBytes -= uint64(len(seg.Bytes))
		want -= min(want, uint64(len(seg.Bytes)))
		m.retire(seg)
		dropped = true
	}
	return dropped
}

// TrimIdle retires segments that are wholly free and were so all the time since it was
// called last (rule S3), and returns their bytes: what is used again and again stays
// warm. The last segment of an arena stays in any case.
func (m *Memory) TrimIdle() (freedBytes uint64) {
	return m.trim(1, func(seg *Segment) bool {
		was := seg.idle
		seg.idle = true
		return was
	})
}

// trim retires wholly free segments that may go, and leaves each arena at least keep.
func (m *Memory) trim(keep int, may func(*Segment) bool) (freedBytes uint64) {
	for _, seg := range m.segments {
		a := seg.arena
		if a == nil || len(a.segments) <= keep || !a.pool.SegmentFree(seg.ID) || !may(seg) {
			continue
		}
		a.pool.RemoveSegment(seg.ID)
		delete(a.segments, seg.ID)
		freedBytes += uint64(len(seg.Bytes))
		m.retire(seg)
	}
	return freedBytes
}

func (m *Memory) retire(seg *Segment) {
	delete(m.segments, seg.ID)
	if sp := m.on(seg.Device); sp.device == nil {
		sp.totalBytes -= uint64(len(seg.Bytes))
	} else {
		sp.openBytes += uint64(len(seg.Bytes)) // until Freed
	}
	if m.table != nil {
		m.table(seg, protocol.SegmentRetired)
	}
	if m.Retired != nil {
		m.Retired(seg)
	}
}
