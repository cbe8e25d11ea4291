// Package callboard is the root of the project and holds no code of its own.
//
// What it is: a shared-memory exchange of tensors between processes, with snapshots that readers can trust. One broker
// per machine, any number of producers that fill buffers in place, any number of readers that look at sealed snapshots
// in place, and NATS to tell what happened.
//
// Its place in the data's way: none. Read docs/architecture.md first, then the package comments from protocol upwards.
//
// Invariants: lint_test.go beside this file holds the shape of the tree. 1. Imports run down only. 2. unsafe lies in
// files named for it. 3. Each outside library has the packages it belongs to. 4. Every package has a doc.go. 5. No
// file knows the machine it was written on.
//
// When a peer dies or lies: nothing here runs, so nothing here notices.
//
// Not here: the Go client is package callboard/clients/go; the program is callboard/cmd/broker.
package callboard
