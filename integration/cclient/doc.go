// Package cclient runs the live tests of the C client and of its C++ header against a real broker.
//
// # What it is
//
// clients/c/tests/test_live.c and live_cxx.cc, built with the C client's own Makefile; and the client as others get it:
// installed by CMake, found by find_package and pkg-config, with examples/cpp built and run.
//
// # Its place in the data's way
//
// All of it: attach, query, write, map, seal, read, snapshot, follow, errors by code.
//
// # Invariants
//
// A program ends with 0 and says ok; nothing is left behind. Those in C++ run as C++17, as C++20 and without exceptions.
// Every function of C has a form in C++, and every form a test.
//
// # When a peer dies or lies
//
// See package integration.
//
// # Not here
//
// What needs no broker: clients/c/tests.
package cclient
