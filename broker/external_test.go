package broker

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"

	"callboard/control"
	"callboard/control/natstest"
)

func serveNATS(t *testing.T, port int) *server.Server {
	t.Helper()
	return natstest.Serve(t, &server.Options{Port: port, Users: []*server.User{
		{Username: "broker", Password: "p"}, {Username: "watcher", Password: "p"}}})
}

// A stage on a NATS server that somebody else runs: it starts without it, it is found there, and a restart of that server in the middle loses
// events and nothing else. The loss shows in the numbers.
func TestStageOnAnExternalServer(t *testing.T) {
	port := natstest.ReservedPort(t)
	b := startBroker(t, func(c *Config) {
		c.External = &control.External{URL: fmt.Sprintf("nats://broker:p@127.0.0.1:%d", port), Observer: control.Credential{User: "watcher", Password: "p"}}
	})
	p := attachPeer(t, b)
	q := p.query("/a")
	ordinal := uint64(0)
	seal := func() {
		ordinal++
		p.writeSealed(ordinal, q, "x", float32s, 1, floats(float32(ordinal)))
	}
	seal() // the stage works without NATS

	first := serveNATS(t, port)
	require.Eventually(t, b.nats.Connected, patience, 5*time.Millisecond)
	c, subjects := observing(t, b)
	commits, err := c.SubscribeSync(subjects.Commit())
	require.NoError(t, err)
	require.NoError(t, c.Flush())
	next := func() (e control.CommitEvent) {
		require.Eventually(t, func() bool {
			seal()
			m, err := commits.NextMsg(100 * time.Millisecond)
			return err == nil && json.Unmarshal(m.Data, &e) == nil
		}, patience, time.Millisecond)
		return e
	}
	before := next()
	var r control.ReadResponse
	require.NoError(t, control.Request(asking(t), c, subjects.Read(), control.ReadRequest{Attribute: "x"}, &r))

	first.Shutdown()
	first.WaitForShutdown()
	for range 5 {
		seal() // nobody waits for NATS
		time.Sleep(5 * time.Millisecond)
	}
	serveNATS(t, port)
	after := next()
	require.NotEqual(t, before.Seq, after.PrevSeq, "the loss cannot be seen")
	require.Greater(t, after.Dropped, before.Dropped)
	require.Eventually(t, func() bool {
		return control.Request(asking(t), c, subjects.Read(), control.ReadRequest{Attribute: "x"}, &r) == nil && r.Floor == ordinal
	}, patience, 20*time.Millisecond)
	require.Equal(t, fmt.Sprintf("[%d]", ordinal), string(r.Groups[0].Values))
}

func TestStageWithWrongCredentialsDoesNotStart(t *testing.T) {
	ns := serveNATS(t, 0)
	t.Setenv("CALLBOARD_RUNTIME_DIR", t.TempDir()+"/run")
	_, err := Start(Config{Stage: "test", ShmDir: t.TempDir(), MemoryBytes: 64 << 20, External: &control.External{URL: "nats://broker:wrong@" + ns.Addr().String()}})
	require.ErrorContains(t, err, "Authorization Violation")
	require.ErrorContains(t, err, "check the credentials")
}
