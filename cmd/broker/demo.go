package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// demoOptions are the demo's flags.
type demoOptions struct {
	steps   uint64
	seconds float64
	keep    bool
	asJSON  bool
}

const (
	defaultSteps   = 600
	stepsPerSecond = 100
	framesPerSec   = 30
)

func newDemo() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Run a simulation, a camera and a consumer that checks every value",
		Long: `Run a demonstration on real data, in a stage of its own, with one process for each part:

  broker       callboard serve, with its NATS server
  simulation   a MuJoCo humanoid (Python): publishes bodies and joints at every step, all at one ordinal
  camera       photographs (Python): fills each frame in place, at its own pace
  consumer     takes one snapshot per change (Python), and checks every value against a humanoid of its own
  observer     callboard watch: counts what is announced over NATS

It ends with a table, and with an error if anything differed, was torn, or is left behind. "make demo" installs what the
Python parts need; otherwise $CALLBOARD_PYTHON names a Python that has it.`,
		Example: "  make demo\n  callboard demo --steps 5000 --seconds 20\n  callboard demo --keep     and, in another terminal, what it prints",
		Args:    noArguments,
	}
	var o demoOptions
	cmd.Flags().Uint64Var(&o.steps, "steps", defaultSteps, "steps of the simulation")
	cmd.Flags().Float64Var(&o.seconds, "seconds", 0, fmt.Sprintf("how long the steps shall take (default %d steps a second)", stepsPerSecond))
	cmd.Flags().BoolVar(&o.keep, "keep", false, "go on after the table, until Ctrl-C, for a look with other commands")
	cmd.Flags().BoolVar(&o.asJSON, "json", false, "print the table as JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if o.steps == 0 || o.steps > 1<<32 || o.seconds < 0 {
			return usagef("--steps is %d and --seconds is %v: expected 1 to 2^32 steps and no negative time", o.steps, o.seconds)
		}
		if o.seconds == 0 {
			o.seconds = float64(o.steps) / stepsPerSecond
		}
		return demo(cmd.Context(), o, cmd.OutOrStdout(), cmd.ErrOrStderr())
	}
	return cmd
}

// demo runs everything, reports, and removes everything, in whatever way it ends.
func demo(ctx context.Context, o demoOptions, out, notes io.Writer) (err error) {
	cast, err := newCast(demoStage(), notes)
	if err != nil {
		return err
	}
	results, err := play(ctx, cast, o, notes)
	if err == nil && o.keep {
		err = keepOn(ctx, cast, results, o, out, notes)
	}
	if err != nil && ctx.Err() == nil {
		err = cast.explain(err)
	}
	left := cast.end()
	switch {
	case err != nil && ctx.Err() != nil:
		err = errors.New("interrupted")
		if left == nil {
			return exitf(exitFailure, "interrupted; all processes have ended and nothing is left behind")
		}
		fallthrough
	case err != nil || left != nil:
		err = errors.Join(err, left)
		if strings.Contains(err.Error(), "ModuleNotFoundError") {
			err = fmt.Errorf("%w\n`make demo` installs what is missing; or set CALLBOARD_PYTHON to a Python that has it", err)
		}
		return exitf(exitFailure, "THE DEMO FAILED: %w", err)
	case o.keep:
		return nil // the table was shown before
	}
	return results.show(out, o.asJSON)
}

// demoStage is a name that no other demo has.
func demoStage() string {
	var random [4]byte
	_, _ = rand.Read(random[:]) // never fails
	return "demo-" + hex.EncodeToString(random[:])
}

// play starts the cast, runs all steps and collects what everybody found.
func play(ctx context.Context, c *cast, o demoOptions, notes io.Writer) (*results, error) {
	if err := c.enter(ctx, o); err != nil {
		return nil, err
	}
	r := &results{Stage: c.stage}
	bar := newBar(notes, o.steps)
	defer bar.stop()
	c.begin()
	deadline := time.After(time.Duration(o.seconds*float64(time.Second)) + patience)
	for !r.simulationDone || !r.consumerDone {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-deadline:
			return nil, fmt.Errorf("the steps took more than %v longer than the %v s they should: step %d of %d", patience, o.seconds, bar.at, o.steps)
		case line := <-c.lines:
			if line.Progress > 0 {
				bar.set(line.Progress)
			}
			if err := r.take(line); err != nil {
				return nil, err
			}
		}
	}
	bar.set(o.steps)
	if !o.keep {
		// The camera has no end of its own. What it published last is announced before the state is asked for.
		if err := c.dismiss("camera"); err != nil {
			return nil, err
		}
	}
	return r, r.ask(ctx, c)
}

// keepOn shows the table and waits for Ctrl-C; what fails meanwhile still fails the demo.
func keepOn(ctx context.Context, c *cast, r *results, o demoOptions, out, notes io.Writer) error {
	if err := r.show(out, o.asJSON); err != nil {
		return err
	}
	fmt.Fprintf(notes, "\nThe stage goes on until Ctrl-C. In another terminal:\n"+
		"  callboard watch --stage %[1]s\n  callboard info --stage %[1]s\n  callboard read body/position --stage %[1]s\n", c.stage)
	for {
		select {
		case <-ctx.Done():
			return nil
		case line := <-c.lines:
			if err := r.take(line); err != nil {
				return err
			}
		}
	}
}
