//go:build !nogpu

package cudaipc_test

import (
	"bytes"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"callboard/cudaipc"
	"callboard/shm"
)

// results gathers what a copier tells, ring by ring.
type results struct {
	t      *testing.T
	copier *cudaipc.Copier
	rung   chan struct{}
	done   map[cudaipc.Ticket]error
	order  []cudaipc.Ticket
}

func copier(t *testing.T, th *cudaipc.Thread) *results {
	t.Helper()
	r := &results{t: t, rung: make(chan struct{}, 1), done: map[cudaipc.Ticket]error{}}
	var err error
	r.copier, err = cudaipc.NewCopier(th, func() {
		select {
		case r.rung <- struct{}{}:
		default:
		}
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.copier.Close()) })
	return r
}

// wait gives a ticket's result.
func (r *results) wait(ticket cudaipc.Ticket) error {
	r.t.Helper()
	limit := time.After(time.Minute)
	for {
		for _, d := range r.copier.Poll(nil) {
			require.NotContains(r.t, r.done, d.Ticket, "it completed twice")
			r.done[d.Ticket] = d.Err
			r.order = append(r.order, d.Ticket)
		}
		if err, ok := r.done[ticket]; ok {
			return err
		}
		select {
		case <-r.rung:
		case <-limit:
			r.t.Fatalf("ticket %d never completed", ticket)
		}
	}
}

// host is pinned memory: copies of other memory to the host block in the driver.
func host(t testing.TB, th *cudaipc.Thread, size uint64) *cudaipc.Host {
	h, err := cudaipc.NewHost(size)
	require.NoError(t, err)
	require.NoError(t, h.Register(th))
	t.Cleanup(func() { require.NoError(t, h.Close()) })
	return h
}

// One job goes up, is scattered, is copied in strides, and comes down again: each step sees
// what the one before it wrote.
func TestJobRunsItsStepsInOrder(t *testing.T) {
	th := thread(t)
	r, a := copier(t, th), arenas(t, th, 0)
	const rows, row = 100, 16
	source, column, half := alloc(t, a, rows*row), alloc(t, a, rows*row), alloc(t, a, rows*row/2)
	up, down, strided := host(t, th, rows*row), host(t, th, rows*row), host(t, th, rows*row/2)
	for i := range rows * row {
		up.Bytes()[i] = byte(i ^ i>>8)
	}
	job := &cudaipc.Job{
		Uploads:   []cudaipc.Upload{{Dst: a.Address(source), Src: up.At(0, rows*row), Bytes: rows * row}, {}},
		Strided:   []cudaipc.Copy2D{{Dst: uint64(a.Address(half)), DstPitch: row / 2, Src: uint64(a.Address(column)) + 3, SrcPitch: row, Width: row / 2, Height: rows}, {}},
		Downloads: []cudaipc.Download{{Dst: down.At(0, rows*row), Src: a.Address(column), Bytes: rows * row}, {Dst: strided.At(0, rows*row/2), Src: a.Address(half), Bytes: rows * row / 2}, {}},
	}
	want := make([]byte, rows*row)
	for i := range rows { // backwards, so that no two continue each other
		job.Copies = append(job.Copies, cudaipc.Copy{Dst: a.Address(column) + cudaipc.Pointer(i*row), Src: a.Address(source) + cudaipc.Pointer((rows-1-i)*row), Bytes: row})
		copy(want[i*row:(i+1)*row], up.Bytes()[(rows-1-i)*row:])
	}
	require.NoError(t, r.wait(r.copier.Submit(job)))
	require.Equal(t, want, down.Bytes()[:rows*row])
	for i := range rows {
		require.Equal(t, want[i*row+3:i*row+3+row/2], strided.Bytes()[i*row/2:(i+1)*row/2], "row %d", i)
	}
	for _, b := range []cudaipc.Block{source, column, half} {
		a.Free(b)
	}
}

// Jobs run in the order in which they came, so a later one may read what an earlier one
// writes; an empty one completes as well. Shared memory is what they come from.
func TestJobsRunInOrderFromSharedMemory(t *testing.T) {
	th := thread(t)
	r, a := copier(t, th), arenas(t, th, 0)
	b := alloc(t, a, mib)
	defer a.Free(b)
	file, err := os.CreateTemp(t.TempDir(), "")
	require.NoError(t, err)
	require.NoError(t, file.Truncate(mib))
	mapping, err := shm.Map(file, mib, true)
	require.NoError(t, err)
	require.NoError(t, file.Close())
	shared, err := cudaipc.HostOf(mapping)
	require.NoError(t, err)
	require.NoError(t, shared.Register(th)) // field report F12
	copy(mapping.Bytes(), bytes.Repeat([]byte("callboard"), 100))
	down := host(t, th, 900)

	var last cudaipc.Ticket
	for i := range cudaipc.Pointer(50) { // each passes the text on by 1000 bytes
		job := &cudaipc.Job{Copies: []cudaipc.Copy{{Dst: a.Address(b) + (i+1)*1000, Src: a.Address(b) + i*1000, Bytes: 900}}}
		if i == 0 {
			job.Uploads = []cudaipc.Upload{{Dst: a.Address(b), Src: shared.At(0, 900), Bytes: 900}}
		}
		r.copier.Submit(job)
		r.copier.Submit(&cudaipc.Job{})
	}
	last = r.copier.Submit(&cudaipc.Job{Downloads: []cudaipc.Download{{Dst: down.At(0, 900), Src: a.Address(b) + 50*1000, Bytes: 900}}})
	require.NoError(t, r.wait(last))
	require.Equal(t, mapping.Bytes()[:900], down.Bytes()[:900])
	require.Len(t, r.order, 101)
	require.IsIncreasing(t, r.order)
	require.NoError(t, shared.Close())
	require.NoError(t, mapping.Close())
	_, err = cudaipc.HostOf(mapping)
	require.ErrorIs(t, err, cudaipc.ErrClosed)
}

