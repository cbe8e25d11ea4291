package gpu

import (
	"encoding/json"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"callboard/integration/harness"
)

// patience bounds what must happen some time.
const patience = 60 * time.Second

// process is a client as its test sees it.
type process struct {
	*harness.Process
	t      *testing.T
	killed bool
}

// spawn starts a client, which is attached when this returns.
func spawn(t *testing.T, name string, env []string) *process {
	t.Helper()
	command := exec.Command(os.Args[0])
	command.Env = append(env, roleEnv+"="+name)
	p := &process{Process: harness.Spawn(t, name, command), t: t}
	require.Empty(t, p.hear().Error)
	return p
}

// tell gives an order without waiting for its report.
func (p *process) tell(o order) {
	p.t.Helper()
	raw, err := json.Marshal(o)
	require.NoError(p.t, err)
	p.Tell(string(raw))
}

// hear waits for the next report.
func (p *process) hear() (r report) {
	p.t.Helper()
	p.Hear(patience, &r)
	return r
}

// try gives an order and its report, an error or not.
func (p *process) try(o order) report {
	p.t.Helper()
	p.tell(o)
	return p.hear()
}

// do is try of what must succeed.
func (p *process) do(o order) report {
	p.t.Helper()
	r := p.try(o)
	require.Empty(p.t, r.Error, "%s: %+v", p.Name, o)
	return r
}

// refused is try of what must fail, with a kind and some words.
func (p *process) refused(o order, kind string, words ...string) {
	p.t.Helper()
	r := p.try(o)
	require.Equal(p.t, kind, r.Kind, "%s: %+v: %s", p.Name, o, r.Error)
	for _, word := range words {
		require.Contains(p.t, r.Error, word)
	}
}

// kill is kill -9.
func (p *process) kill() {
	p.t.Helper()
	p.killed = true
	p.Kill()
}

// end wants a client that was not killed to give everything back and to exit when its input ends.
func (p *process) end() {
	p.t.Helper()
	if !p.killed {
		p.Done()
	}
}
