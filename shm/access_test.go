package shm

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestParseIDs(t *testing.T) {
	for text, want := range map[string][]uint32{"": nil, "0": {0}, " 1000, 7,": {1000, 7}, "4294967294": {1<<32 - 2}} {
		got, err := ParseIDs(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	for _, text := range []string{"root", "-1", "4294967295", "1;2", "1.5"} {
		_, err := ParseIDs(text)
		require.ErrorContains(t, err, "is no id", text)
	}
}

// I5: the broker's user always; others by number or by any of their groups, and by nothing else.
func TestAccessAdmits(t *testing.T) {
	own := uint32(os.Geteuid())
	require.True(t, Access{}.Admits(own, nil))
	require.False(t, Access{}.Admits(own+1, []uint32{own, 0}))
	a := Access{UIDs: []uint32{own + 5}, GIDs: []uint32{77}}
	require.True(t, a.Admits(own+5, nil))
	require.True(t, a.Admits(own+6, []uint32{3, 77}))
	require.False(t, a.Admits(own+6, []uint32{own + 5}), "a group is no user")
	require.False(t, a.Admits(77, []uint32{3}), "a user is no group")
}

// I5: what may be passed and what may be changed, as files show it.
func TestAccessSetsModes(t *testing.T) {
	group := os.Getegid()
	for _, c := range []struct {
		access              Access
		dir, parent, socket os.FileMode
	}{
		{Access{}, 0o700, 0o700, 0o600},
		{Access{GIDs: []uint32{uint32(group)}}, 0o710, 0o711, 0o660},
		{Access{GIDs: []uint32{uint32(group), 7}}, 0o711, 0o711, 0o666},
		{Access{UIDs: []uint32{12345}}, 0o711, 0o711, 0o666},
	} {
		dir := filepath.Join(privateDir(t), "callboard-1", "s")
		require.NoError(t, MakeDir(dir))
		require.NoError(t, c.access.GrantDir(dir))
		l, err := c.access.Listen(filepath.Join(dir, AttachSocket))
		require.NoError(t, err)
		for path, want := range map[string]os.FileMode{dir: c.dir, filepath.Dir(dir): c.parent, l.Path(): c.socket} {
			info, err := os.Stat(path)
			require.NoError(t, err)
			require.Equal(t, want, info.Mode().Perm(), "%+v %s", c.access, path)
			require.EqualValues(t, group, info.Sys().(*syscall.Stat_t).Gid)
		}
		require.NoError(t, VerifyDir(dir), "clients enter it")
		require.NoError(t, l.Close())
		// The next broker, which admits nobody, closes it again.
		require.NoError(t, Access{}.GrantDir(dir))
		info, err := os.Stat(dir)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o700), info.Mode().Perm())
	}
	if os.Geteuid() == 0 {
		dir := filepath.Join(privateDir(t), "s")
		require.NoError(t, MakeDir(dir))
		require.NoError(t, Access{GIDs: []uint32{4321}}.GrantDir(dir))
		info, err := os.Stat(dir)
		require.NoError(t, err)
		require.EqualValues(t, 4321, info.Sys().(*syscall.Stat_t).Gid)
	}
}

// I5: what others may list or change is refused, whatever else is allowed.
func TestVerifyDirModes(t *testing.T) {
	dir := filepath.Join(privateDir(t), "d")
	require.NoError(t, os.Mkdir(dir, 0o700))
	for mode, good := range map[os.FileMode]bool{0o700: true, 0o710: true, 0o711: true, 0o750: true, 0o755: false, 0o770: false, 0o720: false, 0o702: false, 0o500: false, 0o777: false} {
		require.NoError(t, os.Chmod(dir, mode))
		if err := VerifyDir(dir); good {
			require.NoError(t, err, "%o", mode)
		} else {
			require.ErrorContains(t, err, "expected mode 0700", "%o", mode)
		}
	}
}

// I5: a client trusts other users by number only, and looks in their places after its own.
func TestFindRuntimeOfATrustedUser(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", privateDir(t))
	t.Setenv(TrustEnv, "4000000001")
	_, err := FindRuntime("nobody")
	require.ErrorContains(t, err, "/tmp/callboard-4000000001/nobody")
	t.Setenv(TrustEnv, "alice")
	_, err = FindRuntime("nobody")
	require.ErrorContains(t, err, `CALLBOARD_TRUST_UID: "alice" is no id`)
	if os.Geteuid() != 0 {
		return // only root can give a directory away
	}
	t.Setenv(TrustEnv, "")
	dir := filepath.Join(privateDir(t), "s")
	require.NoError(t, os.Mkdir(dir, 0o700))
	l, err := Listen(filepath.Join(dir, AttachSocket))
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	require.NoError(t, os.Chown(dir, 12345, -1))
	t.Setenv(RuntimeEnv, dir)
	_, err = FindRuntime("s")
	require.ErrorContains(t, err, "owner uid 12345")
	require.ErrorContains(t, err, "CALLBOARD_TRUST_UID=12345")
	t.Setenv(TrustEnv, "12345")
	found, err := FindRuntime("s")
	require.NoError(t, err)
	require.Equal(t, dir, found)
}

// I5: the kernel tells a peer's supplementary groups, however many.
func TestPeerGroups(t *testing.T) {
	l, err := Listen(filepath.Join(privateDir(t), AttachSocket))
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	ours, err := unix.Getgroups()
	require.NoError(t, err)
	want := []uint32{}
	for _, gid := range ours {
		want = append(want, uint32(gid))
	}
	client, err := Dial(l.Path())
	require.NoError(t, err)
	defer func() { require.NoError(t, client.Close()) }()
	server, err := l.Accept()
	require.NoError(t, err)
	defer func() { require.NoError(t, server.Close()) }()
	got, err := server.PeerGroups()
	require.NoError(t, err)
	require.ElementsMatch(t, want, got)
}
