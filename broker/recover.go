package broker

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"callboard/control"
	"callboard/protocol"
	"callboard/ring"
	"callboard/shm"
	"callboard/snapshot"
)

// Names of a generation's objects; channels begin with shm.ChannelPrefix.
const (
	directoryName = "directory"
	doorbellName  = "doorbell"
	segmentPrefix = "segment-"
)

// Codes of health events about a restart.
const (
	HealthRecovered   = "recovered"     // numbers: epoch, columns, versions, segments, bytes, clients, rolled_forward
	HealthUnrecovered = "not_recovered" // what was sealed is lost; a new generation was begun
)

// openMemory takes up what an earlier life of this stage's broker left, or makes the
// memory anew, and removes all other generations of the stage (rule S1).
func (b *Broker) openMemory() (err error) {
	if !b.config.Fresh {
		if b.generation, b.generationLock, err = shm.ClaimGeneration(b.stageDir); err != nil {
			return err
		}
	}
	if b.generationLock != nil {
		if err = b.recover(); err == nil {
			return b.sweep(b.generation.Number)
		}
		var damaged *damagedError
		if !errors.As(err, &damaged) { // a want of descriptors or memory may pass
			b.leaving = true
			return fmt.Errorf("recovering generation %d: %w; `serve --fresh` gives it up", b.generation.Number, err)
		}
		b.damaged = fmt.Sprintf("generation %d cannot be recovered: %v; what was sealed in it is lost, and a new generation was begun", b.generation.Number, damaged.cause)
		b.config.Log.Error(b.damaged)
		b.closeObjects()
		_ = b.generationLock.Unlock()
		b.generation, b.generationLock = shm.Generation{}, nil
	}
	if err := b.sweep(0); err != nil {
		return err
	}
	if b.generation, err = shm.NewGeneration(b.stageDir); err != nil {
		return err
	}
	if b.generationLock, err = b.generation.Lock(); err != nil {
		return err
	}
	return b.makeMemory()
}

func (b *Broker) sweep(keep uint64) error {
	swept, err := shm.Sweep(b.stageDir, keep)
	for _, path := range swept {
		b.config.Log.Info("removed what an earlier broker left", "path", path)
	}
	return err
}

// damagedError says that a generation is not what a broker leaves behind.
type damagedError struct{ cause error }

func (e *damagedError) Error() string { return e.cause.Error() }
func (e *damagedError) Unwrap() error { return e.cause }

func damaged(format string, args ...any) error {
	return &damagedError{fmt.Errorf(format, args...)}
}

// recover maps every object of the generation and makes the store of them. Channels are
// known to the store before anything is reclaimed: each counts as live until its lock is
// proven free (rule I3).
func (b *Broker) recover() error {
	names, err := b.generation.Objects()
	if err != nil {
		return err
	}
	if b.directory, b.directoryMap, err = b.openObject(directoryName, protocol.DirectoryBytes); err != nil {
		return err
	}
	if b.doorbell, b.doorbellMap, err = b.openObject(doorbellName, protocol.DoorbellBytes); err != nil {
		return err
	}
	if b.bell, err = ring.NewBell(b.doorbellMap.Bytes(), b.directoryMap.Bytes()); err != nil {
		return &damagedError{err}
	}
	b.bell.Disarm()
	var segments []*snapshot.Segment
	for _, name := range names {
		id, ok := objectNumber(name, segmentPrefix, 10)
		if !ok {
			continue
		}
		object, mapping, err := b.openObject(name, 0)
		if err != nil {
			return err
		}
		b.objects[id] = &segmentObject{object, mapping}
		segments = append(segments, &snapshot.Segment{ID: id, Bytes: mapping.Bytes()})
	}
	if err := b.findChannels(names); err != nil {
		return err
	}
	numbers, err := readNumbers(b.generation.Path)
	if err != nil {
		return err
	}
	if err := b.numberDevices(numbers); err != nil {
		return err
	}
	b.prepareMemory()
	b.memory.Grow = b.growNow // the epoch that shows what is lost needs memory at once
	if b.recovered, err = snapshot.Recover(b.storeConfig(), b.directoryMap.Bytes(), b.memory, segments); err != nil {
		return &damagedError{err}
	}
	b.store = b.recovered.Store
	for _, unused := range b.recovered.Unused {
		b.objects[unused.ID].discard()
		delete(b.objects, unused.ID)
	}
	for id, s := range b.objects {
		b.reader.segments.Store(id, s.mapping.Bytes())
	}
	b.takeArenas()
	if err := b.makeReader(); err != nil {
		return err
	}
	b.store.PinsComplete()
	b.memory.Grow = b.grow
	return nil
}

