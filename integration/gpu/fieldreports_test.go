package gpu

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// What stands elsewhere: F1 in sync_test.go, F13 too, F2 in death_test.go, F10 in machine_test.go.

// Field report F2: all memory is the broker's. A producer's death takes nothing from those who look at what it made,
// and one that is dead while others use its rows leaves them.
func TestF2TheProducerEndsBeforeItsTensors(t *testing.T) {
	m := start(t)
	reader := m.client("reader")
	for n, end := range []func(*process){(*process).kill, func(p *process) { p.end(); p.killed = true }} {
		producer := m.client("producer")
		producer.do(order{Do: "cycle", Name: "x", Prims: prims(4), Bytes: rowBytes, Device: "cuda:0", Ordinal: uint64(n + 1), Value: n, Sync: "stream", Count: 1})
		require.Equal(t, rows(n, 4), reader.do(order{Do: "read", Name: "x", Prims: prims(4)}).Rows)
		end(producer)
		require.Equal(t, rows(n, 4), reader.do(order{Do: "look", Name: "x"}).Rows, "what was looked at")
		late := m.client("late reader")
		require.Equal(t, rows(n, 4), late.do(order{Do: "read", Name: "x", Prims: prims(4)}).Rows, "and who comes later")
	}
	eventually(t, m.settled, "the dead hold something")
}

// Field report F3: an arena that a client has open is not freed, however short memory is, until the client has closed
// it; the emulated driver would end a broker that did. It is closed at the client's next call, and freed.
func TestF3AnArenaIsFreedWhenItsImportersHaveClosedIt(t *testing.T) {
	m := startWith(t, nil, nil, "--gpu", "required", "--gpu-memory", "8MiB")
	producer, reader, other := m.client("producer"), m.client("reader"), m.client("other")
	cycle := func(p *process, first, count int) {
		p.do(order{Do: "cycle", Name: "x", Prims: prims(4), Bytes: rowBytes, Device: "cuda:0", Ordinal: uint64(first), Value: first, Sync: "stream", Count: count})
	}
	cycle(producer, 1, 1)
	require.Equal(t, rows(1, 4), reader.do(order{Do: "read", Name: "x", Prims: prims(4)}).Rows)
	reader.do(order{Do: "release", Name: "x"})
	producer.end()
	producer.killed = true
	cycle(other, 2, 8) // nothing of the producer's is retained any more
	large := order{Do: "map", Name: "large", Prims: prims(1), Bytes: 5 << 20, Device: "cuda:0", Ordinal: 1}
	other.refused(large, "OUT_OF_MEMORY")
	if driver.emulated {
		require.EqualValues(t, 1, m.held(reader.PID()).Imports, "the reader has not been told yet")
	}
	require.True(t, m.Running())
	eventually(t, func() bool {
		reader.do(order{Do: "touch"})
		return other.try(large).Error == ""
	}, "the arena is not freed")
	if driver.emulated {
		require.Zero(t, m.held(reader.PID()).Imports)
	}
	require.Equal(t, rows(9, 4), reader.do(order{Do: "read", Name: "x", Prims: prims(4)}).Rows)
}

// Field reports F4, F5 and F8: a process opens an arena once, however many blocks of it, attributes, reads and stages
// it uses; each block is found by its offset.
func TestF4F5F8OneImportForEachArena(t *testing.T) {
	m := start(t)
	producer, reader := m.client("producer"), m.client("reader")
	names := []string{"a", "b", "c", "d", "e"}
	for n, name := range names {
		producer.do(order{Do: "write", Name: name, Prims: prims(4), Bytes: rowBytes, Value: 10 * n, Ordinal: 1, From: "cuda:0", Device: "cuda:0", Sync: "stream"})
	}
	producer.do(order{Do: "seal", Ordinal: 1})
	pointers := map[uint64]bool{}
	for round := range 3 {
		for n, name := range names {
			as := fmt.Sprint(name, round)
			require.Equal(t, rows(10*n, 4), reader.do(order{Do: "read", Name: name, As: as, Prims: prims(4)}).Rows)
			pointers[reader.do(order{Do: "pointer", As: as}).Number] = true
		}
		reader.do(order{Do: "second"}) // a stage beside the first
	}
	require.Len(t, pointers, len(names), "the same addresses through every stage")
	if driver.emulated {
		require.LessOrEqual(t, m.held(reader.PID()).Imports, uint64(m.gpu().ArenaCount))
		require.EqualValues(t, 1, m.held(reader.PID()).Contexts)
	}
}

