// Package control is Callboard's control plane over NATS: events that tell what happened, requests that ask what is,
// and the server and the credentials both need.
//
// # What it is
//
// Five small parts. Subjects names every subject. Announcer takes notes from the stage loop and publishes them as JSON
// events. Service answers requests as a NATS micro service. Server is the embedded nats-server, or the connection to an
// external one. RuntimeFile hands address and credentials to local processes. docs/control-plane.md is the contract
// that observers in any language read; this package is its only implementation.
//
// # Its place in the data's way
//
// Beside it, never in it. Data moves through shared memory and rings. When the stage loop has made a group or sealed an
// epoch it stores a note here and goes on; the announcer's own goroutine does everything that can be slow.
//
// # Invariants
//
//  1. Announcer.Commit, Group, Client and Health never wait for NATS. They hold one mutex for the length of a copy, and
//     Commit allocates nothing once warm.
//  2. Every event of one broker incarnation has its own sequence number, also the one that was dropped: a loss anywhere
//     shows as a gap. prev_seq shows it even to a subscriber of one subject.
//  3. Every queue has a limit. What does not fit is counted, and the count is announced.
//  4. No connection without credentials. An observer can publish to the read-only request subjects and to $SRV, nowhere
//     else, and subscribes to events and its own inbox only.
//  5. The service's connection can publish to inboxes only, so a request with a forged reply subject cannot make the
//     broker write on an event subject.
//  6. Requests go to the host they name: no queue group on any endpoint.
//
// # When a peer dies or lies
//
// A frozen subscriber loses messages, not the broker's time (NoFastProducerStall). A dead external server fails each
// publish at once and is dialled again for ever; the events of the outage are counted as dropped. A malformed request
// gets an error that names what is wrong; an oversized one is not parsed. A runtime file with the wrong owner or mode is
// refused.
//
// # Not here
//
// What the answers say: the broker supplies the handlers. Waiting for new data: that is a futex on the directory
// (package snapshot), ten to a hundred times faster than a NATS message. Mirroring bulk data to other hosts.
package control
