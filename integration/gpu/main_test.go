package gpu

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"callboard/cudaipc"
	"callboard/integration/cudaemu"
	"callboard/integration/harness"
)

// roleEnv makes a client of the test binary.
const roleEnv = "CALLBOARD_TEST_ROLE"

// driver is what all processes of the tests load.
var driver struct {
	library  string // "": the default
	emulated bool
}

func TestMain(m *testing.M) {
	if os.Getenv(roleEnv) != "" {
		os.Exit(play())
	}
	for _, name := range []string{"CALLBOARD_RUNTIME_DIR", "CALLBOARD_STAGE", "XDG_RUNTIME_DIR"} {
		_ = os.Unsetenv(name)
	}
	if err := choose(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if beside := besideUs("callboard"); os.Getenv(harness.BinaryEnv) == "" && beside != "" {
		_ = os.Setenv(harness.BinaryEnv, beside)
	}
	os.Exit(m.Run())
}

// choose decides which driver runs, and says so.
func choose() error {
	driver.library = os.Getenv(cudaipc.LibraryEnv)
	d, err := usable(driver.library)
	required := os.Getenv("REQUIRE_GPU") == "1"
	if driver.library == "" && err != nil {
		if required {
			return fmt.Errorf("REQUIRE_GPU=1, and no real GPU is here: %w", err)
		}
		fmt.Println("no driver with a device:", err)
		if driver.library, err = emulated(); err != nil {
			return fmt.Errorf("there is no GPU, and no emulated one can be made: %w", err)
		}
		d, err = usable(driver.library)
	}
	if err != nil {
		return err
	}
	fmt.Println("driver of integration/gpu:", d.Name())
	driver.emulated = d.Name() == "emulated"
	if driver.emulated && required {
		return errors.New("REQUIRE_GPU=1, and the driver is the emulated one")
	}
	return nil
}

func usable(library string) (cudaipc.Driver, error) {
	d, err := cudaipc.Load(library)
	if err != nil {
		return nil, err
	}
	n, err := d.DeviceCount()
	if err == nil && n == 0 {
		err = errors.New("the driver sees no device")
	}
	return d, err
}

// emulated builds the emulated driver.
func emulated() (path string, err error) {
	t := &buildTB{}
	defer func() {
		if e := recover(); e != nil && e != t {
			panic(e)
		}
		err = t.why
	}()
	return cudaemu.Library(t), nil
}

// buildTB is as much of a testing.TB as cudaemu.Library asks for. Without a compiler there is nothing to test with.
type buildTB struct {
	testing.TB
	why error
}

func (t *buildTB) Helper()                           {}
func (t *buildTB) Skipf(format string, args ...any)  { t.Fatalf(format, args...) }
func (t *buildTB) Fatal(args ...any)                 { t.Fatalf("%s", fmt.Sprint(args...)) }
func (t *buildTB) Fatalf(format string, args ...any) { t.why = fmt.Errorf(format, args...); panic(t) }

// besideUs is a program that was carried here together with the test binary; "": there is none.
func besideUs(name string) string {
	self, err := os.Executable()
	if err != nil {
		return ""
	}
	path := filepath.Join(filepath.Dir(self), name)
	if info, err := os.Stat(path); err != nil || info.IsDir() {
		return ""
	}
	return path
}

// skip is the only way to leave a test out.
func skip(t *testing.T, reason string) {
	t.Helper()
	if os.Getenv("CALLBOARD_TEST_NO_SKIP") == "1" {
		t.Fatalf("may not be skipped here: %s", reason)
	}
	t.Skip(reason)
}

// needsEmulation leaves a test out whose driver must misbehave on demand.
func needsEmulation(t *testing.T) {
	t.Helper()
	if !driver.emulated {
		skip(t, "a real driver cannot be told to do this")
	}
}
