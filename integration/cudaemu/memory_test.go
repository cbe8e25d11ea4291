package cudaemu

import (
	"fmt"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

const block = 2 << 20

func TestDeviceMemoryCannotBeTouchedByTheHost(t *testing.T) {
	onMachines(t, func(t *testing.T, m machine) {
		p := m.gpu()
		p.ok("cuMemAlloc_v2 &a 100", "cuMemsetD8Async a 7 100 0", "cuCtxSynchronize")
		p.holds("a", 7, 100)
		p.diesBy(syscall.SIGSEGV, "peek a")
	})
}

// Allocations are whole blocks of 2 MiB, and new memory is not zero.
func TestAllocationsAreWholeBlocks(t *testing.T) {
	onMachines(t, func(t *testing.T, m machine) {
		p := m.gpu()
		p.wants(1, "cuMemAlloc_v2 &a 0")
		p.ok("cuMemAlloc_v2 &a 1", "cuMemAlloc_v2 &b 2097153", "cuMemGetAddressRange_v2 &base &size b+3000000")
		require.Equal(t, p.number("b"), p.number("base"))
		require.Equal(t, uint64(2*block), p.number("size"))
		require.Zero(t, p.number("a")%block)
		require.Zero(t, p.number("b")%block)
		require.NotEqual(t, "0", p.differing("a", 0, block))
		p.wants(1, "cuMemGetAddressRange_v2 &base &size 4096")

		p.ok("cuPointerGetAttribute &v 2 b+5")
		require.Equal(t, uint64(2), p.number("v"), "memory of a device")
		p.ok("cuPointerGetAttribute &v 11 b+5")
		require.Equal(t, p.number("b"), p.number("v"))
		p.wants(1, "cuPointerGetAttribute &v 4 b")

		p.wants(1, "cuMemFree_v2 b+1")
		p.ok("cuMemFree_v2 b")
		p.wants(1, "cuMemFree_v2 b")
		p.ok("cuMemFree_v2 a")
		p.leaves()
	})
}

// Code 700 is sticky: the context is lost, what was queued behind vanishes, and the process has to be started anew.
func TestIllegalAddressLosesTheContext(t *testing.T) {
	onMachines(t, func(t *testing.T, m machine) {
		for _, bad := range []string{
			"cuMemcpyDtoDAsync_v2 a+2097052 b 101 s", // one byte too many
			"cuMemcpyDtoDAsync_v2 a b+2097152 1 s",   // behind the end
			"cuMemsetD8Async freed 0 1 s",
			"cuMemsetD32Async 4096 0 1 s",
			"cuMemcpyHtoDAsync_v2 4096 h 8 s",
		} {
			p := m.gpu()
			p.does("host h 4096")
			p.ok("cuMemAlloc_v2 &a 1", "cuMemAlloc_v2 &b 1", "cuMemAlloc_v2 &freed 1", "cuMemFree_v2 freed",
				"cuStreamCreate &s 1", "cuEventCreate &e 2", "cuLaunchHostFunc s @gate 0")
			p.ok(bad, "cuEventRecord e s") // at the call nothing is known
			p.wants(600, "cuEventQuery e")
			p.does("open")
			p.becomes(700, "cuStreamQuery s")
			p.wants(700, "cuEventQuery e")
			p.wants(700, "cuEventSynchronize e")
			p.wants(700, "cuStreamSynchronize s")
			p.wants(700, "cuMemAlloc_v2 &c 1")
			p.wants(700, "cuCtxSynchronize")
			p.wants(700, "cuMemFree_v2 a")
			p.leaves()
		}
	})
}

func TestCopiesOfRows(t *testing.T) {
	onMachines(t, func(t *testing.T, m machine) {
		p := m.gpu()
		p.does("host h 4096", "fill h 1 100", "fill h+100 2 100", "fill h+200 3 100")
		p.ok("cuMemAlloc_v2 &a 4096", "cuMemsetD8Async a 9 4096 0")
		// Rows 1 and 2 of 3, bytes 50 to 99, to rows 0 and 1 of a device with a pitch of 256, at byte 4.
		p.does("pack copy 50 1 1 h 0 0 100 4 0 2 0 a 0 256 50 2")
		p.ok("cuMemcpy2DAsync_v2 &copy 0", "cuCtxSynchronize")
		p.holds("a", 9, 4)
		p.holds("a+4", 2, 50)
		p.holds("a+54", 9, 206)
		p.holds("a+260", 3, 50)
		p.holds("a+310", 9, 100)
		// And back, to pageable memory: it is there when the call returns.
		p.does("host back 4096", "pack copy 4 1 2 0 a 0 256 0 0 1 back 0 0 50 50 1")
		p.ok("cuMemcpy2DAsync_v2 &copy 0")
		require.Equal(t, "0", p.ask("differ back 3 50"))
		require.Equal(t, "0", p.ask("differ back+50 0 100"))

		p.does("pack copy 0 0 2 0 a 0 49 0 0 1 back 0 0 50 50 2")
		p.wants(1, "cuMemcpy2DAsync_v2 &copy 0") // a pitch that does not hold the row
		p.does("pack copy 0 0 3 0 a 0 50 0 0 1 back 0 0 50 50 2")
		p.wants(801, "cuMemcpy2DAsync_v2 &copy 0") // arrays
		p.does("pack copy 0 0 2 0 a 0 1000000 0 0 1 back 0 0 50 50 4")
		p.wants(700, "cuMemcpy2DAsync_v2 &copy 0") // its last row is beyond the block
		p.leaves()
	})
}

// Pitches that a device may refuse: odd ones between two places of a device's, and those beyond its attribute.
func TestPitchesThatAreRefused(t *testing.T) {
	onMachines(t, func(t *testing.T, m machine) {
		m.env = append(m.env, "CUDAEMU_PITCH=512", "CUDAEMU_ATTRIBUTE=11:4096")
		p := m.gpu()
		p.does("host h 4096")
		p.ok("cuMemAlloc_v2 &a 65536")
		for _, c := range []struct {
			code int
			copy string
		}{
			{1, "0 0 2 0 a 0 12 0 0 2 0 a+1024 0 512 4 2"},
			{1, "0 0 2 0 a 0 512 0 0 2 0 a+2048 0 12 4 2"},
			{0, "0 0 2 0 a 0 512 0 0 2 0 a+2048 0 1024 4 2"},
			{0, "0 0 2 0 a 0 12 0 0 2 0 a+1024 0 12 4 1"}, // one row
			{0, "0 0 1 h 0 0 12 0 0 2 0 a 0 12 4 2"},      // from the host
			{1, "0 0 2 0 a 0 4608 0 0 2 0 a+32768 0 512 4 2"},
		} {
			p.does("pack copy " + c.copy)
			p.wants(c.code, "cuMemcpy2DAsync_v2 &copy 0")
		}
		p.ok("cuCtxSynchronize")
		p.leaves()
	})
}

func TestFills(t *testing.T) {
	onMachines(t, func(t *testing.T, m machine) {
		p := m.gpu()
		p.ok("cuMemAlloc_v2 &a 4096", "cuMemsetD32Async a 0x04040404 3 0", "cuMemsetD8Async a+12 0x105 4 0")
		p.holds("a", 4, 12)
		p.holds("a+12", 5, 4)
		p.wants(1, "cuMemsetD32Async a+2 0 1 0")
		p.ok("cuMemsetD8Async a 0 0 0", "cuMemcpyDtoDAsync_v2 a 0 0 0") // nothing, from nowhere
		p.holds("a", 4, 12)
		p.leaves()
	})
}

// Field report F12. Registered memory is read when the copy runs, pageable memory when it is called.
func TestPageableMemoryIsStagedAndRegisteredIsNot(t *testing.T) {
	onMachines(t, func(t *testing.T, m machine) {
		p := m.gpu()
		p.does("host pinned 8192", "host pageable 4096", "fill pinned 1 8192", "fill pageable 1 4096")
		p.ok("cuMemAlloc_v2 &a 4096", "cuMemAlloc_v2 &b 4096", "cuStreamCreate &s 1", "cuMemHostRegister_v2 pinned 8192 0",
			"cuLaunchHostFunc s @gate 0", "cuMemcpyHtoDAsync_v2 a pinned 4096 s", "cuMemcpyHtoDAsync_v2 b pageable 4096 s",
			"cuMemcpyDtoHAsync_v2 pinned+4096 a 4096 s")
		p.does("fill pinned 2 4096", "fill pageable 2 4096")
		require.Equal(t, "0", p.ask("differ pinned+4096 1 4096")) // the copy to it has not run
		p.does("open")
		p.ok("cuStreamSynchronize s")
		p.holds("a", 2, 4096)
		p.holds("b", 1, 4096)
		require.Equal(t, "0", p.ask("differ pinned+4096 2 4096"))
	})
}

func TestRegistration(t *testing.T) {
	onMachines(t, func(t *testing.T, m machine) {
		p := m.gpu()
		p.does("host h 16384")
		p.ok("cuMemAlloc_v2 &a 4096")
		p.wants(1, "cuMemHostRegister_v2 0 4096 0")
		p.wants(1, "cuMemHostRegister_v2 h 0 0")
		p.wants(1, "cuMemHostRegister_v2 4096 4096 0") // nothing is mapped there
		p.wants(1, "cuMemHostRegister_v2 h 4096 64")
		p.wants(1, "cuMemHostGetDevicePointer_v2 &d h 0")
		p.ok("cuMemHostRegister_v2 h+4096 8192 3")
		p.wants(712, "cuMemHostRegister_v2 h 4097 0")
		p.wants(712, "cuMemHostRegister_v2 h+8192 4 0")
		p.wants(1, "cuMemcpyHtoDAsync_v2 a h+4000 200 0") // half registered
		p.ok("cuMemHostGetDevicePointer_v2 &d h+5000 0", "cuPointerGetAttribute &v 2 d")
		require.Equal(t, p.number("h")+5000, p.number("d"))
		require.Equal(t, uint64(1), p.number("v"), "host memory")
		p.ok("cuMemsetD8Async d 8 10 0", "cuCtxSynchronize")
		require.Equal(t, "0", p.ask("differ h+5000 8 10"))
		require.Equal(t, uint64(1), m.held().Registered)
		p.wants(713, "cuMemHostUnregister h+4097")
		p.ok("cuMemHostUnregister h+4096")
		p.wants(713, "cuMemHostUnregister h+4096")
		require.Zero(t, m.held().Registered)
		p.leaves()
	})
}

// One budget for all processes of a machine, each device its own.
func TestMemoryIsSharedByProcessesAndRunsOut(t *testing.T) {
	onMachines(t, func(t *testing.T, m machine) {
		m = m.with("CUDAEMU_DEVICES=2", "CUDAEMU_MEMORY="+strconv.Itoa(4*block))
		p, q := m.gpu(), m.gpu()
		p.ok("cuDeviceTotalMem_v2 &n 0", "cuMemAlloc_v2 &a 4194304")
		require.Equal(t, uint64(4*block), p.number("n"))
		q.ok("cuMemAlloc_v2 &a 1", "cuMemGetInfo_v2 &free &total")
		require.Equal(t, uint64(block), q.number("free"))
		require.Equal(t, uint64(4*block), q.number("total"))
		q.wants(2, fmt.Sprint("cuMemAlloc_v2 &b ", block+1))
		q.ok("cuMemAlloc_v2 &b 1")
		q.wants(2, "cuMemAlloc_v2 &c 1")
		q.ok("cuDevicePrimaryCtxRetain &ctx 1", "cuCtxPushCurrent_v2 ctx", "cuMemAlloc_v2 &other 1", "cuCtxPopCurrent_v2 0")
		q.ok("cuMemFree_v2 b", "cuMemAlloc_v2 &b 1")
		p.kill() // the kernel gives back what it had
		q.ok("cuMemAlloc_v2 &c 4194304")
		q.wants(2, "cuMemAlloc_v2 &d 1")
	})
}

func TestInjectedFailures(t *testing.T) {
	onMachines(t, func(t *testing.T, m machine) {
		p := m.with("CUDAEMU_FAIL=cuMemAlloc:2:2;cuEventRecord:0:400;cuIpcGetMemHandle:1:999").gpu()
		p.ok("cuMemAlloc_v2 &a 1")
		p.wants(2, "cuMemAlloc_v2 &b 1")
		p.ok("cuMemAlloc_v2 &b 1", "cuEventCreate &e 2")
		p.wants(400, "cuEventRecord e 0")
		p.wants(400, "cuEventRecord e 0")
		p.wants(999, "cuIpcGetMemHandle &h a")
		p.ok("cuIpcGetMemHandle &h a")
		require.Equal(t, Counts{Contexts: 1, Allocations: 2, Bytes: 2 * block, Events: 1}, m.held())

		p = m.with("CUDAEMU_FAIL=cuInit:1:803").start()
		p.wants(803, "cuInit 0")
		p.ok("cuInit 0")

		p = m.with("CUDAEMU_FAIL=cuStreamQuery:1:719").gpu()
		p.wants(719, "cuStreamQuery 0")
		p.wants(719, "cuStreamQuery 0") // the context is lost
		p.wants(719, "cuMemAlloc_v2 &a 1")
	})
}
