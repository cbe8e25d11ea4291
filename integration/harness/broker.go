package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	callboard "callboard/clients/go"
	"callboard/fault"
)

// Time that a broker gets to start and to stop.
const (
	startWait = 30 * time.Second
	stopWait  = 30 * time.Second
)

// Broker is one running broker.
type Broker struct {
	// Stage is its stage, RuntimeDir the directory of its attach.sock, ShmDir the base
	// directory of its memory.
	Stage, RuntimeDir, ShmDir string

	t       testing.TB
	args    []string
	binary  string   // "": the harness's own
	env     []string // besides Env
	command *exec.Cmd
	output  *output
	exited  chan struct{}
	status  *error // of the same life; it is there when exited is closed
}

// Start runs a broker and waits until a client can attach. args are further
// arguments of `callboard serve`.
func Start(t testing.TB, args ...string) *Broker {
	t.Helper()
	return start(&Broker{t: t, args: args})
}

// StartIn is Start with more in the broker's environment. Clients get what Env says, and no more.
func StartIn(t testing.TB, env []string, args ...string) *Broker {
	t.Helper()
	return start(&Broker{t: t, args: args, env: env})
}

// StartFaulty is Start for a broker that was built with fault.Tag and makes a mistake; "" makes none.
func StartFaulty(t testing.TB, binary string, f fault.Fault, args ...string) *Broker {
	t.Helper()
	return start(&Broker{t: t, args: args, binary: binary, env: []string{fault.Env + "=" + string(f)}})
}

func start(b *Broker) *Broker {
	t := b.t
	t.Helper()
	b.Stage, b.output = fmt.Sprintf("test-%d-%d", os.Getpid(), time.Now().UnixNano()%1e9), &output{}
	// Short paths: a socket's has at most 107 bytes, which t.TempDir may exceed.
	b.RuntimeDir = tempDir(t, "")
	base := "/dev/shm"
	if info, err := os.Stat(base); err != nil || !info.IsDir() {
		base = ""
	}
	b.ShmDir = tempDir(t, base)
	t.Cleanup(b.cleanUp)
	b.Restart()
	return b
}

func tempDir(t testing.TB, base string) string {
	t.Helper()
	dir, err := os.MkdirTemp(base, "cbtest-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// Restart runs a broker anew over the same directories, after Stop or Kill9. more are
// arguments for this life of it alone. With "--takeover" the one that runs makes room, and
// is waited for.
func (b *Broker) Restart(more ...string) {
	b.t.Helper()
	before, gone := b.command, b.exited
	b.Launch(more...)
	if slices.Contains(more, "--takeover") {
		select {
		case <-gone:
		case <-time.After(stopWait):
			b.t.Fatalf("the broker did not make room within %v:\n%s", stopWait, b.output)
		}
		if code := before.ProcessState.ExitCode(); code != 0 {
			b.t.Errorf("the broker that made room ended with %d:\n%s", code, b.output)
		}
	}
	b.awaitReady()
}

// Launch is Restart that waits for nothing.
func (b *Broker) Launch(more ...string) {
	b.t.Helper()
	if err := os.MkdirAll(b.RuntimeDir, 0o700); err != nil { // the last one to leave removes it
		b.t.Fatal(err)
	}
	args := slices.Concat([]string{"serve", "--stage", b.Stage, "--shm-dir", b.ShmDir}, b.args, more)
	binary := b.binary
	if binary == "" {
		binary = Binary(b.t)
	}
	b.command = exec.Command(binary, args...)
	b.command.Env = append(b.Env(), b.env...)
	b.command.Stdout, b.command.Stderr = b.output, b.output
	if err := b.command.Start(); err != nil {
		b.t.Fatalf("starting the broker: %v", err)
	}
	command, exited, status := b.command, make(chan struct{}), new(error)
	b.exited, b.status = exited, status
	go func() { // in a takeover the life before ends meanwhile
		*status = command.Wait()
		close(exited)
	}()
}

func (b *Broker) awaitReady() {
	b.t.Helper()
	deadline := time.Now().Add(startWait)
	for {
		stage, err := callboard.Dial(context.Background(), b.Options("harness"))
		if err == nil {
			_ = stage.Close()
			return
		}
		select {
		case <-b.exited:
			b.t.Fatalf("the broker ended before it was ready (%v):\n%s", *b.status, b.output)
		case <-time.After(10 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			b.t.Fatalf("no client could attach within %v: %v\n%s", startWait, err, b.output)
		}
	}
}

// Options attach a Go client to this broker.
func (b *Broker) Options(name string) callboard.Options {
	return callboard.Options{Stage: b.Stage, RuntimeDir: b.RuntimeDir, Name: name}
}

// Dial attaches a client that is closed when the test ends.
func (b *Broker) Dial(name string) *callboard.Stage {
	b.t.Helper()
	stage, err := callboard.Dial(context.Background(), b.Options(name))
	if err != nil {
		b.t.Fatalf("attaching %s: %v\n%s", name, err, b.output)
	}
	b.t.Cleanup(func() { _ = stage.Close() })
	return stage
}

// Env is the environment for client processes of this broker.
func (b *Broker) Env() []string {
	return append(os.Environ(), "CALLBOARD_RUNTIME_DIR="+b.RuntimeDir, "CALLBOARD_STAGE="+b.Stage)
}

// PID is the broker's process id.
func (b *Broker) PID() int { return b.command.Process.Pid }

// Output is what the broker has printed so far.
func (b *Broker) Output() string { return b.output.String() }

// Running tells whether the broker's process lives.
func (b *Broker) Running() bool {
	select {
	case <-b.exited:
		return false
	default:
		return true
	}
}

// Stop ends the broker as an operator does, by SIGTERM, and waits for its end.
func (b *Broker) Stop() {
	b.t.Helper()
	b.signal(syscall.SIGTERM)
	if *b.status != nil {
		b.t.Errorf("the broker ended with %v:\n%s", *b.status, b.output)
	}
}

// Kill9 ends the broker as a crash does.
func (b *Broker) Kill9() {
	b.t.Helper()
	b.signal(syscall.SIGKILL)
}

func (b *Broker) signal(s os.Signal) {
	b.t.Helper()
	if !b.Running() {
		return
	}
	_ = b.command.Process.Signal(s)
	select {
	case <-b.exited:
	case <-time.After(stopWait):
		_ = b.command.Process.Kill()
		<-b.exited
		b.t.Errorf("the broker did not end within %v of signal %v:\n%s", stopWait, s, b.output)
	}
}

// Residue lists what the broker has left: its process, files in its directories.
// Empty after Stop.
func (b *Broker) Residue() []string {
	var left []string
	if b.Running() {
		left = append(left, fmt.Sprintf("process %d", b.PID()))
	}
	for _, dir := range []string{b.RuntimeDir, b.ShmDir} {
		err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err == nil && path != dir {
				left = append(left, path)
			}
			return err
		})
		if err != nil {
			left = append(left, err.Error())
		}
	}
	return left
}

func (b *Broker) cleanUp() {
	if b.command != nil && b.command.Process != nil && b.exited != nil {
		b.signal(syscall.SIGTERM)
	}
	if b.t.Failed() {
		b.t.Logf("the broker of stage %s printed:\n%s", b.Stage, b.output)
	}
}

// output collects what a process prints.
type output struct {
	mutex  sync.Mutex
	buffer bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	return o.buffer.Write(p)
}

func (o *output) String() string {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	return o.buffer.String()
}
