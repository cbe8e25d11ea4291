package snapshot

import "sync/atomic"

// store64 and store32 store a word of shared memory. Between any two of them the broker
// may be killed: what is there then is what the next one recovers from (rule B2), and
// what a test looks at in step.
func store64(word *uint64, value uint64) {
	atomic.StoreUint64(word, value)
	step()
}

func store32(word *uint32, value uint32) {
	atomic.StoreUint32(word, value)
	step()
}
