//go:build !nogpu

package cudaipc_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"callboard/cudaipc"
	"callboard/integration/cudaemu"
	"callboard/protocol"
)

const (
	// roleEnv names the part that a re-executed test binary plays.
	roleEnv = "CALLBOARD_CUDAIPC_TEST_ROLE"
	// insideEnv says that a test was started again by emulate.
	insideEnv = "CALLBOARD_CUDAIPC_TEST_INSIDE"
	// requireEnv makes it a failure that no real device runs the tests.
	requireEnv = "REQUIRE_GPU"
	// quickExit spares each child the second for which the race detector waits at its end.
	quickExit = "GORACE=atexit_sleep_ms=0"
)

var roles = map[string]func() error{
	"client":        clientRole,
	"self-test":     func() error { return cudaipc.SelfTestChild(os.Stdin, os.Stdout) },
	"false-witness": falseWitnessRole,
}

func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		if err := roles[role](); err != nil {
			fmt.Fprintln(os.Stderr, role+":", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

var announce sync.Once

// driver is the one that the tests run with: what LibraryEnv says, else a real one that has
// a device, else the emulated one. Children find it by the environment.
func driver(t testing.TB) cudaipc.Driver {
	t.Helper()
	required := os.Getenv(requireEnv) == "1"
	if os.Getenv(cudaipc.LibraryEnv) == "" && !hasDevice("") {
		if required {
			t.Fatalf("%s=1, and no real GPU is here", requireEnv)
		}
		useEmulator(t)
	}
	d, err := cudaipc.Load("")
	require.NoError(t, err)
	announce.Do(func() { fmt.Println("driver of cudaipc:", d.Name()) })
	if required && os.Getenv(insideEnv) == "" && d.Name() == "emulated" {
		t.Fatalf("%s=1, and the driver is the emulated one", requireEnv)
	}
	return d
}

// TestDriver is for who wants to know which one that is.
func TestDriver(t *testing.T) {
	n, err := driver(t).DeviceCount()
	require.NoError(t, err)
	require.Positive(t, n)
}

func hasDevice(path string) bool {
	d, err := cudaipc.Load(path)
	if err != nil {
		return false
	}
	n, err := d.DeviceCount()
	return err == nil && n > 0
}

// slow is the emulated device: whoever forgets to wait for it is seen.
const slow = "CUDAEMU_DELAY_US=300"

// useEmulator is for the whole test process and its children.
func useEmulator(t testing.TB) {
	require.NoError(t, os.Setenv(cudaipc.LibraryEnv, cudaemu.Library(t)))
	name, value, _ := strings.Cut(slow, "=")
	require.NoError(t, os.Setenv(name, value))
}

// thread opens the first device.
func thread(t testing.TB) *cudaipc.Thread {
	t.Helper()
	th, err := cudaipc.NewThread(driver(t), 0)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, th.Close()) })
	return th
}

// emulate runs the rest of a test in a process of its own with the emulated driver and its
// settings, whatever driver else runs: they are read when the library starts. It is true in
// that process; in the first one it says whether the other has passed.
func emulate(t *testing.T, settings ...string) bool {
	t.Helper()
	if os.Getenv(insideEnv) == t.Name() {
		return true
	}
	name := "^" + strings.ReplaceAll(t.Name(), "/", "$/^") + "$"
	cmd := self("-test.run="+name, "-test.count=1", "-test.v")
	cmd.Env = append(os.Environ(), quickExit, insideEnv+"="+t.Name(), cudaipc.LibraryEnv+"="+cudaemu.Library(t), slow, "CUDAEMU_DIR="+t.TempDir())
	cmd.Env = append(cmd.Env, settings...)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "with %v:\n%s", settings, out)
	require.Contains(t, string(out), "--- PASS: "+t.Name(), "the test has not run with %v", settings)
	return false
}

// self starts this binary again.
func self(arguments ...string) *exec.Cmd {
	if qemu := os.Getenv("CALLBOARD_TEST_QEMU"); qemu != "" { // `make arm64`
		return exec.Command(qemu, append([]string{os.Args[0]}, arguments...)...)
	}
	return exec.Command(os.Args[0], arguments...)
}

// command starts this binary in another role.
func command(role string, env ...string) *exec.Cmd {
	cmd := self()
	cmd.Env = append(append(os.Environ(), quickExit, roleEnv+"="+role), env...)
	return cmd
}

// client is a process that imports.
type client struct {
	t   *testing.T
	cmd *exec.Cmd
	in  *json.Encoder
	out *json.Decoder
}

// call is what a client is asked for, and what it answers.
type call struct {
	Verb   string
	Export cudaipc.Export
	Key    string // names an opened thing
	Event  string // the key of an event to record afterwards
	Offset uint64
	Bytes  uint64
	Value  byte
}

type answer struct {
	Err   string
	Code  cudaipc.Code
	Count int
	Bytes []byte
}

func startClient(t *testing.T, env ...string) *client {
	t.Helper()
	cmd := command("client", env...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	c := &client{t: t, cmd: cmd, in: json.NewEncoder(in), out: json.NewDecoder(out)}
	t.Cleanup(c.kill)
	return c
}

// try asks and gives the answer, errors included.
func (c *client) try(ask call) answer {
	c.t.Helper()
	require.NoError(c.t, c.in.Encode(ask))
	var got answer
	require.NoError(c.t, c.out.Decode(&got), "the client ended at %+v", ask)
	return got
}

func (c *client) do(ask call) answer {
	c.t.Helper()
	got := c.try(ask)
	require.Empty(c.t, got.Err, "%+v", ask)
	return got
}

func (c *client) kill() {
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
}

const mib = 1 << 20

// exported is an arena as a broker makes one. It is freed when the test's clients are gone.
func exported(t *testing.T, th *cudaipc.Thread) (cudaipc.Pointer, cudaipc.Export) {
	t.Helper()
	x := cudaipc.Export{Sort: protocol.DeviceArena, Generation: 9, Bytes: cudaipc.ArenaAlign, UUID: th.Info().UUID}
	var base cudaipc.Pointer
	require.NoError(t, th.Do(func(d cudaipc.Driver) (err error) {
		if base, err = d.MemAlloc(x.Bytes); err == nil {
			x.Handle, err = d.IPCGetMemHandle(base)
		}
		return err
	}))
	t.Cleanup(func() {
		require.NoError(t, th.Do(func(d cudaipc.Driver) error { return d.MemFree(base) }))
	})
	return base, x
}

// bytesOf reads n bytes of device memory here.
func bytesOf(t testing.TB, th *cudaipc.Thread, p cudaipc.Pointer, n uint64) []byte {
	t.Helper()
	h, err := cudaipc.NewHost(n)
	require.NoError(t, err)
	defer func() { require.NoError(t, h.Close()) }()
	require.NoError(t, th.Do(func(d cudaipc.Driver) error {
		s, err := d.StreamCreate()
		if err != nil {
			return err
		}
		if err := d.CopyDtoHAsync(h.At(0, n), p, n, s); err != nil {
			return err
		}
		return cmp.Or(d.StreamSynchronize(s), d.StreamDestroy(s))
	}))
	return append([]byte(nil), h.Bytes()[:n]...)
}

// soon is a limit for what comes without fail, on any machine.
func soon() time.Time { return time.Now().Add(time.Minute) }

func falseWitnessRole() error {
	_, err := fmt.Println(cudaipc.SelfTestSuccess)
	return err
}
