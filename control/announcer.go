package control

import (
	"encoding/json"
	"fmt"
	"sync"
	"time"
)

// Limits of the announcer where the options leave them open.
const (
	DefaultQueue     = 1024             // group events waiting
	noticeReserve    = 256              // further places that only client and health events may take
	defaultInterval  = time.Millisecond // between two looks while there is something to say
	quietBeforeSleep = 50 * time.Millisecond
	gapRetry         = 50 * time.Millisecond
	maxChanges       = 2048 // columns in one commit event: about 0.6 MiB of NATS's 1 MiB
	maxSubjects      = 1 << 16
)

// Publisher is what the announcer needs of a NATS connection. Publish may block; it must not keep data.
type Publisher interface {
	Publish(subject string, data []byte) error
}

// AnnouncerOptions say whose events these are and how many may wait.
type AnnouncerOptions struct {
	Identity Identity
	Epoch    uint64        // the epoch that the stage starts with, after recovery
	Queue    int           // group events that may wait; 0: DefaultQueue
	Interval time.Duration // between two commit events at least; 0: 1 ms
}

// Announcer publishes events on a goroutine of its own. Commit, Group, Client and Health only store, under one mutex that
// is held for a copy; they may be called from any goroutine.
//
// While there is something to say the goroutine looks every millisecond, because waking it by a channel would cost the
// stage loop some 3 µs each time. After 50 ms of silence it sleeps until the next note wakes it, once: an idle stage
// costs no processor time at all, and the wake-up is paid at most 20 times a second.
type Announcer struct {
	publisher Publisher
	subjects  Subjects
	identity  Identity
	limit     int
	interval  time.Duration

	mu       sync.Mutex
	epoch    uint64     // newest noted
	commits  *commitBox // merging
	queue    []queued   // waiting, oldest first
	overflow map[Kind]uint64
	asleep   bool // the goroutine waits for kick
	closed   bool
	counts   AnnouncerCounts

	kick chan struct{} // capacity 1
	stop chan struct{}
	done chan struct{}

	// Below: the goroutine's own.
	spareCommits *commitBox
	spareQueue   []queued
	seq          uint64
	last         map[string]uint64 // subject → seq of its newest event
	lostUpTo     map[Kind]uint64   // seq of the newest event of a kind that overflowed, subject unknown
	dropped      uint64            // cumulative
	reported     uint64            // of dropped, told by a gap event that was sent
	lastGapTry   time.Time
}

type queued struct {
	kind  Kind
	event event
}

// AnnouncerCounts are cumulative since the announcer began.
type AnnouncerCounts struct {
	Commits   uint64 // noted
	Coalesced uint64 // of Commits, announced inside another's event
	Sent      uint64 // events handed to NATS
	Overflow  uint64 // events dropped because the queue was full
	Failed    uint64 // events that NATS refused: no connection
}

// NewAnnouncer starts the goroutine. Close ends it.
func NewAnnouncer(publisher Publisher, options AnnouncerOptions) (*Announcer, error) {
	subjects, err := NewSubjects(options.Identity.Host, options.Identity.Stage)
	if err != nil {
		return nil, fmt.Errorf("starting the announcer: %w", err)
	}
	a := &Announcer{
		publisher: publisher, subjects: subjects, identity: options.Identity,
		limit: options.Queue, interval: options.Interval, epoch: options.Epoch,
		commits: newCommitBox(), spareCommits: newCommitBox(),
		overflow: map[Kind]uint64{}, last: map[string]uint64{}, lostUpTo: map[Kind]uint64{},
		kick: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
	}
	if a.limit <= 0 {
		a.limit = DefaultQueue
	}
	if a.interval <= 0 {
		a.interval = defaultInterval
	}
	go a.run()
	return a, nil
}

