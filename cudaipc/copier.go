package cudaipc

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// Copy copies bytes within a device's memory. Source and destination do not overlap.
type Copy struct {
	Dst, Src Pointer
	Bytes    uint64
}

// Upload copies host memory to the device.
type Upload struct {
	Dst   Pointer
	Src   HostAddress
	Bytes uint64
}

// Download copies device memory to the host.
type Download struct {
	Dst   HostAddress
	Src   Pointer
	Bytes uint64
}

// Job is a scatter: uploads, then copies, then strided copies, then downloads, each list in
// its order. What one step writes the next one may read.
type Job struct {
	Uploads   []Upload
	Copies    []Copy
	Strided   []Copy2D
	Downloads []Download
}

// Ticket numbers what was handed to a Copier.
type Ticket uint64

// Done tells that a ticket has completed.
type Done struct {
	Ticket Ticket
	Err    error // of a wait: retire the event. Of a job: what it was to write is undefined
}

// Copier moves bytes on one device, on a stream of its own, and waits for what producers
// have recorded. Its caller is a loop that must not wait: Submit and Await return at once,
// ring is called when there is something for Poll, and neither of the three calls the
// driver or takes memory once the lists have grown.
//
// Jobs run in the order of Submit; waits are beside them and in no order. Methods may be
// called from any goroutine.
type Copier struct {
	thread *Thread
	ring   func()

	mu     sync.Mutex
	next   Ticket
	queue  []queued // jobs not yet given to the driver
	asked  []waiting
	done   []Done
	closed bool

	// Of the thread alone.
	stream   Stream
	taken    []queued // what queue was; the two take turns
	inFlight []flight // in the order of the stream
	waits    []waiting
	marks    []Event // events that mark the end of a job, unused
}

type queued struct {
	ticket Ticket
	job    *Job
}

type waiting struct {
	ticket Ticket
	wait   wait
}

type flight struct {
	ticket Ticket
	mark   Event
	err    error // of a step that was refused: what was queued before it runs all the same
}

// NewCopier makes a copier on a device. ring, which may be nil, is called on the thread
// whenever Poll has something new; it must not block, nor call the Thread.
func NewCopier(t *Thread, ring func()) (*Copier, error) {
	c := &Copier{thread: t, ring: ring}
	err := t.Do(func(d Driver) (err error) {
		c.stream, err = d.StreamCreate()
		return err
	})
	if err == nil {
		err = t.watch(c)
	}
	if err != nil {
		return nil, fmt.Errorf("making a copier on device %d: %w", t.info.Ordinal, err)
	}
	return c, nil
}

// Submit hands a job over. The job, its lists, and the memory that it names are the
// copier's until its ticket has completed.
func (c *Copier) Submit(job *Job) Ticket {
	c.mu.Lock()
	c.next++
	ticket := c.next
	if c.closed {
		c.done = append(c.done, Done{ticket, ErrClosed})
	} else {
		c.queue = append(c.queue, queued{ticket, job})
	}
	c.mu.Unlock()
	c.thread.nudge()
	return ticket
}

// Await hands over a wait for an event that another process recorded before this call: a
// WaitFor that does not block. A job that reads what the event is about is submitted after
// the ticket has completed.
func (c *Copier) Await(e Event, deadline time.Time, alive func() bool) Ticket {
	c.mu.Lock()
	c.next++
	ticket := c.next
	if c.closed {
		c.done = append(c.done, Done{ticket, ErrClosed})
	} else {
		c.asked = append(c.asked, waiting{ticket, wait{event: e, since: time.Now(), deadline: deadline, alive: alive}})
	}
	c.mu.Unlock()
	c.thread.nudge()
	return ticket
}

// Poll appends what has completed since the last call. Every ticket completes once.
func (c *Copier) Poll(into []Done) []Done {
	c.mu.Lock()
	defer c.mu.Unlock()
	into = append(into, c.done...)
	clear(c.done)
	c.done = c.done[:0]
	return into
}

