package callboard

import (
	"context"
	"errors"
	"fmt"
)

// insist has a request submitted whose outcome nobody waits for, as soon as there is
// room; it does not wait. A session that is over, and a broker that is gone, took what
// it is about with them.
func (c *client) insist(r request) {
	if c.enter() != nil {
		return
	}
	defer c.leave()
	c.mutex.Lock()
	c.deferred = append(c.deferred, r)
	c.mutex.Unlock()
	c.drain()
}

// flush submits what is deferred while a quarter of the ring stays free: calls that do
// not wait find room beside it. The rest goes as completions come. The caller holds mutex.
func (c *client) flush() {
	if c.patient > 0 || c.gap.Load() != nil || c.ended.Load() != nil {
		return
	}
	l := c.ring.Layout()
	most := max(1, min(int(l.SqEntries), int(l.CqEntries), int(c.results.size)/errorRoom))
	for len(c.deferred) > 0 && len(c.ops) < most-most/4 {
		if r := c.deferred[0]; r.life == c.life { // else the restart has done it
			if _, err := c.enqueue(&r); err != nil {
				return
			}
		}
		c.deferred = c.deferred[1:]
	}
}

// submitPatiently is submit for calls that wait for the broker anyway: where there is no
// room they wait for that as well, and what is deferred stands back.
func (c *client) submitPatiently(ctx context.Context, r request) (*Op, error) {
	stand := func(n int) {
		c.mutex.Lock()
		c.patient += n
		c.mutex.Unlock()
	}
	for first := true; ; first = false {
		heard := c.ring.Listen()
		op, err := c.submit(r)
		if !errors.Is(err, ErrQueueFull) {
			return op, err
		}
		if ctx.Err() != nil {
			return nil, gaveUp(ctx, fmt.Sprintf("%s: %v", r.what, err))
		}
		if first {
			stand(1)
			defer stand(-1)
		}
		c.waitTurn(ctx, heard)
	}
}
