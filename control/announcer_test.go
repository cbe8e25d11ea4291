package control

import (
	"encoding/json"
	"errors"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var testIdentity = Identity{Host: "node7", Stage: "default", Generation: 1 << 60, Broker: math.MaxUint64, Version: "0.1.0"}

// fakePublisher records events; while held, Publish blocks as on a frozen server; while down, it refuses.
type fakePublisher struct {
	mu      sync.Mutex
	hold    sync.Mutex
	down    bool
	refused map[string]bool // subjects
	events  []published
}

type published struct {
	subject string
	data    []byte
}

func (f *fakePublisher) Publish(subject string, data []byte) error {
	f.hold.Lock()
	defer f.hold.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down {
		f.refused[subject] = true
		return errors.New("down")
	}
	f.events = append(f.events, published{subject, data})
	return nil
}

func (f *fakePublisher) setDown(down bool) {
	f.mu.Lock()
	f.down = down
	f.mu.Unlock()
}

func (f *fakePublisher) all() []published {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]published(nil), f.events...)
}

func (f *fakePublisher) wait(t *testing.T, n int) []published {
	t.Helper()
	require.Eventually(t, func() bool { return len(f.all()) >= n }, patience, time.Millisecond)
	return f.all()
}

func startAnnouncer(t *testing.T, publisher Publisher, queue int) *Announcer {
	t.Helper()
	a, err := NewAnnouncer(publisher, AnnouncerOptions{Identity: testIdentity, Queue: queue})
	require.NoError(t, err)
	t.Cleanup(func() { _ = a.Close(patience) })
	return a
}

func decode[T any](t *testing.T, p published) T {
	t.Helper()
	var event T
	require.NoError(t, json.Unmarshal(p.data, &event), "%s", p.data)
	return event
}

// L5: 64-bit values are decimal strings, also at 2^64-1, which no float64 holds.
func TestCommitEventJSONFieldByField(t *testing.T) {
	f := &fakePublisher{}
	a := startAnnouncer(t, f, 0)
	a.Commit(CommitNote{Epoch: math.MaxUint64, StampNS: 5, Floor: 9, Changed: []Change{
		{Attribute: "pose", Column: 3, Floor: 9, OrdinalLowest: 8, OrdinalHighest: 9, Rows: 100, Adopted: true, LayoutGeneration: 2}}})
	p := f.wait(t, 1)[0]
	require.Equal(t, "callboard.node7.default.commit", p.subject)
	var fields map[string]any
	require.NoError(t, json.Unmarshal(p.data, &fields))
	require.IsType(t, "", fields["time_ns"])
	delete(fields, "time_ns")
	require.Equal(t, map[string]any{
		"version": 1.0, "host": "node7", "stage": "default", "generation": "1152921504606846976", "broker": "18446744073709551615",
		"epoch": "18446744073709551615", "seq": "1", "prev_seq": "0", "dropped": "0",
		"floor": "9", "from_epoch": "18446744073709551615", "count": "1", "stamp_ns": "5", "omitted": 0.0,
		"changed": []any{map[string]any{"attribute": "pose", "column": 3.0, "floor": "9", "ordinal_lowest": "8", "ordinal_highest": "9",
			"rows": "100", "adopted": true, "layout_generation": "2"}},
	}, fields)
}

