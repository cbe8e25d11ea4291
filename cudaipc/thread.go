package cudaipc

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
)

// Thread is one operating-system thread with a device's primary context current. All
// driver calls of the device go through it: the driver knows contexts per thread, and a
// goroutine moves between threads. It is never kept waiting for the device: who waits asks
// again and again. Methods may be called from any goroutine.
type Thread struct {
	driver  Driver
	device  Device
	context Context
	info    DeviceInfo

	tasks chan task
	stop  chan struct{}
	ended chan struct{} // closed when the goroutine is gone
	once  sync.Once
	err   error // of ending; read after ended
}

type task struct {
	run  func(Driver) error
	done chan error
}

// NewThread retains the primary context of the device with an ordinal of this process and
// makes it current on a thread of its own. Close ends it.
func NewThread(d Driver, ordinal int) (*Thread, error) {
	device, info, err := Describe(d, ordinal)
	if err != nil {
		return nil, err
	}
	t := &Thread{
		driver: d, device: device, info: info,
		tasks: make(chan task), stop: make(chan struct{}), ended: make(chan struct{}),
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
// otherwise. Later calls do nothing.
//
// Preconditions: no other process has anything of it open, for the memory goes with the
// context. Who exported and does not know leaves the context to the end of the process: then
// the driver keeps the memory until the last import is closed.
func (t *Thread) Close() error {
	t.once.Do(func() { close(t.stop) })
	<-t.ended
	return t.err
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
	for open := true; open; {
		select {
		case task := <-t.tasks:
			task.done <- task.run(t.driver)
		case <-t.stop:
			open = false
		}
	}
	t.err = errors.Join(t.driver.SetCurrent(0), t.driver.ReleasePrimary(t.device))
	close(t.ended)
}
