package integration

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	callboard "callboard/clients/go"
	"callboard/integration/harness"
)

// host is a machine of its own, as far as directories make one: several stages share
// it, as they do in real life.
type host struct{ base, shm string }

func newHost(t *testing.T) *host {
	t.Helper()
	h := &host{}
	var err error
	h.base, err = os.MkdirTemp("", "cb-host-")
	require.NoError(t, err)
	shared := "/dev/shm"
	if _, err := os.Stat(shared); err != nil {
		shared = h.base
	}
	h.shm, err = os.MkdirTemp(shared, "cb-host-")
	require.NoError(t, err)
	made := h.shm
	t.Cleanup(func() {
		h.shm = made // a test that failed may have left another one here
		left := h.files()
		_ = os.RemoveAll(h.shm)
		_ = os.RemoveAll(h.base)
		require.Empty(t, left, "left on the host")
	})
	return h
}

func (h *host) env() []string { return []string{"XDG_RUNTIME_DIR=" + h.base} }

// files lists everything of Callboard's on the host.
func (h *host) files() (found []string) {
	for _, dir := range []string{h.shm, h.base} {
		_ = filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
			if err == nil && path != dir && path != h.shm {
				found = append(found, path)
			}
			return nil
		})
	}
	return found
}

// server is a `callboard serve` on a host.
type server struct {
	command *exec.Cmd
	errors  bytes.Buffer
	ready   chan string // the ready line; closed without one when it ended before
	ended   chan struct{}
}

func (h *host) serve(t *testing.T, stage string) *server {
	t.Helper()
	return h.serveAs(t, stage, func(*exec.Cmd) {})
}

// serveAs lets the test change how the process is started.
func (h *host) serveAs(t *testing.T, stage string, change func(*exec.Cmd)) *server {
	t.Helper()
	s := &server{ready: make(chan string, 1), ended: make(chan struct{})}
	s.command = exec.Command(harness.Binary(t), "serve", "--stage", stage, "--shm-dir", h.shm, "--memory", "32MiB")
	s.command.Env = append(os.Environ(), h.env()...)
	s.command.Stderr = &s.errors
	change(s.command)
	out, err := s.command.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, s.command.Start())
	go func() {
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			if strings.Contains(lines.Text(), " ready ") {
				s.ready <- lines.Text()
			}
		}
		close(s.ready)
		_ = s.command.Wait()
		close(s.ended)
	}()
	t.Cleanup(func() { s.end(t, syscall.SIGKILL) })
	return s
}

// started waits until the server serves; false: it ended instead.
func (s *server) started(t *testing.T) bool {
	t.Helper()
	select {
	case _, ok := <-s.ready:
		return ok
	case <-time.After(soon):
		require.Fail(t, "neither ready nor ended")
		return false
	}
}

func (s *server) end(t *testing.T, how syscall.Signal) {
	t.Helper()
	_ = s.command.Process.Signal(how)
	select {
	case <-s.ended:
	case <-time.After(soon):
		_ = s.command.Process.Kill()
		require.Fail(t, "the broker did not end")
	}
}

func (h *host) dial(t *testing.T, stage string) *callboard.Stage {
	t.Helper()
	c, err := callboard.Dial(within(t, soon), callboard.Options{Stage: stage, Name: "client", RuntimeDir: filepath.Join(h.base, "callboard", stage)})
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// The broker is killed. Who does not want to wait for the next one hears of it at once;
// for the others it goes on: a read that waits waits on, what was sealed is there, and
// what was held is as it was. Rules S1, R4, B2; behaviour 206; field reports A1, A3, A6, E12.
func TestBrokerKilled(t *testing.T) {
	s := startStage(t)
	other := s.Dial("other")
	unharmed(t, other)
	view, err := other.Latest(within(t, soon), "others/value")
	require.NoError(t, err)
	defer view.Release()
	options := s.Options("impatient")
	options.ReattachWait = -1
	impatient, err := callboard.Dial(within(t, soon), options)
	require.NoError(t, err)
	defer impatient.Close()
	generation, before := s.memoryDir(t), other.Epoch()
	heard, followed := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := impatient.Follow(context.Background(), before)
		heard <- err
	}()
	go func() {
		_, err := other.Follow(within(t, 2*soon), before)
		followed <- err
	}()
	time.Sleep(20 * time.Millisecond)
	s.Kill9()
	select {
	case err := <-heard:
		require.ErrorIs(t, err, callboard.ErrSessionEnded)
	case <-time.After(soon):
		require.Fail(t, "a waiting client did not hear of the broker's death")
	}
	_, err = impatient.Publish(within(t, soon), "others/value", []uint64{8, 0})
	require.ErrorIs(t, err, callboard.ErrSessionEnded)
	require.NotEmpty(t, s.Residue(), "else the rest of this test shows nothing")
	require.Empty(t, followed)

	s.Restart()
	s.connect(t)
	require.Equal(t, generation, s.memoryDir(t))
	values, err := callboard.Values[uint64](view)
	require.NoError(t, err)
	require.EqualValues(t, 7, values[0], "a view outlives the broker (field report A6)")
	again := s.Dial("again")
	latest, err := again.Latest(within(t, soon), "others/value")
	require.NoError(t, err)
	defer latest.Release()
	require.Equal(t, view.Ordinal(), latest.Ordinal(), "what was sealed is there")
	require.Empty(t, followed, "a restart seals nothing")
	unharmed(t, again)
	require.NoError(t, <-followed)
	unharmed(t, other)
	d := s.describe(t)
	require.NotNil(t, clientNamed(d, "other"))
}

