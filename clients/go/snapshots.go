package callboard

import (
	"context"
	"iter"
	"runtime"
	"time"

	"callboard/protocol"
	"callboard/snapshot"
)

// Snapshot is everything at one epoch (rule O6): any number of reads of it agree
// with each other. Give back with Release; what was read through it stays.
type Snapshot struct {
	hold   *hold
	floors snapshot.Floors
}

// Snapshot pins the newest epoch. Versions that are looked at through it count as
// pinned; it meets no refusal by producers, however far ahead they are.
func (s *Stage) Snapshot(ctx context.Context) (*Snapshot, error) {
	c := s.client
	if err := c.enter(); err != nil {
		return nil, err
	}
	defer c.leave()
	if ctx.Err() != nil {
		return nil, gaveUp(ctx, "taking a snapshot")
	}
	return c.snapshot()
}

func (c *client) snapshot() (*Snapshot, error) {
	h, err := c.pin(pinColumns{all: true})
	if err != nil {
		return nil, err
	}
	snap := &Snapshot{hold: h}
	if snap.floors, err = h.view.pinned.Floors(); err != nil {
		h.release()
		return nil, asError(err)
	}
	runtime.AddCleanup(snap, func(h *hold) {
		if h.release() {
			h.view.client.forgot("a snapshot")
		}
	}, h)
	return snap, nil
}

// Epoch is the epoch that is shown; 0 before the first seal. It is the cursor for
// Follow.
func (s *Snapshot) Epoch() uint64 { return s.hold.view.pinned.Epoch() }

// StampNs is the time of the newest seal in ns, the application's or the broker's.
func (s *Snapshot) StampNs() uint64 { return s.floors.StampNs }

// GlobalFloor is the lowest floor of all known attributes.
func (s *Snapshot) GlobalFloor() uint64 { return s.floors.Global }

// Floor is an attribute's write floor at this epoch, known or not.
func (s *Snapshot) Floor(name string) (uint64, error) {
	if err := s.hold.usable("the snapshot"); err != nil {
		return 0, err
	}
	floor, err := s.floors.OfName(name)
	return floor, asError(err)
}

// Cursor is how far a snapshot goes: what the next delta begins after. It is a value
// that outlives the snapshot; the zero Cursor is before everything. It is of one
// generation of a stage.
type Cursor struct {
	epoch    uint64
	standard uint64
	floors   map[uint64]uint64 // by the name's token id, where they differ
}

// Epoch is the epoch of the snapshot that the cursor is of; 0 of the zero Cursor.
func (c Cursor) Epoch() uint64 { return c.epoch }

// Cursor is where a delta after this snapshot begins (rule O6).
func (s *Snapshot) Cursor() Cursor {
	c := Cursor{epoch: s.floors.Epoch, standard: s.floors.Default}
	s.floors.Names(func(nameID, floor uint64) {
		if c.floors == nil {
			c.floors = map[uint64]uint64{}
		}
		c.floors[nameID] = floor
	})
	return c
}

// after is the ordinal that a column's changes begin after.
func (c Cursor) after(column *snapshot.Column) uint64 {
	if floor, ok := c.floors[column.NameID]; ok {
		return floor
	}
	return c.standard
}

// Read looks at attributes of the query's prims at this epoch. A query that is still running is waited for, with ctx,
// when the first group is fetched.
func (s *Snapshot) Read(ctx context.Context, q *Query, names ...string) (*Read, error) {
	return s.read(ctx, q, names, changes{})
}

// ReadSince looks at what changed of attributes between a cursor and this epoch: rows
// that were written, and groups with IsDelete of prims that are gone. Deltas from
// cursor to cursor have every sealed change exactly once, whatever producers do
// meanwhile (behaviour 144). From the zero Cursor it is all that is there.
//
// Errors: OUT_OF_RANGE when so much was deleted since that not all of it is known (rule
// O7): then Read shows the whole.
func (s *Snapshot) ReadSince(ctx context.Context, q *Query, since Cursor, names ...string) (*Read, error) {
	return s.read(ctx, q, names, changes{delta: true, since: since.after, end: protocol.Infinite, fresh: since.epoch == 0})
}

