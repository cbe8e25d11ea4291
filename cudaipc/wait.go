package cudaipc

import (
	"fmt"
	"time"
)

// Pauses between two questions about an event. A wait that lasts asks less often, so that
// many of them do not keep the thread busy: it ends late by a small part of what it took.
const (
	pollMin  = 10 * time.Microsecond
	pollMax  = time.Millisecond
	pollPart = 64
	pollLong = 20 * time.Millisecond
)

// WaitFor waits until an event has completed that another process recorded before this
// call, in the goroutine that calls: the thread serves others meanwhile. alive says
// whether that process still runs (shm.Exited of its process descriptor); nil: nobody knows.
//
// The device is never made to wait for it: a dead producer's event may never complete, and
// nothing takes such a wait back. It is asked about instead.
//
// ErrProducerDied, ErrDeadline, or the driver's error: the event is to be retired, since its
// producer, or what it left on the device, may still complete it at any time.
func (t *Thread) WaitFor(e Event, deadline time.Time, alive func() bool) error {
	since := time.Now()
	done := false
	ask := func(d Driver) (err error) {
		done, err = d.EventQuery(e)
		return err
	}
	for pause := pollMin; ; pause = min(2*pause, min(pollLong, max(pollMax, time.Since(since)/pollPart))) {
		lives := alive == nil || alive()
		// Asked after the look: what completed before the producer died is whole.
		if err := t.Do(ask); done || err != nil {
			return err
		}
		if !lives {
			return fmt.Errorf("%w; its event is given up", ErrProducerDied)
		}
		if now := time.Now(); !now.Before(deadline) {
			return fmt.Errorf("%w: waited %v; its event is given up", ErrDeadline, now.Sub(since).Round(time.Millisecond))
		}
		time.Sleep(pause)
	}
}
