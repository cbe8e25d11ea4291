package gpu

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"callboard/control"
	"callboard/integration/harness"
	"callboard/protocol"
)

// Behaviour 306: a device that was not to be had when the broker started is tried again when a client asks for one.
func TestBrokerTriesItsDevicesAgain(t *testing.T) {
	needsEmulation(t)
	library := filepath.Join(t.TempDir(), "libcuda.so.1")
	for _, c := range []struct {
		what, setting, reason string
		mend                  func()
	}{
		{"the driver comes late", "CALLBOARD_CUDA_LIBRARY=" + library, "no driver", func() { require.NoError(t, os.Symlink(driver.library, library)) }},
		{"the self-test failed", "CUDAEMU_FAIL=cuIpcGetMemHandle:1:801", "self-test failed", func() {}},
		{"there was no room", "CUDAEMU_FAIL=cuMemAlloc:1:2", "self-test failed: out of device memory", func() {}},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			m := startWith(t, nil, []string{c.setting}, "--gpu", "auto")
			gpu := m.description().GPU
			require.Equal(t, control.GPUFailed, gpu.State)
			require.Contains(t, gpu.Reason, c.reason)
			require.NotEmpty(t, gpu.Text)
			require.NotEmpty(t, gpu.Advice)
			if c.reason != "no driver" { // which is no news on most machines
				require.Contains(t, m.Output(), "is not served: "+c.reason)
				require.Contains(t, gpu.Text, "CUDA_ERROR_")
			}
			p := m.client("producer")
			p.do(order{Do: "cycle", Name: "host", Prims: []int{1}, Bytes: 8, Ordinal: 1, Value: 7, Count: 1})
			cycle := order{Do: "cycle", Name: "pose", Prims: []int{1}, Bytes: 8, Device: "cuda:0", Ordinal: 2, Value: 7, Count: 1, Sync: "stream"}
			c.mend()
			eventually(t, func() bool { return p.try(cycle).Error == "" }, "the device is served")
			require.Equal(t, control.GPUServed, m.description().GPU.State)
			require.EqualValues(t, 1, m.attach().hello.DeviceCount)
		})
	}
}

// Every reason has the driver's own words and something to do; what is emulated says so. Field report F9.
func TestDoctorSaysWhyADeviceIsNotServed(t *testing.T) {
	needsEmulation(t)
	type finding struct{ Check, State, Found, Do string }
	for _, c := range []struct {
		setting, state string
		words          []string
	}{
		{"CUDAEMU_DEVICES=2", "ok", []string{"device 1: Callboard emulated GPU 1, GPU-", "another process opened its memory"}},
		{"CALLBOARD_CUDA_LIBRARY=/nonexistent/libcuda.so.1", "ok", []string{"no driver", "/nonexistent/libcuda.so.1: cannot open shared object file", "only host memory is served"}},
		{"CUDAEMU_NO_DEVICE=1", "warn", []string{"no device: cuInit: CUDA_ERROR_NO_DEVICE (100)", "CUDA_VISIBLE_DEVICES"}},
		{"CUDAEMU_STUB=1", "warn", []string{"stub library: cuInit: CUDA_ERROR_STUB_LIBRARY (34)", "library path"}},
		{"CUDAEMU_FAIL=cuInit:0:803", "warn", []string{"driver mismatch: cuInit: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803)", "reboot"}},
		{"CUDAEMU_ATTRIBUTE=18:1", "warn", []string{"integrated device", "Tegra"}},
		{"CUDAEMU_ATTRIBUTE=20:3", "warn", []string{"exclusive compute mode", "nvidia-smi -c DEFAULT"}},
		{"CUDAEMU_ATTRIBUTE=125:0", "warn", []string{"no interprocess events", "update"}},
		{"CUDAEMU_ATTRIBUTE=125:none", "ok", []string{"old driver", "another process opened its memory"}},
		{"CUDAEMU_PIDNS=1", "warn", []string{"self-test failed: pid namespaces", "the child, opening the memory", "CUDA_ERROR_INVALID_CONTEXT (201)", "--pid=host"}},
		{"CUDAEMU_FAIL=cuIpcGetMemHandle:0:801", "warn", []string{"self-test failed", "exporting", "CUDA_ERROR_NOT_SUPPORTED (801)", "WSL2, MIG"}},
		{"CUDAEMU_FAIL=cuIpcOpenEventHandle:0:801", "warn", []string{"self-test failed", "the child, opening the event", "CUDA_ERROR_NOT_SUPPORTED"}},
		{"CUDAEMU_STALL_EVENTS=0", "ok", []string{"another process opened its memory"}},
	} {
		command := exec.Command(harness.Binary(t), "doctor", "--json", "--stage", "nobody-at-all")
		command.Env = append(command.Environ(), "CALLBOARD_CUDA_LIBRARY="+driver.library, "XDG_RUNTIME_DIR="+t.TempDir(), c.setting)
		out, err := command.Output()
		require.NoError(t, err, "a machine without a device is in order: %s", out)
		var findings []finding
		require.NoError(t, json.Unmarshal(out, &findings))
		var said, states []string
		for _, f := range findings {
			if strings.HasPrefix(f.Check, "GPU") {
				said = append(said, f.Found+"\n"+f.Do)
				states = append(states, f.State)
			}
		}
		text := strings.Join(said, "\n")
		for _, word := range c.words {
			require.Contains(t, text, word, c.setting)
		}
		require.Contains(t, states, c.state, "%s: %s", c.setting, text)
		if strings.Contains(text, "GPU driver") || strings.Contains(text, "Callboard emulated") {
			require.Contains(t, text, "emulated, CUDA", c.setting)
		}
	}
}

