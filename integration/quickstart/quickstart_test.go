package quickstart

import (
	"bytes"
	"context"
	"fmt"
	"go/format"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	callboard "callboard/clients/go"
	"callboard/integration/harness"

	"github.com/stretchr/testify/require"
)

// limit is generous: a program is compiled first, on a machine that has other things to do.
const limit = 3 * time.Minute

// place is what the programs of the page share: the tree they are run in and one broker.
type place struct {
	root, shmDir string
	env          []string
	stage        *callboard.Stage
}

// TestQuickStartOfTheReadme runs the page from top to bottom, as a newcomer does.
func TestQuickStartOfTheReadme(t *testing.T) {
	root, err := harness.Root()
	require.NoError(t, err)
	run := read(t, filepath.Join(root, "README.md"), wanted...)
	p := start(t, root, run["broker"])
	t.Run("python", func(t *testing.T) { p.python(t, run["python"]) })
	t.Run("go", func(t *testing.T) { p.golang(t, run["go"]) })
	t.Run("c", func(t *testing.T) { p.c(t, run["c"], run["c build"]) })
	t.Run("command line", func(t *testing.T) { p.commandLine(t, run["command line"]) })
}

// read gives the marked blocks of a page.
func read(t *testing.T, page string, wanted ...string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	run, err := blocks(string(text), wanted...)
	require.NoError(t, err, page)
	return run
}

// python is the interpreter that make names, or that make made.
func python(t *testing.T, root string) string {
	t.Helper()
	path := os.Getenv("CALLBOARD_PYTHON")
	if path == "" {
		path = filepath.Join(root, ".venv", "bin", "python")
	}
	if out, err := exec.Command(path, "-c", "import callboard, numpy").CombinedOutput(); err != nil {
		skip(t, fmt.Sprintf("%s cannot import callboard and numpy (%v); `make test-go` makes .venv, or let CALLBOARD_PYTHON name another: %s", path, err, out))
	}
	return path
}

func (p *place) python(t *testing.T, block string) {
	checksItself(t, block, `(?m)^\s*assert `)
	p.publishes(t, func() { p.runPython(t, block) })
}

func (p *place) runPython(t *testing.T, block string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "program.py")
	write(t, file, block)
	p.succeeds(t, p.root, python(t, p.root), "-W", "error", file)
}

// golang runs the block inside the module, so that it finds the package by its path.
func (p *place) golang(t *testing.T, block string) {
	checksItself(t, block, `log\.Fatal`)
	formatted, err := format.Source([]byte(block))
	require.NoError(t, err)
	require.Equal(t, string(formatted), block, "the block is not gofmt'd")

	require.NoError(t, os.MkdirAll(filepath.Join(p.root, "build"), 0o755))
	dir, err := os.MkdirTemp(filepath.Join(p.root, "build"), "_quickstart-") // "_": no package of ./...
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	file := filepath.Join(dir, "main.go")
	write(t, file, block)
	p.publishes(t, func() {
		out := p.succeeds(t, p.root, "go", "run", file)
		require.Regexp(t, `^uint8 \[480 640 3\] of ordinal \d+\n$`, out)
	})
}

// c follows the page's commands in a tree that holds a fresh copy of the client.
func (p *place) c(t *testing.T, block, build string) {
	checksItself(t, block, `return \w+ \? 0 : 1;`) // not assert: NDEBUG would take it away
	require.Contains(t, build, "./quickstart\n", "the commands do not run what they build")
	dir := t.TempDir()
	for _, part := range []string{"include", "src", "cuda"} {
		require.NoError(t, os.CopyFS(filepath.Join(dir, "clients", "c", part), os.DirFS(filepath.Join(p.root, "clients", "c", part))))
	}
	makefile, err := os.ReadFile(filepath.Join(p.root, "clients", "c", "Makefile"))
	require.NoError(t, err)
	write(t, filepath.Join(dir, "clients", "c", "Makefile"), string(makefile))
	write(t, filepath.Join(dir, "quickstart.c"), block)
	p.publishes(t, func() { p.succeeds(t, dir, "sh", "-ec", build) })
	p.succeeds(t, dir, "cc", "-Wall", "-Wextra", "-Werror", "-Iclients/c/include", "-fsyntax-only", "quickstart.c")
}

