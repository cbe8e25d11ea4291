package integration

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"callboard/integration/harness"
)

var (
	stressFor  = flag.Duration("stress", 0, "run the stress so long, and ask for the full rates; 0: the short form")
	injectTear = flag.Bool("inject-tear", false, "run the stress against a broker that reuses pinned blocks: it must report tears")
)

// What the full form asks for.
const (
	commitsPerSecond    = 1000
	snapshotsPerReader  = 10000
	stressReaders       = 4
	fullFrom            = 30 * time.Second
	shortForm, briefest = 6 * time.Second, 2 * time.Second
)

// stressResult adds up what all processes report.
type stressResult struct {
	commits, adopted uint64
	rate             float64
	readers          []readerReport
	torn, mixed      uint64
	refused          uint64 // reads and writes
	first            string // of those three
}

// Two producers commit as fast as they can, one by filling its columns in place, one by
// writing subsets of rows; four readers check every row of every snapshot. What a row
// must hold follows from its ordinal alone, so a single stale or foreign byte shows.
// behaviour 146; field reports E1, E5; rules V1-V4, S4, V9.
func TestStress(t *testing.T) {
	limit := shortForm
	if testing.Short() {
		limit = briefest
	}
	if *stressFor > 0 {
		limit = *stressFor
	}
	r := stress(t, limit, func(s *stage) (readers []*harness.Process) {
		for range stressReaders {
			readers = append(readers, spawn(t, "stress-reader", readerOrder{}, s.Env()))
		}
		return readers
	})
	if *injectTear {
		require.Positive(t, r.torn, "pinned blocks were used anew and nobody noticed")
		t.Logf("--inject-tear reports %d torn rows, as it must; the first trouble: %s", r.torn, r.first)
		return
	}
	r.requireWhole(t)
	if limit < fullFrom {
		return
	}
	require.GreaterOrEqual(t, r.rate, float64(commitsPerSecond), "commits/s")
	for i, reader := range r.readers {
		require.GreaterOrEqual(t, reader.Snapshots, uint64(snapshotsPerReader), "snapshots of reader %d", i)
	}
}

// requireWhole wants that nothing went wrong, and that something happened at all.
func (r *stressResult) requireWhole(t *testing.T) {
	t.Helper()
	require.Zero(t, r.torn, "torn rows; the first trouble: %s", r.first)
	require.Zero(t, r.mixed, "mixed ticks; the first trouble: %s", r.first)
	require.Zero(t, r.refused, "refused reads and writes; the first trouble: %s", r.first)
	require.Positive(t, r.adopted, "the adopting producer never adopted")
	for _, reader := range r.readers {
		require.Positive(t, reader.Snapshots)
		require.Positive(t, reader.Held, "no snapshot was held over later commits")
	}
}

// A test that cannot fail is a defect: against a broker that ignores pins, the same
// stress finds torn rows, in each language. It runs in a process of its own, since that one builds
// another broker.
func TestStressReportsInjectedTears(t *testing.T) {
	if testing.Short() || *injectTear {
		t.Log("left out of the short form: it builds another broker")
		return
	}
	for _, name := range []string{"TestStress", "TestStressReadersOfEveryLanguage"} {
		t.Run(name, func(t *testing.T) {
			if name != "TestStress" {
				python(t)
			}
			command := exec.Command(os.Args[0], "-test.run=^"+name+"$", "-test.v", "-inject-tear", "-stress="+briefest.String())
			command.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, harness.BinaryEnv+"=") })
			out, err := command.CombinedOutput()
			require.NoError(t, err, "%s", out)
			require.Contains(t, string(out), "--inject-tear reports")
		})
	}
}

// stress runs the processes: two producers, and the readers that start gives.
func stress(t *testing.T, limit time.Duration, start func(*stage) []*harness.Process) (r stressResult) {
	t.Helper()
	s := startStage(t, "--memory", "256MiB", "--retain", "2")
	adopting := spawn(t, "adopting-producer", nil, s.Env())
	scattering := spawn(t, "scattering-producer", nil, s.Env())
	expect(t, adopting, "ready")
	expect(t, scattering, "ready")
	readers := start(s)
	for _, reader := range readers {
		expect(t, reader, "ready")
	}
	began, before := time.Now(), s.describe(t)
	time.Sleep(limit)
	after := s.describe(t)
	r.rate = float64(after.Epoch-before.Epoch) / time.Since(began).Seconds()
	for _, reader := range readers {
		reader.Tell("stop")
	}
	for _, reader := range readers {
		var got readerReport
		reader.Hear(4*soon, &got) // it may have snapshots to take yet
		reader.Done()
		r.readers = append(r.readers, got)
		r.torn, r.mixed, r.refused = r.torn+got.Torn, r.mixed+got.Mixed, r.refused+got.Refused
		r.first = cmp.Or(r.first, got.First)
	}
	for _, producer := range []*harness.Process{adopting, scattering} {
		producer.Tell("stop")
		var got producerReport
		producer.Hear(soon, &got)
		producer.Done()
		r.commits, r.adopted, r.refused = r.commits+got.Commits, r.adopted+got.Adopted, r.refused+got.Refused+got.Restarted
		r.first = cmp.Or(r.first, got.First)
	}
	// With everybody gone, nothing stays pinned.
	s.eventually(t, soon, "clients stay", func(d description) bool { return len(d.Clients) == 0 })
	text := fmt.Sprintf("%d commits, %.0f/s; %d adopted; torn rows %d, mixed ticks %d, refused %d; snapshots", r.commits, r.rate, r.adopted, r.torn, r.mixed, r.refused)
	for _, reader := range r.readers {
		text += fmt.Sprintf(" %d (%d held)", reader.Snapshots, reader.Held)
	}
	t.Log(text)
	s.stop(t)
	return r
}
