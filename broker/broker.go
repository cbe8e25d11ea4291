package broker

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"callboard/control"
	"callboard/protocol"
	"callboard/ring"
	"callboard/shm"
	"callboard/snapshot"
)

// Broker serves one stage from Start until Close.
type Broker struct {
	config      Config
	host        string
	incarnation uint64
	runtimeDir  string
	stageDir    string
	generation  shm.Generation
	locks       []*shm.DirLock

	generationLock *shm.DirLock
	recovered      *snapshot.Recovered // until it was told
	damaged        string              // why an earlier generation was given up

	directory, doorbell       *shm.Object
	directoryMap, doorbellMap *shm.Mapping

	nats     *control.Server
	service  *control.Service
	announce *control.Announcer
	listener *shm.Listener

	// The loop's own.
	store     *snapshot.Store
	memory    *snapshot.Memory
	bell      *ring.Bell
	clients   []*client
	objects   map[uint64]*segmentObject
	arenas    map[uint64]*arena // of device memory, by segment
	leases    []*lease          // of interprocess events
	reader    ownReader         // not the loop's alone
	notes     []control.Change
	parked    []parked // ops that wait for other clients' ops
	entries   [drainBatch]protocol.SubmissionEntry
	stopping  bool
	quiet     bool      // nobody rang for a while
	trimmed   time.Time // when idle memory was looked for last
	leaving   bool      // removes nothing: another broker goes on with the stage
	sleepOnce func()

	mailbox mailbox
	copies  copyQueue
	ctx     context.Context
	cancel  context.CancelFunc
	workers sync.WaitGroup

	devices    *devices
	deviceWork sync.WaitGroup // what waits for a device: its end is waited for a while only

	looping sync.WaitGroup
	closing sync.Once
	left    chan struct{} // closed when another broker takes the stage over
}

// segmentObject is a segment's object and the broker's own mapping of it.
type segmentObject struct {
	object  *shm.Object
	mapping *shm.Mapping
}

// Start makes the stage's memory, or recovers what an earlier broker of this stage left
// (rules S1, B2), starts NATS and serves clients until Close. Errors say what is in the
// way: another broker of the stage, no room in /dev/shm, a taken port; what is to be
// recovered stays then.
func Start(config Config) (*Broker, error) {
	config, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	b := &Broker{config: config, host: shm.HostName(), incarnation: randomID(), objects: map[uint64]*segmentObject{}, arenas: map[uint64]*arena{}, left: make(chan struct{})}
	b.sleepOnce = b.sleep
	b.ctx, b.cancel = context.WithCancel(context.Background())
	if err = b.openDevices(); err == nil { // before anything is taken from a broker that runs
		err = b.start()
	}
	if err != nil {
		b.cancel()
		b.closeDevices()
		b.leaving = b.leaving || b.recovered != nil
		b.tearDown()
		return nil, fmt.Errorf("starting stage %q: %w", config.Stage, err)
	}
	return b, nil
}

func (b *Broker) start() (err error) {
	if b.runtimeDir, err = b.config.Access.RuntimeDir(b.config.Stage); err != nil {
		return err
	}
	b.stageDir = shm.ShmDir(b.config.ShmDir, b.config.Stage)
	for _, dir := range []string{b.runtimeDir, b.stageDir} {
		lock, err := b.lock(dir)
		if err != nil {
			return err
		}
		b.locks = append(b.locks, lock)
	}
	if err := b.config.Access.GrantDir(b.runtimeDir); err != nil {
		return err
	}
	if err := b.openMemory(); err != nil {
		return err
	}
	if err := b.startNATS(); err != nil {
		return err
	}
	if b.listener, err = b.config.Access.Listen(filepath.Join(b.runtimeDir, shm.AttachSocket)); err != nil {
		return err
	}
	b.tellRecovery()
	b.tellFirstTry()
	for range copyWorkers {
		b.workers.Go(b.copyWorker)
	}
	for _, c := range b.clients {
		b.workers.Go(func() { b.awaitDeath(c, c.back) })
	}
	b.looping.Go(b.loop)
	b.workers.Go(b.accept)
	return nil
}

// lock takes one of the stage's locks, from another broker if that was asked for.
func (b *Broker) lock(dir string) (*shm.DirLock, error) {
	lock, err := lockSoon(dir, lockTries)
	if errors.Is(err, shm.ErrLocked) && b.config.Takeover {
		if err := b.askToLeave(); err != nil {
			return nil, err
		}
		lock, err = lockSoon(dir, leaveTries)
	}
	if errors.Is(err, shm.ErrLocked) {
		return nil, fmt.Errorf("a broker of this stage is running already: %w; use another --stage, stop that one, or take the stage over with --takeover", err)
	}
	return lock, err
}

// lockSoon makes a directory and locks it. `callboard gc` and a broker that ends hold
// the lock for a moment, so it is tried for a while.
func lockSoon(dir string, tries int) (lock *shm.DirLock, err error) {
	for range tries {
		if lock, err = shm.LockDir(dir); !errors.Is(err, shm.ErrLocked) {
			return lock, err
		}
		time.Sleep(lockPause)
	}
	return nil, err
}

const (
	lockTries  = 20
	leaveTries = 400 // a broker that leaves ends its copies and announcements first
	lockPause  = 25 * time.Millisecond
)

