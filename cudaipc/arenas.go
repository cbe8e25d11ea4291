package cudaipc

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"callboard/protocol"
	"callboard/shm"
)

const (
	// ArenaAlign is what the size of an exported allocation is a multiple of. The driver
	// may cut smaller ones from one of its own, and a handle shares that as a whole.
	ArenaAlign = 2 << 20
	// FirstArena and LastArena bound the usual sizes: each is as long as all before it
	// together. A block that is longer gets an arena of its own.
	FirstArena = 64 << 20
	LastArena  = 1 << 30
)

// Block is a run of bytes in an arena. Its beginning is a multiple of 256 bytes, its
// Length what may be used: at least what was asked for.
type Block struct {
	Arena      uint32
	Generation uint64 // of the arena
	Offset     uint64
	Length     uint64
}

// Arenas is the device memory that a broker holds on one device: a few large allocations,
// each exported once, cut into blocks by the same books that cut shared memory.
//
// An arena goes back to the driver only when nothing of it is leased and nobody has it
// open: freeing it earlier is undefined behaviour of the driver (field report F3). Methods
// may be called from any goroutine; only Grow, Alloc that grows, Trim and Close call the
// driver.
type Arenas struct {
	thread *Thread
	limit  uint64

	growing sync.Mutex // one grows at a time; taken before mu

	mu        sync.Mutex
	pool      *shm.Pool
	arenas    map[uint32]*arena
	importers importers
	next      uint32 // index of the next arena
	base      uint64 // generation of arena 0
	held      uint64
	closed    bool
}

type arena struct {
	index      uint32
	generation uint64
	base       Pointer
	bytes      uint64
	handle     Handle
	going      bool // Trim is about to free it
}

// NewArenas makes an empty pool on a device. limit bounds its memory in bytes, 0: only the
// device does. generation is higher than that of any arena of the stage before, so that
// nobody takes a new arena for one that died with an earlier broker (rule B3); each arena
// has one of its own from there on.
func NewArenas(t *Thread, limit, generation uint64) *Arenas {
	return &Arenas{
		thread: t, limit: limit, base: generation,
		pool: shm.NewPool(0), arenas: map[uint32]*arena{}, importers: importers{},
	}
}

// TryAlloc leases a block if there is room. It calls no driver and is for a loop that
// must not wait: false means that Grow is needed, elsewhere.
func (a *Arenas) TryAlloc(bytes uint64) (Block, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	leased, ok := a.pool.Alloc(bytes)
	if !ok {
		return Block{}, false
	}
	in := a.arenas[uint32(leased.Segment)]
	return Block{Arena: in.index, Generation: in.generation, Offset: leased.Offset, Length: leased.Length}, true
}

// Alloc leases a block of at least bytes, in a new arena if need be. *OutOfMemoryError
// where the limit or the device is full.
func (a *Arenas) Alloc(bytes uint64) (Block, error) {
	for {
		if b, ok := a.TryAlloc(bytes); ok {
			return b, nil
		}
		if err := a.Grow(bytes); err != nil {
			return Block{}, err
		}
	}
}

// Free takes a block back. A block that is not leased is the caller's broken invariant and
// panics with numbers.
//
// Preconditions: nothing on the device uses it any more. What a dead client leased may be
// in use until its process has exited (rule B4): its kernels outlive its socket.
func (a *Arenas) Free(b Block) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.find(b)
	a.pool.Free(shm.Block{Segment: uint64(b.Arena), Offset: b.Offset, Length: b.Length})
}

// Address is where a block lies in this process.
func (a *Arenas) Address(b Block) Pointer {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.find(b).base + Pointer(b.Offset)
}

func (a *Arenas) find(b Block) *arena {
	in := a.arenas[b.Arena]
	if in == nil || in.generation != b.Generation || b.Offset > in.bytes || b.Length > in.bytes-b.Offset {
		panic(fmt.Sprintf("cudaipc: block %+v lies in no arena of device %d", b, a.thread.info.Ordinal))
	}
	return in
}

// Grow makes an arena that has room for a block of bytes, if there is none yet. When the
// usual size does not fit any more it makes as small a one as will do, and before it gives
// up it frees arenas that nobody uses.
func (a *Arenas) Grow(bytes uint64) error {
	a.growing.Lock()
	defer a.growing.Unlock()
	if b, ok := a.TryAlloc(bytes); ok { // somebody else grew meanwhile
		a.Free(b)
		return nil
	}
	need := max(roundUp(shm.SegmentSizeFor(bytes, 0), ArenaAlign), ArenaAlign)
	err := a.add(a.usual(need))
	if err != nil && errors.Is(err, ErrOutOfMemory) {
		err = a.add(need)
	}
	if err != nil && errors.Is(err, ErrOutOfMemory) {
		if freed, _ := a.trim(); freed > 0 {
			err = a.add(need)
		}
	}
	if err != nil && errors.Is(err, ErrOutOfMemory) {
		return a.outOfMemory(bytes, need, err)
	}
	return err
}

// usual is the size of the next arena, at least need.
func (a *Arenas) usual(need uint64) uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	size := min(max(FirstArena, roundUp(a.held, ArenaAlign)), LastArena)
	if a.limit > 0 && size > a.limit-min(a.held, a.limit) {
		size = need
	}
	return max(size, need)
}

