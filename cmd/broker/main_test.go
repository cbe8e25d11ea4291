package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"callboard/broker"
	callboard "callboard/clients/go"
	"callboard/shm"
)

// beProgram makes the test binary the program itself, so that tests can run it as a process and kill it.
const beProgram = "CALLBOARD_TEST_BE_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(beProgram) != "" {
		main()
	}
	if os.Getenv(beWriter) != "" {
		write()
		return
	}
	_ = os.Setenv("GORACE", "atexit_sleep_ms=0") // else each process under the race detector ends a second later
	os.Exit(m.Run())
}

// ownPlaces gives the test a runtime directory that no broker of this machine knows.
func ownPlaces(t *testing.T) (runtimeParent string) {
	t.Helper()
	// Short: the path of a socket has at most 107 bytes.
	dir, err := os.MkdirTemp("", "cb")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	t.Setenv("XDG_RUNTIME_DIR", dir)
	t.Setenv(shm.RuntimeEnv, "")
	t.Setenv(stageEnv, "")
	return filepath.Join(dir, "callboard")
}

// call runs the program in this process.
func call(arguments ...string) (code int, out, notes string) {
	var o, n bytes.Buffer
	code = run(context.Background(), arguments, &o, &n)
	return code, o.String(), n.String()
}

// program is the program as a process of its own.
func program(t *testing.T, arguments ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	command := exec.Command(self, arguments...)
	command.Env = append(os.Environ(), beProgram+"=1")
	command.Stderr = os.Stderr
	t.Cleanup(func() {
		if command.Process != nil && command.ProcessState == nil {
			_ = command.Process.Kill()
			_ = command.Wait()
		}
	})
	return command
}

// serveProcess starts `serve` and returns when it has said that it is ready.
func serveProcess(t *testing.T, stage string, more ...string) (command *exec.Cmd, input io.Closer, ready string) {
	t.Helper()
	command = program(t, append([]string{"serve", "--stage", stage, "--memory", "16MiB", "--log-level", "error"}, more...)...)
	output, err := command.StdoutPipe()
	require.NoError(t, err)
	stdin, err := command.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, command.Start())
	line := make([]byte, 4096)
	n, err := output.Read(line)
	require.NoError(t, err)
	return command, stdin, string(line[:n])
}

// The codes are what scripts rely on: the same failure has the same code in every command.
func TestExitCodesAreTheSameForEveryCommand(t *testing.T) {
	ownPlaces(t)
	for _, c := range []struct {
		arguments string
		code      int
		says      string
	}{
		{"", exitOK, ""},
		{"--help", exitOK, ""},
		{"version", exitOK, ""},
		{"version --json", exitOK, ""},
		{"nonsense", exitUsage, `"nonsense" is no command`},
		{"ls --nonsense", exitUsage, "unknown flag: --nonsense"},
		{"ls position", exitUsage, `takes no arguments, only flags: got "position"`},
		{"read", exitUsage, "name of an attribute"},
		{"ls --stage a/b", exitUsage, `stage name "a/b"`},
		{"serve --memory 3x", exitUsage, `unknown unit "x"`},
		{"serve --memory 0", exitUsage, "at least 1 byte"},
		{"serve --handoff lend", exitUsage, `"lend": expected adopt or copy`},
		{"serve --retain 0", exitUsage, "expected at least 1"},
		{"serve --allow-uid alice", exitUsage, `--allow-uid: "alice" is no id`},
		{"serve --allow-gid -1", exitUsage, `--allow-gid: "-1" is no id`},
		{"serve --log-level loud", exitUsage, `"loud"`},
		{"serve --nats-creds x", exitUsage, "--nats-url"},
		{"serve --nats-ca x", exitUsage, "--nats-url"},
		{"serve --nats-url x --nats-cert c", exitUsage, "--nats-cert-key"},
		{"serve --nats-url x --nats-creds c --nats-nkey k", exitUsage, "give one of them"},
		{"serve --nats-url x --nats-token-file /absent/token", exitUsage, "/absent/token"},
		{"serve --nats-url x --nats-port 1", exitUsage, "--nats-port"},
		{"serve --gpu sometimes", exitUsage, `"sometimes" is none of auto, off and required`},
		{"serve --gpu required,GPU-1", exitUsage, "nvidia-smi -L"},
		{"serve --gpu off,0", exitUsage, "off takes no devices"},
		{"serve --gpu-timeout 0s", exitUsage, "--gpu-timeout is 0s"},
		{"serve --gpu-events 0", exitUsage, "--gpu-events is 0"},
		{"serve --gpu-events 100000", exitFailure, "expected 1 to 8192"},
		{"serve --gpu-memory 1MiB", exitFailure, "an arena takes at least 2097152"},
		{"serve --memory 1MiB", exitFailure, "memory is 1048576 bytes"},
		{"serve --shm-dir /nonexistent", exitFailure, "/nonexistent"},
		{"demo --steps 0", exitUsage, "--steps is 0"},
		{"ls --stage nobody", exitNoBroker, `no broker found for stage "nobody"`},
		{"info --stage nobody", exitNoBroker, "callboard serve --stage nobody"},
		{"read x --stage nobody", exitNoBroker, `no broker found for stage "nobody"`},
		{"watch --stage nobody", exitNoBroker, `no broker found for stage "nobody"`},
	} {
		code, _, notes := call(strings.Fields(c.arguments)...)
		require.Equal(t, c.code, code, "callboard %s: %s", c.arguments, notes)
		require.Contains(t, notes, c.says, "callboard %s", c.arguments)
	}
}

