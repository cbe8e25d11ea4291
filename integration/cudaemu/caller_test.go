package cudaemu

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// patience is how long a test waits for what must come. It is no measure of anything.
const patience = 2 * time.Minute

// machine is one emulated machine: the library, the program that calls it, and the directory that its processes share.
type machine struct {
	t       *testing.T
	library string
	caller  string
	dir     string
	env     []string
}

type build struct{ library, caller string }

var sanitizers = []string{"-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"}

var builds = map[string]func() (build, error){
	"plain":     sync.OnceValues(func() (build, error) { return buildAll("plain") }),
	"sanitized": sync.OnceValues(func() (build, error) { return buildAll("sanitized", sanitizers...) }),
}

var scratch string

func TestMain(m *testing.M) {
	var err error
	scratch, err = os.MkdirTemp("", "callboard-cudaemu-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(scratch)
	os.Exit(code)
}

func buildAll(name string, extra ...string) (build, error) {
	dir := filepath.Join(scratch, name)
	out := build{library: filepath.Join(dir, Name), caller: filepath.Join(dir, "caller")}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return build{}, err
	}
	csrc, err := filepath.Glob("csrc/*.c")
	if err != nil {
		return build{}, err
	}
	err = compile(slices.Concat(extra, []string{"-shared", "-o", out.library}, csrc, []string{"-ldl"})...)
	if err == nil {
		err = compile(slices.Concat(extra, []string{"-Icsrc", "-o", out.caller, "testdata/caller.c", "-ldl"})...)
	}
	return out, err
}

// onMachines runs a test against the library as it is shipped and under the address and undefined-behaviour
// sanitizers, each time on a machine of its own.
func onMachines(t *testing.T, test func(t *testing.T, m machine)) {
	Library(t) // skips where there is no compiler
	t.Parallel()
	for name, once := range builds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			made, err := once()
			require.NoError(t, err)
			test(t, machine{t: t, library: made.library, caller: made.caller, dir: t.TempDir()})
		})
	}
}

// with gives a machine whose processes have more settings.
func (m machine) with(env ...string) machine {
	m.env = slices.Concat(m.env, env)
	return m
}

// process is one that calls the library as it is told.
type process struct {
	t       *testing.T
	command *exec.Cmd
	in      io.WriteCloser
	answers chan string
	stderr  *bytes.Buffer
	ended   chan struct{}
	state   error
}

// start runs a process that has called nothing.
func (m machine) start() *process {
	m.t.Helper()
	p := &process{t: m.t, stderr: &bytes.Buffer{}, answers: make(chan string, 1), ended: make(chan struct{})}
	p.command = exec.Command(m.caller, m.library)
	p.command.Env = append(os.Environ(), "CUDAEMU_DIR="+m.dir,
		"ASAN_OPTIONS=handle_segv=0:handle_abort=0:detect_leaks=1", "UBSAN_OPTIONS=print_stacktrace=1")
	p.command.Env = append(p.command.Env, m.env...)
	p.command.Stderr = p.stderr
	in, err := p.command.StdinPipe()
	require.NoError(m.t, err)
	out, err := p.command.StdoutPipe()
	require.NoError(m.t, err)
	p.in = in
	require.NoError(m.t, p.command.Start())
	go func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			p.answers <- lines.Text()
		}
		close(p.answers)
		p.state = p.command.Wait()
		close(p.ended)
	}()
	m.t.Cleanup(func() {
		if err := p.command.Process.Kill(); err == nil {
			go func() { // who still answers must not block
				for range p.answers {
					continue
				}
			}()
		}
		<-p.ended
		if m.t.Failed() {
			m.t.Logf("process %d printed: %s", p.command.Process.Pid, p.stderr)
		}
	})
	return p
}

// gpu runs a process whose thread has the context of device 0.
func (m machine) gpu() *process {
	m.t.Helper()
	p := m.start()
	p.ok("cuInit 0")
	p.ok("cuDevicePrimaryCtxRetain &ctx 0")
	p.ok("cuCtxSetCurrent ctx")
	return p
}

// send gives a line and does not wait for the answer.
func (p *process) send(line string) {
	p.t.Helper()
	_, err := io.WriteString(p.in, line+"\n")
	require.NoError(p.t, err, line)
}

