package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	callboard "callboard/clients/go"
	"callboard/control"
	"callboard/integration/harness"
)

const (
	half = 4 << 20 // bytes that a producer dies in the middle of
	// soon is how long a test waits for what the rules promise within a second: machines
	// that run tests are busy. Where the second itself is the point, it is measured, and one
	// death of some shows it.
	soon = 30 * time.Second
)

// deathsAtMost is how often a test looks for a death whose memory is back within a second.
const deathsAtMost = 12

// unharmed publishes and reads as any other client would. It is called before and after
// somebody's death; both must work at once.
func unharmed(t *testing.T, s *callboard.Stage) {
	t.Helper()
	ctx := within(t, soon)
	ordinal, err := s.Publish(ctx, "others/value", []uint64{7, uint64(time.Now().UnixNano())})
	require.NoError(t, err)
	g, err := s.Latest(ctx, "others/value")
	require.NoError(t, err)
	defer g.Release()
	require.Equal(t, ordinal, g.Ordinal())
	values, err := callboard.Values[uint64](g)
	require.NoError(t, err)
	require.EqualValues(t, 7, values[0])
}

// settled waits until the broker has forgotten everybody but the named clients.
func (s *stage) settled(t *testing.T, names ...string) (d description) {
	t.Helper()
	slices.Sort(names)
	s.eventually(t, soon, "dead clients stay", func(now description) bool {
		d = now
		var there []string
		for _, c := range d.Clients {
			there = append(there, c.Name)
		}
		slices.Sort(there)
		return slices.Equal(names, there)
	})
	return d
}

// A producer is killed half-way through a fill: nothing of it is visible and its memory
// is back within a second. Rules S5, M3; behaviour 170, 192; field reports A11, A15.
func TestProducerKilledHalfWayThroughAFill(t *testing.T) {
	s := startStage(t, "--memory", "256MiB")
	other := s.Dial("other")
	unharmed(t, other)
	before := s.settled(t, "other")
	fastest, deaths := soon, uint64(0)
	for ; deaths < 3 || fastest >= time.Second && deaths < deathsAtMost; deaths++ {
		p := spawn(t, "half-filler", nil, s.Env())
		expect(t, p, "half")
		d := s.describe(t)
		require.GreaterOrEqual(t, inUse(d), inUse(before)+half)
		require.EqualValues(t, 1, clientNamed(d, "half-filler").Sessions)
		unharmed(t, other)
		died := time.Now()
		p.Kill()
		d = s.settled(t, "other")
		fastest = min(fastest, time.Since(died))
		require.LessOrEqual(t, inUse(d), inUse(before)+64<<10, "what the other client publishes meanwhile is small")
		unharmed(t, other)
		_, err := other.Latest(within(t, soon), "half/filled")
		require.ErrorIs(t, err, callboard.ErrNotFound)
	}
	require.Less(t, fastest, time.Second, "from a producer's death to its memory's return (rule S5)")
	require.LessOrEqual(t, s.describe(t).Memory.Held, before.Memory.Held+deaths*half, "each death returns what the next one uses")
}

// A reader is killed with pins, and so is one that closed with views alive: the blocks
// come back within a second. Rules I2, I3, S5; behaviour 170; field report A12.
func TestReaderKilledWithPins(t *testing.T) {
	for _, how := range []string{"open", "closed"} {
		t.Run(how, func(t *testing.T) {
			s := startStage(t, "--retain", "2")
			other := s.Dial("other")
			publish := func(n int) {
				for range n {
					_, err := other.Publish(within(t, soon), "pinned/value", make([]uint64, 1000))
					require.NoError(t, err)
				}
			}
			versions := func() int {
				for _, a := range s.describe(t).Attributes {
					if a.Name == "pinned/value" {
						return len(a.Ordinals)
					}
				}
				return 0
			}
			fastest := soon
			for deaths := 0; deaths < 3 || fastest >= time.Second && deaths < deathsAtMost; deaths++ {
				publish(1)
				p := spawn(t, "pinner", nil, s.Env())
				expect(t, p, "pinned")
				if how == "closed" {
					p.Tell("close")
					expect(t, p, "closed")
				}
				publish(20)
				require.Equal(t, 3, versions(), "two are retained, one is pinned")
				p.Tell("look")
				expect(t, p, "the same") // I2: a view outlives its session
				time.Sleep(300 * time.Millisecond)
				publish(1)
				require.Equal(t, 3, versions(), "no time resets a living reader (field report E9)")
				died := time.Now()
				p.Kill()
				s.settled(t, "other")
				publish(1)
				require.Equal(t, 2, versions())
				fastest = min(fastest, time.Since(died))
				unharmed(t, other)
			}
			require.Less(t, fastest, time.Second, "from a reader's death to the return of what it had pinned (rule S5)")
		})
	}
}

