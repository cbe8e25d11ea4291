package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	callboard "callboard/clients/go"
	"callboard/protocol"
	"callboard/shm"
)

// Somebody deletes the stage's memory by hand. Those who are attached go on, a start
// after a crash makes everything anew, whatever half is missing. Field report A1; rule S3.
func TestA1MemoryIsDeletedByHand(t *testing.T) {
	s := startStage(t)
	other := s.Dial("other")
	unharmed(t, other)
	require.NoError(t, os.RemoveAll(filepath.Join(s.ShmDir, filepath.Base(filepath.Dir(filepath.Dir(s.memoryDir(t)))))))
	unharmed(t, other)
	_, err := other.Publish(within(t, soon), "large/value", make([]byte, 4<<20)) // needs a new object
	require.NoError(t, err)
	unharmed(t, s.Dial("late"))

	for _, what := range []string{"objects", "generation", "socket", "runtime directory"} {
		s.Kill9()
		switch what {
		case "objects":
			files, err := filepath.Glob(filepath.Join(s.memoryDir(t), "*"))
			require.NoError(t, err)
			for i, f := range files {
				if i%2 == 0 {
					require.NoError(t, os.Remove(f))
				}
			}
		case "generation":
			require.NoError(t, os.RemoveAll(s.memoryDir(t)))
		case "socket":
			require.NoError(t, os.Remove(s.socket()))
		case "runtime directory":
			require.NoError(t, os.RemoveAll(s.RuntimeDir))
		}
		s.Restart()
		s.connect(t)
		unharmed(t, s.Dial("after "+what))
	}
}

// Clients attach while others clean up, again and again: they never meet a state in
// removal. Field report A2.
func TestA2AttachingWhileOthersClean(t *testing.T) {
	h := newHost(t)
	s := h.serve(t, "one")
	require.True(t, s.started(t))
	cleaned := make(chan struct{})
	go func() {
		defer close(cleaned)
		for range 5 {
			_, _, _ = callboardCommand(t, h.env(), "gc", "--shm-dir", h.shm)
		}
	}()
	for cleaning := true; cleaning; {
		c := h.dial(t, "one")
		unharmed(t, c)
		require.NoError(t, c.Close())
		select {
		case <-cleaned:
			cleaning = false
		default:
		}
	}
	s.end(t, syscall.SIGTERM)
}

// Views of a reader stay valid when the broker ends in order while they are in use.
// Field report A6.
func TestA6BrokerEndsUnderAReader(t *testing.T) {
	s := startStage(t)
	other := s.Dial("other")
	values := make([]uint64, 1<<17)
	for i := range values {
		values[i] = uint64(i)
	}
	_, err := other.Publish(within(t, soon), "pinned/value", values)
	require.NoError(t, err)
	view, err := other.Latest(within(t, soon), "pinned/value")
	require.NoError(t, err)
	defer view.Release()
	got, err := callboard.Values[uint64](view)
	require.NoError(t, err)
	stopped := make(chan struct{})
	go func() { defer close(stopped); s.Stop() }()
	for ended := false; !ended; {
		select {
		case <-stopped:
			ended = true
		default:
		}
		for i := range got {
			if got[i] != uint64(i) {
				require.EqualValues(t, i, got[i])
			}
		}
	}
	require.Empty(t, s.Residue())
}

// A client of an earlier broker, and one that claims an incarnation that nobody knows:
// the first gets its error at once and each time, the second is a new client. Neither
// fills the log, nor does somebody who knocks with garbage. Field report A7.
func TestA7UnknownClientsAreBounded(t *testing.T) {
	s := startStage(t)
	old := s.Dial("old")
	unharmed(t, old)
	s.Kill9()
	s.Restart()
	s.connect(t)
	lines := strings.Count(s.Output(), "\n")
	for range 1000 {
		_, err := old.Publish(within(t, soon), "others/value", []uint64{1, 2})
		require.ErrorIs(t, err, callboard.ErrSessionEnded)
	}
	request := protocol.HelloRequest{Header: messageHeader(protocol.MessageHelloRequest), Incarnation: 4711, Generation: 42}
	conn, err := shm.Dial(s.socket())
	require.NoError(t, err)
	require.NoError(t, conn.Send(message(&request)))
	w := &wire{conn: conn}
	defer w.close()
	require.NoError(t, w.receiveHello())
	require.NotEqual(t, request.Incarnation, w.hello.Incarnation)
	require.Zero(t, w.hello.Reattached)
	require.Less(t, strings.Count(s.Output(), "\n")-lines, 10, "%s", s.Output())
	lines = strings.Count(s.Output(), "\n")
	began := time.Now()
	for range 1000 {
		conn, err := shm.Dial(s.socket())
		require.NoError(t, err)
		require.NoError(t, conn.Send([]byte("garbage of sixteen bytes or more")))
		_, _, _ = receive(conn)
		require.NoError(t, conn.Close())
	}
	require.LessOrEqual(t, strings.Count(s.Output(), "\n")-lines, 50*(2+int(time.Since(began).Seconds())), "log lines for a thousand refusals")
	unharmed(t, s.Dial("other"))
}

