// Package cudaipc is everything that Callboard does with NVIDIA's driver: it loads it at
// run time, and shares device memory and events between processes.
//
// # What it is
//
// Load gives a Driver, which is the driver's functions as Go methods; a Thread is the one
// operating-system thread on which they are called for a device. A broker allocates and
// copies with these, and holds a pool of Events. A client opens what the broker exported
// with Imports. Probe says beforehand whether that can work, SelfTest proves it with a
// process of its own.
//
//	driver.go errors.go           Driver, device numbers, what the driver refused
//	library.go library_unsafe.go  the driver library: symbols, calls
//	library_none.go               builds without it: tag nogpu, other platforms
//	thread.go wait.go             the thread of a device, and waiting for a producer's event
//	host.go host_unsafe.go        host memory that the device may use
//	events.go importers.go        interprocess events, and who may have which open
//	export.go imports.go          what crosses the socket, and what becomes of it
//	probe.go selftest.go cause.go whether it works here, and what to do if not
//
// The library is loaded with dlopen: nothing of CUDA is needed to build, none of it to run,
// and there is no C of our own. A build with it needs a dynamic linker; with the tag nogpu it
// is static again and Load gives ErrNotBuilt.
//
// # Its place in the data's way
//
//	producer                          broker                            reader
//	  Imports.Open ◀── DeviceReply ──── an arena's handle, Events.Export
//	  kernels fill a block
//	  EventRecord on its stream ─────▶ Thread.WaitFor, then copies on its own stream
//	                                    publishes when they have completed ──▶ Imports.Open
//
// The reader waits for nothing: what is published is complete. Blocks travel as arena,
// offset and length; addresses never do, for each process has its own.
//
// # Invariants
//
//  1. The process that allocates is the broker. Clients import, so a client's death frees
//     nothing that others use (rule C1, field report F2).
//  2. A retired event is destroyed only when no process has it open: its exit is proven. A
//     client counts as having it open from before it gets the handle (F3).
//  3. A process opens each arena and each event once, and matches devices by UUID (rule C2;
//     F4, F8, F10, G18).
//  4. Every driver call below SetCurrent is made on the device's Thread. But for the
//     self-test nothing here asks it to wait for the device: work is queued, and asked
//     about. Of itself the driver may wait in calls that free memory or close it.
//  5. Nothing that outlives a call is in Go's heap: only a Host gives a HostAddress.
//  6. The device is never made to wait for another process's event. It is asked about, with
//     a deadline and a look at whether the producer lives (rule C3).
//  7. An event is leased again only when its last record has completed; else it is retired.
//     Before an event's record nobody looks at it: one that was never recorded counts as
//     complete.
//  8. No failure of a probe or of loading is remembered (behaviour 306).
//  9. The calls that copy on the device, record events and ask about them take no memory from
//     Go's heap.
//
// # When a peer dies or lies
//
// A producer that dies leaves an event that may never complete: WaitFor ends with
// ErrProducerDied or ErrDeadline, and the broker retires the event. Its kernels may outlive
// its socket, so its blocks are freed only when its process has exited (rule B4). A reader
// that dies takes its imports with it; ClientGone says so. A broker that dies takes the
// memory with it: imports show nothing that can be relied on, and exports of the next one are
// of another generation (B3). Whoever can open an arena can write to it, since the driver
// has no read-only kind of sharing: handles go over the attach socket only. A handle
// that the driver refuses is an *ImportError that says what that usually means. When the driver reports that the context is lost
// (Code.ContextLost), this process gets no other one and has to be started again.
//
// # Not here
//
// Arenas, who may have which open, and copies in lanes: broker. Which block holds which
// version, and when it may be reused: snapshot. Reading a framework's tensors: tensor and
// the clients. Kernels: none; copies and strided copies do. Sharing by descriptors
// instead of handles (VMM), which would need no common pid namespace: later, as another sort
// of export. The emulated driver of the tests: integration/cudaemu.
package cudaipc
