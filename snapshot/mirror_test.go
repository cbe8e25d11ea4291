package snapshot

import (
	"testing"

	"callboard/protocol"

	"github.com/stretchr/testify/require"
)

// mirrorOf asks as the loop does, until the mirror is there.
func (f *fixture) mirrorOf(column uint32, birth uint64, number uint32) (place protocol.MirrorResults, err error) {
	for range 3 {
		var job *Job
		_, err = f.run(func() (Outcome, *Job, error) {
			var err error
			place, job, err = f.store.Mirror(column, birth, number)
			return Outcome{}, job, err
		})
		if err != nil || job == nil {
			break
		}
	}
	return place, err
}

// TestMirrorsAreMadeOnceAndShared: rule C5. A version's rows on another device or on the
// host are copied once for all who ask, and are there as long as the version.
func TestMirrorsAreMadeOnceAndShared(t *testing.T) {
	f := newDeviceFixture(t, Config{Retain: 1})
	pins := &pinSet{}
	f.store.AddPins(pins)
	p := f.paths(4)
	// A segment that claimants of an earlier session still have mapped, to write there.
	_, _, err := f.store.Map(owner, f.memory.NewArena(protocol.SegmentClient, 7, "client", false), &Target{Query: queryOf(p...), Name: "split", Schema: bytesSchema(4), Ordinal: 1}, 0, 2)
	require.NoError(t, err)
	f.store.AbortSessions(owner)
	require.Len(t, f.memory.spares, 1)
	written := f.memory.spares[0].ID
	require.NoError(t, f.write4("a", 1, p, "abcd", all))
	_, err = f.write(queryOf(p...), "host", bytesSchema(4), 1, letters('m', 4, 4))
	require.NoError(t, err)
	f.seal(1, protocol.ScopeAll)
	pins.pins = []Pin{{1, protocol.PinAll}}
	for _, column := range []uint32{1, 2} {
		v := f.versionAt(column, 1)
		for number := range uint32(3) {
			lists := f.fakes.devices[0].lists + f.fakes.devices[1].lists
			if number == v.DeviceNumber {
				place, job, err := f.store.Mirror(column, 1, number)
				require.NoError(t, err)
				require.Nil(t, job, "that is where they lie")
				require.Equal(t, protocol.MirrorResults{Block: v.Block, DeviceNumber: v.DeviceNumber, ArenaGeneration: v.ArenaGeneration}, place)
				continue
			}
			_, job, err := f.store.Mirror(column, 1, number)
			require.NoError(t, err)
			require.True(t, job.Device)
			_, _, err = f.store.Mirror(column, 1, number)
			require.ErrorIs(t, err, ErrRetry, "it is being made")
			job.Run()
			_, err = job.Finish()
			require.NoError(t, err)
			place, job, err := f.store.Mirror(column, 1, number)
			require.NoError(t, err)
			require.Nil(t, job)
			again, _, err := f.store.Mirror(column, 1, number)
			require.NoError(t, err)
			require.Equal(t, place, again)
			require.Equal(t, lists+1, f.fakes.devices[0].lists+f.fakes.devices[1].lists)
			require.Equal(t, number, place.DeviceNumber)
			require.Equal(t, number != 0, place.ArenaGeneration == f.header().StartedNs)
			require.Equal(t, f.content(v.Block.Segment, v.Block.OffsetBytes, 16), f.content(place.Block.Segment, place.Block.OffsetBytes, place.Block.LengthBytes))
			if number == 0 {
				require.EqualValues(t, protocol.SegmentShared, f.memory.Segment(place.Block.Segment).Sort, "no recovery uses it again")
				require.NotEqual(t, written, place.Block.Segment)
			}
		}
	}
	require.EqualValues(t, 256, f.store.Usage().MirrorBytes)
	require.EqualValues(t, 256, f.store.Usage().Devices[0].MirrorBytes)
	require.EqualValues(t, 512, f.store.Usage().Devices[1].MirrorBytes)
	f.checkBooks()

	require.NoError(t, f.write4("a", 2, p, "efgh", all))
	f.seal(2, protocol.ScopeAll)
	place, err := f.mirrorOf(1, 1, 0)
	require.NoError(t, err, "it is pinned")
	require.Equal(t, "aaaabbbbccccdddd", string(f.content(place.Block.Segment, place.Block.OffsetBytes, place.Block.LengthBytes)))
	require.NoError(t, f.write4("a", 3, p, "ijkl", all))
	pins.pins = nil
	f.seal(3, protocol.ScopeAll)
	_, err = f.mirrorOf(1, 1, 0)
	requireStatus(t, protocol.StatusOutOfRange, err)
	require.Zero(t, f.store.Usage().MirrorBytes)
	require.EqualValues(t, 256, f.store.Usage().Devices[1].MirrorBytes, "that of the host's column, which lives")
	f.checkBooks()
}