// Commit notes a seal. Unannounced commits merge: the newest state wins, the changed columns add up.
func (a *Announcer) Commit(note CommitNote) {
	a.mu.Lock()
	if a.closed {
		a.mu.Unlock()
		return
	}
	a.epoch = note.Epoch
	a.commits.merge(&note)
	a.counts.Commits++
	a.unlockAndWake()
}

// Group notes that a map group waits to be filled. When the queue is full the event is dropped and counted. A group that
// is gone before its turn comes, within a millisecond or so, is left out: nobody could do anything about it, and a
// producer that maps and unmaps all the time would make the announcer the busiest part of the broker.
func (a *Announcer) Group(e GroupEvent) {
	if e.Attribute == "" {
		panic(fmt.Sprintf("control: group %d of session %d announced without an attribute name", e.GroupIndex, e.Session))
	}
	a.push(KindGroup, &e, a.limit)
}

// Client notes that a client came or went.
func (a *Announcer) Client(e ClientEvent) { a.push(KindClient, &e, a.limit+noticeReserve) }

// Health notes something for operators. Its map belongs to the announcer afterwards.
func (a *Announcer) Health(e HealthEvent) { a.push(KindHealth, &e, a.limit+noticeReserve) }

func (a *Announcer) push(kind Kind, e event, limit int) {
	a.mu.Lock()
	if a.closed {
		a.mu.Unlock()
		return
	}
	if len(a.queue) >= limit {
		a.overflow[kind]++
		a.counts.Overflow++
	} else {
		e.header().Epoch = a.epoch
		a.queue = append(a.queue, queued{kind, e})
	}
	a.unlockAndWake()
}

func (a *Announcer) unlockAndWake() {
	wake := a.asleep
	a.asleep = false
	a.mu.Unlock()
	if wake {
		select {
		case a.kick <- struct{}{}:
		default:
		}
	}
}

// Counts returns the counters so far.
func (a *Announcer) Counts() AnnouncerCounts {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.counts
}

// Close announces what is noted so far and a last health event "bye", and ends the goroutine. It waits at most as long as
// given; an error means that a publish hung and events may be lost. Later notes are ignored. Close may be called twice.
func (a *Announcer) Close(wait time.Duration) error {
	a.mu.Lock()
	if !a.closed {
		a.closed = true
		close(a.stop)
	}
	a.mu.Unlock()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-a.done:
		return nil
	case <-timer.C:
		return fmt.Errorf("closing the announcer: NATS took no event for %v, what was not announced is lost", wait)
	}
}

func (a *Announcer) run() {
	defer close(a.done)
	timer := time.NewTimer(a.interval)
	defer timer.Stop()
	lastActive := time.Now()
	for {
		// A stop is looked at before the notes: whatever was stored before it is then announced by this round.
		stopping := false
		select {
		case <-a.stop:
			stopping = true
		default:
		}
		if a.round() {
			lastActive = time.Now()
		}
		if stopping {
			a.send(KindHealth, a.subjects.Health(), &HealthEvent{
				Header: at(a.epochNow()), Level: LevelInfo, Code: HealthBye, Text: "this broker ends", Numbers: map[string]Number{},
			})
			return
		}
		next := a.interval
		if time.Since(lastActive) >= quietBeforeSleep {
			if a.fallAsleep() {
				select {
				case <-a.kick:
				case <-a.stop:
				}
				continue
			}
			next = gapRetry // only an untold gap keeps it awake
		}
		timer.Reset(next)
		select {
		case <-timer.C:
		case <-a.stop:
		}
	}
}

// fallAsleep is the second half of a hand-shake: the mark is set under the mutex only when nothing waits, and every note
// looks at the mark under the same mutex. So no note is left lying.
func (a *Announcer) fallAsleep() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.commits.count > 0 || len(a.queue) > 0 || len(a.overflow) > 0 || a.dropped != a.reported {
		return false
	}
	a.asleep = true
	return true
}

func (a *Announcer) epochNow() uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.epoch
}

