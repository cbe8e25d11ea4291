package integration

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	callboard "callboard/clients/go"
	"callboard/integration/harness"
	"callboard/protocol"
	"callboard/shm"
)

// smallFileSystem mounts a tmpfs of so many bytes, as a container has it.
func smallFileSystem(t *testing.T, size int) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("none", dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=0700", size)); err != nil {
		skip(t, fmt.Sprintf("mounting a small tmpfs needs root: %v", err))
	}
	t.Cleanup(func() { require.NoError(t, syscall.Unmount(dir, 0)) })
	return dir
}

// A container's small /dev/shm: the op that needs more fails with both numbers and the
// remedy; nobody gets a bus error, and what is there goes on. Field reports B1, B3, B6.
func TestB1SmallSharedMemory(t *testing.T) {
	h := newHost(t)
	h.shm = smallFileSystem(t, 16<<20)
	s := h.serve(t, "one") // it believes in its --memory of 32 MiB
	require.True(t, s.started(t), "%s", &s.errors)
	c := h.dial(t, "one")
	unharmed(t, c)
	ctx := within(t, soon)
	var full error
	for i := 0; full == nil && i < 40; i++ {
		var g *callboard.Group
		if _, full = c.Publish(ctx, "large/value", make([]byte, 2<<20)); full != nil {
			break
		}
		g, err := c.Latest(ctx, "large/value")
		if err != nil {
			require.ErrorIs(t, err, callboard.ErrLimit)
			continue
		}
		defer g.Release()
	}
	require.ErrorIs(t, full, callboard.ErrOutOfMemory)
	require.Regexp(t, `need \d+ bytes, \d+ of 16777216 bytes are available`, full.Error())
	require.ErrorContains(t, full, "tmpfs")
	require.ErrorContains(t, full, h.shm)
	require.ErrorContains(t, full, "--shm-size")
	unharmed(t, c)
	require.NoError(t, c.Close())
	s.end(t, syscall.SIGTERM)

	h.shm = smallFileSystem(t, 64<<10) // so small that not even a start is possible
	s = h.serve(t, "one")
	require.False(t, s.started(t))
	<-s.ended
	require.Equal(t, 1, s.command.ProcessState.ExitCode())
	require.Contains(t, s.errors.String(), "--shm-size")
	require.Empty(t, h.files(), "a start that fails leaves nothing")
}

// Every object has all of its pages before anybody sees it. Field reports B2, B4.
func TestB2NoObjectIsSparse(t *testing.T) {
	s := startStage(t)
	other := s.Dial("other")
	for i := range 8 {
		_, err := other.Publish(within(t, soon), fmt.Sprintf("value/%d", i), make([]byte, 1<<(8+2*i)+1))
		require.NoError(t, err)
	}
	files, err := filepath.Glob(filepath.Join(s.memoryDir(t), "*"))
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(files), 4)
	for _, f := range files {
		var st syscall.Stat_t
		require.NoError(t, syscall.Stat(f, &st))
		require.GreaterOrEqual(t, st.Blocks*512, st.Size, f)
		require.EqualValues(t, 0o600, st.Mode&0o777, f)
	}
}