// Field reports F6 and F7: our choice is that nothing of a client's is ever exported. Its tensors may lie in pools, in
// virtual memory, or wherever else handles do not reach: they are copied into plain arenas of the broker's. What others
// open is the broker's, by handles that came over the socket; nobody fetches descriptors from another process, and
// nobody's rights to do so matter. So a producer's memory has no importer, and its end takes nothing.
func TestF6F7TensorsOfClientsAreCopiedAndNeverExported(t *testing.T) {
	m := start(t)
	producer, reader := m.client("producer"), m.client("reader")
	producer.do(order{Do: "write", Name: "x", Prims: prims(4), Bytes: rowBytes, Value: 3, Ordinal: 1, From: "cuda:0", Device: "cuda:0", Sync: "stream"})
	producer.do(order{Do: "seal", Name: "x", Ordinal: 1})
	require.Equal(t, rows(3, 4), reader.do(order{Do: "read", Name: "x", Prims: prims(4)}).Rows)
	if driver.emulated {
		require.EqualValues(t, 1, m.held(producer.PID()).Allocations, "the tensor itself")
		require.LessOrEqual(t, m.held(reader.PID()).Imports, m.held(m.PID()).Allocations)
	}
	producer.kill()
	require.Equal(t, rows(3, 4), reader.do(order{Do: "look", Name: "x"}).Rows)
	require.Equal(t, rows(3, 4), m.client("late").do(order{Do: "read", Name: "x", Prims: prims(4)}).Rows)
}

// Field report F9: where devices cannot be shared, or there is none, the broker says why and serves the host; clients
// are told the same.
func TestF9WhereDevicesCannotBeShared(t *testing.T) {
	needsEmulation(t)
	for setting, reason := range map[string]string{
		"CUDAEMU_ATTRIBUTE=18:1":  "integrated device", // Tegra
		"CUDAEMU_PIDNS=1":         "pid namespaces",
		"CUDAEMU_NO_DEVICE=1":     "no device",
		"CUDAEMU_STUB=1":          "stub library",
		"CUDAEMU_ATTRIBUTE=20:3":  "exclusive compute mode",
		"CUDAEMU_ATTRIBUTE=125:0": "no interprocess events",
	} {
		t.Run(reason, func(t *testing.T) {
			m := startWith(t, nil, []string{setting}, "--gpu", "auto")
			require.Contains(t, m.program("info"), reason)
			p := m.client("client")
			p.refused(order{Do: "declare", Name: "x", Bytes: rowBytes, Device: "cuda:0"}, "NOT_SUPPORTED", "cuda:0", "callboard doctor")
			p.do(order{Do: "cycle", Name: "x", Prims: prims(2), Bytes: rowBytes, Ordinal: 1, Value: 5, Count: 1})
			require.Equal(t, rows(5, 2), p.do(order{Do: "read", Name: "x", Prims: prims(2)}).Rows)
		})
	}
}

// Field report F11: events are a fixed pool, and few are enough for any number of hand-overs.
func TestF11EventsDoNotPileUp(t *testing.T) {
	m := startWith(t, nil, nil, "--gpu", "required", "--gpu-events", "4")
	p := m.client("client")
	p.do(order{Do: "cycle", Name: "x", Prims: prims(2), Bytes: rowBytes, Device: "cuda:0", Ordinal: 1, Sync: "stream", Count: 200})
	d := m.gpu()
	require.Equal(t, []int{4, 0, 0}, []int{d.EventsFree, d.EventsLeased, d.EventsRetired})
	if driver.emulated {
		require.EqualValues(t, 4, m.held(m.PID()).Events)
		require.LessOrEqual(t, m.held(p.PID()).ImportedEvents, uint64(4))
	}
}

// Field report F12: our choice is that host memory need not be pinned. Rows of many megabytes come and go between the
// host and a device through whatever the broker has pinned for itself, and on the host they are plain host memory.
func TestF12HostMemoryNeedNotBePinned(t *testing.T) {
	m := start(t)
	p := m.client("client")
	const size = 3<<20 + 4096
	p.do(order{Do: "declare", Name: "x", Bytes: size, Device: "cuda:0"})
	p.do(order{Do: "write", Name: "x", Prims: prims(3), Bytes: size, Value: 60, Ordinal: 1, From: "host"})
	p.do(order{Do: "seal", Name: "x", Ordinal: 1})
	require.Equal(t, rows(60, 3), p.do(order{Do: "read", Name: "x", Prims: prims(3)}).Rows)
	require.Equal(t, rows(60, 3), p.do(order{Do: "read", Name: "x", Prims: prims(3), Device: "cpu"}).Rows)
	require.Equal(t, "cpu", p.do(order{Do: "dlpack", Name: "x"}).Device)
	if driver.emulated {
		require.Zero(t, m.held(p.PID()).Registered)
	}
}
