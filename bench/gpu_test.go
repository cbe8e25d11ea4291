package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"callboard/cudaipc"
	"callboard/integration/cudaemu"
	"callboard/integration/harness"
)

func TestMain(m *testing.M) {
	if playRole(os.Args[1:]) {
		return
	}
	os.Exit(m.Run())
}

var quickGPU = options{quick: true, only: "gpu", repetitions: 1, rounds: 10, budget: 10 * time.Millisecond}

// printed is what f writes to standard output.
func printed(t *testing.T, f func()) string {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "stdout"))
	require.NoError(t, err)
	defer file.Close()
	before := os.Stdout
	os.Stdout = file
	defer func() { os.Stdout = before }()
	f()
	text, err := os.ReadFile(file.Name())
	require.NoError(t, err)
	return string(text)
}

// The whole way runs on the emulated driver: broker, producers and readers are processes of their own. What it prints is
// one sentence, in which no time is.
func TestTheEmulatedDriverGivesNoFigures(t *testing.T) {
	t.Setenv(cudaipc.LibraryEnv, cudaemu.Library(t))
	t.Setenv("REQUIRE_GPU", "")
	p := programs{callboard: harness.Binary(t)}
	var err error
	text := printed(t, func() { err = measureGPU(quickGPU, p) })
	require.NoError(t, err)
	require.Regexp(t, `^emulated driver: no figures; [0-9]+ rounds ran, and readers in other processes found every one of the [0-9]+ bytes that they checked right\n$`, text)
}

// Every case and size has its samples, and every round was checked.
func TestEveryRoundIsChecked(t *testing.T) {
	t.Setenv(cudaipc.LibraryEnv, cudaemu.Library(t))
	p := programs{callboard: harness.Binary(t)}
	plan := planGPU(true)
	plan.columns = plan.columns[1:]
	s, err := p.runGPU(options{repetitions: 2, rounds: 3}, plan)
	require.NoError(t, err)
	require.Len(t, s.scatter[0], 2)
	for _, runs := range s.scatter[0] {
		require.Len(t, runs, 2, "repetitions")
		for _, run := range runs {
			for _, samples := range [][]float64{run.Whole, run.Commit, run.Copy, run.Runs} {
				require.Len(t, samples, 3)
			}
		}
	}
	for _, runs := range s.latency {
		require.Len(t, runs, 2)
		require.Len(t, runs[0][withEvent], 3)
	}
	column, rounds := int64(4096*256), 1+2*(scatterWarmUp+3)
	handed := int(handovers) * (latencyWarm + 3) // of each size; a MiB is looked at from both ends
	require.Equal(t, tally{2 * (rounds + 2*handed), 2 * (int64(rounds)*column + int64(handed)*2*(64+lookBytes))}, s.tally)
}

// What the driver of the tests takes is no speed: nothing is measured for a file, and none is written.
func TestTheEmulatedDriverWritesNoResults(t *testing.T) {
	t.Setenv(cudaipc.LibraryEnv, cudaemu.Library(t))
	t.Setenv("REQUIRE_GPU", "")
	o := quickGPU
	o.quick, o.name, o.results = false, "x", t.TempDir()
	err := measureGPU(o, programs{})
	require.ErrorContains(t, err, "the driver is emulated")
	files, err := os.ReadDir(o.results)
	require.NoError(t, err)
	require.Empty(t, files)

	t.Setenv("REQUIRE_GPU", "1")
	require.ErrorContains(t, measureGPU(quickGPU, programs{}), "the driver is the emulated one")
}

// Without a driver the other parts go on; who asks for a GPU hears why there is none.
func TestWithoutADriverItSaysWhy(t *testing.T) {
	t.Setenv(cudaipc.LibraryEnv, "/nowhere/libcuda.so.1")
	t.Setenv("REQUIRE_GPU", "")
	all := quickGPU
	all.only = ""
	require.NoError(t, measureGPU(all, programs{}))
	require.ErrorContains(t, measureGPU(quickGPU, programs{}), "/nowhere/libcuda.so.1")
	t.Setenv("REQUIRE_GPU", "1")
	require.ErrorContains(t, measureGPU(all, programs{}), "there is no GPU to measure")
}

