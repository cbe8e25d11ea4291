package integration

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	callboard "callboard/clients/go"
	"callboard/control"
	"callboard/integration/harness"
)

// stage is a running broker and what its tests ask it over NATS.
type stage struct {
	*harness.Broker
	nats  *nats.Conn
	names control.Subjects
}

// description is the answer to describe.
type description = control.Description

// startStage runs `callboard serve`, by default with 64 MiB. At the end of the test the
// broker must still serve, unless the test ended it, and leave nothing.
func startStage(t *testing.T, args ...string) *stage {
	t.Helper()
	s := &stage{Broker: harness.Start(t, append([]string{"--memory", "64MiB"}, args...)...)}
	s.connect(t)
	t.Cleanup(func() {
		if s.Running() {
			s.describe(t)
			s.stop(t)
		}
		s.nats.Close()
	})
	return s
}

// connect reads the runtime file anew, as after a restart.
func (s *stage) connect(t *testing.T) {
	t.Helper()
	if s.nats != nil {
		s.nats.Close()
	}
	info, err := control.ReadRuntimeFile(filepath.Join(s.RuntimeDir, control.RuntimeFileName))
	require.NoError(t, err)
	s.nats, err = control.Connect(info, control.RoleFull)
	require.NoError(t, err)
	s.names, err = control.NewSubjects(info.Host, info.Stage)
	require.NoError(t, err)
}

// stop is SIGTERM; nothing may be left then.
func (s *stage) stop(t *testing.T) {
	t.Helper()
	s.nats.Close()
	s.Stop()
	require.Empty(t, s.Residue(), "a broker that stops leaves nothing (field reports A4, A26)")
}

func (s *stage) socket() string { return filepath.Join(s.RuntimeDir, "attach.sock") }

// memoryDir is the directory of the stage's only generation.
func (s *stage) memoryDir(t *testing.T) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(s.ShmDir, "*", s.Stage, "*"))
	require.NoError(t, err)
	require.Len(t, found, 1)
	return found[0]
}

// describe asks over NATS.
func (s *stage) describe(t *testing.T) description {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	var d description
	require.NoError(t, control.Request(ctx, s.nats, s.names.Describe(), control.DescribeRequest{}, &d), "the broker wrote:\n%s", s.Output())
	return d
}

// inUse is how many bytes of the stage's memory lie in blocks.
func inUse(d description) uint64 { return d.Memory.Held - d.Memory.Free }

// eventually waits for a state that describe shows.
func (s *stage) eventually(t *testing.T, limit time.Duration, what string, ok func(description) bool) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for {
		d := s.describe(t)
		if ok(d) {
			return
		}
		if time.Now().After(deadline) {
			require.FailNow(t, what, "not within %v; the stage says %+v", limit, d)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// clientNamed finds an attached client; nil when there is none.
func clientNamed(d description, name string) *control.ClientDescription {
	for i := range d.Clients {
		if d.Clients[i].Name == name {
			return &d.Clients[i]
		}
	}
	return nil
}

// seal advances the floor of everything, or of the attributes named.
func seal(ctx context.Context, s *callboard.Stage, ordinal uint64, names ...string) error {
	o := callboard.SealOptions{Attributes: names}
	if len(names) > 0 {
		o.Scope = callboard.ScopeInclude
	}
	op, err := s.AdvanceWriteFloor(ordinal, o)
	if err != nil {
		return err
	}
	return op.Wait(ctx)
}

// within gives a context for calls that must not hang.
func within(t *testing.T, limit time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	t.Cleanup(cancel)
	return ctx
}

// callboardCommand runs the binary to its end and gives what it wrote and its exit code.
func callboardCommand(t *testing.T, env []string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	c := exec.CommandContext(ctx, harness.Binary(t), args...)
	c.Env = append(os.Environ(), env...)
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	err := c.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	return out.String(), errs.String(), c.ProcessState.ExitCode()
}
