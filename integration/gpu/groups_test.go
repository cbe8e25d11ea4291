package gpu

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// share opens a session of four groups of three rows, and hands it over: it is the workers'.
func share(p *process, o order) {
	p.t.Helper()
	o.Do, o.Prims, o.Bytes, o.Groups = "map", prims(12), rowBytes, 3
	p.do(o)
	p.do(order{Do: "commit", Name: o.Name, Async: true})
}

// Several processes fill the groups of a session in a device's memory, each with its own event: where the attribute lies,
// and where it lies elsewhere (rules M2, C3, C5; behaviour 175, 180, 188). A claimant is told which prims its rows are for.
func TestWorkersFillGroupsOnADevice(t *testing.T) {
	m := start(t)
	owner, reader := m.client("owner"), m.client("reader")
	workers := []*process{m.client("anna"), m.client("bert", "CUDAEMU_DELAY_US=100000"), owner}
	for ordinal, o := range []order{
		{Name: "x", Device: "cuda:0"},
		{Name: "x", Init: "current"},
		{Name: "x", Init: "zero"},
		{Name: "h", Device: "cpu", Staging: "cuda:0"},
	} {
		o.Ordinal = uint64(ordinal + 1)
		share(owner, o)
		taken := map[uint64]bool{}
		for i := range 4 {
			w, as := workers[i%3], fmt.Sprint(i)
			r := w.do(order{Do: "claim", Name: o.Name, As: as})
			require.Equal(t, "cuda:0", r.Device)
			require.Equal(t, "1", r.Text)
			taken[r.Number] = true
			w.do(order{Do: "ready", As: as, Value: 10 * (ordinal + 1)})
		}
		require.Len(t, taken, 4)
		require.Equal(t, "none", owner.do(order{Do: "claim", Name: o.Name}).Text)
		require.Zero(t, owner.do(order{Do: "done", As: o.Name}).Number)
		for i := range 4 {
			workers[i%3].do(order{Do: "return", As: fmt.Sprint(i), Sync: []string{"stream", "event", "both"}[i%3], Async: true})
		}
		owner.do(order{Do: "wait", As: o.Name})
		owner.do(order{Do: "seal", Name: o.Name, Ordinal: o.Ordinal})
		r := reader.do(order{Do: "read", Name: o.Name, Prims: prims(12)})
		require.Equal(t, rows(10*(ordinal+1), 12), r.Rows)
		require.False(t, r.Adopted, "others may write to it (rule M1)")
		reader.do(order{Do: "release", As: o.Name})
	}
	eventually(t, m.settled, "something is held")
}

// What WorkOn does with groups in a device's memory.
func TestTheLibrariesWorkersFillADevice(t *testing.T) {
	m := start(t)
	owner, reader := m.client("owner"), m.client("reader")
	anna, bert := m.client("anna", "CUDAEMU_DELAY_US=50000"), m.client("bert")
	for ordinal := uint64(1); ordinal <= 5; ordinal++ {
		share(owner, order{Name: "x", Device: "cuda:0", Ordinal: ordinal})
		anna.tell(order{Do: "work", Name: "x", Value: int(ordinal), Sync: "stream", Count: 1})
		bert.tell(order{Do: "work", Name: "x", Value: int(ordinal), Sync: "event", Count: 3})
		require.EqualValues(t, 1, anna.hear().Number)
		require.EqualValues(t, 3, bert.hear().Number)
		owner.do(order{Do: "wait", As: "x"})
		owner.do(order{Do: "seal", Name: "x", Ordinal: ordinal})
		require.Equal(t, rows(int(ordinal), 12), reader.do(order{Do: "read", Name: "x", Prims: prims(12)}).Rows)
	}
}

