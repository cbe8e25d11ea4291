package broker

import (
	"callboard/control"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"

	"callboard/protocol"
	"callboard/shm"
	"callboard/snapshot"
)

// copyJob is a copy on its way, and the op that waits for it.
type copyJob struct {
	client *client
	entry  protocol.SubmissionEntry
	out    outcome
	job    *snapshot.Job
	part   *snapshot.Session // of several groups: the copy is of one of them, and the op is parked until all are there
}

// besideOthers tells whether the client's next ops go on while the op's job runs, which may
// be as long as a producer's work on a device takes (rule L1). Such an op was accepted before
// them, its rows are not the arguments', and the store makes wait what has to come after it.
func (w *copyJob) besideOthers() bool {
	switch w.entry.Opcode {
	case protocol.OpUnmapGroup, protocol.OpUnmapAttribute:
		return w.job.Device || w.part != nil
	case protocol.OpMirror:
		return true
	}
	return false
}

// awaitsRoom tells of an op that was refused for want of what a job of the same client's may
// hold until it ends: an event, memory. It waits for that, as it did nothing yet.
func awaitsRoom(e *protocol.SubmissionEntry, err error) bool {
	if err == nil || e.Opcode != protocol.OpMap && e.Opcode != protocol.OpWrite && e.Opcode != protocol.OpClaimGroup {
		return false
	}
	status := snapshot.StatusError(err).Status
	return status == protocol.StatusQueueFull || status == protocol.StatusOutOfMemory
}

// startCopy runs a job beside the loop. The client's next op waits until it is done, but for
// some that wait for a device.
func (b *Broker) startCopy(w *copyJob) {
	c, job := w.client, w.job
	if w.besideOthers() {
		c.beside++
	} else {
		c.copying = true
	}
	if !job.Device {
		b.copies.add(w)
		return
	}
	b.deviceWork.Go(func() { // as long as the device takes: the workers are for what others wait for
		fault := shm.Guard(job.Run)
		b.later(func() { b.endCopy(w, fault) })
	})
}

// endCopy ends a job in the loop.
func (b *Broker) endCopy(w *copyJob, fault error) {
	c := w.client
	if w.besideOthers() {
		c.beside--
	} else {
		c.copying = false
	}
	if fault != nil {
		w.job.Abort()
		b.end(c, protocol.Errorf(protocol.StatusSessionEnded, "the memory of this client cannot be read any more: %v", fault))
		return
	}
	got, err := w.job.Finish()
	if w.part != nil {
		if err != nil { // nobody else hears of it
			b.store.FailSession(w.part, err)
		}
		return
	}
	if w.out.again && err == nil {
		c.waiting = slices.Insert(c.waiting, 0, w.entry)
		return
	}
	w.out.merge(got)
	fault = shm.Guard(func() {
		b.complete(c, &w.entry, w.out, err)
		if c.attached {
			c.server.Flush()
		}
	})
	if fault != nil {
		b.end(c, protocol.Errorf(protocol.StatusSessionEnded, "the memory of this client cannot be read any more: %v", fault))
	}
}

// grow makes a segment beside the loop.
func (b *Broker) grow(r snapshot.GrowRequest) {
	if r.Arena.Device() != nil {
		b.growDevice(r)
		return
	}
	b.workers.Go(func() {
		object, seg, failed := b.makeSegment(r)
		if !b.mailbox.post(func() { b.grown(r, object, seg, failed) }) && object != nil {
			object.discard()
			return
		}
		b.ring()
		if object != nil && r.Arena.Sort == protocol.SegmentBroker {
			_ = object.mapping.Collapse() // faster stores and looks all over it; nothing depends on it
		}
	})
}

// growNow makes a segment at once; only before the loop runs.
func (b *Broker) growNow(r snapshot.GrowRequest) {
	if r.Arena.Device() != nil {
		b.growDevice(r)
		return
	}
	object, seg, failed := b.makeSegment(r)
	b.grown(r, object, seg, failed)
}

// grown puts a new segment into service, in the loop.
func (b *Broker) grown(r snapshot.GrowRequest, object *segmentObject, seg *snapshot.Segment, failed *protocol.Error) {
	if failed == nil {
		b.objects[r.ID] = object
		b.reader.segments.Store(r.ID, object.mapping.Bytes())
	} else {
		b.config.Log.Warn("no new segment", "bytes", r.SizeBytes, "for", r.Arena.Label, "error", failed.Text)
	}
	b.memory.Grown(r, seg, failed)
}

func (b *Broker) makeSegment(r snapshot.GrowRequest) (*segmentObject, *snapshot.Segment, *protocol.Error) {
	object, mapping, err := b.makeObject(fmt.Sprintf("%s%d", segmentPrefix, r.ID), r.SizeBytes)
	if err != nil {
		return nil, nil, snapshot.StatusError(err)
	}
	if r.Arena.Sort == protocol.SegmentBroker {
		_ = mapping.Populate(true) // faster first copies; nothing depends on it
	}
	writeRegionHeader(mapping.Bytes(), protocol.MagicSegment, b.generation.Number, r.ID, r.Arena.Owner)
	return &segmentObject{object, mapping}, &snapshot.Segment{ID: r.ID, Bytes: mapping.Bytes()}, nil
}

// retireSegment takes a segment out of the machine. Nothing of ours refers to it;
// mappings of clients stay until they notice.
func (b *Broker) retireSegment(seg *snapshot.Segment) {
	if a := b.arenas[seg.ID]; a != nil {
		b.retireArena(a)
		return
	}
	if object := b.objects[seg.ID]; object != nil {
		delete(b.objects, seg.ID)
		b.reader.segments.Delete(seg.ID)
		b.workers.Go(object.discard) // unmapping a large one takes milliseconds (rule K2)
	}
}

func (s *segmentObject) discard() {
	_ = s.mapping.Close()
	_ = s.object.Remove()
	_ = s.object.Close()
}

func dirExists(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// removeRuntimeFiles removes what this broker wrote for clients to find it.
func removeRuntimeFiles(dir string) {
	for _, name := range []string{shm.AttachSocket, control.RuntimeFileName} {
		_ = os.Remove(filepath.Join(dir, name))
	}
}

// writeRegionHeader makes the first bytes of an object; its version comes last.
func writeRegionHeader(mem []byte, magic, generation, id, owner uint64) {
	h := regionHeader(mem)
	h.Magic, h.HeaderBytes, h.SizeBytes = magic, uint32(regionHeaderBytes), uint64(len(mem))
	h.Generation, h.RegionID, h.OwnerIncarnation, h.Features = generation, id, owner, snapshot.Features
	atomic.StoreUint32(&h.Version, protocol.VersionWord)
}
