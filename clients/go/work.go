package callboard

import (
	"context"
	"errors"
	"time"
)

// WorkOptions say how a worker learns of groups.
type WorkOptions struct {
	// Announced gives groups as the broker announces them; package workers subscribes. nil,
	// or closed: the worker finds them by listing alone.
	Announced <-chan OpenGroup
	// Every is the longest time between two listings; 0: 20 ms, or 100 ms with Announced.
	Every time.Duration
}

// WorkOn fills groups of an attribute's sessions of several groups, whoever opened them,
// until ctx ends: it claims one after the other, calls fill, and hands it back. Any number
// of processes may do so; each group is one worker's (rule M2). What a worker that died had
// claimed comes again, as the next attempt.
//
// An error of fill gives the group back, for somebody else, and is returned. So is the
// error of the session with the broker, and ctx's own when it ends. What becomes of a
// session meanwhile (it was aborted, a seal passed it, the broker was restarted) is its
// owner's to know: the work goes on with others.
//
// Of groups in device memory fill hands each back itself, by Unmap with what there is to wait
// for, and the work goes on with the next one meanwhile. Before it returns an error instead,
// what it has queued must have ended: the group's memory is the next attempt's.
func (s *Stage) WorkOn(ctx context.Context, attribute string, o WorkOptions, fill func(*MapGroup) error) error {
	if o.Every <= 0 {
		o.Every = 20 * time.Millisecond
		if o.Announced != nil {
			o.Every = 100 * time.Millisecond
		}
	}
	timer := time.NewTimer(o.Every)
	defer timer.Stop()
	for {
		if err := s.workThrough(ctx, attribute, fill); err != nil {
			return err
		}
		timer.Reset(o.Every)
		for listen := true; listen; {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-timer.C:
				listen = false
			case g, ok := <-o.Announced:
				if !ok {
					o.Announced = nil
					continue
				}
				if _, err := s.work(ctx, g.Session, g.Index, fill); err != nil {
					return err
				}
			}
		}
	}
}

// workThrough fills groups that are listed until there are none.
func (s *Stage) workThrough(ctx context.Context, attribute string, fill func(*MapGroup) error) error {
	list, err := s.ListGroups(ctx, attribute)
	if errors.Is(err, ErrBrokerRestarted) {
		return nil // the next list waits for the next broker
	}
	if err != nil {
		return ended(ctx, err)
	}
	last := uint64(0)
	for _, g := range list {
		if g.Session == last { // they come session by session
			continue
		}
		last = g.Session
		for more := true; more; {
			if more, err = s.work(ctx, g.Session, AnyGroup, fill); err != nil {
				return err
			}
		}
	}
	return nil
}

// work claims a group and fills it; false: there is none, or no room for it now.
func (s *Stage) work(ctx context.Context, session uint64, index int, fill func(*MapGroup) error) (bool, error) {
	g, err := s.ClaimGroup(ctx, session, index)
	if err != nil {
		if errors.Is(err, ErrEnd) || errors.Is(err, ErrInvalidHandle) || errors.Is(err, ErrBrokerRestarted) || noRoom(err) {
			return false, nil
		}
		return false, ended(ctx, err)
	}
	defer g.GiveUp() // where fill fails or panics
	if err := fill(g); err != nil {
		if _, gone := g.Bytes(); errors.Is(gone, ErrBrokerRestarted) && errors.Is(err, ErrBrokerRestarted) {
			return false, nil // it went while it was filled
		}
		return false, err
	}
	op, err := g.Unmap()
	if err == nil {
		err = op.Wait(ctx)
	}
	switch {
	case errors.Is(err, ErrSessionEnded), errors.Is(err, ErrTimeout):
		return false, ended(ctx, err)
	case err != nil: // fill has handed it back, or the session was aborted, or sealed
		return !noRoom(err), nil
	}
	return true, nil
}

// noRoom tells of errors that waiting may cure.
func noRoom(err error) bool { return errors.Is(err, ErrQueueFull) || errors.Is(err, ErrOutOfMemory) }

// ended gives ctx's error where that is why a call ended.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, ErrTimeout) {
		return ctx.Err()
	}
	return err
}