// A worker is killed after each step, with its work on the device not done: the group is the next one's, in another
// block, and nothing of the dead is seen or stays (rules M2, B4, C3).
func TestAWorkerIsKilledAtEachStep(t *testing.T) {
	m := start(t)
	owner, other, reader := m.client("owner"), m.client("other"), m.client("reader")
	steps := []order{{Do: "claim", Name: "x"}, {Do: "ready", As: "x", Value: 200}, {Do: "mark", As: "x"}, {Do: "return", As: "x", Sync: "stream", Async: true}}
	ordinal := 0
	for _, late := range []bool{false, true} {
		for last, step := range steps {
			t.Run(fmt.Sprintf("%s, late %v", step.Do, late), func(t *testing.T) {
				var env []string
				if late {
					if !driver.emulated {
						skip(t, "a real device is not late on demand")
					}
					env = append(env, "CUDAEMU_DELAY_US=30000000", "CUDAEMU_STALL_EVENTS=1")
				}
				ordinal++
				share(owner, order{Name: "x", Device: "cuda:0", Ordinal: uint64(ordinal)})
				victim := m.client("victim", env...)
				for _, o := range steps[:last+1] {
					victim.do(o)
				}
				victim.kill()
				wanted := 4
				for n := 0; n < wanted; {
					if other.do(order{Do: "claim", Name: "x"}).Text == "none" {
						if owner.do(order{Do: "done", As: "x"}).Number == 1 { // the dead one's was there in time
							require.False(t, late)
							require.Equal(t, len(steps)-1, last)
							break
						}
						continue // it is not given up yet
					}
					other.do(order{Do: "ready", As: "x", Value: ordinal})
					other.do(order{Do: "return", As: "x", Sync: "stream"})
					n++
				}
				owner.do(order{Do: "wait", As: "x"})
				owner.do(order{Do: "seal", Name: "x", Ordinal: uint64(ordinal)})
				got := reader.do(order{Do: "read", Name: "x", Prims: prims(12)}).Rows
				if late || last < len(steps)-1 {
					require.Equal(t, rows(ordinal, 12), got)
				}
			})
		}
	}
	eventually(t, m.settled, "the dead hold something")
}

// Work that does not end in time costs its worker the group, with TIMEOUT; another one's attempt counts, and the late work
// reaches nothing of it (rules C3, B4, M2).
func TestAWorkersLateWorkIsAnotherAttempts(t *testing.T) {
	needsEmulation(t)
	t.Parallel()
	m := startWith(t, nil, nil, "--gpu", "required", "--gpu-timeout", "1s")
	owner, other, reader := m.client("owner"), m.client("other"), m.client("reader")
	late := m.client("late", "CUDAEMU_DELAY_US=2000000") // for each row
	share(owner, order{Name: "x", Device: "cuda:0", Ordinal: 1})
	late.do(order{Do: "claim", Name: "x"})
	late.do(order{Do: "ready", As: "x", Value: 200})
	late.refused(order{Do: "return", As: "x", Sync: "stream"}, "TIMEOUT", "--gpu-timeout")
	require.Zero(t, owner.do(order{Do: "done", As: "x"}).Number)
	for i := range 4 {
		require.Equal(t, []string{"2", "1"}[min(i, 1)], other.do(order{Do: "claim", Name: "x"}).Text)
		other.do(order{Do: "ready", As: "x", Value: 1})
		other.do(order{Do: "return", As: "x", Sync: "stream"})
	}
	owner.do(order{Do: "wait", As: "x"})
	owner.do(order{Do: "seal", Name: "x", Ordinal: 1})
	require.Equal(t, rows(1, 12), reader.do(order{Do: "read", Name: "x", Prims: prims(12)}).Rows)
	late.do(order{Do: "idle"})
	require.Equal(t, rows(1, 12), reader.do(order{Do: "look", As: "x"}).Rows)
	late.end()
	eventually(t, m.settled, "its blocks come back with its end")
}

// The owner aborts, or is killed, while a worker fills a group: that one learns of it when it hands the group back, and its
// memory is somebody else's when its work has ended (rules M3, B4).
func TestASessionEndsUnderAWorkerOnADevice(t *testing.T) {
	for _, killed := range []bool{false, true} {
		t.Run(fmt.Sprint("killed ", killed), func(t *testing.T) {
			m := start(t)
			owner, worker, other := m.client("owner"), m.client("worker", "CUDAEMU_DELAY_US=300000"), m.client("other")
			owner.do(order{Do: "map", Name: "x", Prims: prims(12), Bytes: rowBytes, Groups: 3, Device: "cuda:0", Ordinal: 1})
			for _, as := range []string{"back", "given up"} {
				worker.do(order{Do: "claim", Name: "x", As: as})
			}
			worker.do(order{Do: "ready", As: "back", Value: 100})
			other.do(order{Do: "claim", Name: "x"})
			other.do(order{Do: "ready", As: "x", Value: 100})
			other.do(order{Do: "return", As: "x", Sync: "stream"})
			if killed {
				owner.kill()
				eventually(t, func() bool { return m.find("owner").Name == "" }, "the owner is not gone")
			} else {
				owner.do(order{Do: "abort", As: "x"})
				owner.do(order{Do: "write", Name: "h", Prims: prims(1), Bytes: rowBytes, Ordinal: 1})
			}
			require.Equal(t, "none", other.do(order{Do: "claim", Name: "x"}).Text)
			worker.refused(order{Do: "return", As: "back", Sync: "stream"}, "INVALID_HANDLE", "session")
			worker.do(order{Do: "drop", As: "given up"})
			eventually(t, m.settled, "a group of it is held")
			share(other, order{Name: "x", Device: "cuda:0", Ordinal: 1}) // in the same memory
			for range 4 {
				other.do(order{Do: "claim", Name: "x", As: "next"})
				other.do(order{Do: "ready", As: "next", Value: 3})
				other.do(order{Do: "return", As: "next", Sync: "stream"})
			}
			worker.do(order{Do: "idle"})
			other.do(order{Do: "seal", Name: "x", Ordinal: 1})
			require.Equal(t, rows(3, 12), other.do(order{Do: "read", Name: "x", Prims: prims(12)}).Rows)
		})
	}
}

