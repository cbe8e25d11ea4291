package integration

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	callboard "callboard/clients/go"
	"callboard/protocol"
)

// Closing, committing, aborting, releasing and waits that are given up, all at once and more than once: the broker frees
// nothing twice, and what was counted before is counted after. Field report A13; behaviour 169, 174, 217.
func TestA13ClosesUnmapsAndTimeoutsRace(t *testing.T) {
	s := startStage(t)
	other := s.Dial("other")
	unharmed(t, other)
	random := randomness(t)
	round := func() {
		ctx := within(t, soon)
		c, err := callboard.Dial(ctx, s.Options("racing"))
		require.NoError(t, err)
		_, err = c.Publish(ctx, "racing/value", []uint64{1, 2, 3})
		require.NoError(t, err)
		g, err := c.Latest(ctx, "racing/value")
		require.NoError(t, err)
		lease, err := g.Retain()
		require.NoError(t, err)
		m, err := c.Map(ctx, "racing/map", []int{1 << 16}, callboard.DType{Code: 1, Bits: 8, Lanes: 1})
		require.NoError(t, err)
		q, err := c.QueryFromPathList(ctx, []string{"/racing"})
		require.NoError(t, err)
		giveUp := time.Duration(random.IntN(300)) * time.Microsecond
		calls := []func(){
			func() { _ = c.Close() },
			func() { _ = c.CloseIfIdle() },
			func() { g.Release() },
			func() { lease.Release() },
			func() { q.Release() },
			func() { m.Abort() },
			func() { _ = m.Commit(ctx) },
			func() {
				given, cancel := context.WithTimeout(ctx, giveUp)
				defer cancel()
				if op, err := m.UnmapAttribute(); err == nil {
					_ = op.Wait(given)
					_ = op.Wait(ctx)
				}
			},
			func() {
				given, cancel := context.WithTimeout(ctx, giveUp)
				defer cancel()
				_, _ = c.Follow(given, c.Epoch())
			},
		}
		calls = append(calls, calls...) // each twice
		random.Shuffle(len(calls), func(i, k int) { calls[i], calls[k] = calls[k], calls[i] })
		waits := make([]time.Duration, len(calls))
		for i := range waits {
			waits[i] = time.Duration(random.IntN(200)) * time.Microsecond
		}
		var group sync.WaitGroup
		for i, call := range calls {
			group.Go(func() {
				time.Sleep(waits[i])
				call()
			})
		}
		group.Wait()
		require.NoError(t, c.Close())
	}
	for range 5 {
		round()
	}
	before := s.settled(t, "other")
	for range 60 {
		round()
	}
	unharmed(t, other)
	after := s.settled(t, "other")
	require.LessOrEqual(t, inUse(after), inUse(before)+1<<20, "blocks are given back once each")
	// How many warm spares there are depends on who overlapped; a leak would show sixty times.
	require.LessOrEqual(t, after.Counters["segments"], before.Counters["segments"]+10)
}

// Readers come, are killed or leave, whatever they are doing; the producer's ticks go on, each within its time, and
// nothing that they left or took away is missed. Field reports A17, A18, A20, A22; rule V7.
func TestA17A20ReadersComeAndGo(t *testing.T) {
	s := startStage(t)
	producer := s.Dial("producer")
	_, err := producer.Publish(within(t, soon), "pinned/value", make([]uint64, 100))
	require.NoError(t, err)
	var stop, ticks = make(chan struct{}), make(chan error, 1)
	var slowest time.Duration
	go func() {
		ticks <- func() error {
			for n := uint64(1); ; n++ {
				select {
				case <-stop:
					return nil
				default:
				}
				ctx, cancel := context.WithTimeout(context.Background(), soon)
				began := time.Now()
				_, err := producer.Publish(ctx, "pinned/value", []uint64{99: n})
				cancel()
				if err != nil {
					return fmt.Errorf("tick %d: %w", n, err)
				}
				slowest = max(slowest, time.Since(began))
			}
		}()
	}()
	random := randomness(t)
	var names map[string]bool
	for i := range 24 {
		p := spawn(t, "pinner", nil, s.Env())
		expect(t, p, "pinned")
		if i == 0 {
			names = objects(t, s.ShmDir, s.RuntimeDir)
		}
		switch random.IntN(3) {
		case 0:
			p.Kill()
		case 1:
			p.Tell("look")
			expect(t, p, "the same")
			p.Kill()
		case 2:
			p.Tell("close")
			expect(t, p, "closed")
			p.Kill() // with a view of the session that is over
		}
	}
	close(stop)
	require.NoError(t, <-ticks)
	t.Logf("slowest tick %v", slowest)
	s.settled(t, "producer")
	for name := range names { // a reader makes nothing that others use, and takes nothing away (A18)
		require.True(t, objects(t, s.ShmDir, s.RuntimeDir)[name] || strings.Contains(name, "channel"), "%s is gone", name)
	}
	unharmed(t, s.Dial("late"))
}

