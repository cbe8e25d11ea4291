package goclient

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	callboard "callboard/clients/go"
	"callboard/integration/harness"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// settled waits until a client is attached to the broker that serves now.
func settled(t *testing.T, s *callboard.Stage) {
	t.Helper()
	_, err := s.Tokens(background, "a text")
	require.NoError(t, err)
}

func failure(t *testing.T, op *callboard.Op) *callboard.Error {
	t.Helper()
	err := op.Wait(background)
	require.ErrorIs(t, err, callboard.ErrBrokerRestarted)
	require.ErrorIs(t, err, callboard.ErrOpFailed)
	var why *callboard.Error
	require.True(t, errors.As(err, &why))
	require.Equal(t, op.ID(), why.OpID)
	require.Equal(t, op.SealedMaybe(), why.SealedMaybe)
	return why
}

// B1: what was in flight ends: a seal well where the floors reached it, everything else
// with BROKER_RESTARTED, which says whether it may have been sealed. What is submitted
// again goes through, with the queries of before.
func TestOutcomesOfWhatWasInFlight(t *testing.T) {
	b := harness.Start(t)
	s := b.Dial("producer")
	q := query(t, s, "/a", "/b")
	write(t, s, q, "x", []float64{1, 2}, callboard.WriteOptions{Ordinal: 1})
	write(t, s, q, "y", []float64{1, 2}, callboard.WriteOptions{Ordinal: 1})
	seal(t, s, 1)
	b.Kill9()
	submitted := func(op *callboard.Op, err error) *callboard.Op { // into the ring of a dead broker
		t.Helper()
		require.NoError(t, err)
		return op
	}
	include := callboard.SealOptions{Scope: callboard.ScopeInclude, Attributes: []string{"x"}}
	exclude := callboard.SealOptions{Scope: callboard.ScopeExclude, Attributes: []string{"y"}}
	low := submitted(s.WriteAttribute(background, q, "x", []float64{5, 5}, callboard.WriteOptions{Ordinal: 5}))
	high := submitted(s.WriteAttribute(background, q, "x", []float64{6, 6}, callboard.WriteOptions{Ordinal: 6}))
	other := submitted(s.WriteAttribute(background, q, "y", []float64{5, 5}, callboard.WriteOptions{Ordinal: 5}))
	both := submitted(s.WriteAttributes(background, q, 5, callboard.Write{Name: "x", Values: []float64{5, 5}}, callboard.Write{Name: "y", Values: []float64{5, 5}}))
	deleted := submitted(s.DeleteAttributes(q, nil, 5))
	reached := submitted(s.AdvanceWriteFloor(5, include))
	others := submitted(s.AdvanceWriteFloor(5, exclude))
	beyond := submitted(s.AdvanceWriteFloor(6, include))
	all := submitted(s.AdvanceWriteFloor(5, callboard.SealOptions{}))
	lowest := submitted(s.AdvanceWriteFloor(1, callboard.SealOptions{}))

	b.Restart()
	meanwhile := b.Dial("meanwhile") // its seal is what the floors show when the producer looks
	op, err := meanwhile.AdvanceWriteFloor(5, include)
	require.NoError(t, err)
	require.NoError(t, op.Wait(background))

	require.True(t, failure(t, low).SealedMaybe)
	require.ErrorContains(t, low.Wait(background), "may have been sealed")
	require.False(t, failure(t, high).SealedMaybe)
	require.False(t, failure(t, other).SealedMaybe)
	require.True(t, failure(t, both).SealedMaybe)
	require.True(t, failure(t, deleted).SealedMaybe)
	require.NoError(t, reached.Wait(background))
	require.EqualValues(t, 5, reached.Floor())
	require.Equal(t, op.Epoch(), reached.Epoch())
	require.NoError(t, others.Wait(background), "x is all but y")
	require.NoError(t, lowest.Wait(background))
	require.EqualValues(t, 1, lowest.Floor())
	require.False(t, failure(t, beyond).SealedMaybe)
	failure(t, all)
	require.Equal(t, []float64{1, 2}, read[float64](t, s, q, "x"), "nothing of it happened")

	write(t, s, q, "x", []float64{6, 6}, callboard.WriteOptions{Ordinal: 6})
	write(t, s, q, "y", []float64{6, 7}, callboard.WriteOptions{Ordinal: 6})
	seal(t, s, 6)
	require.Equal(t, []float64{6, 6}, read[float64](t, s, q, "x"))
	require.Equal(t, []float64{6, 7}, read[float64](t, s, q, "y"))
	found, err := s.Query(background, callboard.Has("y"))
	require.NoError(t, err)
	require.Equal(t, q.Prims(), found.Prims(), "ids are what they were (rule L3)")
	found.Release()
}

