package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
)

// costCase is a run of cost/cost.c.
type costCase struct {
	Way     string `json:"way"`
	Size    int    `json:"size"`
	Changed int    `json:"changed"`
	Rounds  int    `json:"-"`
	InARow  int    `json:"in_a_row"` // 1: a tick apart
}

// rowsPromised is of how many random rows something is promised: what a hand-over of few costs is the hand-over.
const rowsPromised = 10_000

// inARow is how many rounds follow each other at once where they are not a tick apart.
const inARow = 100

func (c costCase) pace() string {
	if c.InARow > 1 {
		return "in a row"
	}
	return "a tick apart"
}

// costResult is a case over its repetitions: medians of each, in nanoseconds.
type costResult struct {
	costCase
	Whole  spread `json:"whole_ns"`  // map, fill, unmap, seal
	Calm   spread `json:"calm_ns"`   // the same of a round that one of ten is faster than, in place of the median
	Commit spread `json:"commit_ns"` // unmap, seal
	Beside spread `json:"beside_ns"` // the bytes alone, moved at the same pace
	Ratio  spread `json:"ratio"`     // of the medians of each repetition
}

// promise is what a case must hold: text for people, the figure and its limit.
type promise struct {
	Text  string  `json:"text"`
	Is    float64 `json:"is"`
	Limit float64 `json:"limit"`
}

func costCases(quick bool) []costCase {
	if quick {
		return []costCase{{"runs", 1 << 20, 64 << 10, 5, 1}, {"random", 10_000, 500, 5, inARow}, {"same", 10_000, 500, 5, 1}, {"append", 100, 0, 1, 1}, {"grow", 100, 0, 1, 1}, {"delete", 100, 0, 1, 1}}
	}
	cases := []costCase{}
	for _, pace := range []int{1, inARow} {
		for _, changed := range []int{4 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20} {
			cases = append(cases, costCase{"runs", 16 << 20, changed, 100 + 2*pace, pace}, costCase{"runs", 256 << 20, changed, 100 + 2*pace, pace})
		}
		for _, changed := range []int{1000, 10_000, 100_000} {
			cases = append(cases, costCase{"random", 1_000_000, changed, 100, pace}, costCase{"same", 1_000_000, changed, 100, pace})
		}
		cases = append(cases, costCase{"random", 1_000_000, 1_000_000, 40, pace})
	}
	for _, prims := range []int{10, 100, 1000, 10_000, 100_000} {
		rounds := max(1, 20_000/prims)
		cases = append(cases, costCase{"append", prims, 0, 5, 1}, costCase{"grow", prims, 0, min(5, rounds), 1}, costCase{"delete", prims, 0, min(5, rounds), 1})
	}
	return cases
}

// measureCost runs every case against a broker of its own, which keeps only what readers need: what is retained
// beyond that must be brought up to date, too.
func (p programs) measureCost(o options, retain int, done func()) (results []costResult, err error) {
	cases := costCases(o.quick)
	type medians struct{ whole, calm, commit, beside, ratio []float64 }
	all := make([]medians, len(cases))
	for range o.repetitions {
		for i, c := range cases {
			whole, commit, beside, err := p.runCost(o, retain, c)
			if err != nil {
				return nil, fmt.Errorf("%+v: %w", c, err)
			}
			m := &all[i]
			w, k, b := describe(whole).P50, describe(commit).P50, describe(beside).P50
			m.whole, m.commit, m.beside, m.ratio = append(m.whole, w), append(m.commit, k), append(m.beside, b), append(m.ratio, k/b)
			m.calm = append(m.calm, describe(whole).P10)
			done()
		}
	}
	for i, c := range cases {
		m := &all[i]
		results = append(results, costResult{c, over(m.whole), over(m.calm), over(m.commit), over(m.beside), over(m.ratio)})
	}
	return results, nil
}

