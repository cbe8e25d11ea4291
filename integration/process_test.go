package integration

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// roles are the parts that a process of its own may play.
var roles = map[string]func(*part) error{}

// part is a role's side of its process.
type part struct {
	orders chan string // lines of standard input
	config string
}

// play runs a role until it returns or its standard input ends.
func play(role string) int {
	p := &part{orders: make(chan string, 16), config: os.Getenv(roleEnv + "_CONFIG")}
	run := roles[role]
	if run == nil {
		fmt.Fprintf(os.Stderr, "no role is named %q\n", role)
		return 2
	}
	go func() {
		lines := bufio.NewScanner(os.Stdin)
		for lines.Scan() {
			p.orders <- lines.Text()
		}
		os.Exit(0) // whoever started us is gone
	}()
	if err := run(p); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", role, err)
		return 1
	}
	return 0
}

// read decodes what the role is asked to be.
func (p *part) read(into any) {
	if err := json.Unmarshal([]byte(p.config), into); err != nil {
		panic(err)
	}
}

// say reports one JSON line.
func (p *part) say(v any) {
	line, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	_, _ = os.Stdout.Write(append(line, '\n'))
}

// hear waits for the next order.
func (p *part) hear() string { return <-p.orders }

// process is a role as its test sees it.
type process struct {
	t      *testing.T
	name   string
	cmd    *exec.Cmd
	in     io.WriteCloser
	lines  chan string
	mu     sync.Mutex
	errors strings.Builder
	ended  chan struct{} // its output is over and it was waited for
	status error
}

// spawn starts a role with its configuration in an environment. It is killed at the end
// of the test if it still runs.
func spawn(t *testing.T, role string, config any, env []string) *process {
	t.Helper()
	return spawnAs(t, role, config, env, func(*exec.Cmd) {})
}

// spawnAs lets the test change how the process is started.
func spawnAs(t *testing.T, role string, config any, env []string, change func(*exec.Cmd)) *process {
	t.Helper()
	raw, err := json.Marshal(config)
	require.NoError(t, err)
	p := &process{t: t, name: role, cmd: exec.Command(os.Args[0]), lines: make(chan string, 4096), ended: make(chan struct{})}
	p.cmd.Env = append(slices.Clone(env), roleEnv+"="+role, roleEnv+"_CONFIG="+string(raw))
	p.in, err = p.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	p.cmd.Stderr = p
	change(p.cmd)
	require.NoError(t, p.cmd.Start())
	go func() {
		lines := bufio.NewScanner(out)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			p.lines <- lines.Text()
		}
		close(p.lines)
		p.status = p.cmd.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() {
		p.kill()
		if text := p.stderr(); t.Failed() && text != "" {
			t.Logf("%s wrote:\n%s", role, text)
		}
	})
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

// tell gives an order.
func (p *process) tell(order string) {
	p.t.Helper()
	_, err := io.WriteString(p.in, order+"\n")
	require.NoError(p.t, err, "%s wrote:\n%s", p.name, p.stderr())
}

// hear waits for the next report.
func (p *process) hear(limit time.Duration, into any) {
	p.t.Helper()
	select {
	case line, open := <-p.lines:
		if !open {
			<-p.ended
			p.t.Fatalf("%s ended (%v) before it reported; it wrote:\n%s", p.name, p.status, p.stderr())
		}
		require.NoError(p.t, json.Unmarshal([]byte(line), into), "%s reported %s", p.name, line)
	case <-time.After(limit):
		p.t.Fatalf("%s did not report within %v; it wrote:\n%s", p.name, limit, p.stderr())
	}
}

// expect waits for a report that is this word.
func (p *process) expect(word string) {
	p.t.Helper()
	var got string
	p.hear(soon, &got)
	require.Equal(p.t, word, got)
}

// kill is kill -9. A stopped process dies as well.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	p.wait(soon)
}

func (p *process) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

// wait waits for the end and gives the exit's error.
func (p *process) wait(limit time.Duration) error {
	p.t.Helper()
	deadline := time.After(limit)
	for {
		select {
		case <-p.ended:
			return p.status
		case <-p.lines: // unread reports must not hold it up
		case <-deadline:
			p.t.Errorf("%s did not end within %v", p.name, limit)
			_ = p.cmd.Process.Kill()
			return errors.New("did not end")
		}
	}
}

// done closes its input and wants success.
func (p *process) done() {
	p.t.Helper()
	_ = p.in.Close()
	require.NoError(p.t, p.wait(soon), "%s wrote:\n%s", p.name, p.stderr())
}