// Help is the first thing a newcomer sees: every command has examples or needs none, and the codes are there.
func TestHelpOfEveryCommandHasExamplesAndExitCodes(t *testing.T) {
	for _, name := range []string{"serve", "demo", "ls", "info", "read", "watch", "gc", "doctor"} {
		code, out, _ := call(name, "--help")
		require.Equal(t, exitOK, code)
		require.Contains(t, out, "Examples:", name)
		require.Contains(t, out, "Exit codes:", name)
		require.NotContains(t, out, untilStdinCloses, name)
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		code, out, _ := call("completion", shell)
		require.Equal(t, exitOK, code)
		require.Contains(t, out, "callboard", shell)
	}
}

func TestSizesAreReadAndWritten(t *testing.T) {
	for text, bytes := range map[string]uint64{
		"4096": 4096, "1k": 1024, "512MiB": 512 << 20, "1.5G": 3 << 29, "2gb": 2e9, "2 GiB": 2 << 30, "1T": 1 << 40, "16EiB": 0,
		"": 0, "MiB": 0, "-1": 0, "1e9": 0, "3 parsecs": 0, "99999999999999999999": 0, "99999999T": 0,
	} {
		got, err := parseSize(text)
		if bytes == 0 {
			require.Error(t, err, text)
			continue
		}
		require.NoError(t, err, text)
		require.Equal(t, bytes, got, text)
	}
	for bytes, text := range map[uint64]string{0: "0 B", 1023: "1023 B", 1024: "1 KiB", 1536: "1.5 KiB", 512 << 20: "512 MiB", 3 << 30: "3 GiB", 1<<64 - 1: "16 EiB"} {
		require.Equal(t, text, formatSize(bytes))
	}
}

// The ready line is an interface: supervisors wait for it and read where the stage is.
func TestServeSaysThatItIsReadyAndLeavesNothingAtItsEnd(t *testing.T) {
	for name, end := range map[string]func(*exec.Cmd, io.Closer){
		"SIGTERM":     func(c *exec.Cmd, _ io.Closer) { _ = c.Process.Signal(syscall.SIGTERM) },
		"SIGINT":      func(c *exec.Cmd, _ io.Closer) { _ = c.Process.Signal(os.Interrupt) },
		"closed pipe": func(_ *exec.Cmd, in io.Closer) { _ = in.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			runtime, base := ownPlaces(t), t.TempDir()
			command, input, ready := serveProcess(t, "s", "--shm-dir", base, "--"+untilStdinCloses)
			require.Regexp(t, `^callboard ready stage=s runtime=`+runtime+`/s nats=nats://127\.0\.0\.1:\d+ memory=16MiB shm=`+base+`/callboard-\d+/s/\d+\n$`, ready)
			code, out, notes := call("info", "--stage", "s")
			require.Equal(t, exitOK, code, notes)
			require.Regexp(t, `limit +16 MiB`, out)

			end(command, input)
			require.NoError(t, command.Wait(), "an end in order is exit code 0")
			require.NoDirExists(t, runtime)
			left, err := os.ReadDir(base)
			require.NoError(t, err)
			require.Empty(t, left)
		})
	}
}