// A refused step fails its own job and no other, and its memory is in use until the steps
// before it have run.
func TestRefusedStepFailsItsJobAlone(t *testing.T) {
	if !emulate(t, "CUDAEMU_FAIL=cuMemcpyDtoDAsync:2:1;cuMemcpy2DAsync:1:1;cuMemcpyHtoDAsync:2:1;cuMemcpyDtoHAsync:2:1;cuEventRecord:6:400;cuEventCreate:1:2") {
		return
	}
	th := thread(t)
	r, a := copier(t, th), arenas(t, th, 0)
	b, h := alloc(t, a, mib), host(t, th, 4096)
	defer a.Free(b)
	at := a.Address(b)
	copies := func() *cudaipc.Job {
		return &cudaipc.Job{Copies: []cudaipc.Copy{{Dst: at + 512, Src: at, Bytes: 8}}}
	}
	// The first job has no mark to record: its end is waited for instead, and it writes nothing
	// any more once it is told of.
	h.Bytes()[0] = 77
	require.ErrorIs(t, r.wait(r.copier.Submit(&cudaipc.Job{
		Uploads:   []cudaipc.Upload{{Dst: at, Src: h.At(0, 8), Bytes: 8}},
		Downloads: []cudaipc.Download{{Dst: h.At(100, 8), Src: at, Bytes: 8}},
	})), cudaipc.ErrOutOfMemory)
	require.Equal(t, byte(77), h.Bytes()[100])
	for _, job := range []*cudaipc.Job{
		{Copies: []cudaipc.Copy{{Dst: at + 512, Src: at, Bytes: 8}, {Dst: at + 1024, Src: at, Bytes: 24}}},
		{Strided: []cudaipc.Copy2D{{Dst: uint64(at), DstPitch: 8, Src: uint64(at) + 512, SrcPitch: 8, Width: 8, Height: 24}}},
		{Uploads: []cudaipc.Upload{{Dst: at, Src: h.At(0, 24), Bytes: 24}}},
		{Downloads: []cudaipc.Download{{Dst: h.At(0, 24), Src: at, Bytes: 24}}},
	} {
		bad, good := r.copier.Submit(job), r.copier.Submit(copies())
		err := r.wait(bad)
		require.ErrorIs(t, err, cudaipc.ErrInvalidValue)
		require.ErrorContains(t, err, "24")
		if err := r.wait(good); err != nil {
			require.ErrorIs(t, err, cudaipc.ErrInvalidHandle) // its mark was not recorded
		}
	}
	require.NoError(t, r.wait(r.copier.Submit(copies())))
}

// Waits for producers are beside each other and beside jobs, and none holds another up.
func TestAwaitEndsWithTheEventTheDeadlineOrTheProducer(t *testing.T) {
	d := &stuckShared{Driver: driver(t), stuck: map[cudaipc.Event]bool{}}
	th, err := cudaipc.NewThread(d, 0)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, th.Close()) })
	r, p := copier(t, th), events(t, th, 4)
	var leases []cudaipc.Lease
	for range 4 {
		lease, err := p.Lease()
		require.NoError(t, err)
		leases = append(leases, lease)
	}
	require.NoError(t, th.Do(func(cudaipc.Driver) error {
		for _, lease := range leases[:3] {
			d.stuck[lease.Event] = true
		}
		return nil
	}))
	lives := func() bool { return true }
	never := r.copier.Await(leases[0].Event, soon(), lives)
	late := r.copier.Await(leases[1].Event, time.Now().Add(30*time.Millisecond), lives)
	dead := r.copier.Await(leases[2].Event, soon(), func() bool { return false })
	complete := r.copier.Await(leases[3].Event, soon(), lives)
	require.NoError(t, r.wait(complete))
	require.ErrorIs(t, r.wait(dead), cudaipc.ErrProducerDied)
	require.ErrorIs(t, r.wait(late), cudaipc.ErrDeadline)
	require.NoError(t, r.wait(r.copier.Submit(&cudaipc.Job{})))
	require.NotContains(t, r.done, never)
	require.NoError(t, r.copier.Close())
	require.ErrorIs(t, r.wait(never), cudaipc.ErrClosed)
	require.ErrorIs(t, r.wait(r.copier.Submit(&cudaipc.Job{})), cudaipc.ErrClosed)
	require.ErrorIs(t, r.wait(r.copier.Await(leases[3].Event, soon(), nil)), cudaipc.ErrClosed)
}

