package ring

import (
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"sync"
	"time"

	"callboard/protocol"
)

// The stress is a client with several threads, as clients/go is one, and a broker
// that completes in any order. It runs across two processes (process_test.go) and,
// under the race detector, within one (race_test.go).

const (
	stressThreads  = 3
	stressDepth    = 8  // ops in flight of one thread
	stressRoom     = 64 // bytes of arguments and of results of one op
	stressAttempts = 1000
	stressLong     = 20 * time.Second // no machine is as busy: a wake that comes later was lost
)

func stressLayout() (Layout, error) { return NewLayout(8, 16, 64, PageBytes, PageBytes) }

// stressClient is the lock, the op ids and the completions not yet fetched.
type stressClient struct {
	ring  *Client
	pins  *PinTable
	mutex sync.Mutex
	ids   uint64
	done  map[uint64]protocol.CompletionEntry
}

// run has the threads do ops operations in all; rooms are disjoint by thread and place.
func (s *stressClient) run(seed uint64, ops int) error {
	s.done = map[uint64]protocol.CompletionEntry{}
	failures := make([]error, stressThreads)
	var threads sync.WaitGroup
	for thread := range stressThreads {
		threads.Go(func() {
			random := rand.New(rand.NewPCG(seed, uint64(thread)))
			for left := ops / stressThreads; left > 0 && failures[thread] == nil; {
				n := min(left, 1+random.IntN(stressDepth))
				left -= n
				failures[thread] = s.batch(random, uint32(thread), n)
			}
		})
	}
	threads.Wait()
	return errors.Join(failures...)
}

// batch submits n ops, pins something meanwhile, and waits for all n.
func (s *stressClient) batch(random *rand.Rand, thread uint32, n int) error {
	var ids [stressDepth]uint64
	var sums [stressDepth]uint32
	for i := range n {
		e := protocol.SubmissionEntry{Opcode: protocol.OpNop, ResultBytes: stressRoom}
		e.ArgumentOffsetBytes = (thread*stressDepth + uint32(i)) * stressRoom
		e.ResultOffsetBytes = e.ArgumentOffsetBytes
		e.ArgumentBytes = random.Uint32N(stressRoom + 1)
		room, err := s.ring.Arguments(e.ArgumentOffsetBytes, e.ArgumentBytes)
		if err != nil {
			return err
		}
		for k := range room {
			room[k] = byte(random.Uint32())
		}
		sums[i] = crc32.ChecksumIEEE(room)
		e.Value = uint64(sums[i])
		if ids[i], err = s.submit(&e); err != nil {
			return err
		}
	}
	slot, err := s.pins.Acquire()
	if err != nil {
		return err
	}
	s.pins.Store(slot, thread, ids[0])
	defer s.pins.Release(slot)
	for i := range n {
		c, err := s.wait(ids[i])
		if err != nil {
			return err
		}
		offset := (thread*stressDepth + uint32(i)) * stressRoom
		result, err := s.ring.Result(offset, c.ResultBytes)
		if err != nil {
			return err
		}
		if got := crc32.ChecksumIEEE(result); uint64(got) != c.Value || ^sums[i] != uint32(c.Count) {
			return fmt.Errorf("op %d: results sum to %#x, expected %#x; argument sum %#x, expected %#x", ids[i], got, c.Value, ^uint32(c.Count), sums[i])
		}
	}
	if got := s.pins.Epoch(slot); got != ids[0] {
		return fmt.Errorf("pin slot %d holds %d, expected %d", slot, got, ids[0])
	}
	return nil
}

func (s *stressClient) submit(e *protocol.SubmissionEntry) (uint64, error) {
	for range stressAttempts {
		heard := s.ring.Listen()
		s.mutex.Lock()
		err := s.poll()
		if err == nil {
			e.OpID = s.ids + 1
			if err = s.ring.Submit(e); err == nil {
				s.ids++
			}
		}
		s.mutex.Unlock()
		if !errors.Is(err, ErrFull) {
			return e.OpID, err
		}
		if err := s.sleep(heard); err != nil {
			return 0, err
		}
	}
	return 0, fmt.Errorf("no room after %d wakes", stressAttempts)
}

