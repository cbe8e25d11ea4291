//go:build !nogpu

package cudaipc_test

import (
	"errors"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"callboard/cudaipc"
)

// The driver knows a context per operating-system thread: a call from anywhere else is
// refused, and one through Do never is.
func TestOnlyTheThreadHasTheContext(t *testing.T) {
	th := thread(t)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			runtime.LockOSThread() // never unlocked: a thread that no other goroutine touches
			_, foreign := th.Driver().MemAlloc(1 << 20)
			if !errors.Is(foreign, cudaipc.ErrInvalidContext) {
				t.Errorf("a call from a foreign goroutine gave %v", foreign)
			}
			for range 20 {
				err := th.Do(func(d cudaipc.Driver) error {
					p, err := d.MemAlloc(1 << 20)
					if err != nil {
						return err
					}
					return d.MemFree(p)
				})
				if err != nil {
					t.Errorf("a call through the thread gave %v", err)
				}
			}
		})
	}
	wg.Wait()
}

func TestClosedThreadRefusesAndCloseMayBeCalledAgain(t *testing.T) {
	th, err := cudaipc.NewThread(driver(t), 0)
	require.NoError(t, err)
	require.NoError(t, th.Close())
	require.NoError(t, th.Close())
	require.ErrorIs(t, th.Do(func(cudaipc.Driver) error { return nil }), cudaipc.ErrClosed)
	require.ErrorIs(t, th.WaitFor(0, soon(), nil), cudaipc.ErrClosed)
	_, err = cudaipc.NewEvents(th, 1)
	require.ErrorIs(t, err, cudaipc.ErrClosed)
}

func TestThreadOfADeviceThatIsNotThere(t *testing.T) {
	d := driver(t)
	n, err := d.DeviceCount()
	require.NoError(t, err)
	_, err = cudaipc.NewThread(d, n)
	require.ErrorIs(t, err, cudaipc.ErrInvalidDevice)
	_, err = cudaipc.FindDevice(d, cudaipc.UUID{1, 2, 3})
	require.ErrorIs(t, err, cudaipc.ErrOtherDevice)
	require.ErrorContains(t, err, "CUDA_VISIBLE_DEVICES")
}

// A context that cannot be made leaves no thread behind.
func TestThreadSaysWhyItHasNoContext(t *testing.T) {
	if !emulate(t, "CUDAEMU_FAIL=cuDevicePrimaryCtxRetain:1:2;cuCtxSetCurrent:1:999") {
		return
	}
	_, err := cudaipc.NewThread(driver(t), 0)
	require.ErrorIs(t, err, cudaipc.ErrOutOfMemory)
	_, err = cudaipc.NewThread(driver(t), 0)
	require.ErrorContains(t, err, "cuCtxSetCurrent")
	th := thread(t)
	require.NoError(t, th.Do(func(d cudaipc.Driver) error {
		_, _, err := d.MemInfo()
		return err
	}))
}

// Field report G18: what a framework hands in is asked of the driver.
func TestPointersAreAskedAbout(t *testing.T) {
	th := thread(t)
	h, err := cudaipc.NewHost(1)
	require.NoError(t, err)
	require.NoError(t, h.Register(th))
	require.NoError(t, h.Register(th), "it is pinned already")
	require.Panics(t, func() { h.At(0, 1<<20) })
	require.NoError(t, th.Do(func(d cudaipc.Driver) error {
		p, err := d.MemAlloc(4 << 20)
		assert.NoError(t, err)
		kind, err := d.PointerAttribute(uint64(p)+5, cudaipc.PointerMemoryType)
		assert.NoError(t, err)
		assert.EqualValues(t, cudaipc.MemoryDevice, kind)
		ordinal, err := d.PointerAttribute(uint64(p), cudaipc.PointerDeviceOrdinal)
		assert.NoError(t, err)
		assert.EqualValues(t, th.Info().Ordinal, ordinal)
		managed, err := d.PointerAttribute(uint64(p), cudaipc.PointerIsManaged)
		assert.NoError(t, err)
		assert.Zero(t, managed)
		base, bytes, err := d.AddressRange(p + 4095)
		assert.NoError(t, err)
		assert.Equal(t, p, base)
		assert.GreaterOrEqual(t, bytes, uint64(4<<20))
		free, total, err := d.MemInfo()
		assert.NoError(t, err)
		assert.LessOrEqual(t, free, total)
		return d.MemFree(p)
	}))
	require.NoError(t, h.Close())
	require.NoError(t, h.Close())
	require.ErrorIs(t, h.Register(th), cudaipc.ErrClosed)
}

// stuck is a driver whose shared events never complete, as after a producer's death.
type stuck struct {
	cudaipc.Driver
	asked int
}

func (s *stuck) EventQuery(cudaipc.Event) (bool, error) {
	s.asked++
	return false, nil
}

// Facts of the field: a dead producer's event may never complete, and no wait on the device
// could be taken back. The thread serves others all the while.
func TestWaitForHasADeadlineAndLooksWhetherTheProducerLives(t *testing.T) {
	d := &stuck{Driver: driver(t)}
	th, err := cudaipc.NewThread(d, 0)
	require.NoError(t, err)
	defer func() { require.NoError(t, th.Close()) }()

	err = th.WaitFor(1, time.Now().Add(30*time.Millisecond), func() bool { return true })
	require.ErrorIs(t, err, cudaipc.ErrDeadline)
	require.ErrorContains(t, err, "waited")
	require.Greater(t, d.asked, 1)

	looks := 0
	err = th.WaitFor(1, soon(), func() bool { looks++; return looks < 4 })
	require.ErrorIs(t, err, cudaipc.ErrProducerDied)
	require.Equal(t, 4, looks)

	done := make(chan error, 1)
	go func() { done <- th.WaitFor(1, time.Now().Add(200*time.Millisecond), nil) }()
	for waiting := true; waiting; {
		require.NoError(t, th.Do(func(cudaipc.Driver) error { return nil }))
		select {
		case err := <-done:
			require.ErrorIs(t, err, cudaipc.ErrDeadline)
			waiting = false
		default:
		}
	}
}