// makeMemory makes the directory, the doorbell and the store.
func (b *Broker) makeMemory() (err error) {
	if b.directory, b.directoryMap, err = b.makeObject(directoryName, protocol.DirectoryBytes); err != nil {
		return err
	}
	if b.doorbell, b.doorbellMap, err = b.makeObject(doorbellName, protocol.DoorbellBytes); err != nil {
		return err
	}
	writeRegionHeader(b.doorbellMap.Bytes(), protocol.MagicDoorbell, b.generation.Number, 0, 0)
	if b.bell, err = ring.NewBell(b.doorbellMap.Bytes(), b.directoryMap.Bytes()); err != nil {
		return err
	}
	if err := b.numberDevices(nil); err != nil {
		return err
	}
	b.prepareMemory()
	b.memory.Grow = b.growNow
	b.store, err = snapshot.NewStore(b.storeConfig(), b.directoryMap.Bytes(), b.memory)
	b.memory.Grow = b.grow
	if err != nil {
		return err
	}
	return b.makeReader()
}

func (b *Broker) prepareMemory() {
	b.memory = snapshot.NewMemory(b.config.MemoryBytes)
	b.memory.Retired = b.retireSegment
	b.memory.Holders = b.holders
}

func (b *Broker) storeConfig() snapshot.Config {
	return snapshot.Config{Stage: b.config.Stage, Host: b.host, Generation: b.generation.Number, Incarnation: b.incarnation,
		Devices: b.storeDevices(), NoDevice: b.devices.why(), Absent: b.devices.absent, Retain: b.config.Retain, Handoff: b.config.Handoff, UnsealedBytesMax: b.config.UnsealedBytes, PinnedBytesMax: b.config.PinnedBytes,
		OnSeal: b.onSeal, OnGroup: b.onGroup}
}

// makeObject makes an object of the generation and maps it. When somebody removed
// the generation's directory it is made again: names matter for recovery only
// (field report A1).
func (b *Broker) makeObject(name string, size uint64) (*shm.Object, *shm.Mapping, error) {
	object, err := shm.CreateObject(b.generation.Path, name, size)
	if err != nil && !dirExists(b.generation.Path) {
		if err = shm.MakeDir(b.generation.Path); err == nil {
			object, err = shm.CreateObject(b.generation.Path, name, size)
		}
	}
	if err != nil {
		return nil, nil, err
	}
	mapping, err := object.Map(true)
	if err != nil {
		_ = object.Remove()
		_ = object.Close()
		return nil, nil, err
	}
	return object, mapping, nil
}

// Stage, RuntimeDir and NATSURL tell where the stage is to be found.
func (b *Broker) Stage() string      { return b.config.Stage }
func (b *Broker) RuntimeDir() string { return b.runtimeDir }
func (b *Broker) NATSURL() string    { return b.nats.Info().URL }

// MemoryDir is the directory of the stage's objects.
func (b *Broker) MemoryDir() string { return b.generation.Path }

// MemoryBytes is the limit of all segments.
func (b *Broker) MemoryBytes() uint64 { return b.config.MemoryBytes }

// Left is closed when another broker takes the stage over: Close then, which removes
// nothing.
func (b *Broker) Left() <-chan struct{} { return b.left }

// Close ends all sessions and removes everything that the stage made, unless another
// broker took it over. Views that clients hold stay valid in their own mappings.
func (b *Broker) Close() {
	b.closing.Do(func() {
		_ = b.listener.Close()
		b.mailbox.post(func() { b.stopping = true })
		b.ring()
		b.looping.Wait()
		b.cancel()
		b.copies.end()
		b.workers.Wait()
		b.closeDevices()
		b.tearDown()
	})
}

// tearDown undoes start, as far as it came.
func (b *Broker) tearDown() {
	if b.announce != nil {
		if err := b.announce.Close(closeWait); err != nil {
			b.config.Log.Warn("announcements were lost at the end", "error", err)
		}
	}
	if b.service != nil {
		_ = b.service.Stop()
	}
	if b.nats != nil {
		_ = b.nats.Close()
	}
	b.closeObjects()
	if !b.leaving {
		b.removeAll()
	}
	if b.generationLock != nil {
		_ = b.generationLock.Unlock()
	}
	for _, lock := range b.locks {
		_ = lock.Unlock()
	}
}

// closeObjects lets go of the generation's objects, which stay.
func (b *Broker) closeObjects() {
	for _, c := range b.clients {
		c.close()
	}
	for _, s := range b.objects {
		_ = s.mapping.Close()
		_ = s.object.Close()
	}
	for _, m := range []*shm.Mapping{b.directoryMap, b.doorbellMap} {
		if m != nil {
			_ = m.Close()
		}
	}
	for _, o := range []*shm.Object{b.directory, b.doorbell} {
		if o != nil {
			_ = o.Close()
		}
	}
	b.clients, b.objects = nil, map[uint64]*segmentObject{}
	b.directory, b.doorbell, b.directoryMap, b.doorbellMap = nil, nil, nil, nil
}

// removeAll removes whatever this broker made, and the directories if they are empty.
func (b *Broker) removeAll() {
	if b.generation.Path != "" {
		if err := shm.RemoveGeneration(b.generation); err != nil {
			b.config.Log.Warn("removing the stage's memory", "error", err)
		}
	}
	if len(b.locks) == 2 {
		removeRuntimeFiles(b.runtimeDir)
	}
	for i, dir := range []string{b.runtimeDir, b.stageDir} {
		if i < len(b.locks) {
			if err := shm.LeaveDir(dir); err != nil {
				b.config.Log.Warn("leaving a directory", "error", err)
			}
		}
	}
}

const closeWait = 2 * time.Second

// randomID is a random identity, never 0 (rule I1).
func randomID() uint64 {
	var raw [8]byte
	for {
		_, _ = rand.Read(raw[:]) // never fails, it says
		if id := binary.LittleEndian.Uint64(raw[:]); id != 0 {
			return id
		}
	}
}
