package gpu

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"callboard/control"
)

// steps are what a producer does, each after the one before.
var steps = []struct {
	name string
	do   func(p *process, o order)
}{
	{"attached", func(*process, order) {}},
	{"mapped", func(p *process, o order) { o.Do = "map"; p.do(o) }},
	{"filled", func(p *process, o order) { o.Do = "fill"; p.do(o) }},
	{"recorded", func(p *process, o order) { o.Do = "record"; p.do(o) }},
	{"unmapped", func(p *process, o order) { o.Do, o.Sync, o.Async = "commit", "stream", true; p.do(o) }},
	{"sealing", func(p *process, o order) { o.Do = "seal"; p.tell(o) }},
}

// A producer is killed after each step, with its work on the device not done: nothing of it appears, nothing of it
// stays, and others go on (rules B4, C3, C6, M3; field reports A11, F2).
func TestAProducerIsKilledAtEachStep(t *testing.T) {
	m := start(t)
	producer, reader := m.client("producer"), m.client("reader")
	ordinal := uint64(0)
	healthy := func() {
		t.Helper()
		ordinal++
		producer.do(order{Do: "cycle", Name: "x", Prims: prims(4), Bytes: rowBytes, Device: "cuda:0", Ordinal: ordinal, Value: int(ordinal), Sync: "stream", Count: 1})
		require.Equal(t, rows(int(ordinal), 4), reader.do(order{Do: "read", Name: "x", Prims: prims(4)}).Rows)
	}
	for _, late := range []bool{false, true} {
		for last, step := range steps {
			t.Run(fmt.Sprintf("%s, late %v", step.name, late), func(t *testing.T) {
				var env []string
				if late {
					if !driver.emulated {
						skip(t, "a real device is not late on demand")
					}
					env = append(env, "CUDAEMU_DELAY_US=30000000", "CUDAEMU_STALL_EVENTS=1")
				}
				ordinal++
				victim := m.client("victim", env...)
				for _, s := range steps[:last+1] {
					s.do(victim, order{Name: "x", Prims: prims(4), Bytes: rowBytes, Device: "cuda:0", Ordinal: ordinal, Value: 200})
				}
				victim.kill()
				if late || last < 4 {
					require.NotEqual(t, rows(200, 4), reader.do(order{Do: "read", Name: "x", Prims: prims(4)}).Rows)
				}
				healthy()
			})
		}
	}
	eventually(t, m.settled, "the dead hold something")
	if driver.emulated {
		d, held := m.gpu(), m.held(m.PID())
		require.EqualValues(t, d.Memory.Held, held.Bytes, "nothing but arenas is allocated")
		require.EqualValues(t, d.EventsFree+d.EventsRetired, held.Events, "nothing but the pool's events, and those that somebody has open")
	}
}

// More producers die than there is memory and there are events for, were one lost with each (rules B4, S5; field reports
// A9, F11).
func TestManyProducersAreKilled(t *testing.T) {
	m := startWith(t, nil, nil, "--gpu", "required", "--gpu-memory", "32MiB", "--gpu-events", "16")
	for n := range 40 {
		victim := m.client("victim")
		o := order{Do: "map", Name: "x", Prims: prims(4), Bytes: rowBytes, Device: "cuda:0", Ordinal: uint64(n + 1)}
		for r := victim.try(o); r.Error != ""; r = victim.try(o) {
			// The last ones are not proven dead yet (rule I3).
			require.Contains(t, []string{"OUT_OF_MEMORY", "QUEUE_FULL"}, r.Kind, r.Error)
		}
		victim.kill()
	}
	eventually(t, func() bool {
		d := m.gpu()
		return m.settled() && d.EventsFree == 16 && d.EventsRetired == 0
	}, "the dead hold something")
}

// Readers that are killed, with an import and a pin, hold nothing up (rules I3, C6; field reports A12, F2).
func TestReadersAreKilled(t *testing.T) {
	m := start(t)
	producer := m.client("producer")
	cycle := func(n int) {
		producer.do(order{Do: "cycle", Name: "x", Prims: prims(4), Bytes: 1 << 20, Device: "cuda:0", Ordinal: uint64(n), Value: n, Sync: "stream", Count: 1})
	}
	n := 0
	for range 8 {
		n++
		cycle(n)
	}
	for _, device := range []string{"", "cpu", "", "cpu"} {
		n++
		cycle(n)
		reader := m.client("reader")
		require.Equal(t, rows(n, 4), reader.do(order{Do: "read", Name: "x", Prims: prims(4), Device: device}).Rows)
		reader.kill()
	}
	for range 12 { // more than there is memory for, if nothing came back
		n++
		cycle(n)
	}
	eventually(t, m.settled, "the dead hold something")
	reader := m.client("reader")
	require.Equal(t, rows(n, 4), reader.do(order{Do: "read", Name: "x", Prims: prims(4)}).Rows)
}

