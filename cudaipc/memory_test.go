//go:build !nogpu

package cudaipc_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"callboard/cudaipc"
)

// Field report F1, as a broker does it: what a producer wrote is copied when its event has
// completed, and a reader sees the copy without any wait. The producer's device is slow, so
// a missing wait shows.
func TestCopyAfterWaitSeesWhatTheProducerWrote(t *testing.T) {
	th := thread(t)
	base, x := exported(t, th)
	p := events(t, th, 1)
	lease, err := p.Lease()
	require.NoError(t, err)
	event, err := p.Export(lease.Index)
	require.NoError(t, err)
	require.NoError(t, p.Opened(lease.Index, 1))
	c := startClient(t, "CUDAEMU_DELAY_US=30000")
	c.do(call{Verb: "open", Export: x, Key: "a"})
	c.do(call{Verb: "open", Export: event, Key: "e"})
	for round := range byte(5) {
		c.do(call{Verb: "fill", Key: "a", Bytes: mib, Value: 100 + round, Event: "e"})
		require.NoError(t, th.WaitFor(lease.Event, soon(), func() bool { return true }))
		onStream(t, th, func(d cudaipc.Driver, s cudaipc.Stream) error {
			return d.CopyDtoDAsync(base+mib, base, mib, s)
		})
		require.Equal(t, bytes.Repeat([]byte{100 + round}, 1000), c.do(call{Verb: "read", Key: "a", Offset: 2*mib - 1000, Bytes: 1000}).Bytes)
	}
	c.kill()
	require.NoError(t, p.ClientGone(1))
}

// Host memory goes up, is copied in strides, and comes down (field report F12).
func TestCopiesBetweenTheHostAndTheDevice(t *testing.T) {
	th := thread(t)
	base, _ := exported(t, th)
	host, err := cudaipc.NewHost(4096)
	require.NoError(t, err)
	require.NoError(t, host.Register(th))
	const rows, pitch, width = 50, 16, 5
	for i := range rows * pitch {
		host.Bytes()[i] = byte(i ^ i>>8)
	}
	onStream(t, th, func(d cudaipc.Driver, s cudaipc.Stream) error {
		if err := d.CopyHtoDAsync(base, host.At(0, rows*pitch), rows*pitch, s); err != nil {
			return err
		}
		if err := d.Copy2DAsync(cudaipc.Copy2D{Dst: uint64(base) + mib, DstPitch: width, Src: uint64(base) + 3, SrcPitch: pitch, Width: width, Height: rows}, s); err != nil {
			return err
		}
		return d.CopyDtoHAsync(host.At(2048, rows*width), base+mib, rows*width, s)
	})
	for i := range rows {
		require.Equal(t, host.Bytes()[i*pitch+3:][:width], host.Bytes()[2048+i*width:][:width], "row %d", i)
	}
	require.NoError(t, host.Close())
	require.ErrorIs(t, host.Register(th), cudaipc.ErrClosed)
}

// Invariant 9: what is called once a row, or again and again, takes no memory.
func TestCopiesAndQuestionsAllocateNothing(t *testing.T) {
	th := thread(t)
	at, _ := exported(t, th)
	p := events(t, th, 1)
	lease, err := p.Lease()
	require.NoError(t, err)
	var calls float64
	onStream(t, th, func(d cudaipc.Driver, s cudaipc.Stream) error {
		calls = testing.AllocsPerRun(200, func() {
			failed(d.CopyDtoDAsync(at+512, at, 256, s))
			failed(d.Copy2DAsync(cudaipc.Copy2D{Dst: uint64(at) + 512, DstPitch: 8, Src: uint64(at), SrcPitch: 8, Width: 8, Height: 4}, s))
			failed(d.EventRecord(lease.Event, s))
			_, err := d.EventQuery(lease.Event)
			failed(err)
			_, err = d.StreamQuery(s)
			failed(err)
		})
		return nil
	})
	if !raceEnabled { // which makes pools forget
		require.Zero(t, calls)
	}
}

// onStream queues work and waits for it.
func onStream(t *testing.T, th *cudaipc.Thread, work func(cudaipc.Driver, cudaipc.Stream) error) {
	t.Helper()
	require.NoError(t, th.Do(func(d cudaipc.Driver) error {
		s, err := d.StreamCreate()
		if err != nil {
			return err
		}
		if err := work(d, s); err != nil {
			return err
		}
		if err := d.StreamSynchronize(s); err != nil {
			return err
		}
		return d.StreamDestroy(s)
	}))
}

func failed(err error) {
	if err != nil {
		panic(err)
	}
}
