package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"callboard/shm"
)

const (
	patience     = 60 * time.Second // for starts: a cold disk and Python's imports take their time
	graceForEnds = 5 * time.Second  // until a process that was told to end is killed
	explainWait  = 300 * time.Millisecond
)

// cast is all processes of one demo. Its methods are called from one goroutine.
type cast struct {
	stage      string
	runtimeDir string
	program    string // this binary
	scripts    string // examples/demo
	python     string
	lines      chan line // what the processes say, in the order of arrival
	processes  []*process
	observer   *counter
	notes      io.Writer
}

func newCast(stage string, notes io.Writer) (*cast, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding this program: %w", err)
	}
	c := &cast{stage: stage, program: program, lines: make(chan line, 64), notes: notes, observer: &counter{}}
	places := []string{filepath.Join(filepath.Dir(program), ".."), "."}
	for _, tree := range places {
		scripts := filepath.Join(tree, "examples", "demo")
		if exists(filepath.Join(scripts, "simulation.py")) {
			c.scripts, c.python = scripts, findPython(tree)
			return c, nil
		}
	}
	return nil, fmt.Errorf("there is no examples/demo in %s: run the demo from the source tree, with `make demo`", strings.Join(places, " nor in "))
}

// findPython takes the one that is asked for, else that of the tree's own environment, else any.
func findPython(tree string) string {
	if python := os.Getenv("CALLBOARD_PYTHON"); python != "" {
		return python
	}
	if python := filepath.Join(tree, ".venv", "bin", "python"); exists(python) {
		return python
	}
	return "python3"
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// enter starts everybody, the broker first, and returns when all are ready.
func (c *cast) enter(ctx context.Context, o demoOptions) error {
	serve, err := c.start("broker", c.program, "serve", "--stage", c.stage, "--log-level", "warn", "--"+untilStdinCloses)
	if err != nil {
		return err
	}
	if err := c.await(ctx, serve); err != nil {
		return err
	}
	if c.runtimeDir, err = shm.FindRuntime(c.stage); err != nil {
		return err
	}
	rate := strconv.FormatFloat(float64(o.steps)/o.seconds, 'g', -1, 64)
	steps := strconv.FormatUint(o.steps, 10)
	var keep []string
	if o.keep {
		keep = []string{"--keep"}
	}
	for _, part := range []struct {
		name      string
		arguments []string
	}{
		{"observer", []string{c.program, "watch", "--stage", c.stage, "--json", "--" + untilStdinCloses}},
		{"consumer", append([]string{c.python, c.script("consumer.py"), "--stage", c.stage, "--steps", steps}, keep...)},
		{"simulation", append([]string{c.python, c.script("simulation.py"), "--stage", c.stage, "--steps", steps, "--rate", rate}, keep...)},
		{"camera", []string{c.python, c.script("camera.py"), "--stage", c.stage, "--rate", strconv.Itoa(framesPerSec)}},
	} {
		if _, err := c.start(part.name, part.arguments...); err != nil {
			return err
		}
	}
	if err := c.await(ctx, c.processes...); err != nil {
		return err
	}
	var list []string
	for _, p := range c.processes {
		list = append(list, fmt.Sprintf("%s %d", p.name, p.command.Process.Pid))
	}
	fmt.Fprintf(c.notes, "stage %s; processes: %s\n", c.stage, strings.Join(list, ", "))
	return nil
}

func (c *cast) script(name string) string { return filepath.Join(c.scripts, name) }

func (c *cast) start(name string, arguments ...string) (*process, error) {
	understand := understandChild
	switch name {
	case "broker":
		understand = understandServe
	case "observer":
		understand = c.observer.understand
	}
	p, err := startProcess(name, arguments, understand, c.lines)
	if err != nil {
		return nil, err
	}
	c.processes = append(c.processes, p)
	return p, nil
}

// await returns when all of these are ready.
func (c *cast) await(ctx context.Context, processes ...*process) error {
	deadline := time.After(patience)
	for {
		var missing []string
		for _, p := range processes {
			if !p.ready {
				missing = append(missing, p.name)
			}
		}
		if len(missing) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-deadline:
			return fmt.Errorf("not ready after %v: %s", patience, strings.Join(missing, ", "))
		case l := <-c.lines:
			if l.Ready {
				l.from.ready = true
			}
			if err := l.problem(); err != nil {
				return err
			}
		}
	}
}

// begin lets the Python parts go on; the others pass the word over.
func (c *cast) begin() {
	for _, p := range c.processes {
		_, _ = io.WriteString(p.input, "go\n")
	}
}

// dismiss ends one process in order; its last words stay in lines.
func (c *cast) dismiss(name string) error {
	for _, p := range c.processes {
		if p.name == name {
			return p.end(graceForEnds)
		}
	}
	panic("demo: no process is named " + name)
}

// explain adds what else went wrong at about the same time: who finds that the broker is gone may say so before it is
// known that the broker was killed.
func (c *cast) explain(err error) error {
	all := []error{err}
	deadline := time.After(explainWait)
	for {
		select {
		case l := <-c.lines:
			if problem := l.problem(); problem != nil {
				all = append(all, problem)
			}
		case <-deadline:
			return errors.Join(all...)
		}
	}
}

// end ends everybody, the broker last, and returns who did not end in order and what was left behind. That is removed
// in any case.
func (c *cast) end() error {
	// Nobody listens any more, but who speaks must not block.
	go func() {
		for range c.lines {
		}
	}()
	var problems []error
	for i := len(c.processes) - 1; i > 0; i-- {
		c.processes[i].closeInput() // all at once, but for the broker: a client that lost it first would complain
	}
	for i := len(c.processes) - 1; i >= 0; i-- {
		if err := c.processes[i].end(graceForEnds); err != nil {
			problems = append(problems, err)
		}
	}
	memory := shm.ShmDir("", c.stage)
	rows, err := collect("", false, func(l shm.Leftover) bool { return l.Path == memory || l.Path == c.runtimeDir })
	problems = append(problems, err)
	for _, row := range rows {
		problems = append(problems, fmt.Errorf("%s was still there (%s, %s): %s", row.Path, row.What, formatSize(row.Bytes), row.State))
	}
	return errors.Join(problems...)
}
