package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

const resultsDir = "bench/results"

// report is everything a run found out; its JSON form is this struct.
type report struct {
	Machine machine     `json:"machine"`
	Command string      `json:"command"`
	Results []result    `json:"results"`
	Micro   []microLine `json:"micro,omitempty"`
}

// section is one table: some results, and which of their two times.
type section struct {
	title string
	cycle bool
	keep  func(measurement) bool
	name  func(measurement) string
}

func bySize(m measurement) string { return size(m.Bytes) }

func byWay(m measurement) string {
	way := map[string]string{"c": "C", "go": "Go, short form", "python": "Python, short form"}[m.Client]
	if m.Sealing == "after" {
		way += ", seal as an op of its own"
	}
	return way + ", " + size(m.Bytes)
}

func isC(m measurement) bool { return m.Client == "c" && m.Sealing == "with" }

var sections = []section{
	{"handed over in place (adopt): unmap → reader", false, func(m measurement) bool { return isC(m) && m.Handoff == "adopt" && m.Writing == "stamp" }, bySize},
	{"handed over in place (adopt): map → reader", true, func(m measurement) bool { return isC(m) && m.Handoff == "adopt" && m.Writing == "stamp" }, bySize},
	{"copied by the broker (handoff copy): unmap → reader", false, func(m measurement) bool { return isC(m) && m.Handoff == "copy" }, bySize},
	{"in place, every byte written by the producer: map → reader", true, func(m measurement) bool { return isC(m) && m.Writing == "fill" }, bySize},
	{"other ways, in place: unmap → reader", false, func(m measurement) bool { return !isC(m) }, byWay},
	{"other ways, in place: map → reader", true, func(m measurement) bool { return !isC(m) }, byWay},
}

var places = map[place]string{pinned: "All on one CPU", free: "Free to move"}

// tables are the sections of one place; sections without results are left out.
func (r report) tables(where place) (out []table.Writer) {
	for _, s := range sections {
		t := table.NewWriter()
		t.SetTitle("%s, %s", places[where], s.title)
		t.AppendHeader(table.Row{"column", "p50 µs", "p99 µs", "p99.9", "min", "max", "rounds", "relay p50", "relay p99", "p50 ÷ relay", "p99 ÷ relay"})
		t.SetColumnConfigs(alignRight(2, 11))
		for _, result := range r.Results {
			if result.Place != where || !s.keep(result.What) {
				continue
			}
			x := result.Handoff
			if s.cycle {
				x = result.Cycle
			}
			t.AppendRow(table.Row{s.name(result.What), micros(x.P50), micros(x.P99), us(x.All.P999), us(x.All.Min), us(x.All.Max), x.All.Count,
				us(x.RelayP50.Median), us(x.RelayP99.Median), ratio(x.RatioP50), ratio(x.RatioP99)})
		}
		if t.Length() > 0 {
			out = append(out, t)
		}
	}
	return out
}

// modesTable shows one measurement's rounds by their quantiles: where the processes
// may move, a wake-up costs one of two very different times.
func (r report) modesTable() table.Writer {
	t := table.NewWriter()
	t.SetTitle("Quantiles of all rounds, 64 B in place, unmap → reader, µs")
	t.AppendHeader(table.Row{"", "min", "p10", "p25", "p50", "p75", "p90", "p99", "p99.9", "max"})
	t.SetColumnConfigs(alignRight(2, 10))
	for _, result := range r.Results {
		if m := result.What; !isC(m) || m.Bytes != 64 || m.Handoff != "adopt" || m.Writing != "stamp" {
			continue
		}
		for _, line := range []struct {
			name string
			d    distribution
		}{{"relay", result.Handoff.RelayAll}, {"callboard", result.Handoff.All}} {
			t.AppendRow(table.Row{line.name + ", " + strings.ToLower(places[result.Place]), us(line.d.Min), us(line.d.P10), us(line.d.P25), us(line.d.P50),
				us(line.d.P75), us(line.d.P90), us(line.d.P99), us(line.d.P999), us(line.d.Max)})
		}
	}
	return t
}

