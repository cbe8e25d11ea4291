package shm

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestStageNamesThatAreNoTokens(t *testing.T) {
	for _, good := range []string{"default", "a", "A_b-9", strings.Repeat("x", 32)} {
		require.NoError(t, CheckStage(good))
	}
	for _, bad := range []string{"", strings.Repeat("x", 33), "a.b", "a/b", "..", "a b", "ä"} {
		require.ErrorContains(t, CheckStage(bad), "[A-Za-z0-9_-]")
	}
}

// I5, C3, C4: the error names the directory, its owner and its mode.
func TestDirectoriesOfOthersOpenOnesAndLinksAreRefused(t *testing.T) {
	base := privateDir(t)
	at := func(name string) string { return filepath.Join(base, name) }
	require.NoError(t, MakeDir(at("good")))
	require.NoError(t, VerifyDir(at("good")))

	require.NoError(t, os.Mkdir(at("open"), 0o755))
	err := VerifyDir(at("open"))
	require.ErrorContains(t, err, at("open"))
	require.ErrorContains(t, err, fmt.Sprintf("owner uid %d, mode drwxr-xr-x", os.Geteuid()))
	require.ErrorContains(t, err, "expected mode 0700")

	require.NoError(t, os.Symlink(at("good"), at("link")))
	require.ErrorContains(t, VerifyDir(at("link")), "symbolic link")
	require.ErrorContains(t, MakeDir(at("link")), "symbolic link")
	require.NoError(t, os.WriteFile(at("file"), nil, 0o700))
	require.ErrorIs(t, VerifyDir(at("file")), unix.ENOTDIR)
	require.ErrorContains(t, MakeDir(filepath.Join(at("file"), "below")), "cannot be made")
	require.ErrorIs(t, VerifyDir(at("absent")), os.ErrNotExist)

	// The directory above counts too where it is one of ours.
	require.NoError(t, os.Mkdir(at("callboard-7"), 0o755))
	require.NoError(t, os.Mkdir(filepath.Join(at("callboard-7"), "s"), 0o700))
	require.ErrorContains(t, VerifyDir(filepath.Join(at("callboard-7"), "s")), at("callboard-7")+" (")
	require.ErrorContains(t, MakeDir(filepath.Join(at("callboard-7"), "t")), at("callboard-7")+" (")
	require.NoDirExists(t, filepath.Join(at("callboard-7"), "t"), "nothing is put into a refused directory")

	if os.Geteuid() == 0 { // only root can give a directory away
		require.NoError(t, MakeDir(at("foreign")))
		require.NoError(t, os.Chown(at("foreign"), 12345, -1))
		require.ErrorContains(t, VerifyDir(at("foreign")), "owner uid 12345, mode drwx------")
		require.NoError(t, VerifyDir(at("foreign"), 12345), "the operator may allow a uid")
	}
}

