package harness

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// patience bounds the end of a process.
const patience = 60 * time.Second

// Process is a child of the test that is told things by lines on its standard input, and reports by lines on its standard
// output.
type Process struct {
	Name string

	t       testing.TB
	command *exec.Cmd
	input   io.WriteCloser
	lines   chan string
	errors  *output
	ended   chan struct{} // its output is over and it was waited for
	status  error
}

// Spawn starts a process. Who spawns it sees to it that it ends with the test.
func Spawn(t testing.TB, name string, command *exec.Cmd) *Process {
	t.Helper()
	p := &Process{Name: name, t: t, command: command, lines: make(chan string, 4096), errors: &output{}, ended: make(chan struct{})}
	var err error
	p.input, err = command.StdinPipe()
	require.NoError(t, err)
	out, err := command.StdoutPipe()
	require.NoError(t, err)
	command.Stderr = p.errors
	require.NoError(t, command.Start())
	go func() {
		lines := bufio.NewScanner(out)
		lines.Buffer(nil, 4<<20)
		for lines.Scan() {
			p.lines <- lines.Text()
		}
		close(p.lines)
		p.status = command.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() {
		if text := p.Stderr(); t.Failed() && text != "" {
			t.Logf("%s wrote:\n%s", name, text)
		}
	})
	return p
}

// PID is its process id.
func (p *Process) PID() int { return p.command.Process.Pid }

// Stderr is what it has written to standard error so far.
func (p *Process) Stderr() string { return p.errors.String() }

// Lines are its reports as they stand. They are over when it ends.
func (p *Process) Lines() <-chan string { return p.lines }

// Tell gives it a line.
func (p *Process) Tell(line string) {
	p.t.Helper()
	_, err := io.WriteString(p.input, line+"\n")
	require.NoError(p.t, err, "%s wrote:\n%s", p.Name, p.Stderr())
}

// Hear waits for its next report, which is JSON.
func (p *Process) Hear(limit time.Duration, into any) {
	p.t.Helper()
	select {
	case line, open := <-p.lines:
		if !open {
			<-p.ended
			p.t.Fatalf("%s ended (%v) before it reported; it wrote:\n%s", p.Name, p.status, p.Stderr())
		}
		require.NoError(p.t, json.Unmarshal([]byte(line), into), "%s reported %s", p.Name, line)
	case <-time.After(limit):
		p.t.Fatalf("%s did not report within %v; it wrote:\n%s", p.Name, limit, p.Stderr())
	}
}

// Signal sends it a signal.
func (p *Process) Signal(s os.Signal) { _ = p.command.Process.Signal(s) }

// Kill is kill -9. A stopped process dies as well.
func (p *Process) Kill() {
	p.t.Helper()
	_ = p.command.Process.Kill()
	_ = p.Wait(patience)
}

// Wait waits for the end and gives the exit's error.
func (p *Process) Wait(limit time.Duration) error {
	p.t.Helper()
	deadline := time.After(limit)
	for lines := p.lines; ; {
		select {
		case <-p.ended:
			return p.status
		case _, open := <-lines: // unread reports must not hold it up
			if !open {
				lines = nil
			}
		case <-deadline:
			p.t.Errorf("%s did not end within %v", p.Name, limit)
			_ = p.command.Process.Kill()
			return errors.New("did not end")
		}
	}
}

// End ends its input.
func (p *Process) End() { _ = p.input.Close() }

// Done ends its input and wants success.
func (p *Process) Done() {
	p.t.Helper()
	p.End()
	require.NoError(p.t, p.Wait(patience), "%s wrote:\n%s", p.Name, p.Stderr())
}
