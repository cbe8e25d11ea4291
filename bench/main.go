package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"sync"
	"time"

	"github.com/jedib0t/go-pretty/v6/progress"
)

// options are the command line's.
type options struct {
	quick       bool
	repetitions int
	rounds      int
	budget      time.Duration
	cpu         int
	name        string
	micro       bool
	only        string
	results     string // the directory
}

func main() {
	if playRole(os.Args[1:]) {
		return
	}
	o, err := parse(os.Args[1:])
	if err != nil {
		os.Exit(2)
	}
	// Ctrl-C reaches all processes of the terminal: the one that is measured ends, the
	// run fails, and on its way out it cleans up.
	signal.Notify(make(chan os.Signal, 1), os.Interrupt)
	if err := measureAll(o); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func parse(args []string) (options, error) {
	var o options
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.BoolVar(&o.quick, "quick", false, "a few rounds of everything, nothing written down: shows that it runs")
	flags.IntVar(&o.repetitions, "repetitions", 5, "runs of each measurement, the relay before each of them")
	flags.IntVar(&o.rounds, "rounds", 2000, "rounds of a run, at most")
	flags.DurationVar(&o.budget, "budget", 300*time.Millisecond, "no further rounds in a run after so long")
	flags.IntVar(&o.cpu, "cpu", 1, "the CPU of the pinned runs")
	flags.StringVar(&o.name, "name", "latency", "results go to NAME.md and NAME.json, and those of the other parts to NAME-cost and so on")
	flags.StringVar(&o.results, "results", defaultResults(), "the directory of these files")
	flags.BoolVar(&o.micro, "micro", true, "also run the Go benchmarks of ring and snapshot")
	flags.StringVar(&o.only, "only", "", "latency: what a hand-over takes; cost: what a commit costs; python: what Python's client costs once it is warm; gpu: the first two in device memory; empty: all")
	flags.Usage = func() {
		fmt.Fprint(flags.Output(), `Measures map, unmap, seal, reader beside a bare futex relay and writes the figures to bench/results/.
Run it as make bench, with BENCH_ARGS for these:

`)
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if o.quick {
		o.repetitions, o.rounds, o.budget, o.micro, o.name = 1, 100, 50*time.Millisecond, false, ""
	}
	if o.repetitions < 1 || o.rounds < 1 || flags.NArg() > 0 || !slices.Contains([]string{"", "latency", "cost", "python", "gpu"}, o.only) {
		err := fmt.Errorf("repetitions is %d, rounds is %d, only is %q, arguments are %q: expected at least 1 of each, latency, cost, python, gpu or nothing, and no arguments", o.repetitions, o.rounds, o.only, flags.Args())
		fmt.Fprintln(os.Stderr, "bench:", err)
		return o, err
	}
	return o, nil
}

// plan is what is measured in each place.
func (p programs) plan(quick bool) []measurement {
	sizes := []int{64, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20}
	if quick {
		sizes = []int{64, 1 << 20}
	}
	var list []measurement
	for _, size := range sizes {
		list = append(list, measurement{"c", size, "adopt", "stamp", "with"})
	}
	for _, size := range sizes {
		list = append(list, measurement{"c", size, "copy", "stamp", "with"})
	}
	for _, size := range sizes {
		list = append(list, measurement{"c", size, "adopt", "fill", "with"})
	}
	list = append(list, measurement{"c", 64, "adopt", "stamp", "after"})
	clients := []string{"go"}
	if p.python != "" {
		clients = append(clients, "python")
	}
	for _, client := range clients {
		for _, size := range []int{64, 1 << 20} {
			list = append(list, measurement{client, size, "adopt", "stamp", "with"})
		}
	}
	return list
}

// defaultResults is where earlier results are, or a directory of its own where this program was carried without the tree.
func defaultResults() string {
	if _, err := os.Stat(resultsDir); err != nil {
		return "results"
	}
	return resultsDir
}

func measureAll(o options) error {
	if o.name != "" { // not after minutes of measuring
		if err := os.MkdirAll(o.results, 0o755); err != nil {
			return fmt.Errorf("the results have no place, name another one with -results: %w", err)
		}
	}
	if o.only == "gpu" {
		callboard, err := findBroker()
		if err != nil {
			return err
		}
		return measureGPU(o, programs{callboard: callboard})
	}
	p, err := build()
	if err != nil {
		return err
	}
	if p.python == "" {
		fmt.Fprintln(os.Stderr, "bench: no Python client in the virtual environment, it is left out")
	}
	if o.only == "python" && p.python == "" {
		return errors.New("there is nothing to measure: run `make bench`, which installs the Python client first")
	}
	for _, part := range []struct {
		name    string
		measure func(options, programs) error
	}{{"latency", measureLatency}, {"cost", measureCosts}, {"python", measurePythonClient}, {"gpu", measureGPU}} {
		if o.only != "" && o.only != part.name {
			continue
		}
		err = errors.Join(err, part.measure(o, p)) // a promise that does not hold keeps no other part from running
	}
	return err
}

func measureLatency(o options, p programs) error {
	plan := p.plan(o.quick)
	r := report{Machine: describeMachine(), Command: o.text()}
	done, finish := showProgress(int64(2 * len(plan) * o.repetitions))
	defer finish()
	var results []result
	for _, where := range []place{pinned, free} {
		got, err := p.measurePlace(o, where, plan, done)
		if err != nil {
			return err
		}
		results = append(results, got...)
	}
	r.Results = results
	if o.micro {
		var err error
		if r.Micro, err = runMicro(); err != nil {
			return err
		}
	}
	finish()
	fmt.Println(r.text())
	if o.name == "" {
		return nil
	}
	return r.write(o)
}

// showProgress draws a bar where standard error is a terminal.
func showProgress(steps int64) (done, finish func()) {
	about, err := os.Stderr.Stat()
	if err != nil || about.Mode()&os.ModeCharDevice == 0 {
		return func() {}, func() {}
	}
	bar := progress.NewWriter()
	bar.SetOutputWriter(os.Stderr)
	tracker := &progress.Tracker{Message: "measuring", Total: steps}
	bar.AppendTracker(tracker)
	go bar.Render()
	return func() { tracker.Increment(1) }, sync.OnceFunc(func() {
		bar.Stop()
		for bar.IsRenderInProgress() {
			time.Sleep(time.Millisecond)
		}
	})
}

// text is the command line that repeats the run.
func (o options) text() string {
	only := ""
	if o.only != "" {
		only = " -only " + o.only
	}
	return fmt.Sprintf("make bench BENCH_ARGS='-repetitions %d -rounds %d -budget %v -cpu %d -name %s%s'", o.repetitions, o.rounds, o.budget, o.cpu, o.name, only)
}

// measurePlace runs the plan several times against one broker. Each measurement comes
// right after the relay's (invariant 1).
func (p programs) measurePlace(o options, where place, plan []measurement, done func()) (results []result, err error) {
	b, err := p.startBroker(where, o.cpu)
	if err != nil {
		return nil, err
	}
	defer func() {
		if stopErr := b.stop(); err == nil {
			err = stopErr
		}
	}()
	ours, relay := make([][]rounds, len(plan)), make([][]rounds, len(plan))
	for range o.repetitions {
		for i, m := range plan {
			bare, err := p.runRelay(where, o.cpu, o.rounds)
			if err != nil {
				return nil, err
			}
			us, err := p.runMeasurement(b, where, o.cpu, m, o.rounds, o.budget)
			if err != nil {
				return nil, fmt.Errorf("%+v: %w", m, err)
			}
			ours[i], relay[i] = append(ours[i], us), append(relay[i], bare)
			done()
		}
	}
	for i, m := range plan {
		results = append(results, result{
			What: m, Place: where,
			Cycle:   compare(pick(ours[i], rounds.cycles), pick(relay[i], rounds.cycles)),
			Handoff: compare(pick(ours[i], rounds.handoffs), pick(relay[i], rounds.handoffs)),
		})
	}
	return results, nil
}

func (r rounds) cycles() []float64   { return r.cycle }
func (r rounds) handoffs() []float64 { return r.handoff }

func pick(runs []rounds, which func(rounds) []float64) (out [][]float64) {
	for _, r := range runs {
		out = append(out, which(r))
	}
	return out
}
