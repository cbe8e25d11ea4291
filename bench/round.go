package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"callboard/cudaipc"
)

// rounds are the samples of one run, in nanoseconds: from before map, and from before
// unmap, to the reader's look.
type rounds struct {
	cycle, handoff []float64
}

// place says on which CPUs the processes of a measurement may run.
type place string

const (
	pinned place = "pinned" // all on one CPU: compares software
	free   place = "free"   // wherever the kernel puts them: what users see
)

// command starts a program in its place; children and threads inherit it.
func (p programs) command(where place, cpu int, argv ...string) *exec.Cmd {
	if where == pinned {
		argv = append([]string{p.pin, strconv.Itoa(cpu)}, argv...)
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stderr = os.Stderr
	return cmd
}

// run starts a program that prints one line per round and collects them.
func run(cmd *exec.Cmd) (rounds, error) {
	var r rounds
	out, err := cmd.Output()
	if err != nil {
		return r, fmt.Errorf("%s: %w", strings.Join(cmd.Args, " "), err)
	}
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		var cycle, handoff float64
		if _, err := fmt.Sscan(lines.Text(), &cycle, &handoff); err != nil {
			return r, fmt.Errorf("%s printed %q: expected two numbers", cmd.Args[0], lines.Text())
		}
		r.cycle, r.handoff = append(r.cycle, cycle), append(r.handoff, handoff)
	}
	if len(r.cycle) == 0 {
		return r, fmt.Errorf("%s measured no round", cmd.Args[0])
	}
	return r, nil
}

// runRelay runs n rounds of the bare relay.
func (p programs) runRelay(where place, cpu, n int) (rounds, error) {
	return run(p.command(where, cpu, p.relay, strconv.Itoa(n), strconv.Itoa(n/10)))
}

// brokerProcess is a broker of our own, with a runtime directory that nobody else uses.
type brokerProcess struct {
	cmd   *exec.Cmd
	stdin io.Closer
	stage string
	dir   string
	env   []string
}

// startBroker returns once clients can attach.
func (p programs) startBroker(where place, cpu int, args ...string) (b *brokerProcess, err error) {
	dir, err := os.MkdirTemp("", "callboard-bench-")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = os.RemoveAll(dir)
		}
	}()
	b = &brokerProcess{stage: fmt.Sprintf("bench-%d", os.Getpid()), dir: dir}
	for _, entry := range os.Environ() {
		if !strings.HasPrefix(entry, "CALLBOARD_") && !strings.HasPrefix(entry, "XDG_RUNTIME_DIR=") {
			b.env = append(b.env, entry)
		}
	}
	b.env = append(b.env, "XDG_RUNTIME_DIR="+dir)
	if p.driver != "" {
		b.env = append(b.env, cudaipc.LibraryEnv+"="+p.driver)
	}
	executable, err := filepath.Abs(p.callboard)
	if err != nil {
		return nil, err
	}
	argv := []string{executable, "serve", "--stage", b.stage, "--log-level", "warn", "--until-stdin-closes"}
	argv = append(argv, args...)
	b.cmd = p.command(where, cpu, argv...)
	b.cmd.Env = b.env
	if b.stdin, err = b.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := b.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := b.cmd.Start(); err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "callboard ready") {
		return nil, errors.Join(fmt.Errorf("the broker did not become ready, it said %q", line), b.stop())
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()
	return b, nil
}

// stop ends the broker and fails if it left anything behind or did not end well.
func (b *brokerProcess) stop() error {
	_ = b.cmd.Process.Signal(syscall.SIGTERM)
	timer := time.AfterFunc(10*time.Second, func() { _ = b.cmd.Process.Kill() })
	defer timer.Stop()
	err := b.cmd.Wait()
	_ = b.stdin.Close()
	if err != nil {
		err = fmt.Errorf("the broker's end: %w", err)
	}
	return errors.Join(err, os.RemoveAll(b.dir))
}

// measurement is one line of the tables: who publishes what how.
type measurement struct {
	Client  string `json:"client"`  // c, go, python
	Bytes   int    `json:"bytes"`   // of the column
	Handoff string `json:"handoff"` // adopt, copy
	Writing string `json:"writing"` // stamp, fill
	Sealing string `json:"sealing"` // with unmap, after it
}

// runMeasurement measures one attribute of the broker, which keeps it warm for the
// next repetition.
func (p programs) runMeasurement(b *brokerProcess, where place, cpu int, m measurement, n int, budget time.Duration) (rounds, error) {
	attribute := fmt.Sprintf("%s/%d/%s/%s/%s", m.Client, m.Bytes, m.Handoff, m.Writing, m.Sealing)
	program := []string{p.latency}
	switch m.Client {
	case "go":
		program = []string{p.latencyGo}
	case "python":
		program = []string{p.python, "bench/latency/latency.py"}
	}
	argv := append(program, b.stage, attribute, strconv.Itoa(m.Bytes), strconv.Itoa(n), strconv.Itoa(warmUp(n, m.Bytes)),
		fmt.Sprint(budget.Seconds()), m.Handoff, m.Writing, m.Sealing)
	cmd := p.command(where, cpu, argv...)
	cmd.Env = b.env
	return run(cmd)
}

// warmUp is how many rounds are not counted: enough that every block of the pool was
// touched before.
func warmUp(n, size int) int {
	if size >= 16<<20 {
		return 12
	}
	return n/10 + 12
}
