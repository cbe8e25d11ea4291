package callboard

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"callboard/protocol"
	"callboard/tensor"
)

// logDepth is how many log records wait for the handler; more are dropped and counted.
const logDepth = 256

// Channels of the log.
const (
	logSession = "session" // attached, broker lost, taken up again, ended, closed
	logHandle  = "handle"  // given back by the collector, or in use
	logCall    = "call"    // refusals that a program should know of
)

func init() {
	tensor.OnFault(func(text string) { tell(slog.LevelError, logHandle, "%s", text) })
}

// logger is the process's one log handler and the records that wait for it.
type logger struct {
	handler  slog.Handler
	channels map[string]bool // nil: all

	mutex      sync.Mutex
	records    []slog.Record
	put, taken uint64
	dropped    uint64
	removed    bool
	wake       chan struct{} // has room for one: there is something to do
	told       chan struct{} // closed, and made anew, when taken grows
}

var theLog atomic.Pointer[logger]

// InstallLog gives the process's one log handler: it is told what happens to sessions and
// handles, never what happens to data. Without one nothing is said anywhere. Each record has
// the attribute "channel": "session" (attached, broker lost, taken up again, ended, closed),
// "handle" (dropped without being given back, in use), "call" (refusals that a program should
// know of). channels names those that are told, with commas between them; "" tells all, and a
// name that no channel has matches nothing. The handler's own Enabled is the threshold.
//
// The handler runs on a goroutine of its own, one record at a time. Nobody waits for it:
// while it is slow, records are dropped and their number is told.
//
// Errors: ErrInvalidArgument for other text or a nil handler, ErrAlreadyExists where the
// process has a handler: remove it first.
func InstallLog(handler slog.Handler, channels string) error {
	if handler == nil {
		return fail(protocol.StatusInvalidArgument, "the log handler is nil")
	}
	l := &logger{handler: handler, wake: make(chan struct{}, 1), told: make(chan struct{})}
	if channels != "" {
		l.channels = map[string]bool{}
		for _, name := range strings.Split(channels, ",") {
			name = strings.Trim(name, " ")
			if name == "" || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789_.-") != "" {
				return fail(protocol.StatusInvalidArgument, "channels %q: expected names of a-z 0-9 _ . - with commas between them, got %q", channels, name)
			}
			l.channels[name] = true
		}
	}
	if !theLog.CompareAndSwap(nil, l) {
		return fail(protocol.StatusAlreadyExists, "this process has a log handler: remove it first")
	}
	go l.run()
	return nil
}

// FlushLog waits until what was logged before is with the handler. It succeeds at once when
// there is no handler. A context that has ended already makes it look once; ErrTimeout then
// says that records wait. Within the handler it can only wait in vain.
func FlushLog(ctx context.Context) error {
	if l := theLog.Load(); l != nil {
		return l.flush(ctx)
	}
	return nil
}

// RemoveLog takes the handler away, after it was given what was logged. When ctx ends first
// the handler may still be called with the rest.
func RemoveLog(ctx context.Context) error {
	l := theLog.Swap(nil)
	if l == nil {
		return nil
	}
	l.mutex.Lock()
	l.removed = true
	l.mutex.Unlock()
	l.nudge()
	return l.flush(ctx)
}

func (l *logger) nudge() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (l *logger) flush(ctx context.Context) error {
	l.mutex.Lock()
	wanted := l.put
	for l.taken < wanted {
		told := l.told
		l.mutex.Unlock()
		select {
		case <-told:
		case <-ctx.Done():
			return gaveUp(ctx, "flushing the log")
		}
		l.mutex.Lock()
	}
	l.mutex.Unlock()
	return nil
}

// tell logs. It never waits for the handler.
func tell(level slog.Level, channel, format string, values ...any) {
	l := theLog.Load()
	if l == nil || l.channels != nil && !l.channels[channel] {
		return
	}
	r := slog.NewRecord(time.Now(), level, fmt.Sprintf(format, values...), 0)
	r.AddAttrs(slog.String("channel", channel))
	l.mutex.Lock()
	switch {
	case l.removed:
	case len(l.records) >= logDepth:
		l.dropped++
	default:
		l.records = append(l.records, r)
		l.put++
	}
	l.mutex.Unlock()
	l.nudge()
}

// run gives records to the handler until it is removed.
func (l *logger) run() {
	for range l.wake {
		for l.next() {
		}
		l.mutex.Lock()
		over := l.removed && len(l.records) == 0 && l.dropped == 0
		l.mutex.Unlock()
		if over {
			return
		}
	}
}

// next gives one record; false when there is none.
func (l *logger) next() bool {
	l.mutex.Lock()
	var r slog.Record
	switch {
	case len(l.records) > 0:
		r = l.records[0]
		l.records = l.records[1:]
	case l.dropped > 0:
		r = slog.NewRecord(time.Now(), slog.LevelWarn, fmt.Sprintf("%d log records were dropped, since the handler was slower than they came", l.dropped), 0)
		l.dropped = 0
		l.put++
	default:
		l.mutex.Unlock()
		return false
	}
	l.mutex.Unlock()
	if l.handler.Enabled(context.Background(), r.Level) {
		_ = l.handler.Handle(context.Background(), r) // it has nowhere to tell its own trouble
	}
	l.mutex.Lock()
	l.taken++
	close(l.told)
	l.told = make(chan struct{})
	l.mutex.Unlock()
	return true
}