func TestCommitsCoalesceWhileNATSHangs(t *testing.T) {
	f := &fakePublisher{}
	a := startAnnouncer(t, f, 0)
	f.hold.Lock()
	a.Commit(CommitNote{Epoch: 1})
	require.Eventually(t, func() bool { // the first is taken and hangs in Publish
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.commits.count == 0
	}, patience, time.Millisecond)
	changed := make([]Change, 2) // reused by the caller: Commit copies
	for i := uint64(2); i <= 1001; i++ {
		changed[0] = Change{Attribute: "pose", Column: 0, Floor: i, OrdinalLowest: i, OrdinalHighest: i, Rows: 10, Adopted: i%2 == 1}
		changed[1] = Change{Attribute: "mass", Column: 7, Floor: i} // only its floor moves
		if i == 500 {
			changed[1].Rows, changed[1].OrdinalLowest, changed[1].OrdinalHighest = 1, 400, 450
		}
		a.Commit(CommitNote{Epoch: i, StampNS: i * 10, Floor: i, Changed: changed})
	}
	f.hold.Unlock()
	second := decode[CommitEvent](t, f.wait(t, 2)[1])
	require.Equal(t, uint64(2), second.FromEpoch)
	require.Equal(t, uint64(1001), second.Epoch)
	require.Equal(t, uint64(1000), second.Count)
	require.Equal(t, uint64(10010), second.StampNS)
	require.Equal(t, []Change{
		{Attribute: "pose", Column: 0, Floor: 1001, OrdinalLowest: 2, OrdinalHighest: 1001, Rows: 10000, Adopted: true},
		{Attribute: "mass", Column: 7, Floor: 1001, OrdinalLowest: 400, OrdinalHighest: 450, Rows: 1},
	}, second.Changed)
	require.Equal(t, uint64(999), a.Counts().Coalesced)
}

func TestCommitOfMoreColumnsThanFitSaysHowManyAreMissing(t *testing.T) {
	b := newCommitBox()
	note := CommitNote{Epoch: 1}
	for i := range uint32(10) {
		note.Changed = append(note.Changed, Change{Column: i})
	}
	b.merge(&note)
	event := b.event(4)
	require.Len(t, event.Changed, 4)
	require.Equal(t, uint32(6), event.Omitted)
}

// The queue is bounded; what does not fit is counted, told on .health, and leaves a hole that a subscriber of the one
// subject sees too (field report E16).
func TestGroupOverflowIsAGapEverywhere(t *testing.T) {
	const queue, pushed = 8, 30
	f := &fakePublisher{}
	a := startAnnouncer(t, f, queue)
	a.Group(GroupEvent{Attribute: "pose"})
	f.wait(t, 1)
	f.hold.Lock()
	a.Client(ClientEvent{Event: ClientJoin}) // hangs in Publish
	require.Eventually(t, func() bool { a.mu.Lock(); defer a.mu.Unlock(); return len(a.queue) == 0 }, patience, time.Millisecond)
	for i := range uint32(pushed) {
		a.Group(GroupEvent{Attribute: "pose", GroupIndex: i})
	}
	a.Client(ClientEvent{Event: ClientDied}) // has places of its own
	f.hold.Unlock()
	events := f.wait(t, 2+1+queue+1)
	const lost = pushed - queue
	require.Equal(t, uint64(lost), a.Counts().Overflow)

	gap := decode[HealthEvent](t, events[2])
	require.Equal(t, HealthGap, gap.Code)
	require.Equal(t, map[string]Number{"dropped": lost, "dropped_total": lost}, gap.Numbers)
	require.Equal(t, uint64(lost), gap.Dropped)
	require.Equal(t, uint64(2+lost+1), gap.Seq, "dropped events have spent their numbers")

	first := decode[GroupEvent](t, events[0])
	next := decode[GroupEvent](t, events[3])
	require.Equal(t, uint32(0), next.GroupIndex)
	require.NotEqual(t, first.Seq, next.PrevSeq, "a subscriber of this subject alone sees the hole")
	require.Equal(t, uint64(lost), next.Dropped)
	for i := 4; i < 3+queue; i++ {
		e := decode[GroupEvent](t, events[i])
		require.Equal(t, e.Seq-1, e.PrevSeq, "and one hole only")
	}
	died := decode[ClientEvent](t, events[3+queue])
	require.Equal(t, ClientDied, died.Event)
	require.Equal(t, uint64(2), died.PrevSeq, "no client event was lost")
}

