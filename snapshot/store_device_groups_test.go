package snapshot

import (
	"testing"

	"callboard/protocol"
	"callboard/tensor"

	"github.com/stretchr/testify/require"
)

// newDeviceShares has two devices, and groups that are filled on the first.
func newDeviceShares(t *testing.T, rows int, c Config) *shares {
	f := newSharesOn(t, newFakes(t, 1<<30, 1<<30), rows, c)
	f.on = [2]uint32{tensor.DeviceCUDA, 0}
	f.schema = onDevice(bytesSchema(8), 0)
	return f
}

// TestGroupsOnADeviceAreClaimed: rules M2, C1, M1. Each group is a block of the session's own
// arena on the device, where its claimant is told in host memory which prims it is for; what
// lies there never becomes a version as it lies. So too where the attribute lies on another
// device, or on the host (rule C5).
func TestGroupsOnADeviceAreClaimed(t *testing.T) {
	for name, schema := range map[string]protocol.Schema{"where it lies": onDevice(bytesSchema(8), 0), "on another": onDevice(bytesSchema(8), 1), "on the host": bytesSchema(8)} {
		for _, adopt := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				f := newDeviceShares(t, 7, Config{Retain: 2})
				f.schema = schema
				for ordinal, init := range []uint32{protocol.InitNone, protocol.InitZero, protocol.InitCurrent} {
					m := f.map3(uint64(ordinal+1), 3, init)
					require.Equal(t, 3, m.Groups())
					require.Same(t, &f.fakes.devices[0].Device, m.Device())
					arenas := map[uint64]bool{}
					for i, who := range []any{owner, anna, bert} {
						_, err := f.claim(who, m, uint64(i))
						require.NoError(t, err)
						d := m.Group(uint32(i))
						require.EqualValues(t, 1, d.DeviceNumber)
						require.Equal(t, f.header().StartedNs, d.ArenaGeneration)
						arenas[d.Block.Segment] = true
						switch rows := f.get(m, uint32(i)); init {
						case protocol.InitZero:
							require.Equal(t, make([]byte, len(rows)), rows)
						case protocol.InitCurrent:
							require.Equal(t, letters('x'+byte(i), 1, len(rows)), rows)
						}
						f.fill(m, uint32(i), byte('x'+i))
					}
					require.Len(t, arenas, 1, "parts of one arena")
					for i, who := range []any{owner, anna, bert} {
						require.NoError(t, f.unmap(who, m, uint32(i), adopt))
						f.checkBooks()
					}
					require.True(t, m.Done())
					f.store.EndSession(m)
					f.seal(uint64(ordinal+1), protocol.ScopeAll)
					require.Equal(t, "xxxyyyz", f.rows())
					require.False(t, f.store.columns[1].latest().adopted)
				}
				f.checkBooks()
			})
		}
	}
}

// TestEachGroupOfADeviceWaitsForItsOwnWork: rules C3, M2. What a claimant has queued is there
// before the group counts; one whose work does not come leaves the group to the next attempt,
// and its block to nobody until it is proven dead (rule B4). The others go on.
func TestEachGroupOfADeviceWaitsForItsOwnWork(t *testing.T) {
	late := protocol.Errorf(protocol.StatusTimeout, "event 5 did not complete within 5 s")
	for _, adopt := range []bool{true, false} {
		f := newDeviceShares(t, 4, Config{})
		m := f.map3(1, 2, protocol.InitZero)
		for i, who := range []any{anna, bert} {
			_, err := f.claim(who, m, uint64(i))
			require.NoError(t, err)
		}
		base := m.groups[0].block.base
		require.NoError(t, f.unmapAfter(func() error {
			f.fakes.write(base, letters('a', 1, 16))
			return nil
		}, anna, m, 0, adopt))
		first := m.Group(1).Block
		text := requireStatus(t, protocol.StatusTimeout, f.unmapAfter(func() error { return late }, bert, m, 1, adopt)).Text
		require.Contains(t, text, "event 5")
		require.Equal(t, "1.1.2", f.told[len(f.told)-1])
		require.NoError(t, f.store.Failed(m))
		require.Len(t, f.store.lent, 1)
		_, err := f.claim(anna, m, protocol.AnyGroup)
		require.NoError(t, err)
		require.NotEqual(t, first, m.Group(1).Block, "late work may still come there")
		f.fill(m, 1, 'b')
		f.store.AbortSessions(bert)
		require.Len(t, f.store.lent, 1, "a hang-up is no death")
		require.NoError(t, f.unmap(anna, m, 1, adopt))
		require.True(t, m.Done())
		f.store.EndSession(m)
		f.seal(1, protocol.ScopeAll)
		require.Equal(t, "aabb", f.rows())
		f.checkBooks()
		f.store.ReleaseLent(bert)
		require.Empty(t, f.store.lent)
		f.checkBooks()
	}
}

