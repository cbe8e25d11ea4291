//go:build !nogpu

package cudaipc_test

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"callboard/cudaipc"
	"callboard/shm"
)

const mib = 1 << 20

func arenas(t *testing.T, th *cudaipc.Thread, limit uint64) *cudaipc.Arenas {
	a := cudaipc.NewArenas(th, limit, 1000)
	t.Cleanup(func() { require.NoError(t, a.Close()) })
	return a
}

func alloc(t *testing.T, a *cudaipc.Arenas, bytes uint64) cudaipc.Block {
	t.Helper()
	b, err := a.Alloc(bytes)
	require.NoError(t, err)
	require.GreaterOrEqual(t, b.Length, bytes)
	require.Zero(t, uint64(a.Address(b))%shm.BlockAlign)
	return b
}

func TestArenasGrowByDoublingAndALongBlockHasItsOwn(t *testing.T) {
	a := arenas(t, thread(t), 0)
	_, ok := a.TryAlloc(1)
	require.False(t, ok, "nothing has been allocated yet")

	first, second := alloc(t, a, 1), alloc(t, a, 40*mib)
	require.Equal(t, first.Arena, second.Arena)
	third := alloc(t, a, 40*mib)
	require.NotEqual(t, first.Arena, third.Arena)
	long := alloc(t, a, 200*mib+1)

	stats := a.Stats()
	require.Len(t, stats.Arenas, 3)
	require.Equal(t, []uint64{64 * mib, 64 * mib, 202 * mib}, []uint64{stats.Arenas[0].Bytes, stats.Arenas[1].Bytes, stats.Arenas[2].Bytes})
	require.Equal(t, 4, stats.Blocks)
	require.Equal(t, uint64(330*mib), stats.Held)

	// Rule B3: an index is never used again, and generations rise from where they began.
	require.Equal(t, uint64(1000), stats.Arenas[0].Generation)
	for _, b := range []cudaipc.Block{first, second, third, long} {
		a.Free(b)
	}
	freed, err := a.Trim()
	require.NoError(t, err)
	require.Equal(t, uint64(330*mib), freed)
	require.Empty(t, a.Stats().Arenas)
	next := alloc(t, a, 1)
	require.Equal(t, uint32(3), next.Arena)
	require.Equal(t, uint64(1003), next.Generation)
	a.Free(next)
	require.Panics(t, func() { a.Free(first) }, "of an arena that is gone")
	require.Panics(t, func() { a.Free(next) }, "twice")
	stale := next
	stale.Generation++
	require.Panics(t, func() { a.Address(stale) })
}

// What is written to one block is in no other.
func TestBlocksOfArenasDoNotOverlap(t *testing.T) {
	th := thread(t)
	a := arenas(t, th, 0)
	sizes := []uint64{1, 256, 257, 4096, 5000, 3 * mib}
	var blocks []cudaipc.Block
	for i, size := range sizes {
		blocks = append(blocks, alloc(t, a, size))
		set(t, th, a.Address(blocks[i]), byte(i+1), blocks[i].Length)
	}
	for i, b := range blocks {
		got := bytesOf(t, th, a.Address(b), min(b.Length, mib))
		for _, v := range got {
			require.Equal(t, byte(i+1), v)
		}
		a.Free(b)
	}
}

// The limit of --gpu-memory, with the numbers; before it is reached, arenas become as small as
// will do, and empty ones are given up for it.
func TestArenasKeepTheLimit(t *testing.T) {
	a := arenas(t, thread(t), 70*mib)
	first := alloc(t, a, 60*mib)
	small := alloc(t, a, 5*mib)
	stats := a.Stats()
	require.Equal(t, uint64(6*mib), stats.Arenas[1].Bytes, "a usual arena does not fit any more")

	_, err := a.Alloc(10 * mib)
	require.ErrorIs(t, err, cudaipc.ErrOutOfMemory)
	var full *cudaipc.OutOfMemoryError
	require.ErrorAs(t, err, &full)
	require.Equal(t, uint64(10*mib), full.NeedBytes)
	require.Equal(t, uint64(10*mib), full.ArenaBytes)
	require.Equal(t, uint64(70*mib), full.Use.Held)
	require.True(t, full.LimitBroken)
	require.NotZero(t, full.TotalBytes)
	require.ErrorContains(t, err, "limit of 73400320 bytes")
	require.ErrorContains(t, err, "--gpu-memory")

	a.Free(small)
	freed := alloc(t, a, 6*mib) // the small arena has room
	a.Free(freed)
	a.Free(first)
	whole := alloc(t, a, 70*mib) // both are given up
	a.Free(whole)
}

// The device is full: both numbers, whose memory it is, and that the driver said so.
func TestArenasNameAFullDevice(t *testing.T) {
	if !emulate(t, "CUDAEMU_MEMORY=104857600") { // 100 MiB
		return
	}
	a := arenas(t, thread(t), 0)
	b := alloc(t, a, 60*mib)
	require.NoError(t, a.Opened(b.Arena, 0xabc))
	_, err := a.Alloc(50 * mib)
	require.ErrorIs(t, err, cudaipc.ErrOutOfMemory)
	var full *cudaipc.OutOfMemoryError
	require.ErrorAs(t, err, &full)
	require.False(t, full.LimitBroken)
	require.Equal(t, uint64(36*mib), full.FreeBytes)
	require.Equal(t, uint64(100*mib), full.TotalBytes)
	require.ErrorContains(t, err, "52428800 bytes")
	require.ErrorContains(t, err, "open in clients [abc]")
	require.ErrorContains(t, err, "nvidia-smi")
	small := alloc(t, a, 30*mib) // one that fits is still served
	a.Free(small)
	a.Free(b)
	a.ClientGone(0xabc)
}