// A process of the same user truncates what a client shares with the broker: that session
// ends with a text, the broker and the others go on. Field reports B3, B4; rule S3.
func TestB4TruncatedUnderTheBroker(t *testing.T) {
	s := startStage(t, "--handoff", "copy")
	other := s.Dial("other")
	unharmed(t, other)
	for _, role := range []string{"half-filler", "idle"} {
		p := spawn(t, role, nil, s.Env())
		var ready string
		p.Hear(soon, &ready)
		incarnation := clientNamed(s.describe(t), role).Incarnation
		require.NoError(t, os.Truncate(filepath.Join(s.memoryDir(t), fmt.Sprintf("channel-%016x", incarnation)), 0))
		for range 10 {
			unharmed(t, other)
		}
		p.Kill()
		s.settled(t, "other")
	}
	// Staging that the broker is to copy, at once and by its workers.
	for _, rows := range []uint64{8, 1 << 16} {
		w := attachWire(t, s.socket(), "truncating")
		schema := uint64s
		schema.RowDimensions, schema.RowShape[0] = 1, rows
		done, raw := w.do(t, protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpMap, Handle: w.query(t, "/a"), Ordinal: 1}, mapArguments(fmt.Sprint("rows/", rows), schema))
		var g protocol.GroupDescriptor
		require.NoError(t, unpack(raw, &g))
		require.NoError(t, os.Truncate(filepath.Join(s.memoryDir(t), fmt.Sprintf("segment-%d", g.Block.Segment)), 0))
		require.NoError(t, w.submit(protocol.SubmissionEntry{Opcode: protocol.OpUnmapAttribute, Handle: done.Handle}, nil))
		require.Contains(t, w.endText(t), "cannot be read any more")
		w.close()
		s.settled(t, "other") // its segment is warm now, and whole: the next client gets it
		unharmed(t, other)
	}
	// The doorbell belongs to all.
	require.NoError(t, os.Truncate(filepath.Join(s.memoryDir(t), "doorbell"), 0))
	require.Eventually(t, func() bool {
		info, err := os.Stat(filepath.Join(s.memoryDir(t), "doorbell"))
		return err == nil && info.Size() == protocol.DoorbellBytes
	}, soon, 10*time.Millisecond, "the broker mends the doorbell")
	unharmed(t, other)
}

// A producer cuts off what it handed over and nobody has sealed yet: the seal is
// somebody else's and goes through. What is gone reads as zeros. Rule S3, O1.
func TestB4TruncatedBetweenUnmapAndSeal(t *testing.T) {
	s := startStage(t)
	other := newAuthor(t, s, "other")
	q := other.query("/a", "/b")
	other.write(q, "x", 1, []uint64{7, 8})
	other.seal(1)
	w := attachWire(t, s.socket(), "truncating")
	done, raw := w.do(t, protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpMap, Handle: w.query(t, "/a"), Ordinal: 2}, mapArguments("x", uint64s))
	var g protocol.GroupDescriptor
	require.NoError(t, unpack(raw, &g))
	w.do(t, protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpUnmapAttribute, Handle: done.Handle}, nil)
	require.NoError(t, os.Truncate(filepath.Join(s.memoryDir(t), fmt.Sprintf("segment-%d", g.Block.Segment)), 0))
	other.seal(2)
	r, err := other.stage.ReadAttributes(t.Context(), q, []string{"x"}, callboard.ReadOptions{})
	require.NoError(t, err)
	defer r.Release()
	group, err := r.Group("x")
	require.NoError(t, err)
	defer group.Release()
	values, err := callboard.Values[uint64](group)
	require.NoError(t, err)
	require.Equal(t, []uint64{0, 8}, values)
	w.close()
	unharmed(t, other.stage)
}

// inPidNamespace makes a process the first of a pid namespace of its own.
func inPidNamespace(t *testing.T, c *exec.Cmd) {
	t.Helper()
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	if uid := os.Geteuid(); uid != 0 {
		c.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		c.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: uid, HostID: uid, Size: 1}}
	}
	probe := exec.Command("/bin/true")
	probe.SysProcAttr = c.SysProcAttr
	if err := probe.Run(); err != nil {
		skip(t, fmt.Sprintf("pid namespaces are not permitted here: %v", err))
	}
}