// TestAClaimantOfADeviceDies: rules M2, I3, B4, at each step. The group is another attempt's, in
// a fresh block; the dead one's is not used again before its end is proven.
func TestAClaimantOfADeviceDies(t *testing.T) {
	for _, step := range []string{"while it is filled", "claimed", "handed back"} {
		t.Run(step, func(t *testing.T) {
			f := newDeviceShares(t, 4, Config{})
			f.delayed = false
			m := f.map3(1, 2, protocol.InitZero)
			_, _, job, err := f.store.Claim(anna, m.ID, 1)
			require.NoError(t, err)
			require.True(t, job.Device, "zeros of the device's own")
			first := m.Group(1)
			end := func(j *Job) error {
				j.Run()
				_, err := j.Finish()
				return err
			}
			switch step {
			case "while it is filled":
				_, err = f.store.FindGroup(anna, m.ID, 1)
				require.ErrorIs(t, err, ErrRetry)
				require.Zero(t, f.store.AbortSessions(anna))
				require.NoError(t, end(job))
			case "claimed":
				require.NoError(t, end(job))
				require.Zero(t, f.store.AbortSessions(anna))
			case "handed back":
				require.NoError(t, end(job))
				_, job, err = f.store.UnmapAfter(func() error { return protocol.Errorf(protocol.StatusTimeout, "its process has ended") }, m, 1, all, true, false)
				require.NoError(t, err)
				require.Zero(t, f.store.AbortSessions(anna))
				require.EqualValues(t, 1, m.Group(1).Attempt, "it may still come")
				requireStatus(t, protocol.StatusTimeout, end(job))
			}
			require.Equal(t, "1.1.2", f.told[len(f.told)-1])
			require.True(t, f.store.Claims(anna, first.Block.Segment) || step == "handed back")
			f.checkBooks()
			_, err = f.claim(bert, m, 1)
			require.NoError(t, err)
			require.NotEqual(t, first.Block, m.Group(1).Block)
			require.Equal(t, make([]byte, 16), f.get(m, 1), "init is of each attempt (behaviour 180)")
			f.fill(m, 1, 'b')
			f.store.ReleaseLent(anna)
			require.Empty(t, f.store.lent)
			require.False(t, f.store.Claims(anna, first.Block.Segment))
			_, err = f.claim(owner, m, 0)
			require.NoError(t, err)
			f.fill(m, 0, 'o')
			require.NoError(t, f.unmap(owner, m, 0, true))
			require.NoError(t, f.unmap(bert, m, 1, true))
			f.store.EndSession(m)
			f.seal(1, protocol.ScopeAll)
			require.Equal(t, "oobb", f.rows())
			f.checkBooks()
		})
	}
}

