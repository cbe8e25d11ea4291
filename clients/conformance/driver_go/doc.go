// Command driver_go makes the calls of conformance scenarios with the Go client.
//
// # What it is
//
// One command per line on standard input, one answer per line on standard output: "ok" with fields and groups,
// "error" with the stable name, where it came from and the text, or "absent" with the reason why the Go client has no
// such call.
//
// # Its place in the data's way
//
//	supervisor ═ lines ═▶ driver_go ─▶ clients/go ─▶ a broker
//
// # Invariants
//
//  1. A command is made as it stands: nothing is checked, mended or left out here.
//  2. Values travel as the hexadecimal bytes of memory.
//  3. Every wait has an end, so that a line always gets its answer.
//
// # When a peer dies or lies
//
// The end of standard input ends the process, handles first.
//
// # Not here
//
// Expectations and the language of scenarios (package conformance); the same for C and Python (driver_c, driver_py).
package main