// objects are the files in directories.
func objects(t *testing.T, dirs ...string) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	for _, dir := range dirs {
		require.NoError(t, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && !entry.IsDir() {
				found[path] = true
			}
			if errors.Is(err, fs.ErrNotExist) {
				return nil // a channel that goes meanwhile
			}
			return err
		}))
	}
	return found
}

// A publisher is killed again and again, and the broker once: no id of a client or a session comes twice, and a subscriber
// that meets other segments all the time finds each. Field reports A16, A19; rule S2.
func TestA16A19PublishersRestartUnderASubscriber(t *testing.T) {
	s := startStage(t)
	subscriber := s.Dial("subscriber")
	seen := map[string]bool{}
	fresh := func(what string, id uint64) {
		t.Helper()
		key := fmt.Sprintf("%s %#x", what, id)
		require.False(t, seen[key], "%s was given out before", key)
		seen[key] = true
	}
	for life := range 16 {
		if life == 8 {
			s.Kill9()
			s.Restart()
			s.connect(t)
		}
		w := attachWire(t, s.socket(), "publisher")
		fresh("incarnation", w.hello.Incarnation)
		query := w.query(t, "/")
		const words = 1 << 18 // more than a segment holds besides
		schema := uint64s
		schema.RowDimensions, schema.RowShape = 1, [6]uint64{words}
		_, raw := w.do(t, protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpMap, Handle: query, Flags: protocol.FlagNextOrdinal}, mapArguments("churn", schema))
		var g protocol.GroupDescriptor
		require.NoError(t, unpack(raw, &g))
		fresh("session", g.Session)
		_, m := w.segment(t, g.Block.Segment)
		m.Bytes()[g.Block.OffsetBytes] = byte(life + 1)
		w.do(t, protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpUnmapAttribute, Handle: g.Session, Flags: protocol.FlagNextOrdinal | protocol.FlagSeal}, nil)
		w.close() // as if it was killed

		latest, err := subscriber.Latest(within(t, soon), "churn")
		require.NoError(t, err)
		values, err := callboard.Values[uint64](latest)
		require.NoError(t, err)
		require.EqualValues(t, life+1, values[0])
		latest.Release()
		if life%4 == 3 { // what was adopted goes, and its segments with it
			_, err := subscriber.Publish(within(t, soon), "churn", make([]uint64, words))
			require.NoError(t, err)
		}
	}
}

// At the limit of open files: what does not work says so, in the log too, the others go on, and with room again it works.
// Field report B9.
func TestB9NoDescriptorsLeft(t *testing.T) {
	if _, err := exec.LookPath("prlimit"); err != nil {
		skip(t, "prlimit is not installed")
	}
	s := startStage(t)
	other := s.Dial("other")
	unharmed(t, other)
	limit := func(n string) {
		out, err := exec.Command("prlimit", "--pid", strconv.Itoa(s.PID()), "--nofile="+n+":").CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", s.PID()))
	require.NoError(t, err)
	found := regexp.MustCompile(`Max open files +(\d+)`).FindSubmatch(limits)
	require.NotNil(t, found, "%s", limits)
	dial := func(wait time.Duration) error {
		ctx, cancel := context.WithTimeout(context.Background(), wait)
		defer cancel()
		c, err := callboard.Dial(ctx, s.Options("one too many"))
		if err == nil {
			_ = c.Close()
		}
		return err
	}
	limit(strconv.Itoa(len(openFiles(t, s.PID())) + 1)) // enough to be heard
	require.ErrorContains(t, dial(soon), "too many open files")
	limit("3") // none at all
	require.Error(t, dial(time.Second))
	_, err = other.Publish(within(t, soon), "large/value", make([]byte, 24<<20)) // needs a new object
	require.ErrorContains(t, err, "too many open files")
	unharmed(t, other)
	require.Eventually(t, func() bool { return strings.Contains(s.Output(), "a client could not be accepted") }, soon, 10*time.Millisecond)
	limit(string(found[1]))
	unharmed(t, s.Dial("late"))
	_, err = other.Publish(within(t, soon), "large/value", make([]byte, 24<<20))
	require.NoError(t, err)
}

// Shared memory lies where it was asked for, and nowhere else: there is no way back to a disk. Field report B12.
func TestB12NoOtherPlaceIsTaken(t *testing.T) {
	runtime, err := os.MkdirTemp("", "cb") // a socket's path is short
	require.NoError(t, err)
	defer os.RemoveAll(runtime)
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for _, place := range []string{"/proc/no/such/place", file} {
		_, complaint, code := callboardCommand(t, []string{"CALLBOARD_RUNTIME_DIR=" + runtime}, "serve", "--stage", "elsewhere", "--shm-dir", place)
		require.NotZero(t, code)
		require.Contains(t, complaint, place)
	}
}
