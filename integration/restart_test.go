package integration

import (
	"math/rand/v2"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	callboard "callboard/clients/go"
	"callboard/integration/harness"
)

// cast is who works on a stage while its broker is killed: processes that say "ready",
// work until they are told to stop, and then report as producerReport and readerReport
// say. In whatever language they are, a reader must see no error and no torn or half
// tick, and a producer nothing but BROKER_RESTARTED, and that only for what was not sealed.
type cast struct{ producers, readers []*harness.Process }

// goCast is three producers and three readers, one of which holds the first snapshot that
// it sees to the end.
func goCast(t *testing.T, s *stage) (c cast) {
	for _, role := range []string{"adopting-producer", "scattering-producer", "publishing-producer"} {
		p := spawn(t, role, nil, s.Env())
		expect(t, p, "ready")
		c.producers = append(c.producers, p)
	}
	for i := range 3 {
		c.readers = append(c.readers, spawn(t, "stress-reader", readerOrder{KeepFirst: i == 0}, s.Env()))
	}
	for _, p := range c.readers {
		expect(t, p, "ready")
	}
	return c
}

func (c cast) everybody() []*harness.Process {
	return append(append([]*harness.Process{}, c.producers...), c.readers...)
}

// resources counts descriptors and mappings of the stage's objects.
func (c cast) resources(t *testing.T, s *stage) (most int) {
	for _, p := range c.everybody() {
		most = max(most, len(openFiles(t, p.PID()))+len(mapsOf(t, p.PID(), s.ShmDir)))
	}
	return max(most, len(openFiles(t, s.PID()))+len(mapsOf(t, s.PID(), s.ShmDir)))
}

// end stops everybody and requires that nothing went wrong.
func (c cast) end(t *testing.T) {
	t.Helper()
	restarted, maybe := uint64(0), uint64(0)
	for _, p := range c.readers {
		p.Tell("stop")
		var got readerReport
		p.Hear(4*soon, &got)
		p.Done()
		t.Logf("%s: %d snapshots, %d held", p.Name, got.Snapshots, got.Held)
		require.Zero(t, got.Refused, "refused reads; the first trouble: %s", got.First)
		require.Zero(t, got.Torn, "torn rows; the first trouble: %s", got.First)
		require.Zero(t, got.Mixed, "half ticks; the first trouble: %s", got.First)
		require.Positive(t, got.Snapshots)
	}
	for _, p := range c.producers {
		p.Tell("stop")
		var got producerReport
		p.Hear(4*soon, &got)
		p.Done()
		t.Logf("%s: %d commits, %d spoilt by restarts, %d of these sealed before", p.Name, got.Commits, got.Restarted, got.Maybe)
		require.Zero(t, got.Refused, "refused writes; the first trouble: %s", got.First)
		require.Zero(t, got.Lied, "outcomes that are not true; the first trouble: %s", got.First)
		require.Positive(t, got.Commits)
		restarted, maybe = restarted+got.Restarted, maybe+got.Maybe
	}
	require.Positive(t, restarted, "no restart met any work: this test shows nothing")
}

// seals publishes random values under a new name and waits for the seal.
func seals(t *testing.T, s *callboard.Stage, random *rand.Rand, name string) []uint64 {
	t.Helper()
	values := make([]uint64, 1+random.IntN(5000))
	for i := range values {
		values[i] = random.Uint64()
	}
	for {
		if _, err := s.Publish(within(t, soon), name, values); err == nil {
			return values
		} else {
			require.ErrorIs(t, err, callboard.ErrBrokerRestarted)
		}
	}
}

// ragged is an array attribute of which some rows change in each life.
type ragged struct {
	stage *callboard.Stage
	query *callboard.Query
	rows  [][]uint64
}

const raggedName = "ragged/rows"

// change writes some rows, of new lengths, and waits for their seal.
func (r *ragged) change(t *testing.T, random *rand.Rand, ordinal uint64) {
	t.Helper()
	ctx := within(t, soon)
	changed, mask := make([][]uint64, len(r.rows)), []uint64{0}
	for i := range r.rows {
		changed[i] = []uint64{}
		if ordinal > 1 && random.IntN(3) > 0 {
			continue
		}
		mask[0] |= 1 << i
		changed[i] = make([]uint64, max(0, random.IntN(400)-50))
		for k := range changed[i] {
			changed[i][k] = random.Uint64()
		}
		r.rows[i] = append([]uint64(nil), changed[i]...)
	}
	for {
		_, err := r.stage.WriteAttribute(ctx, r.query, raggedName, changed, callboard.WriteOptions{Ordinal: ordinal, IsArray: true,
			Selection: &callboard.Selection{Count: uint64(len(changed)), Mask: mask}})
		if err == nil {
			err = seal(ctx, r.stage, ordinal, raggedName)
		}
		if err == nil {
			return
		}
		require.ErrorIs(t, err, callboard.ErrBrokerRestarted)
	}
}

