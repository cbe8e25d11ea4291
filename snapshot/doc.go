// Package snapshot is the stage's memory of what was published: attributes, their
// versions, who may still look at them, and when their memory is used again. It has
// two halves that meet in shared memory only. Store is the broker's: it takes writes,
// seals them and reclaims. Reader is everybody else's: it finds sealed data in place,
// without asking the broker.
//
// # What it is
//
// The words, by the example of an attribute "pose" that keeps two versions:
//
//   - A seal publishes everything that it covers in one step, the epoch: 1, 2, 3 …
//     The epoch word is stored last, so whoever reads at an epoch sees all of a seal
//     or nothing of it.
//   - A version is one immutable state of one attribute. It is born at an epoch and
//     dies at the one that replaces it; a reader at epoch e sees the version with
//     birth ≤ e < death.
//   - A pin is an epoch in a slot of the reader's channel. It keeps every version
//     that is alive at its epoch.
//   - The horizon of an attribute says up to which death versions may have been given
//     to others. A reader pins first and then looks at the horizon; the store raises
//     the horizon first and then looks for pins. Whoever comes second sees the other.
//   - A layout says which prim has which row. Attributes that are written together
//     share one; an attribute that gains prims on its own gets its own.
//   - Column 0 holds the floors: versions like all others, so a reader at an epoch
//     sees the write floors of that epoch.
//   - Two recovery records tell in turn, for every version that is not reclaimed, what
//     a restarted broker must know. Recover makes a Store of them.
//
// Three seals later, with one reader at epoch 1:
//
//	epoch            1         2         3
//	                 │         │         │
//	pose   slot 0    ├─────────┤         ┊        born 1, dies 2: pinned, stays
//	       slot 1    ┊         ├─────────┤        born 2, dies 3: retained
//	       slot 2    ┊         ┊         ├────▶   born 3, lives
//	@floor slot 0…2  the same way, one version per seal; retained: the newest only
//	pin              1
//
// An array column's rows have lengths of their own: its block is a table of RowRefs
// into data blocks, which hold the elements and are never written to again. A write
// brings a data block and rewrites its rows' entries; what is said of rows below holds
// for the entries. Say versions 5 to 8 of a column have a row in data block D, and
// version 9 gives that row another place: D goes back when the last of 5 to 8 does.
//
// Seal 4 writes slot 3, sets the death of slot 2 to 4, writes record 4 mod 2 with the
// four entries of pose, stores epoch 4 and wakes readers. Slot 1 is now beyond
// retention and nobody's pin is in [2, 3): the horizon of pose becomes 3, the pins are
// looked at once more, and the block of slot 1 is what the next write gets. When the
// reader lets go of epoch 1, the seal after that gives slot 0 back. Had the reader
// stored a pin of epoch 2 between the two looks, slot 1 would have stayed; had it come
// later, it would have seen horizon 3, dropped its pin and tried again at epoch 4.
//
// # Its place in the data's way
//
//	producer ─ Map ─▶ Session ─ UnmapGroup ─┐            adopt: the block becomes the version
//	producer ─ Write, Delete ───────────────┴▶ capture ─ Seal ─▶ fold ─▶ version ─▶ Reader
//	                                                     scatter: into a block that caught up,
//	                                                     by a Job when it is long
//
// A column may lie on a device. Its blocks are cut from arenas of device memory like all
// others, and what is told of blocks, captures, folds and versions holds for them; the host
// only never looks at their bytes. Where bytes must move, the same places that the host
// would copy become a list of DeviceCopy, which the broker's Device makes in Job.Run:
//
//	producer ─ UnmapAfter(event) ─▶ Job: wait, copy where it lies elsewhere ─▶ capture
//	                       Seal ─▶ Job: base, then captures, as one list    ─▶ version
//
// What waits for its seal is a list of captures for each column, by ordinal and then as
// accepted: bytes and the prims that they are for. All captures of one ordinal are its
// overlay, and any number of ordinals may wait (rule O1). Nothing is applied early, so a
// lower ordinal that comes late finds nothing to undo.
//
//	write.go incoming.go accept.go  what may be written, and when   delete.go remembered.go  deletes, of what comes later too
//	query.go layout.go            which prim has which row
//	filter*.go                    which prims a query by filter is of
//	capture.go by_prim.go session.go  what waits for its seal    memory.go arena.go spares.go  blocks
//	groups.go             sessions that several clients fill: claims, further attempts
//	fold.go recycle.go ahead.go   the next version of a column   tombstones.go       what was deleted
//	ragged*.go                    data blocks of array columns, their writes and sessions
//	device.go device_copy.go      what a broker gives of a device, lists of copies
//	*_device.go           sessions, writes and folds on a device    mirror.go     versions in other memory
//	lost.go               what lay on a device of a broker that ended
//	seal.go sealing.go publish.go floors, the order of a seal    reclaim.go          pins and horizons
//	table.go dictionary.go column.go records.go   what the directory holds
//	recover*.go           a Store out of what another broker left
//	reader*.go            the other half
//
// # Invariants
//
//  1. An operation that ends with an error or with ErrRetry has changed nothing that
//     anybody can see: it leases everything before it commits anything.
//  2. What a version shows never changes: its block, its rows of the layout and its
//     slot are used again only when it is dead, beyond retention and unpinned, looked
//     for after its horizon was raised (V3, V4, V8).
//  3. A seal stores in this order: births of rows, slots, deaths, record, checksum,
//     epoch (V6). Everything it needs was reserved before; it cannot fail half-way.
//  4. A layout changes only in the step that publishes it, and never while more than one
//     column uses it; a version has exactly the rows that its layout had then.
//  5. A block is written to by its owner alone: the store never scatters into an
//     adopted block (S4), and a producer's block is adopted only whole and in order (M1);
//     one of a session of several groups never, since others can write there.
//  6. Each record, at every moment, equals the truth at its own epoch (B2), and what is
//     in shared memory between any two stores can be recovered from: all that was
//     sealed, and of the seal on its way everything or nothing.
//  7. What a seal copies is what changed: a reclaimed version's block is brought up to
//     date by the rows that changed since, as far as the log reaches (rule O7), but for
//     versions that changed just the rows of a list that this one writes, too; before
//     the seal, where the loop had nothing else to do. A block that is half-way there
//     is still good for the version that it was of: only a seal makes it one again.
//     A rowList is never written to again, so who has the same one has the same rows.
//  8. A warm tick of Write or UnmapGroup and Seal of fixed columns takes no Go memory,
//     and no system call but the wake.
//  9. A data block is there while a version whose table may refer to it is (V8). When
//     what is dead in a column's data blocks outweighs what lives, a seal moves live
//     rows out of them, as many bytes as it was given and 1 MiB; until the block that
//     they leave is empty they count twice. Moving a row is no change of it.
//  10. A filter looks at a survey: versions and captures as they were when it began, held
//     or pinned until it ends. What it looks at is never written to meanwhile, so it may run
//     beside the loop.
//  11. The row map of a first write is made by the write's Job where it has many prims;
//     the seal takes it over only when that write is all that it makes rows of.
//  12. The loop waits for no device. What a device fails at, or the wait for a producer's
//     event, fails that operation alone: nothing that anybody can see, and no capture that
//     waits, has changed; leases go back, but for a block that a producer's queued work may
//     still write to (rule B4).
//  13. No more of a device's memory is in use than its limit says, and what is retired is in
//     use until the broker has freed it (rule C6). The host's memory is not given up for it.
//
// # When a peer dies or lies
//
// A producer that dies takes its sessions along; nothing of them is visible (M3), and
// its segments serve the next client once no version lies in them (S5). A claimant that
// dies leaves its group to the next attempt, in another block (M2). A reader that
// dies is kept waiting for until its death is proven; then RemovePins forgets its pins
// and reclaims. Rows and selections must be private copies: what a client can still
// change is copied, once, by a Job or by the store, and its bytes are only ever moved,
// never believed. A Reader believes nothing either: whatever the directory says is
// checked against the segment that it names. When our own books contradict themselves
// the store panics with the numbers.
//
// A broker that dies is followed by Recover, which believes nothing that it has not
// checked either, headers of segments too: what it cannot trust it refuses, and has
// written nothing then. It does not lower a horizon or move a pin, and reclaims nothing
// before the channels that are left are known. What a client may still write to is
// quarantined (rule B1). What it had on devices is gone with it: the versions are dead to
// all, and the first epoch after it shows their attributes without prims (rule B3, lost.go).
//
// # Not here
//
// Rings, sockets, liveness, and who is told of a seal (packages ring and broker);
// making and mapping segments (package shm, by the broker through Memory.Grow); drivers,
// handles and events of devices (package cudaipc, by the broker through Device); what a
// row's bytes mean (package tensor). The protocol of pins, searched exhaustively, is
// package snapshot/model, and that of recovery snapshot/recovery/model.
package snapshot
