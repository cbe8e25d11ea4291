// Package shm is Callboard's floor: everything that talks to the kernel about
// memory, descriptors, locks and directories.
//
// # What it is
//
// Typed access to mapped bytes (LoadU64, View, Slice), mappings (Mapping), named
// shared-memory objects whose pages exist before anybody sees them (Object), futexes
// across processes (FutexWait, FutexWake), a Unix socket that keeps message borders
// and carries descriptors (Listener, Conn), the private directories a stage lives in
// (RuntimeDir, ShmDir, DirLock), its generations and what dead brokers left behind
// (Sweep, Leftovers), and the book-keeping that cuts segments into blocks (Pool).
//
//	/dev/shm/callboard-<uid>/<stage>/<generation>/<object>   memory, broker only
//	<runtime place>/<stage>/{attach.sock,nats.json}          how clients get in
//
// # Its place in the data's way
//
// Everything lies on it and it knows nothing of what lies above: no layout, no opcode,
// no ordinal. The broker creates objects and hands descriptors over a Conn; rings and
// snapshots live in the mapped bytes; Pool says which bytes are whose.
//
// # Invariants
//
//  1. An object's pages are reserved before it has its name; a full file system is a
//     NoSpaceError with both numbers, never a SIGBUS (field reports B1, B2).
//  2. Only directories of our own uid with mode 0700 that are no symbolic links are
//     used (rule I5).
//  3. Locks are flocks on the directories and objects themselves; there are no lock
//     files, so none is ever deleted under somebody (field report A24). After locking,
//     device and inode are compared with the path (rule S1).
//  4. Who is alive is asked of the kernel (socket, flock, pidfd), never of a pid's
//     number or of a file's age (rule I3, field reports A27, C2).
//  5. Every descriptor is close-on-exec, and one that arrives with a bad message is
//     closed before the error is returned (rule I2).
//  6. Two leased blocks of a Pool never overlap; a wrong Free panics with numbers. What
//     lies in a segment already is claimed, and a wrong Claim is an error.
//  7. Waiting, waking, Alloc and Free of warm blocks, and words take no memory from
//     Go's heap.
//
// # When a peer dies or lies
//
// A closed or dead peer is io.EOF from Recv and true from HungUp. A peer that does not
// read makes Send end with ErrTimeout, so it cannot stop the broker. A message that is
// too long, or carries too many descriptors, is a TruncatedError. A client that
// truncates an object under us raises a fault, which Guard turns into ErrFault (rule
// S3). Bytes behind View and Slice may change at any time while a peer maps them
// writable: read once, check, then use the copy.
//
// # Not here
//
// Layouts and their magic numbers: protocol. Rings and doorbells: ring. Which block
// holds which version, and when it may be reused: snapshot. Device memory: cudaipc.
package shm