// TestAnAbortedSessionOnADevice: rules M3, B4. What was handed back is taken back; a group that
// somebody fills stays until that is handed back, with what is queued there.
func TestAnAbortedSessionOnADevice(t *testing.T) {
	f := newDeviceShares(t, 6, Config{})
	_, err := f.write(queryOf(f.prims...), "a", f.schema, 3, letters('o', 1, 48))
	require.NoError(t, err)
	m := f.map3(3, 2, protocol.InitNone)
	for i, who := range []any{anna, bert, owner} {
		_, err := f.claim(who, m, uint64(i))
		require.NoError(t, err)
		f.fill(m, uint32(i), 'x')
	}
	require.NoError(t, f.unmap(anna, m, 0, true))
	block := m.groups[1].block
	f.store.AbortSession(m)
	require.Len(t, f.store.lent, 2, "rows and what tells of them")
	waited := false
	err = f.unmapAfter(func() error {
		waited = true
		f.fakes.write(block.base, letters('z', 1, 16)) // would fail if the arena were gone
		require.EqualValues(t, 1, block.refs)
		return nil
	}, bert, m, 1, true)
	require.Contains(t, requireStatus(t, protocol.StatusInvalidHandle, err).Text, "unknown or was ended")
	require.True(t, waited)
	require.Empty(t, f.store.lent)
	f.seal(3, protocol.ScopeAll)
	require.Equal(t, "oooooo", f.rows())
	f.checkBooks()

	m = f.map3(4, 3, protocol.InitNone)
	_, err = f.claim(bert, m, 0)
	require.NoError(t, err)
	f.store.AbortSession(m)
	late := protocol.Errorf(protocol.StatusTimeout, "it does not come")
	requireStatus(t, protocol.StatusInvalidHandle, f.unmapAfter(func() error { return late }, bert, m, 0, true))
	require.Len(t, f.store.lent, 1, "it may still come")
	f.store.ReleaseLent(bert)
	f.checkBooks()
}

// TestASealPassesGroupsOfADevice: rule O3. It takes the groups that are there; a later one is
// refused for good, and ends when its work has (rule C3).
func TestASealPassesGroupsOfADevice(t *testing.T) {
	f := newDeviceShares(t, 4, Config{})
	m := f.map3(1, 2, protocol.InitZero)
	for i, who := range []any{anna, bert} {
		_, err := f.claim(who, m, uint64(i))
		require.NoError(t, err)
		f.fill(m, uint32(i), 'a')
	}
	require.NoError(t, f.unmap(anna, m, 0, true))
	f.seal(1, protocol.ScopeAll)
	require.Equal(t, "aa", f.rows())
	require.False(t, f.store.columns[1].latest().adopted, "it is all rows that there are, and others may write to it (rule M1)")
	waited := false
	requireStatus(t, protocol.StatusFloorViolation, f.unmapAfter(func() error { waited = true; return nil }, bert, m, 1, true))
	require.True(t, waited)
	require.True(t, f.store.Settled(m))
	require.ErrorContains(t, f.store.Failed(m), "write floor")
	require.Empty(t, f.unclaimed(""))
	f.store.EndSession(m)
	require.Equal(t, "aa", f.rows())
	require.Empty(t, f.store.lent)
	f.checkBooks()
}

// TestADeviceThatFailsUnderGroups: rules C4, M2. A copy that fails leaves its group to the next
// attempt; when the device is lost, no attempt can help, and the session says why.
func TestADeviceThatFailsUnderGroups(t *testing.T) {
	f := newDeviceShares(t, 4, Config{})
	f.on[1] = 1 // filled on another device than it lies on, so that an unmap copies
	m := f.map3(1, 2, protocol.InitZero)
	_, err := f.claim(anna, m, 0)
	require.NoError(t, err)
	f.fill(m, 0, 'a')
	f.fakes.devices[0].fail = errDriver
	requireStatus(t, protocol.StatusOpFailed, f.unmap(anna, m, 0, true))
	require.EqualValues(t, 2, m.Group(0).Attempt)
	f.fakes.devices[0].fail = nil
	f.fakes.devices[1].fail = errDriver
	_, err = f.claim(bert, m, 0) // zeros cannot be had
	requireStatus(t, protocol.StatusOpFailed, err)
	require.EqualValues(t, 3, m.Group(0).Attempt)
	f.fakes.devices[1].fail = nil
	_, err = f.claim(bert, m, 0)
	require.NoError(t, err)
	f.fill(m, 0, 'b')
	lost := protocol.Errorf(protocol.StatusOpFailed, "cuda:1 is lost")
	f.store.LoseDevice(&f.fakes.devices[1].Device, lost, func(uint64) {})
	require.ErrorContains(t, f.store.Failed(m), "cuda:1 is lost")
	require.True(t, f.store.Settled(m))
	_, err = f.claim(anna, m, 1)
	require.Contains(t, requireStatus(t, protocol.StatusInvalidHandle, err).Text, "cuda:1 is lost")
	f.store.AbortSession(m)
	f.store.ReleaseLent(bert)
	f.checkBooks()
}

