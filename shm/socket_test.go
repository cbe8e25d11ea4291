package shm

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func listen(t *testing.T) *Listener {
	t.Helper()
	l, err := Listen(filepath.Join(privateDir(t), AttachSocket))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return l
}

// connected gives both ends of one connection: the broker's and the client's.
func connected(t *testing.T) (broker, client *Conn) {
	t.Helper()
	l := listen(t)
	client, err := Dial(l.Path())
	require.NoError(t, err)
	broker, err = l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, client.Close())
		require.NoError(t, broker.Close())
	})
	return broker, client
}

func TestMessagesKeepTheirBordersAndDescriptorsTheirMeaning(t *testing.T) {
	broker, client := connected(t)
	o := anyObject(t, 4096)
	mapped(t, o, true).Bytes()[7] = 42
	require.NoError(t, broker.Send([]byte("first"), int(o.File().Fd())))
	require.NoError(t, broker.Send([]byte("second")))

	buf := make([]byte, 64)
	n, files, err := client.Recv(buf)
	require.NoError(t, err)
	require.Equal(t, "first", string(buf[:n]))
	require.Len(t, files, 1)
	flags, err := unix.FcntlInt(files[0].Fd(), unix.F_GETFD, 0)
	require.NoError(t, err)
	require.NotZero(t, flags&unix.FD_CLOEXEC, "I2: all descriptors are close-on-exec")
	m, err := Map(files[0], 4096, false)
	require.NoError(t, err)
	require.Equal(t, byte(42), m.Bytes()[7])
	require.NoError(t, m.Close())
	require.NoError(t, files[0].Close())

	n, files, err = client.Recv(buf)
	require.NoError(t, err)
	require.Equal(t, "second", string(buf[:n]))
	require.Empty(t, files)
}

// A peer can send anything: too long, too many descriptors, an empty message with
// descriptors. Each is an error, and none leaves a descriptor open (I2, B9).
func TestBadMessagesAreErrorsAndLeakNoDescriptor(t *testing.T) {
	o := anyObject(t, 4096)
	fd := int(o.File().Fd())
	many := make([]int, MaxFiles+5)
	for i := range many {
		many[i] = fd
	}
	raw := func(t *testing.T, c *Conn, msg []byte, fds ...int) {
		t.Helper()
		var err error
		require.NoError(t, c.raw.Control(func(s uintptr) {
			err = sendmsgAsIs(int(s), msg, unix.UnixRights(fds...))
		}))
		require.NoError(t, err)
	}
	for name, c := range map[string]struct {
		msg   []byte
		fds   []int
		check func(error)
	}{
		"longer than the buffer": {make([]byte, 100), []int{fd, fd}, func(err error) {
			var cut *TruncatedError
			require.ErrorAs(t, err, &cut)
			require.True(t, cut.Bytes)
			require.ErrorContains(t, err, "longer than 64 bytes")
		}},
		"more descriptors than MaxFiles": {[]byte("x"), many, func(err error) {
			var cut *TruncatedError
			require.ErrorAs(t, err, &cut)
			require.True(t, cut.Files)
		}},
		"no byte but a descriptor": {nil, []int{fd}, func(err error) {
			require.ErrorIs(t, err, io.EOF)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			broker, client := connected(t)
			before := len(openFiles())
			raw(t, client, c.msg, c.fds...)
			n, files, err := broker.Recv(make([]byte, 64))
			c.check(err)
			require.Zero(t, n)
			require.Empty(t, files)
			require.LessOrEqual(t, len(openFiles()), before)
		})
	}
	broker, _ := connected(t)
	require.ErrorContains(t, broker.Send([]byte("x"), many...), "at most 16")
	require.ErrorContains(t, broker.Send(nil), "at least one byte")
}

// A stopped client must not stop the broker: sending to it ends in time.
func TestPeerThatDoesNotReadCannotBlockTheSender(t *testing.T) {
	broker, client := connected(t)
	msg := make([]byte, 4096)
	sent := 0
	var err error
	for err == nil {
		err = broker.SendWithin(0, msg)
		sent++
		require.Less(t, sent, 100_000, "a socket buffer has an end")
	}
	require.ErrorIs(t, err, ErrTimeout)
	begin := time.Now()
	require.ErrorIs(t, broker.SendWithin(30*time.Millisecond, msg), ErrTimeout)
	require.GreaterOrEqual(t, time.Since(begin), 30*time.Millisecond)
	require.Less(t, time.Since(begin), 10*time.Second)
	require.ErrorIs(t, broker.SendWithin(0, msg), ErrTimeout, "after a deadline has passed, too")

	_, _, err = client.Recv(msg)
	require.NoError(t, err)
	for broker.SendWithin(time.Second, msg) != nil { // room comes back in steps
		_, _, err = client.Recv(msg)
		require.NoError(t, err)
	}
}

