// Package ring moves operations and pins through a channel, the memory that one
// client shares with the broker.
//
// # What it is
//
// Two rings of 64-byte entries with free-running indices, two areas for what does
// not fit an entry, a table of pin slots, and the bells that let both sides sleep.
// Each side has its own types; none allocates once made.
//
//	client side          broker side        over
//	Client.Submit   ──▶  Server.Drain       submission ring, argument area
//	Client.Poll     ◀──  Server.Flush       completion ring, result area
//	PinTable        ──▶  Pins.Scan          pin slots
//	Bell.Ring       ──▶  Bell.Arm, Wait     doorbell and directory objects
//	Client.Wait     ◀──  Server.Flush       the channel's ClientBell
//
// # Its place in the data's way
//
//	package shm maps the objects ─▶ Layout ─▶ this package ─▶ broker, clients/go
//
// Every write, map, seal and query of a client goes through here; reads of sealed
// data go through the pin slots alone and never through a ring.
//
// # Invariants
//
//	K1 A word has one writer. Each side keeps its own copy of what it wrote and
//	   never reads it back; the other side's word is loaded once and checked.
//	K2 SqTail ≥ SqHead ≥ CqTail ≥ CqHead, and SqTail - CqHead ≤ CqEntries. Each op
//	   has one completion, so a completion always has room (rule R1).
//	K3 An entry is copied out once; checks and use are about the copy.
//	K4 Offsets come from a Layout, a plain value checked against the mapping, never
//	   from the header again. A room is checked before each use.
//	K5 Publish, then ring, then look for sleepers; announce sleep, then look for
//	   work, then sleep (rule R3). Every sleep has an end.
//	K6 A pin's attribute is stored before its epoch; its release is a full barrier
//	   (rule V1). A scan covers every slot that ever held an epoch.
//
// # When a peer dies or lies
//
// A dead peer leaves its words as they were. Entries before SqTail are complete;
// one that was being filled is not before it. Pins stay until Pins.Clear.
//
// A lying peer gets a *CorruptError that names the word, its value and the limit;
// the session ends, the broker lives (rule R5). Whatever bytes a channel holds, no
// function here panics or touches memory outside it. Panics are for our own
// mistakes: a completion without an op, a pin released twice. A peer that cuts the
// file short makes accesses fault; who maps it guards against that (rule S3).
//
// # Not here
//
// Making and mapping objects, futexes (package shm); what an op means (package
// broker); when a pin keeps a version (package snapshot); who gets which room in
// an area, what an op's text was, locks around submissions (clients/go).
package ring
