package control

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"callboard/control/natstest"
)

// patience is how long a test waits for what must come: machines that run tests are busy.
const patience = 30 * time.Second

func startServer(t *testing.T) *Server {
	t.Helper()
	s, err := Start(Options{Identity: testIdentity})
	require.NoError(t, err)
	t.Cleanup(func() {
		if err := s.Close(); !errors.Is(err, nats.ErrTimeout) { // a busy machine may not send all within its bound
			require.NoError(t, err)
		}
	})
	return s
}

// connect returns a connection and the errors that the server sends to it.
func connect(t *testing.T, info RuntimeInfo, role Role) (*nats.Conn, chan error) {
	t.Helper()
	refusals := make(chan error, 16)
	c, err := Connect(info, role, nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
		select {
		case refusals <- err:
		default:
		}
	}))
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c, refusals
}

func next[T any](t *testing.T, from <-chan T, what string) T {
	t.Helper()
	select {
	case value := <-from:
		return value
	case <-time.After(patience):
		require.FailNow(t, "nothing came", what)
		panic("unreachable")
	}
}

// D3: an observer may listen and ask. Everything else is refused, and the broker does not see it.
func TestObserverIsRefusedEverythingButListeningAndAsking(t *testing.T) {
	s := startServer(t)
	full, _ := connect(t, s.Info(), RoleFull)
	observer, refusals := connect(t, s.Info(), RoleObserver)
	stage, _ := NewSubjects(testIdentity.Host, testIdentity.Stage)

	heard := make(chan string, 16)
	stop, err := Subscribe(full, "callboard.>", func(subject string, data []byte) { heard <- subject + " " + string(data) })
	require.NoError(t, err)
	defer stop()

	group, _ := stage.Group("pose")
	for _, subject := range []string{stage.Commit(), group, stage.Health(), "callboard.x", "callboard.h.s.rpc.write", "_INBOX.somebody.1", "free"} {
		require.NoError(t, observer.Publish(subject, []byte("forged")))
		require.ErrorIs(t, next(t, refusals, "refusal of publishing on "+subject), nats.ErrPermissionViolation)
	}
	for _, subject := range []string{"_INBOX.>", "_INBOX.somebody.*", ">", "$SRV.>", stage.Describe(), SubjectDescribeAll} {
		_, err := Subscribe(observer, subject, func(string, []byte) {})
		require.ErrorIs(t, err, nats.ErrPermissionViolation, subject)
		next(t, refusals, "refusal of subscribing to "+subject)
	}
	// Workers share groups by a queue group; an observer in it would swallow their work.
	_, err = observer.QueueSubscribeSync(stage.AllGroups(), "workers")
	require.NoError(t, err)
	require.ErrorIs(t, next(t, refusals, "refusal of a queue group"), nats.ErrPermissionViolation)

	// What is allowed: events, but not the requests of others.
	seen := make(chan string, 16)
	stop, err = Subscribe(observer, "callboard.>", func(subject string, _ []byte) { seen <- subject })
	require.NoError(t, err)
	defer stop()
	require.NoError(t, full.Publish(stage.Describe(), nil))
	require.NoError(t, s.Events().Publish(stage.Commit(), nil))
	require.Equal(t, stage.Commit(), next(t, seen, "event"), "a request was shown to an observer")
	require.NoError(t, observer.Publish(stage.Describe(), []byte("asked")))
	for said := ""; said != stage.Describe()+" asked"; said = next(t, heard, "the observer's request") {
		require.NotContains(t, said, "forged")
	}
	require.Empty(t, refusals)
}

// The broker's own accounts are for its own process, whatever the password; and nobody gets in without credentials.
func TestNobodyElseGetsIn(t *testing.T) {
	g, credentials := newGate()
	s := startServer(t)
	for _, bad := range []Credential{{}, {User: "full"}, {User: "full", Password: "x"}, {User: "nobody", Password: s.Info().Full.Password}} {
		_, err := nats.Connect(s.Info().URL, nats.UserInfo(bad.User, bad.Password))
		require.ErrorIs(t, err, nats.ErrAuthorization, "%+v", bad)
	}
	require.NotEqual(t, s.Info().Full.Password, s.Info().Observer.Password)
	ns := natstest.Serve(t, &server.Options{CustomClientAuthentication: g})
	_, err := dial(ns.ClientURL(), credentials[roleEvents])
	require.ErrorIs(t, err, nats.ErrAuthorization)
	inside, err := dial(ns.ClientURL(), credentials[roleEvents], nats.InProcessServer(ns))
	require.NoError(t, err)
	inside.Close()
}

