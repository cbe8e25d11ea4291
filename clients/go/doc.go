// Package callboard is the Go client: it publishes tensors to a stage and reads
// consistent snapshots of it, in place, from other processes' memory.
//
//	stage, err := callboard.Dial(ctx, callboard.Options{})
//	defer stage.Close()
//	stage.Publish(ctx, "camera/rgb", frame)        // one copy, then sealed
//	image, err := stage.Latest(ctx, "camera/rgb")  // no copy; image.Release() when done
//
// # What it is
//
// The verbs of the stage in Go's form: contexts, options structs, iterators,
// generics. A Stage and all that it gives out may be used by any number of
// goroutines. Every call that waits takes a context and notices its end within
// 100 ms; a submission never waits for the broker. What looks at sealed data has no
// context, because it does not wait, with one exception: memory that this process
// meets for the first time is asked for, and when the broker is gone just then, the
// next one is waited for, up to Options.ReattachWait.
//
//	Query          an ordered list of prims, from paths or from a filter
//	Op             one operation on its way; Wait tells how it ended
//	MapSession     memory that is filled in place and handed over
//	MapGroup       a piece of it, or one that was claimed of another client's session
//	Read, Group    sealed data of some attributes: the newest, as of an ordinal or a stamp, or what changed;
//	               of the fixed kind one array, of kind array a tensor for each prim (Tensor, Row).
//	               A Group is a lease: it pins its data until Release; Retain gives another one,
//	               ExportVersioned one that a library in C holds
//	Snapshot       sealed data of everything at one epoch; its Cursor is where a delta begins
//	Follow, Watch, Epochs   waiting for the next one: in a call, in a loop, by a channel
//	Device, CUDASync  device memory: where rows lie, and what a producer's rows wait for
//
// Rows may lie in a GPU's memory (DeclareOptions.Device, MapOptions.Device). Their groups
// have a DevicePointer in place of Bytes, and Array, exports and writes are by address;
// Group.On and ReadOptions.Device give them on the host. Devices have this process's own
// numbers and are matched by UUID.
//
//	m, err := stage.MapAttribute(ctx, q, "points", MapOptions{DType: float32x3, Device: CUDA(0), Ordinal: 1})
//	address, err := m.DevicePointer()              // a kernel is queued in stream, which fills it
//	err = m.Commit(ctx, CUDASync{Stream: stream})  // the broker waits for it, no device does
//
// # Its place in the data's way
//
//	Dial ─▶ attach socket ─▶ channel, directory, doorbell; segments as they are met
//	WriteAttribute, MapAttribute, DeleteAttributes, AdvanceWriteFloor ─▶ package ring ─▶ broker
//	ReadAttributes, Snapshot, Watch ─▶ package snapshot (no broker, no ring)
//	DevicePointer, CUDASync ─▶ package cudaipc ─▶ the driver; handles by the attach socket
//
// # Invariants
//
//	G1 Memory of the stage stays mapped, and the channel's lock held, until the
//	   Stage is closed and the last view of it is released.
//	G2 A view's bytes are read-only and stay as they are until its Release; Release
//	   counts once, from any goroutine. What was got from a view (Bytes, Rows, Row) must
//	   not be touched afterwards: Go cannot catch that.
//	G3 An op's error belongs to the op and stays with it.
//	G4 What arguments and sealed state decide is refused at once, before anything is
//	   submitted (rule R6); the broker decides the rest with the same codes.
//	G5 What was forgotten is given back when the garbage collector finds it: views
//	   are released, sessions aborted. Options.Forgotten is told. A slice does not
//	   keep its view alive: hold the Group as long as its bytes are in use.
//	G6 The driver is loaded by the first call that needs device memory, never before; what
//	   fails then is tried again by the next (behaviour 306).
//	G7 Device memory and events are imported once for the process, and stay open while a
//	   view, a session or an export uses them, or work that was handed over goes on. They are
//	   closed when they left service or their broker is gone (rules B3, C6).
//	G8 What is sealed in device memory has nothing to wait for. The reader's own work there
//	   must be done before it releases the group (rule V8): synchronize first.
//
// # When a peer dies or lies
//
// A broker that ends the session says so: ops and calls fail with ErrSessionEnded and
// its text, views stay readable. One that is gone without a word is waited for
// (Options.ReattachWait): reads, views and waits go on, calls that wait for the broker
// wait, and submissions are refused with ErrBrokerRestarted. The next broker takes this
// client up where it was: what was in flight and not sealed ends with ErrBrokerRestarted
// (Op.SealedMaybe), map sessions are over, queries go on. What had ended well without a
// seal is lost as well: the next submission is refused once, which says what. Device memory
// goes with its broker: attributes there restart without rows, and groups of before have no
// pointer any more (ErrBrokerRestarted). What a broker wrote is checked before it is used, so
// a damaged directory is an error of kind INTERNAL and never a fault.
//
// # Not here
//
// The meaning of dtypes and shapes (package tensor), finding versions (package
// snapshot), rings (package ring), the driver (package cudaipc), pointers of
// gorgonia.org/cu (the module in gorgonia). Go programs do not fork; mappings are
// kept out of children that exec, and descriptors are close-on-exec.
package callboard
