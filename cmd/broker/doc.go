// Command callboard is the one binary: it serves a stage and looks at it.
//
// # What it is
//
// `serve` runs a broker. `ls`, `info` and `watch` ask a running one over NATS, with the observer's credential. `read`
// attaches as any client does and shows a value from shared memory. `gc` removes what dead brokers left. `demo` starts
// a broker and five processes that exchange and check real data. One file for each command.
//
// # Its place in the data's way
//
// Nowhere in it. `serve` holds the process in which package broker works; all else only looks.
//
// # Invariants
//
//  1. Results go to standard output, everything else to standard error: output can be piped.
//  2. Exit codes mean the same for every command; exit.go has them and --help shows them.
//  3. A command that only looks changes nothing: it needs no more than the observer's credential or a read-only client.
//  4. A demo's processes end when its supervisor does, however that ends: each watches a pipe from it.
//
// # When a peer dies or lies
//
// No broker is exit code 3 and says where it was looked for. A broker that dies under `watch` is waited for. A process
// that dies in the demo ends the demo with an error, and what it left is removed.
//
// # Not here
//
// What a broker does (package broker), what its events and answers mean (package control and docs/control-plane.md),
// reading (clients/go). The Python half of the demo lies in examples/demo.
package main