// Facts: nats-server reports a taken port to its logger alone.
func TestTakenPortIsAnErrorThatNamesIt(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	port := taken.Addr().(*net.TCPAddr).Port
	_, err = Start(Options{Identity: testIdentity, Port: port})
	require.ErrorContains(t, err, fmt.Sprintf("starting embedded NATS on 127.0.0.1:%d", port))
	require.ErrorContains(t, err, "address already in use") // and not that it was waited for in vain
	require.ErrorContains(t, err, "choose another port, or 0 for a free one")
	_, err = Start(Options{Identity: testIdentity, Port: 70000})
	require.ErrorContains(t, err, "port 70000: expected 1 to 65535")
	_, err = Start(Options{Identity: Identity{Host: "h", Stage: "a b"}})
	require.ErrorContains(t, err, `stage name "a b"`)
}

func TestListensOnLoopbackOnly(t *testing.T) {
	s := startServer(t)
	require.True(t, strings.HasPrefix(s.Info().URL, "nats://127.0.0.1:"), s.Info().URL)
	require.True(t, s.embedded.Addr().(*net.TCPAddr).IP.IsLoopback())
	require.False(t, s.embedded.JetStreamEnabled())
}

// Field report E16, design D3: a subscriber that is stopped (a raw socket that is never read) slows nobody down: the same events
// take as long without it. Without NoFastProducerStall the server holds up the publisher, and with it they take many times as long.
func TestFrozenSubscriberDoesNotSlowTheAnnouncer(t *testing.T) {
	text := ""
	for range 5 { // a machine that is busy with something else must not decide
		alone, _ := announceMuch(t, startServer(t))
		s := startServer(t)
		subscribeFrozen(t, s)
		beside, slowest := announceMuch(t, s)
		text = fmt.Sprintf("all delivered after %v, without the frozen subscriber after %v; the slowest note took %v", beside, alone, slowest)
		if t.Log(text); beside < 2*alone+time.Second/2 && slowest < 100*time.Millisecond {
			return
		}
	}
	t.Error(text)
}

func subscribeFrozen(t *testing.T, s *Server) {
	t.Helper()
	frozen, err := net.Dial("tcp", strings.TrimPrefix(s.Info().URL, "nats://"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = frozen.Close() })
	require.NoError(t, frozen.(*net.TCPConn).SetReadBuffer(4096))
	_, err = bufio.NewReader(frozen).ReadString('\n')
	require.NoError(t, err)
	full := s.Info().Full
	_, err = fmt.Fprintf(frozen, "CONNECT {\"user\":%q,\"pass\":%q,\"verbose\":false}\r\nSUB callboard.> 1\r\n", full.User, full.Password)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return s.embedded.NumSubscriptions() == 1 }, patience, time.Millisecond)
}

// announceMuch has a healthy subscriber get 24 MiB of group events, three times what may wait for one that is frozen. It tells how long
// that took, and the slowest note.
func announceMuch(t *testing.T, s *Server) (took, slowest time.Duration) {
	t.Helper()
	healthy, _ := connect(t, s.Info(), RoleObserver)
	var got atomic.Int64
	_, err := Subscribe(healthy, "callboard.*.*.group.*", func(string, []byte) { got.Add(1) })
	require.NoError(t, err)

	const events = 3000
	a := startAnnouncer(t, s.Events(), events)
	big := QueryInfo{Text: strings.Repeat("x", 8<<10)}
	begin := time.Now()
	for sent := range int64(events) {
		// The healthy one is kept within 2 MiB, or the limit on what may wait would rightly hit it too.
		for deadline := time.Now().Add(patience); got.Load() < sent-250; {
			require.True(t, time.Now().Before(deadline), "the healthy subscriber got %d of %d", got.Load(), sent)
			time.Sleep(100 * time.Microsecond)
		}
		before := time.Now()
		a.Group(GroupEvent{Attribute: "pose", Query: big})
		a.Commit(CommitNote{Epoch: 1})
		slowest = max(slowest, time.Since(before))
	}
	require.Eventually(t, func() bool { return got.Load() == events }, patience, time.Millisecond)
	took = time.Since(begin)
	require.Zero(t, a.Counts().Overflow)
	return took, slowest
}

