// Package cclient runs the C client's live test against a real broker.
//
// # What it is
//
// clients/c/tests/test_live.c, built with the C client's own Makefile.
//
// # Its place in the data's way
//
// All of it: attach, query, write, map, seal, read, snapshot, follow, errors by code.
//
// # Invariants
//
// The program ends with 0 and says ok for each verb; nothing is left behind.
//
// # When a peer dies or lies
//
// See package integration.
//
// # Not here
//
// What needs no broker: clients/c/tests.
package cclient
