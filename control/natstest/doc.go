// Package natstest runs NATS servers for tests, as somebody else would run them beside Callboard.
//
// # What it is
//
// Serve runs a server in the test's process until the test ends. ReservedPort is for one that comes, goes and comes again.
//
// # Its place in the data's way
//
//	test ─▶ natstest ─▶ a NATS server ◀─ control, of a broker that was told to use it
//
// # Invariants
//
// Servers of tests that run side by side share no port, and none outlives its test.
//
// # When a peer dies or lies
//
// A server that does not come up fails the test.
//
// # Not here
//
// The broker's own server, and who may do what on it: package control.
package natstest
