package ring

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"callboard/protocol"
)

// The small-scope test runs the real code through every order in which a client
// and a broker can take their steps, a step being one call, on rings so small that
// every index wraps. Orders that lead to the same state are followed once. (What
// may happen inside a call is the business of ring/model.)

// scopeOps is how many ops the client submits in all.
const scopeOps = 7

// scopeState is all that decides what later calls do; ring contents follow from it.
type scopeState struct {
	submitted, taken, sqHeadSeen, cqTailSeen                uint64
	tailSeen, headSeen, drained, completed, published, last uint64
}

func (p *pair) scopeState() scopeState {
	c, s := p.client, p.server
	return scopeState{
		c.submitted.Load(), c.taken.Load(), c.sqHeadSeen, c.cqTailSeen,
		s.tailSeen, s.headSeen, s.drained, s.completed, s.published, s.lastOpID,
	}
}

// scopeSteps are the calls. Each checks its answer against the counts before it and
// returns the outcome's name, or "" where the step is not possible.
var scopeSteps = []struct {
	name string
	run  func(p *pair) (outcome string, err error)
}{
	{"submit", func(p *pair) (string, error) {
		before := p.scopeState()
		if before.submitted == scopeOps {
			return "", nil
		}
		e := op(before.submitted + 1)
		err := p.client.Submit(&e)
		ringFull := before.submitted-before.drained >= uint64(p.layout.SqEntries)
		manyOut := before.submitted-before.taken >= uint64(p.layout.CqEntries)
		switch {
		case err == nil && !ringFull && !manyOut:
			return "taken", nil
		case errors.Is(err, ErrFull) && manyOut:
			return "refused: CqEntries outstanding", nil
		case errors.Is(err, ErrFull) && ringFull:
			return "refused: ring full", nil
		}
		return "", fmt.Errorf("submit answered %v, ring full %v, too many outstanding %v", err, ringFull, manyOut)
	}},
	{"drain", func(p *pair) (string, error) {
		before := p.scopeState()
		var dst [1]protocol.SubmissionEntry
		pending := p.server.Pending()
		n, err := p.server.Drain(dst[:])
		switch {
		case err != nil:
			return "", fmt.Errorf("an honest client was refused: %w", err)
		case (n == 1) != (before.submitted > before.drained) || pending != (n == 1):
			return "", fmt.Errorf("drain found %d, pending %v", n, pending)
		case n == 0:
			return "empty", nil
		case dst[0] != op(before.drained+1):
			return "", fmt.Errorf("drained op %d in place of %d", dst[0].OpID, before.drained+1)
		}
		return "one", nil
	}},
	{"complete", func(p *pair) (string, error) {
		if p.server.Outstanding() == 0 {
			return "", nil
		}
		c := done(p.server.completed + 1)
		p.server.Complete(&c)
		return "written", nil
	}},
	{"flush", func(p *pair) (string, error) {
		before := p.scopeState()
		heard := p.client.Listen()
		p.server.Flush()
		news := before.completed > before.published
		if (p.client.Listen() != heard) != news {
			return "", fmt.Errorf("news %v, but the bell says otherwise", news)
		}
		if news {
			return "published", nil
		}
		return "nothing", nil
	}},
	{"poll", func(p *pair) (string, error) {
		before := p.scopeState()
		var c protocol.CompletionEntry
		ok, err := p.client.Poll(&c)
		switch {
		case err != nil:
			return "", fmt.Errorf("an honest broker was refused: %w", err)
		case ok != (before.published > before.taken):
			return "", fmt.Errorf("poll found %v", ok)
		case !ok:
			return "empty", nil
		case c != done(before.taken+1):
			return "", fmt.Errorf("polled op %d in place of %d", c.OpID, before.taken+1)
		}
		return "one", nil
	}},
}

// TestEveryOrderOfCallsOnTinyRings checks invariant K2 and every answer in every
// reachable state, and prints how often each outcome was seen.
func TestEveryOrderOfCallsOnTinyRings(t *testing.T) {
	for _, sizes := range [][2]uint32{{1, 1}, {1, 2}, {2, 1}, {2, 2}, {2, 4}, {4, 2}} {
		p := newPair(t, sizes[0], sizes[1])
		outcomes := map[string]int{}
		paths := map[scopeState][]int{p.scopeState(): nil}
		queue := []scopeState{p.scopeState()}
		for ; len(queue) > 0; queue = queue[1:] {
			path := paths[queue[0]]
			for step := range scopeSteps {
				p.reset(t)
				for _, earlier := range path {
					_, _ = scopeSteps[earlier].run(p)
				}
				require.Equal(t, queue[0], p.scopeState(), "the same steps lead to the same state")
				outcome, err := scopeSteps[step].run(p)
				require.NoError(t, err, "rings %v: %s", sizes, scopePath(append(slices.Clone(path), step)))
				if outcome == "" {
					continue
				}
				outcomes[scopeSteps[step].name+": "+outcome]++
				after := p.scopeState()
				checkCounts(t, p, after)
				if _, known := paths[after]; !known {
					paths[after] = append(slices.Clone(path), step)
					queue = append(queue, after)
				}
			}
		}
		var table strings.Builder
		for _, name := range slices.Sorted(maps.Keys(outcomes)) {
			fmt.Fprintf(&table, "\n  %8d  %s", outcomes[name], name)
		}
		t.Logf("SQ %d, CQ %d: %d states%s", sizes[0], sizes[1], len(paths), table.String())
		for _, name := range []string{"submit: taken", "drain: one", "drain: empty", "complete: written",
			"flush: published", "flush: nothing", "poll: one", "poll: empty", "submit: refused: CqEntries outstanding"} {
			require.NotZero(t, outcomes[name], "rings %v never showed %q: the test does not test it", sizes, name)
		}
		if sizes[0] < sizes[1] {
			require.NotZero(t, outcomes["submit: refused: ring full"])
		}
	}
}

// checkCounts is invariant K2, on the private counts and on the shared words.
func checkCounts(t *testing.T, p *pair, s scopeState) {
	require.True(t, s.submitted >= s.drained && s.drained >= s.completed && s.completed >= s.published && s.published >= s.taken, "%+v", s)
	require.LessOrEqual(t, s.submitted-s.drained, uint64(p.layout.SqEntries), "%+v", s)
	require.LessOrEqual(t, s.submitted-s.taken, uint64(p.layout.CqEntries), "%+v", s)
	control := p.control()
	require.Equal(t, [4]uint64{s.submitted, s.drained, s.published, s.taken},
		[4]uint64{control.SqTail, control.SqHead, control.CqTail, control.CqHead})
}

func scopePath(path []int) string {
	names := make([]string, len(path))
	for i, step := range path {
		names[i] = scopeSteps[step].name
	}
	return strings.Join(names, ", ")
}
