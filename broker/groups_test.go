package broker

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"callboard/protocol"
)

// share maps "x" of so many prims in groups.
func (p *peer) share(prims int, groupRows uint64) (session uint64) {
	p.t.Helper()
	var paths []string
	for i := range prims {
		paths = append(paths, fmt.Sprint("/p", i))
	}
	raw := mapArguments("x", float32s)
	m, _ := decode[protocol.MapArguments](raw, 0)
	m.GroupRows = groupRows
	copy(raw, encode(&m))
	done, results := p.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpMap, Handle: p.query(paths...), Ordinal: p.root().Epoch + 1}, raw)
	require.Empty(p.t, results, "descriptors come with claims")
	require.Equal(p.t, (uint64(prims)+groupRows-1)/groupRows, done.Count)
	return done.Handle
}

func (p *peer) claim(want protocol.Status, session, group uint64) (r protocol.ClaimResults) {
	p.t.Helper()
	done, raw := p.do(want, protocol.SubmissionEntry{Opcode: protocol.OpClaimGroup, Handle: session, Value: group}, nil)
	if want == protocol.StatusOK {
		var ok bool
		r, ok = decode[protocol.ClaimResults](raw, 0)
		require.True(p.t, ok)
		require.EqualValues(p.t, r.Group.GroupIndex, done.Value)
		require.Equal(p.t, "x", string(raw[len(encode(&r)):]))
	}
	return r
}

func (p *peer) unmap(want protocol.Status, session, group uint64) {
	p.t.Helper()
	p.do(want, protocol.SubmissionEntry{Opcode: protocol.OpUnmapGroup, Handle: session, Value: group}, nil)
}

func (p *peer) unclaimed(session, skip uint64, name string) (list []protocol.GroupDescriptor, all uint64) {
	p.t.Helper()
	done, raw := p.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpListGroups, Handle: session, Value: skip}, []byte(name))
	for i := range done.Count {
		g, ok := decode[protocol.GroupDescriptor](raw, i*uint64(len(encode(&protocol.GroupDescriptor{}))))
		require.True(p.t, ok)
		list = append(list, g)
	}
	return list, done.Value
}

// M2: the owner's unmap completes when every group is, its other ops do not wait for that; who has claimed a group, and
// nobody else, gets its segment for writing. Behaviour 175.
func TestGroupsOfSeveralClients(t *testing.T) {
	for _, seal := range []bool{false, true} {
		b := startBroker(t, nil)
		owner, worker, other := attachPeer(t, b), attachPeer(t, b), attachPeer(t, b)
		session := owner.share(5, 2)
		list, all := worker.unclaimed(0, 0, "x")
		require.Len(t, list, 3)
		require.EqualValues(t, 3, all)
		require.EqualValues(t, protocol.NoColumn, list[2].Column)
		_, all = worker.unclaimed(0, 0, "y")
		require.Zero(t, all)
		owner.claim(protocol.StatusOK, session, protocol.AnyGroup)

		claimed := []protocol.ClaimResults{worker.claim(protocol.StatusOK, session, 2), worker.claim(protocol.StatusOK, session, protocol.AnyGroup)}
		require.EqualValues(t, 1, claimed[1].Group.GroupIndex)
		require.Equal(t, float32s, claimed[1].Schema)
		worker.claim(protocol.StatusEnd, session, protocol.AnyGroup)
		other.claim(protocol.StatusInvalidHandle, session, 1)
		other.unmap(protocol.StatusInvalidHandle, session, 1)
		reply, _ := other.segment(claimed[0].Group.Block.Segment)
		require.Zero(t, reply.Writable)
		reply, mem := worker.segment(claimed[0].Group.Block.Segment)
		require.EqualValues(t, 1, reply.Writable)
		require.EqualValues(t, protocol.SegmentShared, reply.Sort)
		for i, r := range claimed {
			copy(mem.Bytes()[r.Group.Block.OffsetBytes:], floats(float32(10*i), float32(10*i+1))[:r.Group.Block.LengthBytes])
		}
		worker.unmap(protocol.StatusOK, session, 2)

		flags := uint32(0)
		if seal {
			flags = protocol.FlagSeal
		}
		end := owner.submit(protocol.SubmissionEntry{Opcode: protocol.OpUnmapAttribute, Handle: session, Flags: flags}, nil)
		owner.query("/still/here")
		owner.unclaimed(0, 0, "")
		worker.unmap(protocol.StatusOK, session, 1)
		done, text := owner.wait()
		require.Equal(t, end, done.OpID)
		require.Zero(t, done.Status, "%s", text)
		if !seal {
			require.Zero(t, owner.root().Epoch)
			owner.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpSeal, Ordinal: 1}, nil)
		}
		require.EqualValues(t, 1, owner.root().Epoch)
		owner.claim(protocol.StatusInvalidHandle, session, 1)
	}
}