// A restart of an external server loses events. The subscriber sees it in the numbers, and everything goes on.
func TestExternalServerRestartShowsAsASeqGap(t *testing.T) {
	port := natstest.ReservedPort(t)
	external := server.Options{Username: "u", Password: "p", Port: port}
	first := natstest.Serve(t, &external)
	s, err := Start(Options{Identity: testIdentity, External: &External{URL: fmt.Sprintf("nats://u:p@127.0.0.1:%d", port)}})
	require.NoError(t, err)
	defer s.Close()
	require.NotContains(t, s.Info().URL, "u:p")
	a := startAnnouncer(t, s.Events(), 0)
	subscriber, _ := connect(t, s.Info(), RoleFull)
	commits := make(chan CommitEvent, 64)
	_, err = Subscribe(subscriber, "callboard.*.*.commit", func(_ string, data []byte) {
		var e CommitEvent
		_ = json.Unmarshal(data, &e)
		commits <- e
	})
	require.NoError(t, err)
	a.Commit(CommitNote{Epoch: 1})
	before := next(t, commits, "commit before the restart")

	first.Shutdown()
	first.WaitForShutdown()
	require.Eventually(t, func() bool { return !s.events.IsConnected() }, patience, time.Millisecond)
	a.Commit(CommitNote{Epoch: 2})
	require.Eventually(t, func() bool { return a.Counts().Failed > 0 }, patience, time.Millisecond)
	second := natstest.Serve(t, &external)
	require.Eventually(t, func() bool { return s.Connected() && subscriber.IsConnected() && second.NumSubscriptions() > 0 }, patience, time.Millisecond)

	// NATS may lose what comes while the subscription is made anew; a later commit arrives.
	epoch := uint64(2)
	require.Eventually(t, func() bool {
		epoch++
		a.Commit(CommitNote{Epoch: epoch})
		return len(commits) > 0
	}, patience, 50*time.Millisecond)
	after := <-commits
	require.GreaterOrEqual(t, after.Epoch, uint64(3))
	require.NotEqual(t, before.Seq, after.PrevSeq, "the loss cannot be seen")
	// Commits since the restart may have merged, the one from while the server was away must not be among them.
	require.LessOrEqual(t, after.Count, after.Epoch-2, "something stale was kept back")
	require.NotZero(t, after.Dropped)
}

func TestExternalServerThatComesLater(t *testing.T) {
	port := natstest.ReservedPort(t)
	s, err := Start(Options{Identity: testIdentity, External: &External{URL: fmt.Sprintf("127.0.0.1:%d", port), Full: Credential{User: "u", Password: "p"}}})
	require.NoError(t, err)
	defer s.Close()
	require.False(t, s.Connected())
	natstest.Serve(t, &server.Options{Username: "u", Password: "p", Port: port})
	require.Eventually(t, s.Connected, patience, time.Millisecond)
	_, err = Connect(s.Info(), RoleObserver)
	require.ErrorContains(t, err, `no credential for the role "observer"`)
}

func TestExternalServerWithoutCredentialsIsRefused(t *testing.T) {
	_, err := Start(Options{Identity: testIdentity, External: &External{URL: "nats://127.0.0.1:1"}})
	require.ErrorContains(t, err, "no credentials: give user and password")
	for _, url := range []string{"", "nats://", "://x", "nats://a b"} {
		_, err = Start(Options{Identity: testIdentity, External: &External{URL: url}})
		require.ErrorContains(t, err, "URL is not usable", url)
	}
	open := natstest.Serve(t, &server.Options{})
	_, err = Start(Options{Identity: testIdentity, External: &External{URL: open.ClientURL(), Full: Credential{User: "u", Password: "p"}}})
	require.ErrorContains(t, err, "lets anybody in")
}

