package broker

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"callboard/control"
	"callboard/cudaipc"
	"callboard/protocol"
	"callboard/shm"
	"callboard/snapshot"
)

// deviceArenaAlign is what the size of an arena is a multiple of (rule C1).
const deviceArenaAlign = cudaipc.ArenaAlign

// arena is a segment of device memory (rule C1): one allocation of the driver's, exported
// once. The loop's own, but for what does not change.
type arena struct {
	id      uint64 // of the segment
	device  *device
	base    cudaipc.Pointer
	bytes   uint64
	handle  cudaipc.Handle
	segment *snapshot.Segment
	places  *shm.Mapping // addresses of its size that nobody can touch

	importers []uint64 // incarnations of clients that may have it open
	retired   bool     // out of service: it goes when nobody has it open (rule C6)
}

// growDevice makes an arena beside the loop. What was freed before is freed first: a device
// does one after the other.
func (b *Broker) growDevice(r snapshot.GrowRequest) {
	g := b.devices.served(r.Arena.Device().Index)
	g.serial.do(&b.deviceWork, func() {
		a, failed := makeArena(g, r.SizeBytes)
		if failed != nil {
			b.later(func() { b.grownDevice(r, nil, b.deviceFailure(g, r.SizeBytes, failed)) })
			return
		}
		a.id = r.ID
		b.later(func() { b.grownDevice(r, a, nil) })
	})
}

// makeArena allocates and exports.
func makeArena(g *device, bytes uint64) (*arena, error) {
	a := &arena{device: g, bytes: bytes}
	var err error
	if a.places, err = shm.Reserve(a.bytes); err != nil {
		return nil, err
	}
	err = g.thread.Do(func(d cudaipc.Driver) (err error) {
		if a.base, err = d.MemAlloc(a.bytes); err != nil {
			return err
		}
		if a.handle, err = d.IPCGetMemHandle(a.base); err != nil {
			_ = d.MemFree(a.base)
		}
		return err
	})
	if err != nil {
		_ = a.places.Close()
		return nil, err
	}
	return a, nil
}

// grownDevice puts a new arena into service, in the loop.
func (b *Broker) grownDevice(r snapshot.GrowRequest, a *arena, failed *protocol.Error) {
	if failed != nil {
		b.config.Log.Warn("no new device memory", "device", r.Arena.Device().Index, "bytes", r.SizeBytes, "for", r.Arena.Label, "error", failed.Text)
		b.memory.Grown(r, nil, failed)
		return
	}
	b.arenas[a.id] = a
	a.segment = &snapshot.Segment{ID: r.ID, Bytes: a.places.Bytes(), Base: uint64(a.base)}
	b.devices.add(a)
	b.memory.Grown(r, a.segment, nil)
}

// deviceFailure says why there is no more memory on a device.
func (b *Broker) deviceFailure(g *device, bytes uint64, err error) *protocol.Error {
	switch code := cudaipc.CodeOf(err); {
	case code.ContextLost():
		return b.loseDevice(g, err)
	case code == cudaipc.ErrOutOfMemory:
		var free, total uint64
		_ = g.thread.Do(func(d cudaipc.Driver) (err error) {
			free, total, err = d.MemInfo()
			return err
		})
		return protocol.Errorf(protocol.StatusOutOfMemory, "%v has no room for an arena of %d bytes: %d of its %d bytes are free, and other processes have memory there as well (nvidia-smi lists them): %v",
			g, bytes, free, total, err)
	}
	return protocol.Errorf(protocol.StatusOpFailed, "%v: making an arena of %d bytes: %v", g, bytes, err)
}

// retireArena takes an arena out of service: no block of it is in use.
func (b *Broker) retireArena(a *arena) {
	a.retired = true
	b.freeArena(a)
}

// closedArena runs OpArenaClosed: the client has closed its import. One that it does not
// have is no error: its last view may have gone while it was told of a new broker.
func (b *Broker) closedArena(c *client, segment uint64) {
	if a := b.arenas[segment]; a != nil {
		a.importers = slices.DeleteFunc(a.importers, func(id uint64) bool { return id == c.incarnation })
		b.freeArena(a)
	}
}

