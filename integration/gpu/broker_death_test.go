package gpu

import (
	"testing"

	"github.com/stretchr/testify/require"

	"callboard/control"
	"callboard/protocol"
)

// Rules C3 and B4: work that does not end in time fails its own operation, in words that say which event and whose. The
// event is never used again, and everybody else goes on meanwhile and afterwards.
func TestEventThatNeverCompletesFailsItsOperationAlone(t *testing.T) {
	t.Parallel()
	needsEmulation(t)
	m := startWith(t, nil, nil, "--gpu", "required", "--gpu-timeout", "2s")
	health := m.observe(func(s control.Subjects) string { return s.Health() })
	p, other := m.client("staller", "CUDAEMU_STALL_EVENTS=1"), m.client("other")
	p.do(order{Do: "map", Name: "pose", Prims: []int{1, 2}, Bytes: large, Device: "cuda:0", Ordinal: 1})
	p.do(order{Do: "fill", Name: "pose", Value: 1})
	p.do(order{Do: "commit", Name: "pose", Sync: "stream", Async: true})
	other.do(order{Do: "cycle", Name: "else", Prims: []int{1, 2}, Bytes: large, Device: "cuda:0", Ordinal: 1, Value: 5, Count: 3, Sync: "stream"})
	p.refused(order{Do: "wait", Name: "pose"}, "TIMEOUT", "did not complete in time", "staller", "--gpu-timeout")
	e := heard(t, health, control.HealthGPUEvent)
	require.Contains(t, e.Text, "staller")
	eventually(t, func() bool { g := m.gpu(); return g.EventsRetired == 1 && g.EventsLeased == 0 && g.EventsFree == 256 }, "the event is given up, and another one in its place")
	other.do(order{Do: "cycle", Name: "pose", Prims: []int{1, 2}, Bytes: large, Device: "cuda:0", Ordinal: 10, Value: 7, Count: 3, Sync: "stream"})
	p.kill()
	eventually(t, func() bool { return m.gpu().EventsRetired == 0 }, "with its last importer the event goes")
}

// Rules C3 and B4: a producer is killed with work on the device. Its operation ends, others never waited, and what it had
// leased is used again once its process has exited.
func TestProducerKilledWithQueuedWorkHoldsNobodyUp(t *testing.T) {
	needsEmulation(t)
	m := startWith(t, nil, nil, "--gpu", "required", "--gpu-timeout", "10m")
	health := m.observe(func(s control.Subjects) string { return s.Health() })
	p, other := m.client("victim", "CUDAEMU_DELAY_US=600000000"), m.client("other")
	p.do(order{Do: "map", Name: "pose", Prims: []int{1, 2}, Bytes: large, Device: "cuda:0", Ordinal: 1})
	p.do(order{Do: "fill", Name: "pose", Value: 1})
	p.do(order{Do: "commit", Name: "pose", Sync: "stream", Async: true})
	other.do(order{Do: "cycle", Name: "else", Prims: []int{1, 2}, Bytes: large, Device: "cuda:0", Ordinal: 1, Value: 5, Count: 3, Sync: "stream"})
	p.kill()
	require.Contains(t, heard(t, health, control.HealthGPUEvent).Text, "the producer ended before its work on the device was done")
	eventually(t, func() bool {
		d := m.description()
		for _, c := range d.Clients {
			if c.Name == "victim" {
				return false
			}
		}
		return d.GPU.Devices[0].EventsLeased == 0
	}, "the producer is forgotten")
	other.do(order{Do: "cycle", Name: "pose", Prims: []int{1, 2}, Bytes: large, Device: "cuda:0", Ordinal: 10, Value: 7, Count: 3, Sync: "stream"})
	require.Equal(t, []int{9, 10}, other.do(order{Do: "read", Name: "pose", Prims: []int{1, 2}}).Rows)
}