// Whatever a client did, nothing of it is left once it was killed: no channel, no
// descriptor, no mapping of the broker's. Field reports A4, A9, A26; rule I3.
func TestKilledClientOfEachRoleLeavesNothing(t *testing.T) {
	s := startStage(t)
	other := s.Dial("other")
	unharmed(t, other)
	state := func() []string {
		list := openFiles(t, s.PID())
		list = append(list, mapsOf(t, s.PID(), s.ShmDir)...)
		files, err := filepath.Glob(filepath.Join(s.memoryDir(t), "channel-*"))
		require.NoError(t, err)
		return append(list, files...)
	}
	warm := spawn(t, "half-filler", nil, s.Env()) // its segments stay as warm spares
	expect(t, warm, "half")
	warm.Kill()
	s.settled(t, "other")
	before := state()
	for _, role := range []string{"idle", "read-only", "pinner", "half-filler", "subscriber"} {
		p := spawn(t, role, nil, s.Env())
		var ready string
		p.Hear(soon, &ready)
		p.Kill()
		s.settled(t, "other")
		require.Eventually(t, func() bool { return len(state()) <= len(before) }, soon, 10*time.Millisecond,
			"%s: before %q\nafter %q", role, before, state())
		unharmed(t, other)
	}
}

// A client is killed at each step of its attachment. Field reports A3, B11.
func TestClientKilledAtEachStepOfAttaching(t *testing.T) {
	s := startStage(t)
	other := s.Dial("other")
	unharmed(t, other)
	s.settled(t, "other")
	before := len(openFiles(t, s.PID()))
	for _, step := range attachSteps {
		p := spawn(t, "attach", attachConfig{Socket: s.socket(), Step: step}, s.Env())
		expect(t, p, step)
		unharmed(t, other)
		p.Kill()
		s.settled(t, "other")
		require.Eventually(t, func() bool { return len(openFiles(t, s.PID())) <= before }, soon, 5*time.Millisecond, step)
		files, err := filepath.Glob(filepath.Join(s.memoryDir(t), "channel-*"))
		require.NoError(t, err)
		require.Len(t, files, 1, "the other's channel")
	}
}

// Stopped processes slow nobody: a producer in the middle of a fill, a reader with pins,
// a NATS subscriber, a client that was in the middle of its hello. Rules R4, D3;
// behaviour 143; field report E15.
func TestStoppedClientsSlowNobody(t *testing.T) {
	s := startStage(t, "--memory", "256MiB")
	other := s.Dial("other")
	unharmed(t, other)
	var heard []uint64
	events := make(chan uint64, 4096)
	stop, err := control.Subscribe(s.nats, s.names.Commit(), func(_ string, data []byte) {
		var e control.CommitEvent
		if json.Unmarshal(data, &e) == nil {
			events <- e.Epoch
		}
	})
	require.NoError(t, err)
	defer stop()
	for _, role := range []string{"half-filler", "pinner", "subscriber", "idle"} {
		p := spawn(t, role, nil, s.Env())
		var ready string
		p.Hear(soon, &ready)
		p.Signal(syscall.SIGSTOP)
	}
	p := spawn(t, "attach", attachConfig{Socket: s.socket(), Step: "hello"}, s.Env())
	expect(t, p, "hello")
	p.Signal(syscall.SIGSTOP)

	median := soon
	for rounds := 0; rounds < 5 && median >= 100*time.Millisecond; rounds++ { // a machine that is busy must not decide
		var took []time.Duration
		for range 300 {
			began := time.Now()
			unharmed(t, other)
			took = append(took, time.Since(began))
		}
		slices.Sort(took)
		median = took[len(took)/2]
	}
	require.Less(t, median, 100*time.Millisecond, "a turn of waiting for somebody who is stopped would show")
	deadline := time.After(soon)
	for last := other.Epoch(); len(heard) == 0 || heard[len(heard)-1] < last; {
		select {
		case epoch := <-events:
			heard = append(heard, epoch)
		case <-deadline:
			require.Fail(t, "announcements stopped", "the last one is of %v, the stage is at %d", heard[max(0, len(heard)-1):], last)
		}
	}
	require.True(t, slices.IsSorted(heard))
}

