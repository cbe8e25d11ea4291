package gpu

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// attached finds a client by its name.
func (m *machine) attached(name string) (incarnation uint64, found bool) {
	for _, c := range m.description().Clients {
		if c.Name == name {
			return c.Incarnation, true
		}
	}
	return 0, false
}

// opened counts the arenas that a client may have open.
func (m *machine) opened(incarnation uint64) (n int) {
	for _, a := range m.gpu().Arenas {
		for _, importer := range a.Importers {
			if importer == fmt.Sprint(incarnation) {
				n++
			}
		}
	}
	return n
}

// Rules C6 and B4: a program that closed its stage and runs on is gone from the stage, and what it had open can be freed,
// since it said that it closed its arenas.
func TestAProgramThatClosedItsStageRunsOn(t *testing.T) {
	m := startWith(t, nil, nil, "--gpu", "required", "--gpu-memory", "16MiB")
	p, r := m.client("producer"), m.client("reader")
	p.do(order{Do: "cycle", Name: "pose", Prims: prims(2), Bytes: large, Device: "cuda:0", Ordinal: 1, Value: 1, Sync: "stream", Count: 2})
	require.Equal(t, rows(2, 2), r.do(order{Do: "read", Name: "pose", Prims: prims(2)}).Rows)
	p.do(order{Do: "map", Name: "large", Prims: prims(1), Bytes: 4 << 20, Device: "cuda:0", Ordinal: 1})
	p.do(order{Do: "abort", Name: "large"})
	id, found := m.attached("producer")
	require.True(t, found)
	require.NotZero(t, m.opened(id))
	p.do(order{Do: "close"})
	if driver.emulated {
		held := m.held(p.PID())
		require.Zero(t, held.Imports+held.ImportedEvents)
	}
	eventually(t, func() bool {
		_, found := m.attached("producer")
		return !found
	}, "it is gone, and its process is not")
	require.Zero(t, m.opened(id))
	require.NotContains(t, m.program("info"), "producer")
	other := m.client("other")
	other.do(order{Do: "cycle", Name: "larger", Prims: prims(1), Bytes: 6 << 20, Device: "cuda:0", Ordinal: 3, Value: 7, Sync: "stream", Count: 1})
	require.Equal(t, rows(2, 2), r.do(order{Do: "look", Name: "pose"}).Rows)
}

// Rule B4: what views use is closed with the last of them, when nobody can be told any more; so the broker waits for the
// end of the process, and for that of one which closed its stage while it filled a group.
func TestAProgramThatClosedItsStageUnderWhatItUses(t *testing.T) {
	m := start(t)
	p, r := m.client("producer"), m.client("reader")
	p.do(order{Do: "cycle", Name: "pose", Prims: prims(2), Bytes: large, Device: "cuda:0", Ordinal: 1, Value: 1, Sync: "stream", Count: 2})
	require.Equal(t, rows(2, 2), r.do(order{Do: "read", Name: "pose", Prims: prims(2)}).Rows)
	p.do(order{Do: "map", Name: "pose", Prims: prims(2), Ordinal: 3})
	for _, c := range []*process{p, r} {
		id, _ := m.attached(c.Name)
		c.do(order{Do: "close"})
		require.Equal(t, 1, m.opened(id))
	}
	require.Equal(t, rows(2, 2), r.do(order{Do: "look", Name: "pose"}).Rows)
	r.do(order{Do: "release", Name: "pose"})
	for _, c := range []*process{p, r} {
		_, found := m.attached(c.Name)
		require.True(t, found, c.Name)
		c.end()
		eventually(t, func() bool {
			_, found := m.attached(c.Name)
			return !found
		}, "%s is gone with its process", c.Name)
	}
}

// Rule B4: closing does not wait for work that stalls, for as long as the broker may. What that work may reach stays leased
// until the process has exited.
func TestAProgramThatClosedItsStageWhileItsWorkStalls(t *testing.T) {
	needsEmulation(t)
	m := startWith(t, nil, nil, "--gpu", "required", "--gpu-timeout", "10m")
	p := m.client("producer", "CUDAEMU_STALL_EVENTS=1")
	p.do(order{Do: "map", Name: "pose", Prims: prims(2), Bytes: large, Device: "cuda:0", Ordinal: 1})
	p.do(order{Do: "fill", Name: "pose", Value: 1})
	p.do(order{Do: "commit", Name: "pose", Sync: "stream", Async: true})
	id, _ := m.attached("producer")
	p.do(order{Do: "close"})
	require.EqualValues(t, 1, m.held(p.PID()).Imports)
	require.Equal(t, 1, m.opened(id))
	require.Equal(t, 1, m.gpu().EventsLeased)
	p.kill()
	eventually(t, func() bool {
		_, found := m.attached("producer")
		return !found && m.gpu().EventsLeased == 0
	}, "it is waited for after its exit")
}
