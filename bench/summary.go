package main

import (
	"math"
	"slices"
)

// distribution describes the samples of one run, in nanoseconds.
type distribution struct {
	Count int     `json:"count"`
	Min   float64 `json:"min_ns"`
	P10   float64 `json:"p10_ns"`
	P25   float64 `json:"p25_ns"`
	P50   float64 `json:"p50_ns"`
	P75   float64 `json:"p75_ns"`
	P90   float64 `json:"p90_ns"`
	P99   float64 `json:"p99_ns"`
	P999  float64 `json:"p999_ns"`
	Max   float64 `json:"max_ns"`
}

// describe needs at least one sample. A percentile is a sample that occurred: the
// smallest one that so many of the samples do not exceed.
func describe(samples []float64) distribution {
	sorted := slices.Sorted(slices.Values(samples))
	at := func(share float64) float64 { return sorted[max(0, int(math.Ceil(share*float64(len(sorted))))-1)] }
	return distribution{len(sorted), sorted[0], at(.10), at(.25), at(.50), at(.75), at(.90), at(.99), at(.999), sorted[len(sorted)-1]}
}

// spread is a figure over repetitions: the median and the extremes.
type spread struct {
	Median float64 `json:"median"`
	Low    float64 `json:"low"`
	High   float64 `json:"high"`
}

// over needs at least one value. The median of an even count is the lower middle one.
func over(values []float64) spread {
	sorted := slices.Sorted(slices.Values(values))
	return spread{sorted[(len(sorted)-1)/2], sorted[0], sorted[len(sorted)-1]}
}

// result is a measurement over its repetitions, with the relay that ran beside it.
type result struct {
	What    measurement `json:"what"`
	Place   place       `json:"place"`
	Cycle   times       `json:"cycle"`   // from before map
	Handoff times       `json:"handoff"` // from before unmap
}

// times are one of the two times of a round.
type times struct {
	All      distribution `json:"all_rounds"` // of all repetitions together
	RelayAll distribution `json:"relay_all_rounds"`
	P50      spread       `json:"p50_ns"`
	P99      spread       `json:"p99_ns"`
	RelayP50 spread       `json:"relay_p50_ns"`
	RelayP99 spread       `json:"relay_p99_ns"`
	RatioP50 spread       `json:"ratio_p50"`
	RatioP99 spread       `json:"ratio_p99"`
}

// compare puts repetitions beside the relay runs that came just before each of them.
func compare(ours, relay [][]float64) times {
	var all, relayAll, p50, p99, relay50, relay99, ratio50, ratio99 []float64
	for i := range ours {
		us, bare := describe(ours[i]), describe(relay[i])
		all, relayAll = append(all, ours[i]...), append(relayAll, relay[i]...)
		p50, p99 = append(p50, us.P50), append(p99, us.P99)
		relay50, relay99 = append(relay50, bare.P50), append(relay99, bare.P99)
		ratio50, ratio99 = append(ratio50, us.P50/bare.P50), append(ratio99, us.P99/bare.P99)
	}
	return times{describe(all), describe(relayAll), over(p50), over(p99), over(relay50), over(relay99), over(ratio50), over(ratio99)}
}
