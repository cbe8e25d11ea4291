package callboard

import "context"

// Epochs gives the newest epoch whenever it has moved, beginning with the present one
// where anything is sealed: to wait beside other channels, in a select. It holds one
// value: a receiver that is slower than the seals finds the newest, never a backlog,
// and what is sealed after a value was sent comes as another one. Take a Snapshot, or
// read, when one comes: that may be newer still.
//
// The channel is closed, within 100 ms, when ctx ends or the session is over; Follow then says
// why. A broker that is restarted does not end it. Each call has a channel and a goroutine
// of its own, which end together: a ctx that is never cancelled keeps them until Close.
func (s *Stage) Epochs(ctx context.Context) <-chan uint64 {
	c, out := s.client, make(chan uint64, 1)
	if c.enter() != nil {
		close(out)
		return out
	}
	c.telling.Add(1)
	go func() {
		defer close(out)
		defer c.leave()
		defer c.telling.Add(-1)
		for after := uint64(0); ; {
			epoch, err := c.follow(ctx, after)
			if err != nil {
				return
			}
			after = epoch
			select {
			case <-out: // nobody took the last one
			default:
			}
			out <- epoch // there is room: nobody else sends
		}
	}()
	return out
}
