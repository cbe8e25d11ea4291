package broker

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// linesPerSecond is how often one message may be logged each second. Whoever knocks
// without end must not fill a disk (field report A7).
const linesPerSecond = 50

// limitedLog drops what is said too often and tells how much that was.
type limitedLog struct {
	slog.Handler
	budget *logBudget
}

// logBudget counts lines by message, which is constant: what differs is in attributes.
type logBudget struct {
	mu   sync.Mutex
	said map[string]*logLines
}

type logLines struct {
	second  int64 // since 1970
	lines   int
	dropped int
}

// spend takes one line; dropped tells how many went unsaid before this one.
func (b *logBudget) spend(message string, now time.Time) (ok bool, dropped int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.said == nil {
		b.said = map[string]*logLines{}
	}
	l := b.said[message]
	if l == nil {
		l = &logLines{}
		b.said[message] = l
	}
	if second := now.Unix(); l.second != second {
		l.second, l.lines = second, 0
	}
	if l.lines >= linesPerSecond {
		l.dropped++
		return false, 0
	}
	l.lines++
	dropped, l.dropped = l.dropped, 0
	return true, dropped
}

// Handle passes a record on, or drops it.
func (h *limitedLog) Handle(ctx context.Context, r slog.Record) error {
	ok, dropped := h.budget.spend(r.Message, r.Time)
	if !ok {
		return nil
	}
	if dropped > 0 {
		r = r.Clone()
		r.AddAttrs(slog.Int("dropped_before", dropped))
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs and WithGroup keep the limit.
func (h *limitedLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &limitedLog{Handler: h.Handler.WithAttrs(attrs), budget: h.budget}
}

func (h *limitedLog) WithGroup(name string) slog.Handler {
	return &limitedLog{Handler: h.Handler.WithGroup(name), budget: h.budget}
}
