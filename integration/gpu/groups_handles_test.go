package gpu

import (
	"encoding/binary"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"callboard/control"
	"callboard/protocol"
	"callboard/tensor"
)

// Rules C2, M2: the arena of a session of several groups is for its owner and for who has claimed a group in it, its event
// for the claimant alone; an announcement tells on which device a group is filled, and no place, for nobody has it yet.
func TestHandlesOfGroupsThatAnybodyMayClaim(t *testing.T) {
	m := start(t)
	heard := m.observe(func(s control.Subjects) string {
		subject, err := s.Group("pose")
		require.NoError(t, err)
		return subject
	})
	owner, claimant, other := m.attach(), m.attach(), m.attach()
	paths := []string{"/p00", "/p01", "/p02", "/p03"} // of 4 bytes each, as strings of a list lie
	list := []any{protocol.StringList{Count: 4, TotalBytes: 8 + 4*8}}
	for _, path := range paths {
		list = append(list, uint32(len(path)), path)
	}
	done, _ := owner.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpQueryPaths}, list...)
	args := protocol.MapArguments{NameBytes: 4, NameOffsetBytes: uint32(binary.Size(protocol.MapArguments{})), GroupRows: 2,
		Schema: protocol.Schema{Kind: protocol.KindFixed, DtypeCode: 1, DtypeBits: 8, DtypeLanes: 1, DeviceType: 2, RowDimensions: 1, RowShape: [6]uint64{4096}}}
	done, raw := owner.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpMap, Handle: done.Handle, Ordinal: 1}, &args, "pose")
	require.Empty(t, raw, "nobody has a group yet")
	session := done.Handle
	for range 2 {
		await(t, heard, func(raw []byte) bool {
			var e control.GroupEvent
			require.NoError(t, json.Unmarshal(raw, &e))
			require.EqualValues(t, 2, e.GroupCount)
			require.EqualValues(t, tensor.DeviceCUDA, e.Device.Type)
			require.NotEmpty(t, e.Device.UUID)
			require.Zero(t, e.Device.Arena)
			require.Zero(t, e.Block)
			return true
		})
	}
	require.Zero(t, m.gpu().EventsLeased, "an event comes with a claim")

	_, raw = claimant.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpClaimGroup, Handle: session, Value: protocol.AnyGroup})
	g := unpacked[protocol.ClaimResults](t, raw[:binary.Size(protocol.ClaimResults{})]).Group
	require.EqualValues(t, 1, g.DeviceNumber)
	require.NotZero(t, g.PrimsSegment)
	require.NotEqual(t, g.Block.Segment, g.PrimsSegment)
	for who, want := range map[*wire]protocol.Status{claimant: protocol.StatusOK, owner: protocol.StatusOK, other: protocol.StatusNotFound} {
		require.Equal(t, want, protocol.Status(who.ask(protocol.DeviceArena, 0, g.Block.Segment).Status))
	}
	for who, want := range map[*wire]protocol.Status{claimant: protocol.StatusOK, owner: protocol.StatusNotFound, other: protocol.StatusNotFound} {
		require.Equal(t, want, protocol.Status(who.ask(protocol.DeviceEvent, g.EventIndex, 0).Status))
	}
	unmap := func(w *wire, want protocol.Status, flags, event, used uint32) {
		t.Helper()
		w.do(want, protocol.SubmissionEntry{Opcode: protocol.OpUnmapGroup, Handle: session, Value: uint64(g.GroupIndex), Flags: flags},
			&protocol.UnmapArguments{Selection: protocol.Selection{Count: protocol.All}, EventIndex: event, EventUsed: used})
	}
	unmap(other, protocol.StatusInvalidHandle, 0, g.EventIndex, 1)
	unmap(claimant, protocol.StatusInvalidArgument, 0, g.EventIndex+1, 1)
	unmap(claimant, protocol.StatusInvalidArgument, protocol.FlagSeal, g.EventIndex, 1) // it cannot be sealed alone
	require.EqualValues(t, 1, func() int {
		_, raw := other.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpListGroups, Handle: session})
		return len(raw) / binary.Size(protocol.GroupDescriptor{})
	}(), "the claimant still has its group")
	unmap(claimant, protocol.StatusOK, 0, g.EventIndex, 1) // never recorded: it counts as complete
	require.Zero(t, m.gpu().EventsLeased)
	require.Equal(t, protocol.StatusNotFound, protocol.Status(other.ask(protocol.DeviceArena, 0, g.Block.Segment).Status), "what is captured is nobody's to see")

	owner.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpUnmapAttribute, Handle: session, Flags: protocol.FlagAbort})
	for _, w := range []*wire{owner, claimant} {
		w.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpArenaClosed, Value: g.Block.Segment})
	}
}
