package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// line is what a process of the demo says, one JSON object on its standard output, or that it has ended.
type line struct {
	Ready    bool            `json:"ready"`
	Progress uint64          `json:"progress"`
	Result   json.RawMessage `json:"result"`
	Failure  string          `json:"failure"`

	from  *process
	ended bool
	err   error // of an end that was not in order
}

// problem is what in a line ends the demo.
func (l line) problem() error {
	switch {
	case l.Failure != "":
		l.from.told = true
		return fmt.Errorf("%s: %s", l.from.name, l.Failure)
	case l.ended && l.from.told:
		return nil
	case l.ended && l.err != nil:
		l.from.told = true
		return l.err
	case l.ended && !l.from.finished:
		return fmt.Errorf("%s ended before it was done%s", l.from.name, l.from.lastWords())
	}
	return nil
}

// process is one of the demo's processes. Its standard input is a pipe that nothing but this supervisor holds open: when the
// supervisor dies, even by kill -9, the kernel closes it and the process ends itself.
type process struct {
	name    string
	command *exec.Cmd
	input   io.WriteCloser
	exited  chan struct{}
	err     error // how it ended, once exited is closed; nil: in order

	// The supervisor's goroutine alone.
	ready    bool
	finished bool // has given its result, or was told to end: its end is in order
	told     bool // its error is part of the demo's

	mu      sync.Mutex
	closing bool
	words   []string // the last lines on standard error
}

const wordsKept = 15

// startProcess starts a program. understand makes a line of each line of output (stderr tells which stream); false: it
// says nothing to the supervisor.
func startProcess(name string, arguments []string, understand func(text string, stderr bool) (line, bool), to chan<- line) (*process, error) {
	p := &process{name: name, command: exec.Command(arguments[0], arguments[1:]...), exited: make(chan struct{})}
	// A group of its own: Ctrl-C reaches the supervisor alone, which then ends the others in order.
	p.command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.command.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1")
	var err error
	if p.input, err = p.command.StdinPipe(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	output, err := p.command.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	complaints, err := p.command.StderrPipe()
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	if err := p.command.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	var reading sync.WaitGroup
	for _, stream := range []struct {
		from   io.Reader
		stderr bool
	}{{output, false}, {complaints, true}} {
		reading.Go(func() { p.read(stream.from, stream.stderr, understand, to) })
	}
	go func() {
		reading.Wait()
		if err := p.command.Wait(); err != nil {
			p.err = fmt.Errorf("%s ended with %w%s", name, err, p.lastWords())
		}
		close(p.exited)
		to <- line{from: p, ended: true, err: p.err}
	}()
	return p, nil
}

func (p *process) read(from io.Reader, stderr bool, understand func(string, bool) (line, bool), to chan<- line) {
	scanner := bufio.NewScanner(from)
	scanner.Buffer(nil, 4<<20)
	for scanner.Scan() {
		l, understood := understand(scanner.Text(), stderr)
		if understood {
			l.from = p
			to <- l
		} else if stderr {
			p.mu.Lock()
			p.words = append(p.words[max(0, len(p.words)-wordsKept+1):], scanner.Text())
			p.mu.Unlock()
		}
	}
	_, _ = io.Copy(io.Discard, from) // a line too long: the process must not block
}

// lastWords is what the process said on standard error, for an error's text.
func (p *process) lastWords() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	text := ""
	for _, word := range p.words {
		text += "\n  | " + word
	}
	return text
}

// closeInput tells the process to end.
func (p *process) closeInput() {
	p.finished = true
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closing {
		p.closing = true
		_ = p.input.Close()
	}
}

// end tells it to, waits, and kills it if that takes too long, which is an error. Another end that was not in order is
// one too, if it was not told before.
func (p *process) end(grace time.Duration) error {
	p.closeInput()
	select {
	case <-p.exited:
		if p.told {
			return nil
		}
		p.told = true
		return p.err
	case <-time.After(grace):
	}
	_ = p.command.Process.Kill()
	<-p.exited
	return fmt.Errorf("%s did not end within %v and was killed%s", p.name, grace, p.lastWords())
}

// understandChild reads what examples/demo/child.py writes.
func understandChild(text string, stderr bool) (line, bool) {
	var l line
	return l, !stderr && json.Unmarshal([]byte(text), &l) == nil
}

// understandServe waits for serve's ready line.
func understandServe(text string, stderr bool) (line, bool) {
	return line{Ready: true}, !stderr && strings.HasPrefix(text, "callboard ready ")
}
