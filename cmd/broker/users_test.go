package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	callboard "callboard/clients/go"
	"callboard/shm"
)

// beWriter makes the test binary a client that publishes one value.
const beWriter = "CALLBOARD_TEST_BE_WRITER"

func write() {
	err := func() error {
		stage, err := callboard.Dial(context.Background(), callboard.Options{Name: "guest"})
		if err != nil {
			return err
		}
		defer func() { _ = stage.Close() }()
		// Large enough to be mapped: the guest gets memory of the broker that it may write.
		values := make([]float32, 100_000)
		for i := range values {
			values[i] = float32(os.Geteuid())
		}
		image, err := callboard.FromSlice(values, 100, 1000)
		if err != nil {
			return err
		}
		_, err = stage.Publish(context.Background(), "by guest", image)
		return err
	}()
	if err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
	fmt.Println("written by", os.Geteuid())
}

// asUser runs this test binary as another user of these groups.
func asUser(t *testing.T, uid uint32, gid uint32, groups []uint32, environment []string, arguments ...string) (out string, err error) {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	dir, err := os.MkdirTemp("", "cbu") // where go test puts the binary nobody else may go
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o711))
	from, err := os.Open(self)
	require.NoError(t, err)
	defer from.Close()
	program := filepath.Join(dir, "program")
	to, err := os.OpenFile(program, os.O_CREATE|os.O_WRONLY, 0o755)
	require.NoError(t, err)
	_, err = io.Copy(to, from)
	require.NoError(t, err)
	require.NoError(t, to.Close())
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	command := exec.CommandContext(ctx, program, arguments...)
	command.Dir = "/"
	command.Env = append(append(os.Environ(), "XDG_RUNTIME_DIR=/nonexistent"), environment...)
	command.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: gid, Groups: groups}}
	raw, err := command.CombinedOutput()
	return string(raw), err
}

func stopInOrder(t *testing.T, command *exec.Cmd) {
	require.NoError(t, command.Process.Signal(syscall.SIGTERM))
	require.NoError(t, command.Wait())
}

// I5, C3, C9: another user writes into a stage whose operator admits it, by number or by a group, and reads there; descriptors come through the
// socket, so the objects stay the broker's own. Whoever is not admitted is refused with both numbers; and a client enters another user's directory only if it trusts that one.
func TestOtherUsersAttachWhereTheOperatorAdmitsThem(t *testing.T) {
	if os.Geteuid() != 0 {
		if os.Getenv("CALLBOARD_TEST_NO_SKIP") == "1" {
			t.Fatal("only root can run processes of other users")
		}
		t.Skip("only root can run processes of other users")
	}
	const guest, group, stranger = 23456, 34567, 23457
	trust := shm.TrustEnv + "=0"
	for _, c := range []struct {
		flags  []string
		groups []uint32
	}{
		{[]string{"--allow-uid", fmt.Sprint(guest)}, nil},
		{[]string{"--allow-gid", fmt.Sprint(group)}, []uint32{group}},
	} {
		t.Run(c.flags[0], func(t *testing.T) {
			ownPlaces(t)
			stage := fmt.Sprintf("users-%d", os.Getpid())
			command, _, ready := serveProcess(t, stage, append(c.flags, "--shm-dir", t.TempDir())...)
			defer stopInOrder(t, command) // its directory lies beside those of real stages
			require.Contains(t, ready, "runtime=/tmp/callboard-0/"+stage, "others cannot pass through $XDG_RUNTIME_DIR")
			stageIs := stageEnv + "=" + stage
			out, err := asUser(t, guest, guest, c.groups, []string{beWriter + "=1", trust, stageIs})
			require.NoError(t, err, out)
			require.Contains(t, out, "written by 23456")
			out, err = asUser(t, guest, guest, c.groups, []string{beProgram + "=1", trust}, "read", "by guest", "--stage", stage, "--values", "1")
			require.NoError(t, err, out)
			require.Contains(t, out, "float32 100×1000")
			require.Contains(t, out, "23456")
			// The broker's own user reads the same, as ever.
			code, own, notes := call("read", "by guest", "--stage", stage, "--values", "1")
			require.Zero(t, code, notes)
			require.Contains(t, own, "23456")

			out, err = asUser(t, stranger, stranger, nil, []string{beWriter + "=1", trust, stageIs})
			require.Error(t, err)
			if c.flags[0] == "--allow-uid" {
				require.Contains(t, out, "user 23457 of groups [23457] may not attach")
				require.Contains(t, out, "belongs to user 0")
			} else {
				require.Contains(t, out, "permission denied", "the kernel itself keeps out who is not of the group")
			}
			out, err = asUser(t, guest, guest, c.groups, []string{beWriter + "=1", stageIs, shm.TrustEnv + "=", shm.RuntimeEnv + "=/tmp/callboard-0/" + stage})
			require.Error(t, err)
			require.Contains(t, out, "CALLBOARD_TRUST_UID=0", "it would read what that user says")
			// The credentials of NATS and the objects are not for guests.
			for _, path := range []string{"/tmp/callboard-0/" + stage + "/nats.json", strings.TrimSpace(ready[strings.Index(ready, "shm=")+4:])} {
				info, err := os.Stat(path)
				require.NoError(t, err)
				require.Zero(t, info.Mode().Perm()&0o077, path)
			}
		})
	}
	// By default nobody else is admitted.
	ownPlaces(t)
	stage := fmt.Sprintf("users-%d", os.Getpid())
	command, _, ready := serveProcess(t, stage, "--shm-dir", t.TempDir())
	defer stopInOrder(t, command)
	dir := strings.Fields(ready[strings.Index(ready, "runtime=")+8:])[0]
	require.NoError(t, os.Chmod(dir, 0o711))
	require.NoError(t, os.Chmod(filepath.Join(dir, shm.AttachSocket), 0o666))
	for above := filepath.Dir(dir); above != "/tmp"; above = filepath.Dir(above) {
		require.NoError(t, os.Chmod(above, 0o711))
	}
	out, err := asUser(t, guest, guest, nil, []string{beWriter + "=1", trust, stageEnv + "=" + stage, shm.RuntimeEnv + "=" + dir})
	require.Error(t, err)
	require.Contains(t, out, "user 23456 of groups [23456] may not attach")
	require.Contains(t, out, "serve --allow-uid")
}
