package cudaemu

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestStreamIsFirstInFirstOut(t *testing.T) {
	onMachines(t, func(t *testing.T, m machine) {
		p := m.with("CUDAEMU_DELAY_US=1000").gpu()
		p.wants(1, "cuStreamCreate &s 2")
		p.ok("cuStreamCreate &s 0", "cuStreamQuery s", "cuMemAlloc_v2 &a 4096", "cuMemAlloc_v2 &b 4096")
		for range 20 {
			p.ok("cuMemsetD8Async a 1 4096 s", "cuMemcpyDtoDAsync_v2 b a 4096 s", "cuMemsetD8Async a 2 4096 s",
				"cuMemcpyDtoDAsync_v2 a b 2048 s")
		}
		p.ok("cuStreamSynchronize s", "cuStreamQuery s")
		p.holds("a", 1, 2048)
		p.holds("a+2048", 2, 2048)
		p.ok("cuStreamDestroy_v2 s")
		p.wants(400, "cuStreamSynchronize s")
		p.wants(400, "cuStreamDestroy_v2 s")
		p.wants(400, "cuStreamDestroy_v2 0")
		p.leaves()
	})
}

// Work that is queued when its stream is destroyed still runs.
func TestDestroyedStreamFinishesItsWork(t *testing.T) {
	onMachines(t, func(t *testing.T, m machine) {
		p := m.gpu()
		p.ok("cuStreamCreate &s 1", "cuMemAlloc_v2 &a 4096", "cuLaunchHostFunc s @gate 0", "cuMemsetD8Async a 7 4096 s",
			"cuStreamDestroy_v2 s")
		p.wants(400, "cuStreamQuery s")
		require.Zero(t, m.held().Streams)
		p.does("open")
		p.ok("cuCtxSynchronize")
		p.holds("a", 7, 4096)
		p.leaves()
	})
}

// CUDAEMU_HOLD: nothing runs while the file is there, and everything does when it is gone.
func TestHeldWorkRunsWhenTheTestLetsItGo(t *testing.T) {
	onMachines(t, func(t *testing.T, m machine) {
		hold := filepath.Join(t.TempDir(), "hold")
		p := m.with("CUDAEMU_HOLD=" + hold).gpu()
		p.ok("cuStreamCreate &s 1", "cuLaunchHostFunc s @count 0", "cuStreamSynchronize s")
		require.Equal(t, "1", p.ask("counted"), "there is no such file yet")
		require.NoError(t, os.WriteFile(hold, nil, 0o600))
		p.ok("cuLaunchHostFunc s @count 0", "cuLaunchHostFunc s @count 0")
		p.wants(600, "cuStreamQuery s")
		require.Equal(t, "1", p.ask("counted"))
		require.NoError(t, os.Remove(hold))
		p.ok("cuStreamSynchronize s")
		require.Equal(t, "3", p.ask("counted"))
		p.leaves()
	})
}

// Streams are not ordered among each other, and the legacy stream, NULL or 1, is with those that block.
func TestLegacyStreamIsOrderedWithBlockingStreams(t *testing.T) {
	onMachines(t, func(t *testing.T, m machine) {
		p := m.gpu()
		p.ok("cuStreamCreate &blocking 0", "cuStreamCreate &another 0", "cuStreamCreate &free 1", "cuLaunchHostFunc blocking @gate 0",
			"cuLaunchHostFunc another @count 0", "cuLaunchHostFunc free @count 0", "cuStreamSynchronize free",
			"cuStreamSynchronize another")
		require.Equal(t, "2", p.ask("counted"), "neither waits for the other stream")
		p.ok("cuLaunchHostFunc 0 @count 0")       // waits for blocking
		p.ok("cuLaunchHostFunc another @count 0") // waits for the legacy stream
		p.ok("cuLaunchHostFunc 2 @count 0")       // the thread's own stream blocks, too
		p.ok("cuLaunchHostFunc free @count 0", "cuStreamSynchronize free")
		for _, stream := range []string{"0", "1", "another", "2"} {
			p.wants(600, "cuStreamQuery "+stream)
		}
		require.Equal(t, "3", p.ask("counted"))
		p.does("open")
		p.ok("cuStreamSynchronize 1", "cuStreamSynchronize another", "cuStreamSynchronize 2")
		require.Equal(t, "6", p.ask("counted"))
		p.leaves()
	})
}