// freeArena gives an arena back to the driver once it is out of service and nobody has it
// open: freeing it earlier is undefined (rule C6).
func (b *Broker) freeArena(a *arena) {
	if !a.retired || len(a.importers) > 0 {
		return
	}
	delete(b.arenas, a.id)
	b.devices.remove(a)
	b.memory.Freed(a.segment)
	a.device.serial.do(&b.deviceWork, func() {
		err := a.device.thread.Do(func(d cudaipc.Driver) error { return d.MemFree(a.base) })
		_ = a.places.Close()
		switch {
		case cudaipc.CodeOf(err).ContextLost():
			b.loseDevice(a.device, err)
		case err != nil:
			b.config.Log.Error("an arena of device memory could not be freed", "segment", a.id, "bytes", a.bytes, "error", err)
		}
	})
}

// describeDevices tells operators of devices and of what is held there.
func (b *Broker) describeDevices(state *snapshot.State) control.GPUDescription {
	out := b.devices.describe()
	for i := range out.Devices {
		one := &out.Devices[i]
		for k := range state.Usage.Devices {
			if u := &state.Usage.Devices[k]; int32(u.Device.Index) == one.ID {
				one.Memory = describeMemory(u)
			}
		}
		for _, id := range slices.Sorted(maps.Keys(b.arenas)) {
			a := b.arenas[id]
			if int32(a.device.index) != one.ID {
				continue
			}
			one.ArenaCount++
			if len(one.Arenas) == control.ArenasPage {
				continue
			}
			described := control.ArenaDescription{Segment: id, Bytes: a.bytes, Owner: a.segment.Owner, Retired: a.retired, Importers: []string{}, ImporterCount: len(a.importers)}
			for _, importer := range a.importers[:min(len(a.importers), control.ImportersPage)] {
				described.Importers = append(described.Importers, strconv.FormatUint(importer, 10))
			}
			one.Arenas = append(one.Arenas, described)
		}
	}
	return out
}

// imports tells whether a client may have device memory open, or work on its way there.
func (b *Broker) imports(c *client) bool {
	for _, a := range b.arenas {
		if slices.Contains(a.importers, c.incarnation) {
			return true
		}
	}
	return c.hadEvents && len(b.leasesOf(c)) > 0
}

// closeImports forgets what a client had open: its process is proven to have exited (rules
// C6, B4).
func (b *Broker) closeImports(c *client) {
	for _, a := range b.arenas {
		b.closedArena(c, a.id)
	}
	b.endLeases(c)
}

// lostOn gives the error that everything on a device ends with since its context is gone; nil:
// it is not.
func (b *Broker) lostOn(on *snapshot.Device) error {
	g := b.devices.served(on.Index)
	b.devices.mu.Lock()
	err := g.lost
	b.devices.mu.Unlock()
	if err == nil {
		return nil
	}
	return b.loseDevice(g, err)
}

// loseDevice notes that a device's context is gone: nothing works there until the broker is
// started anew (rule C4). It may be called from any goroutine.
func (b *Broker) loseDevice(g *device, err error) *protocol.Error {
	text := fmt.Sprintf("%v is lost to this broker: %v; %s", g, err, lostAdvice)
	b.devices.mu.Lock()
	first := g.lost == nil
	if first {
		g.lost = err
	}
	b.devices.mu.Unlock()
	lost := protocol.Errorf(protocol.StatusOpFailed, "%s", text)
	if first {
		b.config.Log.Error(text)
		b.later(func() { b.giveUpDevice(g, lost) }) // comes before the end of the job that met it
	}
	return lost
}

// giveUpDevice gives up what waits for a device that is lost, and then tells of it (rule C4).
func (b *Broker) giveUpDevice(g *device, lost *protocol.Error) {
	b.store.LoseDevice(g.store, lost, func(rows uint64) {
		text := fmt.Sprintf("%s; %d rows that waited there for their seal are given up", lost.Text, rows)
		b.config.Log.Warn("rows that waited for their seal are given up", "device", g.index, "rows", rows)
		b.health(control.LevelError, control.HealthGPULost, text, map[string]control.Number{"device": control.Number(g.index), "rows": control.Number(rows)})
	})
}

// closeDevices ends what waits for devices, and gives back what no other process was given
// a handle of. All else goes with this process, as does the context (rule C6). A device that
// hangs is not waited for.
func (b *Broker) closeDevices() {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		b.deviceWork.Wait()
		for _, g := range b.devices.up() {
			if g.shared {
				continue
			}
			_ = g.events.Close()
			_ = g.thread.Close() // and with its context everything in it
		}
	}()
	select {
	case <-closed:
	case <-time.After(closeWait):
		b.config.Log.Warn("a device does not end its work; it is left to it")
	}
}
