// Package goclient tests the Go client's API against a real broker.
//
// # What it is
//
// Tests that call the client as a user's program does, within the test's own process:
// queries, writes, maps, seals, reads, snapshots, the short form, and each refusal with
// its numbers. Cases are those of the behaviour list that one process can show.
// testdata/dlpack is a program with cgo, built and run by its test: the rest of the
// module needs none.
//
// # Its place in the data's way
//
//	test ─▶ clients/go ═▶ shared memory ◀═ a broker process of package harness
//
// # Invariants
//
//  1. Each test has a broker of its own.
//  2. Refusals are looked at in full: kind, text with numbers, and that nothing changed.
//
// # When a peer dies or lies
//
// See package integration; a store to memory that was handed back must fault where it is
// made (rule M1), which faults (fault_test.go) catches.
//
// # Not here
//
// What needs no broker: clients/go. What all languages must agree on: clients/conformance.
package goclient
