// Package cudaipc is everything that Callboard does with NVIDIA's driver: it loads it at
// run time, and shares device memory and events between processes.
//
// # What it is
//
// Load gives a Driver, which is the driver's functions as Go methods; a Thread is the one
// operating-system thread on which they are called for a device. A broker holds Arenas of
// device memory and a pool of Events, and moves bytes with a Copier. A client opens what
// the broker exported with Imports. Probe says beforehand whether that can work, SelfTest
// proves it with a process of its own.
//
//	driver.go errors.go           Driver, device numbers, what the driver refused
//	library.go library_unsafe.go  the driver library: symbols, calls
//	library_none.go               builds without it: tag nogpu, other platforms
//	thread.go wait.go             the thread of a device, and waiting for a producer's event
//	host.go host_unsafe.go        host memory that the device may use
//	arenas.go outofmemory.go      device memory, cut into blocks
//	events.go importers.go        interprocess events; who may have what open
//	export.go imports.go          what crosses the socket, and what becomes of it
//	copier.go scatter.go          jobs, tickets, and the scatter itself
//	probe.go selftest.go cause.go whether it works here, and what to do if not
//
// The library is loaded with dlopen: nothing of CUDA is needed to build, none of it to run,
// and there is no C of our own. A build with it needs a dynamic linker; with the tag nogpu it
// is static again and Load gives ErrNotBuilt.
//
// # Its place in the data's way
//
//	producer                          broker                            reader
//	  Imports.Open ◀── DeviceReply ──── Arenas.Export, Events.Export
//	  kernels fill a block
//	  EventRecord on its stream ─────▶ Copier.Await, then Copier.Submit
//	                                    publishes when the job has completed ──▶ Imports.Open
//
// The reader waits for nothing: what is published is complete. Blocks travel as arena,
// generation, offset and length; addresses never do, for each process has its own.
//
// # Invariants
//
//  1. The process that allocates is the broker. Clients import, so a client's death frees
//     nothing that others use (field report F2).
//  2. An arena is one allocation of the driver's plainest kind, a multiple of 2 MiB long,
//     exported once (F5, F6). Its index is never used again, and its generation is higher
//     than that of all before it, other lives of the broker included (rule B3).
//  3. Memory is freed, and a retired event destroyed, only when no process has it open:
//     it said so, or its exit is proven. A client counts as having it open from before it
//     gets the handle (F3).
//  4. A process opens each arena and each event once, and matches devices by UUID (F4, F8,
//     F10, G18).
//  5. Every driver call below SetCurrent is made on the device's Thread.
//  6. Nothing that outlives a call is in Go's heap: only a Host gives a HostAddress.
//  7. The device is never made to wait for another process's event. It is asked about, with
//     a deadline and a look at whether the producer lives.
//  8. An event is leased again only when its last record has completed; else it is retired.
//     Before an event's record nobody looks at it: one that was never recorded counts as
//     complete.
//  9. No failure of a probe or of loading is remembered (behaviour 306).
//  10. Submit, Await, Poll, TryAlloc and the calls that copy and ask about events take no
//     memory from Go's heap once they are warm, and the first four never call the driver.
//
// # When a peer dies or lies
//
// A producer that dies leaves an event that may never complete: WaitFor and Await end with
// ErrProducerDied or ErrDeadline, and the broker retires the event. Its kernels may outlive
// its socket, so its blocks are freed only when its process has exited (rule B4). A reader
// that dies takes its imports with it; ClientGone says so. A broker that dies takes the
// memory with it: imports show nothing that can be relied on, and the next broker's arenas
// have other generations (B3). Whoever can open an arena can write to it, since the driver
// has no read-only kind of sharing: handles go over the attach socket only. A client that
// says it closed what it still uses harms itself: the driver keeps it from the memory of
// others no better than we do. A handle that the driver refuses is an *ImportError that
// says what that usually means. When the driver reports that the context is lost
// (Code.ContextLost), this process gets no other one and has to be started again.
//
// # Not here
//
// Who may attach and gets which handle: broker. Which block holds which version, and
// when it may be reused: snapshot. Reading a framework's tensors: tensor and the clients.
// Kernels: none; copies and strided copies do, see scatter.go. Sharing by descriptors
// instead of handles (VMM), which would need no common pid namespace: later, as another sort
// of export. The emulated driver of the tests: integration/cudaemu.
package cudaipc
