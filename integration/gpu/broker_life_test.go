package gpu

import (
	"context"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"callboard/control"
	"callboard/integration/harness"
	"callboard/protocol"
)

// program runs callboard beside a broker, and gives what it prints.
func (m *machine) program(arguments ...string) string {
	m.t.Helper()
	command := exec.Command(harness.Binary(m.t), arguments...)
	command.Env = append(m.Env(), m.env...)
	out, _ := command.CombinedOutput()
	return string(out)
}

const large = 1 << 20 // bytes of a row, so that copies are jobs

// heard waits for a health event with a code.
func heard(t *testing.T, events <-chan []byte, code string) control.HealthEvent {
	t.Helper()
	var found control.HealthEvent
	eventually(t, func() bool {
		for {
			select {
			case raw := <-events:
				var e control.HealthEvent
				require.NoError(t, json.Unmarshal(raw, &e))
				if e.Code == code {
					found = e
					return true
				}
			default:
				return false
			}
		}
	}, "health event %s", code)
	return found
}

// Rules C1 to C4: rows that one process put on a device are what others find there, in place, by way of the host, over
// NATS; and the programs say where they lie.
func TestBrokerServesWhatAProducerFilled(t *testing.T) {
	m := start(t, "CUDAEMU_DELAY_US=2000")
	p, r := m.client("producer"), m.client("reader")
	p.do(order{Do: "cycle", Name: "pose", Prims: []int{1, 2}, Bytes: large, Device: "cuda:0", Ordinal: 1, Value: 10, Count: 3, Sync: "stream"})
	require.Equal(t, []int{12, 13}, r.do(order{Do: "read", Name: "pose", Prims: []int{1, 2}}).Rows)
	require.Regexp(t, `/p1 +12  12  12 `, m.program("read", "pose", "--values", "3"))
	require.Regexp(t, `pose +fixed +uint8 +1048576 +none +cuda:0 +2`, m.program("ls"))
	info := m.program("info")
	require.Regexp(t, `(?m)^device 0 +`, info)
	require.Regexp(t, `(?m)^MEMORY OF DEVICE 0$`, info)
	require.Regexp(t, `(?m)^arena \d+ +.*open in 2 clients$`, info)

	// What one asks over NATS comes through a copy of those rows alone.
	p.do(order{Do: "cycle", Name: "small", Prims: []int{1, 2, 3}, Bytes: 4, Device: "cuda:0", Ordinal: 4, Value: 20, Count: 1, Sync: "stream"})
	answer := m.request(control.ReadRequest{Attribute: "small", Prims: []string{"/p3", "/p1"}})
	require.JSONEq(t, `[22,22,22,22,20,20,20,20]`, string(answer.Groups[0].Values))
	require.EqualValues(t, 2, answer.Groups[0].Device.Type)
	require.NotEmpty(t, answer.Groups[0].Device.UUID)
}

// Rule B3: what lay on a device went with its broker. Its attributes begin without rows, their floors stay, operators and
// clients are told, host memory is as it was, and new rows come as before.
func TestBrokerThatIsKilledLosesItsDevicesAlone(t *testing.T) {
	for _, how := range []string{"killed", "taken over"} {
		t.Run(how, func(t *testing.T) {
			m := start(t)
			p, r := m.client("producer"), m.client("reader")
			p.do(order{Do: "cycle", Name: "pose", Prims: []int{1, 2}, Bytes: large, Device: "cuda:0", Ordinal: 1, Value: 1, Count: 2, Sync: "stream"})
			p.do(order{Do: "cycle", Name: "host", Prims: []int{1, 2}, Bytes: large, Ordinal: 3, Value: 7, Count: 1})
			require.Equal(t, []int{2, 3}, r.do(order{Do: "read", Name: "pose", Prims: []int{1, 2}}).Rows)
			r.do(order{Do: "release", Name: "pose"})
			if how == "killed" {
				m.Kill9()
				m.Restart()
			} else {
				m.Restart("--takeover")
			}
			told := "device memory went with the broker that was before: 1 attributes there begin without rows, and their write floors stay: pose"
			eventually(t, func() bool { return strings.Contains(m.Output(), told) }, told)
			eventually(t, func() bool { return r.try(order{Do: "read", Name: "host", Prims: []int{1, 2}}).Error == "" }, "the reader is back")
			require.Equal(t, []int{7, 8}, r.do(order{Do: "read", Name: "host", Prims: []int{1, 2}}).Rows)
			require.Empty(t, r.do(order{Do: "read", Name: "pose", Prims: []int{1, 2}}).Rows)
			for _, a := range m.description().Attributes {
				if a.Name == "pose" {
					require.Zero(t, a.Rows)
					require.EqualValues(t, 2, a.Floor)
				}
			}
			p.try(order{Do: "touch"})
			eventually(t, func() bool {
				return p.try(order{Do: "cycle", Name: "pose", Prims: []int{1, 2}, Bytes: large, Device: "cuda:0", Ordinal: 10, Value: 40, Count: 1, Sync: "stream"}).Error == ""
			}, "the producer writes again")
			require.Equal(t, []int{40, 41}, r.do(order{Do: "read", Name: "pose", Prims: []int{1, 2}}).Rows)
		})
	}
}

