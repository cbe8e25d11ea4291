package integration

import (
	"fmt"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	callboard "callboard/clients/go"
	"callboard/integration/harness"
)

// The broker is killed twenty times under producers and followers in C and in Python. They
// live: a follower never hears of it and sees whole ticks, none of them twice in the wrong
// order; a producer hears BROKER_RESTARTED, and what it heard to be sealed is there at the
// end, as it was. Design D9, rules B1, I3.
func TestTwentyKillsUnderProducersAndFollowersOfEveryLanguage(t *testing.T) {
	const kills = 20
	s := startStage(t)
	clients := map[string][2]*harness.Process{}
	for _, language := range languages {
		command := program(t, language, "restart")
		start := func(role string) *harness.Process {
			p := spawnAs(t, language+" "+role, nil, s.Env(), func(c *exec.Cmd) {
				c.Path, c.Args = command[0], append(append([]string{}, command...), role, "restart/"+language)
			})
			expect(t, p, "ready")
			return p
		}
		clients[language] = [2]*harness.Process{start("produce"), start("follow")}
	}
	reader := s.Dial("reader")
	floors := map[string]uint64{}
	goOn := func() { // each producer, by at least one tick
		for _, language := range languages {
			require.Eventually(t, func() bool {
				floor, err := reader.WriteFloor("restart/" + language)
				if err != nil || floor <= floors[language] {
					return false
				}
				floors[language] = floor
				return true
			}, soon, 10*time.Millisecond, "%s stands at tick %d", language, floors[language])
		}
	}
	for range kills {
		goOn()
		time.Sleep(100 * time.Millisecond)
		s.Kill9()
		s.Restart()
	}
	goOn()
	s.connect(t)
	paths := make([]string, 64)
	for i := range paths {
		paths[i] = fmt.Sprintf("/row/%d", i)
	}
	rows, err := reader.QueryFromPathList(within(t, soon), paths)
	require.NoError(t, err)
	defer rows.Release()
	for _, language := range languages {
		var made struct{ Ticks, Restarted, Maybe int64 }
		var seen struct{ Reads, Last int64 }
		producer, follower := clients[language][0], clients[language][1]
		producer.End()
		producer.Hear(soon, &made)
		follower.End()
		follower.Hear(soon, &seen)
		producer.Done()
		follower.Done()
		t.Logf("%s: %d ticks, %d times BROKER_RESTARTED, %d of them maybe sealed; %d reads, the last of tick %d",
			language, made.Ticks, made.Restarted, made.Maybe, seen.Reads, seen.Last)
		require.Greater(t, made.Ticks, int64(kills))
		require.Greater(t, made.Restarted, int64(0))
		require.Positive(t, seen.Reads)
		require.Equal(t, made.Ticks, seen.Last, "it follows to the end")
		for _, name := range []string{"restart/" + language, "restart/" + language + "/map"} {
			floor, err := reader.WriteFloor(name)
			require.NoError(t, err)
			require.EqualValues(t, made.Ticks, floor)
			read, err := reader.ReadAttributes(t.Context(), rows, []string{name}, callboard.ReadOptions{})
			require.NoError(t, err)
			groups := 0
			for group, err := range read.Groups() {
				require.NoError(t, err)
				values, err := callboard.Values[int64](group)
				require.NoError(t, err)
				require.Equal(t, slices.Repeat([]int64{made.Ticks}, len(paths)), values)
				group.Release()
				groups++
			}
			require.Equal(t, 1, groups)
		}
	}
}