func (p programs) runCost(o options, retain int, c costCase) (whole, commit, beside []float64, err error) {
	b, err := p.startBroker(pinned, o.cpu, "--retain", strconv.Itoa(retain))
	if err != nil {
		return nil, nil, nil, err
	}
	defer func() {
		if stopErr := b.stop(); err == nil {
			err = stopErr
		}
	}()
	cmd := p.command(pinned, o.cpu, p.cost, b.stage, c.Way, strconv.Itoa(c.Size), strconv.Itoa(c.Changed), strconv.Itoa(c.Rounds), strconv.Itoa(c.InARow))
	cmd.Env = b.env
	out, err := cmd.Output()
	if err != nil {
		return nil, nil, nil, fmt.Errorf("%s: %w", strings.Join(cmd.Args, " "), err)
	}
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		var w, k, x float64
		if _, err := fmt.Sscan(lines.Text(), &w, &k, &x); err != nil {
			return nil, nil, nil, fmt.Errorf("%s printed %q: expected three numbers", cmd.Args[0], lines.Text())
		}
		whole, commit, beside = append(whole, w), append(commit, k), append(beside, x)
	}
	if len(whole) == 0 {
		return nil, nil, nil, fmt.Errorf("%s measured no round", cmd.Args[0])
	}
	return whole, commit, beside, nil
}

// promises holds the results to what is promised of them.
func promises(results []costResult) (all []promise) {
	find := func(like costCase, size int) *costResult {
		for i := range results {
			if r := &results[i]; r.Way == like.Way && r.Size == size && r.Changed == like.Changed && r.InARow == like.InARow {
				return r
			}
		}
		return nil
	}
	for i := range results {
		r := &results[i]
		switch r.Way {
		case "runs":
			if r.InARow == 1 {
				continue // what is promised of runs is promised where nothing is done between rounds
			}
			all = append(all, promise{fmt.Sprintf("a run of %s in %s, in a row: at most 4 × memcpy + 100 µs, in µs", size(r.Changed), size(r.Size)),
				r.Whole.Median / 1000, 4*r.Beside.Median/1000 + 100})
			if small := find(r.costCase, 16<<20); small != nil && r.Size == 256<<20 {
				all = append(all, promise{fmt.Sprintf("a run of %s, in a row: 256 MiB at most 1.3 × 16 MiB", size(r.Changed)), r.Calm.Median / small.Calm.Median, 1.3})
			}
		case "random", "same":
			if r.InARow > 1 || r.Changed < rowsPromised {
				continue // what is promised of rows is promised of a commit for itself, and where rows are what it costs
			}
			which := map[string]string{"random": "", "same": "the same "}[r.Way]
			all = append(all, promise{fmt.Sprintf("%s%d of %d random rows of 12 B, a tick apart: unmap and seal at most 3 × a cold scatter in C", which, r.Changed, r.Size), r.Ratio.Median, 3})
		case "append", "grow", "delete":
			if few := find(r.costCase, 1000); few != nil && r.Size == 100_000 {
				all = append(all, promise{fmt.Sprintf("%s of 100 000 prims: at most 2 × as much for each as of 1000", r.Way),
					r.Whole.Median / float64(r.Size) / (few.Whole.Median / 1000), 2})
			}
		}
	}
	return all
}

func costTable(title string, results []costResult) table.Writer {
	t := table.NewWriter()
	t.SetTitle(title)
	t.AppendHeader(table.Row{"what", "of", "changed", "rounds", "map to sealed µs", "unmap to sealed µs", "bytes alone µs", "÷"})
	t.SetColumnConfigs(alignRight(2, 8))
	for _, r := range results {
		of, changed, pace, beside, times := fmt.Sprint(r.Size), fmt.Sprint(r.Changed), r.pace(), micros(r.Beside), ratio(r.Ratio)
		switch r.Way {
		case "runs":
			of, changed = size(r.Size), size(r.Changed)
		case "append", "grow", "delete":
			changed, pace, beside, times = "", "", "", ""
		}
		t.AppendRow(table.Row{r.Way, of, changed, pace, micros(r.Whole), micros(r.Commit), beside, times})
	}
	return t
}