// Two clients that are both process 1, and a broker in a pid namespace of its own to whom
// clients have no number: who lives is told by locks. Field reports C2, A27; rules I1, I3.
func TestC2ProcessNumbersProveNothing(t *testing.T) {
	h := newHost(t)
	s := h.serveAs(t, "one", func(c *exec.Cmd) { inPidNamespace(t, c) })
	require.True(t, s.started(t), "%s", &s.errors)
	other := h.dial(t, "one")
	_, err := other.Publish(within(t, soon), "pinned/value", make([]uint64, 1000))
	require.NoError(t, err)
	env := append(os.Environ(), shm.RuntimeEnv+"="+filepath.Join(h.base, "callboard", "one"))
	var both []*harness.Process
	for range 2 {
		p := spawnAs(t, "pinner", nil, env, func(c *exec.Cmd) { inPidNamespace(t, c) })
		expect(t, p, "pinned")
		both = append(both, p)
	}
	channels := func() int {
		files, _ := filepath.Glob(filepath.Join(h.shm, "*", "one", "*", "channel-*"))
		return len(files)
	}
	require.Equal(t, 3, channels())
	both[0].Kill()
	require.Eventually(t, func() bool { return channels() == 2 }, soon, 10*time.Millisecond, "the dead one goes")
	for range 20 {
		_, err := other.Publish(within(t, soon), "pinned/value", make([]uint64, 1000))
		require.NoError(t, err)
	}
	time.Sleep(300 * time.Millisecond)
	both[1].Tell("look")
	expect(t, both[1], "the same")
	require.Equal(t, 2, channels(), "the living one stays, though its number died")
	both[1].Kill()
	require.Eventually(t, func() bool { return channels() == 1 }, soon, 10*time.Millisecond)
	_ = other.Close()
	s.end(t, syscall.SIGTERM)
}

// Directories of another user, and such that others can reach, are refused by name with
// owner and mode, by the broker and by clients. Field reports C3, C4; rule I5.
func TestC3C4ForeignAndOpenDirectories(t *testing.T) {
	for _, c := range []struct {
		what  string
		spoil func(path string) error
		texts []string
	}{
		{"C4 open to others", func(path string) error { return os.Chmod(path, 0o777) }, []string{"rwxrwxrwx"}},
		{"C3 another user's", func(path string) error { return os.Chown(path, 65534, 65534) }, []string{"uid 65534"}},
		{"a symbolic link", func(path string) error {
			return errors.Join(os.Remove(path), os.Symlink(os.TempDir(), path))
		}, []string{"link"}},
	} {
		t.Run(c.what, func(t *testing.T) {
			h := newHost(t)
			memory := filepath.Join(h.shm, fmt.Sprintf("callboard-%d", os.Geteuid()))
			runtime := filepath.Join(h.base, "callboard", "one")
			for _, path := range []string{memory, runtime} {
				require.NoError(t, os.MkdirAll(path, 0o700))
				if err := c.spoil(path); errors.Is(err, os.ErrPermission) {
					require.NoError(t, os.Remove(path))
					skip(t, "giving a directory to another user needs root")
				}
				s := h.serve(t, "one")
				require.False(t, s.started(t))
				<-s.ended
				require.Equal(t, 1, s.command.ProcessState.ExitCode())
				require.Contains(t, s.errors.String(), path)
				for _, text := range c.texts {
					require.Contains(t, s.errors.String(), text)
				}
				if path == runtime {
					_, err := callboard.Dial(within(t, soon), callboard.Options{Stage: "one", RuntimeDir: runtime})
					require.ErrorIs(t, err, callboard.ErrNotFound)
					require.ErrorContains(t, err, runtime)
					require.ErrorContains(t, err, c.texts[0])
				}
				require.NoError(t, os.RemoveAll(path))
				_ = os.Remove(filepath.Join(h.base, "callboard"))
			}
			s := h.serve(t, "one") // what was in the way is gone, nothing else is remembered
			require.True(t, s.started(t), "%s", &s.errors)
			s.end(t, syscall.SIGTERM)
		})
	}
}

