package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"callboard/broker"
	callboard "callboard/clients/go"
	"callboard/control"
	"callboard/protocol"
	"callboard/shm"
)

// examine runs doctor and gives its findings beside its code.
func examine(t *testing.T, stage, base string) (code int, findings []finding) {
	t.Helper()
	code, out, _ := call("doctor", "--json", "--stage", stage, "--shm-dir", base)
	require.NoError(t, json.Unmarshal([]byte(out), &findings), out)
	failed := false
	for _, f := range findings {
		failed = failed || f.State == stateFail
		require.Contains(t, []string{stateOK, stateWarn, stateFail}, f.State)
		require.True(t, f.State == stateOK || f.Do != "", "nobody is left without advice: %+v", f)
	}
	require.Equal(t, failed, code == exitFailure, "%d: %+v", code, findings)
	return code, findings
}

// has asks for one finding of a check in a state, whose text and advice contain these.
func has(t *testing.T, findings []finding, state, check string, texts ...string) {
	t.Helper()
	for _, f := range findings {
		all := f.State == state && f.Check == check
		for _, text := range texts {
			all = all && strings.Contains(f.Found+"\n"+f.Do, text)
		}
		if all {
			return
		}
	}
	t.Fatalf("no %s of %q with %q in %+v", state, check, texts, findings)
}

// noneLeftIn looks at these places alone: the machine may have leftovers of others, which are rightly named.
func noneLeftIn(t *testing.T, findings []finding, places ...string) {
	t.Helper()
	for _, f := range findings {
		for _, place := range places {
			require.False(t, f.State == stateWarn && f.Check == "left behind" && strings.Contains(f.Found, place), "%+v", f)
		}
	}
}

// A stage that runs is all well, and so is a machine without one, but for the broker.
func TestDoctorOfAHealthyStage(t *testing.T) {
	runtime, base := ownPlaces(t), t.TempDir()
	_, findings := examine(t, "s", base)
	has(t, findings, stateWarn, "broker", `none runs for stage "s"`, "callboard serve --stage s")
	b, err := broker.Start(broker.Config{Stage: "s", ShmDir: base, MemoryBytes: 16 << 20})
	require.NoError(t, err)
	defer b.Close()
	code, findings := examine(t, "s", base)
	require.Equal(t, exitOK, code, "%+v", findings)
	has(t, findings, stateOK, "broker", "attached")
	has(t, findings, stateOK, "NATS", b.NATSURL())
	has(t, findings, stateOK, "version", broker.Version)
	has(t, findings, stateOK, "stages", base, fmt.Sprintf("process %d", os.Getpid()))
	has(t, findings, stateOK, "runtime directory", runtime)
	noneLeftIn(t, findings, runtime, base)
	code, out, _ := call("doctor", "--stage", "s", "--shm-dir", base)
	require.Equal(t, exitOK, code)
	require.Regexp(t, `(?m)^ok +broker +attached`, out)
	code, _, notes := call("doctor", "--stage", "a/b")
	require.Equal(t, exitUsage, code, notes)
}

// I5, C3, C4: places that clients refuse are named with owner and mode.
func TestDoctorOfBadDirectories(t *testing.T) {
	runtime, base := ownPlaces(t), t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(runtime, "s"), 0o700))
	require.NoError(t, os.Chmod(runtime, 0o777))
	code, findings := examine(t, "s", base)
	require.Equal(t, exitFailure, code)
	has(t, findings, stateFail, "runtime directory", runtime, "drwxrwxrwx", "chmod 0700")

	require.NoError(t, os.RemoveAll(runtime))
	require.NoError(t, os.Symlink("/tmp", runtime))
	_, findings = examine(t, "s", base)
	has(t, findings, stateFail, "runtime directory", "symbolic link")
	require.NoError(t, os.Remove(runtime))

	memory := filepath.Dir(shm.ShmDir(base, "s"))
	require.NoError(t, os.Mkdir(memory, 0o755))
	_, findings = examine(t, "s", base)
	has(t, findings, stateFail, "memory directory", memory, "drwxr-xr-x")
	if os.Geteuid() == 0 { // only root can give a directory away
		require.NoError(t, os.Chmod(memory, 0o700))
		require.NoError(t, os.Chown(memory, 12345, -1))
		_, findings = examine(t, "s", base)
		has(t, findings, stateFail, "memory directory", "owner uid 12345")
	}
	t.Setenv(shm.TrustEnv, "alice")
	_, findings = examine(t, "s", base)
	has(t, findings, stateFail, "runtime directory", `"alice" is no id`)
}