// A synchronous copy runs on the legacy stream, and so after all blocking streams but not the others.
func TestSynchronousCopyWaitsForBlockingStreams(t *testing.T) {
	onMachines(t, func(t *testing.T, m machine) {
		p := m.with("CUDAEMU_DELAY_US=20000").gpu()
		p.ok("cuMemAlloc_v2 &a 4096", "cuStreamCreate &s 0", "cuMemsetD8Async a 1 4096 s", "cuMemsetD8Async a 2 4096 s")
		p.holds("a", 2, 4096)
		p.leaves()
	})
}

// CU_STREAM_PER_THREAD is another stream on another thread.
func TestPerThreadStreams(t *testing.T) {
	onMachines(t, func(t *testing.T, m machine) {
		p := m.gpu()
		p.ok("cuLaunchHostFunc 2 @gate 0")
		p.wants(600, "cuStreamQuery 2")
		require.Equal(t, "201", p.ask("thread cuStreamQuery 2"))
		require.Equal(t, "0", p.ask("thread cuCtxSetCurrent ctx"))
		p.ok("cuStreamQuery 0")
		p.does("open")
		p.ok("cuStreamSynchronize 2")
		require.Zero(t, m.held().Streams, "the driver's own are not the program's")
		p.leaves()
	})
}

// iree-org/iree#15673: a host function must not call CUDA.
func TestHostFunctionMayNotCallTheDriver(t *testing.T) {
	onMachines(t, func(t *testing.T, m machine) {
		p := m.gpu()
		p.ok("cuLaunchHostFunc 0 @query 0", "cuStreamSynchronize 0")
		require.Equal(t, "800", p.ask("queried"))
		p.wants(1, "cuLaunchHostFunc 0 0 0")
		p.leaves()
	})
}

// Freeing memory waits for the work of the context.
func TestFreeWaitsForQueuedWork(t *testing.T) {
	onMachines(t, func(t *testing.T, m machine) {
		p := m.gpu()
		p.ok("cuMemAlloc_v2 &a 4096", "cuStreamCreate &s 1", "cuLaunchHostFunc s @gate 0", "cuMemsetD8Async a 7 4096 s",
			"cuMemcpyDtoDAsync_v2 a+1 a 1 s")
		p.does("open")
		p.ok("cuMemFree_v2 a", "cuStreamQuery s", "cuCtxSynchronize")
		p.leaves()
	})
}

// The Go runtime does not expect its signals on a thread that it did not make, so a stream's thread takes none.
func TestStreamThreadsTakeNoSignals(t *testing.T) {
	onMachines(t, func(t *testing.T, m machine) {
		p := m.gpu()
		tasks := func() []string {
			found, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", p.command.Process.Pid))
			require.NoError(t, err)
			return found
		}
		before := tasks()
		p.ok("cuStreamCreate &s 1", "cuLaunchHostFunc s @count 0", "cuStreamSynchronize s")
		started := slices.DeleteFunc(tasks(), func(task string) bool { return slices.Contains(before, task) })
		require.Len(t, started, 1)
		status, err := os.ReadFile(started[0] + "/status")
		require.NoError(t, err)
		_, after, found := strings.Cut(string(status), "SigBlk:\t")
		require.True(t, found)
		blocked, err := strconv.ParseUint(after[:16], 16, 64)
		require.NoError(t, err)
		const wanted = 1<<31 - 1 - 1<<8 - 1<<18 // signals 1 to 31, but for SIGKILL and SIGSTOP
		require.Equal(t, uint64(wanted), blocked&wanted, "%#x", blocked)
		p.leaves()
	})
}
