package snapshot

import (
	"fmt"
	"testing"

	"callboard/protocol"
	"callboard/tensor"

	"github.com/stretchr/testify/require"
)

// TestADeviceThatFails: rule C4. Whatever copy it is that fails, and however much was
// copied before: the op ends with the driver's text, nothing of it is seen, nothing that was
// there has changed and nothing is leaked; attributes of the host go on, and what waits for
// its seal is sealed when the device works.
func TestADeviceThatFails(t *testing.T) {
	for _, after := range []int{0, 1, 2} {
		t.Run(fmt.Sprint("after ", after, " copies"), func(t *testing.T) {
			f := newDeviceFixture(t, Config{Retain: 2})
			d := f.fakes.devices[0]
			p := f.paths(8)
			arena := f.memory.NewArena(protocol.SegmentClient, 7, "client", false)
			require.NoError(t, f.write4("a", 1, p, "abcdefgh", all))
			f.seal(1, protocol.ScopeAll)
			fails := func(what func() error) {
				d.fail, d.after = errDriver, after
				used := func() uint64 {
					u := f.store.Usage().Devices[0]
					return u.HeldBytes - u.FreeBytes
				}
				before, was := f.visible(), used()
				text := requireStatus(t, protocol.StatusOpFailed, what()).Text
				require.Contains(t, text, "cuda:0: CUDA_ERROR_ILLEGAL_ADDRESS (700)")
				require.Contains(t, text, `"a"`)
				require.Equal(t, before, f.visible())
				require.Equal(t, "abcdefgh", f.valuesAt("a", p))
				require.Equal(t, was, used(), "a block is leaked")
				require.Empty(t, f.store.lent)
				f.checkBooks()
				d.fail = nil
			}
			fails(func() error {
				return f.write4("a", 2, p, "ABCDEFGH", tensor.Selection{Count: 8, Mask: []uint64{0b10101}})
			})
			fails(func() error {
				_, err := f.run(func() (Outcome, *Job, error) {
					return f.store.Write(&Target{Query: queryOf(p...), Name: "a", Ordinal: 2}, make([]byte, 32), 8, all, true)
				})
				return err
			})
			fails(func() error {
				_, err := f.open(f, arena, Target{Query: queryOf(p...), Name: "a", Ordinal: 2}, protocol.InitZero)
				return err
			})
			require.Empty(t, f.store.sessions, "a session that was never filled")
			require.NoError(t, f.write4("a", 2, []uint64{p[1], p[3], p[4], p[0]}, "xyzw", all))
			require.NoError(t, f.write4("a", 2, p[6:7], "v", all))
			_, err := f.write(queryOf(p...), "host", bytesSchema(1), 2, []byte("ABCDEFGH"))
			require.NoError(t, err)
			for range 3 {
				fails(func() error {
					_, err := f.run(func() (Outcome, *Job, error) { return f.store.Seal(2, protocol.ScopeAll, nil, 1) })
					return err
				})
			}
			d.fail = errDriver
			f.seal(2, protocol.ScopeInclude, "host")
			require.Equal(t, "ABCDEFGH", f.valuesAt("host", p))
			d.fail = nil
			f.seal(2, protocol.ScopeAll)
			require.Equal(t, "wxcyzfvh", f.valuesAt("a", p))
			require.NoError(t, f.write4("a", 3, p, "abcdefgh", all)) // what is all rows, and some on top
			require.NoError(t, f.write4("a", 3, p[2:3], "x", all))
			require.NoError(t, f.write4("a", 3, p[5:6], "y", all))
			d.fail = errDriver
			for range 2 {
				before := f.visible()
				_, err := f.run(func() (Outcome, *Job, error) { return f.store.Seal(3, protocol.ScopeAll, nil, 1) })
				requireStatus(t, protocol.StatusOpFailed, err)
				require.Equal(t, before, f.visible())
			}
			d.fail = nil
			f.seal(3, protocol.ScopeAll)
			require.Equal(t, "abxdeygh", f.valuesAt("a", p))
			f.checkBooks()
		})
	}
}

// TestAnEventThatDoesNotCome: rules C3, B4. The op ends with the wait's error and nothing of
// it is seen; the block is nobody's until its client's process is proven dead, whatever that
// client does meanwhile.
func TestAnEventThatDoesNotCome(t *testing.T) {
	late := protocol.Errorf(protocol.StatusTimeout, "event 5 did not complete within 5 s")
	for _, seal := range []bool{false, true} {
		for _, adopt := range []bool{false, true} {
			for _, sel := range []tensor.Selection{all, {Count: 2, Mask: []uint64{0}}} {
				f := newDeviceFixture(t, Config{Retain: 2})
				p := f.paths(2)
				arena := f.memory.NewArena(protocol.SegmentClient, 7, "client", false)
				lease := func() (*Session, protocol.BlockRef) {
					m, err := f.open(owner, arena, Target{Query: queryOf(p...), Name: "a", Schema: onDevice(bytesSchema(4), 0), Next: true}, protocol.InitZero)
					require.NoError(t, err)
					return m, m.Group(0).Block
				}
				require.NoError(t, f.store.Declare("a", onDevice(bytesSchema(4), 0), 0, 0))
				m, block := lease()
				before := f.visible()
				_, err := f.unmap(func() error { return late }, m, sel, adopt, seal)
				require.Contains(t, requireStatus(t, protocol.StatusTimeout, err).Text, "event 5")
				after := f.visible()
				require.Equal(t, before[1:], after[1:])
				require.Zero(t, f.store.Epoch())
				_, err = f.store.FindGroup(owner, m.ID, 0)
				requireStatus(t, protocol.StatusInvalidHandle, err)
				_, err = f.store.FindGroup(owner, 0, 0)
				requireStatus(t, protocol.StatusInvalidHandle, err)
				for range 3 {
					_, other := lease()
					require.NotEqual(t, block, other)
				}
				f.store.AbortSessions(owner)
				_, other := lease()
				require.NotEqual(t, block, other, "a hang-up is no death")
				f.store.AbortSessions(owner)
				f.checkBooks()
				f.store.ReleaseLent(owner)
				f.memory.CloseArena(arena)
				require.EqualValues(t, ArenaAlign, f.store.Usage().Devices[0].SpareBytes)
				f.checkBooks()
			}
		}
	}
}