func (s *Snapshot) read(ctx context.Context, q *Query, names []string, w changes) (*Read, error) {
	c := s.hold.view.client
	if _, err := q.use(c); err != nil {
		return nil, err
	}
	if q.running() {
		return laterRead(ctx, q, func() (*Read, error) { return s.read(ctx, q, names, w) }), nil
	}
	names, w.paths = withoutPath(names)
	columns, err := c.columns(names)
	if err != nil {
		return nil, err
	}
	h, err := s.hold.again()
	if err != nil {
		return nil, err
	}
	return newRead(h, q, columns, w, func(i int) (snapshot.Version, error) { return h.view.pinned.Find(columns[i]) })
}

// Latest is Stage.Latest at this epoch.
func (s *Snapshot) Latest(ctx context.Context, name string) (*Group, error) {
	q, err := s.hold.view.client.rootQuery(ctx)
	if err != nil {
		return nil, err
	}
	r, err := s.Read(ctx, q, name)
	if err != nil {
		return nil, err
	}
	defer r.Release()
	return r.latest(name)
}

// Release gives the snapshot back. Later calls do nothing.
func (s *Snapshot) Release() { s.hold.release() }

// births tells which versions of columns the snapshot shows.
func (s *Snapshot) births(columns []*snapshot.Column) ([]uint64, error) {
	out := make([]uint64, len(columns))
	for i, c := range columns {
		v, err := s.hold.view.pinned.Find(c)
		if err != nil {
			return nil, asError(err)
		}
		out[i] = v.Birth
	}
	return out, nil
}

// Epoch is the newest epoch, without a wait.
func (s *Stage) Epoch() uint64 {
	if s.client.enter() != nil {
		return 0
	}
	defer s.client.leave()
	return s.client.reader.Epoch()
}

// Follow waits for an epoch above after and returns the newest. When ctx ends first
// the error is ErrTimeout and wraps the context's.
func (s *Stage) Follow(ctx context.Context, after uint64) (uint64, error) {
	c := s.client
	if err := c.enter(); err != nil {
		return 0, err
	}
	defer c.leave()
	return c.follow(ctx, after)
}

func (c *client) follow(ctx context.Context, after uint64) (uint64, error) {
	for {
		turn := turnMax
		if end, ok := ctx.Deadline(); ok {
			turn = min(turn, time.Until(end))
		}
		if ctx.Err() != nil {
			turn = 0
		}
		epoch, err := c.reader.WaitEpoch(after, turn)
		switch {
		case err != nil:
			return 0, asError(err)
		case epoch > after:
			return epoch, nil
		case ctx.Err() != nil:
			return 0, gaveUp(ctx, "waiting for a newer epoch")
		}
		c.lookAtSocket()
		if err := c.alive(); err != nil {
			return 0, err
		}
	}
}

// Watch gives one consistent snapshot for each change of the named attributes, of
// anything when no name is given; the first one is of the present state, if there
// is any. A slow loop misses changes in between and never sees half of one. Each
// snapshot is released after its turn; groups got from it stay until their own
// Release. The end of ctx, and that of the session, come as an error and end it.
func (s *Stage) Watch(ctx context.Context, names ...string) iter.Seq2[*Snapshot, error] {
	return func(yield func(*Snapshot, error) bool) {
		c := s.client
		if err := c.enter(); err != nil {
			yield(nil, err)
			return
		}
		defer c.leave()
		after, seen := uint64(0), map[uint32]uint64{}
		for {
			if _, err := c.follow(ctx, after); err != nil {
				yield(nil, err)
				return
			}
			snap, changed, err := c.watchTurn(names, seen)
			if err != nil {
				yield(nil, err)
				return
			}
			after = snap.Epoch()
			more := !changed || yield(snap, nil)
			snap.Release()
			if !more {
				return
			}
		}
	}
}

// watchTurn takes a snapshot and tells whether it shows other versions than seen.
func (c *client) watchTurn(names []string, seen map[uint32]uint64) (snap *Snapshot, changed bool, err error) {
	columns, err := c.columns(names)
	if err != nil {
		return nil, false, err
	}
	if snap, err = c.snapshot(); err != nil {
		return nil, false, err
	}
	births, err := snap.births(columns)
	if err != nil {
		snap.Release()
		return nil, false, err
	}
	changed = len(names) == 0
	for i, column := range columns {
		if births[i] != seen[column.Index] {
			seen[column.Index], changed = births[i], true
		}
	}
	return snap, changed, nil
}

// latest is the read's only row, without the axis of rows.
func (r *Read) latest(name string) (*Group, error) {
	g, err := r.Group(name)
	if err != nil {
		return nil, fail(protocol.StatusNotFound, "attribute %q has no sealed value on the prim \"/\"; read other prims with ReadAttributes", name)
	}
	g.single = true
	return g, nil
}