// restarts runs a cast over many lives of a broker. Before each end something is sealed;
// after it, it is there, bit for bit, for whoever comes new.
func restarts(t *testing.T, lives int, cast func(*testing.T, *stage) cast, renew func(s *stage, random *rand.Rand)) {
	t.Helper()
	random := randomness(t)
	s := startStage(t, "--memory", "256MiB", "--retain", "4")
	c := cast(t, s)
	witness := s.Dial("witness")
	query, err := witness.QueryFromPathList(within(t, soon), paths("r", 30, 0, 1))
	require.NoError(t, err)
	array := &ragged{witness, query, make([][]uint64, 30)}
	sealed, generation, early := map[string][]uint64{}, s.memoryDir(t), 0
	for life := range lives {
		time.Sleep(time.Duration(random.IntN(150)) * time.Millisecond)
		name := "sealed/in-" + string(rune('a'+life))
		sealed[name] = seals(t, witness, random, name)
		array.change(t, random, uint64(life+1))
		renew(s, random)
		require.Equal(t, generation, s.memoryDir(t))
		late := s.Dial("late")
		for name, want := range sealed {
			g, err := late.Latest(within(t, soon), name)
			require.NoError(t, err, "life %d: %s", life, name)
			got, err := callboard.Values[uint64](g)
			require.NoError(t, err)
			require.Equal(t, want, got, "life %d: %s", life, name)
			g.Release()
		}
		again := newAuthor(t, s, "again")
		require.Equal(t, array.rows, rows[uint64](again, again.query(paths("r", 30, 0, 1)...), raggedName), "life %d", life)
		require.NoError(t, again.stage.Close())
		require.NoError(t, late.Close())
		if life == lives/4 {
			time.Sleep(time.Second)
			early = c.resources(t, s)
		}
	}
	require.Eventually(t, func() bool { return c.resources(t, s) <= early+24 }, soon, 100*time.Millisecond, "descriptors and mappings of one process: some more, since segments come and go, but not some for each life")
	c.end(t)
	s.connect(t)
	require.NoError(t, witness.Close())
	s.eventually(t, soon, "clients stay", func(d description) bool { return len(d.Clients) == 0 })
	s.stop(t)
}

// Twenty kills of a broker at random moments, some of them while it recovers. Rules B1,
// B2, L3, I3; design D9.
func TestTwentyKillsUnderLoad(t *testing.T) {
	lives := 20
	if testing.Short() {
		lives = 6
	}
	restarts(t, lives, goCast, func(s *stage, random *rand.Rand) {
		s.Kill9()
		for random.IntN(4) == 0 {
			s.Launch()
			time.Sleep(time.Duration(random.IntN(30)) * time.Millisecond)
			s.Kill9()
		}
		time.Sleep(time.Duration(random.IntN(60)) * time.Millisecond)
		s.Restart()
	})
}

// A broker that is replaced while everybody works. Rule S1.
func TestTakeoverUnderLoad(t *testing.T) {
	restarts(t, 6, goCast, func(s *stage, _ *rand.Rand) { s.Restart("--takeover") })
}

// A broker that is stopped for longer than a takeover waits goes on with its stage once it
// runs again: the takeover said that it failed, and changed nothing. Rule S1.
func TestTakeoverThatFailedChangesNothing(t *testing.T) {
	t.Parallel() // what it does most is wait
	s := startStage(t)
	client := s.Dial("client")
	unharmed(t, client)
	generation := s.describe(t).Generation
	require.NoError(t, syscall.Kill(s.PID(), syscall.SIGSTOP))
	second := exec.Command(harness.Binary(t), "serve", "--stage", s.Stage, "--shm-dir", s.ShmDir, "--takeover")
	second.Env = s.Env()
	output, err := second.CombinedOutput()
	require.NoError(t, syscall.Kill(s.PID(), syscall.SIGCONT))
	var failed *exec.ExitError
	require.ErrorAs(t, err, &failed, "%s", output)
	require.Equal(t, 1, failed.ExitCode(), "%s", output)
	require.Contains(t, string(output), "stop the running broker instead")

	s.eventually(t, soon, "the stale request is not met", func(description) bool {
		return strings.Contains(s.Output(), "wanted to take this stage over went away")
	})
	unharmed(t, client)
	unharmed(t, s.Dial("another"))
	require.True(t, s.Running())
	require.Equal(t, generation, s.describe(t).Generation)
}