// Twenty lives of a broker, every other one killed: what is there afterwards is one
// generation. Field reports A8, A9, A14, A27.
func TestA8RepeatedCrashesLeaveOneGeneration(t *testing.T) {
	s := startStage(t)
	// The harness's own client may not have left yet: channels are not counted.
	objects := func() int {
		all, err := filepath.Glob(filepath.Join(s.memoryDir(t), "[^c]*"))
		require.NoError(t, err)
		return len(all)
	}
	unharmed(t, s.Dial("client"))
	before, ours := objects(), len(openFiles(t, os.Getpid()))
	for life := range 20 {
		if life%2 == 0 {
			s.Kill9()
		} else {
			s.Stop()
		}
		s.Restart()
		c, err := callboard.Dial(within(t, soon), s.Options("client"))
		require.NoError(t, err)
		unharmed(t, c)
		require.NoError(t, c.Close())
		require.Equal(t, before, objects())
	}
	require.Eventually(t, func() bool { return len(openFiles(t, os.Getpid())) <= ours+4 }, soon, 20*time.Millisecond,
		"descriptors of a client process over 20 lives of its broker; %d before", ours)
	s.connect(t)
}

// Everybody crashes at once. The next start takes a free lock as its proof, whatever the
// files' age and whoever has the dead processes' numbers. Field report A27; rule S1.
func TestA27EverybodyCrashes(t *testing.T) {
	s := startStage(t)
	unharmed(t, s.Dial("other"))
	var all []*harness.Process
	for _, role := range []string{"half-filler", "pinner", "idle"} {
		p := spawn(t, role, nil, s.Env())
		var ready string
		p.Hear(soon, &ready)
		all = append(all, p)
	}
	old := s.memoryDir(t)
	s.Kill9()
	for _, p := range all {
		p.Kill()
	}
	now := time.Now()
	require.NoError(t, filepath.Walk(s.ShmDir, func(path string, _ os.FileInfo, err error) error {
		require.NoError(t, err)
		return os.Chtimes(path, now, now.Add(time.Hour)) // as young as can be
	}))
	s.Restart()
	s.connect(t)
	require.DirExists(t, old, "what was sealed is recovered")
	s.settled(t, "other") // the dead are gone
	other := s.Dial("other")
	latest, err := other.Latest(within(t, soon), "others/value")
	require.NoError(t, err)
	latest.Release()
	unharmed(t, other)
	s.Kill9()
	s.Restart("--fresh")
	s.connect(t)
	require.NoDirExists(t, old)
	unharmed(t, s.Dial("other"))
}

// Several starts of one stage at once: one wins, the others say why not and which process
// has it. Rule S1; field reports A2, A24.
func TestTwoBrokersOfOneStage(t *testing.T) {
	h := newHost(t)
	for range 3 {
		servers := make([]*server, 4)
		won := make([]bool, len(servers))
		var starting sync.WaitGroup
		for i := range servers {
			servers[i] = h.serve(t, "one")
			starting.Go(func() { won[i] = servers[i].started(t) })
		}
		starting.Wait()
		winner := slices.Index(won, true)
		require.GreaterOrEqual(t, winner, 0, "nobody serves: %s", &servers[0].errors)
		for i, s := range servers {
			if i == winner {
				continue
			}
			require.False(t, won[i], "two brokers serve one stage")
			<-s.ended
			require.Equal(t, 1, s.command.ProcessState.ExitCode())
			text := s.errors.String()
			require.Contains(t, text, "running already")
			require.Contains(t, text, `"one"`)
			require.Contains(t, text, fmt.Sprintf("process %d", servers[winner].command.Process.Pid))
		}
		unharmed(t, h.dial(t, "one"))
		servers[winner].end(t, syscall.SIGTERM)
	}
}

