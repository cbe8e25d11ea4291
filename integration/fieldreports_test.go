package integration

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
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

// Clients attach while others clean up, again and again: whether a broker's leftovers are
// removed by gc, by its next start or by both at once, a client gets a stage that works or
// NOT_FOUND, which it may try again. Field report A2.
func TestA2AttachingWhileOthersClean(t *testing.T) {
	h := newHost(t)
	var removed atomic.Int64
	for round := range 8 {
		dying := h.serve(t, "one")
		require.True(t, dying.started(t), "%s", &dying.errors)
		c := h.dial(t, "one")
		for i := range 16 { // a removal that takes its time
			_, err := c.Publish(within(t, soon), fmt.Sprintf("value/%d", i), make([]byte, 1<<20))
			require.NoError(t, err)
		}
		require.NoError(t, c.Close())
		dying.end(t, syscall.SIGKILL)
		dead, err := filepath.Glob(filepath.Join(h.shm, "*", "one", "*"))
		require.NoError(t, err)
		require.Len(t, dead, 1, "else nothing is removed")

		var cleaning sync.WaitGroup
		for range 2 {
			cleaning.Go(func() {
				out, stderr, code := callboardCommand(t, h.env(), "gc", "--shm-dir", h.shm, "--json")
				assert.Zero(t, code, stderr)
				if strings.Contains(out, `"removed"`) {
					removed.Add(1)
				}
			})
		}
		start := func() *server { // one that met a cleaner says that the place is in use, and the next one serves
			for {
				s := h.serve(t, "one")
				if s.started(t) {
					return s
				}
				<-s.ended
				require.Contains(t, s.errors.String(), "is in use by")
			}
		}
		var next *server
		if round%2 == 0 {
			next = start()
		}
		cleaned := make(chan struct{})
		go func() { cleaning.Wait(); close(cleaned) }()
		attached := 0
		for done := false; !done || next != nil && attached == 0; {
			select {
			case <-cleaned:
				done = true
			default:
			}
			c, err := callboard.Dial(within(t, soon), callboard.Options{Stage: "one", Name: "client", RuntimeDir: filepath.Join(h.base, "callboard", "one")})
			if err != nil {
				require.ErrorIs(t, err, callboard.ErrNotFound)
				continue
			}
			attached++
			unharmed(t, c)
			require.NoError(t, c.Close())
		}
		if next == nil { // else it recovered what was not cleaned up before it came
			require.NoDirExists(t, dead[0])
			require.Zero(t, attached, "to a dead broker")
			next = start()
		}
		last := h.dial(t, "one")
		unharmed(t, last)
		require.NoError(t, last.Close())
		next.end(t, syscall.SIGTERM)
	}
	require.Positive(t, removed.Load(), "gc never removed what clients looked for")
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

// A client of an earlier broker whose stage was started anew, and one that claims an
// incarnation that nobody knows: the first gets its error at once and each time, the
// second is refused in words. Neither fills the log, nor does somebody who knocks with
// garbage. Field report A7.
func TestA7UnknownClientsAreBounded(t *testing.T) {
	s := startStage(t)
	old := s.Dial("old")
	unharmed(t, old)
	s.Kill9()
	s.Restart("--fresh")
	s.connect(t)
	_, err := old.Publish(within(t, soon), "others/value", []uint64{1, 2})
	require.ErrorIs(t, err, callboard.ErrSessionEnded)
	require.ErrorContains(t, err, "started anew")
	lines := strings.Count(s.Output(), "\n")
	for range 1000 {
		_, err := old.Publish(within(t, soon), "others/value", []uint64{1, 2})
		require.ErrorIs(t, err, callboard.ErrSessionEnded)
	}
	request := protocol.HelloRequest{Header: messageHeader(protocol.MessageHelloRequest), Incarnation: 4711, Generation: 42}
	conn, err := shm.Dial(s.socket())
	require.NoError(t, err)
	require.NoError(t, conn.Send(message(&request)))
	reply, files, err := receive(conn)
	require.NoError(t, err)
	require.Empty(t, files)
	require.EqualValues(t, protocol.StatusSessionEnded, errorReply(reply).Status)
	require.Contains(t, textOf(errorReply(reply)), "cannot be taken up again")
	require.NoError(t, conn.Close())
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
	interpreter := python(t)
	s := startStage(t)
	other := s.Dial("other")
	unharmed(t, other)
	for _, end := range []string{"stage.close()", "pass", "raise SystemExit(0)", "os._exit(0)", "os.kill(os.getpid(), signal.SIGKILL)"} {
		c := exec.Command(interpreter, "-c", "import os, signal, callboard\nstage = callboard.connect()\nview = stage.latest('others/value')\n"+end)
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
			s.Restart("--fresh")
			s.connect(t)
			require.Error(t, w.conn.Send(message(&protocol.SegmentRequest{Header: messageHeader(protocol.MessageSegmentRequest), Segment: g.Block.Segment})),
				"what is left of the old session leads nowhere")
		}
	}
	require.NotEqual(t, generations[0], generations[1])
}

