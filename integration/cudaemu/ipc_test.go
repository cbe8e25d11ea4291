package cudaemu

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// exports gives a process with a block of memory a, filled with 1, and its handle h.
func exports(m machine) *process {
	m.t.Helper()
	p := m.gpu()
	p.ok("cuMemAlloc_v2 &a 4096", "cuMemsetD8Async a 1 4096 0", "cuCtxSynchronize", "cuIpcGetMemHandle &h a")
	return p
}

// Two processes write and read the same bytes, at addresses of their own.
func TestMemoryBetweenProcesses(t *testing.T) {
	onMachines(t, func(t *testing.T, m machine) {
		p, q := exports(m), m.gpu()
		p.gives(q, "h")
		q.ok("cuIpcOpenMemHandle_v2 &a =h 1")
		require.NotEqual(t, p.number("a"), q.number("a"))
		q.holds("a", 1, 4096)
		q.ok("cuMemsetD8Async a+100 2 10 0", "cuCtxSynchronize")
		p.holds("a", 1, 100)
		p.holds("a+100", 2, 10)
		q.ok("cuMemGetAddressRange_v2 &base &size a+5")
		require.Equal(t, uint64(block), q.number("size")) // all of the block, whatever was asked for
		q.wants(1, "cuMemFree_v2 a")                      // not the importer's to free
		q.wants(1, "cuIpcGetMemHandle &again a")          // nor to pass on
		q.diesBy(syscall.SIGSEGV, "peek a")
	})
}

// cuIpcOpenMemHandle in the exporter gives 201: openucx/ucx#11600. So it does across PID namespaces: ucx#10968.
func TestHandlesThatCannotBeOpened(t *testing.T) {
	onMachines(t, func(t *testing.T, m machine) {
		p, q := exports(m), m.gpu()
		p.ok("cuEventCreate &e 6", "cuIpcGetEventHandle &f e")
		p.wants(201, "cuIpcOpenMemHandle_v2 &b =h 1")
		p.wants(201, "cuIpcOpenEventHandle &g =f")
		p.gives(q, "h")
		p.gives(q, "f")
		q.wants(1, "cuIpcOpenMemHandle_v2 &a =h 0") // flags must be 1
		q.wants(1, "cuIpcOpenMemHandle_v2 &a =f 1") // another kind of handle
		q.wants(1, "cuIpcOpenEventHandle &g =h")
		q.does("read x 00")
		q.wants(1, "cuIpcOpenMemHandle_v2 &a =x 1")
		require.Equal(t, "201", q.ask("thread cuIpcOpenMemHandle_v2 &a =h 1")) // no context
		require.Equal(t, "201", q.ask("thread cuIpcOpenEventHandle &g =f"))

		r := m.with("CUDAEMU_PIDNS=1").gpu()
		p.gives(r, "h")
		p.gives(r, "f")
		r.wants(201, "cuIpcOpenMemHandle_v2 &a =h 1")
		r.wants(201, "cuIpcOpenEventHandle &g =f")

		r = m.with("CUDAEMU_DEVICES=2", "CUDA_VISIBLE_DEVICES=1").gpu() // field report F10
		p.gives(r, "h")
		r.wants(217, "cuIpcOpenMemHandle_v2 &a =h 1")

		p.ok("cuMemFree_v2 a", "cuEventDestroy_v2 e")
		q.wants(1, "cuIpcOpenMemHandle_v2 &a =h 1") // what it names is gone
		q.wants(1, "cuIpcOpenEventHandle &g =f")
		p.ok("cuMemAlloc_v2 &a 4096", "cuEventCreate &e 6") // its descriptor's number is used again
		q.wants(1, "cuIpcOpenMemHandle_v2 &a =h 1")
		q.wants(1, "cuIpcOpenEventHandle &g =f")
		require.Zero(t, m.held().Imports+m.held().ImportedEvents)
		q.leaves()
		p.leaves()
	})
}

