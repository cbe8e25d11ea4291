// Command go is the Go client in the shortest form: one process publishes an image
// and another, or the same, looks at it in place.
//
// # What it is
//
// The first five minutes with package clients/go. Start a stage, then run it:
//
//	callboard serve &
//	go run ./examples/go
//
// # Its place in the data's way
//
// A user of clients/go, like any program of yours.
//
// # Invariants
//
// It shows the ordinary way to do a thing, not every way.
//
// # When a peer dies or lies
//
// It prints the error and ends; the error says what to do.
//
// # Not here
//
// Several attributes at one instant, queries, map sessions of many prims: the
// documentation of clients/go.
package main
