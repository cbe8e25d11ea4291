package gpu

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// slowly runs a test with a producer whose device begins everything late, and longer, up to a limit, where the test
// could not see what it looks for: a busy machine may be as late as the device.
func slowly(t *testing.T, m *machine, seen func(producer *process) bool) {
	t.Helper()
	for delay := 300 * time.Millisecond; ; delay *= 2 {
		producer := m.client(fmt.Sprintf("producer, late by %v", delay), fmt.Sprintf("CUDAEMU_DELAY_US=%d", delay.Microseconds()))
		if seen(producer) {
			return
		}
		producer.kill()
		require.Less(t, delay, patience/4, "it was never seen")
	}
}

// lateRows are filled by an operation each: the last is there long after what the library queues of its own, which begins
// as late.
const lateRows = 4

// Rows that are handed over without a word of what fills them are sealed as they are then: wrong. The same with a
// CUDASync is right (rule C3; behaviours 303, 305; field report F1).
func TestWhatIsNotWaitedForIsSeen(t *testing.T) {
	t.Parallel()
	needsEmulation(t)
	m := start(t)
	reader := m.client("reader")
	ordinal := uint64(0)
	hand := func(p *process, value int, sync string) []int {
		ordinal++
		p.do(order{Do: "map", Name: "x", Prims: prims(lateRows), Bytes: rowBytes, Device: "cuda:0", Ordinal: ordinal, Init: "zero"})
		p.do(order{Do: "fill", Name: "x", Value: value})
		p.do(order{Do: "commit", Name: "x", Sync: sync})
		p.do(order{Do: "seal", Name: "x", Ordinal: ordinal})
		return reader.do(order{Do: "read", Name: "x", Prims: prims(lateRows)}).Rows
	}
	value := 0
	slowly(t, m, func(producer *process) bool {
		value += 10
		wrong := hand(producer, value, "")[lateRows-1] != value+lateRows-1
		for n, sync := range []string{"stream", "event", "both", "default"} {
			require.Equal(t, rows(value+n+1, lateRows), hand(producer, value+n+1, sync), "sync %s", sync)
		}
		return wrong
	})
}

// The same for a tensor of the client's own that is written: it is copied behind what Sync names.
func TestWritesWaitForTheirTensor(t *testing.T) {
	t.Parallel()
	m := start(t)
	producer := m.client("producer", "CUDAEMU_DELAY_US=50000")
	reader := m.client("reader")
	for n, sync := range []string{"stream", "event", "both", "default"} {
		producer.do(order{Do: "write", Name: "x", Prims: prims(lateRows), Bytes: rowBytes, Value: 10 * n, Ordinal: uint64(n + 1), From: "cuda:0", Device: "cuda:0", Sync: sync})
		producer.do(order{Do: "seal", Name: "x", Ordinal: uint64(n + 1)})
		require.Equal(t, rows(10*n, lateRows), reader.do(order{Do: "read", Name: "x", Prims: prims(lateRows)}).Rows, "sync %s", sync)
	}
}

// Every hand-over has an event of its own: the tenth is waited for as the first (field report F13).
func TestF13EveryHandOverIsWaitedFor(t *testing.T) {
	t.Parallel()
	m := start(t)
	producer := m.client("producer", "CUDAEMU_DELAY_US=20000")
	reader := m.client("reader")
	for n := range 10 {
		producer.do(order{Do: "cycle", Name: "x", Prims: prims(2), Bytes: rowBytes, Device: "cuda:0", Ordinal: uint64(n + 1), Value: 3 * n, Sync: "stream", Count: 1})
		require.Equal(t, rows(3*n, 2), reader.do(order{Do: "read", Name: "x", Prims: prims(2)}).Rows, "hand-over %d", n)
	}
}

// A seal waits for the rows that it covers and nothing else does: while a producer's device is late, others write, seal
// and read, on the host and on the device (rules C3, C4, L1).
func TestOthersDoNotWaitForALateDevice(t *testing.T) {
	needsEmulation(t)
	m := start(t)
	other := m.client("other")
	n := 0
	slowly(t, m, func(producer *process) bool {
		n++
		ordinal, name := uint64(n), fmt.Sprintf("late%d", n)
		producer.do(order{Do: "map", Name: name, Prims: prims(1), Bytes: rowBytes, Device: "cuda:0", Ordinal: 1})
		producer.do(order{Do: "fill", Name: name, Value: 9})
		producer.do(order{Do: "commit", Name: name, Sync: "stream", Async: true})
		for _, where := range []string{"cpu", "cuda:0"} {
			other.do(order{Do: "cycle", Name: where, Prims: prims(2), Bytes: rowBytes, Device: where, Ordinal: ordinal, Value: n, Sync: map[bool]string{true: "stream"}[where != "cpu"], Count: 1})
			require.Equal(t, rows(n, 2), other.do(order{Do: "read", Name: where, Prims: prims(2)}).Rows)
		}
		late := producer.do(order{Do: "done", Name: name}).Number == 0
		producer.do(order{Do: "seal", Name: name, Ordinal: 1})
		producer.do(order{Do: "wait", Name: name})
		require.Equal(t, []int{9}, other.do(order{Do: "read", Name: name, Prims: prims(1)}).Rows)
		return late
	})
}
