package main

import (
	"fmt"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
)

// gpuReport is everything that a run found out of a device.
type gpuReport struct {
	Device        string          `json:"device"` // as cudaipc names it: the device, and the driver by the version of CUDA
	DriverVersion string          `json:"driver_version"`
	Machine       machine         `json:"machine"`
	Command       string          `json:"command"`
	Checked       tally           `json:"checked"`
	Large         largeCopy       `json:"large_copy"`
	Scatter       []scatterResult `json:"scatter"`
	Latency       []latencyResult `json:"latency"`
	Promises      []promise       `json:"promises"`
}

type largeCopy struct {
	Bytes int    `json:"bytes"`
	Time  spread `json:"ns"`
}

// fill makes results of the samples.
func (r *gpuReport) fill(plan gpuPlan, s gpuSamples) {
	r.Large = largeCopy{plan.large, over(p50s(s.large))}
	for i, cases := range plan.columns {
		for k, c := range cases {
			r.Scatter = append(r.Scatter, summariseScatter(c, s.scatter[i][k]))
		}
	}
	for i, bytes := range plan.latency {
		r.Latency = append(r.Latency, summariseLatency(bytes, s.latency[i]))
	}
	r.Promises = gpuPromises(r.Latency)
}

// p50s are the medians of repetitions.
func p50s(runs [][]float64) (out []float64) {
	for _, samples := range runs {
		out = append(out, describe(samples).P50)
	}
	return out
}

// pairs combines the figures of each repetition (invariant 2).
func pairs(a, b []float64, how func(a, b float64) float64) spread {
	out := make([]float64, len(a))
	for i := range a {
		out[i] = how(a[i], b[i])
	}
	return over(out)
}

func quotient(a, b float64) float64   { return a / b }
func difference(a, b float64) float64 { return a - b }

func summariseScatter(c scatterCase, runs []scatterRun) scatterResult {
	var whole, commit, one, each [][]float64
	for _, run := range runs {
		whole, commit, one, each = append(whole, run.Whole), append(commit, run.Commit), append(one, run.Copy), append(each, run.Runs)
	}
	commits, copies, eachs := p50s(commit), p50s(one), p50s(each)
	return scatterResult{c, over(p50s(whole)), over(commits), over(copies), over(eachs), pairs(commits, copies, quotient), pairs(commits, eachs, quotient)}
}

func summariseLatency(bytes int, runs []latencyRun) latencyResult {
	var all [handovers][][]float64
	for _, run := range runs {
		for how := range handovers {
			all[how] = append(all[how], run[how])
		}
	}
	of := func(how handover) latency {
		var p99 []float64
		for _, samples := range all[how] {
			p99 = append(p99, describe(samples).P99)
		}
		return latency{over(p50s(all[how])), over(p99)}
	}
	host, device, event := p50s(all[inHost]), p50s(all[inDevice]), p50s(all[withEvent])
	return latencyResult{bytes, inHost.bytes(bytes), of(inHost), of(inDevice), of(withEvent), pairs(device, host, quotient), pairs(event, device, difference)}
}

// gpuPromises holds the results to what is promised of them: what is handed over in place costs the same whatever its size.
// Of a scatter nothing is promised before it was measured.
func gpuPromises(results []latencyResult) (all []promise) {
	least := results[0]
	for _, r := range results[1:] {
		for _, way := range []struct {
			text      string
			is, least latency
		}{{"waited for by the producer", r.Device, least.Device}, {"by event", r.Event, least.Event}} {
			all = append(all, promise{fmt.Sprintf("unmap → reader of %s in place, %s: at most 1.5 × %s", size(r.Bytes), way.text, size(least.Bytes)),
				way.is.P50.Median / way.least.P50.Median, 1.5})
		}
	}
	return all
}

// rate is how many bytes there are in a time, in GB/s of 10^9.
func rate(bytes int, ns spread) string {
	return fmt.Sprintf("%.3g", float64(bytes)/ns.Median)
}

