//go:build !callboard_kill

package snapshot

// step marks a place at which a test may kill the broker: see step_kill.go.
func step() {}
