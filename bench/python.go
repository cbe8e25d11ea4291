package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
)

// pythonCase is something that python/warm.py measures, and what it is measured beside.
type pythonCase struct {
	what, beside, text string
	promised           string
	limit              func(beside float64) float64 // of the time beside it, in nanoseconds; nil: nothing is promised
}

// A warm read costs at most what NumPy needs to take over an array of the same process, half as much again, and 0.5 µs.
func readLimit(beside float64) float64 { return 1.5*beside + 500 }

// Leaving the block of stage.map waits for the broker, as the C client does beside it.
func mapLimit(beside float64) float64 { return 3 * beside }

const (
	readPromise = "at most 1.5 × np.from_dlpack + 0.5 µs, in µs"
	mapPromise  = "at most 3 × the C client, in µs"
)

var pythonCases = []pythonCase{
	{"view", "from_dlpack", "stage.latest(name)", readPromise, readLimit},
	{"numpy", "from_dlpack", "stage.latest(name).numpy()", readPromise, readLimit},
	{"asarray", "from_dlpack", "np.asarray(stage.latest(name))", "", nil},
	{"group", "from_dlpack", "for group in stage.read_attributes(query, name): group.array()", readPromise, readLimit},
	{"unmap_python", "unmap_c", "session = stage.map(name); session.array[0] = x; session.unmap_attribute()", mapPromise, mapLimit},
	{"map_python", "map_c", "with stage.map(name) as session: session.array[0] = x", mapPromise, mapLimit},
}

// pythonResult is a case over its repetitions: medians of each, in nanoseconds.
type pythonResult struct {
	What   string `json:"what"`
	Time   spread `json:"ns"`
	Beside spread `json:"beside_ns"`
	Ratio  spread `json:"ratio"` // of the medians of each repetition
	Share  spread `json:"share_of_limit"`
}

// measurePython runs warm.py against a broker of its own, several times.
func (p programs) measurePython(o options, done func()) (results []pythonResult, err error) {
	b, err := p.startBroker(pinned, o.cpu)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.stop()) }()
	medians := map[string][]float64{}
	for range o.repetitions {
		samples, err := p.runWarm(b, o)
		if err != nil {
			return nil, err
		}
		for what, of := range samples {
			medians[what] = append(medians[what], describe(of).P50)
		}
		done()
	}
	for _, c := range pythonCases {
		times, beside := medians[c.what], medians[c.beside]
		if len(times) != o.repetitions || len(beside) != o.repetitions {
			return nil, fmt.Errorf("bench/python/warm.py measured %q %d times and %q %d times in %d runs", c.what, len(times), c.beside, len(beside), o.repetitions)
		}
		var ratios, shares []float64
		for i := range times {
			ratios = append(ratios, times[i]/beside[i])
			if c.limit != nil {
				shares = append(shares, times[i]/c.limit(beside[i]))
			}
		}
		result := pythonResult{What: c.text, Time: over(times), Beside: over(beside), Ratio: over(ratios)}
		if c.limit != nil {
			result.Share = over(shares)
		}
		results = append(results, result)
	}
	return results, nil
}

// runWarm gives the samples of one run by what they are of, in nanoseconds.
func (p programs) runWarm(b *brokerProcess, o options) (map[string][]float64, error) {
	library, err := filepath.Abs(p.mapInC)
	if err != nil {
		return nil, err
	}
	cmd := p.command(pinned, o.cpu, p.python, "bench/python/warm.py", b.stage, library, strconv.Itoa(o.rounds))
	cmd.Env = b.env
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", strings.Join(cmd.Args, " "), err)
	}
	samples := map[string][]float64{}
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		var what string
		var ns float64
		if _, err := fmt.Sscan(lines.Text(), &what, &ns); err != nil {
			return nil, fmt.Errorf("bench/python/warm.py printed %q: expected a word and a number", lines.Text())
		}
		samples[what] = append(samples[what], ns)
	}
	return samples, nil
}

