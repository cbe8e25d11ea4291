// Package gpu tests device memory between real processes: the broker's binary, producers
// and readers of their own, an observer over NATS.
//
// # What it is
//
// The test binary starts itself again for each client (role_test.go): it hears on its
// standard input what to do, in JSON, and reports on its standard output, so that a test
// is a list of what several processes do one after the other. The end of its input ends
// it. All clients do their own work on the device as programs of users would: in the
// primary context, on streams of their own.
//
//	exchange_test.go   dense, scattered, masked, adopted, from and to the host, mirrors, DLPack
//	sync_test.go       what is not waited for is seen as wrong bytes, what is waited for is right
//	c_test.go          the C client beside Go's, with its library for CUDA and without
//	death_test.go      producers, readers and the broker are killed at each step
//	midway_test.go     and within one: a handle is being opened, a copy made, an event waited for
//	machine_test.go    two devices in another order, full devices, drivers that refuse
//	fieldreports_test.go   rows F1 to F13 of docs/field-reports.md
//	run.sh, run_test.go    what runs everything on a machine with a GPU, and the proof that it tells what failed
//
// # Its place in the data's way
//
// Beside it. Which driver runs is decided once and printed: the library that
// CALLBOARD_CUDA_LIBRARY names; else the machine's own driver, if it has a device; else
// the emulated one (package cudaemu), which can be told to be slow, full or broken.
// REQUIRE_GPU=1 fails where the driver is emulated. On a machine to which `make gpu-test`
// was carried, which needs no build tool, the broker and the programs in C and C++ are the
// files `callboard`, `test_cuda_live` and `live_cxx17…` beside the test binary.
//
// # Invariants
//
//  1. When a test ends, no process holds memory, an import or an event, clients that ended
//     in order have given everything back themselves, and the broker has left no file.
//  2. What only the emulated driver can show says so through skip.
//  3. No test waits for a time: it waits for a condition, with a limit that a busy machine
//     keeps.
//
// # When a peer dies or lies
//
// That is the subject.
//
// # Not here
//
// The parts on their own: cudaipc, snapshot, broker, clients/go. Whether languages agree:
// clients/conformance.
package gpu