// add allocates and exports an arena.
func (a *Arenas) add(bytes uint64) error {
	a.mu.Lock()
	switch {
	case a.closed:
		a.mu.Unlock()
		return fmt.Errorf("the memory of device %d: %w", a.thread.info.Ordinal, ErrClosed)
	case a.limit > 0 && bytes > a.limit-min(a.held, a.limit):
		a.mu.Unlock()
		return ErrOutOfMemory
	}
	index := a.next
	a.next++
	a.mu.Unlock()

	in := &arena{index: index, generation: a.base + uint64(index), bytes: bytes}
	err := a.thread.Do(func(d Driver) (err error) {
		if in.base, err = d.MemAlloc(bytes); err != nil {
			return err
		}
		if in.base%shm.BlockAlign != 0 {
			err = fmt.Errorf("the driver gave memory at %#x, which is no multiple of %d", in.base, shm.BlockAlign)
		} else {
			in.handle, err = d.IPCGetMemHandle(in.base)
		}
		if err != nil {
			err = errors.Join(err, d.MemFree(in.base))
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("making an arena of %d bytes on device %d: %w", bytes, a.thread.info.Ordinal, err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.arenas[index] = in
	a.held += bytes
	a.pool.AddSegment(uint64(index), bytes)
	return nil
}

// Export describes an arena to who wants to open it. ErrStale: there is no such arena of
// that generation.
func (a *Arenas) Export(index uint32, generation uint64) (Export, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	in := a.arenas[index]
	if in == nil || in.going || in.generation != generation {
		return Export{}, fmt.Errorf("arena %d of generation %d on device %d: %w", index, generation, a.thread.info.Ordinal, ErrStale)
	}
	return Export{
		Sort: protocol.DeviceArena, Index: index, Device: uint32(a.thread.info.Ordinal), Generation: generation,
		Bytes: in.bytes, UUID: a.thread.info.UUID, Handle: in.handle,
	}, nil
}

// Opened notes that a client may have an arena open. It comes before the client gets the
// handle. ErrStale: the arena has gone meanwhile, and the client must not get it.
func (a *Arenas) Opened(index uint32, client uint64) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if in := a.arenas[index]; in == nil || in.going {
		return fmt.Errorf("arena %d on device %d: %w", index, a.thread.info.Ordinal, ErrStale)
	}
	a.importers.opened(index, client)
	return nil
}

// ClientClosed notes that a client has closed its import. One that it never had is ignored:
// a client says so.
func (a *Arenas) ClientClosed(index uint32, client uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.importers.closed(index, client)
}

// ClientGone notes that a client's process has exited, and its imports with it.
//
// Preconditions: that is proven, by its process descriptor and not by its socket.
func (a *Arenas) ClientGone(client uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.importers.gone(client)
}

// Trim frees the arenas in which nothing is leased and which nobody has open. It gives the
// number of bytes freed.
func (a *Arenas) Trim() (uint64, error) {
	a.growing.Lock()
	defer a.growing.Unlock()
	return a.trim()
}

func (a *Arenas) trim() (freed uint64, err error) {
	a.mu.Lock()
	var going []*arena
	for _, id := range a.pool.FreeSegments() {
		if in := a.arenas[uint32(id)]; !a.importers.have(in.index) {
			in.going = true
			a.pool.RemoveSegment(id)
			going = append(going, in)
		}
	}
	a.mu.Unlock()
	for _, in := range going {
		e := a.thread.Do(func(d Driver) error { return d.MemFree(in.base) })
		if e != nil {
			err = errors.Join(err, fmt.Errorf("freeing arena %d of %d bytes on device %d: %w", in.index, in.bytes, a.thread.info.Ordinal, e))
		}
		freed += in.bytes
		a.mu.Lock()
		delete(a.arenas, in.index)
		a.held -= in.bytes
		a.mu.Unlock()
	}
	return freed, err
}

// Close frees what Trim may free and refuses to grow from now on. What is leased or open
// elsewhere stays until this process ends, which is when the driver takes it; the Thread
// then keeps the context for it.
func (a *Arenas) Close() error {
	a.mu.Lock()
	a.closed = true
	a.mu.Unlock()
	_, err := a.Trim()
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.importers) > 0 {
		a.thread.keep()
	}
	return err
}

// ArenaStats tells about one arena.
type ArenaStats struct {
	Index      uint32
	Generation uint64
	Bytes      uint64
	Importers  []uint64 // the clients that have it open
}

// ArenasStats tells how a device's memory is used, in bytes.
type ArenasStats struct {
	Limit       uint64 // 0: none
	Held        uint64
	Leased      uint64
	LargestFree uint64
	Blocks      int // leased
	Arenas      []ArenaStats
}

// Stats walks the books; it is for people.
func (a *Arenas) Stats() ArenasStats {
	a.mu.Lock()
	defer a.mu.Unlock()
	pool := a.pool.Stats()
	stats := ArenasStats{Limit: a.limit, Held: a.held, Leased: pool.Leased, LargestFree: pool.LargestFree, Blocks: pool.Blocks}
	for _, in := range a.arenas {
		stats.Arenas = append(stats.Arenas, ArenaStats{in.index, in.generation, in.bytes, a.importers.of(in.index)})
	}
	slices.SortFunc(stats.Arenas, func(x, y ArenaStats) int { return int(x.Index) - int(y.Index) })
	return stats
}

func roundUp(n, align uint64) uint64 { return (n + align - 1) &^ (align - 1) }
