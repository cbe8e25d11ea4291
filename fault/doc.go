// Package fault holds mistakes that are made on purpose, to show that the tests would notice them.
//
// # What it is
//
// A list of names, and On, which tells whether the mistake of that name is to be made. In a plain build On is false
// and costs nothing: the compiler drops what depends on it. A broker that is built with the tag callboard_faults makes
// the mistake that CALLBOARD_FAULT names.
//
// # Its place in the data's way
//
// Nowhere. snapshot, tensor and broker ask On where a line of theirs could be wrong; clients/conformance runs the case
// that must fail then, integration the stress that must see a torn read.
//
// # Invariants
//
//  1. Without the tag no fault can be switched on, whatever the environment says.
//  2. Every name of All has a scenario that fails when it is on (clients/conformance, TestFaultsAreFound).
//
// # When a peer dies or lies
//
// A name that is not in All ends the process at its start, with the names that are.
//
// # Not here
//
// Faults of the machine (deaths, full file systems, damaged memory): tests make those from outside.
package fault
