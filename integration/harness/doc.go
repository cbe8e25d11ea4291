// Package harness runs the real broker for tests.
//
// # What it is
//
// Start builds the binary, once for each test process, runs `callboard serve` over
// directories of its own and returns when a client can attach. What is left behind
// when a test ends is found by Residue. RunWithBroker is for a TestMain: the examples
// of a package run beside one broker. Spawn runs the other processes of a test, which hear and report
// in lines.
//
// # Its place in the data's way
//
//	test ─▶ harness ─▶ a broker process ◀═ clients in the test or in its children
//
// # Invariants
//
//	H1 Brokers of tests share nothing: stage, runtime directory and memory are
//	   each one's own, so tests may run side by side.
//	H2 Nothing outlives the test: processes are ended by their own id, directories
//	   removed, whether the test passed or not.
//	H3 A test that failed shows what its brokers printed.
//
// # When a peer dies or lies
//
// A broker that ends before it is ready fails the test with its output. Kill9 kills it
// as a crash would.
//
// # Not here
//
// Tests themselves (package integration); drivers in C and Python (beside those).
package harness
