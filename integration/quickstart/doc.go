// Package quickstart keeps pages true whose programs people copy: README.md, docs/migration
// and examples/robot. It runs what they say as it stands there.
//
// # What it is
//
// Tests that cut the marked blocks out of a page and execute them: of README.md the broker's
// commands, a program in each language, the commands that build the one in C, the
// command line; of docs/migration our side of each comparison; of examples/robot the
// commands that start its nodes. A block is marked by a comment in the line above its fence:
//
//	<!-- run: python -->
//
// # Its place in the data's way
//
// Beside it, where a newcomer stands. It adds nothing to a block but private places: a
// runtime directory in the environment, and --shm-dir for the commands that take it.
//
// # Invariants
//
//  1. Exactly the blocks in its list are marked in a page: one that is lost, renamed
//     or added without a test fails.
//  2. A program says itself whether it saw what it wrote; one without such a line fails,
//     as does one that ends with anything but 0. What it sealed is looked at once more
//     from here.
//  3. Each line of the command line has an expected output.
//  4. Nothing is left when the broker has ended.
//
// # When a peer dies or lies
//
// A program that does not end is killed after some minutes; what it and the broker printed
// is shown.
//
// # Not here
//
// The command line in full (cmd/broker), the clients (theirs, and integration).
package quickstart
