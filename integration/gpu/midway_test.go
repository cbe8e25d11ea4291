package gpu

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"callboard/control"
)

// hold is a file: while it is there, nothing that was queued runs in processes that have its setting.
type hold struct {
	t    *testing.T
	path string
}

func newHold(t *testing.T) *hold { return &hold{t, filepath.Join(t.TempDir(), "hold")} }

func (h *hold) setting() string { return "CUDAEMU_HOLD=" + h.path }

func (h *hold) begin() {
	h.t.Helper()
	require.NoError(h.t, os.WriteFile(h.path, nil, 0o600))
}

func (h *hold) end() {
	h.t.Helper()
	require.NoError(h.t, os.Remove(h.path))
}

// find is what the broker says of the client of a name.
func (m *machine) find(name string) control.ClientDescription {
	m.t.Helper()
	for _, c := range m.description().Clients {
		if c.Name == name {
			return c
		}
	}
	return control.ClientDescription{}
}

// A reader is killed while its driver opens an arena. It counted as having it open; with its process that goes, nobody
// waits meanwhile, and what the arena held is used again (rules C6, I3; field reports A12, F3).
func TestAReaderIsKilledWhileItOpens(t *testing.T) {
	needsEmulation(t)
	m := start(t)
	producer, other := m.client("producer"), m.client("other")
	cycle := func(n int) {
		t.Helper()
		producer.do(order{Do: "cycle", Name: "x", Prims: prims(4), Bytes: rowBytes, Device: "cuda:0", Ordinal: uint64(n), Value: n, Sync: "stream", Count: 1})
		require.Equal(t, rows(n, 4), other.do(order{Do: "read", Name: "x", Prims: prims(4)}).Rows)
	}
	cycle(1)
	victim := m.client("victim", "CUDAEMU_SLOW_OPEN_US=600000000")
	incarnation := strconv.FormatUint(m.find("victim").Incarnation, 10)
	opening := func() (n int) {
		for _, a := range m.gpu().Arenas {
			if slices.Contains(a.Importers, incarnation) {
				n++
			}
		}
		return n
	}
	victim.tell(order{Do: "read", Name: "x", Prims: prims(4)})
	eventually(t, func() bool { return opening() == 1 }, "the reader got no handle")
	require.Zero(t, m.held(victim.PID()).Imports, "it is still opening")
	cycle(2)
	victim.kill()
	eventually(t, func() bool { return opening() == 0 && m.settled() && m.find("victim").Name == "" }, "the dead holds something")
	for n := range 8 {
		cycle(n + 3)
	}
	other.do(order{Do: "release", Name: "x"})
	eventually(t, func() bool { return m.gpu().Memory.Pinned == 0 }, "a version of before is kept")
}

// A reader is killed while the broker copies a version to the host for it. The copy is the version's and not the
// reader's: it ends, others get it, and it goes with its version (rules C5, I3).
func TestAReaderIsKilledWhileItsMirrorIsMade(t *testing.T) {
	needsEmulation(t)
	copies := newHold(t)
	m := startWith(t, nil, []string{copies.setting()}, "--gpu", "required", "--retain", "1")
	producer, other := m.client("producer"), m.client("other")
	cycle := func(n int) {
		t.Helper()
		producer.do(order{Do: "cycle", Name: "x", Prims: prims(4), Bytes: 4 << 20, Device: "cuda:0", Ordinal: uint64(n), Value: n, Sync: "stream", Count: 1})
	}
	cycle(1)
	copying := func(d control.Description) bool { return staging(d.Memory) >= 16<<20 }
	require.False(t, copying(m.description()))
	victim := m.client("victim")
	copies.begin()
	victim.tell(order{Do: "read", Name: "x", Prims: prims(4), Device: "cpu"})
	eventually(t, func() bool { return copying(m.description()) }, "no copy was begun")
	victim.kill()
	require.Equal(t, rows(1, 4), other.do(order{Do: "read", Name: "x", Prims: prims(4)}).Rows, "nobody waits where the rows lie")
	require.Zero(t, m.description().Memory.Mirrors, "the copy was done already: nothing was killed in the middle")
	copies.end()
	require.Equal(t, rows(1, 4), other.do(order{Do: "read", Name: "x", Prims: prims(4), Device: "cpu"}).Rows)
	other.do(order{Do: "release", Name: "x"})
	cycle(2)
	require.Equal(t, rows(2, 4), other.do(order{Do: "read", Name: "x", Prims: prims(4)}).Rows)
	other.do(order{Do: "release", Name: "x"})
	cycle(3)
	eventually(t, func() bool {
		d := m.description()
		return m.settled() && m.find("victim").Name == "" && d.Memory.Mirrors == 0 && d.Memory.Pinned == 0 && d.GPU.Devices[0].Memory.Pinned == 0 && !copying(d)
	}, "the dead holds something")
}

