package integration

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	callboard "callboard/clients/go"
	"callboard/clients/go/workers"
	"callboard/integration/harness"
)

func init() {
	roles["share-owner"] = shareOwner
	roles["share-worker"] = shareWorker
}

const (
	sharePrims = 96
	shareRows  = 8
)

// shareOwner opens a session for each order, and says when all of it is sealed.
func shareOwner(p *part) error {
	ctx, s, err := dialRole("share-owner", false)
	if err != nil {
		return err
	}
	paths := make([]string, sharePrims)
	for i := range paths {
		paths[i] = fmt.Sprintf("/share/%d", i)
	}
	q, err := s.QueryFromPathList(ctx, paths)
	if err != nil {
		return err
	}
	for ordinal := uint64(1); p.hear() == "open"; ordinal++ {
		m, err := s.MapAttribute(ctx, q, "shared", callboard.MapOptions{Ordinal: ordinal, DType: callboard.DType{Code: 1, Bits: 64, Lanes: 1}, GroupRows: shareRows})
		if err != nil {
			return err
		}
		p.say("opened")
		if err := m.Commit(ctx); err != nil {
			return err
		}
		seal, err := s.AdvanceWriteFloor(ordinal, callboard.SealOptions{})
		if err == nil {
			err = seal.Wait(ctx)
		}
		if err != nil {
			return err
		}
		p.say("sealed")
	}
	return nil
}

// filled is what a worker says of a group.
type filled struct{ Name, Index, Attempt, Ordinal uint64 }

// shareWorker fills groups with what their prims and ordinal say. Where Hold is set it stops in the midst of its first.
func shareWorker(p *part) error {
	var config struct {
		Name uint64
		Hold bool
	}
	p.read(&config)
	ctx, s, err := dialRole(fmt.Sprint("share-worker-", config.Name), false)
	if err != nil {
		return err
	}
	p.say("working")
	return workers.WorkOn(ctx, s, "shared", func(g *callboard.MapGroup) error {
		values, err := callboard.Values[uint64](g)
		if err != nil {
			return err
		}
		for i := range values {
			values[i] = 0xdead
			if config.Hold && i == shareRows/2 {
				p.say(filled{config.Name, uint64(g.Index()), uint64(g.Attempt()), g.Ordinal()})
				p.hear()
			}
		}
		for i, prim := range g.Prims() {
			values[i] = prim ^ g.Ordinal()<<40
		}
		p.say(filled{config.Name, uint64(g.Index()), uint64(g.Attempt()), g.Ordinal()})
		return nil
	})
}

// One owner and three workers, all processes, over NATS. One worker is killed with a half-filled group: another fills it
// as attempt 2, and the result is exact to the bit. One starts after everything was announced, and finds groups all the
// same. No segments are left behind, however many sessions follow. Rules M2, I3; behaviour 192.
func TestWorkerKilledWhileItHoldsAGroup(t *testing.T) {
	s := startStage(t, "--memory", "256MiB")
	reader := s.Dial("reader")
	owner := spawn(t, "share-owner", nil, s.Env())
	worker := func(name int, hold bool) *harness.Process {
		p := spawn(t, "share-worker", map[string]any{"Name": name, "Hold": hold}, s.Env())
		expect(t, p, "working")
		return p
	}
	held := worker(1, true)
	owner.Tell("open")
	expect(t, owner, "opened")
	var stuck filled
	held.Hear(soon, &stuck)
	require.EqualValues(t, 1, stuck.Attempt)
	workers := []*harness.Process{worker(2, false), worker(3, false)} // announcements came before they did
	got := map[uint64]filled{}
	take := func(ordinal uint64) {
		for ; ; time.Sleep(time.Millisecond) {
			for _, w := range workers {
				for len(w.Lines()) > 0 {
					var f filled
					w.Hear(soon, &f)
					require.NotContains(t, got, f.Index, "a group is filled once")
					require.Equal(t, ordinal, f.Ordinal)
					got[f.Index] = f
				}
			}
			if len(got) == sharePrims/shareRows {
				return
			}
			if ordinal == 1 && len(got) == sharePrims/shareRows-1 && held != nil {
				list, err := reader.ListGroups(within(t, soon), "shared")
				require.NoError(t, err)
				require.Empty(t, list, "what is left is held")
				require.Zero(t, reader.Epoch())
				held.Kill()
				held = nil
			}
		}
	}
	take(1)
	expect(t, owner, "sealed")
	require.EqualValues(t, 2, got[stuck.Index].Attempt)
	exact(t, reader, 1)

	segments := func() int {
		found, err := filepath.Glob(filepath.Join(s.memoryDir(t), "segment-*"))
		require.NoError(t, err)
		return len(found)
	}
	after := 0
	for ordinal := uint64(2); ordinal <= 20; ordinal++ {
		clear(got)
		owner.Tell("open")
		expect(t, owner, "opened")
		take(ordinal)
		expect(t, owner, "sealed")
		exact(t, reader, ordinal)
		if ordinal == 10 {
			after = segments()
		}
	}
	require.LessOrEqual(t, segments(), after, "sessions use the same memory again")
	for _, p := range append(slices.Clone(workers), owner) {
		p.Kill()
	}
	d := s.settled(t, "reader")
	require.LessOrEqual(t, segments(), after)
	require.Less(t, inUse(d), uint64(8<<20))
}

// exact reads what the workers wrote at an ordinal.
func exact(t *testing.T, s *callboard.Stage, ordinal uint64) {
	t.Helper()
	ctx := context.Background()
	paths := make([]string, sharePrims)
	for i := range paths {
		paths[i] = fmt.Sprintf("/share/%d", i)
	}
	q, err := s.QueryFromPathList(ctx, paths)
	require.NoError(t, err)
	defer q.Release()
	r, err := s.ReadAttributes(ctx, q, []string{"shared"}, callboard.ReadOptions{})
	require.NoError(t, err)
	defer r.Release()
	g, err := r.Group("shared")
	require.NoError(t, err)
	defer g.Release()
	require.Equal(t, ordinal, g.Ordinal())
	values, err := callboard.Values[uint64](g)
	require.NoError(t, err)
	require.Equal(t, q.Prims(), g.Prims())
	for i, prim := range g.Prims() {
		require.Equal(t, prim^ordinal<<40, values[g.Row(i)])
	}
}
