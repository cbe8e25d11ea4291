package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	callboard "callboard/clients/go"
)

// heard is what the log handler of this process got to hear.
type heard struct {
	slog.Level // the threshold

	mutex      sync.Mutex
	hold       chan struct{} // not nil: the handler waits for its end
	inside     int
	overlapped bool
	count      int
	last       slog.Record
}

func (h *heard) Enabled(_ context.Context, level slog.Level) bool { return level >= h.Level }
func (h *heard) WithAttrs([]slog.Attr) slog.Handler               { return h }
func (h *heard) WithGroup(string) slog.Handler                    { return h }

func (h *heard) Handle(_ context.Context, r slog.Record) error {
	h.mutex.Lock()
	h.inside++
	h.overlapped = h.overlapped || h.inside > 1
	hold := h.hold
	h.mutex.Unlock()
	if hold != nil {
		<-hold
	}
	h.mutex.Lock()
	defer h.mutex.Unlock()
	h.inside--
	h.count++
	h.last = r
	return nil
}

var levels = map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "warning": slog.LevelWarn, "error": slog.LevelError, "none": slog.LevelError + 1000}

func (d *driver) log(c command) (*answer, error) {
	a := &answer{}
	switch c.arg(0) {
	case "install":
		h := &heard{Level: levels[c.arg(1)]}
		if err := callboard.InstallLog(h, c.arg(2)); err != nil {
			return nil, err
		}
		d.heard = h
	case "remove":
		ctx, cancel := limit()
		defer cancel()
		return a, callboard.RemoveLog(ctx)
	case "flush":
		seconds, err := time.ParseDuration(c.arg(1) + "s")
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeout(context.Background(), seconds)
		defer cancel()
		err = callboard.FlushLog(ctx)
		if err != nil && !errors.Is(err, callboard.ErrTimeout) {
			return nil, err
		}
		a.add("flushed", err == nil)
	case "hold":
		d.heard.mutex.Lock()
		d.heard.hold = make(chan struct{})
		d.heard.mutex.Unlock()
	case "go":
		d.heard.mutex.Lock()
		close(d.heard.hold)
		d.heard.hold = nil
		d.heard.mutex.Unlock()
	case "heard": // since the last time
		h := d.heard
		h.mutex.Lock()
		defer h.mutex.Unlock()
		a.add("count", h.count).add("overlapped", h.overlapped)
		if h.count > 0 {
			a.add("severity", int(h.last.Level+4)/4).add("time", h.last.Time.UnixNano()).add("text", quote(h.last.Message))
		}
		h.count = 0
	default:
		return nil, fmt.Errorf("log %q is nothing that a driver does", c.arg(0))
	}
	return a, nil
}

func (d *driver) idle(command) (*answer, error) { return &answer{}, d.stage.CloseIfIdle() }

func (d *driver) stopLog() {
	if d.heard == nil {
		return
	}
	ctx, cancel := limit()
	defer cancel()
	if d.heard.hold != nil {
		close(d.heard.hold)
	}
	_ = callboard.RemoveLog(ctx)
	d.heard = nil
}
