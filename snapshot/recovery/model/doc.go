// Package model is an exhaustive small-scope model of how a broker that was killed is followed by another: rules B2,
// V3 and V6, and the flaws that they exclude.
//
// # What it is
//
// A broker seals epoch after epoch and reclaims dead versions; it may be killed before any of its stores, also while it
// recovers, and the next one begins with nothing but shared memory. One reader runs on all the time. Every store of a
// word that the reader or a recovery may look at is one step, and every interleaving is visited. [Rule] names what can
// be left out; each one left out must be caught.
//
// # Its place in the data's way
//
// Beside it: package snapshot is the protocol in earnest; publish, reclaim and Recover there make their stores in the
// order of this model. When one changes, change the other. The tests print a table of outcomes, kept in RESULTS.md.
//
// # Invariants
//
// What the search looks for, in every state:
//
//  1. Kept: a recovery gives the newest epoch that was committed, neither less nor more, with the bytes that it had.
//  2. Once: an epoch that was committed or shown is never made again with other contents.
//  3. Whole: what a reader sees at an epoch, of all attributes, is what was sealed, through any number of kills.
//  4. Found: a reader whose pin passed the horizon finds a version of every attribute, also in the midst of a recovery.
//  5. Paid retries: a reader is sent back by a horizon only if the epoch has moved.
//
// A version's contents are the epoch and the life of the broker that wrote them, so that an epoch which two brokers
// made shows. The checksum is an ideal one: a record is intact, or it is not.
//
// # When a peer dies or lies
//
// The broker dies as often as the bounds say; a reader's death is the business of snapshot/model.
//
// # Not here
//
// Store buffers (snapshot/model searches with them: what a broker has stored is in memory when the kernel ends it),
// layouts and rings of deletes (undone as slots are), strings and tables (never undone), damaged memory.
package model
