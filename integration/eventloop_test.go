package integration

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// A node waits in one event loop for two stages and its input. It hears of every source by itself; a broker that is
// killed and started anew is followed, one that stays away is told, and neither holds up the others. Field
// report E12; rules B1, R4.
func TestOneEventLoopForTwoStagesAndAPipe(t *testing.T) {
	type report struct {
		Source int
		Epoch  uint64
		Line   string
	}
	for _, language := range languages {
		t.Run(language, func(t *testing.T) {
			t.Parallel() // what it does most is wait until a client gives its broker up
			command := program(t, language, "loop")
			stages := []*stage{startStage(t), startStage(t)}
			node := spawnAs(t, language+" loop", nil, stages[0].Env(), func(c *exec.Cmd) {
				c.Path, c.Args = command[0], append(append([]string{}, command...),
					stages[0].RuntimeDir, stages[0].Stage, stages[1].RuntimeDir, stages[1].Stage)
			})
			expect(t, node, "ready")
			next := func() (got report) {
				t.Helper()
				node.Hear(soon, &got)
				return got
			}
			publish := func(source int, value float64) {
				t.Helper()
				s := stages[source].Dial("producer")
				defer func() { require.NoError(t, s.Close()) }()
				_, err := s.Publish(within(t, soon), "x", value)
				require.NoError(t, err)
				require.Equal(t, report{Source: source, Epoch: s.Epoch()}, next())
			}
			tell := func(line string) {
				t.Helper()
				node.Tell(line)
				require.Equal(t, report{Source: 2, Line: line}, next())
			}
			publish(0, 1)
			publish(1, 1)
			publish(1, 2)
			tell("one")
			stages[0].Kill9()
			publish(1, 3)
			tell("two")
			stages[0].Restart()
			stages[0].connect(t)
			publish(0, 2)
			publish(1, 4)
			stages[0].Kill9()
			require.Equal(t, report{Source: 0}, next(), "the session is over")
			publish(1, 5)
			tell("three")
			stages[0].Restart() // for the end of the test
			stages[0].connect(t)
			node.Done()
		})
	}
}
