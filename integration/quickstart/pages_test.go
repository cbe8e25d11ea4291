package quickstart

import (
	"bufio"
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"callboard/integration/harness"
)

// migrations are the pages for those who come from elsewhere and the blocks that each has, in this order. A reader runs
// when its writer has ended.
var migrations = map[string][]string{
	"shared-memory.md": {"writer", "reader"},
	"plasma.md":        {"writer", "reader"},
	"iceoryx2.md":      {"writer", "reader", "build"},
	"ros2.md":          {"node", "build"},
}

// TestMigrationNotesRun runs our side of what each page compares.
func TestMigrationNotesRun(t *testing.T) {
	root, err := harness.Root()
	require.NoError(t, err)
	pages, err := filepath.Glob(filepath.Join(root, "docs", "migration", "*.md"))
	require.NoError(t, err)
	require.Len(t, pages, len(migrations), "pages of docs/migration")
	for _, page := range pages {
		name := filepath.Base(page)
		t.Run(strings.TrimSuffix(name, ".md"), func(t *testing.T) {
			run := read(t, page, migrations[name]...)
			p := beside(t, root)
			for _, mark := range migrations[name] {
				switch build := run["build"]; {
				case build == "":
					if mark == "reader" {
						checksItself(t, run[mark], `(?m)^\s*assert `)
					}
					p.runPython(t, run[mark])
				case mark != "build":
					if mark != "writer" {
						checksItself(t, run[mark], `return .* \? 0 : 1;`)
					}
					p.runCxx(t, run[mark], build)
				}
			}
		})
	}
}

// beside is a place with a broker of its own.
func beside(t *testing.T, root string) *place {
	t.Helper()
	b := harness.Start(t)
	t.Cleanup(func() {
		b.Stop()
		require.Empty(t, b.Residue(), "left behind")
	})
	p := &place{root: root, env: environment("CALLBOARD_RUNTIME_DIR=" + b.RuntimeDir)}
	p.env = append(p.env, "CALLBOARD_STAGE="+b.Stage)
	return p
}

// runCxx follows the page's command in a directory that has the client under its own place.
func (p *place) runCxx(t *testing.T, block, build string) {
	t.Helper()
	dir := t.TempDir()
	p.succeeds(t, p.root, "make", "--silent", "-C", filepath.Join("clients", "c"))
	require.NoError(t, os.Symlink(filepath.Join(p.root, "clients"), filepath.Join(dir, "clients")))
	write(t, filepath.Join(dir, "program.cpp"), block)
	p.succeeds(t, dir, "sh", "-ec", strings.Replace(build, "c++ ", "c++ -Wall -Wextra -Werror ", 1)+"\n./program")
}

// TestRobotPageRuns starts the nodes of examples/robot by the commands of its page, and ends them by Ctrl-C.
func TestRobotPageRuns(t *testing.T) {
	root, err := harness.Root()
	require.NoError(t, err)
	nodes := []string{"lidar", "controller", "observer"}
	run := read(t, filepath.Join(root, "examples", "robot", "README.md"), nodes...)
	p := beside(t, root)
	p.env = append(p.env, "PATH="+filepath.Dir(python(t, root))+":"+os.Getenv("PATH"))
	shows := map[string]string{"lidar": `goes on after tick 0$`, "controller": `goes on after tick 0; operators: port \d+$`, "observer": `tick \d+: nearest`}
	for _, node := range nodes {
		p.shows(t, run[node], "^"+node+": "+shows[node])
	}
}

// shows starts a program that runs on, waits for a line of it, and ends it with the test, by Ctrl-C.
func (p *place) shows(t *testing.T, block, wanted string) {
	t.Helper()
	ctx, kill := context.WithCancel(context.Background())
	command := group(exec.CommandContext(ctx, "sh", "-ec", block))
	command.Dir, command.Env = p.root, p.env
	var complaints bytes.Buffer
	command.Stderr = &complaints
	out, err := command.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, command.Start())
	shown, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		pattern, first := regexp.MustCompile(wanted), true
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if first && pattern.Match(lines.Bytes()) {
				close(shown)
				first = false
			}
		}
	}()
	t.Cleanup(func() {
		_ = syscall.Kill(-command.Process.Pid, syscall.SIGINT) // to all in it, as a terminal does
		late := time.AfterFunc(limit, func() {
			t.Errorf("it does not end by Ctrl-C: %s", block)
			kill()
		})
		<-ended
		late.Stop()
		_ = command.Wait() // the shell's status is that of the signal
		kill()
		if t.Failed() {
			t.Logf("%s\nwrote:\n%s", block, &complaints)
		}
	})
	select {
	case <-shown:
	case <-ended:
		t.Fatalf("it ended and did not show %q: %s", wanted, block)
	case <-time.After(limit):
		t.Fatalf("it did not show %q: %s", wanted, block)
	}
}
