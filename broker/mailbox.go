package broker

import "sync"

// mailbox carries work to the loop from the goroutines beside it.
type mailbox struct {
	mu    sync.Mutex
	full  []func()
	empty []func() // the loop's, for reuse
	ended bool
}

// post adds work and tells whether the loop still runs. The caller rings the bell.
func (m *mailbox) post(work func()) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ended {
		return false
	}
	m.full = append(m.full, work)
	return true
}

// take gives all work posted since the last call. Only the loop calls it.
func (m *mailbox) take() []func() {
	m.mu.Lock()
	defer m.mu.Unlock()
	work := m.full
	m.full = m.empty[:0]
	m.empty = work
	return work
}

// pending tells whether take would return anything.
func (m *mailbox) pending() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.full) > 0
}

// end refuses further work and returns what is left.
func (m *mailbox) end() []func() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ended = true
	return m.full
}

// do runs work in the loop and waits for it; false: the loop has ended.
func (b *Broker) do(work func()) bool {
	done := make(chan struct{})
	if !b.mailbox.post(func() { work(); close(done) }) {
		return false
	}
	b.ring()
	select {
	case <-done:
		return true
	case <-b.ctx.Done():
		return false
	}
}

// later runs work in the loop without waiting.
func (b *Broker) later(work func()) {
	if b.mailbox.post(work) {
		b.ring()
	}
}
