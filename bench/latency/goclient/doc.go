// Program goclient measures the Go client as latency.c measures the C client.
//
// # What it is
//
// The round of latency.c through the Go client's short form, Map and Latest, in two
// processes: it starts itself as the reader.
//
// # Its place in the data's way
//
// It stands where a user's program stands: above clients/go, beside a broker that
// package main of bench started.
//
// # Invariants
//
//	1 It prints what latency.c prints: cycle and handoff in nanoseconds, a line per round.
//	2 The reader checks each stamp; a wrong one ends both processes with an error.
//	3 A round starts when the one before is over.
//
// # When a peer dies or lies
//
// The processes share pipes: the end of one closes them, and the other ends.
//
// # Not here
//
// What the figures mean (bench), the client (clients/go).
package main
