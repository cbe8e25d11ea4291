package cudaemu

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReportSaysWhatEachProcessHolds(t *testing.T) {
	onMachines(t, func(t *testing.T, m machine) {
		none, err := Report(m.dir)
		require.NoError(t, err)
		require.Empty(t, none)

		broker, producer := shares(m, m)
		producer.does("host memory 4096")
		producer.ok("cuMemHostRegister_v2 memory 4096 0")
		processes, err := Report(m.dir)
		require.NoError(t, err)
		require.ElementsMatch(t, []Process{
			{PID: broker.command.Process.Pid, Alive: true, Counts: Counts{Contexts: 1, Allocations: 1, Bytes: block, Events: 1}},
			{PID: producer.command.Process.Pid, Alive: true,
				Counts: Counts{Contexts: 1, Imports: 1, ImportedEvents: 1, Streams: 1, Registered: 1}},
		}, processes)

		producer.kill()
		processes, err = Report(m.dir)
		require.NoError(t, err)
		for _, process := range processes {
			if process.PID == producer.command.Process.Pid {
				require.False(t, process.Alive)
				require.Equal(t, uint64(1), process.Counts.Imports, "what it had when it died can still be seen")
				require.Equal(t, Counts{}, process.Held())
			}
		}
		require.Equal(t, Counts{Contexts: 1, Allocations: 1, Bytes: block, Events: 1}, Held(processes))

		broker.ok("cuEventDestroy_v2 e", "cuMemFree_v2 a", "cuDevicePrimaryCtxRelease_v2 0")
		require.Equal(t, Counts{}, m.held(), "a process that lives and gave all back")
		broker.leaves()
		require.Equal(t, Counts{}, m.held())
	})
}

func TestReportRefusesWhatItDoesNotKnow(t *testing.T) {
	for name, content := range map[string]string{
		"process-x":  "",
		"process-12": "short",
		"process-13": string(make([]byte, 7)) + "x" + string(make([]byte, 136)),
	} {
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
		_, err := Report(dir)
		require.ErrorContains(t, err, name)
	}
}