// A client of another major version is refused by the broker, and a broker of another one
// by the client, in each language; both name both versions, and "found" differs from "not
// found". Field reports D1, D2.
func TestD1D2OtherVersions(t *testing.T) {
	s := startStage(t)
	ours := protocol.VersionText(protocol.VersionWord)
	hello := helloMessage("old")
	binary.LittleEndian.PutUint32(hello[4:], 7<<16|3)
	for _, msg := range [][]byte{hello, hello[:16]} { // another version's hello may have any size
		conn, err := shm.Dial(s.socket())
		require.NoError(t, err)
		require.NoError(t, conn.Send(msg))
		raw, _, err := receive(conn)
		require.NoError(t, err)
		reply := errorReply(raw)
		require.NotNil(t, reply)
		require.Equal(t, protocol.StatusIncompatibleVersion, protocol.Status(reply.Status))
		require.Contains(t, textOf(reply), "7.3")
		require.Contains(t, textOf(reply), ours)
		require.NoError(t, conn.Close())
	}

	answers := map[string][]byte{
		"it refuses us": message(&protocol.ErrorReply{Header: messageHeader(protocol.MessageErrorReply), Status: uint32(protocol.StatusIncompatibleVersion),
			Text: [488]byte([]byte(fmt.Sprintf("%-488s", "the client speaks "+ours+", this broker 7.3")))}),
		"it answers in its own way": message(&protocol.HelloReply{Header: messageHeader(protocol.MessageHelloReply)}),
		"with another size":         message(&protocol.SegmentReply{Header: messageHeader(protocol.MessageHelloReply)}),
	}
	readers := map[string][]string{}
	for _, language := range languages {
		readers[language] = program(t, language, "reader")
	}
	incompatible := map[string]string{"C": "INCOMPATIBLE_VERSION", "Python": "IncompatibleVersion"}
	for what, answer := range answers {
		if what != "it refuses us" {
			binary.LittleEndian.PutUint32(answer[4:], 7<<16|3)
		}
		dir, err := os.MkdirTemp("", "cb-")
		require.NoError(t, err)
		defer os.RemoveAll(dir)
		listener, err := shm.Listen(filepath.Join(dir, "attach.sock"))
		require.NoError(t, err)
		go func() {
			for {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				_, _, _ = receive(conn)
				_ = conn.Send(answer)
				_, _, _ = receive(conn)
				_ = conn.Close()
			}
		}()
		_, err = callboard.Dial(within(t, soon), callboard.Options{Stage: "one", RuntimeDir: dir})
		require.ErrorIs(t, err, callboard.ErrIncompatibleVersion, what)
		require.ErrorContains(t, err, "7.3", what)
		require.ErrorContains(t, err, ours, what)
		for language, reader := range readers {
			_, err := latestIn(reader, append(os.Environ(), shm.RuntimeEnv+"="+dir, "CALLBOARD_STAGE=one"), "others/value")
			require.Error(t, err, "%s, %s", language, what)
			for _, text := range []string{incompatible[language], "7.3", ours} {
				require.ErrorContains(t, err, text, "%s, %s", language, what)
			}
		}
		require.NoError(t, listener.Close())
	}
	_, err := callboard.Dial(within(t, soon), callboard.Options{Stage: "one", RuntimeDir: t.TempDir()})
	require.ErrorIs(t, err, callboard.ErrNotFound)
}

// Clients of different sizes share a stage: limits stand in each channel's header and are
// read at attach. Field report D3.
func TestD3LimitsAreReadAtAttach(t *testing.T) {
	s := startStage(t)
	for _, sizes := range [][3]uint32{{8, 16, 32}, {1024, 2048, 65536}, {0, 0, 0}} {
		conn, err := shm.Dial(s.socket())
		require.NoError(t, err)
		require.NoError(t, conn.Send(message(&protocol.HelloRequest{Header: messageHeader(protocol.MessageHelloRequest),
			SqEntries: sizes[0], CqEntries: sizes[1], PinCount: sizes[2], ArgumentBytes: 8192, ResultBytes: 8192})))
		w := &wire{conn: conn}
		require.NoError(t, w.receiveHello())
		if sizes[0] == 0 {
			sizes = [3]uint32{protocol.SqEntriesDefault, protocol.CqEntriesDefault, protocol.PinCountDefault}
		}
		require.Equal(t, sizes, [3]uint32{w.layout.SqEntries, w.layout.CqEntries, w.layout.PinCount})
		for range 3 * sizes[0] { // around the ring more than once
			require.NoError(t, w.submit(protocol.SubmissionEntry{Opcode: protocol.OpNop}, nil))
			_, _, err := w.complete()
			require.NoError(t, err)
		}
		w.query(t, "/a")
		w.close()
	}
	s.settled(t)
	unharmed(t, s.Dial("other"))
}