// TestGroupsFindNoRoomOnADevice: rule C1. A session that does not fit is refused whole, a claim
// that finds no fresh block for the next attempt too; neither leaves anything behind.
func TestGroupsFindNoRoomOnADevice(t *testing.T) {
	f := newSharesOn(t, newFakes(t, ArenaAlign), 4, Config{})
	f.on, f.schema = [2]uint32{tensor.DeviceCUDA, 0}, bytesSchema(ArenaAlign/4)
	m := f.map3(1, 2, protocol.InitNone)
	_, err := f.claim(anna, m, 0)
	require.NoError(t, err)
	f.store.AbortSessions(anna)
	for range 2 {
		_, err = f.claim(bert, m, 0)
		requireStatus(t, protocol.StatusOutOfMemory, err)
		require.EqualValues(t, 2, m.Group(0).Attempt, "nobody had it")
	}
	f.checkBooks()
	f.store.ReleaseLent(anna)
	_, err = f.claim(bert, m, 0)
	require.NoError(t, err)
	err = f.try(func() error {
		_, _, err := f.store.Map("else", f.arena, &Target{Query: f.q, Name: "b", Schema: f.schema, Ordinal: 1, StagingType: tensor.DeviceCUDA}, 0, 2)
		return err
	})
	requireStatus(t, protocol.StatusOutOfMemory, err)
	require.Len(t, f.store.sessions, 1)
	f.store.AbortSession(m)
	f.store.ReleaseLent(bert)
	f.checkBooks()
	require.Zero(t, f.store.Usage().Devices[0].HeldBytes-f.store.Usage().Devices[0].SpareBytes-f.store.Usage().Devices[0].FreeBytes)
}

// M3: a session that is aborted while a seal that covers it is on its way, and that seal fails: nothing of it may be seen.
func TestASessionAbortedDuringASealThatFails(t *testing.T) {
	f := newSharesOn(t, newFakes(t, 1<<30), 4, Config{Retain: 2})
	d := f.fakes.devices[0]
	_, err := f.write(queryOf(f.prims...), "a", f.schema, 1, letters('a', 4, 8))
	require.NoError(t, err)
	require.NoError(t, f.write4("dev", 1, f.prims, "abcd", all))
	f.seal(1, protocol.ScopeAll)
	before := f.rows()
	m := f.map3(2, 2, protocol.InitZero)
	_, err = f.claim(anna, m, 0)
	require.NoError(t, err)
	f.fill(m, 0, 'X')
	require.NoError(t, f.unmap(anna, m, 0, true))
	require.NoError(t, f.write4("dev", 2, f.prims[1:2], "x", all))
	failed := f.begin(func() (Outcome, *Job, error) { return f.store.Seal(2, protocol.ScopeAll, nil, 1) })
	f.store.AbortSession(m)
	d.fail = errDriver
	f.settle()
	require.Error(t, *failed)
	d.fail = nil
	require.Equal(t, before, f.rows())
	f.seal(2, protocol.ScopeAll)
	require.Equal(t, before, f.rows(), "an aborted session became visible")
}
