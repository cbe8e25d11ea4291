//go:build !nogpu

package cudaipc_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"callboard/cudaipc"
	"callboard/protocol"
)

// Field reports F4, F8: a process opens an arena once, however many use it.
func TestArenaIsOpenedOnceAndClosedWithItsLastUse(t *testing.T) {
	_, x := exported(t, thread(t))
	c := startClient(t)
	for range 3 {
		c.do(call{Verb: "open", Export: x, Key: "a"})
	}
	require.Equal(t, 1000, c.do(call{Verb: "count"}).Count)
	require.Zero(t, c.do(call{Verb: "close", Key: "a"}).Count)
	require.Zero(t, c.do(call{Verb: "close", Key: "a"}).Count)
	require.Equal(t, 1, c.do(call{Verb: "close", Key: "a"}).Count, "the last use, of which the broker is told")
	require.Zero(t, c.do(call{Verb: "count"}).Count)
	c.do(call{Verb: "open", Export: x, Key: "a"})
	require.Equal(t, 1000, c.do(call{Verb: "count"}).Count)
}

// Field report F10: a device is known by its UUID alone.
func TestMemoryOfAnotherDeviceIsRefused(t *testing.T) {
	_, x := exported(t, thread(t))
	x.UUID[3]++
	c := startClient(t)
	got := c.try(call{Verb: "open", Export: x, Key: "a"})
	require.Contains(t, got.Err, cudaipc.ErrOtherDevice.Error())
	require.Contains(t, got.Err, x.UUID.String())
}

// Field reports F10, G18: CUDA_VISIBLE_DEVICES gives each process its own order of devices.
func TestDevicesAreMatchedByUUIDWhateverTheOrder(t *testing.T) {
	if !emulate(t, "CUDAEMU_DEVICES=2") {
		return
	}
	d := driver(t)
	th, err := cudaipc.NewThread(d, 1)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, th.Close()) })
	_, x := exported(t, th)
	for visible, ordinal := range map[string]int{"0,1": 1, "1,0": 0, "1": 0} {
		c := startClient(t, "CUDA_VISIBLE_DEVICES="+visible)
		c.do(call{Verb: "open", Export: x, Key: "a"})
		require.Equal(t, ordinal, c.do(call{Verb: "ordinal"}).Count, visible)
		c.do(call{Verb: "fill", Key: "a", Offset: 4096, Bytes: 1, Value: 3})
	}
	got := startClient(t, "CUDA_VISIBLE_DEVICES=0").try(call{Verb: "open", Export: x, Key: "a"})
	require.Contains(t, got.Err, cudaipc.ErrOtherDevice.Error())
}

// The process that exported cannot open, and a person learns what the driver's code means.
func TestOwnHandleIsRefusedWithAdvice(t *testing.T) {
	th := thread(t)
	_, x := exported(t, th)
	_, err := cudaipc.NewImports(th).Open(x)
	require.ErrorIs(t, err, cudaipc.ErrInvalidContext)
	var refused *cudaipc.ImportError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, cudaipc.ReasonNamespaces, refused.Cause.Reason)
	require.ErrorContains(t, err, "--pid=host")
}

// Field report F5: a broker that says an arena is longer than it is leads nobody behind its end,
// and a wrong handle opens nothing.
func TestImportBelievesNoLengthAndNoHandle(t *testing.T) {
	_, x := exported(t, thread(t))
	c := startClient(t)
	long := x
	long.Bytes += cudaipc.ArenaAlign
	require.Contains(t, c.try(call{Verb: "open", Export: long, Key: "a"}).Err, "expected")
	require.Zero(t, c.do(call{Verb: "count"}).Count)

	// The handle tells exports apart, and the life of the broker; an index does not.
	c.do(call{Verb: "open", Export: x, Key: "a"})
	same, forged := x, x
	same.Index++
	c.do(call{Verb: "open", Export: same, Key: "a"})
	require.Equal(t, 1000, c.do(call{Verb: "count"}).Count)
	forged.Handle[0]++
	require.NotEmpty(t, c.try(call{Verb: "open", Export: forged, Key: "b"}).Err)
}

// What travels is what was exported.
func TestExportFillsTheReplyAndComesBack(t *testing.T) {
	x := cudaipc.Export{Sort: protocol.DeviceArena, Index: 3, Device: 1, Generation: 9, Bytes: 5 << 20, UUID: cudaipc.UUID{1, 2}, Handle: cudaipc.Handle{63: 8}}
	var reply protocol.DeviceReply
	x.Fill(&reply)
	back, err := cudaipc.ExportOf(&reply)
	require.NoError(t, err)
	require.Equal(t, x, back)
	_, err = cudaipc.ExportOf(&protocol.DeviceReply{Sort: 7})
	require.ErrorContains(t, err, "sort 7")
}
