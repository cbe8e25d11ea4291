//go:build race

package ring

import "sync/atomic"

// The race detector does not look at memory outside Go's heap: atomics in a
// mapping order nothing for it. When client and broker live in one process, as in
// tests, it would report races on what a hand-over does order. So each store that
// hands over is preceded by an add to a word in Go's data, and each load that
// takes over is followed by a load of it.
//
// The words are shared by all channels of the process. That orders more than the
// channels do, and may hide a race between two channels, never in one.

var edges [edgeCount]atomic.Uint64

// edgesOff lets a test whose channel lies in Go's heap show that the channel's own
// atomics order its entries, without help from here.
var edgesOff bool

func releaseEdge(e edge) {
	if !edgesOff {
		edges[e].Add(1)
	}
}

func acquireEdge(e edge) {
	if !edgesOff {
		edges[e].Load()
	}
}
