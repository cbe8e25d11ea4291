package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"callboard/cudaipc"
)

// gpuPlan is what is measured on a device.
type gpuPlan struct {
	columns [][]scatterCase // the cases of each column
	large   int             // bytes of the copy that shows the card's bandwidth
	latency []int           // bytes of a group
}

func planGPU(quick bool) (p gpuPlan) {
	if quick {
		return gpuPlan{
			columns: [][]scatterCase{
				{{12, 2048, 128, 1}, {12, 2048, 128, 64}, {12, 2048, 128, 128}},
				{{4096, 256, 16, 1}, {4096, 256, 16, 16}},
			},
			large: 4 << 20, latency: []int{64, 1 << 20},
		}
	}
	for _, c := range []struct {
		rowBytes, rows int
		changed        []int
	}{
		{12, 1_000_000, []int{1024, 10_240, 102_400}},
		{64, 1_000_000, []int{1024, 10_240, 102_400}},
		{4096, 16_384, []int{128, 1024, 8192}},
	} {
		var cases []scatterCase
		for _, changed := range c.changed {
			for _, inRuns := range []int{1, 64, changed} {
				cases = append(cases, scatterCase{c.rowBytes, c.rows, changed, inRuns})
			}
		}
		p.columns = append(p.columns, cases)
	}
	p.large = 256 << 20
	p.latency = []int{64, 64 << 10, 1 << 20, 64 << 20, 256 << 20}
	return p
}

// scatterResult is a case over its repetitions: medians of each, in nanoseconds.
type scatterResult struct {
	scatterCase
	Whole  spread `json:"whole_ns"`  // map, and unmap to the end of the seal: without the producer's own work
	Commit spread `json:"commit_ns"` // unmap to the end of the seal
	Copy   spread `json:"copy_ns"`   // as many bytes in one copy
	Runs   spread `json:"runs_ns"`   // a copy for each run
	ToCopy spread `json:"commit_to_copy"`
	ToRuns spread `json:"commit_to_runs"`
}

// latencyResult is a size over its repetitions, in nanoseconds from before unmap to the reader's look.
type latencyResult struct {
	Bytes     int     `json:"bytes"`
	HostBytes int     `json:"host_bytes"`
	Host      latency `json:"host"`
	Device    latency `json:"device"`
	Event     latency `json:"device_with_event"`
	ToHost    spread  `json:"device_to_host_p50"`
	EventCost spread  `json:"event_ns"` // of medians: what an event adds
}

type latency struct {
	P50 spread `json:"p50_ns"`
	P99 spread `json:"p99_ns"`
}

// tally says what ran, whatever the driver.
type tally struct {
	Rounds int   `json:"rounds"`
	Bytes  int64 `json:"bytes_checked"`
}

func (t *tally) add(other tally) { t.Rounds, t.Bytes = t.Rounds+other.Rounds, t.Bytes+other.Bytes }

func (t tally) String() string {
	return fmt.Sprintf("%d rounds ran, and readers in other processes found every one of the %d bytes that they checked right", t.Rounds, t.Bytes)
}

// gpuSamples are what the repetitions found, before anything is made of it.
type gpuSamples struct {
	tally
	scatter [][][]scatterRun // of each column and case, each repetition
	large   [][]float64
	latency [][]latencyRun // of each size, each repetition
}

func (s *gpuSamples) take(plan gpuPlan, column int, got scatterOutcome) {
	for i, run := range got.Cases {
		s.scatter[column][i] = append(s.scatter[column][i], run)
	}
	s.large = append(s.large, got.Large)
	s.add(got.Tally)
}

// emulatedDriver is what cudaipc calls the driver of the tests.
const emulatedDriver = "emulated"

// findGPU gives the name of the driver, or why nothing can be measured.
func findGPU() (string, error) {
	found := cudaipc.Probe("")
	if found.Answer == cudaipc.No {
		return "", errors.New(found.Verdict.String())
	}
	if name := found.Driver.Name(); os.Getenv("REQUIRE_GPU") != "1" || name != emulatedDriver {
		return name, nil
	}
	return "", errors.New("REQUIRE_GPU=1, and the driver is the emulated one")
}

func measureGPU(o options, p programs) error {
	name, err := findGPU()
	switch {
	case err != nil && (o.only == "gpu" || os.Getenv("REQUIRE_GPU") == "1"):
		return fmt.Errorf("there is no GPU to measure: %w", err)
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench: the GPU is left out:", err)
		return nil
	case name == emulatedDriver && o.name != "":
		return errors.New("the driver is emulated, so that no time says anything of a GPU: no results are written under a name; -quick shows that the measurement runs")
	}
	plan := planGPU(o.quick)
	samples, err := p.runGPU(o, plan)
	if err != nil {
		return err
	}
	if name == emulatedDriver {
		fmt.Printf("emulated driver: no figures; %v\n", samples.tally)
		return nil
	}
	r := gpuReport{Device: name, DriverVersion: driverVersion(), Machine: describeMachine(), Command: o.text(), Checked: samples.tally}
	r.fill(plan, samples)
	fmt.Println(r.text())
	if o.name == "" {
		return nil
	}
	encoded, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	return errors.Join(o.writeResults(o.name+"-gpu", r.markdown(), encoded), broken(r.Promises))
}

// driverVersion is that of the kernel's part, which NVIDIA's own tool tells; "": it is not there.
func driverVersion() string {
	out, err := exec.Command("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").Output()
	if err != nil {
		return ""
	}
	first, _, _ := strings.Cut(string(out), "\n")
	return strings.TrimSpace(first)
}

// runGPU runs everything against one broker, repetition by repetition.
func (p programs) runGPU(o options, plan gpuPlan) (s gpuSamples, err error) {
	done, finish := showProgress(int64((len(plan.columns) + 1) * o.repetitions))
	defer finish()
	p.driver = cmp.Or(os.Getenv(cudaipc.LibraryEnv), cudaipc.DefaultLibrary)
	// A million prims need more memory than the half of a small /dev/shm, and no more than this.
	b, err := p.startBroker(free, o.cpu, "--gpu", "required,0", "--retain", "1", "--memory", "512MiB")
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, b.stop()) }()
	for _, cases := range plan.columns {
		s.scatter = append(s.scatter, make([][]scatterRun, len(cases)))
	}
	s.latency = make([][]latencyRun, len(plan.latency))
	limit := limits{Rounds: o.rounds, Budget: o.budget}
	for range o.repetitions {
		for i, cases := range plan.columns {
			var got scatterOutcome
			if err := p.play(b, "gpu-scatter", scatterOrder{b.stage, cases, plan.large, limit}, &got); err != nil {
				return s, err
			}
			s.take(plan, i, got)
			done()
		}
		var got latencyOutcome
		if err := p.play(b, "gpu-publish", latencyOrder{b.stage, plan.latency, limit}, &got); err != nil {
			return s, err
		}
		for i, run := range got.Sizes {
			s.latency[i] = append(s.latency[i], run)
		}
		s.add(got.Tally)
		done()
	}
	return s, nil
}

// play starts this program again in a role, which takes its order as an argument and prints its outcome, both in JSON.
func (p programs) play(b *brokerProcess, role string, order, outcome any) error {
	argument, err := json.Marshal(order)
	if err != nil {
		return err
	}
	cmd := p.command(free, 0, "/proc/self/exe", role, string(argument))
	cmd.Env = b.env
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%s: %w", role, err)
	}
	if err := json.NewDecoder(bytes.NewReader(out)).Decode(outcome); err != nil {
		return fmt.Errorf("%s printed %q: %w", role, out, err)
	}
	return nil
}