// Starts and ends of one stage race: a start finds directories half made and half
// removed, and either serves or says that another one does. Field reports A2, A24.
func TestA24StartsAndEndsRace(t *testing.T) {
	h := newHost(t)
	served := 0
	for range 6 {
		leaving := h.serve(t, "one")
		if leaving.started(t) {
			served++
		}
		_ = leaving.command.Process.Signal(syscall.SIGTERM)
		for _, s := range []*server{h.serve(t, "one"), h.serve(t, "one")} {
			if s.started(t) {
				served++
				s.end(t, syscall.SIGTERM)
				continue
			}
			<-s.ended
			require.Contains(t, s.errors.String(), "running already")
		}
		<-leaving.ended
	}
	require.GreaterOrEqual(t, served, 6)
	for _, path := range h.files() {
		require.NotContains(t, filepath.Base(path), "lock", "there are no lock files")
	}
}

// Two stages on one host know nothing of each other.
func TestTwoStagesCoexist(t *testing.T) {
	h := newHost(t)
	for _, name := range []string{"left", "right"} {
		require.True(t, h.serve(t, name).started(t))
	}
	left, right := h.dial(t, "left"), h.dial(t, "right")
	ctx := within(t, soon)
	for _, s := range []*callboard.Stage{left, right} {
		unharmed(t, s)
	}
	_, err := left.Publish(ctx, "only/left", []uint64{1})
	require.NoError(t, err)
	_, err = right.Latest(ctx, "only/left")
	require.ErrorIs(t, err, callboard.ErrNotFound)
	require.Equal(t, map[string]string{"left memory": "in use", "left runtime": "in use", "right memory": "in use", "right runtime": "in use"},
		h.collect(t, []string{"left", "right"}, "--dry-run"))
	_ = left.Close()
	_ = right.Close()
	h.endAll(t)
}

// endAll ends what serves on the host, by its lock.
func (h *host) endAll(t *testing.T) {
	t.Helper()
	for _, child := range children(os.Getpid()) {
		var pid int
		if _, err := fmt.Sscanf(child, "process %d (callboard)", &pid); err == nil {
			_ = syscall.Kill(pid, syscall.SIGTERM)
		}
	}
	require.Eventually(t, func() bool { return len(h.files()) == 0 }, soon, 20*time.Millisecond, "left: %q", h.files())
}

// collect runs `callboard gc` and tells what became of what these stages have. The machine may have others.
func (h *host) collect(t *testing.T, stages []string, args ...string) map[string]string {
	t.Helper()
	out, stderr, code := callboardCommand(t, h.env(), append([]string{"gc", "--shm-dir", h.shm, "--json"}, args...)...)
	require.Zero(t, code, stderr)
	var rows []struct{ Stage, What, State string }
	require.NoError(t, json.Unmarshal([]byte(out), &rows), out)
	states := map[string]string{}
	for _, r := range rows {
		if slices.Contains(stages, r.Stage) {
			states[r.Stage+" "+r.What] = r.State
		}
	}
	return states
}

// `callboard gc` removes what a dead broker left, nothing of a living broker and nothing
// that a living client still looks at. Rule S1; field reports A3, A8, A14.
func TestGCRemovesOnlyWhatIsDead(t *testing.T) {
	h := newHost(t)
	living, dying := h.serve(t, "living"), h.serve(t, "dying")
	require.True(t, living.started(t))
	require.True(t, dying.started(t))
	other := h.dial(t, "living")
	unharmed(t, other)
	reader := h.dial(t, "dying")
	unharmed(t, reader)
	view, err := reader.Latest(within(t, soon), "others/value")
	require.NoError(t, err)
	dying.end(t, syscall.SIGKILL)

	states := func(args ...string) map[string]string { return h.collect(t, []string{"living", "dying"}, args...) }
	all := h.files()
	require.Equal(t, map[string]string{"living memory": "in use", "living runtime": "in use",
		"dying memory": "in use", "dying runtime": "would be removed"}, states("--dry-run"), "its reader lives")
	require.Equal(t, all, h.files(), "a dry run removes nothing")
	view.Release()
	require.NoError(t, reader.Close())
	require.Equal(t, "would be removed", states("--dry-run")["dying memory"])
	require.Equal(t, map[string]string{"living memory": "in use", "living runtime": "in use",
		"dying memory": "removed", "dying runtime": "removed"}, states())
	for _, path := range h.files() {
		require.NotContains(t, path, "dying")
	}
	unharmed(t, other)
	_ = other.Close()
	living.end(t, syscall.SIGTERM)
	require.Empty(t, h.files())
}

// A broker is killed while it starts, at many moments: no half-made state disturbs a
// later start. Field report A3.
func TestA3KilledWhileItStarts(t *testing.T) {
	h := newHost(t)
	for _, after := range []time.Duration{0, 5, 10, 15, 20, 25, 30, 40} {
		s := h.serve(t, "one")
		time.Sleep(after * time.Millisecond)
		s.end(t, syscall.SIGKILL)
	}
	s := h.serve(t, "one")
	require.True(t, s.started(t), "%s", &s.errors)
	c := h.dial(t, "one")
	unharmed(t, c)
	_ = c.Close()
	s.end(t, syscall.SIGTERM)
}
