package gpu

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"callboard/protocol"
)

// stalled is a client whose work on the device never ends.
func (m *machine) stalled() *process {
	return m.client("stalled", "CUDAEMU_DELAY_US=30000000", "CUDAEMU_STALL_EVENTS=1")
}

// queue hands rows over whose work has not ended, and waits for nothing.
func queue(p *process, name, as string, ordinal uint64, value int) {
	p.do(order{Do: "map", Name: name, As: as, Prims: prims(2), Bytes: rowBytes, Device: "cuda:0", Ordinal: ordinal})
	p.do(order{Do: "fill", As: as, Value: value})
	p.do(order{Do: "commit", As: as, Sync: "stream", Async: true})
}

// While a client's work on a device goes on, so does all else that the client asks for, on the host and on the device
// (rules L1, K7). When it dies then, nothing of it is left, and nobody's seal waits for it (rules B4, M3).
func TestAClientsOwnOpsDoNotWaitForItsDevice(t *testing.T) {
	needsEmulation(t)
	m := startWith(t, nil, nil, "--gpu", "required", "--gpu-timeout", "10m")
	p, other := m.stalled(), m.client("other")
	other.do(order{Do: "cycle", Name: "y", Prims: prims(2), Bytes: rowBytes, Device: "cuda:0", Ordinal: 1, Value: 40, Sync: "stream", Count: 1})
	queue(p, "x", "x1", 1, 10)
	queue(p, "x", "x2", 1, 20) // the same attribute and ordinal
	queue(p, "z", "z", 1, 30)
	p.do(order{Do: "declare", Name: "new", Bytes: rowBytes, Device: "cpu"})
	p.do(order{Do: "write", Name: "h", Prims: prims(2), Bytes: rowBytes, Ordinal: 1, Value: 50})
	p.do(order{Do: "seal", Name: "h", Ordinal: 1})
	require.Equal(t, rows(50, 2), p.do(order{Do: "read", Name: "h", Prims: prims(2)}).Rows)
	require.Equal(t, rows(40, 2), p.do(order{Do: "read", Name: "y", Prims: prims(2), Device: "cpu"}).Rows)
	p.do(order{Do: "map", Name: "h", Prims: prims(2), Bytes: rowBytes, Ordinal: 2})
	p.do(order{Do: "abort", Name: "h"})
	for _, as := range []string{"x1", "x2", "z"} {
		require.Zero(t, p.do(order{Do: "done", As: as}).Number, as)
	}

	p.kill()
	other.do(order{Do: "write", Name: "x", Prims: prims(1), Bytes: rowBytes, Device: "cuda:0", Ordinal: 1, Value: 60})
	other.do(order{Do: "seal", Ordinal: 1})
	require.Equal(t, rows(60, 1), other.do(order{Do: "read", Name: "x", Prims: prims(1)}).Rows)
	require.Eventually(t, func() bool { _, found := m.attached("stalled"); return !found }, patience, 20*time.Millisecond)
}

// One client's ops at one ordinal run as submitted, also where the first has to wait for the device (rule R7): the last
// write wins, a delete takes what came before it, and a seal waits for all of them.
func TestOrderAtOneOrdinalBehindALateDevice(t *testing.T) {
	t.Parallel()
	m := start(t)
	p, reader := m.client("producer", "CUDAEMU_DELAY_US=300000"), m.client("reader")
	queue(p, "x", "x1", 1, 10)
	p.do(order{Do: "write", Name: "x", Prims: prims(1), Bytes: rowBytes, Ordinal: 1, Value: 70})
	p.do(order{Do: "seal", Name: "x", Ordinal: 1})
	require.Equal(t, []int{70, 11}, reader.do(order{Do: "read", Name: "x", Prims: prims(2)}).Rows)

	queue(p, "x", "x2", 2, 20)
	queue(p, "x", "x3", 2, 30)
	p.do(order{Do: "delete", Name: "x", Prims: prims(1), Ordinal: 2})
	p.do(order{Do: "seal", Name: "x", Ordinal: 2})
	require.Equal(t, []int{31}, reader.do(order{Do: "read", Name: "x", Prims: prims(2)}).Rows)
	for _, as := range []string{"x1", "x2", "x3"} {
		p.do(order{Do: "wait", As: as})
	}
}

// Work that never ends costs its deadline once, however much of it is queued.
func TestStalledWorkTimesOutTogether(t *testing.T) {
	t.Parallel()
	needsEmulation(t)
	const timeout, n = 3 * time.Second, 8
	m := startWith(t, nil, nil, "--gpu", "required", "--gpu-timeout", timeout.String())
	p := m.stalled()
	since := time.Now()
	for i := range n {
		queue(p, "x", fmt.Sprint(i), uint64(i+1), i)
	}
	for i := range n {
		p.refused(order{Do: "wait", As: fmt.Sprint(i)}, "TIMEOUT", "--gpu-timeout")
	}
	require.Less(t, time.Since(since), n*timeout, "one after the other")
	p.do(order{Do: "write", Name: "h", Prims: prims(2), Bytes: rowBytes, Ordinal: 1, Value: 5})
	p.kill()
}

// Where all events are taken by a client's own work, its next map waits for one instead of being refused.
func TestAMapWaitsForItsClientsOwnEvents(t *testing.T) {
	t.Parallel()
	m := startWith(t, nil, nil, "--gpu", "required", "--gpu-events", "2")
	p := m.client("producer", "CUDAEMU_DELAY_US=100000")
	for i := range 6 {
		queue(p, "x", fmt.Sprint(i), uint64(i+1), i)
	}
	p.do(order{Do: "seal", Name: "x", Ordinal: 6})
	require.Equal(t, rows(5, 2), p.do(order{Do: "read", Name: "x", Prims: prims(2)}).Rows)
}

// The end of a session waits until its group, which was handed back alone, has been taken over.
func TestTheEndOfASessionWaitsForItsGroup(t *testing.T) {
	w := start(t).attach()
	query := w.query("/p1")
	for ordinal := uint64(1); ordinal <= 20; ordinal++ {
		session, g, _ := w.mapOnDevice(protocol.StatusOK, query, ordinal, "x")
		raw := packed(&protocol.UnmapArguments{Selection: protocol.Selection{Count: protocol.All}, EventIndex: g.EventIndex, EventUsed: 1})
		room, err := w.ring.Arguments(0, uint32(len(raw)))
		require.NoError(t, err)
		copy(room, raw)
		require.NoError(t, w.ring.Submit(&protocol.SubmissionEntry{OpID: w.lastOp + 1, Opcode: protocol.OpUnmapGroup, Handle: session, ArgumentBytes: uint32(len(raw)), ResultBytes: 4096}))
		require.NoError(t, w.ring.Submit(&protocol.SubmissionEntry{OpID: w.lastOp + 2, Opcode: protocol.OpUnmapAttribute, Handle: session, Flags: protocol.FlagSeal, ResultOffsetBytes: 4096, ResultBytes: 4096}))
		w.lastOp += 2
		for range 2 {
			var done protocol.CompletionEntry
			require.Eventually(t, func() bool {
				ok, err := w.ring.Poll(&done)
				return ok && err == nil
			}, patience, time.Millisecond)
			require.Equal(t, protocol.StatusOK, protocol.Status(done.Status), "ordinal %d, op %d of %d", ordinal, done.OpID, w.lastOp)
		}
	}
}