// The broker is killed while producers stand at each step and a reader looks: device attributes are without rows, what
// was imported is void and closed when it is given back, operators are told, and everything goes on with the next broker
// (rule B3). NATS is a server of the test's own: the broker's would be gone before anybody could hear of it.
func TestTheBrokerIsKilledAtEachStep(t *testing.T) {
	m := startWith(t, nil, nil, "--gpu", "required", "--nats-url", serveNATS(t))
	health := m.observe(control.Subjects.Health)
	reader, host := m.client("reader"), m.client("host")
	host.do(order{Do: "write", Name: "host", Prims: prims(2), Bytes: rowBytes, Value: 1, Ordinal: 1, From: "host"})
	host.do(order{Do: "seal", Name: "host", Ordinal: 1})
	producers := make([]*process, len(steps))
	ordinal := uint64(0)
	for last, step := range steps[:5] {
		ordinal++
		p := m.client("producer, " + step.name)
		producers[last] = p
		p.do(order{Do: "cycle", Name: "x", Prims: prims(4), Bytes: rowBytes, Device: "cuda:0", Ordinal: ordinal, Value: 5, Sync: "stream", Count: 1})
	}
	require.Equal(t, rows(5, 4), reader.do(order{Do: "read", Name: "x", Prims: prims(4)}).Rows)
	looked := reader.do(order{Do: "pointer", Name: "x"}).Number
	for last := range producers[:5] {
		for _, s := range steps[:last+1] {
			s.do(producers[last], order{Name: "x", Prims: prims(4), Bytes: rowBytes, Device: "cuda:0", Ordinal: ordinal + 1, Value: 200})
		}
	}
	m.Kill9()
	m.Restart()
	lost := heard(t, health, control.HealthGPUEmptied)
	require.Equal(t, control.LevelWarning, lost.Level)
	require.EqualValues(t, 1, lost.Numbers["attributes"])
	require.Contains(t, lost.Text, "begin without rows, and their write floors stay: x")
	commits := m.observe(control.Subjects.Commit)

	require.Equal(t, rows(1, 2), reader.do(order{Do: "read", Name: "host", Prims: prims(2)}).Rows, "host memory is there as before")
	eventually(t, func() bool { return reader.try(order{Do: "read", Name: "x", As: "none", Prims: prims(4)}).Rows == nil }, "the device's rows are still shown")
	reader.refused(order{Do: "read", Name: "x", Prims: prims(4), Ordinal: ordinal}, "OUT_OF_RANGE")
	reader.refused(order{Do: "write", Name: "copy", Prims: prims(4), Bytes: rowBytes, Ordinal: 1, From: "cuda:0", At: looked}, "BROKER_RESTARTED", "lay in device memory of the time before")
	for last, p := range producers[:5] {
		switch {
		case last >= 1 && last < 4:
			p.refused(order{Do: "commit", Name: "x", Sync: "stream"}, "BROKER_RESTARTED")
		case last == 4:
			require.Contains(t, []string{"", "BROKER_RESTARTED"}, p.try(order{Do: "wait", Name: "x"}).Kind)
		}
	}
	for n, p := range producers[:5] {
		ordinal++
		o := order{Do: "cycle", Name: "x", Prims: prims(4), Bytes: rowBytes, Device: "cuda:0", Ordinal: ordinal + 1, Value: 10 * n, Sync: "stream", Count: 1}
		if r := p.try(o); r.Kind != "" { // what was lost is told once
			require.Contains(t, r.Error, "BROKER_RESTARTED")
			o.Ordinal++
			ordinal++
			p.do(o)
		}
		require.Equal(t, rows(10*n, 4), reader.do(order{Do: "read", Name: "x", As: "new", Prims: prims(4)}).Rows)
	}
	await(t, commits, func(raw []byte) bool {
		var e control.CommitEvent
		require.NoError(t, json.Unmarshal(raw, &e))
		return len(e.Changed) > 0
	})
	if driver.emulated {
		require.GreaterOrEqual(t, m.held(reader.PID()).Imports, uint64(2), "the old arena is looked at")
		reader.do(order{Do: "release", Name: "x"})
		pid := reader.PID()
		before := m.held(pid).Imports
		eventually(t, func() bool {
			reader.do(order{Do: "touch"})
			return m.held(pid).Imports < before
		}, "the arena of the broker that is gone stays open in the reader")
	}
}