// stuckShared has some events that never complete; the thread alone asks about them.
type stuckShared struct {
	cudaipc.Driver
	stuck map[cudaipc.Event]bool
}

func (s *stuckShared) EventQuery(e cudaipc.Event) (bool, error) {
	if s.stuck[e] {
		return false, nil
	}
	return s.Driver.EventQuery(e)
}

// Rule V-like order across processes: the broker copies what a producer wrote only when it is
// there. The producer's device is slow, so a missing wait shows.
func TestCopyAfterAwaitSeesWhatTheProducerWrote(t *testing.T) {
	th := thread(t)
	a, b, x := exported(t, th)
	r, p := copier(t, th), events(t, th, 1)
	staging, version := alloc(t, a, mib), alloc(t, a, mib)
	defer a.Free(staging)
	defer a.Free(version)
	require.Equal(t, b.Arena, staging.Arena)
	c := startClient(t, "CUDAEMU_DELAY_US=30000")
	lease, err := p.Lease()
	require.NoError(t, err)
	event, err := p.Export(lease.Index)
	require.NoError(t, err)
	require.NoError(t, p.Opened(lease.Index, 1))
	c.do(call{Verb: "open", Export: x, Key: "a"})
	c.do(call{Verb: "open", Export: event, Key: "e"})
	for round := range byte(5) {
		c.do(call{Verb: "fill", Key: "a", Offset: staging.Offset, Bytes: mib, Value: 100 + round, Event: "e"})
		require.NoError(t, r.wait(r.copier.Await(lease.Event, soon(), func() bool { return true })))
		require.NoError(t, r.wait(r.copier.Submit(&cudaipc.Job{Copies: []cudaipc.Copy{{Dst: a.Address(version), Src: a.Address(staging), Bytes: mib}}})))
		// A reader sees it without any wait.
		require.Equal(t, bytes.Repeat([]byte{100 + round}, 1000), c.do(call{Verb: "read", Key: "a", Offset: version.Offset + mib - 1000, Bytes: 1000}).Bytes)
	}
	c.kill()
	require.NoError(t, p.ClientGone(1))
}

// Invariant 10: warm, nothing on the way of the data takes memory.
func TestCopiesAndQuestionsAllocateNothing(t *testing.T) {
	th := thread(t)
	r, a, p := copier(t, th), arenas(t, th, 0), events(t, th, 1)
	b := alloc(t, a, mib)
	defer a.Free(b)
	lease, err := p.Lease()
	require.NoError(t, err)
	at := a.Address(b)
	var stream cudaipc.Stream
	var calls float64
	require.NoError(t, th.Do(func(d cudaipc.Driver) (err error) {
		if stream, err = d.StreamCreate(); err != nil {
			return err
		}
		calls = testing.AllocsPerRun(200, func() {
			failed(d.CopyDtoDAsync(at+512, at, 256, stream))
			failed(d.Copy2DAsync(cudaipc.Copy2D{Dst: uint64(at) + 512, DstPitch: 8, Src: uint64(at), SrcPitch: 8, Width: 8, Height: 4}, stream))
			failed(d.EventRecord(lease.Event, stream))
			_, err := d.EventQuery(lease.Event)
			failed(err)
			_, err = d.StreamQuery(stream)
			failed(err)
		})
		return d.StreamSynchronize(stream)
	}))
	// The race detector makes pools forget: under it the calls are made and not counted.
	if !raceEnabled {
		require.Zero(t, calls, "the driver's calls")
	}

	job := &cudaipc.Job{Copies: []cudaipc.Copy{{Dst: at + 512, Src: at, Bytes: 256}}}
	lives := func() bool { return true }
	deadline := soon()
	done := make([]cudaipc.Done, 0, 16)
	cycle := func() {
		wait := func() {
			for done = r.copier.Poll(done[:0]); len(done) == 0; done = r.copier.Poll(done[:0]) {
				<-r.rung
			}
			failed(done[0].Err)
		}
		block, ok := a.TryAlloc(4096)
		if !ok {
			panic("no room")
		}
		r.copier.Await(lease.Event, deadline, lives)
		wait()
		r.copier.Submit(job)
		wait()
		a.Free(block)
	}
	for range 20 {
		cycle()
	}
	if allocations := testing.AllocsPerRun(200, cycle); !raceEnabled {
		require.Zero(t, allocations, "lease, await, submit, poll, free")
	}
	require.NoError(t, th.Do(func(d cudaipc.Driver) error { return d.StreamDestroy(stream) }))
}

func failed(err error) {
	if err != nil {
		panic(err)
	}
}
