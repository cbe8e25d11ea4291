package goclient

import (
	"context"
	"runtime"
	"testing"
	"time"

	callboard "callboard/clients/go"
	"callboard/integration/harness"

	"github.com/stretchr/testify/require"
)

func publish(t *testing.T, s *callboard.Stage, name string, value float64) uint64 {
	t.Helper()
	_, err := s.Publish(background, name, value)
	require.NoError(t, err)
	return s.Epoch()
}

// next takes what comes; false when the channel is closed.
func next(t *testing.T, epochs <-chan uint64) (uint64, bool) {
	t.Helper()
	select {
	case epoch, ok := <-epochs:
		return epoch, ok
	case <-time.After(patience):
		t.Fatal("no epoch came")
		return 0, false
	}
}

func until(t *testing.T, epochs <-chan uint64, wanted uint64) {
	t.Helper()
	for last := uint64(0); last < wanted; {
		epoch, ok := next(t, epochs)
		require.True(t, ok)
		require.Greater(t, epoch, last, "each is newer")
		last = epoch
	}
}

// A channel beside others: the newest epoch, once, and no backlog.
func TestEpochsAreTheNewest(t *testing.T) {
	b := harness.Start(t)
	s, producer := b.Dial("reader"), b.Dial("producer")
	ctx, cancel := context.WithCancel(background)
	defer cancel()
	epochs, second := s.Epochs(ctx), s.Epochs(ctx)
	select {
	case epoch := <-epochs:
		t.Fatalf("nothing is sealed, and epoch %d came", epoch)
	case <-time.After(20 * time.Millisecond):
	}
	epoch := publish(t, producer, "x", 1)
	until(t, epochs, epoch)
	for i := range 50 {
		epoch = publish(t, producer, "x", float64(i))
	}
	require.Eventually(t, func() bool { return len(epochs) == 1 }, patience, time.Millisecond)
	until(t, epochs, epoch) // one value more than the last at most
	require.Empty(t, epochs)
	until(t, second, epoch) // each has its own
	got, ok := next(t, s.Epochs(ctx))
	require.True(t, ok)
	require.Equal(t, epoch, got, "what is sealed already comes first")
	require.NoError(t, s.CloseIfIdle(), "who waits for epochs holds nothing")
}

func TestEpochsEndWithTheirContextAndTheStage(t *testing.T) {
	b := harness.Start(t)
	s := b.Dial("reader")
	publish(t, s, "x", 1)
	before := runtime.NumGoroutine()
	ctx, cancel := context.WithCancel(background)
	var all []<-chan uint64
	for range 20 {
		all = append(all, s.Epochs(ctx))
	}
	kept := s.Epochs(background)
	cancel() // nobody has received anything
	for _, epochs := range all {
		for ok := true; ok; {
			_, ok = next(t, epochs)
		}
	}
	until(t, kept, s.Epoch())
	epoch := publish(t, s, "x", 2)
	until(t, kept, epoch)
	require.NoError(t, s.Close())
	_, ok := next(t, kept)
	require.False(t, ok)
	_, ok = next(t, s.Epochs(background))
	require.False(t, ok, "of a stage that is closed")
	for deadline := time.Now().Add(patience); runtime.NumGoroutine() > before; time.Sleep(5 * time.Millisecond) {
		require.True(t, time.Now().Before(deadline), "%d goroutines are left, there were %d", runtime.NumGoroutine(), before)
	}
}

// A broker that is killed and started anew does not end the channel (B1); one that stays away does (field report E12).
func TestEpochsAfterARestart(t *testing.T) {
	b := harness.Start(t)
	o := b.Options("reader")
	o.ReattachWait = 5 * time.Second // a start takes its time
	s, err := callboard.Dial(background, o)
	require.NoError(t, err)
	defer s.Close()
	epochs := s.Epochs(background)
	until(t, epochs, publish(t, s, "x", 1))
	b.Kill9()
	b.Restart()
	until(t, epochs, publish(t, b.Dial("producer"), "x", 2))
	b.Kill9()
	for ok := true; ok; {
		_, ok = next(t, epochs)
	}
	_, err = s.Follow(background, s.Epoch())
	require.ErrorIs(t, err, callboard.ErrSessionEnded)
}