func (r gpuReport) scatterTable() table.Writer {
	t := table.NewWriter()
	t.SetTitle("Rows of a column on the device")
	t.AppendHeader(table.Row{"rows of", "changed", "of", "in runs of", "bytes", "map to sealed µs", "unmap to sealed µs", "ns a row", "GB/s", "one copy µs", "GB/s", "÷", "a copy for each run µs", "÷"})
	t.SetColumnConfigs(alignRight(1, 14))
	for _, c := range r.Scatter {
		t.AppendRow(table.Row{size(c.RowBytes), c.Changed, c.Rows, c.InRuns, c.bytes(), micros(c.Whole), micros(c.Commit),
			fmt.Sprintf("%.1f", c.Commit.Median/float64(c.Changed)), rate(c.bytes(), c.Commit), micros(c.Copy), rate(c.bytes(), c.Copy), ratio(c.ToCopy),
			micros(c.Runs), ratio(c.ToRuns)})
	}
	return t
}

func (r gpuReport) largeTable() table.Writer {
	t := table.NewWriter()
	t.SetTitle("The card's own copy (cuMemcpyDtoD)")
	t.AppendHeader(table.Row{"bytes", "µs", "GB/s"})
	t.SetColumnConfigs(alignRight(1, 3))
	t.AppendRow(table.Row{size(r.Large.Bytes), micros(r.Large.Time), rate(r.Large.Bytes, r.Large.Time)})
	return t
}

func (r gpuReport) latencyTable() table.Writer {
	t := table.NewWriter()
	t.SetTitle("Handed over in place (adopt): unmap → reader")
	t.AppendHeader(table.Row{"group", "device p50 µs", "p99 µs", "with an event p50 µs", "p99 µs", "the event adds µs", "host of", "host p50 µs", "p99 µs", "device ÷ host"})
	t.SetColumnConfigs(alignRight(2, 10))
	for _, l := range r.Latency {
		t.AppendRow(table.Row{size(l.Bytes), micros(l.Device.P50), micros(l.Device.P99), micros(l.Event.P50), micros(l.Event.P99), micros(l.EventCost),
			size(l.HostBytes), micros(l.Host.P50), micros(l.Host.P99), ratio(l.ToHost)})
	}
	return t
}

func (r gpuReport) tables() []table.Writer {
	return []table.Writer{promiseTable(r.Promises), r.largeTable(), r.scatterTable(), r.latencyTable()}
}

// title says what was measured: the device, and the driver by both of its versions.
func (r gpuReport) title() string {
	if r.DriverVersion == "" {
		return r.Device
	}
	return r.Device + " (" + r.DriverVersion + ")"
}

// text is the report for a terminal.
func (r gpuReport) text() string {
	out := r.title() + "\n"
	for _, t := range r.tables() {
		out += t.Render() + "\n"
	}
	return out + r.Checked.String()
}

const gpuIntroduction = `# What device memory costs

%[1]s

Written by %[2]s

%[3]d CPUs (%[4]s), Linux %[5]s, %[6]s; load before the run: %[7]s. The processes run where the kernel puts them.
%[8]s.

**Rows of a column.** A round maps some rows of a column that exists, on the device; the producer fills them, and waits until that is done;
then it unmaps and seals, and the broker copies each row to its place. "map to sealed" leaves out the producer's own work. Just before, in the same
process, as many bytes are copied within the device at once, and with a copy for each run of neighbours, as a program without kernels would scatter
them: both from the call until the stream is done. Rows or runs lie at random places, in one of %[9]d sets in turn. After each round a reader in another process
compares the whole column, and the broker may bring its next block up to date meanwhile. GB/s are 10^9 bytes that arrived, each of which is read and
written once.

**unmap → reader.** A producer maps a group of one row, fills it, waits until that is done, unmaps and seals; a reader in another process waits for the
epoch and asks for the group's address, and there the time is taken. Beside it, in turn, the same in host memory, of at most %[10]s; and with an event: the
broker is told to wait for the producer's stream, in which nothing is left.

Figures are medians of the repetitions, each the median (or p99) of its rounds, with the extremes in brackets; ratios and differences are per repetition.
`

// markdown is the report for the repository.
func (r gpuReport) markdown() string {
	m := r.Machine
	text := fmt.Sprintf(gpuIntroduction, r.title(), "`"+r.Command+"`.", m.CPUs, m.CPU, m.Kernel, m.Go, m.Load, r.Checked, scatterSets, size(hostBytesMax))
	for _, t := range r.tables() {
		text += "\n" + t.RenderMarkdown() + "\n"
	}
	return strings.ReplaceAll(text, "\n# ", "\n## ")
}