// Rule C5: of two devices that nobody has shown to reach each other, what lies on one is read on the other, by one copy
// that everybody gets.
func TestBrokerCopiesBetweenDevices(t *testing.T) {
	needsEmulation(t)
	m := start(t, "CUDAEMU_DEVICES=2")
	require.Len(t, m.description().GPU.Devices, 2)
	p, r := m.client("producer"), m.client("reader")
	p.do(order{Do: "cycle", Name: "pose", Prims: []int{1, 2, 3}, Bytes: large, Device: "cuda:1", Ordinal: 1, Value: 10, Count: 2, Sync: "stream"})
	for range 2 {
		got := r.do(order{Do: "read", Name: "pose", Prims: []int{1, 2, 3}, Device: "cuda:0"})
		require.Equal(t, []int{11, 12, 13}, got.Rows)
		require.Equal(t, "cuda:0", got.Device)
	}
	require.Equal(t, []int{11, 12, 13}, r.do(order{Do: "read", Name: "pose", Prims: []int{1, 2, 3}, Device: "cpu"}).Rows)
	d := m.description()
	require.EqualValues(t, 3*large, d.GPU.Devices[0].Memory.Mirrors)
	require.EqualValues(t, 3*large, d.Memory.Mirrors)
	require.Contains(t, m.program("info"), "copies of what lies elsewhere")
}

// Two brokers serve one device side by side: nothing of it is a broker's own but what it allocated.
func TestTwoBrokersOnOneDevice(t *testing.T) {
	one := start(t)
	two := &machine{t: t, dir: one.dir, env: one.env}
	two.Broker = harness.StartIn(t, one.env, "--memory", "64MiB", "--gpu", "required")
	t.Cleanup(func() {
		for _, p := range two.clients {
			p.end()
		}
	})
	for i, m := range []*machine{one, two} {
		p, r := m.client("producer"), m.client("reader")
		p.do(order{Do: "cycle", Name: "pose", Prims: []int{1}, Bytes: large, Device: "cuda:0", Ordinal: 1, Value: 10 * (i + 1), Count: 3, Sync: "stream"})
		require.Equal(t, []int{10*(i+1) + 2}, r.do(order{Do: "read", Name: "pose", Prims: []int{1}}).Rows)
	}
	require.Equal(t, one.gpu().UUID, two.gpu().UUID)
}

// A machine without a driver misses nothing: the broker starts without a word of it, and says it to who asks.
func TestBrokerWithoutAGPUServesHostMemory(t *testing.T) {
	needsEmulation(t)
	m := startWith(t, nil, []string{"CALLBOARD_CUDA_LIBRARY=/nonexistent/libcuda.so.1"})
	require.NotContains(t, m.Output(), "GPU")
	require.NotContains(t, m.Output(), "device memory")
	p := m.client("producer")
	p.do(order{Do: "cycle", Name: "host", Prims: []int{1}, Bytes: 8, Ordinal: 1, Value: 7, Count: 1})
	p.refused(order{Do: "map", Name: "pose", Prims: []int{1}, Bytes: 8, Device: "cuda:0", Ordinal: 2}, "NOT_SUPPORTED", "callboard doctor")
	w := m.attach()
	require.Zero(t, w.hello.DeviceCount)
	_, _, text := w.mapOnDevice(protocol.StatusNotSupported, w.query("/a"), 3, "pose")
	require.Contains(t, text, "no driver")
	require.Contains(t, text, "/nonexistent/libcuda.so.1")
	gpu := m.description().GPU
	require.Equal(t, control.GPUFailed, gpu.State)
	require.Equal(t, "no driver", gpu.Reason)
	require.Contains(t, m.program("info"), "no driver")

	off := startWith(t, nil, nil, "--gpu", "off")
	require.Equal(t, control.GPUOff, off.description().GPU.State)
	w = off.attach()
	_, _, text = w.mapOnDevice(protocol.StatusNotSupported, w.query("/a"), 3, "pose")
	require.Contains(t, text, "--gpu off")
}

// required says why it does not start, and ends with 1.
func TestBrokerThatRequiresAGPUDoesNotStartWithout(t *testing.T) {
	needsEmulation(t)
	for setting, words := range map[string][]string{
		"CUDAEMU_NO_DEVICE=1":    {"no device", "CUDA_ERROR_NO_DEVICE"},
		"CUDAEMU_PIDNS=1":        {"self-test failed: pid namespaces", "CUDA_ERROR_INVALID_CONTEXT (201)", "--pid=host"},
		"CUDAEMU_ATTRIBUTE=18:1": {"integrated device"},
	} {
		command := exec.Command(harness.Binary(t), "serve", "--stage", "none", "--gpu", "required")
		command.Env = append(command.Environ(), "CALLBOARD_CUDA_LIBRARY="+driver.library, "XDG_RUNTIME_DIR="+t.TempDir(), setting)
		out, err := command.CombinedOutput()
		require.Error(t, err)
		require.Equal(t, 1, command.ProcessState.ExitCode())
		for _, word := range words {
			require.Contains(t, string(out), word)
		}
		require.False(t, strings.Contains(string(out), "callboard ready"))
	}
}

// request asks the broker over NATS for a value.
func (m *machine) request(q control.ReadRequest) (answer control.ReadResponse) {
	m.t.Helper()
	info, err := control.ReadRuntimeFile(filepath.Join(m.RuntimeDir, control.RuntimeFileName))
	require.NoError(m.t, err)
	conn, err := control.Connect(info, control.RoleObserver)
	require.NoError(m.t, err)
	defer conn.Close()
	names, err := control.NewSubjects(info.Host, info.Stage)
	require.NoError(m.t, err)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	require.NoError(m.t, control.Request(ctx, conn, names.Read(), q, &answer))
	return answer
}