// What cannot be exported is no arena: its memory goes back at once.
func TestArenaThatCannotBeExportedIsFreed(t *testing.T) {
	if !emulate(t, "CUDAEMU_FAIL=cuIpcGetMemHandle:1:801") {
		return
	}
	th := thread(t)
	a := arenas(t, th, 0)
	_, err := a.Alloc(1)
	require.ErrorIs(t, err, cudaipc.ErrNotSupported)
	nothingHeld(t)
	a.Free(alloc(t, a, 1))
}

// Field reports F2, F3: an arena that somebody has open is not freed. The emulated driver
// ends the process that does it.
func TestArenaIsKeptWhileAnybodyHasItOpen(t *testing.T) {
	th := thread(t)
	a := arenas(t, th, 0)
	b := alloc(t, a, mib)
	set(t, th, a.Address(b), 7, mib)

	x, err := a.Export(b.Arena, b.Generation)
	require.NoError(t, err)
	_, err = a.Export(b.Arena, b.Generation+1)
	require.ErrorIs(t, err, cudaipc.ErrStale)
	require.NoError(t, a.Opened(b.Arena, 1))
	require.NoError(t, a.Opened(b.Arena, 2))
	one, two := startClient(t), startClient(t)
	one.do(call{Verb: "open", Export: x, Key: "a"})
	two.do(call{Verb: "open", Export: x, Key: "a"})
	require.Equal(t, byte(7), two.do(call{Verb: "read", Key: "a", Offset: b.Offset + mib - 1, Bytes: 1}).Bytes[0])
	one.do(call{Verb: "fill", Key: "a", Offset: b.Offset, Bytes: 3, Value: 9})
	require.Equal(t, []byte{9, 9, 9, 7}, bytesOf(t, th, a.Address(b), 4))

	a.Free(b)
	trimmed := func() uint64 {
		freed, err := a.Trim()
		require.NoError(t, err)
		return freed
	}
	require.Zero(t, trimmed(), "both have it open")
	one.do(call{Verb: "close", Key: "a"})
	a.ClientClosed(b.Arena, 1)
	a.ClientClosed(b.Arena, 1) // a client says so: again is nothing
	require.Zero(t, trimmed(), "one has it open")
	require.Equal(t, []uint64{2}, a.Stats().Arenas[0].Importers)

	// Killed: its import goes with it, and the books when that is proven.
	two.kill()
	require.Zero(t, trimmed())
	a.ClientGone(2)
	require.NotZero(t, trimmed())
	require.ErrorIs(t, a.Opened(b.Arena, 3), cudaipc.ErrStale)
	_, err = a.Export(b.Arena, b.Generation)
	require.ErrorIs(t, err, cudaipc.ErrStale)
	got := startClient(t).try(call{Verb: "open", Export: x, Key: "a"})
	require.NotEmpty(t, got.Err, "the memory behind the handle is gone")
}

// With Close the last arenas go, but for those that are in use elsewhere.
func TestClosedArenasDoNotGrow(t *testing.T) {
	th := thread(t)
	a := cudaipc.NewArenas(th, 0, 1)
	b := alloc(t, a, mib)
	require.NoError(t, a.Opened(b.Arena, 1))
	a.Free(b)
	require.NoError(t, a.Close())
	require.Len(t, a.Stats().Arenas, 1)
	_, err := a.Alloc(100 * mib)
	require.ErrorIs(t, err, cudaipc.ErrClosed)
	a.ClientGone(1)
	require.NoError(t, a.Close())
	require.Empty(t, a.Stats().Arenas)
}

// Field report F3 at the end of a broker: what a client has open stays until the process ends,
// for giving the context back would free it.
func TestMemoryThatAClientHasOpenOutlivesTheThread(t *testing.T) {
	if !emulate(t) { // the process ends soon, and with it what stays
		return
	}
	th, err := cudaipc.NewThread(driver(t), 0)
	require.NoError(t, err)
	a := cudaipc.NewArenas(th, 0, 1)
	b := alloc(t, a, mib)
	set(t, th, a.Address(b), 5, mib)
	x, err := a.Export(b.Arena, b.Generation)
	require.NoError(t, err)
	require.NoError(t, a.Opened(b.Arena, 1))
	c := startClient(t)
	c.do(call{Verb: "open", Export: x, Key: "a"})
	a.Free(b)
	require.NoError(t, a.Close())
	require.NoError(t, th.Close())
	require.Equal(t, byte(5), c.do(call{Verb: "read", Key: "a", Offset: b.Offset, Bytes: 1}).Bytes[0])
}

// Loop, workers and sessions use one pool.
func TestArenasServeManyGoroutines(t *testing.T) {
	a := arenas(t, thread(t), 300*mib)
	var wg sync.WaitGroup
	for g := range uint64(4) {
		wg.Go(func() {
			for i := range uint64(40) {
				b, err := a.Alloc((g+1)*mib + i*4096)
				if err != nil {
					t.Errorf("no block: %v", err)
					return
				}
				if i%8 == 0 {
					if _, err := a.Trim(); err != nil {
						t.Error(err)
					}
				}
				a.Address(b)
				a.Free(b)
			}
		})
	}
	wg.Wait()
	require.Zero(t, a.Stats().Blocks)
}