// B1: what had ended well and was not sealed is lost as well. No operation is left that
// could say so: the next submission of the producer is refused, once. What a failed seal
// has told already is not told again, and what was sealed was not lost.
func TestLossOfWhatHadEndedIsTold(t *testing.T) {
	b := harness.Start(t)
	s := b.Dial("producer")
	q := query(t, s, "/a")
	next := func() {
		b.Kill9()
		b.Restart()
		settled(t, s)
	}
	write(t, s, q, "x", []float64{1}, callboard.WriteOptions{Ordinal: 1})
	next()
	_, err := s.AdvanceWriteFloor(1, callboard.SealOptions{})
	require.ErrorIs(t, err, callboard.ErrBrokerRestarted)
	require.ErrorContains(t, err, "x at ordinal 1")
	write(t, s, q, "x", []float64{1}, callboard.WriteOptions{Ordinal: 1})
	seal(t, s, 1)
	next()
	seal(t, s, 2)

	m, err := s.MapAttribute(background, q, "x", callboard.MapOptions{Ordinal: 3})
	require.NoError(t, err)
	op, err := m.UnmapAttribute()
	require.NoError(t, err)
	require.NoError(t, op.Wait(background))
	b.Kill9()
	sealing, err := s.AdvanceWriteFloor(3, callboard.SealOptions{})
	require.NoError(t, err)
	b.Restart()
	failure(t, sealing)
	write(t, s, q, "x", []float64{3}, callboard.WriteOptions{Ordinal: 3})
	seal(t, s, 3)
	require.Equal(t, []float64{3}, read[float64](t, s, q, "x"))
}

// B1, M3: a map session ends with its broker, and says so in each call; its memory may be
// written into until its user knows. Submissions while there is no broker are refused at
// once, calls that wait anyway wait for the next one (rule R6).
func TestSessionsEndWithTheirBroker(t *testing.T) {
	b := harness.Start(t)
	options := b.Options("producer")
	options.Guard = true
	s, err := callboard.Dial(background, options)
	require.NoError(t, err)
	defer s.Close()
	q := query(t, s, "/a", "/b")
	m, err := s.MapAttribute(background, q, "x", callboard.MapOptions{Ordinal: 1, DType: callboard.DType{Code: 2, Bits: 64, Lanes: 1}})
	require.NoError(t, err)
	rows, err := callboard.Rows[float64](m)
	require.NoError(t, err)
	b.Kill9()
	rows[0] = 7 // nobody has said yet that this is in vain
	require.Eventually(t, func() bool {
		_, err := s.Follow(short(t), s.Epoch())
		require.ErrorIs(t, err, callboard.ErrTimeout, "a wait goes on")
		_, err = s.AdvanceWriteFloor(1, callboard.SealOptions{})
		return errors.Is(err, callboard.ErrBrokerRestarted)
	}, patience, time.Millisecond)
	ctx, cancel := context.WithTimeout(background, 50*time.Millisecond)
	_, err = s.Publish(ctx, "y", 1.0)
	cancel()
	require.ErrorIs(t, err, callboard.ErrTimeout)
	b.Restart()
	settled(t, s)
	rows[1] = 8
	_, err = m.Bytes()
	require.ErrorIs(t, err, callboard.ErrBrokerRestarted)
	for range 2 {
		_, err = m.UnmapAttribute()
		require.ErrorIs(t, err, callboard.ErrBrokerRestarted)
	}
	require.ErrorIs(t, m.Commit(background), callboard.ErrBrokerRestarted)
	m.Abort()
	for ordinal := uint64(1); ordinal <= 3; ordinal++ {
		again, err := s.MapAttribute(background, q, "x", callboard.MapOptions{Ordinal: ordinal, DType: callboard.DType{Code: 2, Bits: 64, Lanes: 1}})
		require.NoError(t, err)
		rows, err := callboard.Rows[float64](again)
		require.NoError(t, err)
		rows[0], rows[1] = float64(ordinal), 2
		op, err := again.UnmapAttribute()
		require.NoError(t, err)
		require.NoError(t, op.Wait(background))
		seal(t, s, ordinal)
	}
	require.Equal(t, []float64{3, 2}, read[float64](t, s, q, "x"))
}

