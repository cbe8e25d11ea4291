// Package integration tests Callboard from outside: real processes, real NATS, real
// deaths. It holds no code but tests and what they are driven by.
//
// # What it is
//
// The test binary starts itself again for each part that a process plays: a producer, a
// reader, a client that dies half-way (roles). A role hears what to do on
// its standard input and reports in JSON lines on its standard output; the end of its
// input ends it, so nothing outlives the tests. Brokers are the `callboard` binary,
// driven by package harness.
//
//	crash_test.go         who dies where, and what must be left: nothing
//	lifecycle_test.go     starts, restarts, leftovers, two stages, two brokers
//	badinput_test.go      garbage over the ring, the socket, NATS and the API
//	stress_test.go        stamped rows under two producers and four readers; -stress=30s
//	                      asks for the full rates, -inject-tear for a broker with a fault
//	languages_test.go     readers in C and Python beside those in Go, and layouts
//	restart_languages_test.go   the broker is killed twenty times under producers and followers in C and Python
//	eventloop_test.go     one loop for two stages and a pipe, in C and Python
//	readers/              their programs
//	robot_test.go         the nodes of examples/robot, each killed under the others
//	fieldreports_*.go     rows of docs/field-reports.md that stand nowhere else
//
// # Its place in the data's way
//
// Beside it. It uses the Go client as users do, and a peer made of the wire alone
// (wire_test.go) where a test must lie.
//
// # Invariants
//
//  1. A stage that was stopped has left no file in the runtime directory and no object in
//     shared memory, and after the tests no process is left: the tests fail otherwise.
//  2. A test that cannot run here says so through skip, which CALLBOARD_TEST_NO_SKIP=1
//     turns into a failure.
//  3. Random tests print their seed; CALLBOARD_TEST_SEED repeats one.
//
// # When a peer dies or lies
//
// That is the subject.
//
// # Not here
//
// Whether C and Python agree with Go: clients/conformance. Interleavings: the models.
package integration
