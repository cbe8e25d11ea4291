package goclient

import (
	"testing"

	callboard "callboard/clients/go"
	"callboard/integration/harness"

	"github.com/stretchr/testify/require"
)

// Producers that are not equally far, at one tick and at one time.
func TestAlignedReads(t *testing.T) {
	b := harness.Start(t)
	s := b.Dial("aligned")
	q := query(t, s, "/a")
	sealed := func(name string, ordinal, stampNs uint64) {
		write(t, s, q, name, []uint64{ordinal}, callboard.WriteOptions{Ordinal: ordinal})
		op, err := s.AdvanceWriteFloor(ordinal, callboard.SealOptions{Scope: callboard.ScopeInclude, Attributes: []string{name}, StampNs: stampNs})
		require.NoError(t, err)
		require.NoError(t, op.Wait(background))
	}
	for n := uint64(1); n <= 6; n++ {
		if n > 2 {
			sealed("camera", n, 1000*n)
		}
		if n <= 5 {
			sealed("pose", n, 1000*n+400)
		}
	}
	names := []string{"camera", "pose", "never"}
	values := func(o callboard.ReadOptions) (map[string]uint64, uint64) {
		r, err := s.ReadAttributes(background, q, names, o)
		require.NoError(t, err)
		defer r.Release()
		out := map[string]uint64{}
		for g, err := range r.Groups() {
			require.NoError(t, err)
			rows, err := callboard.Rows[uint64](g)
			require.NoError(t, err)
			out[g.Attribute()] = rows[0]
			g.Release()
		}
		return out, r.Ordinal()
	}
	got, ordinal := values(callboard.ReadOptions{Common: true})
	require.Equal(t, map[string]uint64{"camera": 5, "pose": 5}, got)
	require.EqualValues(t, 5, ordinal)
	got, _ = values(callboard.ReadOptions{Common: true, Since: callboard.Ordinal(4)})
	require.Equal(t, map[string]uint64{"camera": 5, "pose": 5}, got)
	for _, c := range []struct {
		stampNs            uint64
		nearest            bool
		camera, pose, none uint64
	}{{5000, false, 5, 4, 0}, {5000, true, 5, 5, 0}, {5700, true, 6, 5, 0}, {5700, false, 5, 5, 0}, {99000, false, 6, 5, 0}} {
		got, ordinal := values(callboard.ReadOptions{StampNs: callboard.Ordinal(c.stampNs), Nearest: c.nearest})
		require.Equal(t, map[string]uint64{"camera": c.camera, "pose": c.pose}, got, "%v", c)
		require.Zero(t, ordinal)
	}
	for _, o := range []callboard.ReadOptions{
		{Common: true, At: callboard.Ordinal(1)},
		{Common: true, StampNs: callboard.Ordinal(1)},
		{Nearest: true},
		{StampNs: callboard.Ordinal(1), Since: callboard.Ordinal(1)},
		{Common: true, Since: callboard.Ordinal(6)},
	} {
		_, err := s.ReadAttributes(background, q, names, o)
		require.ErrorIs(t, err, callboard.ErrInvalidArgument)
	}
	for n := uint64(7); n <= 20; n++ { // the camera runs ahead, by more than is kept
		sealed("camera", n, 1000*n)
	}
	_, err := s.ReadAttributes(background, q, names, callboard.ReadOptions{Common: true})
	require.ErrorIs(t, err, callboard.ErrOutOfRange)
	require.ErrorContains(t, err, "declare a larger retain")
}