// told is what each command must print; a command without an entry fails.
var told = map[string]string{
	"bin/callboard ls":              `camera/rgb.*uint8.*480`,
	"bin/callboard read camera/rgb": `camera/rgb  uint8 .*480.*1 prim`,
	"bin/callboard watch --count 1": `(?m)^.*\b(commit|client)\b`, // a tick, or that the reader before has left
	"bin/callboard info":            `(?s)STAGE.*default.*CLIENTS.*quick start test`,
	"bin/callboard gc":              `(?m)memory.*in use`,
	"bin/callboard doctor":          `(?m)^ok +broker`,
}

func (p *place) commandLine(t *testing.T, block string) {
	seen := 0
	for line := range strings.Lines(block) {
		command, _, _ := strings.Cut(line, "#")
		command = strings.TrimSpace(command)
		want := told[command]
		require.NotEmpty(t, want, "nothing is known of what %q must print", command)
		if command == "bin/callboard gc" {
			command += " --shm-dir " + p.shmDir
		}
		stop := make(chan struct{})
		done := make(chan error, 1)
		go func() { done <- p.publishUntil(stop) }() // something to watch
		out := p.succeeds(t, p.root, "sh", "-ec", command)
		close(stop)
		require.NoError(t, <-done)
		require.Regexp(t, want, out, command)
		seen++
	}
	require.Equal(t, len(told), seen, "commands of the page")
}

func (p *place) publishUntil(stop chan struct{}) error {
	for {
		if _, err := p.stage.Publish(context.Background(), "tick", 1.0); err != nil {
			return err
		}
		select {
		case <-stop:
			return nil
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// publishes wants a program to seal a frame full of sevens after what was there.
func (p *place) publishes(t *testing.T, program func()) {
	t.Helper()
	before, err := p.stage.Publish(context.Background(), "camera/rgb", blank(t))
	require.NoError(t, err)
	program()
	latest, err := p.stage.Latest(context.Background(), "camera/rgb")
	require.NoError(t, err)
	defer latest.Release()
	require.Greater(t, latest.Ordinal(), before, "the program sealed nothing")
	require.Equal(t, []int64{480, 640, 3}, latest.Shape())
	got, err := latest.Bytes()
	require.NoError(t, err)
	require.Equal(t, 480*640*3, bytes.Count(got, []byte{7}))
}

func blank(t *testing.T) callboard.Tensor {
	t.Helper()
	zeros, err := callboard.FromSlice(make([]uint8, 480*640*3), 480, 640, 3)
	require.NoError(t, err)
	return zeros
}

// succeeds runs a program to its end and returns what it printed.
func (p *place) succeeds(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	command := group(exec.CommandContext(ctx, name, args...))
	command.Dir, command.Env = dir, p.env
	var complaints bytes.Buffer
	command.Stderr = &complaints
	out, err := command.Output()
	require.NoError(t, err, "%s %s\nprinted:\n%s\n%s", name, strings.Join(args, " "), out, &complaints)
	return string(out)
}

// checksItself wants a program to look at what it did.
func checksItself(t *testing.T, block, pattern string) {
	t.Helper()
	require.Regexp(t, pattern, block, "the block asserts nothing")
}

func write(t *testing.T, path, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
}

// skip is the only way to leave a block out.
func skip(t *testing.T, reason string) {
	t.Helper()
	if os.Getenv("CALLBOARD_TEST_NO_SKIP") == "1" {
		t.Fatalf("may not be skipped here: %s", reason)
	}
	t.Skip(reason)
}
