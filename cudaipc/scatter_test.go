package cudaipc

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// recorder notes the copies that reach the driver, and refuses the one with the number
// refuse, counted from 1. Everything else is the driver's behind it, if there is one.
type recorder struct {
	Driver
	copies []Copy
	refuse int
}

func (r *recorder) CopyDtoDAsync(dst, src Pointer, bytes uint64, s Stream) error {
	r.copies = append(r.copies, Copy{dst, src, bytes})
	if len(r.copies) == r.refuse {
		return &Error{Code: ErrInvalidValue, Function: "cuMemcpyDtoDAsync_v2"}
	}
	if r.Driver == nil {
		return nil
	}
	return r.Driver.CopyDtoDAsync(dst, src, bytes, s)
}

// Copies become one only where both sides continue, and nothing of nothing is copied.
func TestScatterMergesWhatContinuesOnBothSides(t *testing.T) {
	for _, c := range []struct {
		name     string
		in, want []Copy
	}{
		{"nothing", nil, nil},
		{"one", []Copy{{100, 200, 8}}, []Copy{{100, 200, 8}}},
		{"a run", []Copy{{100, 200, 8}, {108, 208, 8}, {116, 216, 4}}, []Copy{{100, 200, 20}}},
		{"only the source continues", []Copy{{100, 200, 8}, {116, 208, 8}}, []Copy{{100, 200, 8}, {116, 208, 8}}},
		{"only the destination continues", []Copy{{100, 200, 8}, {108, 216, 8}}, []Copy{{100, 200, 8}, {108, 216, 8}}},
		{"backwards", []Copy{{108, 208, 8}, {100, 200, 8}}, []Copy{{108, 208, 8}, {100, 200, 8}}},
		{"empty ones", []Copy{{100, 200, 0}, {100, 200, 8}, {108, 208, 0}, {108, 208, 8}, {5, 6, 0}}, []Copy{{100, 200, 16}}},
		{"two runs", []Copy{{0, 64, 8}, {8, 72, 8}, {32, 0, 8}, {40, 8, 8}}, []Copy{{0, 64, 16}, {32, 0, 16}}},
	} {
		r := &recorder{}
		require.NoError(t, scatter(r, c.in, 0), c.name)
		require.Equal(t, c.want, r.copies, c.name)
	}
}

func TestScatterStopsAtARefusalAndNamesTheBytes(t *testing.T) {
	r := &recorder{refuse: 2}
	err := scatter(r, []Copy{{0, 64, 8}, {100, 200, 24}, {300, 400, 8}}, 0)
	require.ErrorIs(t, err, ErrInvalidValue)
	require.ErrorContains(t, err, "24 bytes")
	require.Len(t, r.copies, 2)
}
