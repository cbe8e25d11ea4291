//go:build callboard_tear

package snapshot

// tear makes the store blind to pins, so that blocks which readers look at are used
// anew and their reads tear. It is there to show that the stress tests would see a
// torn read, and is built in only with the tag callboard_tear.
const tear = true
