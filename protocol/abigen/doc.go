// Command abigen writes everything that other languages and people need to know
// about package protocol: the C header, the Python module, the reference page,
// the golden listing and the test vectors.
//
// # What it is
//
// A reader (load.go) that turns the Go source into a model of structs and
// constants, and one writer for each output. Run it from anywhere in the module:
//
//	go run ./protocol/abigen          write what changed
//	go run ./protocol/abigen -check   write nothing; exit 1 and name the files that would change
//
// # Its place in the data's way
//
//	protocol/*.go ──▶ load.go ──▶ model.go ─┬─▶ write_c.go        clients/c/include/callboard_abi.h
//	                                        ├─▶ write_python.go   clients/python/src/callboard/_abi.py
//	                                        ├─▶ write_docs.go     docs/abi.md
//	                                        ├─▶ write_golden.go   protocol/testdata/golden.txt, protocol/listing_test.go
//	                                        └─▶ write_vectors.go  protocol/testdata/vectors/*.hex, clients/c/tests/vectors_table.h
//
// # Invariants
//
//	G1 The same source gives the same bytes: no clock, no map order, no machine.
//	G2 Names are derived, never listed: OffsetBytes is offset_bytes in C and
//	   Python, StatusNotFound is CBD_STATUS_NOT_FOUND in C and STATUS_NOT_FOUND
//	   in Python.
//	G3 A layout that compilers could see in different ways is refused: implicit
//	   padding, unknown field types, misaligned fields, sizes that differ between
//	   amd64 and arm64, arrays of one element.
//	G4 What has no comment is refused, since docs/abi.md would have a hole.
//
// # When a peer dies or lies
//
// There is no peer. A source that breaks G3 or G4 ends in exit status 1 with one
// line for each fault, and nothing is written.
//
// # Not here
//
// The meaning of the words (package protocol), the checks that the outputs agree
// with the running build (tests of package protocol and of the two clients).
package main
