//go:build !race && !nogpu

package cudaipc_test

const raceEnabled = false