// M2, M3: aborts, failures and deaths end the owner's wait, or let another attempt end it.
func TestEndsOfSharedSessions(t *testing.T) {
	b := startBroker(t, nil)
	owner, worker, other := attachPeer(t, b), attachPeer(t, b), attachPeer(t, b)
	unmap := func(session uint64) uint64 {
		return owner.submit(protocol.SubmissionEntry{Opcode: protocol.OpUnmapAttribute, Handle: session}, nil)
	}
	ends := func(id uint64, want protocol.Status) {
		t.Helper()
		done, text := owner.wait()
		if done.OpID != id { // another op of the owner's came first
			done, text = owner.wait()
		}
		require.Equal(t, id, done.OpID)
		require.Equal(t, want, protocol.Status(done.Status), "%s", text)
	}

	// aborted while it waits
	session := owner.share(4, 2)
	worker.claim(protocol.StatusOK, session, 0)
	waiting := unmap(session)
	owner.submit(protocol.SubmissionEntry{Opcode: protocol.OpUnmapAttribute, Handle: session, Flags: protocol.FlagAbort}, nil)
	ends(waiting, protocol.StatusInvalidHandle)
	worker.unmap(protocol.StatusInvalidHandle, session, 0)

	// a seal passes it (rule O3)
	session = owner.share(4, 2)
	worker.claim(protocol.StatusOK, session, 0)
	waiting = unmap(session)
	other.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpSeal, Ordinal: 1, Value: protocol.ScopeInclude}, append(encode(&protocol.SealArguments{}), listOf("x")...))
	ends(waiting, protocol.StatusFloorViolation)
	worker.unmap(protocol.StatusInvalidHandle, session, 0)

	// given up, then a claimant that hangs up, then one that finishes
	session = owner.share(4, 4-1)
	worker.claim(protocol.StatusOK, session, 0)
	other.claim(protocol.StatusOK, session, 1)
	other.unmap(protocol.StatusOK, session, 1)
	waiting = unmap(session)
	worker.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpUnmapGroup, Handle: session, Flags: protocol.FlagAbort}, nil)
	require.EqualValues(t, 2, worker.claim(protocol.StatusOK, session, 0).Group.Attempt)
	worker.close()
	var list []protocol.GroupDescriptor
	require.Eventually(t, func() bool {
		list, _ = other.unclaimed(session, 0, "")
		return len(list) == 1
	}, patience, time.Millisecond)
	require.EqualValues(t, 3, list[0].Attempt)
	other.claim(protocol.StatusOK, session, 0)
	other.unmap(protocol.StatusOK, session, 0)
	ends(waiting, protocol.StatusOK)

	// the owner dies
	session = owner.share(4, 2)
	other.claim(protocol.StatusOK, session, 0)
	unmap(session)
	owner.close()
	require.Eventually(t, func() bool {
		_, all := other.unclaimed(0, 0, "")
		return all == 0
	}, patience, time.Millisecond)
	other.unmap(protocol.StatusInvalidHandle, session, 0)
}

// What does not fit the results comes with the next page.
func TestListingGroupsInPages(t *testing.T) {
	b := startBroker(t, nil)
	p := attachPeer(t, b)
	session := p.share(100, 1)
	page := uint64(4096 / len(encode(&protocol.GroupDescriptor{})))
	for first := uint64(0); first < 100; first += page {
		list, all := p.unclaimed(session, first, "")
		require.EqualValues(t, 100, all)
		require.Len(t, list, int(min(page, 100-first)))
		require.EqualValues(t, first, list[0].GroupIndex)
	}
	_, text := p.do(protocol.StatusInvalidHandle, protocol.SubmissionEntry{Opcode: protocol.OpListGroups, Handle: 77}, nil)
	require.Contains(t, string(text), "session 77 is unknown")
}