// TestARefusedOpWaitsForItsEvent: rule B4. An unmap that is refused ends when what its
// client has queued is done: only then may the block be leased anew.
func TestARefusedOpWaitsForItsEvent(t *testing.T) {
	f := newDeviceFixture(t, Config{Retain: 2})
	p := f.paths(2)
	arena := f.memory.NewArena(protocol.SegmentClient, 7, "client", false)
	for _, come := range []bool{true, false} {
		m, err := f.open(owner, arena, Target{Query: queryOf(p...), Name: "a", Schema: onDevice(bytesSchema(4), 0), Ordinal: f.store.floors.standard + 1}, 0)
		require.NoError(t, err)
		f.seal(f.store.floors.standard+2, protocol.ScopeAll)
		waited := false
		_, job, err := f.store.UnmapAfter(func() error {
			waited = true
			if come {
				return nil
			}
			return errDriver
		}, m, 0, all, true, false)
		require.NoError(t, err)
		require.True(t, job.Device)
		require.Equal(t, 1, f.memory.arenaOn(arena, &f.fakes.devices[0].Device).blocks)
		f.store.EndSession(m)
		job.Run()
		_, err = job.Finish()
		requireStatus(t, protocol.StatusFloorViolation, err)
		require.True(t, waited)
		require.Equal(t, !come, len(f.store.lent) == 1)
	}
	f.store.ReleaseLent(owner)
	require.Zero(t, f.memory.arenaOn(arena, &f.fakes.devices[0].Device).blocks)
	f.checkBooks()
}

// TestAProducerThatDiesWhileItsRowsAreWaitedFor: rules C3, B4, M3. The wait ends when it is
// noticed; nothing is shown, and its memory serves others when its death is proven.
func TestAProducerThatDiesWhileItsRowsAreWaitedFor(t *testing.T) {
	for _, ran := range []bool{true, false} {
		f := newDeviceFixture(t, Config{Retain: 2})
		p := f.paths(2)
		arena := f.memory.NewArena(protocol.SegmentClient, 7, "client", false)
		m, err := f.open(owner, arena, Target{Query: queryOf(p...), Name: "a", Schema: onDevice(bytesSchema(4), 0), Ordinal: 1}, 0)
		require.NoError(t, err)
		_, job, err := f.store.UnmapAfter(func() error { return protocol.Errorf(protocol.StatusSessionEnded, "its process is gone") }, m, 0, all, true, false)
		require.NoError(t, err)
		f.store.AbortSessions(owner)
		_, _, err = f.store.Seal(1, protocol.ScopeAll, nil, 1)
		require.ErrorIs(t, err, ErrRetry)
		if ran {
			job.Run()
			_, err = job.Finish()
			requireStatus(t, protocol.StatusSessionEnded, err)
		} else { // the broker gave it up
			job.Abort()
		}
		require.Len(t, f.store.lent, 1)
		f.store.ReleaseLent(owner)
		f.memory.CloseArena(arena)
		f.seal(1, protocol.ScopeAll)
		require.Equal(t, "..", f.valuesAt("a", p))
		require.EqualValues(t, ArenaAlign, f.store.Usage().Devices[0].SpareBytes)
		f.checkBooks()
	}
}

// O1: a seal that a device fails leaves captures of the host as they were, also one that takes later ones in.
func TestADeviceThatFailsLeavesTheHostsRowsToTheirOrdinals(t *testing.T) {
	f := newDeviceFixture(t, Config{Retain: 4})
	d := f.fakes.devices[0]
	p := f.paths(8)
	_, err := f.write(queryOf(p...), "host", bytesSchema(4), 1, letters('a', 8, 4))
	require.NoError(t, err)
	require.NoError(t, f.write4("dev", 1, p, "abcdefgh", all))
	f.seal(1, protocol.ScopeAll)
	_, err = f.write(queryOf(p...), "host", bytesSchema(4), 2, letters('A', 8, 4))
	require.NoError(t, err)
	_, err = f.write(queryOf(p[2]), "host", bytesSchema(4), 3, letters('x', 1, 4))
	require.NoError(t, err)
	require.NoError(t, f.write4("dev", 3, p[2:3], "x", all))
	d.fail = errDriver
	_, err = f.run(func() (Outcome, *Job, error) { return f.store.Seal(3, protocol.ScopeAll, nil, 1) })
	require.Error(t, err)
	d.fail = nil
	f.seal(2, protocol.ScopeAll)
	require.Equal(t, "ABCDEFGH", f.valuesAt("host", p))
}