// Rule S1 and field report A8: what a killed broker leaves is removed by gc, and what a living one has is not.
func TestGCRemovesWhatAKilledBrokerLeftAndSparesTheLiving(t *testing.T) {
	runtime, base := ownPlaces(t), t.TempDir()
	living, err := broker.Start(broker.Config{Stage: "living", ShmDir: base, MemoryBytes: 16 << 20})
	require.NoError(t, err)
	defer living.Close()
	killed, _, _ := serveProcess(t, "killed", "--shm-dir", base)
	require.NoError(t, killed.Process.Kill())
	_ = killed.Wait()
	require.FileExists(t, filepath.Join(runtime, "killed", "nats.json"), "the kill left something, or this test shows nothing")

	code, _, notes := call("ls", "--stage", "killed")
	require.Equal(t, exitNoBroker, code, "a socket whose broker is dead is no broker")
	require.Contains(t, notes, "callboard gc")

	code, out, notes := call("gc", "--shm-dir", base, "--dry-run")
	require.Equal(t, exitOK, code, notes)
	// Lines of what others on this machine left or run are none of ours.
	ours := func(text string) (n int) {
		for line := range strings.Lines(out) {
			if strings.Contains(line, text) && (strings.Contains(line, base) || strings.Contains(line, runtime)) {
				n++
			}
		}
		return n
	}
	require.Equal(t, 2, ours("would be removed"), out)
	require.Equal(t, 2, ours(fmt.Sprintf("is in use by process %d", os.Getpid())), out)
	require.DirExists(t, filepath.Join(runtime, "killed"))

	code, out, notes = call("gc", "--shm-dir", base)
	require.Equal(t, exitOK, code, notes)
	require.Equal(t, 2, ours("removed"), out)
	require.NoDirExists(t, filepath.Join(runtime, "killed"))
	require.NoDirExists(t, shm.ShmDir(base, "killed"))
	require.DirExists(t, living.MemoryDir())
	code, _, _ = call("ls", "--stage", "living")
	require.Equal(t, exitOK, code)

	living.Close()
	code, out, notes = call("gc", "--shm-dir", base)
	require.Equal(t, exitOK, code)
	require.NotContains(t, out, base)
	require.NotContains(t, out, runtime)
	if out == "" { // else it is of brokers that others run on this machine
		require.Contains(t, notes, "nothing is left behind")
	}
}

// Field report C5: only a file that says so is warned of, and the last word counts.
func TestRemoveIPCIsFoundWhereAFileSaysSo(t *testing.T) {
	root := t.TempDir()
	write := func(name, content string) {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(root, name), []byte(content), 0o644))
	}
	require.Empty(t, removeIPCFile(logindFiles(root)))
	write("logind.conf", "[Login]\n#RemoveIPC=yes\n")
	require.Empty(t, removeIPCFile(logindFiles(root)), "a comment is not a setting")
	write("logind.conf", "[Login]\nRemoveIPC = yes\n")
	require.Equal(t, filepath.Join(root, "logind.conf"), removeIPCFile(logindFiles(root)))
	write("logind.conf.d/50-keep.conf", "[Login]\nRemoveIPC=no\n")
	require.Empty(t, removeIPCFile(logindFiles(root)), "a drop-in has the last word")
}

// waitFor looks until something is so; a time limit of its own keeps a failing test short, and is long for machines that
// are busy.
func waitFor(t *testing.T, what string, so func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !so(); time.Sleep(10 * time.Millisecond) {
		require.True(t, time.Now().Before(deadline), "not within 30 s: %s", what)
	}
}

// The reader of a broker's log may be killed. A write to such a pipe ends a Go program unless it says otherwise, and what
// the broker made would stay.
func TestServeOutlivesTheReaderOfItsLog(t *testing.T) {
	runtime, base := ownPlaces(t), t.TempDir()
	command := program(t, "serve", "--stage", "s", "--memory", "16MiB", "--log-level", "debug", "--shm-dir", base)
	output, err := command.StdoutPipe()
	require.NoError(t, err)
	complaints, write, err := os.Pipe()
	require.NoError(t, err)
	command.Stderr = write
	require.NoError(t, command.Start())
	_, err = output.Read(make([]byte, 4096))
	require.NoError(t, err)
	require.NoError(t, write.Close())
	require.NoError(t, complaints.Close())

	stage, err := callboard.Dial(context.Background(), callboard.Options{Stage: "s"}) // the broker logs that
	require.NoError(t, err)
	require.NoError(t, stage.Close())
	code, _, notes := call("ls", "--stage", "s")
	require.Equal(t, exitOK, code, notes)
	require.NoError(t, command.Process.Signal(syscall.SIGTERM))
	require.NoError(t, command.Wait())
	require.NoDirExists(t, runtime)
}