// objectNumber is the number in an object's name; ok is false for other names. One
// number has one name.
func objectNumber(name, prefix string, base int) (n uint64, ok bool) {
	rest, ok := strings.CutPrefix(name, prefix)
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseUint(rest, base, 64)
	return n, err == nil && n != 0
}

// openObject maps an object that an earlier life made. size 0 takes it as it is.
func (b *Broker) openObject(name string, size uint64) (*shm.Object, *shm.Mapping, error) {
	object, err := shm.OpenObject(b.generation.Path, name)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, shm.ErrNotPlain) {
		return nil, nil, &damagedError{err}
	}
	if err != nil {
		return nil, nil, err
	}
	mapping, err := object.Map(true)
	if err == nil && size != 0 && object.Size() != size {
		_ = mapping.Close()
		err = damaged("%s has %d bytes, expected %d", object.Path(), object.Size(), size)
	} else if object.Size() == 0 {
		err = damaged("%s is empty", object.Path())
	}
	if err != nil {
		_ = object.Close()
		return nil, nil, err
	}
	return object, mapping, nil
}

// findChannels makes a client of every channel that is there. An error: something else
// has a channel's name, so that nobody can tell whether its client lives.
func (b *Broker) findChannels(names []string) error {
	for _, name := range names {
		incarnation, ok := objectNumber(name, shm.ChannelPrefix, 16)
		if !ok {
			continue
		}
		c, err := b.findChannel(name, incarnation)
		if errors.Is(err, shm.ErrNotPlain) {
			return err
		}
		if err != nil {
			b.config.Log.Warn("a channel cannot be read: what its client had pinned is not known", "channel", name, "error", err)
		}
		if c != nil {
			b.clients = append(b.clients, c)
		}
	}
	return nil
}

// takeArenas gives the clients that were found their memory and lets their pins count,
// and gives up the memory of clients that had left before.
func (b *Broker) takeArenas() {
	for _, c := range b.clients {
		if c.arena = b.recovered.Arenas[c.incarnation]; c.arena == nil {
			c.arena = b.memory.NewArena(protocol.SegmentClient, c.incarnation, "", false)
		}
		c.arena.Label = "client " + c.name
		delete(b.recovered.Arenas, c.incarnation)
		b.store.AddPins(c)
	}
	for _, arena := range b.recovered.Arenas { // no channel: its death was proven before
		b.memory.CloseArena(arena)
	}
}

// findChannel opens one channel. With an error and a client: its object is there, and
// nothing in it can be used.
func (b *Broker) findChannel(name string, incarnation uint64) (*client, error) {
	c := &client{broker: b, incarnation: incarnation, name: "unnamed", found: true, back: make(chan struct{})}
	var err error
	if c.object, c.mapping, err = b.openObject(name, 0); err != nil {
		return nil, err
	}
	var id ring.Identity
	fault := shm.Guard(func() { c.layout, id, err = ring.ReadHeader(c.mapping.Bytes()) })
	if err = errors.Join(fault, err); err == nil && (id.Incarnation != incarnation || id.Generation != b.generation.Number) {
		err = fmt.Errorf("it is the channel of client %016x of generation %d", id.Incarnation, id.Generation)
	}
	if err != nil {
		c.spoilt = true
		return c, err
	}
	c.name, c.flags, c.ringGeneration = cleanName([]byte(id.Name)), id.Flags, id.RingGeneration
	if err := c.open(); err != nil {
		c.spoilt = true
		return c, err
	}
	return c, nil
}