// Neither the C client nor the Python client opens or removes shared memory by name, and
// Python's resource tracker never hears of it. Field report A23; design D1.
func TestA23ClientsKnowNoNames(t *testing.T) {
	seen := 0
	for _, dir := range []string{"../clients/c/src", "../clients/python/src", "../clients/go"} {
		require.NoError(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() || !regexp.MustCompile(`\.(c|h|py|go)$`).MatchString(path) || strings.HasSuffix(path, "_test.go") {
				return err
			}
			raw, err := os.ReadFile(path)
			require.NoError(t, err)
			seen++
			for _, word := range []string{"shm_open", "shm_unlink", "multiprocessing", "resource_tracker", "/dev/shm", "unlink("} {
				require.NotContains(t, string(raw), word, path)
			}
			return nil
		}))
	}
	require.Greater(t, seen, 20)
}

// A Python process attaches, reads, and ends in each way: the stage is as it was. Field
// reports A23, A4.
func TestA23PythonProcessEnds(t *testing.T) {
	python := os.Getenv("CALLBOARD_PYTHON")
	if python == "" {
		skip(t, "CALLBOARD_PYTHON names no Python that has the client; `make test` sets it")
	}
	if out, err := exec.Command(python, "-c", "import callboard").CombinedOutput(); err != nil {
		skip(t, fmt.Sprintf("%s cannot import the client: %s", python, out))
	}
	s := startStage(t)
	other := s.Dial("other")
	unharmed(t, other)
	for _, end := range []string{"stage.close()", "pass", "raise SystemExit(0)", "os._exit(0)", "os.kill(os.getpid(), signal.SIGKILL)"} {
		c := exec.Command(python, "-c", "import os, signal, callboard\nstage = callboard.connect()\nview = stage.latest('others/value')\n"+end)
		c.Env = s.Env()
		out, err := c.CombinedOutput()
		if !strings.Contains(end, "SIGKILL") {
			require.NoError(t, err, "%s: %s", end, out)
		}
		require.NotContains(t, string(out), "resource_tracker")
		s.settled(t, "other")
		unharmed(t, other)
	}
}

// Every region says which creation it is of, and a client that outlived one does not
// take the next one's for it. Field report A25; rule S2.
func TestA25EveryCreationHasItsOwnId(t *testing.T) {
	s := startStage(t)
	var generations []uint64
	for life := range 2 {
		w := attachWire(t, s.socket(), "wire")
		query := w.query(t, "/a")
		_, raw := w.do(t, protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpMap, Handle: query, Ordinal: 1}, mapArguments("x", uint64s))
		var g protocol.GroupDescriptor
		require.NoError(t, unpack(raw, &g))
		reply, m := w.segment(t, g.Block.Segment)
		require.EqualValues(t, protocol.StatusOK, reply.Status)
		var segment protocol.RegionHeader
		require.NoError(t, unpack(m.Bytes(), &segment))
		require.Equal(t, g.Block.Segment, segment.RegionID)
		require.Equal(t, w.hello.Incarnation, segment.OwnerIncarnation)
		for _, mem := range [][]byte{w.channel.Bytes(), w.directory.Bytes(), w.doorbell.Bytes(), m.Bytes()} {
			var h protocol.RegionHeader
			require.NoError(t, unpack(mem, &h))
			require.Equal(t, w.hello.Generation, h.Generation)
		}
		gone, none := w.segment(t, 1<<40)
		require.Nil(t, none)
		require.EqualValues(t, protocol.StatusNotFound, gone.Status)
		generations = append(generations, w.hello.Generation)
		if life == 0 {
			s.Kill9()
			s.Restart()
			s.connect(t)
			require.Error(t, w.conn.Send(message(&protocol.SegmentRequest{Header: messageHeader(protocol.MessageSegmentRequest), Segment: g.Block.Segment})),
				"what is left of the old session leads nowhere")
		}
	}
	require.NotEqual(t, generations[0], generations[1])
}

// Of what the kernel keeps nothing stays after everybody was killed and the stage was
// started and ended once more: no file, no socket, no System V object. Field report A26.
func TestA26NoKernelObjectOfAnyKindStays(t *testing.T) {
	sysv := func() (all string) {
		for _, kind := range []string{"shm", "sem", "msg"} {
			raw, _ := os.ReadFile("/proc/sysvipc/" + kind)
			for _, line := range strings.Split(string(raw), "\n")[1:] {
				if fields := strings.Fields(line); len(fields) > 1 {
					all += kind + fields[1] + " "
				}
			}
		}
		return all
	}
	before := sysv()
	s := startStage(t)
	unharmed(t, s.Dial("other"))
	for _, role := range []string{"half-filler", "pinner", "subscriber"} {
		p := spawn(t, role, nil, s.Env())
		var ready string
		p.hear(10*time.Second, &ready)
		defer p.kill()
	}
	s.Kill9()
	s.Restart()
	s.connect(t)
	s.stop(t)
	sockets, err := os.ReadFile("/proc/net/unix")
	require.NoError(t, err)
	for line := range strings.Lines(string(sockets)) {
		if strings.Contains(line, s.RuntimeDir) {
			require.NotContains(t, line, " 00010000 ", "a listening socket stays: %s", line)
		}
	}
	require.Equal(t, before, sysv())
}