func TestSetsOfRowsAreRunsAndHaveNoRowTwice(t *testing.T) {
	for _, c := range slices.Concat(planGPU(false).columns...) {
		require.Zero(t, c.Changed%c.InRuns, "%+v", c)
		require.LessOrEqual(t, c.Changed, c.Rows)
		rows := c.rows(1)
		require.Len(t, rows, c.Changed)
		for i, row := range rows {
			require.Less(t, int(row), c.Rows)
			if i%c.InRuns > 0 {
				require.Equal(t, rows[i-1]+1, row, "%+v", c)
			}
		}
		slices.Sort(rows)
		require.Len(t, slices.Compact(rows), c.Changed, "%+v", c)
		require.NotEqual(t, c.rows(1), c.rows(2))
	}
}

// A repetition during which the device was slower says the same of the ratio.
func TestRatiosOfADeviceAreOfOneRepetition(t *testing.T) {
	run := func(slower float64) scatterRun {
		return scatterRun{Whole: []float64{60 * slower}, Commit: []float64{40 * slower}, Copy: []float64{10 * slower}, Runs: []float64{20 * slower}}
	}
	c := scatterCase{12, 1000, 64, 1}
	require.Equal(t, scatterResult{c, spread{60, 60, 180}, spread{40, 40, 120}, spread{10, 10, 30}, spread{20, 20, 60}, spread{4, 4, 4}, spread{2, 2, 2}},
		summariseScatter(c, []scatterRun{run(1), run(3), run(1)}))

	l := summariseLatency(64<<20, []latencyRun{{{10}, {30}, {35}}, {{20}, {60}, {66}}})
	require.Equal(t, 1<<20, l.HostBytes)
	require.Equal(t, spread{3, 3, 3}, l.ToHost)
	require.Equal(t, spread{5, 5, 6}, l.EventCost)
	require.Equal(t, spread{35, 35, 66}, l.Event.P50)
}

// A group in place costs what a small one costs: a limit of 1.5 holds at 1.4, and not at 1.6.
func TestPromisesOfADeviceAreHeld(t *testing.T) {
	at := func(bytes int, device, event float64) latencyResult {
		return latencyResult{Bytes: bytes, Device: latency{P50: spread{Median: device}}, Event: latency{P50: spread{Median: event}}}
	}
	all := gpuPromises([]latencyResult{at(64, 10, 20), at(1<<20, 14, 20), at(64<<20, 14, 32)})
	require.Len(t, all, 4)
	require.NoError(t, broken(all[:3]))
	require.ErrorContains(t, broken(all), "64 MiB in place, by event")
}

// The report names the device and the driver on top, and has a line for each case. Its figures are made up.
func TestTheReportNamesTheDevice(t *testing.T) {
	plan := planGPU(true)
	samples := gpuSamples{tally: tally{7, 1000}, large: [][]float64{{2e6}}, latency: make([][]latencyRun, len(plan.latency))}
	for _, cases := range plan.columns {
		of := make([][]scatterRun, len(cases))
		for i := range of {
			of[i] = []scatterRun{{[]float64{50e3}, []float64{40e3}, []float64{10e3}, []float64{20e3}}}
		}
		samples.scatter = append(samples.scatter, of)
	}
	for i := range samples.latency {
		samples.latency[i] = []latencyRun{{{10e3}, {30e3}, {35e3}}}
	}
	r := gpuReport{Device: "NVIDIA Example, driver 13.0", DriverVersion: "580.1", Command: "make bench"}
	r.fill(plan, samples)
	text := r.markdown()
	require.Contains(t, text, "# What device memory costs\n\nNVIDIA Example, driver 13.0 (580.1)\n")
	require.Contains(t, text, "| 12 B | 128 | 2048 | 64 | 1536 | 50.0 | 40.0 | 312.5 | 0.0384 | 10.0 | 0.154 | 4.00 | 20.0 | 2.00 |")
	require.Contains(t, text, "| 4 MiB | 2000.0 | 2.1 |")
	require.Contains(t, text, "| 1 MiB | 30.0 | 30.0 | 35.0 | 35.0 | 5.0 | 1 MiB | 10.0 | 10.0 | 3.00 |")
	require.Equal(t, "NVIDIA Example, driver 13.0 (580.1)", r.text()[:len(r.title())])

	o := options{results: t.TempDir()}
	printed(t, func() { require.NoError(t, o.writeResults("x-gpu", text, []byte("{}"))) })
	written, err := os.ReadFile(filepath.Join(o.results, "x-gpu.md"))
	require.NoError(t, err)
	require.Equal(t, text, string(written))
	require.FileExists(t, filepath.Join(o.results, "x-gpu.json"))
}

// Results that have no place are noticed before anything is measured.
func TestResultsWithoutAPlace(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o644))
	require.ErrorContains(t, measureAll(options{name: "x", results: filepath.Join(file, "results")}), "-results")
}
