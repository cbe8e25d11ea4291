// Package model is an exhaustive small-scope model of the doorbell: rule R3, in both directions of the rings.
//
// # What it is
//
// One or two clients submit entries and ring; the broker drains the rings and sleeps on the doorbell. In a round trip
// each client also waits for the completion of its entry before it submits the next, asleep on a doorbell of its own.
// Every load and store of a shared word is one step, stores go through store buffers (package modelcheck), and waits
// have no time-out, so that a wake-up that is lost shows as a stage in which nothing moves. [Rule] names what can be
// left out.
//
// # Its place in the data's way
//
// Beside it: package ring is the doorbell in earnest. When one changes, change the other. The tests print a table of
// outcomes, kept in RESULTS.md.
//
// # Invariants
//
//  1. No lost wake-up: whoever sleeps with an entry in a ring it serves has a wake-up on its way.
//  2. Everything arrives: when nothing moves any more, every entry was drained and every completion seen.
//
// # When a peer dies or lies
//
// A client that rings wrongly, writes nonsense to the doorbell or dies before it rings can leave the broker asleep
// beside a full ring. That is what the bound on the wait is for (R3: at most 1 ms in use, 100 ms idle); the model
// leaves the bound out, to show that honest clients do not need it.
//
// # Not here
//
// The entries themselves, full rings, wrap-around of indices and of the 32-bit doorbell (a lost wake-up by wrap needs
// exactly 2^32 rings between the broker's load and its wait, and then costs one time-out).
package model