// The objects of a living stage are replaced by such that say another id or another
// generation, before a client has mapped them: it refuses them, with both numbers, in each
// language, and reads again when they are what they were. Field report A25; rule S2.
func TestA25SegmentsThatWereMadeAnewAreRefused(t *testing.T) {
	s := startStage(t)
	unharmed(t, s.Dial("other"))
	segments, err := filepath.Glob(filepath.Join(s.memoryDir(t), "segment-*"))
	require.NoError(t, err)
	require.NotEmpty(t, segments)
	latest := map[string]func() (string, error){"Go": func() (string, error) {
		c, err := callboard.Dial(within(t, soon), s.Options("late"))
		if err != nil {
			return "", err
		}
		defer c.Close()
		g, err := c.Latest(within(t, soon), "others/value")
		if err != nil {
			return "", err
		}
		defer g.Release()
		values, err := callboard.Values[uint64](g)
		if err != nil {
			return "", err
		}
		return fmt.Sprint(values[0]), nil
	}}
	for _, language := range languages {
		reader := program(t, language, "reader")
		latest[language] = func() (string, error) { return latestIn(reader, s.Env(), "others/value") }
	}
	// Adds to a word of every segment's header.
	add := func(name string, n uint64) {
		field, ok := reflect.TypeFor[protocol.RegionHeader]().FieldByName(name)
		require.True(t, ok)
		for _, path := range segments {
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			require.NoError(t, err)
			var word [8]byte
			_, err = f.ReadAt(word[:], int64(field.Offset))
			require.NoError(t, err)
			binary.LittleEndian.PutUint64(word[:], binary.LittleEndian.Uint64(word[:])+n)
			_, err = f.WriteAt(word[:], int64(field.Offset))
			require.NoError(t, err)
			require.NoError(t, f.Close())
		}
	}
	for _, field := range []string{"RegionID", "Generation"} {
		for language, read := range latest {
			t.Run(field+" "+language, func(t *testing.T) {
				value, err := read()
				require.NoError(t, err)
				require.Equal(t, "7", value)
				add(field, 1000)
				value, err = read()
				add(field, ^uint64(0)-999)
				require.Error(t, err, "it read %s of another creation", value)
				require.Regexp(t, `segment \d+`, err.Error())
				generation := s.describe(t).Generation
				for _, number := range map[string][]string{"RegionID": {"100"}, "Generation": {fmt.Sprint(generation), fmt.Sprint(generation + 1000)}}[field] {
					require.ErrorContains(t, err, number)
				}
				value, err = read()
				require.NoError(t, err)
				require.Equal(t, "7", value)
			})
		}
	}
}

// Of what the kernel keeps nothing stays after everybody was killed and the stage was
// started and ended once more: no file, no socket, no System V object. Field report A26.
func TestA26NoKernelObjectOfAnyKindStays(t *testing.T) {
	sysv := func() (all []string) {
		for _, kind := range []string{"shm", "sem", "msg"} {
			raw, _ := os.ReadFile("/proc/sysvipc/" + kind)
			for _, line := range strings.Split(string(raw), "\n")[1:] {
				if fields := strings.Fields(line); len(fields) > 1 {
					all = append(all, kind+fields[1])
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
		p.Hear(soon, &ready)
		defer p.Kill()
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
	require.Subset(t, before, sysv(), "others on this machine may have removed theirs")
}
