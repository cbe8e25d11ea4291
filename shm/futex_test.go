package shm

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestFutexValueThatDiffersAndTimeoutAndNegativeTimeout(t *testing.T) {
	w := Word32(mapped(t, anyObject(t, 4096), true).Bytes(), 64)
	require.ErrorIs(t, FutexWait(w, 1, time.Minute), ErrAgain)
	require.ErrorIs(t, FutexWait(w, 0, 200*time.Microsecond), ErrTimeout)
	require.ErrorIs(t, FutexWait(w, 0, -time.Second), ErrTimeout)
	n, err := FutexWake(w, 1<<40)
	require.NoError(t, err)
	require.Zero(t, n)
}

// R3: the key is the object, not the address: another process wakes us, though we look
// through a read-only mapping.
func TestFutexWakeFromAnotherProcessThroughAReadOnlyMapping(t *testing.T) {
	o := anyObject(t, 4096)
	w := Word32(mapped(t, o, false).Bytes(), 128)
	c := start(t, "wake", o.Path(), "128")
	require.NoError(t, c.in.Close())
	deadline := time.Now().Add(20 * time.Second)
	for *w == 0 || FutexWait(w, 1, 0) == nil {
		require.True(t, time.Now().Before(deadline), "never woken")
		err := FutexWait(w, 0, 20*time.Second)
		require.NotErrorIs(t, err, ErrTimeout)
	}
	c.end()
}

// childWake stores 1, then wakes until somebody was asleep or the value is surely seen.
func childWake(args []string) int {
	f, err := os.OpenFile(args[0], os.O_RDWR, 0)
	if err != nil {
		return failed(err)
	}
	m, err := Map(f, 4096, true)
	if err != nil {
		return failed(err)
	}
	off, _ := strconv.Atoi(args[1])
	ready()
	time.Sleep(20 * time.Millisecond)
	StoreU32(m.Bytes(), off, 1)
	if _, err := FutexWake(Word32(m.Bytes(), off), 1); err != nil {
		return failed(err)
	}
	return 0
}

func TestOneWakeWakesAllWaiters(t *testing.T) {
	b := mapped(t, anyObject(t, 4096), true).Bytes()
	const waiters = 4
	done := make(chan error, waiters)
	for range waiters {
		go func() { done <- FutexWait(Word32(b, 0), 0, 20*time.Second) }()
	}
	// Waiters that a first wake misses because they have not slept yet see the next one.
	woken := 0
	for deadline := time.Now().Add(20 * time.Second); woken < waiters && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		n, err := FutexWake(Word32(b, 0), waiters)
		require.NoError(t, err)
		woken += n
	}
	require.Equal(t, waiters, woken)
	for range waiters {
		require.NoError(t, <-done)
	}
}

func TestFutexAndWordsTakeNoMemory(t *testing.T) {
	b := mapped(t, anyObject(t, 4096), true).Bytes()
	w := Word32(b, 0)
	for name, f := range map[string]func(){
		"wait":  func() { _ = FutexWait(w, 0, 0) },
		"again": func() { _ = FutexWait(w, 1, 0) },
		"wake":  func() { _, _ = FutexWake(w, 1) },
		"words": func() { StoreU64(b, 8, LoadU64(b, 8)+uint64(AddU32(b, 16, 1))) },
		"view":  func() { _, _ = View[header](b, 32) },
		"slice": func() { _, _ = Slice[uint64](b, 32, 4) },
	} {
		require.Zero(t, testing.AllocsPerRun(100, f), fmt.Sprintf("%s allocates", name))
	}
}