// A refused publish is a gap too, and is told as soon as NATS is back although nothing else happens.
func TestOutageIsToldWithoutAnyFurtherEvent(t *testing.T) {
	f := &fakePublisher{down: true, refused: map[string]bool{}}
	a := startAnnouncer(t, f, 0)
	a.Group(GroupEvent{Attribute: "pose"})
	a.Commit(CommitNote{Epoch: 1})
	require.Eventually(t, func() bool { // both; a gap event that is refused counts as failed, too
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.refused["callboard.node7.default.group.pose"] && f.refused["callboard.node7.default.commit"]
	}, patience, time.Millisecond)
	f.setDown(false)
	gap := decode[HealthEvent](t, f.wait(t, 1)[0])
	require.Equal(t, Number(2), gap.Numbers["dropped"])
	time.Sleep(2 * gapRetry)
	require.Len(t, f.all(), 1, "and told once")
	a.Commit(CommitNote{Epoch: 2})
	commit := decode[CommitEvent](t, f.wait(t, 2)[1])
	require.Equal(t, gap.Seq, commit.Seq-1)
	require.NotZero(t, commit.PrevSeq, "its subject had an event that nobody got")
}

func TestANoteWakesASleepingAnnouncer(t *testing.T) {
	f := &fakePublisher{}
	a := startAnnouncer(t, f, 0)
	for i := range 3 {
		require.Eventually(t, func() bool { a.mu.Lock(); defer a.mu.Unlock(); return a.asleep }, patience, 5*time.Millisecond)
		a.Client(ClientEvent{Event: ClientJoin})
		f.wait(t, i+1)
	}
}

func TestCloseDrainsAndSaysBye(t *testing.T) {
	f := &fakePublisher{}
	a := startAnnouncer(t, f, 0)
	for range 100 {
		a.Group(GroupEvent{Attribute: "pose"})
	}
	a.Commit(CommitNote{Epoch: 4})
	require.NoError(t, a.Close(patience))
	events := f.all()
	last := decode[HealthEvent](t, events[len(events)-1])
	require.Equal(t, HealthBye, last.Code)
	require.Equal(t, uint64(102), last.Seq)
	require.Equal(t, uint64(4), last.Epoch)
	a.Commit(CommitNote{Epoch: 5})
	a.Group(GroupEvent{Attribute: "pose"})
	require.NoError(t, a.Close(patience))
	require.Len(t, f.all(), len(events))
}

func TestCloseIsBoundedWhenNATSHangs(t *testing.T) {
	f := &fakePublisher{}
	a, err := NewAnnouncer(f, AnnouncerOptions{Identity: testIdentity})
	require.NoError(t, err)
	f.hold.Lock()
	a.Commit(CommitNote{Epoch: 1})
	require.ErrorContains(t, a.Close(20*time.Millisecond), "NATS took no event for 20ms")
	f.hold.Unlock()
	require.NoError(t, a.Close(patience))
}

func TestAGroupWithoutAttributeIsOurOwnFault(t *testing.T) {
	a := startAnnouncer(t, &fakePublisher{}, 0)
	require.PanicsWithValue(t, "control: group 2 of session 5 announced without an attribute name",
		func() { a.Group(GroupEvent{Session: 5, GroupIndex: 2}) })
}

func warmNote() CommitNote {
	return CommitNote{Epoch: 1, Changed: []Change{
		{Attribute: "a", Column: 0, Rows: 1}, {Attribute: "b", Column: 1, Rows: 1},
		{Attribute: "c", Column: 2, Rows: 1}, {Attribute: "d", Column: 3, Rows: 1}}}
}

// The stage loop's path allocates nothing: the box is merged and emptied in place of the goroutine, which would
// allocate on its own account meanwhile.
func TestCommitAllocatesNothingWhenWarm(t *testing.T) {
	b := newCommitBox()
	note := warmNote()
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		b.merge(&note)
		b.merge(&note)
		b.reset()
	}))
	a := &Announcer{commits: b, kick: make(chan struct{}, 1)}
	require.Zero(t, testing.AllocsPerRun(1000, func() { a.Commit(note) }))
}

func BenchmarkCommitFourColumns(b *testing.B) {
	a, err := NewAnnouncer(&fakePublisher{}, AnnouncerOptions{Identity: testIdentity})
	require.NoError(b, err)
	note := warmNote()
	b.ReportAllocs()
	for b.Loop() {
		note.Epoch++
		a.Commit(note)
	}
	require.NoError(b, a.Close(patience))
}