// What an owner holds of its own session it commits side by side, and its other operations do not wait (rules M2, L1).
// Where its work does not end, its own operation says so, and the session ends in nothing (rule M3).
func TestAnOwnersGroupsOnADeviceAreCommittedTogether(t *testing.T) {
	needsEmulation(t)
	t.Parallel()
	for _, ends := range []bool{false, true} {
		m := startWith(t, nil, nil, "--gpu", "required", "--gpu-timeout", map[bool]string{false: "10m", true: "1s"}[ends])
		owner, other := m.stalled(), m.client("other")
		owner.do(order{Do: "map", Name: "x", Prims: prims(12), Bytes: rowBytes, Groups: 3, Device: "cuda:0", Ordinal: 1})
		owner.do(order{Do: "take", As: "x", Value: 7})
		owner.do(order{Do: "commit", As: "x", Async: true})
		if ends {
			owner.refused(order{Do: "wait", As: "x"}, "TIMEOUT", "--gpu-timeout")
		} else {
			owner.do(order{Do: "write", Name: "h", Prims: prims(2), Bytes: rowBytes, Ordinal: 1, Value: 50})
			owner.do(order{Do: "seal", Name: "h", Ordinal: 1})
			require.Equal(t, rows(50, 2), owner.do(order{Do: "read", Name: "h", Prims: prims(2)}).Rows)
			require.Zero(t, owner.do(order{Do: "done", As: "x"}).Number)
			owner.kill()
		}
		eventually(t, func() bool { return m.find("stalled").Sessions == 0 }, "the session goes on")
		require.Equal(t, "none", other.do(order{Do: "claim", Name: "x"}).Text)
		other.do(order{Do: "cycle", Name: "x", Prims: prims(12), Bytes: rowBytes, Device: "cuda:0", Ordinal: 1, Value: 3, Sync: "stream", Count: 1})
		owner.kill()
	}
}

// A session's groups need no more events than there are: a claim that finds none waits for its client's own, and else is
// refused, and the group stays where it is.
func TestClaimsWaitForEvents(t *testing.T) {
	m := startWith(t, nil, nil, "--gpu", "required", "--gpu-events", "2")
	owner, worker, other := m.client("owner"), m.client("worker", "CUDAEMU_DELAY_US=100000"), m.client("other")
	share(owner, order{Name: "x", Device: "cuda:0", Ordinal: 1})
	for _, as := range []string{"0", "1"} {
		worker.do(order{Do: "claim", Name: "x", As: as})
		worker.do(order{Do: "ready", As: as, Value: 5})
	}
	other.refused(order{Do: "claim", Name: "x"}, "QUEUE_FULL", "--gpu-events")
	for _, as := range []string{"0", "1"} {
		worker.do(order{Do: "return", As: as, Sync: "stream", Async: true})
	}
	for _, as := range []string{"2", "3"} {
		require.Equal(t, "1", worker.do(order{Do: "claim", Name: "x", As: as}).Text)
		worker.do(order{Do: "ready", As: as, Value: 5})
		worker.do(order{Do: "return", As: as, Sync: "stream"})
	}
	owner.do(order{Do: "wait", As: "x"})
	owner.do(order{Do: "seal", Name: "x", Ordinal: 1})
	require.Equal(t, rows(5, 12), other.do(order{Do: "read", Name: "x", Prims: prims(12)}).Rows)
}

