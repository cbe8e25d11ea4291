// Package model is an exhaustive small-scope model of how snapshots are published, pinned and reclaimed: rules V1–V6,
// and of I3 the clearing of a dead reader's pins.
//
// # What it is
//
// One broker, one or two readers, one or two attributes, and no more version slots and blocks than V4 allows for. The
// broker seals epoch after epoch and tries to reclaim any dead version at any time; readers read for ever. Every load
// and every store of a shared word is one step, every store goes through a store buffer (package modelcheck), and
// every interleaving is visited. [Rule] names the rules that can be left out; each one left out must be caught.
//
// # Its place in the data's way
//
// Beside it: package snapshot is the protocol in earnest, word for word in the order of this model. When one changes,
// change the other. The tests print a table of outcomes, kept in RESULTS.md.
//
// # Invariants
//
// What the search looks for, in every state:
//
//  1. Whole: each word a reader sees is the one that was sealed, never one of a later use of the block (torn read).
//  2. One instant: all attributes of a read show the truth at the read's one epoch.
//  3. Found: a reader whose pins passed the horizon finds a version of every attribute.
//  4. Paid retries: a reader retries only if the epoch has moved, so a stopped broker cannot keep it from reading.
//  5. Enough: with (readers + retained + 1) blocks and slots one pass over the dead versions frees a block, whatever
//     the readers do (V4).
//  6. Exact: a read as of an epoch gives that epoch's truth, or OUT_OF_RANGE only for a state no longer retained.
//
// # When a peer dies or lies
//
// A reader may die at any step; its stores drain, later the broker clears its pins and hands the channel to another.
// Lying peers are the business of bound checks in package snapshot, not of this model.
//
// # Not here
//
// The death of the broker and its recovery record (V6's checksum, B2: snapshot/recovery/model); layouts, row
// tables and shared blocks (V8); growing slot pages; more than two readers at once; processors that reorder loads or
// stores beyond store buffers.
package model
