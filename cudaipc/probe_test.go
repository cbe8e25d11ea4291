//go:build !nogpu

package cudaipc_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"callboard/cudaipc"
)

// Field report F9: what does not work has a name before it is used, the driver's own words,
// and something to do. Each case is a driver of its own.
func TestProbeNamesTheReason(t *testing.T) {
	for _, c := range []struct {
		name, settings string
		answer         cudaipc.Answer
		reason, text   string
		advice         string
	}{
		{"works", "", cudaipc.Yes, "", "", ""},
		{"stub", "CUDAEMU_STUB=1", cudaipc.No, cudaipc.ReasonStub, "STUB_LIBRARY (34)", "libcuda.so.1"},
		{"none", "CUDAEMU_NO_DEVICE=1", cudaipc.No, cudaipc.ReasonNoDevice, "NO_DEVICE (100)", "CUDA_VISIBLE_DEVICES"},
		{"hidden", "CUDA_VISIBLE_DEVICES=-1", cudaipc.No, cudaipc.ReasonNoDevice, "NO_DEVICE (100)", "CUDA_VISIBLE_DEVICES"},
		{"mismatch", "CUDAEMU_FAIL=cuInit:0:803", cudaipc.No, cudaipc.ReasonMismatch, "(803)", "reboot"},
		{"tegra", "CUDAEMU_ATTRIBUTE=18:1", cudaipc.No, cudaipc.ReasonTegra, "attribute 18", "host"},
		{"exclusive", "CUDAEMU_ATTRIBUTE=20:3", cudaipc.No, cudaipc.ReasonExclusive, "is 3", "nvidia-smi -c DEFAULT"},
		{"no-addressing", "CUDAEMU_ATTRIBUTE=41:0", cudaipc.No, cudaipc.ReasonNoAddressing, "attribute 41", "64-bit"},
		{"no-events", "CUDAEMU_ATTRIBUTE=125:0", cudaipc.No, cudaipc.ReasonNoIPCEvents, "attribute 125", "update"},
		{"old-driver", "CUDAEMU_ATTRIBUTE=125:none", cudaipc.Unknown, cudaipc.ReasonUnknownEvents, "INVALID_VALUE (1)", "self-test"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if !emulate(t, c.settings) {
				return
			}
			r := cudaipc.Probe("")
			require.Equal(t, c.answer, r.Answer, "%v", r.Verdict)
			require.Equal(t, c.reason, r.Reason)
			require.Contains(t, r.Text, c.text)
			require.Contains(t, r.Advice, c.advice)
			if c.answer != cudaipc.No {
				require.Equal(t, "emulated", r.Driver.Name())
				require.Len(t, r.Devices, 1)
				require.NotEqual(t, cudaipc.UUID{}, r.Devices[0].UUID)
				require.NotZero(t, r.Devices[0].MemoryBytes)
			}
		})
	}
}

func TestProbeWithoutADriverNamesTheLibrary(t *testing.T) {
	r := cudaipc.Probe("/nowhere/libcuda.so.1")
	require.Equal(t, cudaipc.No, r.Answer)
	require.Equal(t, cudaipc.ReasonNoDriver, r.Reason)
	require.Contains(t, r.Text, "/nowhere/libcuda.so.1")
	require.Contains(t, r.Advice, cudaipc.LibraryEnv)
	require.Nil(t, r.Driver)

	r = cudaipc.Probe("libc.so.6")
	require.Equal(t, cudaipc.ReasonNoDriver, r.Reason)
	require.Contains(t, r.Text, "cuInit")
}

// Behaviour 306: a probe that failed is made again and may succeed, in the same process.
func TestFailedProbeIsNotRemembered(t *testing.T) {
	if !emulate(t, "CUDAEMU_FAIL=cuInit:1:46") {
		return
	}
	require.Equal(t, cudaipc.No, cudaipc.Probe("").Answer)
	require.Equal(t, cudaipc.Yes, cudaipc.Probe("").Answer)
}

// Field report F9: Windows' Linux says neither yes nor no.
func TestProbeInWSLLeavesItToTheSelfTest(t *testing.T) {
	driver(t)
	for _, how := range []string{"version", "dxg"} {
		root := t.TempDir() + "/"
		name, text := "proc/version", "Linux version 5.15.153.1-microsoft-standard-WSL2"
		if how == "dxg" {
			name, text = "dev/dxg", ""
		}
		require.NoError(t, os.MkdirAll(filepath.Dir(root+name), 0o700))
		require.NoError(t, os.WriteFile(root+name, []byte(text), 0o600))
		r := cudaipc.ProbeBelow("", root)
		require.Equal(t, cudaipc.Unknown, r.Answer, how)
		require.Equal(t, cudaipc.ReasonWSL, r.Reason, how)
	}
}

// Containers: what others will not be able to open is said before they try.
func TestProbeNotesAPidNamespaceOfItsOwn(t *testing.T) {
	root := t.TempDir() + "/"
	require.NoError(t, os.MkdirAll(root+"proc/self/ns", 0o700))
	require.NoError(t, os.Symlink("pid:[4026532000]", root+"proc/self/ns/pid"))
	r := cudaipc.ProbeBelow("/nowhere", root)
	require.Len(t, r.Notes, 1)
	require.Contains(t, r.Notes[0], "--pid=host")

	require.NoError(t, os.Remove(root+"proc/self/ns/pid"))
	require.NoError(t, os.Symlink("pid:[4026531836]", root+"proc/self/ns/pid"))
	require.Empty(t, cudaipc.ProbeBelow("/nowhere", root).Notes)
}