// The broker is killed while workers fill: what they have is void, and the next session is filled with the next broker
// (rules B3, B1).
func TestTheBrokerIsKilledUnderWorkers(t *testing.T) {
	m := start(t)
	owner, worker := m.client("owner"), m.client("worker")
	share(owner, order{Name: "x", Device: "cuda:0", Ordinal: 1})
	worker.do(order{Do: "claim", Name: "x"})
	worker.do(order{Do: "ready", As: "x", Value: 100})
	m.Kill9()
	m.Restart()
	owner.refused(order{Do: "wait", As: "x"}, "BROKER_RESTARTED")
	worker.refused(order{Do: "return", As: "x", Sync: "stream"}, "BROKER_RESTARTED")
	eventually(t, func() bool {
		r := owner.try(order{Do: "map", Name: "x", Prims: prims(12), Bytes: rowBytes, Groups: 3, Device: "cuda:0", Ordinal: 5})
		return r.Error == ""
	}, "no session comes with the next broker")
	owner.do(order{Do: "commit", As: "x", Async: true})
	for range 4 {
		worker.do(order{Do: "claim", Name: "x"})
		worker.do(order{Do: "ready", As: "x", Value: 8})
		worker.do(order{Do: "return", As: "x", Sync: "stream"})
	}
	owner.do(order{Do: "wait", As: "x"})
	owner.do(order{Do: "seal", Name: "x", Ordinal: 5})
	require.Equal(t, rows(8, 12), worker.do(order{Do: "read", Name: "x", Prims: prims(12)}).Rows)
}

// The broker loses the device while workers fill groups there: each hears why, the session ends with that for its owner,
// and the next one is refused (rules C4, M2).
func TestADeviceIsLostUnderWorkers(t *testing.T) {
	needsEmulation(t)
	m := startWith(t, nil, []string{"CUDAEMU_FAIL=cuStreamQuery:1:719"}, "--gpu", "required")
	owner, worker := m.client("owner"), m.client("worker")
	owner.do(order{Do: "cycle", Name: "y", Prims: prims(4), Bytes: rowBytes, Device: "cuda:0", Ordinal: 1, Sync: "stream", Count: 1})
	share(owner, order{Name: "x", Device: "cuda:0", Ordinal: 1})
	for _, as := range []string{"0", "1", "2"} {
		worker.do(order{Do: "claim", Name: "x", As: as})
		worker.do(order{Do: "ready", As: as, Value: 100})
	}
	worker.do(order{Do: "return", As: "0", Sync: "stream"})
	require.Contains(t, owner.try(order{Do: "read", Name: "y", Prims: prims(4), Device: "cpu"}).Error, "CUDA_ERROR_LAUNCH_FAILED") // the first copy
	owner.refused(order{Do: "wait", As: "x"}, "OP_FAILED", `"x"`, "CUDA_ERROR_LAUNCH_FAILED", "start the broker anew")
	worker.refused(order{Do: "return", As: "1", Sync: "stream"}, "INVALID_HANDLE", "unknown or was ended")
	require.Equal(t, "none", worker.do(order{Do: "claim", Name: "x"}).Text)
	worker.do(order{Do: "drop", As: "2"})
	owner.refused(order{Do: "map", Name: "x", Prims: prims(12), Bytes: rowBytes, Groups: 3, Device: "cuda:0", Ordinal: 2}, "OP_FAILED", "CUDA_ERROR_LAUNCH_FAILED", "start the broker anew")
	owner.do(order{Do: "map", Name: "h", Prims: prims(12), Bytes: rowBytes, Groups: 3, Ordinal: 2})
	require.Empty(t, worker.do(order{Do: "read", Name: "x", Prims: prims(12)}).Rows)
}

// Rule M2: that no group is left is the end of a session, also when its groups have all the events that there are; one that somebody has is
// no group to be claimed, and not one that must wait.
func TestTheEndOfASessionNeedsNoEvent(t *testing.T) {
	m := startWith(t, nil, nil, "--gpu", "required", "--gpu-events", "4")
	owner := m.client("owner")
	owner.do(order{Do: "map", Name: "x", Prims: prims(12), Bytes: rowBytes, Groups: 3, Device: "cuda:0", Ordinal: 1})
	require.Empty(t, owner.try(order{Do: "take", As: "x", Value: 7}).Error)
	owner.do(order{Do: "commit", As: "x"})
}

// Rule M2: a group that its owner cannot have, since its memory cannot be opened, is given up: the owner has it at the next try,
// and it is not committed as it lies.
func TestAGroupThatCannotBeHadIsGivenUp(t *testing.T) {
	needsEmulation(t)
	m := start(t)
	owner, other := m.client("owner", "CUDAEMU_FAIL=cuIpcOpenMemHandle:1:2"), m.client("other")
	owner.do(order{Do: "map", Name: "x", Prims: prims(12), Bytes: rowBytes, Groups: 3, Device: "cuda:0", Ordinal: 1})
	owner.refused(order{Do: "take", As: "x", Value: 7}, "OUT_OF_MEMORY")
	owner.do(order{Do: "take", As: "x", Value: 7})
	owner.do(order{Do: "commit", As: "x"})
	owner.do(order{Do: "seal", Name: "x", Ordinal: 1})
	require.Equal(t, rows(7, 12), other.do(order{Do: "read", Name: "x", Prims: prims(12)}).Rows)
}