// TestMirrorsThatCannotBeMade: what does not exist is named, a version that goes meanwhile
// is OUT_OF_RANGE, a device that fails leaves nothing, and the next asker tries anew.
func TestMirrorsThatCannotBeMade(t *testing.T) {
	f := newDeviceFixture(t, Config{Retain: 1})
	p := f.paths(4)
	require.NoError(t, f.write4("a", 1, p, "abcd", all))
	require.NoError(t, f.store.Declare("array", arraySchema(4), 0, 0))
	f.seal(1, protocol.ScopeAll)
	for _, ask := range []struct {
		column uint32
		birth  uint64
		number uint32
		want   protocol.Status
	}{{0, 1, 1, protocol.StatusInvalidArgument}, {3, 1, 1, protocol.StatusInvalidArgument}, {1, 1, 3, protocol.StatusInvalidArgument},
		{1, 2, 2, protocol.StatusOutOfRange}, {1, 0, 2, protocol.StatusOutOfRange}, {2, 1, 1, protocol.StatusNotSupported}} {
		_, err := f.mirrorOf(ask.column, ask.birth, ask.number)
		text := requireStatus(t, ask.want, err).Text
		if ask.want == protocol.StatusNotSupported {
			require.Contains(t, text, "kind array: its rows are served from host memory only; read them there")
		}
	}
	d := f.fakes.devices[1]
	for range 2 {
		d.fail = errDriver
		_, err := f.mirrorOf(1, 1, 2)
		require.Contains(t, requireStatus(t, protocol.StatusOpFailed, err).Text, "cuda:1: CUDA_ERROR")
		f.checkBooks()
	}
	d.fail = nil
	for _, abort := range []bool{false, true} {
		birth := f.store.Epoch()
		_, job, err := f.store.Mirror(1, birth, 2)
		require.NoError(t, err)
		require.NoError(t, f.write4("a", birth+1, p, "efgh", all))
		f.seal(birth+1, protocol.ScopeAll)
		require.Equal(t, []uint64{birth + 1}, f.births("a"))
		if abort {
			job.Abort()
		} else {
			job.Run()
			_, err = job.Finish()
			requireStatus(t, protocol.StatusOutOfRange, err)
		}
		f.checkBooks()
	}
	place, err := f.mirrorOf(1, f.store.Epoch(), 2)
	require.NoError(t, err)
	require.EqualValues(t, 2, place.DeviceNumber)
	f.checkBooks()
}

// TestMirrorsGoForOthers: rule V7. Retained versions are given up with their mirrors before a
// device is full.
func TestMirrorsGoForOthers(t *testing.T) {
	f := newDeviceFixture(t, Config{Retain: 4}, 64*mib, 16*mib)
	f.tight = true
	require.NoError(t, f.largeOn("a", 1, 6*mib, 0))
	require.NoError(t, f.store.Declare("a", onDevice(bytesSchema(6*mib), 0), 4, 0))
	place, err := f.mirrorOf(1, 1, 2)
	require.NoError(t, err)
	require.EqualValues(t, 6*mib, place.Block.LengthBytes)
	_, err = f.write(queryOf(f.paths(1)...), "a", onDevice(bytesSchema(6*mib), 0), 2, make([]byte, 6*mib))
	require.NoError(t, err)
	f.seal(2, protocol.ScopeAll)
	require.Len(t, f.births("a"), 2)
	text := requireStatus(t, protocol.StatusOutOfMemory, func() error {
		_, err := f.mirrorOf(1, 2, 2)
		require.NoError(t, err)
		return f.largeOn("b", 3, 12*mib, 1)
	}()).Text
	require.Contains(t, text, "copies of versions that lie elsewhere")
	require.Len(t, f.births("a"), 1)
	f.checkBooks()
}