func (r report) microTable() table.Writer {
	t := table.NewWriter()
	t.SetTitle("In one process, without waiting")
	t.AppendHeader(table.Row{"package", "benchmark", "ns", "allocations"})
	t.SetColumnConfigs(alignRight(3, 4))
	for _, line := range r.Micro {
		t.AppendRow(table.Row{line.Package, line.Name, line.Ns, line.Allocs})
	}
	return t
}

// text is the report for a terminal.
func (r report) text() string {
	var out strings.Builder
	tables := append(r.tables(pinned), r.tables(free)...)
	tables = append(tables, r.modesTable())
	if len(r.Micro) > 0 {
		tables = append(tables, r.microTable())
	}
	for _, t := range tables {
		t.SetStyle(table.StyleLight)
		t.Style().Format.Header = text.FormatDefault
		fmt.Fprintln(&out, t.Render())
	}
	return out.String()
}

const introduction = `# From a producer to a reader

Written by %[1]s

%[2]d CPUs (%[3]s%[4]s), Linux %[5]s, %[6]s, %[7]s; load before the run: %[8]s.

A round: a producer maps an attribute of one row, stamps its first bytes, unmaps and seals; a reader in another process
waits for the epoch, pins, reads in place and looks at the stamp. The next round starts when the reader has answered.
The relay is the same pattern of wake-ups over bare futexes in C, with no data and no checks: map is one wake to
the relay and one back, unmap → reader is one to the relay and one to the reader. It ran just before each repetition.

p50 and p99 are medians of the repetitions, with their extremes in brackets; p99.9, min and max are of all rounds; ratios
are per repetition. Times are in microseconds. What stands out is in [README.md](README.md).
`

// markdown is the report for the repository.
func (r report) markdown() string {
	var out strings.Builder
	virtual := ""
	if r.Machine.Virtual {
		virtual = ", a virtual machine"
	}
	fmt.Fprintf(&out, introduction, "`"+r.Command+"`.", r.Machine.CPUs, r.Machine.CPU, virtual, r.Machine.Kernel, r.Machine.Go, r.Machine.Compiler, r.Machine.Load)
	for _, where := range []place{pinned, free} {
		fmt.Fprintf(&out, "\n## %s\n", places[where])
		for _, t := range r.tables(where) {
			fmt.Fprintf(&out, "\n%s\n", t.RenderMarkdown())
		}
	}
	fmt.Fprintf(&out, "\n## Two modes\n\n%s\n", r.modesTable().RenderMarkdown())
	if len(r.Micro) > 0 {
		fmt.Fprintf(&out, "\n## Parts\n\n%s\n", r.microTable().RenderMarkdown())
	}
	return strings.ReplaceAll(out.String(), "\n# ", "\n### ") // titles that go-pretty wrote
}

// write puts the report beside earlier ones.
func (r report) write(o options) error {
	encoded, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	return o.writeResults(o.name, r.markdown(), encoded)
}

func (o options) writeResults(name, markdown string, encoded []byte) error {
	for ending, content := range map[string]string{".md": markdown, ".json": string(encoded) + "\n"} {
		path := filepath.Join(o.results, name+ending)
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			return err
		}
		fmt.Println("wrote", path)
	}
	return nil
}

func alignRight(from, to int) (configs []table.ColumnConfig) {
	for column := from; column <= to; column++ {
		configs = append(configs, table.ColumnConfig{Number: column, Align: text.AlignRight, AlignHeader: text.AlignRight})
	}
	return configs
}

func us(ns float64) string { return fmt.Sprintf("%.1f", ns/1000) }

func micros(s spread) string {
	if s.Low == s.High {
		return us(s.Median)
	}
	return fmt.Sprintf("%s (%s–%s)", us(s.Median), us(s.Low), us(s.High))
}

func ratio(s spread) string {
	if s.Low == s.High {
		return fmt.Sprintf("%.2f", s.Median)
	}
	return fmt.Sprintf("%.2f (%.2f–%.2f)", s.Median, s.Low, s.High)
}

func size(bytes int) string {
	for _, unit := range []struct {
		bytes int
		name  string
	}{{1 << 20, "MiB"}, {1 << 10, "KiB"}} {
		if bytes >= unit.bytes && bytes%unit.bytes == 0 {
			return fmt.Sprintf("%d %s", bytes/unit.bytes, unit.name)
		}
	}
	return fmt.Sprintf("%d B", bytes)
}
