package control

import (
	"fmt"
	"log/slog"
	"sync"
	"time"
)

const linesPerSecond = 10

// quietLog passes at most ten lines a second on: a client that tries a wrong password in a loop must not fill a disk
// (field report A7).
type quietLog struct {
	log *slog.Logger

	mu      sync.Mutex
	second  int64
	lines   int
	skipped int
}

func newQuietLog(log *slog.Logger) *quietLog {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &quietLog{log: log}
}

func (q *quietLog) warn(text string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if now := time.Now().Unix(); now != q.second {
		if q.skipped > 0 {
			q.log.Warn("more NATS messages of this kind were left out", "count", q.skipped)
		}
		q.second, q.lines, q.skipped = now, 0, 0
	}
	if q.lines >= linesPerSecond {
		q.skipped++
		return
	}
	q.lines++
	q.log.Warn(text)
}

// serverLog is the embedded server's logger. It keeps the first fatal text, which the server tells nobody else.
type serverLog struct {
	quiet *quietLog
	fatal chan string // capacity 1
}

func (l *serverLog) Fatalf(format string, v ...any) {
	select {
	case l.fatal <- fmt.Sprintf(format, v...):
	default:
	}
}

func (l *serverLog) Errorf(format string, v ...any) {
	l.quiet.warn("NATS server: " + fmt.Sprintf(format, v...))
}
func (l *serverLog) Warnf(format string, v ...any) {
	l.quiet.warn("NATS server: " + fmt.Sprintf(format, v...))
}
func (l *serverLog) Noticef(string, ...any) {}
func (l *serverLog) Debugf(string, ...any)  {}
func (l *serverLog) Tracef(string, ...any)  {}