// A client that restarts as fast as it can, under one name, is normal. Field report A5.
func TestA5ApplicationRestartsFast(t *testing.T) {
	s := startStage(t)
	other := s.Dial("other")
	unharmed(t, other)
	for range 10 {
		p := spawn(t, "idle", nil, s.Env())
		q := spawn(t, "idle", nil, s.Env()) // twice at once
		expect(t, p, "idle")
		expect(t, q, "idle")
		p.Kill()
		q.Kill()
		unharmed(t, other)
	}
	s.settled(t, "other")
}

// Joining and leaving two hundred times leaves descriptors, mappings and segments as they
// were. Field reports A9, A13, B11.
func TestA9ManyJoinsLeaveCountsAsTheyWere(t *testing.T) {
	s := startStage(t)
	unharmed(t, s.Dial("other"))
	join := func(i int) {
		ctx := within(t, soon)
		c, err := callboard.Dial(ctx, s.Options("passing"))
		require.NoError(t, err)
		_, err = c.Publish(ctx, "passing/value", []uint64{uint64(i)})
		require.NoError(t, err)
		g, err := c.Latest(ctx, "passing/value")
		require.NoError(t, err)
		q, err := c.QueryFromPathList(ctx, []string{"/passing"})
		require.NoError(t, err)
		m, err := c.MapAttribute(ctx, q, "passing/map", callboard.MapOptions{Ordinal: 1, DType: callboard.DType{Code: 1, Bits: 64, Lanes: 1}})
		require.NoError(t, err)
		_ = m // left open on purpose: Close aborts it
		if i%2 == 0 {
			g.Release()
			require.NoError(t, c.Close())
		} else {
			require.NoError(t, c.Close())
			g.Release() // a view after the end of its session
		}
	}
	counts := func() [4]int {
		d := s.describe(t)
		return [4]int{len(openFiles(t, s.PID())), len(mapsOf(t, s.PID(), s.ShmDir)), int(d.Counters["segments"]), len(openFiles(t, os.Getpid()))}
	}
	for i := range 20 {
		join(i)
	}
	s.settled(t, "other")
	before := counts()
	for i := range 200 {
		join(i)
	}
	s.settled(t, "other")
	// How many warm spares there are depends on who overlapped; a leak would show two hundred times.
	after := counts()
	for i, what := range []string{"descriptors of the broker", "mappings of the broker", "segments", "descriptors of ours"} {
		require.LessOrEqual(t, after[i], before[i]+10, what)
	}
	require.Less(t, len(mapsOf(t, os.Getpid(), s.ShmDir)), 20, "mappings of ours")
}

// SIGTERM with everything open: clients hear of it, views stay, nothing is left.
// Field reports A4, A6; rule S1.
func TestTermWithEverythingOpen(t *testing.T) {
	s := startStage(t)
	other := s.Dial("other")
	_, err := other.Publish(within(t, soon), "pinned/value", make([]uint64, 1000))
	require.NoError(t, err)
	var held []*harness.Process
	for _, role := range []string{"half-filler", "pinner", "idle", "subscriber"} {
		p := spawn(t, role, nil, s.Env())
		var ready string
		p.Hear(soon, &ready)
		held = append(held, p)
	}
	s.stop(t)
	_, err = other.Follow(within(t, soon), other.Epoch())
	require.ErrorIs(t, err, callboard.ErrSessionEnded)
	require.ErrorContains(t, err, "stopped")
	held[1].Tell("look")
	expect(t, held[1], "the same")
	for _, p := range held {
		p.Done()
	}
}

// dialRole attaches as a role does: the environment leads it to its stage.
func dialRole(name string, readOnly bool) (context.Context, *callboard.Stage, error) {
	ctx := context.Background()
	s, err := callboard.Dial(ctx, callboard.Options{Name: name, ReadOnly: readOnly})
	if err != nil {
		return ctx, nil, fmt.Errorf("attaching: %w", err)
	}
	return ctx, s, nil
}
