package callboard

import (
	"sync"
	"sync/atomic"

	"callboard/protocol"
	"callboard/snapshot"
)

// view is a pin that groups, reads and snapshots share. It holds the client, so that
// its memory stays mapped.
type view struct {
	client *client
	pinned snapshot.Pinned

	mutex   sync.Mutex  // what follows
	imports []*imported // of device memory that was looked at through it
	over    bool        // it was given back
}

// use keeps the arena that a place lies in open until the view is given back.
func (v *view) use(p place) (*imported, error) {
	in, err := v.client.use(p)
	if err != nil {
		return nil, err
	}
	v.mutex.Lock()
	defer v.mutex.Unlock()
	if v.over {
		v.client.unuse(in)
		return nil, fail(protocol.StatusInvalidHandle, "the view was released")
	}
	for _, other := range v.imports {
		if other == in {
			v.client.unuse(in)
			return in, nil
		}
	}
	v.imports = append(v.imports, in)
	return in, nil
}

// leave gives the view back.
func (v *view) leave() {
	v.mutex.Lock()
	v.over = true
	for _, in := range v.imports {
		v.client.unuse(in)
	}
	v.imports = nil
	v.mutex.Unlock()
	v.client.leave()
}

// hold is one holder's part of a view. It counts once, whoever gives it back.
type hold struct {
	view     *view
	released atomic.Bool
}

// pinColumns says what is pinned: columns, at the newest epoch or of a moment, or
// everything.
type pinColumns struct {
	all     bool
	columns []*snapshot.Column
	names   []string         // instead: all columns of them
	at      *snapshot.Moment // of names; nil: the newest
}

// pin makes a view. The first hold is the caller's.
func (c *client) pin(w pinColumns) (*hold, error) {
	if err := c.enter(); err != nil {
		return nil, err
	}
	v := &view{client: c}
	var err error
	switch {
	case w.all:
		err = c.reader.PinAll(&v.pinned)
	case w.names != nil || w.at != nil:
		err = c.reader.PinNamed(&v.pinned, w.at, w.names...)
	default:
		err = c.reader.Pin(&v.pinned, w.columns...)
	}
	if err != nil {
		c.leave()
		return nil, asError(err)
	}
	return &hold{view: v}, nil
}

// again adds a holder.
func (h *hold) again() (*hold, error) {
	if err := h.usable("the view"); err != nil {
		return nil, err
	}
	h.view.pinned.Hold()
	return &hold{view: h.view}, nil
}

func (h *hold) usable(what string) error {
	if h.released.Load() {
		return fail(protocol.StatusInvalidHandle, "%s was released", what)
	}
	return nil
}

// release gives the hold back and tells whether it was held until now.
func (h *hold) release() bool {
	if h.released.Swap(true) {
		return false
	}
	if h.view.pinned.Release() {
		h.view.leave()
	}
	return true
}