func TestRuntimeFileRoundTripIsAtomicAndPrivate(t *testing.T) {
	path := filepath.Join(t.TempDir(), RuntimeFileName)
	info := RuntimeInfo{Version: 1, URL: "nats://127.0.0.1:1", Host: "h", Stage: "s", Generation: 1 << 63,
		Full: Credential{User: "full", Password: "x"}, Observer: Credential{User: "observer", Password: "y", InboxPrefix: ObserverInbox}}
	old := syscall.Umask(0)
	err := WriteRuntimeFile(path, info)
	syscall.Umask(old)
	require.NoError(t, err)
	stat, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), stat.Mode().Perm())
	back, err := ReadRuntimeFile(path)
	require.NoError(t, err)
	require.Equal(t, info, back)

	// A reader during rewrites sees a whole file, always.
	stop, failed := make(chan struct{}), make(chan error, 1)
	go func() {
		defer close(failed)
		for {
			select {
			case <-stop:
				return
			default:
				if _, err := ReadRuntimeFile(path); err != nil {
					failed <- err
					return
				}
			}
		}
	}()
	// What a broker left that was killed while it wrote is replaced.
	require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(path), ".new-"+RuntimeFileName), []byte("{"), 0o600))
	for range 200 {
		require.NoError(t, WriteRuntimeFile(path, info))
	}
	close(stop)
	require.NoError(t, <-failed)
	left, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	require.Len(t, left, 1, "temporary files are left")
	require.ErrorContains(t, WriteRuntimeFile(filepath.Join(path, "x"), info), "writing runtime file")
}

// D1: another version is refused, naming both.
func TestRuntimeFilesThatAreRefused(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), mode))
		require.NoError(t, os.Chmod(path, mode))
		return path
	}
	good := `{"version":1,"url":"nats://127.0.0.1:1","generation":"5"}`
	link := filepath.Join(dir, "link")
	require.NoError(t, os.Symlink(write("good", good, 0o600), link))
	pipe := filepath.Join(dir, "pipe")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	for path, text := range map[string]string{
		filepath.Join(dir, "absent"):                          "is a broker running for this stage?",
		write("group", good, 0o640):                           "its mode is 0640, others can reach the credentials in it: expected 0600",
		write("world", good, 0o604):                           "expected 0600",
		write("text", "not json", 0o600):                      "not the JSON that a broker writes",
		write("type", `{"version":1,"generation":5}`, 0o600):  "not the JSON that a broker writes",
		write("v2", `{"version":2,"url":[1]}`, 0o600):         "it has version 2, this program reads version 1",
		write("long", strings.Repeat(" ", 64<<10)+"x", 0o600): "longer than 65536 bytes",
		link: "too many levels of symbolic links",
		pipe: "no regular file",
		dir:  "no regular file",
	} {
		_, err := ReadRuntimeFile(path)
		require.ErrorContains(t, err, text, path)
	}
	if os.Geteuid() == 0 { // only root can make a file of another user
		path := write("other", good, 0o600)
		require.NoError(t, os.Chown(path, 12345, -1))
		_, err := ReadRuntimeFile(path)
		require.ErrorContains(t, err, "belongs to user id 12345: expected 0")
	}
}

func TestConnectSaysWhatIsWrong(t *testing.T) {
	s := startServer(t)
	_, err := Connect(s.Info(), "root")
	require.ErrorContains(t, err, `unknown role "root": expected "full" or "observer"`)
	gone := s.Info()
	gone.URL = "nats://127.0.0.1:1"
	_, err = Connect(gone, RoleFull)
	require.ErrorContains(t, err, "if the broker was restarted, read its runtime file again")
	c, _ := connect(t, s.Info(), RoleObserver)
	var refused *RPCError
	require.True(t, errors.As(Request(within(t), c, SubjectDescribeAll, struct{}{}, nil), &refused))
	require.Equal(t, CodeNotThere, refused.Code, "a missing broker must not be a timeout")
}