// Rule C6, field report F3: an arena out of service stays while a client has it open, and goes when that says so or is
// dead. Freed too early, the emulated driver would end the broker.
func TestArenaGoesWithItsLastImporter(t *testing.T) {
	for _, how := range []string{"it is killed", "it notices"} {
		t.Run(how, func(t *testing.T) {
			m := startWith(t, nil, nil, "--gpu", "required", "--gpu-memory", "8MiB", "--retain", "1")
			p, r, q := m.client("producer"), m.client("reader"), m.client("successor")
			one := order{Do: "cycle", Name: "pose", Prims: []int{1}, Bytes: 2 * large, Device: "cuda:0", Ordinal: 1, Value: 1, Count: 1, Sync: "stream"}
			p.do(one)
			require.Equal(t, []int{1}, r.do(order{Do: "read", Name: "pose", Prims: []int{1}}).Rows)
			r.do(order{Do: "release", Name: "pose"})
			one.Ordinal, one.Value = 2, 2
			q.do(one)
			p.end()
			eventually(t, func() bool { return m.gpu().Memory.Open > 0 }, "the producer's arena is out of service")
			before := m.held(m.PID()).Bytes

			more := order{Do: "map", Name: "more", Prims: []int{1}, Bytes: 6 * large, Device: "cuda:0", Ordinal: 3}
			q.refused(more, "OUT_OF_MEMORY", "still open in clients", "--gpu-memory")
			open := func() (n int) {
				for _, a := range m.gpu().Arenas {
					if a.Retired {
						n += a.ImporterCount
					}
				}
				return n
			}
			require.Equal(t, 1, open())
			if driver.emulated {
				require.Equal(t, before, m.held(m.PID()).Bytes, "it is not freed under its importer")
			}
			if how == "it is killed" {
				r.kill()
			} else {
				r.do(order{Do: "read", Name: "pose", Prims: []int{1}})
				r.do(order{Do: "release", Name: "pose"})
				r.do(order{Do: "touch"})
			}
			eventually(t, func() bool { return open() == 0 && m.gpu().Memory.Open == 0 }, "the arena is freed")
			if driver.emulated {
				eventually(t, func() bool { return m.held(m.PID()).Bytes < before }, "the driver has it back")
			}
			q.do(more)
		})
	}
}

// Rules C6 and B4: a client that left without a word of its imports is waited for until its process has exited, which that
// of this test does not; one that said that it closed them is not.
func TestClientThatLeftIsWaitedForWhileItMayHaveMemoryOpen(t *testing.T) {
	m := start(t)
	says, silent := m.attach(), m.attach()
	for _, w := range []*wire{says, silent} {
		session, g, _ := w.mapOnDevice(protocol.StatusOK, w.query("/a"), 1, "pose")
		require.Equal(t, protocol.StatusOK, protocol.Status(w.ask(protocol.DeviceArena, 0, g.Block.Segment).Status))
		w.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpUnmapAttribute, Handle: session, Flags: protocol.FlagAbort})
		if w == says {
			w.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpArenaClosed, Value: g.Block.Segment})
		}
		w.leave()
	}
	there := func() (all []uint64) {
		for _, c := range m.description().Clients {
			if c.Name == "wire" {
				all = append(all, c.Incarnation)
			}
		}
		return all
	}
	eventually(t, func() bool { return len(there()) == 1 }, "one is forgotten")
	require.Equal(t, []uint64{silent.hello.Incarnation}, there())
	p := m.client("producer")
	p.do(order{Do: "cycle", Name: "pose", Prims: []int{1}, Bytes: large, Device: "cuda:0", Ordinal: 5, Value: 1, Count: 5, Sync: "stream"})
	require.Equal(t, []uint64{silent.hello.Incarnation}, there())
	for _, a := range m.gpu().Arenas {
		if a.Owner == silent.hello.Incarnation {
			require.False(t, a.Retired, "nobody else gets its staging")
			return
		}
	}
	t.Fatal("its staging is gone")
}

// A device that is full is named, with how much is free there.
func TestFullDeviceIsNamed(t *testing.T) {
	needsEmulation(t)
	m := start(t, "CUDAEMU_MEMORY=8388608")
	p := m.client("producer")
	p.refused(order{Do: "map", Name: "pose", Prims: []int{1, 2}, Bytes: 16 * large, Device: "cuda:0", Ordinal: 1}, "OUT_OF_MEMORY",
		"device 0 (Callboard emulated GPU 0, GPU-", "of its 8388608 bytes are free", "nvidia-smi")
	p.do(order{Do: "cycle", Name: "pose", Prims: []int{1, 2}, Bytes: large, Device: "cuda:0", Ordinal: 1, Value: 1, Count: 2, Sync: "stream"})
}

