package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
)

// results is what all processes found, and the demo's verdict.
type results struct {
	Stage      string           `json:"stage"`
	Simulation simulationResult `json:"simulation"`
	Consumer   consumerResult   `json:"consumer"`
	Broker     brokerResult     `json:"broker"`
	Observer   observerResult   `json:"observer"`

	simulationDone, consumerDone bool
}

type simulationResult struct {
	Steps   uint64  `json:"steps"`
	Seconds float64 `json:"seconds"`
}

type consumerResult struct {
	LastStep     uint64  `json:"last_step"`
	Snapshots    uint64  `json:"snapshots"`
	Torn         uint64  `json:"torn"` // attributes of one snapshot from different steps
	Values       uint64  `json:"values"`
	ValuesWrong  uint64  `json:"values_wrong"`
	Frames       uint64  `json:"frames"`
	FramesWrong  uint64  `json:"frames_wrong"`
	LatencyP50US float64 `json:"latency_p50_us"`
	LatencyP99US float64 `json:"latency_p99_us"`
	Latencies    uint64  `json:"latencies"`
}

type brokerResult struct {
	Epoch          uint64 `json:"epoch"`
	Frames         uint64 `json:"frames_published"`
	BytesPublished uint64 `json:"bytes_published"`
	BytesCopied    uint64 `json:"bytes_copied"`
	Adopted        uint64 `json:"adopted"`
	AdoptRefused   uint64 `json:"adopt_refused"`
	Copied         uint64 `json:"copied"`
}

type observerResult struct {
	Events  uint64 `json:"events"`
	Commits uint64 `json:"commits"`
	Groups  uint64 `json:"groups"`
	Gaps    uint64 `json:"gaps"`
}

// take notes a process's result; its error ends the demo.
func (r *results) take(l line) error {
	if err := l.problem(); err != nil {
		return err
	}
	if len(l.Result) == 0 {
		return nil
	}
	var err error
	switch l.from.name {
	case "simulation":
		err, r.simulationDone = json.Unmarshal(l.Result, &r.Simulation), true
	case "consumer":
		err, r.consumerDone = json.Unmarshal(l.Result, &r.Consumer), true
	}
	l.from.finished = true
	if err != nil {
		return fmt.Errorf("the result of %s is not understood: %w", l.from.name, err)
	}
	return nil
}

const announceWait = 3 * time.Second

// ask gets the broker's counters, and the observer's once it has heard of the epoch that they tell.
func (r *results) ask(ctx context.Context, c *cast) error {
	d, err := describeStage(ctx, c.stage)
	if err != nil {
		return fmt.Errorf("asking the broker for its counters: %w", err)
	}
	r.Broker = brokerResult{Epoch: d.Epoch, BytesCopied: uint64(d.Counters["copied_bytes"])}
	for _, a := range d.Attributes {
		r.Broker.Adopted += a.Adopted
		r.Broker.Copied += a.Scattered
		r.Broker.AdoptRefused += a.AdoptRefused
		r.Broker.BytesPublished += a.Bytes * (a.Adopted + a.Scattered)
		if a.Name == "camera/rgb" {
			r.Broker.Frames = a.Floor
		}
	}
	deadline := time.Now().Add(announceWait)
	for {
		events, commits, epoch, groups, gaps := c.observer.counts()
		r.Observer = observerResult{events, commits, groups, gaps}
		if epoch >= d.Epoch {
			if commits != epoch {
				return fmt.Errorf("the observer was told of %d commits up to epoch %d (%d events lost): expected one for each epoch", commits, epoch, gaps)
			}
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the observer was told of epochs up to %d within %v: expected %d", epoch, announceWait, d.Epoch)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// verdict joins everything that is not as it should be.
func (r *results) verdict() error {
	var problems []error
	expect := func(ok bool, format string, v ...any) {
		if !ok {
			problems = append(problems, fmt.Errorf(format, v...))
		}
	}
	expect(r.Consumer.LastStep >= r.Simulation.Steps, "the consumer saw step %d last: expected %d", r.Consumer.LastStep, r.Simulation.Steps)
	expect(r.Consumer.Torn == 0, "%d snapshots were torn", r.Consumer.Torn)
	expect(r.Consumer.ValuesWrong == 0, "%d of %d values differ from the simulator's", r.Consumer.ValuesWrong, r.Consumer.Values)
	expect(r.Consumer.Values > 0, "no value was compared")
	expect(r.Consumer.FramesWrong == 0, "%d of %d camera frames differ from their photographs", r.Consumer.FramesWrong, r.Consumer.Frames)
	expect(r.Consumer.Frames > 0, "no camera frame was compared")
	expect(r.Observer.Commits > 0, "no commit was announced")
	expect(r.Observer.Gaps == 0, "%d announcements were lost", r.Observer.Gaps)
	return errors.Join(problems...)
}

// show prints the table and returns the verdict.
func (r *results) show(out io.Writer, asJSON bool) error {
	verdict := r.verdict()
	if asJSON {
		if err := printJSON(out, r); err != nil {
			return err
		}
	} else {
		r.table(out, verdict)
	}
	if verdict != nil {
		return exitf(exitFailure, "THE DEMO FAILED: %w", verdict)
	}
	return nil
}

func (r *results) table(out io.Writer, verdict error) {
	t := newTable(out)
	t.SetStyle(table.StyleLight)
	c, b := r.Consumer, r.Broker
	verified := "everything is as it should be"
	if verdict != nil {
		verified = "SOMETHING DIFFERS"
	}
	t.SetTitle("callboard demo: " + verified)
	t.AppendRows([]table.Row{
		{"simulation steps", r.Simulation.Steps, fmt.Sprintf("in %.1f s", r.Simulation.Seconds)},
		{"camera frames", b.Frames, ""},
		{"snapshots read", c.Snapshots, "each of one epoch"},
		{"torn reads", c.Torn, ""},
		{"values verified", c.Values, fmt.Sprintf("%d differ from the simulator's own", c.ValuesWrong)},
		{"camera frames verified", c.Frames, fmt.Sprintf("%d differ from the photographs", c.FramesWrong)},
		{"from unmap to reader, p50", fmt.Sprintf("%.0f µs", c.LatencyP50US), plural(c.Latencies, "step")},
		{"from unmap to reader, p99", fmt.Sprintf("%.0f µs", c.LatencyP99US), ""},
		{"bytes published", formatSize(b.BytesPublished), fmt.Sprintf("%d versions adopted, %d copied", b.Adopted, b.Copied)},
		{"bytes copied by the broker", formatSize(b.BytesCopied), fmt.Sprintf("%d adoptions refused", b.AdoptRefused)},
		{"announcements seen", r.Observer.Events, fmt.Sprintf("%d commits, %d groups", r.Observer.Commits, r.Observer.Groups)},
		{"sequence gaps", r.Observer.Gaps, ""},
	})
	rightAligned(t, 2)
	t.Render()
}
