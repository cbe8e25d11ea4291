package ring

import (
	"errors"
	"sync/atomic"
	"time"

	"callboard/shm"
)

// Bell is the doorbell of rule R3: many ring, one sleeps.
//
//	whoever rings                      the sleeper (the broker's loop)
//	  publish work                       v = Arm():  v = Rings; Sleeping = 1
//	  Ring():  Rings += 1                look at all work once more
//	           Sleeping? wake            nothing: Wait(v)
//	                                     Disarm():   Sleeping = 0
//
// No ring is lost. If the ring came before Arm read v, its work was published
// before the second look, which finds it. If it came after, Rings differs from v:
// either the wait ends at once, or it had begun, and then Sleeping was 1 before
// the ring and the ringer wakes. All words are sequentially consistent.
//
// Rings is writable by every client and never believed: a client that spoils it
// can only make the sleeper look in vain, or make it sleep for one bounded turn.
type Bell struct {
	rings    *uint32 // Doorbell.Rings; everybody adds
	sleeping *uint32 // DirectoryHeader.Sleeping; the broker stores, clients only read
}

// NewBell finds the two words in the mapped doorbell and directory objects. A
// client maps the directory read-only and uses Ring alone.
func NewBell(doorbell, directory []byte) (*Bell, error) {
	rings, sleeping, err := bellWords(doorbell, directory)
	if err != nil {
		return nil, err
	}
	return &Bell{rings: rings, sleeping: sleeping}, nil
}

// Ring tells the sleeper that there is work, which must be published before.
// Any goroutine of any process may call it; it costs a system call only if the
// sleeper sleeps.
func (b *Bell) Ring() {
	releaseEdge(edgeBell)
	atomic.AddUint32(b.rings, 1)
	if atomic.LoadUint32(b.sleeping) != 0 {
		// A failed wake means an unmapped page, which the add above would have met.
		_, _ = shm.FutexWake(b.rings, 1)
	}
}

// Arm announces sleep and returns the value to wait on. The caller must look at
// all its work once more before Wait.
func (b *Bell) Arm() uint32 {
	value := atomic.LoadUint32(b.rings)
	atomic.StoreUint32(b.sleeping, 1)
	acquireEdge(edgeBell)
	return value
}

// Wait sleeps until somebody rings after Arm returned value, at most timeout. It
// may return early without cause. Error: only when the doorbell is not mapped.
func (b *Bell) Wait(value uint32, timeout time.Duration) error {
	err := shm.FutexWait(b.rings, value, timeout)
	acquireEdge(edgeBell)
	return unlessExpected(err)
}

// Disarm ends what Arm began, so that ringing costs no system call.
func (b *Bell) Disarm() { atomic.StoreUint32(b.sleeping, 0) }

// unlessExpected drops the ends that a wait may have: whoever waited looks again
// whatever ended it.
func unlessExpected(err error) error {
	if errors.Is(err, shm.ErrAgain) || errors.Is(err, shm.ErrTimeout) {
		return nil
	}
	return err
}
