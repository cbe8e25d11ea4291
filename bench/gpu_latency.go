package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	callboard "callboard/clients/go"
	"callboard/cudaipc"
	"callboard/tensor"
)

const (
	// hostBytesMax is the largest group in host memory beside: size does not matter there, and shared memory may be short.
	hostBytesMax = 1 << 20
	lookBytes    = 64 << 10 // most that a reader compares, at the beginning and at the end
	latencyWarm  = 12       // rounds until each block of the pool was used
)

// handover is a way of handing a group over.
type handover int

const (
	inHost    handover = iota
	inDevice           // the producer waited for its own work
	withEvent          // the same, and the broker is told to wait for the producer's stream, in which nothing is left
	handovers          // how many there are
)

func (h handover) bytes(size int) int {
	if h == inHost {
		return min(size, hostBytesMax)
	}
	return size
}

// latencyOrder is what publisher and follower are told.
type latencyOrder struct {
	Stage string
	Sizes []int
	Limit limits
}

// latencyRun are the samples of a size by handover, in nanoseconds from before unmap to the reader's look.
type latencyRun [handovers][]float64

type latencyOutcome struct {
	Sizes []latencyRun
	Tally tally
}

// expected is what the follower is to wait for; it says when it does.
type expected struct {
	Attribute string
	Device    bool
	Bytes     int
	Value     byte // of each of them
}

// seen is the follower's answer.
type seen struct {
	At    int64 // the time when it had the address, of the machine's clock
	Bytes int64 // that it compared
}

// publisher hands groups over.
type publisher struct {
	stage    *callboard.Stage
	card     *card
	follower *partner
	out      latencyOutcome
}

func publishRole(ctx context.Context, raw []byte) (outcome any, err error) {
	var order latencyOrder
	if err := json.Unmarshal(raw, &order); err != nil {
		return nil, err
	}
	p := &publisher{}
	if p.card, err = openCard(1); err != nil {
		return nil, err
	}
	if p.stage, err = callboard.Dial(ctx, callboard.Options{Stage: order.Stage, Name: "bench producer"}); err != nil {
		return nil, err
	}
	defer p.stage.Close()
	if p.follower, err = startPartner("gpu-follow", raw); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.follower.end()) }()
	for _, size := range order.Sizes {
		run, err := p.runSize(ctx, size, order.Limit)
		if err != nil {
			return nil, fmt.Errorf("groups of %d bytes: %w", size, err)
		}
		p.out.Sizes = append(p.out.Sizes, run)
	}
	return p.out, nil
}

// runSize takes turns between the ways of handing over.
func (p *publisher) runSize(ctx context.Context, size int, limit limits) (run latencyRun, err error) {
	var names [handovers]string
	for how := range handovers {
		names[how] = fmt.Sprintf("bench/latency/%d/%d", size, how)
		device := callboard.CUDA(0)
		if how == inHost {
			device = callboard.CPU
		}
		o := callboard.DeclareOptions{DType: tensor.Uint8, RowShape: []uint64{uint64(how.bytes(size))}, Device: device}
		if err := p.stage.Declare(ctx, names[how], o); err != nil {
			return run, err
		}
	}
	started := time.Now()
	for round := 0; !limit.over(len(run[inHost]), started); round++ {
		for how := range handovers {
			took, err := p.round(ctx, names[how], how, how.bytes(size), byte(1+round%251))
			if err != nil {
				return run, err
			}
			if round >= latencyWarm {
				run[how] = append(run[how], took)
			}
		}
		if round < latencyWarm {
			started = time.Now()
		}
	}
	return run, nil
}

func (p *publisher) round(ctx context.Context, name string, how handover, size int, value byte) (ns float64, err error) {
	var following bool
	if err := errors.Join(p.follower.tell.Encode(expected{name, how != inHost, size, value}), p.follower.answer(&following)); err != nil {
		return 0, err
	}
	session, err := p.stage.Map(ctx, name, []int{size}, tensor.Uint8)
	if err != nil {
		return 0, err
	}
	defer session.Abort()
	if err := p.fill(session, how, size, value); err != nil {
		return 0, err
	}
	var sync []callboard.CUDASync
	if how == withEvent {
		sync = append(sync, callboard.CUDASync{Stream: uint64(p.card.stream)})
	}
	before := time.Now().UnixNano()
	if err := session.Commit(ctx, sync...); err != nil {
		return 0, err
	}
	var s seen
	if err := p.follower.answer(&s); err != nil {
		return 0, err
	}
	p.out.Tally.add(tally{1, s.Bytes})
	return float64(s.At - before), nil
}

// fill makes every byte the same, and waits until it is.
func (p *publisher) fill(session *callboard.MapSession, how handover, size int, value byte) error {
	if how == inHost {
		memory, err := session.Bytes()
		for i := range memory {
			memory[i] = value
		}
		return err
	}
	at, err := session.DevicePointer()
	if err != nil {
		return err
	}
	_, err = p.card.whole(func(d cudaipc.Driver) error {
		return d.MemsetD8Async(cudaipc.Pointer(at), value, uint64(size), p.card.stream)
	})
	return err
}

// followRole waits for each group, takes the time when it has its address, and compares its bytes after that.
func followRole(ctx context.Context, raw []byte) (any, error) {
	var order latencyOrder
	if err := json.Unmarshal(raw, &order); err != nil {
		return nil, err
	}
	card, err := openCard(lookBytes)
	if err != nil {
		return nil, err
	}
	stage, err := callboard.Dial(ctx, callboard.Options{Stage: order.Stage, Name: "bench reader"})
	if err != nil {
		return nil, err
	}
	defer stage.Close()
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var want expected
		if more, err := nextOrder(in, &want); !more {
			return nil, err
		}
		epoch := stage.Epoch()
		if err := out.Encode(true); err != nil {
			return nil, err
		}
		if _, err := stage.Follow(ctx, epoch); err != nil {
			return nil, err
		}
		group, err := stage.Latest(ctx, want.Attribute)
		if err != nil {
			return nil, err
		}
		answer, err := look(card, group, want)
		group.Release()
		if err == nil {
			err = out.Encode(answer)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", want.Attribute, err)
		}
	}
}

func look(card *card, group *callboard.Group, want expected) (s seen, err error) {
	var memory []byte
	var at uint64
	if want.Device {
		at, err = group.DevicePointer()
	} else {
		memory, err = group.Bytes()
	}
	s.At = time.Now().UnixNano()
	if err != nil {
		return s, err
	}
	if !group.Adopted() {
		return s, errors.New("the broker copied the group, which was to be taken over in place")
	}
	length := min(want.Bytes, lookBytes)
	for _, offset := range []int{0, want.Bytes - length} {
		found := memory
		if want.Device {
			if found, err = card.download(at+uint64(offset), length); err != nil {
				return s, err
			}
		} else {
			found = memory[offset:][:length]
		}
		if !bytes.Equal(found, bytes.Repeat([]byte{want.Value}, length)) {
			return s, fmt.Errorf("the %d bytes from %d on begin with %d, expected %d in all of them", length, offset, found[0], want.Value)
		}
		s.Bytes += int64(length)
	}
	return s, nil
}
