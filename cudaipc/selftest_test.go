//go:build !nogpu

package cudaipc_test

import (
	"context"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"callboard/cudaipc"
	"callboard/integration/cudaemu"
)

func TestSelfTestSharesMemoryWithAChild(t *testing.T) {
	require.NoError(t, cudaipc.SelfTest(context.Background(), thread(t), command("self-test")))
}

// What goes wrong in the other process comes back as a reason.
func TestSelfTestNamesWhatFails(t *testing.T) {
	for _, c := range []struct {
		name, settings string
		reason, step   string
		text           string
	}{
		{"namespaces", "CUDAEMU_PIDNS=1", cudaipc.ReasonNamespaces, "opening the memory", "--pid=host"},
		{"event", "CUDAEMU_FAIL=cuIpcOpenEventHandle:1:801", cudaipc.ReasonRefused, "opening the event", "NOT_SUPPORTED"},
		{"no-device", "CUDAEMU_NO_DEVICE=1", cudaipc.ReasonNoDevice, "loading the driver", "NO_DEVICE"},
		{"hidden", "CUDA_VISIBLE_DEVICES=-1", cudaipc.ReasonNoDevice, "loading the driver", "CUDA_VISIBLE_DEVICES"},
		{"copy", "CUDAEMU_FAIL=cuMemcpyDtoDAsync:1:719", cudaipc.ReasonContextLost, "copying and recording", "restart"},
		{"no-memory", "CUDAEMU_FAIL=cuDevicePrimaryCtxRetain:1:2", cudaipc.ReasonNoMemory, "finding the device", "--gpu-memory"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if !emulate(t) {
				return
			}
			err := cudaipc.SelfTest(context.Background(), thread(t), command("self-test", c.settings))
			var failed *cudaipc.SelfTestError
			require.ErrorAs(t, err, &failed)
			require.Equal(t, c.reason, failed.Reason, "%v", err)
			require.ErrorContains(t, err, c.step)
			require.ErrorContains(t, err, c.text)
			nothingHeld(t)
		})
	}
}

// The child's event never completes: the self-test ends all the same, and frees nothing
// before the child is gone.
func TestSelfTestEndsWhenAnEventNeverCompletes(t *testing.T) {
	if !emulate(t) {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	err := cudaipc.SelfTest(ctx, thread(t), command("self-test", "CUDAEMU_STALL_EVENTS=1"))
	require.ErrorIs(t, err, cudaipc.ErrDeadline)
	var failed *cudaipc.SelfTestError
	require.ErrorAs(t, err, &failed)
	require.Equal(t, cudaipc.ReasonNoAnswer, failed.Reason)
	nothingHeld(t)
}

// A child that says that all is well and has done nothing is found out.
func TestSelfTestLooksAtTheBytes(t *testing.T) {
	err := cudaipc.SelfTest(context.Background(), thread(t), command("false-witness"))
	var failed *cudaipc.SelfTestError
	require.ErrorAs(t, err, &failed)
	require.Equal(t, cudaipc.ReasonWrongBytes, failed.Reason)
}

func TestSelfTestEndsWithAChildThatDoesNotAnswer(t *testing.T) {
	th := thread(t)
	for name, cmd := range map[string]*exec.Cmd{
		"ends":           exec.Command("true"),
		"cannot start":   exec.Command("/nowhere/callboard"),
		"says something": exec.Command("echo", "hello"),
	} {
		err := cudaipc.SelfTest(context.Background(), th, cmd)
		var failed *cudaipc.SelfTestError
		require.ErrorAs(t, err, &failed, name)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	err := cudaipc.SelfTest(ctx, th, exec.Command("sleep", "1000"))
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

// nothingHeld looks at the emulated driver's books of this process: only the context is left.
func nothingHeld(t *testing.T) {
	t.Helper()
	processes, err := cudaemu.Report(os.Getenv("CUDAEMU_DIR"))
	require.NoError(t, err)
	held := cudaemu.Held(processes)
	held.Contexts = 0
	require.Zero(t, held)
}
