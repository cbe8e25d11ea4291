// Package broker serves one stage: it makes the shared memory or recovers it, attaches
// clients, runs their operations and announces what happens.
//
// # What it is
//
// One goroutine, the stage loop, owns the store, all rings and all leases.
// Everything that may take long runs beside it and comes back through a mailbox:
// making segments, big copies, talking over sockets, NATS, all that a GPU is asked for.
//
// # Its place in the data's way
//
//	what a killed broker left ──▶ recover.go
//	attach socket ──▶ session.go ──▶ mailbox ─┐
//	rings ─────────▶ loop.go ──▶ operations.go ──▶ snapshot.Store ──▶ readers
//	                     │  jobs.go copies.go (copies, new segments)
//	                     │  device_*.go ──▶ package cudaipc ──▶ driver (arenas, events, copies)
//	                     └▶ announce.go ──▶ NATS          describe.go ◀── NATS
//
// # Invariants
//
//	K1 Only the loop touches the store, a client's rings, queries and sessions.
//	K2 The loop never waits: not for a socket, a copy, the file system or NATS.
//	K3 Each op that was drained gets exactly one completion, unless its session ends.
//	K4 A channel's pins count from before its client learns of it until its process
//	   is proven dead (rules I2, I3).
//	K5 A lease of a client that hung up is not used again before that proof (rules S5, M2).
//	K6 A start that fails leaves what it was to recover, and a broker that left its stage
//	   to another one touches nothing of it any more.
//	K7 An op that waits for other clients' ops is parked: it holds up no other op (rule M2).
//	   One that waits for its client's work on a device, or makes a mirror, does so beside that
//	   client's next ops; of these, what it covers and what must come after it waits for it.
//	K8 What may be for nothing, copying ahead, the loop does only when nobody rang for a
//	   while, 64 KiB at a time (rule L1).
//	K9 The loop and the copy workers never call the driver: a device that hangs holds up
//	   what waits for it alone, and Close waits for it a while only.
//	K10 A client counts as having an arena open from before it gets the handle until it said
//	   that it closed it, or its process has exited. Nothing is freed under it, also not at
//	   the broker's end (rule C6).
//	K11 An event is leased with each group on a device and ends with the op that ends the
//	   group. Where nobody can know that its record has completed it is never used again,
//	   and the block waits for its client's process (rules C3, B4).
//	K12 A handle goes over the attach socket alone, to a client for whom something lies there
//	   (rule C2).
//
// # When a peer dies or lies
//
// A hang-up ends the session: map sessions are aborted, claimed groups of others' are
// announced again, queries released; the
// channel and the client's segments stay until its lock is free. A malformed ring
// entry, a garbled message or a truncated object ends that session with a text; a
// wrong value fails its op alone (rules R5, S3). What a client had on a device waits for the
// end of its process, not of its socket. A device whose context is lost fails its own
// ops, and what waits there for a seal is given up.
//
// A broker that is killed is followed by one that goes on with its generation: it knows
// every channel that it finds before it reclaims anything, and takes back the clients
// that say who they were (rules S1, B1, B2). One that is asked to leave ends its loop
// between two operations.
//
// # Not here
//
// What the driver is and how it is called (package cudaipc).
// What a seal does, what is believed of a directory (package snapshot), how rings work (package ring), what travels
// over NATS (package control), the command line (cmd/broker).
package broker
