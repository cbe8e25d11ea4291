package main

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"callboard/control"
)

// event makes a message as a broker publishes it.
func event(t *testing.T, subject string, broker, seq uint64, value any) (string, []byte) {
	t.Helper()
	data, err := json.Marshal(value)
	require.NoError(t, err)
	var fields map[string]any
	require.NoError(t, json.Unmarshal(data, &fields))
	header, err := json.Marshal(control.Header{Source: control.Identity{Host: "h", Stage: "s", Generation: 1, Broker: broker}.Source(seq), Seq: seq})
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(header, &fields))
	data, err = json.Marshal(fields)
	require.NoError(t, err)
	return "callboard.h.s." + subject, data
}

func commitOf(names ...string) control.CommitEvent {
	commit := control.CommitEvent{Count: 1}
	for _, name := range names {
		commit.Changed = append(commit.Changed, control.Change{Attribute: name, Floor: 7, Rows: 1, Adopted: true})
	}
	return commit
}

func newTestWatcher(out *bytes.Buffer) *watcher {
	return &watcher{notes: out, show: lineWriter(out, ""), enough: make(chan struct{})}
}

// docs/control-plane.md, "Order and loss": a number left out is a loss, a number seen is a repeat, another broker begins anew.
func TestWatchShowsALossAndNoRepeatsAndNoLossAtAnotherBroker(t *testing.T) {
	var out bytes.Buffer
	w := newTestWatcher(&out)
	w.take(event(t, "commit", 1, 5, commitOf("pose")))
	require.NotContains(t, out.String(), "GAP", "who comes later has lost nothing")
	w.take(event(t, "commit", 1, 6, commitOf("pose")))
	require.NotContains(t, out.String(), "GAP")
	w.take(event(t, "commit", 1, 9, commitOf("pose")))
	require.Contains(t, out.String(), "GAP     2 events lost between 6 and 9")

	out.Reset()
	w.take(event(t, "commit", 1, 9, commitOf("pose")))
	require.Empty(t, out.String(), "a repeat")
	w.take(event(t, "commit", 2, 1, commitOf("pose")))
	require.NotContains(t, out.String(), "GAP")
	require.Contains(t, out.String(), "pose@7 1 row adopted")
}

func TestWatchOfOneAttributeShowsItsLossesButNotOthersEvents(t *testing.T) {
	var out bytes.Buffer
	w := newTestWatcher(&out)
	w.show = lineWriter(&out, "pose")
	w.take(event(t, "commit", 1, 1, commitOf("mass")))
	w.take(event(t, "group.mass", 1, 2, control.GroupEvent{Attribute: "mass"}))
	w.take(event(t, "client", 1, 3, control.ClientEvent{Event: control.ClientJoin}))
	require.Empty(t, out.String())
	w.take(event(t, "commit", 1, 4, commitOf("mass", "pose")))
	require.Contains(t, out.String(), "pose@7")
	require.NotContains(t, out.String(), "mass")
	require.EqualValues(t, 1, w.shown)
}

func TestWatchEndsAfterCountAndSeesGoodbye(t *testing.T) {
	var out bytes.Buffer
	w := newTestWatcher(&out)
	w.count = 2
	require.False(t, w.take(event(t, "commit", 1, 1, commitOf("pose"))))
	require.True(t, w.take(event(t, "health", 1, 2, control.HealthEvent{Level: control.LevelInfo, Code: control.HealthBye})))
	<-w.enough
	w.take(event(t, "commit", 1, 3, commitOf("pose")))
	require.EqualValues(t, 2, w.shown, "what comes after the last one is not shown")
}

// A peer's nonsense is told and passed over; the next event is shown.
func TestWatchSurvivesWhatItDoesNotUnderstand(t *testing.T) {
	var out bytes.Buffer
	w := newTestWatcher(&out)
	w.take("callboard.h.s.commit", []byte("{"))
	w.take("callboard.h.s.commit", []byte(`{"version":9}`))
	w.take("callboard.h.s.rpc.describe", []byte("{}"))
	require.Contains(t, out.String(), "version 9")
	require.Zero(t, w.shown)
	w.take(event(t, "commit", 1, 1, commitOf("a", "b", "c", "d", "e", "f")))
	require.Contains(t, out.String(), "and 2 others")
}

// Every line of --json is one JSON value, and the demo's observer understands all of them.
func TestJSONLinesOfWatchAreWhatTheObserverCounts(t *testing.T) {
	var out bytes.Buffer
	w := newTestWatcher(&out)
	w.show = jsonWriter(&out, "")
	w.take(event(t, "commit", 1, 1, commitOf("pose")))
	coalesced := commitOf("pose")
	coalesced.Count = 3
	w.take(event(t, "commit", 1, 4, coalesced))
	w.take(event(t, "group.camera/rgb%20100%25", 1, 5, control.GroupEvent{Attribute: "camera/rgb 100%"}))

	var c counter
	for line := range bytes.Lines(out.Bytes()) {
		l, said := c.understand(string(line), false)
		require.False(t, said, l.Failure)
	}
	events, commits, _, groups, gaps := c.counts()
	require.Equal(t, []uint64{3, 4, 1, 2}, []uint64{events, commits, groups, gaps})
	l, said := c.understand("no JSON", false)
	require.True(t, said)
	require.NotEmpty(t, l.Failure)
}