// answer waits for the answer to the line that was sent.
func (p *process) answer(line string) string {
	p.t.Helper()
	select {
	case answer, ok := <-p.answers:
		if !ok {
			<-p.ended
		}
		require.True(p.t, ok, "%s: the process ended: %v\n%s", line, p.state, p.stderr)
		return answer
	case <-time.After(patience):
		p.t.Fatalf("%s: no answer", line)
		return ""
	}
}

func (p *process) ask(line string) string {
	p.t.Helper()
	p.send(line)
	return p.answer(line)
}

// wants makes a call and requires its result code.
func (p *process) wants(code int, line string) {
	p.t.Helper()
	require.Equal(p.t, strconv.Itoa(code), p.ask(line), line)
}

func (p *process) ok(lines ...string) {
	p.t.Helper()
	for _, line := range lines {
		p.wants(0, line)
	}
}

// does gives lines that are no calls.
func (p *process) does(lines ...string) {
	p.t.Helper()
	for _, line := range lines {
		require.Equal(p.t, "ok", p.ask(line), line)
	}
}

// number is the first 8 bytes of a variable.
func (p *process) number(name string) uint64 {
	p.t.Helper()
	var out uint64
	text := p.ask("show " + name + " 8")
	for i := 14; i >= 0; i -= 2 {
		digit, err := strconv.ParseUint(text[i:i+2], 16, 8)
		require.NoError(p.t, err)
		out = out<<8 | digit
	}
	return out
}

// gives hands the 64 bytes of a variable to another process, under the same name.
func (p *process) gives(other *process, name string) {
	p.t.Helper()
	other.does("read " + name + " " + p.ask("show "+name+" 64"))
}

// holds requires that count bytes of device memory at address are all value.
func (p *process) holds(address string, value, count int) {
	p.t.Helper()
	require.Equal(p.t, "0", p.differing(address, value, count), "bytes at %s that are not %d", address, value)
}

// differing says how many bytes of device memory are not value. It reads them by the legacy stream, as cuMemcpyDtoH does.
func (p *process) differing(address string, value, count int) string {
	p.t.Helper()
	p.does(fmt.Sprintf("host check %d", count))
	p.ok(fmt.Sprintf("cuMemcpyDtoH_v2 check %s %d", address, count))
	return p.ask(fmt.Sprintf("differ check %d %d", value, count))
}

// becomes repeats a call until it gives code.
func (p *process) becomes(code int, line string) {
	p.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		got := p.ask(line)
		if got == strconv.Itoa(code) {
			return
		}
		require.True(p.t, time.Now().Before(end), "%s still gives %s, not %d", line, got, code)
	}
}

// kill ends the process as a crash would, and returns when it is gone.
func (p *process) kill() {
	p.t.Helper()
	require.NoError(p.t, p.command.Process.Kill())
	p.await()
}

func (p *process) await() {
	p.t.Helper()
	for {
		select {
		case <-p.answers:
		case <-p.ended:
			return
		case <-time.After(patience):
			p.t.Fatal("the process does not end")
		}
	}
}

// diesBy gives a line that must end the process with a signal, and returns what it printed.
func (p *process) diesBy(signal syscall.Signal, line string) string {
	p.t.Helper()
	p.send(line)
	select {
	case answer, ok := <-p.answers:
		require.False(p.t, ok, "%s: the process should have ended, and answered %s", line, answer)
	case <-time.After(patience):
		p.t.Fatalf("%s: neither an end nor an answer", line)
	}
	p.await()
	status, ok := p.command.ProcessState.Sys().(syscall.WaitStatus)
	require.True(p.t, ok)
	require.True(p.t, status.Signaled(), "%s: ended with %v\n%s", line, p.state, p.stderr)
	require.Equal(p.t, signal, status.Signal(), line)
	return p.stderr.String()
}

// leaves ends the process in good order. Under the sanitizers that is where leaks are found.
func (p *process) leaves() {
	p.t.Helper()
	require.NoError(p.t, p.in.Close())
	p.await()
	require.NoError(p.t, p.state, "%s", strings.TrimSpace(p.stderr.String()))
}

// held adds up what living processes of the machine hold.
func (m machine) held() Counts {
	m.t.Helper()
	processes, err := Report(m.dir)
	require.NoError(m.t, err)
	return Held(processes)
}