// Field report F4: one address for as many opens as there are, gone with the last close.
func TestOpenIsCounted(t *testing.T) {
	onMachines(t, func(t *testing.T, m machine) {
		p, q := exports(m), m.gpu()
		p.gives(q, "h")
		q.ok("cuIpcOpenMemHandle_v2 &a =h 1", "cuIpcOpenMemHandle_v2 &b =h 1")
		require.Equal(t, q.number("a"), q.number("b"))
		require.Equal(t, uint64(1), m.held().Imports)
		q.ok("cuIpcCloseMemHandle a")
		q.holds("a", 1, 4096)
		q.wants(1, "cuIpcCloseMemHandle a+1")
		require.Equal(t, "201", q.ask("thread cuIpcCloseMemHandle a")) // openucx/ucx#10618
		q.ok("cuIpcCloseMemHandle a")
		q.wants(1, "cuIpcCloseMemHandle a")
		require.Zero(t, m.held().Imports)
		q.ok("cuIpcOpenMemHandle_v2 &b =h 1", "cuIpcCloseMemHandle b")
		q.wants(700, "cuMemcpyDtoH_v2 check a 1") // as after a free: nothing is there
		p.ok("cuMemFree_v2 a")                    // nobody has it open, so this is allowed
		p.leaves()
	})
}

// Field report F5: openucx/ucx#11724, numba/numba#3310.
func TestHandleOfAnAddressInsideIsTheHandleOfTheBase(t *testing.T) {
	onMachines(t, func(t *testing.T, m machine) {
		p := exports(m)
		p.ok("cuIpcGetMemHandle &inside a+1000")
		require.Equal(t, p.ask("show h 64"), p.ask("show inside 64"))
		p.wants(1, "cuIpcGetMemHandle &inside a+2097152")
		p.does("host memory 4096")
		p.ok("cuMemHostRegister_v2 memory 4096 0")
		p.wants(1, "cuIpcGetMemHandle &inside memory")
		p.leaves()
	})
}

// Field report F3: undefined in CUDA, so it ends the process that does it.
func TestFreeWhileImportedIsATrap(t *testing.T) {
	onMachines(t, func(t *testing.T, m machine) {
		for _, free := range []string{"cuMemFree_v2 a", "cuDevicePrimaryCtxRelease_v2 0"} {
			p, q := exports(m), m.gpu()
			p.gives(q, "h")
			q.ok("cuIpcOpenMemHandle_v2 &a =h 1")
			said := p.diesBy(syscall.SIGABRT, free)
			require.Contains(t, said, "freed while other processes have it open")
			require.Contains(t, said, fmt.Sprint(" ", q.command.Process.Pid))
			q.holds("a", 1, 4096)
		}
	})
}

// An importer that was killed has closed what it had: nothing is left to wait for.
func TestKilledImporterDoesNotHoldMemory(t *testing.T) {
	onMachines(t, func(t *testing.T, m machine) {
		p, q := exports(m), m.gpu()
		p.gives(q, "h")
		q.ok("cuIpcOpenMemHandle_v2 &a =h 1")
		require.Equal(t, uint64(1), m.held().Imports)
		q.kill()
		require.Zero(t, m.held().Imports)
		p.ok("cuMemFree_v2 a")
		p.leaves()
	})
}

// ROCm/hip#3580: what is open lives on. Whether it opens anew on a real GPU is not known; here it does not.
func TestKilledExporterLeavesImportsThatWork(t *testing.T) {
	onMachines(t, func(t *testing.T, m machine) {
		p, q, late := exports(m), m.gpu(), m.gpu()
		p.gives(q, "h")
		p.gives(late, "h")
		q.ok("cuIpcOpenMemHandle_v2 &a =h 1")
		p.kill()
		q.holds("a", 1, 4096)
		q.ok("cuMemsetD8Async a 3 4096 0", "cuIpcOpenMemHandle_v2 &b =h 1") // it is open already
		q.holds("b", 3, 4096)
		late.wants(1, "cuIpcOpenMemHandle_v2 &a =h 1")
		q.ok("cuIpcCloseMemHandle a", "cuIpcCloseMemHandle a")
		q.wants(1, "cuIpcOpenMemHandle_v2 &a =h 1")
		q.leaves()
	})
}

// rapidsai/rapidsmpf#206 and pytorch/pytorch#15937: opening may take long. The bound is from below, so a slow machine
// does not matter.
func TestSlowOpen(t *testing.T) {
	onMachines(t, func(t *testing.T, m machine) {
		p, q := exports(m), m.with("CUDAEMU_SLOW_OPEN_US=50000").gpu()
		p.ok("cuEventCreate &e 6", "cuIpcGetEventHandle &f e")
		p.gives(q, "h")
		p.gives(q, "f")
		for _, open := range []string{"cuIpcOpenMemHandle_v2 &a =h 1", "cuIpcOpenEventHandle &e =f"} {
			begin := time.Now()
			q.ok(open)
			require.GreaterOrEqual(t, time.Since(begin), 50*time.Millisecond)
		}
		q.leaves()
	})
}