// Rule B3: attributes remember their device by its number, which is the same device's for the stage's life, whatever the
// next broker serves of them. What lies on one that is not served now is refused by name.
func TestDevicesKeepTheirNumbersFromBrokerToBroker(t *testing.T) {
	needsEmulation(t)
	m := startWith(t, []string{"CUDAEMU_DEVICES=2"}, nil, "--gpu", "required")
	p := m.client("producer")
	ordinal := 0
	cycle := func(name, device string) order {
		ordinal++
		return order{Do: "cycle", Name: name, Prims: prims(2), Bytes: rowBytes, Device: device, Ordinal: uint64(ordinal), Value: ordinal, Count: 1, Sync: "stream"}
	}
	p.do(cycle("d0", "cuda:0"))
	p.do(cycle("d1", "cuda:1"))

	m.Kill9()
	m.Restart("--gpu", "required,1")
	eventually(t, func() bool { return p.try(cycle("d1", "")).Error == "" }, "device 1 is served")
	require.Equal(t, "cuda:1", p.do(order{Do: "read", Name: "d1", Prims: prims(2)}).Device)
	require.EqualValues(t, 1, m.gpu().ID)
	for _, device := range []string{"", "cuda:0"} {
		p.refused(cycle("d0", device), "NOT_SUPPORTED", "device 0, GPU-", "is not served now: ")
	}
	w := m.attach()
	reply := w.ask(protocol.DeviceInfo, 0, 0)
	require.Equal(t, protocol.StatusNotFound, protocol.Status(reply.Status))
	require.NotZero(t, reply.Uuid, "which it is")
	one := w.ask(protocol.DeviceInfo, 1, 0)
	require.Equal(t, protocol.StatusOK, protocol.Status(one.Status))
	end := w.ask(protocol.DeviceInfo, 2, 0)
	require.Equal(t, protocol.StatusNotFound, protocol.Status(end.Status))
	require.Zero(t, end.Uuid)
	w.leave()

	m.Restart("--takeover", "--gpu", "required,1,0")
	for _, device := range []string{"cuda:0", "cuda:1"} {
		name := "d" + device[5:]
		eventually(t, func() bool { return p.try(cycle(name, device)).Error == "" }, "all are served")
		require.Equal(t, device, p.do(order{Do: "read", Name: name, Prims: prims(2)}).Device)
	}
	w = m.attach()
	require.Equal(t, reply.Uuid, w.ask(protocol.DeviceInfo, 0, 0).Uuid)
	require.Equal(t, one.Uuid, w.ask(protocol.DeviceInfo, 1, 0).Uuid)
	w.leave()
}
