// Package protocol is the one source of truth of what processes share: every
// struct that lies in shared memory or crosses the attach socket, every
// constant, status code and opcode.
//
// # What it is
//
// Plain Go structs with explicit padding and constants, nothing that runs but a
// few pure functions that define an encoding (identifiers, page arithmetic, the
// recovery checksum). The generator in protocol/abigen reads these files and
// writes the C header, the Python module, docs/abi.md and the golden listing.
//
// # Its place in the data's way
//
//	client ── attach.go ──▶ broker            messages over the socket
//	client ═══ channel.go ═══ broker          rings, arguments, results, pins
//	broker ──▶ directory.go ──▶ readers       attributes, versions, layouts, floors
//	broker, client ──▶ region.go              the first bytes of every object
//
// # Invariants
//
//	P1 Little-endian, 64-bit, naturally aligned; no implicit padding.
//	P2 Places are offsets or (segment, offset) pairs, never pointers.
//	P3 Reserved fields are zero when written and ignored when read.
//	P4 Every region starts with RegionHeader; its Version word is stored last.
//	P5 A word that two processes touch has one writer, named in its comment,
//	   and is accessed with sequentially consistent atomics.
//	P6 Hot words that different processes write lie on their own 128 bytes.
//
// # When a peer dies or lies
//
// Nothing here runs, so nothing here checks: packages ring and snapshot verify
// every value before they use it, and a value that fails ends in an error that
// names it and its limit (rule R5).
//
// # Not here
//
// Subjects and JSON of the control plane (package control), the algorithms over
// these words (packages ring and snapshot), the meaning of element types
// (package tensor).
package protocol
