// Package workers shares map sessions among processes with the help of NATS.
//
//	err := workers.WorkOn(ctx, stage, "pose", func(g *callboard.MapGroup) error {
//		rows, err := callboard.Rows[[3]float32](g)
//		for i, prim := range g.Prims() { … }
//		return err
//	})
//
// # What it is
//
// A subscription to a stage's announcements of map groups, in the queue group of workers.
// It stands beside the client and not in it, so that a program that does not ask for it
// links no NATS.
//
// # Its place in the data's way
//
//	broker ─ group event ─▶ NATS queue group ─▶ Announced ─▶ callboard.Stage.WorkOn ─▶ claim, fill, unmap
//
// # Invariants
//
//	W1 An announcement is a hint: the claim over the worker's own ring decides (rule M2).
//	W2 A lost announcement is not a lost group: WorkOn lists groups as well.
//
// # When a peer dies or lies
//
// A group of a worker that died is announced as the next attempt. Without NATS, or after it
// is gone, listing goes on. An event that is none, or of another generation, is skipped.
//
// # Not here
//
// Claims and what becomes of a group: clients/go. Subjects, events and credentials:
// package control.
package workers