func TestReceiveGivesUpInTimeAndCloseEndsAWaitingReceive(t *testing.T) {
	broker, client := connected(t)
	_, _, err := broker.RecvWithin(10*time.Millisecond, make([]byte, 8))
	require.ErrorIs(t, err, ErrTimeout)
	done := make(chan error)
	go func() {
		_, _, err := broker.Recv(make([]byte, 8))
		done <- err
	}()
	time.Sleep(10 * time.Millisecond)
	require.NoError(t, broker.Close())
	require.ErrorIs(t, <-done, net.ErrClosed)
	require.NoError(t, broker.Close())
	require.True(t, broker.HungUp(), "a closed connection counts as hung up")
	require.True(t, client.HungUp())
	_, _, err = broker.Recv(nil)
	require.Error(t, err)
}

func TestHungUpIsSeenWithoutReadingAndKeepsEarlierMessages(t *testing.T) {
	broker, client := connected(t)
	require.False(t, broker.HungUp())
	require.NoError(t, client.Send([]byte("last words")))
	require.False(t, broker.HungUp(), "a message is no hang-up")
	require.NoError(t, client.Close())
	require.True(t, broker.HungUp())
	buf := make([]byte, 64)
	n, _, err := broker.Recv(buf)
	require.NoError(t, err)
	require.Equal(t, "last words", string(buf[:n]))
	_, _, err = broker.Recv(buf)
	require.ErrorIs(t, err, io.EOF)
	require.ErrorIs(t, broker.Send([]byte("x")), unix.EPIPE)
}

// S1: who gives up on an answer knows afterwards whether it was sent.
func TestStopReceivingDecidesWhatWasSent(t *testing.T) {
	broker, client := connected(t)
	require.NoError(t, broker.Send([]byte("in time")))
	require.NoError(t, client.StopReceiving())
	require.ErrorIs(t, broker.SendWithin(0, []byte("late")), unix.EPIPE)
	buf := make([]byte, 64)
	n, _, err := client.Recv(buf)
	require.NoError(t, err)
	require.Equal(t, "in time", string(buf[:n]))
	_, _, err = client.Recv(buf)
	require.ErrorIs(t, err, io.EOF)
}

// C2, I3: the peer's death is seen by socket and process descriptor, never by pid.
func TestKilledClientIsSeenByHangUpAndPidFD(t *testing.T) {
	l := listen(t)
	c := start(t, "client", l.Path())
	conn, err := l.Accept()
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close()) }()
	pid, uid, gid, err := conn.PeerCred()
	require.NoError(t, err)
	require.Equal(t, c.cmd.Process.Pid, pid)
	require.EqualValues(t, os.Geteuid(), uid)
	require.EqualValues(t, os.Getegid(), gid)

	byNumber, err := conn.pidFDByNumber()
	require.NoError(t, err)
	defer func() { require.NoError(t, byNumber.Close()) }()
	bySocket, err := conn.PidFD()
	require.NoError(t, err)
	defer func() { require.NoError(t, bySocket.Close()) }()
	for _, f := range []*os.File{byNumber, bySocket} {
		gone, err := Exited(f)
		require.NoError(t, err)
		require.False(t, gone)
	}
	require.False(t, conn.HungUp())
	c.kill()
	for _, f := range []*os.File{byNumber, bySocket} {
		require.Eventually(t, func() bool { gone, err := Exited(f); return err == nil && gone }, 10*time.Second, time.Millisecond)
	}
	require.True(t, conn.HungUp())
	_, err = conn.pidFDByNumber()
	require.ErrorIs(t, err, ErrNoPidFD, "a pid that is opened after the hang-up may be anybody's")
}

func childClient(args []string) int {
	c, err := Dial(args[0])
	if err != nil {
		return failed(err)
	}
	code := ready()
	_ = c.Close()
	return code
}

func TestSocketIsPrivateAndReplacesOnlyADeadOne(t *testing.T) {
	l := listen(t)
	info, err := os.Lstat(l.Path())
	require.NoError(t, err)
	require.Equal(t, os.ModeSocket|0o600, info.Mode())

	_, err = Listen(l.Path())
	require.ErrorIs(t, err, ErrInUse)
	require.NoError(t, l.Close())
	require.NoError(t, l.Close())
	_, err = l.Accept()
	require.ErrorIs(t, err, net.ErrClosed)
	_, err = Dial(l.Path())
	require.ErrorIs(t, err, unix.ECONNREFUSED)
	require.ErrorContains(t, err, "the broker that made it is gone")

	again, err := Listen(l.Path()) // the dead broker's socket file is still there
	require.NoError(t, err)
	require.NoError(t, again.Close())

	require.NoError(t, os.Remove(l.Path()))
	require.NoError(t, os.WriteFile(l.Path(), nil, 0o600))
	_, err = Listen(l.Path())
	require.ErrorContains(t, err, "something else")
	_, err = Dial(filepath.Join(filepath.Dir(l.Path()), "absent"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestListenRefusesAnOpenDirectoryAndALongPath(t *testing.T) {
	open := t.TempDir()
	require.NoError(t, os.Chmod(open, 0o755))
	_, err := Listen(filepath.Join(open, AttachSocket))
	require.ErrorContains(t, err, "expected mode 0700")

	long := filepath.Join(privateDir(t), strings.Repeat("d", 100))
	require.NoError(t, MakeDir(long))
	_, err = Listen(filepath.Join(long, AttachSocket))
	require.ErrorContains(t, err, "CALLBOARD_RUNTIME_DIR")
}
