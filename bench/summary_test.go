package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPercentilesAreSamplesThatOccurred(t *testing.T) {
	samples := make([]float64, 1000)
	for i := range samples {
		samples[i] = float64(1000 - i) // 1 to 1000, backwards
	}
	require.Equal(t, distribution{Count: 1000, Min: 1, P10: 100, P25: 250, P50: 500, P75: 750, P90: 900, P99: 990, P999: 999, Max: 1000}, describe(samples))
	require.Equal(t, float64(1000), samples[0], "the samples themselves stay in the order of the rounds")
}

func TestOneSampleIsEveryPercentile(t *testing.T) {
	require.Equal(t, distribution{1, 7, 7, 7, 7, 7, 7, 7, 7, 7}, describe([]float64{7}))
}

// The second repetition ran while the machine was busy with something else: relay and
// callboard took twice as long, and their ratio stayed.
func TestRatiosAreOfOneRepetition(t *testing.T) {
	got := compare([][]float64{{30}, {60}, {33}}, [][]float64{{10}, {20}, {10}})
	require.Equal(t, spread{3, 3, 3.3}, got.RatioP50)
	require.Equal(t, spread{33, 30, 60}, got.P50)
}

func TestGoBenchmarkLinesWithAndWithoutThroughput(t *testing.T) {
	require.Equal(t, []microLine{{"ring", "RoundTrip", "63.25", "0"}, {"snapshot", "Seal1MiB", "1204", "2"}},
		append(parseMicro("ring", "goos: linux\nBenchmarkRoundTrip-2 \t 18977 \t 63.25 ns/op\t 0 B/op\t 0 allocs/op\nPASS\n"),
			parseMicro("snapshot", "BenchmarkSeal1MiB \t 100 \t 1204 ns/op\t 5 MB/s\t 48 B/op\t 2 allocs/op\n")...))
}

func TestSizesAreNamedInTheirLargestWholeUnit(t *testing.T) {
	require.Equal(t, []string{"64 B", "4 KiB", "1 MiB", "1025 B"}, []string{size(64), size(4096), size(1 << 20), size(1025)})
}

// What a case costs is held to what is promised of it: twice what 16 MiB cost is too much for 256 MiB, and 140 µs are
// not too much beside a memcpy of 10 µs.
func TestPromisesAreHeld(t *testing.T) {
	at := func(way string, size, changed int, whole, beside, ratio float64) costResult {
		pace := inARow
		if way == "random" {
			pace = 1
		}
		return costResult{costCase{way, size, changed, 1, pace}, spread{Median: whole}, spread{Median: whole}, spread{}, spread{Median: beside}, spread{Median: ratio}}
	}
	all := promises([]costResult{at("runs", 16<<20, 4096, 70e3, 10e3, 0), at("runs", 256<<20, 4096, 140e3, 10e3, 0), at("random", 1e6, 10_000, 0, 0, 2.5),
		at("random", 1e6, 1000, 0, 0, 9), // nothing is promised of a hand-over
		at("append", 1000, 0, 1e6, 1, 0), at("append", 100_000, 0, 300e6, 1, 0)})
	var holds []bool
	for _, p := range all {
		holds = append(holds, p.Is <= p.Limit)
	}
	require.Equal(t, []bool{true, true, false, true, false}, holds, "%+v", all)
	require.ErrorContains(t, broken(all), "256 MiB")
	require.NoError(t, broken(all[:2]))
}

// The limit of a read moves with what is measured beside it, in the same repetition.
func TestPromisesOfPythonAreHeldByRepetition(t *testing.T) {
	result := pythonResult{Time: spread{900, 450, 900}, Beside: spread{200, 100, 200}, Share: spread{0.75, 0.7, 0.75}}
	results := make([]pythonResult, len(pythonCases))
	for i := range results {
		results[i] = result
	}
	all := pythonPromises(results)
	require.Len(t, all, 5, "of a view, a NumPy array, a group, and map twice")
	require.InDelta(t, 0.8, all[0].Limit, 1e-9) // 1.5 × 0.2 + 0.5 µs
	require.InDelta(t, 0.6, all[0].Is, 1e-9)
	require.NoError(t, broken(all))
	all[0].Is = 1
	require.ErrorContains(t, broken(all), "it is 1.00, the limit 0.80")
	require.NoError(t, coarse(all))
	all[0].Is = 2.5
	require.ErrorContains(t, coarse(all), "the limit 2.40")
}
