package cudaemu

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// shares gives two processes: the first made memory a and event e, the second opened both and has a stream s that is
// held back by a gate.
func shares(m machine, second machine) (broker, producer *process) {
	m.t.Helper()
	broker, producer = exports(m), second.gpu()
	broker.ok("cuEventCreate &e 6", "cuIpcGetEventHandle &f e")
	broker.gives(producer, "h")
	broker.gives(producer, "f")
	producer.ok("cuIpcOpenMemHandle_v2 &a =h 1", "cuIpcOpenEventHandle &e =f", "cuStreamCreate &s 1")
	return broker, producer
}

func TestEventFlags(t *testing.T) {
	onMachines(t, func(t *testing.T, m machine) {
		p := m.gpu()
		p.wants(1, "cuEventCreate &e 4") // INTERPROCESS needs DISABLE_TIMING
		p.wants(1, "cuEventCreate &e 8")
		p.ok("cuEventCreate &e 7", "cuEventCreate &own 2")
		p.wants(400, "cuIpcGetEventHandle &f own")
		p.wants(1, "cuStreamWaitEvent 0 e 1")
		p.wants(400, "cuEventQuery 12345")
		p.ok("cuEventDestroy_v2 e")
		p.wants(400, "cuEventDestroy_v2 e")
		p.wants(400, "cuEventRecord e 0")
		p.leaves()
	})
}

// An event that was never recorded is complete, and a wait for it is none.
func TestEventBeforeItsFirstRecord(t *testing.T) {
	onMachines(t, func(t *testing.T, m machine) {
		broker, producer := shares(m, m)
		broker.ok("cuEventQuery e", "cuEventSynchronize e", "cuStreamWaitEvent 0 e 0", "cuCtxSynchronize")
		producer.ok("cuEventQuery e", "cuEventSynchronize e", "cuStreamWaitEvent s e 0", "cuStreamSynchronize s")
	})
}

// The producer records, the broker waits on its stream: field report F1.
func TestWaitInAnotherProcess(t *testing.T) {
	onMachines(t, func(t *testing.T, m machine) {
		broker, producer := shares(m, m)
		producer.ok("cuLaunchHostFunc s @gate 0", "cuMemsetD8Async a 2 4096 s", "cuEventRecord e s")
		producer.wants(600, "cuEventQuery e")
		broker.wants(600, "cuEventQuery e")
		broker.ok("cuMemAlloc_v2 &b 4096", "cuStreamCreate &s 1", "cuStreamWaitEvent s e 0", "cuMemcpyDtoDAsync_v2 b a 4096 s")
		broker.wants(600, "cuStreamQuery s")
		producer.does("open")
		broker.ok("cuStreamSynchronize s", "cuEventQuery e", "cuEventSynchronize e")
		producer.ok("cuEventQuery e", "cuEventSynchronize e")
		broker.holds("b", 2, 4096)
	})
}

// The same without the wait: the bytes are the old ones. The delay is so long that they cannot be others.
func TestMissingWaitShowsAsWrongBytes(t *testing.T) {
	onMachines(t, func(t *testing.T, m machine) {
		broker, producer := shares(m, m.with("CUDAEMU_DELAY_US=3600000000"))
		producer.ok("cuMemsetD8Async a 2 4096 s", "cuEventRecord e s")
		broker.ok("cuMemAlloc_v2 &b 4096", "cuMemcpyDtoDAsync_v2 b a 4096 0")
		require.Equal(t, "4096", broker.differing("b", 2, 4096))
		broker.holds("b", 1, 4096)
		broker.wants(600, "cuEventQuery e")

		other := m.with("CUDAEMU_DELAY_US=20000").gpu() // with the wait any delay is right
		broker.gives(other, "h")
		broker.ok("cuEventCreate &g 6", "cuIpcGetEventHandle &k g")
		broker.gives(other, "k")
		other.ok("cuIpcOpenMemHandle_v2 &a =h 1", "cuIpcOpenEventHandle &g =k", "cuMemsetD8Async a 3 4096 0", "cuEventRecord g 0")
		broker.ok("cuStreamWaitEvent 0 g 0", "cuMemcpyDtoDAsync_v2 b a 4096 0")
		broker.holds("b", 3, 4096)
	})
}

// A wait is for the latest record at the time of the call, not for later ones.
func TestWaitIsForTheRecordBeforeIt(t *testing.T) {
	onMachines(t, func(t *testing.T, m machine) {
		broker, producer := shares(m, m)
		broker.ok("cuStreamCreate &early 1", "cuStreamCreate &late 1")
		producer.ok("cuEventRecord e s", "cuStreamSynchronize s")
		broker.ok("cuStreamWaitEvent early e 0")
		producer.ok("cuLaunchHostFunc s @gate 0", "cuEventRecord e s")
		broker.ok("cuStreamWaitEvent late e 0", "cuStreamSynchronize early")
		broker.wants(600, "cuStreamQuery late")
		// And a later record that is reached first does not satisfy a wait for an earlier one.
		producer.ok("cuStreamCreate &r 1", "cuEventRecord e r", "cuStreamSynchronize r", "cuEventQuery e")
		broker.ok("cuEventQuery e")
		broker.wants(600, "cuStreamQuery late")
		producer.does("open")
		broker.ok("cuStreamSynchronize late")
	})
}