// pythonPromises holds the results to what is promised of them. Limit and value are of one repetition each, so that what
// is compared is their median share.
func pythonPromises(results []pythonResult) (all []promise) {
	for i, r := range results {
		if c := pythonCases[i]; c.limit != nil {
			limit := c.limit(r.Beside.Median) / 1000
			all = append(all, promise{c.text + ": " + c.promised, r.Share.Median * limit, limit})
		}
	}
	return all
}

func pythonTable(results []pythonResult) table.Writer {
	t := table.NewWriter()
	t.SetTitle("Medians of the repetitions, with their extremes")
	t.AppendHeader(table.Row{"what", "µs", "beside it", "µs", "÷"})
	t.SetColumnConfigs(append(alignRight(2, 2), alignRight(4, 5)...))
	for i, r := range results {
		beside := "np.from_dlpack(array)"
		if strings.HasSuffix(pythonCases[i].beside, "_c") {
			beside = "the same through the C client"
		}
		t.AppendRow(table.Row{"`" + r.What + "`", fineMicros(r.Time), beside, fineMicros(r.Beside), ratio(r.Ratio)})
	}
	return t
}

// fineMicros shows times of some hundred nanoseconds.
func fineMicros(s spread) string {
	if s.Low == s.High {
		return fmt.Sprintf("%.2f", s.Median/1000)
	}
	return fmt.Sprintf("%.2f (%.2f–%.2f)", s.Median/1000, s.Low/1000, s.High/1000)
}

const pythonIntroduction = `# What Python's client costs once it is warm

Written by %[1]s

%[2]d CPUs (%[3]s), Linux %[4]s, %[5]s, %[6]s; %[8]s; load before the run: %[7]s. Broker and client run on one CPU.

An attribute of three float32 on the prim "/" is read, as a View and as a NumPy array, and a group as a NumPy array; beside
that np.from_dlpack takes over an array of the same process. Each sample is of 200 reads in a row, and what is compared takes
turns. A round of map is map and fill, and then either unmap or the end of the with block, which waits for the seal as well;
the C client, in the same process, takes turns with Python round by round.
`

// pythonReport is everything that a run found out of the warm Python client.
type pythonReport struct {
	Machine  machine        `json:"machine"`
	Python   string         `json:"python"`
	Command  string         `json:"command"`
	Results  []pythonResult `json:"results"`
	Promises []promise      `json:"promises"`
}

func measurePythonClient(o options, p programs) (err error) {
	if p.python == "" {
		return nil // said already
	}
	r := pythonReport{Machine: describeMachine(), Python: p.describePython(), Command: o.text()}
	done, finish := showProgress(int64(o.repetitions))
	defer finish()
	if r.Results, err = p.measurePython(o, done); err != nil {
		return err
	}
	finish()
	r.Promises = pythonPromises(r.Results)
	text := fmt.Sprintf(pythonIntroduction, "`"+r.Command+"`.", r.Machine.CPUs, r.Machine.CPU, r.Machine.Kernel, r.Machine.Go, r.Machine.Compiler, r.Machine.Load, r.Python)
	for _, t := range []table.Writer{promiseTable(r.Promises), pythonTable(r.Results)} {
		fmt.Println(t.Render())
		text += "\n" + t.RenderMarkdown() + "\n"
	}
	if o.quick {
		return coarse(r.Promises)
	}
	encoded, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	if err := o.writeResults(o.name+"-python", strings.ReplaceAll(text, "\n# ", "\n## "), encoded); err != nil {
		return err
	}
	return broken(r.Promises)
}

// coarse tells a regression from the noise of a few rounds on a busy machine: three times what is promised.
func coarse(all []promise) error {
	var wide []promise
	for _, p := range all {
		wide = append(wide, promise{p.Text + ", and in a quick run three times that", p.Is, 3 * p.Limit})
	}
	return broken(wide)
}
