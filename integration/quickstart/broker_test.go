package quickstart

import (
	"bufio"
	"bytes"
	"context"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	callboard "callboard/clients/go"

	"github.com/stretchr/testify/require"
)

// start runs the page's own commands; the last one is the broker, and gets a directory
// of its own for its memory. That ends with the test, and must leave nothing.
func start(t *testing.T, root, block string) *place {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(block), "\n")
	last := lines[len(lines)-1]
	require.Equal(t, "bin/callboard serve", last, "the last command of the block must run the broker")

	runtimeDir := privateDir(t, "") // short: the path of a socket has at most 107 bytes
	p := &place{root: root, shmDir: privateDir(t, "/dev/shm")}
	p.env = environment("CALLBOARD_RUNTIME_DIR=" + runtimeDir)
	lines[len(lines)-1] = "exec " + last + " --shm-dir " + p.shmDir

	ctx, kill := context.WithCancel(context.Background())
	broker := group(exec.CommandContext(ctx, "sh", "-ec", strings.Join(lines, "\n")))
	broker.Dir, broker.Env = root, p.env
	var log bytes.Buffer
	broker.Stderr = &log
	out, err := broker.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, broker.Start())
	ended := make(chan struct{})
	ready := make(chan string, 1)
	go func() {
		defer close(ended)
		for printed := bufio.NewScanner(out); printed.Scan(); {
			if strings.HasPrefix(printed.Text(), "callboard ready ") {
				ready <- printed.Text()
			}
		}
	}()
	t.Cleanup(func() {
		_ = broker.Process.Signal(syscall.SIGTERM)
		late := time.AfterFunc(20*time.Second, kill)
		<-ended
		late.Stop()
		if err := broker.Wait(); err != nil || t.Failed() {
			t.Errorf("the broker ended with %v; it logged:\n%s", err, &log)
		}
		kill()
		require.Empty(t, filesIn(t, runtimeDir, p.shmDir), "left behind")
	})

	select {
	case line := <-ready:
		require.Contains(t, line, "stage=default runtime="+runtimeDir)
	case <-ended:
		t.Fatal("the broker ended before it was ready")
	case <-time.After(5 * time.Minute): // it is built first
		t.Fatal("the broker did not get ready")
	}
	p.stage, err = callboard.Dial(context.Background(), callboard.Options{RuntimeDir: runtimeDir, Stage: "default", Name: "quick start test"})
	require.NoError(t, err)
	t.Cleanup(func() { _ = p.stage.Close() })
	return p
}

// environment is ours without what would lead a block elsewhere or belongs to an outer make.
func environment(more string) (env []string) {
	for _, entry := range os.Environ() {
		switch name, _, _ := strings.Cut(entry, "="); name {
		case "CALLBOARD_RUNTIME_DIR", "CALLBOARD_STAGE", "MAKEFLAGS", "MFLAGS", "MAKELEVEL":
		default:
			env = append(env, entry)
		}
	}
	return append(env, more)
}

func privateDir(t *testing.T, base string) string {
	t.Helper()
	dir, err := os.MkdirTemp(base, "cbreadme-")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// group makes the end of a command that is given up the end of all that it started.
func group(command *exec.Cmd) *exec.Cmd {
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGKILL) }
	command.WaitDelay = 10 * time.Second
	return command
}

func filesIn(t *testing.T, dirs ...string) (found []string) {
	t.Helper()
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			switch {
			case os.IsNotExist(err):
				return nil // the last one to leave removes it
			case err == nil && path != dir:
				found = append(found, path)
			}
			return err
		})
		require.NoError(t, err)
	}
	return found
}
