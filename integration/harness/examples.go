package harness

import (
	"fmt"
	"os"
	"slices"
	"testing"
)

// RunWithBroker runs a package's tests and examples beside one broker, and gives the exit code: for a TestMain, since an
// example has no testing.TB of its own. The environment leads clients without Options to that broker.
func RunWithBroker(m *testing.M) (code int) {
	t := &mainTB{}
	defer func() {
		if e := recover(); e != nil && e != t { // t: Fatal has said why
			panic(e)
		}
		for _, end := range slices.Backward(t.cleanups) {
			end()
		}
		if t.failed {
			code = 1
		}
	}()
	b := Start(t)
	for name, value := range map[string]string{"CALLBOARD_RUNTIME_DIR": b.RuntimeDir, "CALLBOARD_STAGE": b.Stage} {
		if err := os.Setenv(name, value); err != nil {
			t.Fatal(err)
		}
	}
	return m.Run()
}

// mainTB is as much of a testing.TB as a Broker asks for.
type mainTB struct {
	testing.TB
	cleanups []func()
	failed   bool
}

func (t *mainTB) Helper()            {}
func (t *mainTB) Cleanup(end func()) { t.cleanups = append(t.cleanups, end) }
func (t *mainTB) Failed() bool       { return t.failed }
func (t *mainTB) Log(args ...any)    { fmt.Fprintln(os.Stderr, args...) }

func (t *mainTB) Logf(format string, args ...any) { t.Log(fmt.Sprintf(format, args...)) }

func (t *mainTB) Errorf(format string, args ...any) {
	t.failed = true
	t.Logf(format, args...)
}

func (t *mainTB) Fatal(args ...any) { t.Fatalf("%s", fmt.Sprint(args...)) }

func (t *mainTB) Fatalf(format string, args ...any) {
	t.Errorf(format, args...)
	panic(t)
}