// B1, B6, C6: a small file system is told with its numbers; a place that is not there, or no tmpfs, too.
func TestDoctorOfSharedMemory(t *testing.T) {
	ownPlaces(t)
	code, findings := examine(t, "s", "/nonexistent")
	require.Equal(t, exitFailure, code)
	has(t, findings, stateFail, "shared memory", "/nonexistent")
	has(t, findings, stateFail, "kernel", "/nonexistent")
	if kind, err := shm.FileSystemType(t.TempDir()); err == nil && kind != "tmpfs" {
		_, findings = examine(t, "s", t.TempDir())
		has(t, findings, stateWarn, "shared memory", "written to a disk")
	}
	for size, state := range map[int]string{64 << 20: stateWarn, 8 << 20: stateFail} {
		dir := t.TempDir()
		if err := syscall.Mount("none", dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=0700", size)); err != nil {
			if os.Getenv("CALLBOARD_TEST_NO_SKIP") == "1" {
				t.Fatalf("mounting a small tmpfs needs root: %v", err)
			}
			t.Skipf("mounting a small tmpfs needs root: %v", err)
		}
		_, findings = examine(t, "s", dir)
		require.NoError(t, syscall.Unmount(dir, 0))
		has(t, findings, state, "shared memory", formatSize(uint64(size)), "--shm-size")
	}
}

// A8, A14, A27: what a killed broker left, and who still holds it.
func TestDoctorOfWhatAKilledBrokerLeft(t *testing.T) {
	runtime, base := ownPlaces(t), t.TempDir()
	killed, _, _ := serveProcess(t, "killed", "--shm-dir", base)
	client, err := callboard.Dial(context.Background(), callboard.Options{Stage: "killed"})
	require.NoError(t, err)
	require.NoError(t, killed.Process.Kill())
	_ = killed.Wait()
	code, findings := examine(t, "killed", base)
	require.Equal(t, exitFailure, code)
	has(t, findings, stateFail, "broker", "nobody listens", "callboard gc")
	has(t, findings, stateFail, "NATS", "nats.json")
	has(t, findings, stateWarn, "left behind", "a client still looks at it", fmt.Sprintf("process %d", os.Getpid()))
	require.NoError(t, client.Close())
	_, findings = examine(t, "killed", base)
	has(t, findings, stateWarn, "left behind", "memory of stage killed", "nobody uses it", "callboard gc")
	_, _, notes := call("gc", "--shm-dir", base)
	require.Empty(t, notes)
	_, findings = examine(t, "killed", base)
	noneLeftIn(t, findings, runtime, base)
}

// D2: a broker of another version is found, and said to be incompatible.
func TestDoctorOfAnotherVersion(t *testing.T) {
	runtime, base := ownPlaces(t), t.TempDir()
	dir := filepath.Join(runtime, "s")
	require.NoError(t, shm.MakeDir(dir))
	listener, err := shm.Listen(filepath.Join(dir, shm.AttachSocket))
	require.NoError(t, err)
	defer func() { _ = listener.Close() }()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			var buffer [protocol.MessageBytesMax]byte
			_, _, _ = conn.Recv(buffer[:])
			answer := append([]byte(nil), buffer[:64]...) // magic and size are right, the version is not
			answer[6] = 7
			_ = conn.Send(answer)
			_ = conn.Close()
		}
	}()
	code, findings := examine(t, "s", base)
	require.Equal(t, exitFailure, code)
	has(t, findings, stateFail, "broker", "version 7.", protocol.VersionText(protocol.VersionWord))
}

// A stage whose NATS server is out of reach works, and doctor says which part does not.
func TestDoctorWithoutNATS(t *testing.T) {
	ownPlaces(t)
	base := t.TempDir()
	b, err := broker.Start(broker.Config{Stage: "s", ShmDir: base, MemoryBytes: 16 << 20, External: &control.External{URL: "nats://u:p@127.0.0.1:1"}})
	require.NoError(t, err)
	defer b.Close()
	code, findings := examine(t, "s", base)
	require.Equal(t, exitFailure, code)
	has(t, findings, stateOK, "broker", "attached")
	has(t, findings, stateFail, "NATS", "nats://127.0.0.1:1", "work without it")
}
