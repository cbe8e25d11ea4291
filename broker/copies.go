package broker

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"callboard/shm"
)

// copyWorkers is the size of the pool that makes long copies (rule L1).
const copyWorkers = 2

// copyWait bounds the sleep of a worker; a wake ends it earlier.
const copyWait = time.Second

// copyQueue carries jobs from the loop to the copy workers. These have threads of their
// own and sleep on a futex, as the loop does: a channel would go through Go's scheduler,
// which, where processors are few, takes longer than copying 64 KiB.
type copyQueue struct {
	mu     sync.Mutex
	jobs   []*copyJob
	ended  bool
	posted uint32 // counts what was added: the word that workers sleep on
}

// add hands a job to the workers.
func (q *copyQueue) add(w *copyJob) {
	q.mu.Lock()
	q.jobs = append(q.jobs, w)
	q.mu.Unlock()
	q.wake(1)
}

// end makes take return nil.
func (q *copyQueue) end() {
	q.mu.Lock()
	q.ended = true
	q.mu.Unlock()
	q.wake(copyWorkers)
}

func (q *copyQueue) wake(workers int) {
	atomic.AddUint32(&q.posted, 1)
	_, _ = shm.FutexWake(&q.posted, workers)
}

// take waits for a job; nil: there will be none.
func (q *copyQueue) take() *copyJob {
	for {
		posted := atomic.LoadUint32(&q.posted) // before the look: what is added after it differs from this
		q.mu.Lock()
		if q.ended {
			q.mu.Unlock()
			return nil
		}
		if len(q.jobs) > 0 {
			w := q.jobs[0]
			q.jobs = slices.Delete(q.jobs, 0, 1)
			q.mu.Unlock()
			return w
		}
		q.mu.Unlock()
		_ = shm.FutexWait(&q.posted, posted, copyWait)
	}
}

func (b *Broker) copyWorker() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for w := b.copies.take(); w != nil; w = b.copies.take() {
		fault := shm.Guard(w.job.Run)
		b.later(func() { b.endCopy(w, fault) })
	}
}