// tellRecovery says in the log and to operators what became of an earlier life.
func (b *Broker) tellRecovery() {
	if b.damaged != "" {
		b.health(control.LevelError, HealthUnrecovered, b.damaged, nil)
	}
	if b.recovered == nil {
		return
	}
	r, usage := b.recovered, b.memory.Usage()
	b.config.Log.Info("recovered what an earlier broker left", "generation", b.generation.Number, "epoch", r.Epoch, "columns", r.Columns,
		"versions", r.Versions, "segments", usage.Segments, "bytes", usage.HeldBytes, "clients", len(b.clients), "rolled_forward", r.RolledForward)
	numbers := map[string]control.Number{"epoch": control.Number(r.Epoch), "columns": control.Number(r.Columns), "versions": control.Number(r.Versions),
		"segments": control.Number(usage.Segments), "bytes": control.Number(usage.HeldBytes), "clients": control.Number(len(b.clients)), "rolled_forward": 0}
	if r.RolledForward {
		numbers["rolled_forward"] = 1
	}
	b.health(control.LevelInfo, HealthRecovered, fmt.Sprintf("the broker was restarted and recovered generation %d at epoch %d; what was not sealed is gone", b.generation.Number, r.Epoch), numbers)
	if n := len(r.Lost); n > 0 {
		text := fmt.Sprintf("device memory went with the broker that was before: %d attributes there begin without rows, and their write floors stay: %s", n, shortList(r.Lost))
		b.config.Log.Warn(text)
		b.health(control.LevelWarning, control.HealthGPUEmptied, text, map[string]control.Number{"attributes": control.Number(n)})
	}
	b.recovered = nil
}

// shortList names the first few.
func shortList(names []string) string {
	const most = 8
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

// takeBack takes a client up again that an earlier life of this broker had attached
// (rules B1, I1), in the loop. Its rings begin anew; its pins are as they were.
func (b *Broker) takeBack(conn *shm.Conn, request *protocol.HelloRequest, pid int, process *os.File) (*client, *protocol.Error) {
	refuse := func(format string, args ...any) (*client, *protocol.Error) {
		why := fmt.Sprintf(format, args...)
		return nil, protocol.Errorf(protocol.StatusSessionEnded, "client %016x cannot be taken up again: %s; dial anew", request.Incarnation, why)
	}
	if request.Generation != b.generation.Number {
		return refuse("stage %q was started anew, its generation is %d, not %d", b.config.Stage, b.generation.Number, request.Generation)
	}
	var c *client
	for _, other := range b.clients {
		if other.incarnation == request.Incarnation {
			c = other
		}
	}
	switch {
	case c == nil:
		return refuse("it is not known")
	case c.attached:
		return refuse("it is attached")
	case !c.found:
		return refuse("its session has ended")
	case c.spoilt:
		return refuse("its channel was damaged")
	}
	if unused, err := c.object.Unused(); err != nil || unused {
		return refuse("its channel's lock is not held, so it counts as dead")
	}
	c.ringGeneration++
	c.flags = attachFlags(request)
	id := c.identity()
	var err error
	fault := shm.Guard(func() { err = c.layout.Restart(c.mapping.Bytes(), id) })
	if err = errors.Join(fault, err); err == nil {
		err = c.open()
	}
	if err != nil {
		return refuse("its channel cannot be used: %v", err)
	}
	c.conn, c.language, c.pid, c.process = conn, request.Language, pid, process
	c.lastQuery = c.ringGeneration << 32 // a query of an earlier life never names another one
	c.arena.WholePages(c.flags&protocol.AttachGuard != 0)
	c.attached, c.found, c.died = true, false, false
	close(c.back)
	b.announceClient(c, control.ClientReattached, "")
	b.config.Log.Info("client taken up again", "client", c.String(), "pid", c.pid)
	return c, nil
}
