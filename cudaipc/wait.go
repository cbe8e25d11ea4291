package cudaipc

import (
	"fmt"
	"time"
)

// A wait is for an event that another process recorded. The device is never made to wait
// for it: a dead producer's event may never complete, and nothing takes such a wait back.
// It is asked about instead, with a deadline and a look at whether the producer lives.
type wait struct {
	event    Event
	since    time.Time
	deadline time.Time
	alive    func() bool
}

// poll asks once. An error ends the wait, and the event is to be retired: its producer, or
// what it left on the device, may still complete it at any time.
func (w *wait) poll(d Driver) (done bool, err error) {
	if done, err = d.EventQuery(w.event); done || err != nil {
		return done, err
	}
	if w.alive != nil && !w.alive() {
		// It may have completed between the two looks; then the data are whole.
		if done, err = d.EventQuery(w.event); done || err != nil {
			return done, err
		}
		return false, fmt.Errorf("%w; its event is given up", ErrProducerDied)
	}
	if now := time.Now(); !now.Before(w.deadline) {
		return false, fmt.Errorf("%w: waited %v; its event is given up", ErrDeadline, now.Sub(w.since).Round(time.Millisecond))
	}
	return false, nil
}

// WaitFor waits until an event has completed that another process recorded before this
// call, in the goroutine that calls: the thread serves others meanwhile. alive says
// whether that process still runs (shm.Exited of its process descriptor); it is called on
// the thread and must not block; nil: nobody knows.
//
// ErrProducerDied, ErrDeadline, or the driver's error: the event is to be retired.
func (t *Thread) WaitFor(e Event, deadline time.Time, alive func() bool) error {
	w := wait{event: e, since: time.Now(), deadline: deadline, alive: alive}
	done := false
	ask := func(d Driver) (err error) {
		done, err = w.poll(d)
		return err
	}
	for pause := pollMin; ; pause = min(2*pause, pollMax) {
		if err := t.Do(ask); done || err != nil {
			return err
		}
		time.Sleep(pause)
	}
}
