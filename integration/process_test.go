package integration

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"callboard/integration/harness"
)

// roles are the parts that a process of its own may play.
var roles = map[string]func(*part) error{}

// part is a role's side of its process.
type part struct {
	orders chan string // lines of standard input
	config string
}

// play runs a role until it returns or its standard input ends.
func play(role string) int {
	p := &part{orders: make(chan string, 16), config: os.Getenv(roleEnv + "_CONFIG")}
	run := roles[role]
	if run == nil {
		fmt.Fprintf(os.Stderr, "no role is named %q\n", role)
		return 2
	}
	go func() {
		lines := bufio.NewScanner(os.Stdin)
		for lines.Scan() {
			p.orders <- lines.Text()
		}
		os.Exit(0) // whoever started us is gone
	}()
	if err := run(p); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", role, err)
		return 1
	}
	return 0
}

// read decodes what the role is asked to be.
func (p *part) read(into any) {
	if err := json.Unmarshal([]byte(p.config), into); err != nil {
		panic(err)
	}
}

// say reports one JSON line.
func (p *part) say(v any) {
	line, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	_, _ = os.Stdout.Write(append(line, '\n'))
}

// hear waits for the next order.
func (p *part) hear() string { return <-p.orders }

// spawn starts a role with its configuration in an environment. It is killed at the end
// of the test if it still runs.
func spawn(t *testing.T, role string, config any, env []string) *harness.Process {
	t.Helper()
	return spawnAs(t, role, config, env, func(*exec.Cmd) {})
}

// spawnAs lets the test change how the process is started.
func spawnAs(t *testing.T, role string, config any, env []string, change func(*exec.Cmd)) *harness.Process {
	t.Helper()
	raw, err := json.Marshal(config)
	require.NoError(t, err)
	command := exec.Command(os.Args[0])
	command.Env = append(slices.Clone(env), roleEnv+"="+role, roleEnv+"_CONFIG="+string(raw))
	change(command)
	p := harness.Spawn(t, role, command)
	t.Cleanup(p.Kill)
	return p
}

// expect waits for a report that is this word.
func expect(t *testing.T, p *harness.Process, word string) {
	t.Helper()
	var got string
	p.Hear(soon, &got)
	require.Equal(t, word, got)
}
