//go:build !callboard_tear

package snapshot

// tear is the fault that a stress test must notice: see reclaim_tear.go.
const tear = false