// round announces all that is noted: queued events first, each with the epoch it was noted under, then the merged
// commit, whose epoch is not below any of theirs. It reports whether there was anything.
func (a *Announcer) round() bool {
	a.mu.Lock()
	queue, commits := a.queue, a.commits
	a.queue, a.commits = a.spareQueue[:0], a.spareCommits
	for kind, n := range a.overflow {
		// They would have come after what is queued now. Numbers are spent on them, so that the gap shows.
		a.dropped += n
		a.seq += n
		a.lostUpTo[kind] = a.seq
	}
	clear(a.overflow)
	epoch := a.epoch
	a.mu.Unlock()

	a.reportGap(epoch)
	for _, q := range queue {
		if group, ok := q.event.(*GroupEvent); ok && group.Gone != nil && group.Gone() {
			continue
		}
		subject, err := a.subjectOf(q)
		if err != nil { // a name that no subject can carry: told as a gap
			a.mu.Lock()
			a.counts.Failed++
			a.mu.Unlock()
			a.dropped++
			continue
		}
		a.send(q.kind, subject, q.event)
	}
	if commits.count > 0 {
		a.send(KindCommit, a.subjects.Commit(), commits.event(maxChanges))
		a.mu.Lock()
		a.counts.Coalesced += commits.count - 1
		a.mu.Unlock()
	}
	any := len(queue) > 0 || commits.count > 0
	clear(queue)
	commits.reset()
	a.spareQueue, a.spareCommits = queue, commits
	return any
}

func (a *Announcer) subjectOf(q queued) (string, error) {
	switch q.kind {
	case KindClient:
		return a.subjects.Client(), nil
	case KindHealth:
		return a.subjects.Health(), nil
	}
	return a.subjects.Group(q.event.(*GroupEvent).Attribute)
}

// reportGap tells of losses on the health subject, again and again until NATS takes it.
func (a *Announcer) reportGap(epoch uint64) {
	if a.dropped == a.reported || time.Since(a.lastGapTry) < gapRetry {
		return
	}
	a.lastGapTry = time.Now()
	lost := a.dropped
	if a.send(KindHealth, a.subjects.Health(), &HealthEvent{
		Header: at(epoch), Level: LevelWarning, Code: HealthGap,
		Text:    fmt.Sprintf("%d events were dropped: subscribers resync with %s", lost-a.reported, a.subjects.Describe()),
		Numbers: map[string]Number{"dropped": Number(lost - a.reported), "dropped_total": Number(lost)},
	}) {
		a.reported = lost
	}
}

// at begins the header of an event that tells of an epoch; send fills in the rest.
func at(epoch uint64) Header { return Header{Source: Source{Epoch: epoch}} }

// send numbers an event and publishes it. A refused event has spent its number and counts as dropped, except a gap
// event: it is tried again, and would count itself for ever.
func (a *Announcer) send(kind Kind, subject string, e event) bool {
	if len(a.last) >= maxSubjects {
		// Forget; every group subscriber sees one gap too many and resyncs.
		clear(a.last)
		for _, k := range []Kind{KindGroup, KindCommit, KindClient, KindHealth} {
			a.lostUpTo[k] = a.seq
		}
	}
	a.seq++
	h := e.header()
	h.Source = a.identity.Source(h.Epoch)
	h.Seq, h.PrevSeq, h.Dropped = a.seq, max(a.last[subject], a.lostUpTo[kind]), a.dropped
	a.last[subject] = a.seq
	data, err := json.Marshal(e)
	if err != nil {
		panic(fmt.Sprintf("control: event %d (%T) has no JSON form: %v", a.seq, e, err))
	}
	err = a.publisher.Publish(subject, data)
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil {
		a.counts.Failed++
		if health, ok := e.(*HealthEvent); !ok || health.Code != HealthGap {
			a.dropped++
		}
		return false
	}
	a.counts.Sent++
	return true
}