// S1: ENOENT at creation means retry; whoever leaves last removes the empty parent.
func TestMakingAndLeavingDirectoriesAtTheSameTime(t *testing.T) {
	base := t.TempDir()
	var wait sync.WaitGroup
	for i := range 4 {
		wait.Go(func() {
			dir := filepath.Join(base, "callboard-1", fmt.Sprint("stage", i))
			for range 200 {
				if err := MakeDir(dir); err != nil {
					t.Error(err)
				}
				if err := LeaveDir(dir); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wait.Wait()
	require.NoDirExists(t, filepath.Join(base, "callboard-1"))
	require.DirExists(t, base, "a directory that is not ours stays")
}

func TestRuntimePlacesAndTheChoiceAmongThem(t *testing.T) {
	xdg := privateDir(t)
	t.Setenv("XDG_RUNTIME_DIR", xdg)
	tmp := fmt.Sprintf("/tmp/callboard-%d/s", os.Geteuid())
	require.Equal(t, []string{xdg + "/callboard/s", tmp}, RuntimePlaces("s"))
	dir, err := RuntimeDir("s")
	require.NoError(t, err)
	require.Equal(t, xdg+"/callboard/s", dir)

	for _, useless := range []string{"", "relative/dir", filepath.Join(xdg, "absent")} {
		t.Setenv("XDG_RUNTIME_DIR", useless)
		dir, err = RuntimeDir("s")
		require.NoError(t, err)
		require.Equal(t, tmp, dir, useless)
	}
	t.Setenv(RuntimeEnv, xdg+"/mine")
	require.Equal(t, []string{xdg + "/mine"}, RuntimePlaces("s"))
	_, err = RuntimeDir("no.such")
	require.Error(t, err)
	require.Equal(t, fmt.Sprintf("/dev/shm/callboard-%d/s", os.Geteuid()), ShmDir("", "s"))
}

// I5: a client looks everywhere, and its error lists every place and what is wrong there.
func TestFindRuntimeErrorListsAllPlacesWithTheirReasons(t *testing.T) {
	xdg := privateDir(t)
	t.Setenv("XDG_RUNTIME_DIR", xdg)
	stage := fmt.Sprintf("shmtest-%d", os.Getpid())
	_, err := FindRuntime(stage)
	require.ErrorIs(t, err, ErrNoBroker)
	require.ErrorIs(t, err, os.ErrNotExist)
	for _, place := range RuntimePlaces(stage) {
		require.ErrorContains(t, err, place)
	}
	require.ErrorContains(t, err, "callboard serve --stage "+stage)

	dir, err := RuntimeDir(stage)
	require.NoError(t, err)
	require.NoError(t, MakeDir(dir))
	_, err = FindRuntime(stage)
	require.ErrorContains(t, err, "no attach.sock in it")
	l, err := Listen(filepath.Join(dir, AttachSocket))
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	found, err := FindRuntime(stage)
	require.NoError(t, err)
	require.Equal(t, dir, found)

	require.NoError(t, os.Chmod(filepath.Dir(dir), 0o755))
	_, err = FindRuntime(stage)
	require.ErrorContains(t, err, "mode drwxr-xr-x")
	require.ErrorContains(t, err, "chmod 0700")
}

func TestDirLockAcrossProcessesNamesItsHolder(t *testing.T) {
	dir := privateDir(t)
	c := start(t, "lock-dir", dir)
	_, err := LockDir(dir)
	var locked *LockedError
	require.ErrorAs(t, err, &locked)
	require.ErrorIs(t, err, ErrLocked)
	require.Contains(t, []int{0, c.cmd.Process.Pid}, locked.PID)
	require.ErrorContains(t, err, dir)

	c.kill() // a lock ends with its process, however that ends (A24, A27)
	lock, err := LockDir(dir)
	require.NoError(t, err)
	require.True(t, lock.Valid())
	require.NoError(t, lock.Unlock())
	require.NoError(t, lock.Unlock())
}

func childLockDir(args []string) int {
	lock, err := LockDir(args[0])
	if err != nil {
		return failed(err)
	}
	code := ready()
	_ = lock.Unlock()
	return code
}

// S1: a lock on a directory that was removed and made anew keeps nobody out, so it is
// compared with the path and taken again.
func TestDirLockFollowsThePathAndSeesItsReplacement(t *testing.T) {
	dir := filepath.Join(privateDir(t), "stage")
	old, err := LockDir(dir)
	require.NoError(t, err)
	require.NoError(t, os.Remove(dir)) // a user deletes /dev/shm/* (A1)
	require.False(t, old.Valid())
	fresh, err := LockDir(dir)
	require.NoError(t, err, "the removed directory's lock does not hinder")
	require.True(t, fresh.Valid())
	require.NoError(t, old.Unlock())
	require.NoError(t, fresh.Unlock())
}

func TestOnlyOneOfManyGetsTheLockWhileOthersRemoveTheDirectory(t *testing.T) {
	dir := filepath.Join(privateDir(t), "stage")
	var inside sync.Mutex
	var wait sync.WaitGroup
	for range 4 {
		wait.Go(func() {
			for range 100 {
				lock, err := LockDir(dir)
				if err != nil {
					time.Sleep(100 * time.Microsecond)
					continue
				}
				if !inside.TryLock() {
					t.Error("two hold the lock of one path")
					return
				}
				inside.Unlock()
				_ = LeaveDir(dir) // from here on the next one may make and lock it
				_ = lock.Unlock()
			}
		})
	}
	wait.Wait()
}

// I3: the lock lives in the passed descriptor; it ends with the client, not before, and
// not with the broker's own copy.
func TestChannelLockLivesAsLongAsTheClientThatGotIt(t *testing.T) {
	o := anyObject(t, 4096)
	free, err := o.Unused()
	require.NoError(t, err)
	require.True(t, free)

	l := listen(t)
	c := start(t, "hold-channel", l.Path())
	conn, err := l.Accept()
	require.NoError(t, err)
	f, err := o.WritableFile()
	require.NoError(t, err)
	require.NoError(t, LockShared(f))
	require.NoError(t, conn.Send([]byte("channel"), int(f.Fd())))
	require.NoError(t, f.Close())
	_, _, err = conn.Recv(make([]byte, 8)) // the client has it and has closed its socket end
	require.ErrorIs(t, err, io.EOF)
	require.NoError(t, conn.Close())

	for range 3 {
		free, err = o.Unused()
		require.NoError(t, err)
		require.False(t, free, "the socket is closed, but views may live (I2)")
		free, err = TryLockExclusive(o.Path())
		require.NoError(t, err)
		require.False(t, free)
	}
	c.kill()
	free, err = o.Unused()
	require.NoError(t, err)
	require.True(t, free)
	free, err = TryLockExclusive(o.Path())
	require.NoError(t, err)
	require.True(t, free, "asking kept no lock")
	_, err = TryLockExclusive(o.Path() + "-absent")
	require.ErrorIs(t, err, os.ErrNotExist)
}

func childHoldChannel(args []string) int {
	c, err := Dial(args[0])
	if err != nil {
		return failed(err)
	}
	fmt.Println("ready")
	_, files, err := c.Recv(make([]byte, 64))
	if err != nil || len(files) != 1 {
		return failed(fmt.Errorf("%d descriptors, %w", len(files), err))
	}
	_ = c.Close()
	_, _ = os.Stdin.Read(make([]byte, 1))
	return len(files) - 1
}