// Rule C4: a context that is lost takes the device's attributes along, until the broker is started anew. Host memory goes
// on, and everybody is told.
func TestLostContextTakesTheDeviceAlone(t *testing.T) {
	needsEmulation(t)
	m := startWith(t, nil, []string{"CUDAEMU_FAIL=cuStreamQuery:1:719"}, "--gpu", "required")
	health := m.observe(func(s control.Subjects) string { return s.Health() })
	p := m.client("producer")
	p.do(order{Do: "cycle", Name: "pose", Prims: []int{1, 2}, Bytes: large, Device: "cuda:0", Ordinal: 1, Value: 1, Count: 1, Sync: "stream"})
	p.do(order{Do: "map", Name: "pose", Prims: []int{1}, Bytes: large, Ordinal: 2})
	p.do(order{Do: "fill", Name: "pose", Value: 9})
	failed := p.try(order{Do: "commit", Name: "pose", Sync: "stream"})
	if failed.Error == "" {
		failed = p.try(order{Do: "seal", Name: "pose", Ordinal: 2})
	}
	require.Contains(t, failed.Error, "CUDA_ERROR_LAUNCH_FAILED")
	require.Contains(t, failed.Error, "start the broker anew")
	require.Equal(t, control.LevelError, heard(t, health, control.HealthGPULost).Level)
	p.do(order{Do: "cycle", Name: "host", Prims: []int{1}, Bytes: 8, Ordinal: 3, Value: 5, Count: 3})
	require.Contains(t, p.try(order{Do: "cycle", Name: "other", Prims: []int{1}, Bytes: large, Device: "cuda:0", Ordinal: 4, Value: 1, Count: 8, Sync: "stream"}).Error, "device 0")
	require.Equal(t, control.GPULost, m.gpu().State)
	require.Contains(t, m.program("info"), "CUDA_ERROR_LAUNCH_FAILED")
	require.Contains(t, m.program("doctor", "--stage", m.Stage, "--shm-dir", m.ShmDir), "CUDA_ERROR_LAUNCH_FAILED")

	m.Restart("--takeover")
	eventually(t, func() bool {
		return p.try(order{Do: "cycle", Name: "pose", Prims: []int{1, 2}, Bytes: large, Device: "cuda:0", Ordinal: 20, Value: 1, Count: 1, Sync: "stream"}).Error == ""
	}, "the next broker serves the device")
}

// Rule C4: what waits for its seal on a device that is lost is given up. A seal of everything fails of it once, then host
// attributes go on; what was sealed is still read where it lies, adopted rows that were not are not sealed later.
func TestLostContextHoldsUpNoSeal(t *testing.T) {
	needsEmulation(t)
	m := startWith(t, nil, []string{"CUDAEMU_FAIL=cuStreamQuery:1:719"}, "--gpu", "required")
	health := m.observe(func(s control.Subjects) string { return s.Health() })
	p, r := m.client("producer"), m.client("reader")
	p.do(order{Do: "cycle", Name: "pose", Prims: []int{1, 2}, Bytes: large, Device: "cuda:0", Ordinal: 1, Value: 1, Count: 1, Sync: "stream"})
	p.do(order{Do: "write", Name: "host", Prims: []int{1, 2}, Bytes: 8, Ordinal: 2, Value: 5})
	fill := func(name string, prims []int) {
		p.do(order{Do: "map", Name: name, Prims: prims, Bytes: large, Device: "cuda:0", Ordinal: 2})
		p.do(order{Do: "fill", Name: name, Value: 9})
		p.do(order{Do: "commit", Name: name, Sync: "stream"})
	}
	fill("pose", []int{1})
	fill("whole", []int{1, 2})
	failed := p.try(order{Do: "seal", Ordinal: 2})
	require.Contains(t, failed.Error, "CUDA_ERROR_LAUNCH_FAILED")
	require.EqualValues(t, 3, heard(t, health, control.HealthGPULost).Numbers["rows"])
	p.do(order{Do: "seal", Ordinal: 2})
	require.Equal(t, []int{5, 6}, r.do(order{Do: "read", Name: "host", Prims: []int{1, 2}}).Rows)
	require.Equal(t, []int{1, 2}, r.do(order{Do: "read", Name: "pose", Prims: []int{1, 2}}).Rows)
	require.Contains(t, r.try(order{Do: "read", Name: "pose", Prims: []int{1}, Device: "cpu"}).Error, "CUDA_ERROR_LAUNCH_FAILED")
	require.Empty(t, r.do(order{Do: "read", Name: "whole", Prims: []int{1, 2}}).Rows)
	p.do(order{Do: "delete", Name: "pose", Prims: []int{1}, Ordinal: 3})
	p.do(order{Do: "write", Name: "host", Prims: []int{1, 2}, Bytes: 8, Ordinal: 3, Value: 7})
	p.do(order{Do: "seal", Ordinal: 3})
	require.Equal(t, []int{7, 8}, r.do(order{Do: "read", Name: "host", Prims: []int{1, 2}}).Rows)
	require.Equal(t, []int{2}, r.do(order{Do: "read", Name: "pose", Prims: []int{1, 2}}).Rows)
	p.refused(order{Do: "map", Name: "pose", Prims: []int{1}, Bytes: large, Ordinal: 4}, "OP_FAILED", "CUDA_ERROR_LAUNCH_FAILED", "start the broker anew")
}