func promiseTable(all []promise) table.Writer {
	t := table.NewWriter()
	t.SetTitle("What is promised, with retain 1")
	t.AppendHeader(table.Row{"promise", "is", "limit", "holds"})
	t.SetColumnConfigs(alignRight(2, 3))
	for _, p := range all {
		holds := "yes"
		if p.Is > p.Limit {
			holds = "NO"
		}
		t.AppendRow(table.Row{p.Text, fmt.Sprintf("%.2f", p.Is), fmt.Sprintf("%.2f", p.Limit), holds})
	}
	return t
}

const costIntroduction = `# What a commit costs

Written by %[1]s

%[2]d CPUs (%[3]s), Linux %[4]s, %[5]s, %[6]s; load before the run: %[7]s. Broker and client run on one CPU.

Rows of a column that exists are mapped, filled, unmapped and sealed; beside it, at the same pace, a plain loop in C moves as many
bytes between arrays of its own: memcpy for runs of rows of 4 KiB, a scatter for random rows of 12 bytes, of one of 16 sets in turn
("random", of 4 sets where all rows change) or of one set again and again ("same"), to one of 8 arrays in turn: memory that was not touched lately, as it is of memcpy. The loop's memory is as a program gets it, in pages of
4 KiB where the kernel gives no larger ones unasked. Appended prims are written first and sealed once, those that grow a column one by one, each with its seal; of as many, half are deleted one by one. Figures are medians of the
repetitions, each the median of its rounds, with the extremes in brackets.

With retain 1 a recycled block lags one version behind, with retain 4 four: all that changed meanwhile must be copied, too. A tick
apart, the broker does that between two rounds, in the 20 ms in which nobody asks for anything. In a row, each round pays for it;
of %[8]d such rounds after a pause the first is left out.

Two sizes of a column are compared by the tenth of the rounds that were disturbed least. A round of 4 KiB takes 16 µs, or 35 with
a tick of the monitor thread of the broker's Go runtime in it, which may come every 20 µs: what a median says is how many had one.
`

// costReport is everything that a run found out of what commits cost.
type costReport struct {
	Machine  machine      `json:"machine"`
	Command  string       `json:"command"`
	Retain1  []costResult `json:"retain_1"`
	Retain4  []costResult `json:"retain_4"`
	Promises []promise    `json:"promises"`
}

func measureCosts(o options, p programs) (err error) {
	r := costReport{Machine: describeMachine(), Command: o.text()}
	done, finish := showProgress(int64(2 * len(costCases(o.quick)) * o.repetitions))
	defer finish()
	if r.Retain1, err = p.measureCost(o, 1, done); err == nil {
		r.Retain4, err = p.measureCost(o, 4, done)
	}
	if err != nil {
		return err
	}
	finish()
	r.Promises = promises(r.Retain1)
	tables := []table.Writer{promiseTable(r.Promises), costTable("Retain 1", r.Retain1), costTable("Retain 4", r.Retain4)}
	text := fmt.Sprintf(costIntroduction, "`"+r.Command+"`.", r.Machine.CPUs, r.Machine.CPU, r.Machine.Kernel, r.Machine.Go, r.Machine.Compiler, r.Machine.Load, inARow)
	for _, t := range tables {
		fmt.Println(t.Render())
		text += "\n" + t.RenderMarkdown() + "\n"
	}
	if o.name == "" {
		return nil
	}
	encoded, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	if err := o.writeResults(o.name+"-cost", strings.ReplaceAll(text, "\n# ", "\n## "), encoded); err != nil {
		return err
	}
	return broken(r.Promises)
}

// broken is an error that lists the promises that do not hold.
func broken(all []promise) error {
	var failed []error
	for _, p := range all {
		if p.Is > p.Limit {
			failed = append(failed, fmt.Errorf("%s: it is %.2f, the limit %.2f", p.Text, p.Is, p.Limit))
		}
	}
	return errors.Join(failed...)
}