// Close waits for what the device still does, ends everything else with ErrClosed, and
// destroys the stream. Poll tells of the last tickets.
func (c *Copier) Close() error {
	c.mu.Lock()
	was := c.closed
	c.closed = true
	c.mu.Unlock()
	if was {
		return nil
	}
	if err := c.thread.unwatch(c); err != nil {
		return err
	}
	return c.thread.Do(func(d Driver) error {
		err := d.StreamSynchronize(c.stream)
		c.take()
		for _, f := range c.inFlight {
			c.complete(f.ticket, errors.Join(f.err, err))
			c.marks = append(c.marks, f.mark)
		}
		for _, q := range c.taken {
			c.complete(q.ticket, ErrClosed)
		}
		for _, w := range c.waits {
			c.complete(w.ticket, ErrClosed)
		}
		c.inFlight, c.taken, c.waits = nil, nil, nil
		for _, mark := range c.marks {
			err = errors.Join(err, d.EventDestroy(mark))
		}
		if c.ring != nil {
			c.ring()
		}
		return errors.Join(err, d.StreamDestroy(c.stream))
	})
}

// poll implements poller.
func (c *Copier) poll(d Driver) (happened, waiting bool) {
	c.take()
	for i := range c.taken {
		c.start(d, c.taken[i])
		c.taken[i].job = nil
	}
	started := len(c.taken)
	c.taken = c.taken[:0]

	ended := c.endJobs(d) + c.endWaits(d)
	if ended > 0 && c.ring != nil {
		c.ring()
	}
	return started+ended > 0, len(c.inFlight)+len(c.waits) > 0
}

// take gets what was handed over.
func (c *Copier) take() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.taken, c.queue = c.queue, c.taken[:0]
	c.waits = append(c.waits, c.asked...)
	clear(c.asked)
	c.asked = c.asked[:0]
}

// start queues a job's steps in the stream, and a mark behind them.
func (c *Copier) start(d Driver, q queued) {
	err := c.run(d, q.job)
	mark, e := c.mark(d)
	if e == nil {
		e = d.EventRecord(mark, c.stream)
	}
	if e != nil {
		// Without a mark, the end of the stream is the end of the job. Its memory is in
		// use until then.
		err = errors.Join(err, e, d.StreamSynchronize(c.stream))
	}
	c.inFlight = append(c.inFlight, flight{q.ticket, mark, err})
}

func (c *Copier) run(d Driver, job *Job) error {
	for _, u := range job.Uploads {
		if u.Bytes > 0 {
			if err := d.CopyHtoDAsync(u.Dst, u.Src, u.Bytes, c.stream); err != nil {
				return fmt.Errorf("copying %d bytes to the device: %w", u.Bytes, err)
			}
		}
	}
	if err := scatter(d, job.Copies, c.stream); err != nil {
		return err
	}
	for _, s := range job.Strided {
		if s.Width > 0 && s.Height > 0 {
			if err := d.Copy2DAsync(s, c.stream); err != nil {
				return fmt.Errorf("copying %d rows of %d bytes on the device: %w", s.Height, s.Width, err)
			}
		}
	}
	for _, l := range job.Downloads {
		if l.Bytes > 0 {
			if err := d.CopyDtoHAsync(l.Dst, l.Src, l.Bytes, c.stream); err != nil {
				return fmt.Errorf("copying %d bytes from the device: %w", l.Bytes, err)
			}
		}
	}
	return nil
}

// mark gives an event of this process to record.
func (c *Copier) mark(d Driver) (Event, error) {
	if n := len(c.marks); n > 0 {
		mark := c.marks[n-1]
		c.marks = c.marks[:n-1]
		return mark, nil
	}
	return d.EventCreate(EventLocal)
}

// endJobs completes the jobs whose marks the stream has passed.
func (c *Copier) endJobs(d Driver) int {
	n := 0
	for ; n < len(c.inFlight); n++ {
		f := c.inFlight[n]
		if f.mark != 0 {
			done, err := d.EventQuery(f.mark)
			if !done && err == nil {
				break
			}
			c.marks = append(c.marks, f.mark)
			f.err = errors.Join(f.err, err)
		}
		c.complete(f.ticket, f.err)
	}
	if n > 0 {
		c.inFlight = c.inFlight[:copy(c.inFlight, c.inFlight[n:])]
	}
	return n
}

func (c *Copier) endWaits(d Driver) int {
	left := c.waits[:0]
	for i := range c.waits {
		if done, err := c.waits[i].wait.poll(d); done || err != nil {
			c.complete(c.waits[i].ticket, err)
		} else {
			left = append(left, c.waits[i])
		}
	}
	ended := len(c.waits) - len(left)
	clear(c.waits[len(left):])
	c.waits = left
	return ended
}

func (c *Copier) complete(ticket Ticket, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.done = append(c.done, Done{ticket, err})
}