// The broker is killed while it waits for a producer's event, and while it copies. Nothing of what was on its way
// appears, host memory is as it was, and everybody goes on with the next one (rules B3, C3, M3; field report A11).
func TestTheBrokerIsKilledMidway(t *testing.T) {
	needsEmulation(t)
	copies := newHold(t)
	scattered := []int{1, 4, 9, 16} // copied, and not adopted
	for _, midway := range []struct {
		name string
		late []string // the producer
		slow []string // the broker
		sets []int    // rows that are on their way
		on   func(m *machine) bool
	}{
		{"an event wait", []string{"CUDAEMU_DELAY_US=600000000"}, nil, prims(400), func(m *machine) bool { return m.find("victim").Sessions == 0 }},
		{"a copy", nil, []string{copies.setting()}, scattered, func(m *machine) bool { return staging(m.gpu().Memory) > 0 }},
	} {
		t.Run(midway.name, func(t *testing.T) {
			m := startWith(t, nil, midway.slow, "--gpu", "required")
			other, victim := m.client("other"), m.client("victim", midway.late...)
			whole := order{Do: "cycle", Name: "x", Prims: prims(400), Bytes: 8, Device: "cuda:0", Ordinal: 1, Sync: "stream", Count: 1}
			other.do(whole)
			other.do(order{Do: "cycle", Name: "host", Prims: prims(2), Bytes: rowBytes, Device: "cpu", Ordinal: 1, Value: 7, Count: 1})

			victim.do(order{Do: "map", Name: "x", Prims: midway.sets, Bytes: 8, Device: "cuda:0", Ordinal: 2})
			require.EqualValues(t, 1, m.find("victim").Sessions)
			victim.do(order{Do: "fill", Name: "x", Value: 1, Mask: []int{0}})
			victim.do(order{Do: "commit", Name: "x", Sync: "stream", Async: true})
			if midway.late == nil {
				victim.do(order{Do: "wait", Name: "x"})
				require.Zero(t, staging(m.gpu().Memory))
				copies.begin()
				victim.tell(order{Do: "seal", Name: "x", Ordinal: 2})
			}
			eventually(t, func() bool { return midway.on(m) }, "it did not begin")
			for _, a := range m.description().Attributes {
				require.EqualValues(t, 1, a.Floor, "%s was sealed already: nothing is killed in the middle", a.Name)
			}
			m.Kill9()
			if midway.late == nil {
				copies.end()
			}
			m.Restart()

			if midway.late == nil {
				require.Equal(t, "BROKER_RESTARTED", victim.hear().Kind)
			} else {
				victim.kill() // its stream goes on for minutes
			}
			eventually(t, func() bool {
				r := other.try(order{Do: "read", Name: "host", Prims: prims(2)})
				return slices.Equal(r.Rows, rows(7, 2))
			}, "host memory is not as before")
			require.Empty(t, other.do(order{Do: "read", Name: "x", As: "none", Prims: prims(400)}).Rows, "rows of before or of midway")
			whole.Ordinal, whole.Value = 10, 3
			eventually(t, func() bool { return other.try(whole).Error == "" }, "no rows come with the next broker") // what was lost is told once
			require.Equal(t, 3, other.do(order{Do: "read", Name: "x", Prims: prims(400)}).Rows[0])
			eventually(t, m.settled, "something of before is held")
		})
	}
}
