package shm

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// childEnv names the part that a re-executed test binary plays.
const childEnv = "CALLBOARD_SHM_TEST_CHILD"

// children are the parts: they run in a process of their own and return its exit code.
var children = map[string]func(args []string) int{
	"hold-channel": childHoldChannel,
	"lock-dir":     childLockDir,
	"truncate":     childTruncate,
	"wake":         childWake,
	"client":       childClient,
}

func TestMain(m *testing.M) {
	if part := os.Getenv(childEnv); part != "" {
		os.Exit(children[part](os.Args[1:]))
	}
	// Whatever the environment says must not lead the tests to a real stage.
	_ = os.Unsetenv(RuntimeEnv)
	warmUp()
	before := openFiles()
	code := m.Run()
	if after := openFiles(); code == 0 && len(after) != len(before) {
		fmt.Fprintf(os.Stderr, "descriptors leaked: %d before, %d after\nbefore: %v\nafter: %v\n", len(before), len(after), before, after)
		code = 1
	}
	os.Exit(code)
}

// warmUp lets the runtime open what it keeps for good: the poller, and the pidfd probe
// that os/exec makes once.
func warmUp() {
	if r, w, err := os.Pipe(); err == nil {
		_ = r.Close()
		_ = w.Close()
	}
	_ = exec.Command("/bin/true").Run()
}

func openFiles() []string {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		panic(err)
	}
	var open []string
	for _, entry := range entries {
		// The descriptor of this very listing is gone by now.
		if target, err := os.Readlink("/proc/self/fd/" + entry.Name()); err == nil {
			open = append(open, entry.Name()+"="+target)
		}
	}
	return open
}

// child starts a part and waits for its first line, which says that it is ready. Closing
// its standard input, or kill, ends it.
type child struct {
	t   *testing.T
	cmd *exec.Cmd
	in  interface{ Close() error }
}

func start(t *testing.T, part string, args ...string) *child {
	t.Helper()
	run := append([]string{os.Args[0]}, args...)
	if qemu := os.Getenv("CALLBOARD_TEST_QEMU"); qemu != "" { // `make arm64`
		run = append([]string{qemu}, run...)
	}
	cmd := exec.Command(run[0], run[1:]...)
	cmd.Env = append(os.Environ(), childEnv+"="+part)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	c := &child{t: t, cmd: cmd, in: in}
	t.Cleanup(func() { c.kill() })
	line := make([]byte, 64)
	n, err := out.Read(line)
	require.NoError(t, err, "the %s child ended before it was ready", part)
	require.Equal(t, "ready", strings.TrimSpace(string(line[:n])))
	return c
}

func (c *child) kill() {
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
}

// end lets the child finish and wants success.
func (c *child) end() {
	c.t.Helper()
	_ = c.in.Close()
	require.NoError(c.t, c.cmd.Wait())
}

// ready tells the parent, then waits until it lets go.
func ready() int {
	fmt.Println("ready")
	_, _ = os.Stdin.Read(make([]byte, 1))
	return 0
}

func failed(err error) int {
	fmt.Fprintln(os.Stderr, "child:", err)
	return 1
}

// skip says why a test cannot run here. CALLBOARD_TEST_NO_SKIP turns it into a failure.
func skip(t *testing.T, format string, args ...any) {
	t.Helper()
	if os.Getenv("CALLBOARD_TEST_NO_SKIP") != "" {
		t.Fatalf("must not skip: "+format, args...)
	}
	t.Skipf(format, args...)
}

// privateDir is a fresh directory as Callboard wants them. t.TempDir has mode 0755 and a
// path too long for sockets.
func privateDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "cb-")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

// shmDir is a private directory on the real tmpfs.
func shmDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp(DefaultShmBase, "shm-test-")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

func anyObject(t *testing.T, size uint64) *Object {
	t.Helper()
	o, err := CreateObject(shmDir(t), "object", size)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, o.Close()) })
	return o
}

func mapped(t *testing.T, o *Object, writable bool) *Mapping {
	t.Helper()
	m, err := o.Map(writable)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	return m
}