func (s *stressClient) wait(id uint64) (protocol.CompletionEntry, error) {
	for range stressAttempts {
		heard := s.ring.Listen()
		s.mutex.Lock()
		err := s.poll()
		c, ok := s.done[id]
		delete(s.done, id)
		s.mutex.Unlock()
		if ok || err != nil {
			return c, err
		}
		if err := s.sleep(heard); err != nil {
			return c, err
		}
	}
	return protocol.CompletionEntry{}, fmt.Errorf("no completion of op %d after %d wakes", id, stressAttempts)
}

func (s *stressClient) poll() error {
	var c protocol.CompletionEntry
	for {
		ok, err := s.ring.Poll(&c)
		if !ok {
			return err
		}
		if _, twice := s.done[c.OpID]; twice || c.OpID == 0 || c.OpID > s.ids {
			return fmt.Errorf("a completion of op %d, which is unknown or complete", c.OpID)
		}
		s.done[c.OpID] = c
	}
}

func (s *stressClient) sleep(heard uint32) error {
	started := time.Now()
	rung, err := s.ring.sleep(heard, stressLong) // and not a turn, which would make up for a wake that was lost
	if err == nil && time.Since(started) >= stressLong {
		return fmt.Errorf("no wake within %v; the bell was rung: %v", stressLong, rung)
	}
	return err
}

// stressServe is the loop: it serves ops operations, completing in any order.
func stressServe(server *Server, pins *Pins, bell *Bell, seed uint64, ops int) error {
	random := rand.New(rand.NewPCG(seed, 1<<32))
	var batch [4]protocol.SubmissionEntry
	var open []protocol.SubmissionEntry
	arguments := make([]byte, 0, stressRoom)
	served, next := 0, uint64(1)
	for idle := time.Now(); served < ops; {
		n, err := server.Drain(batch[:1+random.IntN(len(batch))])
		if err != nil {
			return err
		}
		for _, e := range batch[:n] {
			if e.OpID != next {
				return fmt.Errorf("drained op %d, expected %d (rule R7)", e.OpID, next)
			}
			next++
		}
		open = append(open, batch[:n]...)
		for len(open) > 0 && (n == 0 || random.IntN(2) == 0) {
			at := random.IntN(len(open))
			e := open[at]
			open[at] = open[len(open)-1]
			open = open[:len(open)-1]
			if arguments, err = server.CopyArguments(arguments, e.ArgumentOffsetBytes, e.ArgumentBytes); err != nil {
				return err
			}
			sum := crc32.ChecksumIEEE(arguments)
			if uint64(sum) != e.Value {
				return fmt.Errorf("op %d: arguments sum to %#x, expected %#x", e.OpID, sum, e.Value)
			}
			size := random.Uint32N(e.ResultBytes + 1)
			result, err := server.Result(e.ResultOffsetBytes, size)
			if err != nil {
				return err
			}
			for k := range result {
				result[k] = byte(random.Uint32())
			}
			server.Complete(&protocol.CompletionEntry{OpID: e.OpID, ResultBytes: size,
				Value: uint64(crc32.ChecksumIEEE(result)), Count: uint64(^sum)})
			served++
		}
		server.Flush()
		if n > 0 {
			idle = time.Now()
			continue
		}
		err = pins.Scan(func(slot int, epoch uint64, attribute uint32) {
			if attribute >= stressThreads || epoch > uint64(ops) {
				panic(fmt.Sprintf("slot %d: epoch %d attribute %d", slot, epoch, attribute))
			}
		})
		if err != nil {
			return err
		}
		value := bell.Arm()
		if !server.Pending() {
			if err := bell.Wait(value, TurnMax); err != nil {
				return err
			}
			if time.Since(idle) > 20*time.Second {
				return fmt.Errorf("no op for 20 s; %d of %d served", served, ops)
			}
		}
		bell.Disarm()
	}
	return nil
}