// Either process may record an event, whoever made it.
func TestExporterRecordsForTheImporter(t *testing.T) {
	onMachines(t, func(t *testing.T, m machine) {
		broker, reader := shares(m, m)
		broker.ok("cuLaunchHostFunc 0 @gate 0", "cuMemsetD8Async a 5 4096 0", "cuEventRecord e 0")
		reader.ok("cuStreamWaitEvent s e 0", "cuLaunchHostFunc s @count 0")
		reader.wants(600, "cuEventQuery e")
		require.Equal(t, "0", reader.ask("counted"))
		broker.does("open")
		reader.ok("cuStreamSynchronize s")
		require.Equal(t, "1", reader.ask("counted"))
		reader.holds("a", 5, 4096)
	})
}

// NVIDIA/nccl#585 has the same shape: what a killed process had queued vanishes, and a wait for it is for ever.
func TestKilledRecorderNeverCompletes(t *testing.T) {
	onMachines(t, func(t *testing.T, m machine) {
		broker, producer := shares(m, m)
		producer.ok("cuLaunchHostFunc s @gate 0", "cuMemsetD8Async a 2 4096 s", "cuEventRecord e s")
		broker.ok("cuStreamCreate &s 1", "cuStreamWaitEvent s e 0")
		producer.kill()
		broker.wants(600, "cuEventQuery e")
		broker.wants(600, "cuStreamQuery s")
		broker.holds("a", 1, 4096)
		broker.ok("cuEventRecord e 0", "cuEventSynchronize e") // the event itself can be used again
		broker.wants(600, "cuStreamQuery s")
		broker.ok("cuEventDestroy_v2 e", "cuDevicePrimaryCtxRelease_v2 0") // which gives up the wait
		broker.leaves()
	})
}

// A lost context does nothing more: what was queued behind the bad operation vanishes, and another process sees that.
func TestWorkBehindAnIllegalAddressVanishes(t *testing.T) {
	onMachines(t, func(t *testing.T, m machine) {
		broker, producer := shares(m, m)
		producer.ok("cuLaunchHostFunc s @gate 0", "cuMemsetD8Async 4096 0 1 s", "cuMemsetD8Async a 2 4096 s", "cuEventRecord e s",
			"cuLaunchHostFunc s @count 0")
		producer.does("open")
		producer.becomes(700, "cuStreamQuery s")
		producer.wants(700, "cuStreamSynchronize s")
		require.Equal(t, "0", producer.ask("counted"))
		broker.wants(600, "cuEventQuery e")
		broker.holds("a", 1, 4096)
	})
}

// The importer keeps an event whose exporter was killed, as it keeps memory.
func TestKilledExporterLeavesEventsThatWork(t *testing.T) {
	onMachines(t, func(t *testing.T, m machine) {
		broker, producer := shares(m, m)
		broker.kill()
		producer.ok("cuEventQuery e", "cuEventRecord e s", "cuEventSynchronize e", "cuEventDestroy_v2 e")
		producer.wants(1, "cuIpcOpenEventHandle &e =f")
		producer.leaves()
	})
}

// LMCache#3236, #4419: undefined in CUDA, so it ends the process that does it.
func TestUseAfterTheExporterDestroyedItIsATrap(t *testing.T) {
	onMachines(t, func(t *testing.T, m machine) {
		for _, use := range []string{"cuEventQuery e", "cuEventRecord e s", "cuStreamWaitEvent s e 0", "cuEventSynchronize e"} {
			broker, producer := shares(m, m)
			broker.ok("cuEventDestroy_v2 e")
			require.Contains(t, producer.diesBy(syscall.SIGABRT, use), "after its exporter destroyed it")
		}
		broker, producer := shares(m, m)
		broker.ok("cuEventDestroy_v2 e")
		producer.ok("cuEventDestroy_v2 e") // which is no use
		producer.leaves()
	})
}

// What is queued keeps an event that its owner destroyed.
func TestEventDestroyedBeforeItIsComplete(t *testing.T) {
	onMachines(t, func(t *testing.T, m machine) {
		p := m.gpu()
		p.ok("cuStreamCreate &s 1", "cuStreamCreate &r 1", "cuEventCreate &e 2", "cuLaunchHostFunc s @gate 0", "cuEventRecord e s",
			"cuStreamWaitEvent r e 0", "cuLaunchHostFunc r @count 0", "cuEventDestroy_v2 e", "cuStreamDestroy_v2 s")
		require.Equal(t, "0", p.ask("counted"))
		p.does("open")
		p.ok("cuStreamSynchronize r")
		require.Equal(t, "1", p.ask("counted"))
		p.leaves()
	})
}

func TestStalledEvents(t *testing.T) {
	onMachines(t, func(t *testing.T, m machine) {
		broker, producer := shares(m, m.with("CUDAEMU_STALL_EVENTS=1"))
		producer.ok("cuMemsetD8Async a 2 4096 s", "cuEventRecord e s", "cuStreamSynchronize s")
		producer.wants(600, "cuEventQuery e")
		broker.wants(600, "cuEventQuery e")
		broker.holds("a", 2, 4096)
		broker.ok("cuEventRecord e 0", "cuEventSynchronize e") // only the other process's never complete
	})
}

// Field report F11: PyTorch met a limit of about 22000.
func TestInterprocessEventsAreLimited(t *testing.T) {
	onMachines(t, func(t *testing.T, m machine) {
		p := m.gpu()
		for range 22000 {
			p.send("cuEventCreate &e 6")
			require.Equal(t, "0", p.answer("cuEventCreate"))
		}
		p.wants(2, "cuEventCreate &f 6")
		p.ok("cuEventCreate &f 2", "cuEventDestroy_v2 e", "cuEventCreate &f 6")
		require.Equal(t, uint64(22001), m.held().Events)
	})
}
