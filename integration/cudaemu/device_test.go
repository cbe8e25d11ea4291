package cudaemu

import (
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLibraryIsBuiltOnceAndCarriesItsMark(t *testing.T) {
	first := Library(t)
	before, err := os.Stat(first)
	require.NoError(t, err)
	require.Equal(t, Name, filepath.Base(first))
	require.Equal(t, first, Library(t))
	after, err := os.Stat(first)
	require.NoError(t, err)
	require.True(t, os.SameFile(before, after))

	own := t.TempDir()
	path, err := Build(own)
	require.NoError(t, err)
	require.Equal(t, filepath.Join(own, Name), path)
	entries, err := os.ReadDir(own)
	require.NoError(t, err)
	require.Len(t, entries, 1, "Build leaves the library and nothing else")
}

func TestBuildSaysWhatTheCompilerSaid(t *testing.T) {
	t.Setenv("CC", "cc -include no_such_header.h")
	_, err := Build(t.TempDir())
	require.ErrorContains(t, err, "no_such_header.h")
}

// arm64 is what robots have. Any compiler for it will do; aarch64-linux-gnu-gcc is Debian's.
func TestSourcesCompileForArm64(t *testing.T) {
	name := "aarch64-linux-gnu-gcc"
	if _, err := exec.LookPath(name); err != nil {
		if os.Getenv("CALLBOARD_TEST_NO_SKIP") == "1" {
			t.Fatalf("may not be skipped here: %v", err)
		}
		t.Skip(err)
	}
	t.Setenv("CC", name)
	_, err := Build(t.TempDir())
	require.NoError(t, err)
}

func TestProcessWithoutInitIsToldSo(t *testing.T) {
	onMachines(t, func(t *testing.T, m machine) {
		p := m.start()
		require.Equal(t, "1", p.ask("callboard_cudaemu_version")) // by the mark a program knows that there is no GPU
		p.wants(3, "cuDeviceGetCount &n")
		p.wants(3, "cuCtxSetCurrent 0")
		p.ok("cuDriverGetVersion &version")
		require.Equal(t, uint64(12040), p.number("version"))
		p.wants(1, "cuInit 1")
		p.ok("cuGetErrorName 201 &text")
		require.Equal(t, "CUDA_ERROR_INVALID_CONTEXT", p.ask("text text"))
		p.ok("cuGetErrorString 600 &text")
		require.Equal(t, "device not ready", p.ask("text text"))
		p.wants(1, "cuGetErrorName 12345 &text")
		require.Equal(t, "NULL", p.ask("text text"))
		p.leaves()
	})
}

// fork after cuInit is not usable: facts of CUDA, and why Python producers must spawn.
func TestForkedChildHasNoDriver(t *testing.T) {
	onMachines(t, func(t *testing.T, m machine) {
		p := m.gpu()
		require.Equal(t, "3", p.ask("fork cuMemAlloc_v2 &a 100"))
		require.Equal(t, "3", p.ask("fork cuInit 0"))
		p.ok("cuMemAlloc_v2 &a 100")
	})
}

func TestMachinesWithoutAGPU(t *testing.T) {
	onMachines(t, func(t *testing.T, m machine) {
		for setting, code := range map[string]int{
			"CUDAEMU_NO_DEVICE=1":             100,
			"CUDAEMU_DEVICES=0":               100,
			"CUDA_VISIBLE_DEVICES=":           100,
			"CUDA_VISIBLE_DEVICES=-1,0":       100,
			"CUDA_VISIBLE_DEVICES=GPU-abcdef": 100,
			"CUDAEMU_STUB=1":                  34,
		} {
			p := m.with(setting).start()
			p.wants(code, "cuInit 0")
			p.wants(3, "cuDeviceGetCount &n")
			p.leaves()
		}
	})
}

const uuidOf1 = "GPU-ca11b0a2-de70-4000-8000-000000000001"

// Field report F10: ordinals differ between processes, UUIDs do not.
func TestVisibleDevicesAreReorderedAndKeepTheirUUID(t *testing.T) {
	onMachines(t, func(t *testing.T, m machine) {
		for setting, want := range map[string]string{
			"":                                       "01",
			"CUDA_VISIBLE_DEVICES=1,0":               "10",
			"CUDA_VISIBLE_DEVICES=1":                 "1",
			"CUDA_VISIBLE_DEVICES=1, 0,7,0":          "10",
			"CUDA_VISIBLE_DEVICES=0,0,1":             "0",
			"CUDA_VISIBLE_DEVICES=" + uuidOf1 + ",0": "10",
			"CUDA_VISIBLE_DEVICES=GPU-ca11":          "none", // names both
		} {
			p := m.with("CUDAEMU_DEVICES=2", setting).start()
			if want == "none" {
				p.wants(100, "cuInit 0")
				continue
			}
			p.ok("cuInit 0", "cuDeviceGetCount &n")
			require.Equal(t, uint64(len(want)), p.number("n"), setting)
			for ordinal, device := range want {
				at := string(rune('0' + ordinal))
				p.ok("cuDeviceGet &device "+at, "cuDeviceGetName &name 64 device", "cuDeviceGetUuid_v2 &uuid device")
				name, err := hex.DecodeString(p.ask("show name 24"))
				require.NoError(t, err)
				require.Equal(t, "Callboard emulated GPU "+string(device), string(name), setting)
				uuid := strings.ReplaceAll(strings.TrimPrefix(uuidOf1, "GPU-"), "-", "")
				require.Equal(t, uuid[:31]+string(device), p.ask("show uuid 16"), setting)
			}
			p.wants(101, "cuDeviceGet &device "+string(rune('0'+len(want))))
			p.leaves()
		}
	})
}

// Field report F9: what Tegra, old drivers and exclusive mode look like to a probe.
func TestAttributesCanBeChanged(t *testing.T) {
	onMachines(t, func(t *testing.T, m machine) {
		p := m.gpu()
		p.ok("cuDeviceGetAttribute &v 41 0")
		require.Equal(t, uint64(1), p.number("v"), "unified addressing")
		p.ok("cuDeviceGetAttribute &v 125 0")
		require.Equal(t, uint64(1), p.number("v"), "interprocess events")
		p.ok("cuDeviceGetAttribute &v 20 0")
		require.Equal(t, uint64(0), p.number("v"), "compute mode")
		p.wants(1, "cuDeviceGetAttribute &v 100000 0")

		p = m.with("CUDAEMU_ATTRIBUTE=125:0;18:1;20:3;103:none").gpu()
		p.ok("cuDeviceGetAttribute &v 125 0")
		require.Equal(t, uint64(0), p.number("v"))
		p.ok("cuDeviceGetAttribute &v 20 0")
		require.Equal(t, uint64(3), p.number("v"))
		p.wants(1, "cuDeviceGetAttribute &v 103 0")
		p.ok("cuMemAlloc_v2 &a 100", "cuEventCreate &e 6")
		p.wants(801, "cuIpcGetMemHandle &h a")   // an integrated device
		p.wants(801, "cuIpcGetEventHandle &h e") // IPC_EVENT_SUPPORTED is 0
	})
}

// A setting with a slip of the pen would make its test test nothing.
func TestSettingThatCannotBeReadEndsTheProcess(t *testing.T) {
	onMachines(t, func(t *testing.T, m machine) {
		for _, setting := range []string{"CUDAEMU_DELAY_US=fast", "CUDAEMU_DEVICES=9", "CUDAEMU_MEMORY=-1",
			"CUDAEMU_FAIL=cuMemAlloc_v2", "CUDAEMU_FAIL=cuMemAlloc_v2:1:x", "CUDAEMU_FAIL=cuMemAllok:1:2", "CUDAEMU_ATTRIBUTE=125"} {
			name, _, _ := strings.Cut(setting, "=")
			require.Contains(t, m.with(setting).start().diesBy(syscall.SIGABRT, "cuInit 0"), name)
		}
	})
}

// The current context is a thread's: openucx/ucx#9581, minio/warp#499.
func TestContextIsAThreadsOwn(t *testing.T) {
	onMachines(t, func(t *testing.T, m machine) {
		p := m.with("CUDAEMU_DEVICES=2").start()
		p.ok("cuInit 0", "cuDevicePrimaryCtxGetState 0 &flags &active")
		require.Equal(t, uint64(0), p.number("active"))
		p.wants(201, "cuMemAlloc_v2 &a 100")
		p.wants(201, "cuCtxGetDevice &d")
		p.ok("cuDevicePrimaryCtxRetain &ctx 0", "cuDevicePrimaryCtxRetain &again 0", "cuDevicePrimaryCtxRetain &other 1")
		require.Equal(t, p.number("ctx"), p.number("again"))
		p.ok("cuCtxSetCurrent ctx", "cuMemAlloc_v2 &a 100")
		require.Equal(t, "201", p.ask("thread cuMemFree_v2 a"))
		require.Equal(t, "201", p.ask("thread cuStreamSynchronize 0"))

		p.ok("cuCtxPushCurrent_v2 other", "cuCtxGetDevice &d")
		require.Equal(t, uint64(1), p.number("d"))
		p.ok("cuCtxPopCurrent_v2 &popped", "cuCtxGetCurrent &now")
		require.Equal(t, p.number("other"), p.number("popped"))
		require.Equal(t, p.number("ctx"), p.number("now"))
		p.ok("cuCtxSetCurrent 0", "cuCtxGetCurrent &now")
		require.Equal(t, uint64(0), p.number("now"))
		p.wants(201, "cuCtxPopCurrent_v2 &popped")
		p.wants(201, "cuCtxSetCurrent 12345")
		p.leaves()
	})
}

// The last release ends the context and all in it.
func TestContextEndsWithItsLastRelease(t *testing.T) {
	onMachines(t, func(t *testing.T, m machine) {
		p := m.gpu()
		p.ok("cuDevicePrimaryCtxRetain &ctx 0", "cuMemAlloc_v2 &a 100", "cuStreamCreate &s 1", "cuEventCreate &e 6",
			"cuEventCreate &f 2", "cuMemsetD8Async a 1 100 0", "cuMemsetD8Async a 1 100 2", "cuEventRecord e s")
		p.does("host h 4096")
		p.ok("cuMemHostRegister_v2 h 4096 0", "cuLaunchHostFunc s @gate 0", "cuEventRecord f s")
		p.ok("cuDevicePrimaryCtxRelease_v2 0", "cuMemsetD8Async a 2 100 0")
		require.Equal(t, Counts{Contexts: 1, Allocations: 1, Bytes: 2 << 20, Events: 2, Streams: 1, Registered: 1}, m.held())

		p.does("open") // what runs ends; what is queued behind it vanishes
		p.ok("cuDevicePrimaryCtxRelease_v2 0")
		p.wants(709, "cuMemAlloc_v2 &a 100")
		p.wants(201, "cuDevicePrimaryCtxRelease_v2 0")
		require.Equal(t, Counts{}, m.held())

		p.ok("cuDevicePrimaryCtxRetain &ctx 0") // it comes back, under the same handle, and current where it was
		p.wants(1, "cuMemFree_v2 a")
		p.wants(400, "cuStreamSynchronize s")
		p.wants(400, "cuEventQuery e")
		p.ok("cuMemAlloc_v2 &a 100", "cuMemFree_v2 a", "cuDevicePrimaryCtxRelease_v2 0")
		p.leaves()
	})
}
