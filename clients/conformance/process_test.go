package conformance

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"callboard/integration/harness"
)

// answerWait is how long a driver gets for a line; its own limit for a wait is shorter.
const answerWait = 30 * time.Second

// commands gives the program and arguments of each language's driver, and for each that cannot be built the reason. They
// are built once.
func commands(t *testing.T) (argv map[string][]string, broken map[string]string) {
	t.Helper()
	built.once.Do(func() { built.argv, built.broken = build(t) })
	require.NotNil(t, built.argv, "another test failed to build the drivers")
	return built.argv, built.broken
}

var built struct {
	once   sync.Once
	argv   map[string][]string
	broken map[string]string
}

func build(t *testing.T) (argv map[string][]string, broken map[string]string) {
	t.Helper()
	root, err := harness.Root()
	require.NoError(t, err)
	dir := filepath.Join(root, "build", "conformance")
	require.NoError(t, os.MkdirAll(dir, 0o755))
	argv, broken = map[string][]string{}, map[string]string{}
	compile := func(language, name string, args ...string) {
		command := exec.Command(name, args...)
		command.Dir = root
		if out, err := command.CombinedOutput(); err != nil {
			broken[language] = fmt.Sprintf("the driver cannot be built: %v\n%s", err, out)
		}
	}
	program := filepath.Join(dir, "driver_go")
	compile("go", "go", "build", "-o", program, "./clients/conformance/driver_go")
	argv["go"] = []string{program}

	compiler := os.Getenv("CC")
	if compiler == "" {
		compiler = "cc"
	}
	sources, err := filepath.Glob(filepath.Join(root, "clients/c/src/*.c"))
	require.NoError(t, err)
	program = filepath.Join(dir, "driver_c")
	driver, err := filepath.Glob(filepath.Join(root, "clients/conformance/driver_c/*.[ch]"))
	require.NoError(t, err)
	sources = slices.Concat(sources, driver)
	if newer(t, program, append(sources,
		filepath.Join(root, "clients/c/include/callboard.h"), filepath.Join(root, "clients/c/include/callboard_abi.h"))) {
		compile("c", compiler, append([]string{"-std=c11", "-D_GNU_SOURCE", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread",
			"-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-Iclients/c/include", "-Iclients/c/src",
			"-o", program}, slices.DeleteFunc(sources, func(s string) bool { return strings.HasSuffix(s, ".h") })...)...)
	}
	argv["c"] = []string{program}

	argv["python"] = []string{python(root), filepath.Join(root, "clients/conformance/driver_py/driver.py")}
	if out, err := exec.Command(argv["python"][0], "-c", "import callboard, numpy").CombinedOutput(); err != nil {
		broken["python"] = fmt.Sprintf("the client is not installed for %s (make .venv/.client .venv/.test): %v\n%s", argv["python"][0], err, out)
	}
	return argv, broken
}

// newer tells whether a source is newer than the program: the sanitized build takes a while.
func newer(t *testing.T, program string, sources []string) bool {
	have, err := os.Stat(program)
	if err != nil {
		return true
	}
	for _, source := range sources {
		info, err := os.Stat(source)
		require.NoError(t, err)
		if info.ModTime().After(have.ModTime()) {
			return true
		}
	}
	return false
}

func python(root string) string {
	if path := os.Getenv("CALLBOARD_PYTHON"); path != "" {
		return path
	}
	return filepath.Join(root, ".venv", "bin", "python")
}

// said collects what a process writes while others look at it.
type said struct {
	mutex sync.Mutex
	text  strings.Builder
}

func (s *said) Write(p []byte) (int, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.text.Write(p)
}

func (s *said) String() string {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.text.String()
}

// driver is a running driver process.
type driver struct {
	language string
	command  *exec.Cmd
	in       io.WriteCloser
	lines    chan string
	errors   *said
}

func startDriver(language string, argv []string) (*driver, error) {
	d := &driver{language: language, command: exec.Command(argv[0], argv[1:]...), lines: make(chan string, 1), errors: &said{}}
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "CALLBOARD_") && !strings.HasPrefix(variable, "XDG_RUNTIME_DIR=") {
			d.command.Env = append(d.command.Env, variable)
		}
	}
	d.command.Stderr = d.errors
	var err error
	if d.in, err = d.command.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := d.command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := d.command.Start(); err != nil {
		return nil, err
	}
	go func() {
		lines := bufio.NewScanner(out)
		lines.Buffer(nil, 64<<20)
		for lines.Scan() {
			d.lines <- lines.Text()
		}
		close(d.lines)
	}()
	return d, nil
}

// ask gives a line and waits for the answer. An error means that the process is of no more use.
func (d *driver) ask(line string) (answer, error) {
	if err := d.tell(line); err != nil {
		return answer{}, err
	}
	return d.hear()
}

func (d *driver) tell(line string) error {
	if _, err := io.WriteString(d.in, line+"\n"); err != nil {
		return d.ended()
	}
	return nil
}

func (d *driver) hear() (answer, error) {
	select {
	case text, open := <-d.lines:
		if !open {
			return answer{}, d.ended()
		}
		return parseAnswer(text)
	case <-time.After(answerWait):
		return answer{}, fmt.Errorf("driver %s did not answer within %v", d.language, answerWait)
	}
}

func (d *driver) ended() error {
	d.kill()
	text := d.errors.String()
	if len(text) > 3000 {
		text = text[:3000] + "…"
	}
	return fmt.Errorf("driver %s ended (%v):\n%s", d.language, d.command.ProcessState, text)
}

// kill ends the process as a crash does, and waits for its end.
func (d *driver) kill() {
	_ = d.command.Process.Kill()
	for range d.lines {
	}
	_ = d.command.Wait()
}

// stop ends the process by the end of its input, and tells whether it ended well: the C driver looks for leaks then.
func (d *driver) stop() error {
	_ = d.in.Close()
	timer := time.AfterFunc(answerWait, func() { _ = d.command.Process.Kill() })
	defer timer.Stop()
	for range d.lines {
	}
	if err := d.command.Wait(); err != nil {
		return fmt.Errorf("driver %s ended with %v:\n%s", d.language, err, d.errors)
	}
	return nil
}
