// Command observer looks over the shoulder of a robot: it shows what the sensors saw and
// what was commanded, both of one tick.
//
// # What it is
//
// The third node of examples/robot, in Go. It attaches read-only, at any time.
//
// # Its place in the data's way
//
//	lidar.cpp ══ points, valid, turn ══▶ controller.py ══ command ══▶ observer
//	    ╚══════════════════════════════════════════════════════════════╝
//
// # Invariants
//
// What it prints of a tick belongs together: the driver may be ticks ahead of the
// controller, so it reads as of the last ordinal that both have sealed.
//
// # When a peer dies or lies
//
// A driver or a controller that is gone leaves what it sealed, and the observer waits. A
// broker that is gone for good ends it.
//
// # Not here
//
// Announcements over NATS, for those who are not on this machine: `callboard watch`.
package main
