package gpu

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// patience bounds what must happen some time.
const patience = 60 * time.Second

// process is a client as its test sees it.
type process struct {
	t      *testing.T
	name   string
	cmd    *exec.Cmd
	in     io.WriteCloser
	lines  chan string
	ended  chan struct{}
	status error
	killed bool

	mu     sync.Mutex
	errors strings.Builder
}

// spawn starts a client, which is attached when this returns.
func spawn(t *testing.T, name string, env []string) *process {
	t.Helper()
	p := &process{t: t, name: name, cmd: exec.Command(os.Args[0]), lines: make(chan string, 64), ended: make(chan struct{})}
	p.cmd.Env = append(env, roleEnv+"="+name)
	var err error
	p.in, err = p.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	p.cmd.Stderr = p
	require.NoError(t, p.cmd.Start())
	go func() {
		lines := bufio.NewScanner(out)
		lines.Buffer(nil, 4<<20)
		for lines.Scan() {
			p.lines <- lines.Text()
		}
		close(p.lines)
		p.status = p.cmd.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() {
		if t.Failed() {
			if text := p.stderr(); text != "" {
				t.Logf("%s wrote:\n%s", name, text)
			}
		}
	})
	require.Empty(t, p.hear().Error)
	return p
}

// Write collects standard error.
func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.errors.Write(b)
}

func (p *process) stderr() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.errors.String()
}

// tell gives an order without waiting for its report.
func (p *process) tell(o order) {
	p.t.Helper()
	raw, err := json.Marshal(o)
	require.NoError(p.t, err)
	_, err = p.in.Write(append(raw, '\n'))
	require.NoError(p.t, err, "%s wrote:\n%s", p.name, p.stderr())
}

// hear waits for the next report.
func (p *process) hear() (r report) {
	p.t.Helper()
	select {
	case line, open := <-p.lines:
		if !open {
			<-p.ended
			p.t.Fatalf("%s ended (%v); it wrote:\n%s", p.name, p.status, p.stderr())
		}
		require.NoError(p.t, json.Unmarshal([]byte(line), &r), "%s reported %s", p.name, line)
	case <-time.After(patience):
		p.t.Fatalf("%s did not report within %v; it wrote:\n%s", p.name, patience, p.stderr())
	}
	return r
}

// try gives an order and its report, an error or not.
func (p *process) try(o order) report {
	p.t.Helper()
	p.tell(o)
	return p.hear()
}

// do is try of what must succeed.
func (p *process) do(o order) report {
	p.t.Helper()
	r := p.try(o)
	require.Empty(p.t, r.Error, "%s: %+v", p.name, o)
	return r
}

// refused is try of what must fail, with a kind and some words.
func (p *process) refused(o order, kind string, words ...string) {
	p.t.Helper()
	r := p.try(o)
	require.Equal(p.t, kind, r.Kind, "%s: %+v: %s", p.name, o, r.Error)
	for _, word := range words {
		require.Contains(p.t, r.Error, word)
	}
}

// kill is kill -9.
func (p *process) kill() {
	p.killed = true
	_ = p.cmd.Process.Kill()
	p.await()
}

// end closes its input and wants success: it gives everything back and exits.
func (p *process) end() {
	p.t.Helper()
	_ = p.in.Close()
	p.await()
	if !p.killed {
		require.NoError(p.t, p.status, "%s wrote:\n%s", p.name, p.stderr())
	}
}

func (p *process) await() {
	p.t.Helper()
	deadline := time.After(patience)
	for {
		select {
		case <-p.ended:
			return
		case _, open := <-p.lines: // unread reports must not hold it up
			if !open {
				<-p.ended
				return
			}
		case <-deadline:
			_ = p.cmd.Process.Kill()
			p.t.Fatalf("%s did not end within %v", p.name, patience)
		}
	}
}
