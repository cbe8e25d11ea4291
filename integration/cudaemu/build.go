package cudaemu

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"callboard/integration/harness"
)

//go:embed csrc
var sources embed.FS

// Name is what programs load.
const Name = "libcuda.so.1"

var flags = []string{
	"-std=c11", "-D_GNU_SOURCE", "-O1", "-g", "-fPIC", "-pthread", "-fvisibility=hidden",
	"-Wall", "-Wextra", "-Werror", "-Wshadow", "-Wstrict-prototypes", "-Wmissing-prototypes",
}

// Build compiles the library into dir, which exists, and returns the library's path. It needs a C compiler: $CC,
// which may have arguments, or cc. Processes may build into one directory at a time.
func Build(dir string) (path string, err error) {
	scratch, err := os.MkdirTemp(dir, "csrc-")
	if err != nil {
		return "", fmt.Errorf("building the emulated driver: %w", err)
	}
	defer os.RemoveAll(scratch)
	inputs, err := unpack(scratch)
	if err != nil {
		return "", fmt.Errorf("building the emulated driver: %w", err)
	}
	made := filepath.Join(scratch, Name)
	arguments := append([]string{"-shared", "-Wl,-soname," + Name, "-Wl,-z,defs", "-o", made}, append(inputs, "-ldl")...)
	if err := compile(arguments...); err != nil {
		return "", err
	}
	path = filepath.Join(dir, Name)
	if err := os.Rename(made, path); err != nil { // over one that a process may have loaded
		return "", fmt.Errorf("building the emulated driver: %w", err)
	}
	return path, nil
}

// unpack writes the C sources to dir and lists the files to compile.
func unpack(dir string) (inputs []string, err error) {
	entries, err := sources.ReadDir("csrc")
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		text, err := fs.ReadFile(sources, "csrc/"+entry.Name())
		if err != nil {
			return nil, err
		}
		path := filepath.Join(dir, entry.Name())
		if err := os.WriteFile(path, text, 0o600); err != nil {
			return nil, err
		}
		if filepath.Ext(path) == ".c" {
			inputs = append(inputs, path)
		}
	}
	return inputs, nil
}

func compiler() []string {
	if words := strings.Fields(os.Getenv("CC")); len(words) > 0 {
		return words
	}
	return []string{"cc"}
}

func compile(arguments ...string) error {
	words := append(append(compiler(), flags...), arguments...)
	out, err := exec.Command(words[0], words[1:]...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("compiling the emulated driver with %s: %w\n%s", words[0], err, out)
	}
	return nil
}

// once builds in the module's build directory, in a folder named for the sources and the compiler, so that test
// processes which run side by side share the work and never a library of other sources.
var once = sync.OnceValues(func() (string, error) {
	root, err := harness.Root()
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	fmt.Fprintln(sum, compiler(), flags)
	err = fs.WalkDir(sources, "csrc", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := fs.ReadFile(sources, name)
		fmt.Fprintf(sum, "%s %d\n%s", name, len(text), text)
		return err
	})
	if err != nil {
		return "", err
	}
	dir := filepath.Join(root, "build", "cudaemu", hex.EncodeToString(sum.Sum(nil)[:8]))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	path := filepath.Join(dir, Name)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	return Build(dir)
})

// Library is the path of the library, built at most once for each test process. Where there is no C compiler the test
// is skipped, or fails under CALLBOARD_TEST_NO_SKIP=1.
func Library(t testing.TB) string {
	t.Helper()
	if _, err := exec.LookPath(compiler()[0]); err != nil {
		if os.Getenv("CALLBOARD_TEST_NO_SKIP") == "1" {
			t.Fatalf("may not be skipped here: the emulated driver needs a C compiler: %v", err)
		}
		t.Skipf("the emulated driver needs a C compiler: %v", err)
	}
	path, err := once()
	if err != nil {
		t.Fatal(err)
	}
	return path
}