func short(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(background, 20*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

// No broker comes, or one that begins anew: the session is over after all, views stay,
// and nothing of it stays open (rules I2, R4).
func TestNoBrokerToGoOnWith(t *testing.T) {
	for _, end := range []string{"none", "fresh", "closed"} {
		t.Run(end, func(t *testing.T) {
			b := harness.Start(t)
			before := files(t)
			options := b.Options("client")
			options.ReattachWait = 300 * time.Millisecond
			if end != "none" {
				options.ReattachWait = time.Hour
			}
			s, err := callboard.Dial(background, options)
			require.NoError(t, err)
			_, err = s.Publish(background, "x", 1.5)
			require.NoError(t, err)
			view, err := s.Latest(background, "x")
			require.NoError(t, err)
			b.Kill9()
			op, err := s.AdvanceWriteFloor(9, callboard.SealOptions{})
			require.NoError(t, err)
			switch end {
			case "fresh":
				b.Restart("--fresh")
			case "closed":
				require.ErrorIs(t, op.Wait(short(t)), callboard.ErrTimeout)
				time.Sleep(150 * time.Millisecond) // it looks for the next one
				require.NoError(t, s.Close())
			}
			ctx, cancel := context.WithTimeout(background, patience)
			defer cancel()
			require.ErrorIs(t, op.Wait(ctx), callboard.ErrSessionEnded)
			_, err = s.Publish(background, "x", 2.5)
			require.ErrorIs(t, err, callboard.ErrSessionEnded)
			if end == "fresh" {
				require.ErrorContains(t, err, "started anew")
			}
			values, err := callboard.Values[float64](view)
			require.NoError(t, err)
			require.Equal(t, []float64{1.5}, values)
			view.Release()
			require.NoError(t, s.Close())
			require.Eventually(t, func() bool { return files(t) <= before }, patience, 10*time.Millisecond, "descriptors stay open")
		})
	}
}

func files(t *testing.T) int {
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(entries)
}

// One client, used by many goroutines at once, lives through eight brokers (invariant:
// a Stage may be used by any number of goroutines). Readers and those who look for
// queries or texts see no error at all.
func TestManyGoroutinesThroughManyBrokers(t *testing.T) {
	b := harness.Start(t)
	s := b.Dial("client")
	_, err := s.Publish(background, "shared", []uint64{1, 1})
	require.NoError(t, err)
	var stop atomic.Bool
	var work sync.WaitGroup
	ctx, cancel := context.WithCancel(background)
	defer func() { // also where a check fails
		stop.Store(true)
		cancel()
		work.Wait()
	}()
	var turns [6]atomic.Uint64
	loop := func(i int, turn func(n uint64) error) {
		work.Go(func() {
			for n := uint64(1); !stop.Load(); n++ {
				if !assert.NoError(t, turn(n), "goroutine %d, turn %d", i, n) {
					return
				}
				turns[i].Add(1)
			}
		})
	}
	loop(0, func(n uint64) error {
		_, err := s.Publish(ctx, "shared", []uint64{n, n})
		if errors.Is(err, callboard.ErrBrokerRestarted) {
			return nil
		}
		return err
	})
	loop(1, func(n uint64) error {
		g, err := s.Latest(ctx, "shared")
		if err != nil {
			return err
		}
		defer g.Release()
		values, err := callboard.Values[uint64](g)
		if err == nil && values[0] != values[1] {
			err = fmt.Errorf("half of a value: %d", values)
		}
		return err
	})
	loop(2, func(n uint64) error { _, err := s.Tokens(ctx, fmt.Sprintf("text %d", n%100)); return err })
	loop(3, func(n uint64) error {
		q, err := s.QueryFromPathList(ctx, []string{fmt.Sprintf("/p/%d", n%50), "/"})
		if err != nil {
			return err
		}
		defer q.Release()
		r, err := s.ReadAttributes(ctx, q, []string{"shared"}, callboard.ReadOptions{})
		if err == nil {
			r.Release()
		}
		return err
	})
	loop(4, func(uint64) error {
		q, err := s.Query(ctx, callboard.Has("shared"))
		if err != nil {
			return err
		}
		defer q.Release()
		if q.Len() != 1 {
			return fmt.Errorf("a query found %d prims", q.Len())
		}
		return nil
	})
	work.Go(func() {
		for snapshot, err := range s.Watch(ctx, "shared") {
			if ctx.Err() != nil {
				return
			}
			if !assert.NoError(t, err) {
				return
			}
			turns[5].Add(1)
			_ = snapshot
		}
	})
	goOn := func() { // all of them, since the call
		for i := range turns {
			turns[i].Store(0)
		}
		require.Eventually(t, func() bool {
			for i := range turns {
				if turns[i].Load() == 0 {
					return false
				}
			}
			return true
		}, patience, 10*time.Millisecond, "everybody goes on")
	}
	before := 0
	for life := range 8 {
		time.Sleep(100 * time.Millisecond)
		if life%2 == 0 {
			b.Kill9()
			b.Restart()
		} else {
			b.Restart("--takeover")
		}
		if life == 1 {
			goOn()
			before = files(t)
		}
	}
	goOn()
	require.Eventually(t, func() bool { return files(t) <= before+2 }, patience, 10*time.Millisecond, "descriptors of this process")
	stop.Store(true)
	work.Go(func() { time.Sleep(50 * time.Millisecond); cancel() })
	work.Wait()
}

// M2, B1: a session of several groups ends with its broker, for its owner and for those who
// had claimed of it; a worker goes on with the next one, which has memory of its own.
func TestWorkersGoOnAfterARestart(t *testing.T) {
	b := harness.Start(t)
	owner, worker := b.Dial("owner"), b.Dial("worker")
	q := query(t, owner, "/a", "/b", "/c", "/d")
	ctx, cancel := context.WithCancel(background)
	defer cancel()
	claimed, proceed := make(chan struct{}, 8), make(chan struct{})
	done := make(chan error, 1)
	go func() {
		done <- worker.WorkOn(ctx, "x", callboard.WorkOptions{}, func(g *callboard.MapGroup) error {
			rows, err := callboard.Rows[float64](g)
			if err != nil {
				return err
			}
			claimed <- struct{}{}
			<-proceed
			for i := range rows {
				rows[i] = float64(g.First() + i)
			}
			return nil
		})
	}()
	open := func() *callboard.MapSession {
		m, err := owner.MapAttribute(background, q, "x", callboard.MapOptions{Ordinal: 1, DType: callboard.DType{Code: 2, Bits: 64, Lanes: 1}, GroupRows: 2})
		require.NoError(t, err)
		return m
	}
	m := open()
	<-claimed
	b.Kill9()
	b.Restart()
	settled(t, owner)
	_, err := m.UnmapAttribute()
	require.ErrorIs(t, err, callboard.ErrBrokerRestarted)
	m = open()
	close(proceed) // only now the worker writes into what it had claimed of the broker that is gone
	require.NoError(t, m.Commit(background))
	seal(t, owner, 1)
	require.Equal(t, []float64{0, 1, 2, 3}, read[float64](t, owner, q, "x"))
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
}

// A fill that asks for its memory after the restart hears of it, and passes it on: that is no
// end of the work (rule B1).
func TestAFillThatMeetsARestartIsNoEndOfTheWork(t *testing.T) {
	b := harness.Start(t)
	owner, worker := b.Dial("owner"), b.Dial("worker")
	q := query(t, owner, "/a", "/b")
	ctx, cancel := context.WithCancel(background)
	defer cancel()
	claimed, proceed := make(chan struct{}, 8), make(chan struct{})
	met := make(chan error, 8)
	done := make(chan error, 1)
	go func() {
		done <- worker.WorkOn(ctx, "x", callboard.WorkOptions{}, func(g *callboard.MapGroup) error {
			claimed <- struct{}{}
			<-proceed
			rows, err := callboard.Rows[float64](g)
			met <- err
			for i := range rows {
				rows[i] = float64(g.First() + i)
			}
			return err
		})
	}()
	open := func() *callboard.MapSession {
		m, err := owner.MapAttribute(background, q, "x", callboard.MapOptions{Ordinal: 1, DType: callboard.DType{Code: 2, Bits: 64, Lanes: 1}, GroupRows: 1})
		require.NoError(t, err)
		return m
	}
	open()
	<-claimed
	b.Kill9()
	b.Restart()
	settled(t, owner)
	settled(t, worker)
	m := open()
	close(proceed)
	require.NoError(t, m.Commit(background))
	require.ErrorIs(t, <-met, callboard.ErrBrokerRestarted)
	require.NoError(t, <-met)
	seal(t, owner, 1)
	require.Equal(t, []float64{0, 1}, read[float64](t, owner, q, "x"))
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
}

// A client that did not notice a restart, or two, is none the worse for it: it held
// nothing unsealed. One that cannot notice, since it is stopped, neither (rule I3: its
// channel counts as live).
func TestRestartThatNobodyNoticed(t *testing.T) {
	b := harness.Start(t)
	s := b.Dial("sleeper")
	_, err := s.Publish(background, "x", 1.0)
	require.NoError(t, err)
	view, err := s.Latest(background, "x")
	require.NoError(t, err)
	defer view.Release()
	for range 3 {
		b.Kill9()
		b.Restart()
	}
	require.NoError(t, syscall.Kill(b.PID(), 0))
	_, err = s.Publish(background, "x", 2.0)
	require.NoError(t, err, "nothing of it was lost")
	g, err := s.Latest(background, "x")
	require.NoError(t, err)
	defer g.Release()
	values, err := callboard.Values[float64](g)
	require.NoError(t, err)
	require.Equal(t, []float64{2}, values)
	info, err := s.Info()
	require.NoError(t, err)
	require.Positive(t, info.Pins)
}
