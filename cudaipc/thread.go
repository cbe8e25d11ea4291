package cudaipc

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// Thread is one operating-system thread with a device's primary context current. All
// driver calls of the device go through it: the driver knows contexts per thread, and a
// goroutine moves between threads.
//
// What waits for the device, copiers above all, is asked again by the thread in its idle
// time: at once while things happen, then ever less often, up to pollMax. Methods may be
// called from any goroutine.
type Thread struct {
	driver  Driver
	device  Device
	context Context
	info    DeviceInfo

	tasks chan task
	wake  chan struct{} // of capacity 1: a poller has something new
	stop  chan struct{}
	ended chan struct{} // closed when the goroutine is gone
	once  sync.Once
	err   error // of ending; read after ended
	kept  atomic.Bool

	pollers []poller // of the thread alone
}

type task struct {
	run  func(Driver) error
	done chan error
}

// A poller is asked by the thread whether what it waits for has happened.
type poller interface {
	// poll does what can be done now, and tells whether something happened and whether
	// it waits for more.
	poll(d Driver) (happened, waiting bool)
}

const (
	pollEager = 16 // turns without a pause, after something happened
	pollMin   = 10 * time.Microsecond
	pollMax   = time.Millisecond
)

// NewThread retains the primary context of the device with an ordinal of this process and
// makes it current on a thread of its own. Close ends it.
func NewThread(d Driver, ordinal int) (*Thread, error) {
	device, info, err := Describe(d, ordinal)
	if err != nil {
		return nil, err
	}
	t := &Thread{
		driver: d, device: device, info: info,
		tasks: make(chan task), wake: make(chan struct{}, 1),
		stop: make(chan struct{}), ended: make(chan struct{}),
	}
	ready := make(chan error)
	go t.main(ready)
	if err := <-ready; err != nil {
		return nil, fmt.Errorf("opening device %d (%s): %w", ordinal, info.Name, err)
	}
	return t, nil
}

// Info describes the device.
func (t *Thread) Info() DeviceInfo { return t.info }

// Driver is the driver, for what needs no context: names, numbers, devices.
func (t *Thread) Driver() Driver { return t.driver }

// Do runs f on the thread and gives its error. f must not wait for other goroutines, nor
// call Do: the thread does nothing else meanwhile. ErrClosed after Close.
func (t *Thread) Do(f func(Driver) error) error {
	done := make(chan error, 1)
	select {
	case t.tasks <- task{f, done}:
		return <-done
	case <-t.ended:
		return fmt.Errorf("device %d: %w", t.info.Ordinal, ErrClosed)
	}
}

// Close gives the context back and ends the thread. What was made in the context and not
// destroyed stays if somebody else in this process holds the context, and goes with it
// otherwise. Where another process has something of it open the context stays until this
// process ends, for the driver then keeps the memory until the last import is closed.
// Copiers are closed before. Later calls do nothing.
func (t *Thread) Close() error {
	t.once.Do(func() { close(t.stop) })
	<-t.ended
	return t.err
}

// keep has the context outlive the thread: another process has something of it open.
func (t *Thread) keep() { t.kept.Store(true) }

// nudge tells the thread that a poller has something new.
func (t *Thread) nudge() {
	select {
	case t.wake <- struct{}{}:
	default: // it knows already
	}
}

// watch has a poller asked from now on.
func (t *Thread) watch(p poller) error {
	return t.Do(func(Driver) error {
		t.pollers = append(t.pollers, p)
		return nil
	})
}

// unwatch ends that.
func (t *Thread) unwatch(p poller) error {
	return t.Do(func(Driver) error {
		for i := range t.pollers {
			if t.pollers[i] == p {
				t.pollers = append(t.pollers[:i], t.pollers[i+1:]...)
				break
			}
		}
		return nil
	})
}

func (t *Thread) main(ready chan<- error) {
	// Never unlocked: the operating-system thread ends with this goroutine, and its
	// current context with it.
	runtime.LockOSThread()
	var err error
	if t.context, err = t.driver.RetainPrimary(t.device); err == nil {
		if err = t.driver.SetCurrent(t.context); err != nil {
			err = errors.Join(err, t.driver.ReleasePrimary(t.device))
		}
	}
	ready <- err
	if err != nil {
		return
	}
	t.loop()
	t.err = t.driver.SetCurrent(0)
	if !t.kept.Load() {
		t.err = errors.Join(t.err, t.driver.ReleasePrimary(t.device))
	}
	close(t.ended)
}

func (t *Thread) loop() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	idle := 0 // turns since something happened
	for {
		happened, waiting := t.poll()
		if happened {
			idle = 0
		}
		var again <-chan time.Time
		if waiting {
			if idle++; idle <= pollEager {
				runtime.Gosched()
				timer.Reset(0)
			} else {
				timer.Reset(min(pollMin<<min(idle-pollEager, 10), pollMax))
			}
			again = timer.C
		}
		select {
		case task := <-t.tasks:
			task.done <- task.run(t.driver)
			idle = 0
		case <-t.wake:
			idle = 0
		case <-again:
		case <-t.stop:
			return
		}
	}
}

func (t *Thread) poll() (happened, waiting bool) {
	for _, p := range t.pollers {
		h, w := p.poll(t.driver)
		happened, waiting = happened || h, waiting || w
	}
	return happened, waiting
}
