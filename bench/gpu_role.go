package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"callboard/cudaipc"
)

// gpuRoles are what this program is when it has started itself again: then it is one file on a machine with a GPU.
var gpuRoles = map[string]func(ctx context.Context, order []byte) (outcome any, err error){
	"gpu-scatter": scatterRole,
	"gpu-check":   checkRole,
	"gpu-publish": publishRole,
	"gpu-follow":  followRole,
}

// playRole is main of a role; false: this is none.
func playRole(args []string) bool {
	if len(args) != 2 || gpuRoles[args[0]] == nil {
		return false
	}
	outcome, err := gpuRoles[args[0]](context.Background(), []byte(args[1]))
	if err == nil && outcome != nil {
		err = json.NewEncoder(os.Stdout).Encode(outcome)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "bench: %s: %v\n", args[0], err)
		os.Exit(1)
	}
	return true
}

// limits bound the rounds of one case.
type limits struct {
	Rounds int
	Budget time.Duration
}

// roundsMin is measured whatever the budget.
const roundsMin = 3

// over tells whether so many rounds since then are enough.
func (l limits) over(rounds int, since time.Time) bool {
	return rounds >= l.Rounds || rounds >= roundsMin && time.Since(since) >= l.Budget
}

// card is a role's own side of the device, as a user's program has one: a stream in the primary context, and host
// memory that copies may use.
type card struct {
	thread *cudaipc.Thread
	stream cudaipc.Stream
	host   *cudaipc.Host
}

func openCard(hostBytes int) (*card, error) {
	d, err := cudaipc.Load("")
	if err != nil {
		return nil, err
	}
	c := &card{}
	if c.thread, err = cudaipc.NewThread(d, 0); err != nil {
		return nil, err
	}
	if c.host, err = cudaipc.NewHost(uint64(hostBytes)); err != nil {
		return nil, err
	}
	_ = c.host.Register(c.thread) // faster; nothing depends on it
	return c, c.thread.Do(func(d cudaipc.Driver) (err error) {
		c.stream, err = d.StreamCreate()
		return err
	})
}

// whole queues work in the stream, waits until it is done, and says how long that took.
func (c *card) whole(queue func(cudaipc.Driver) error) (took time.Duration, err error) {
	err = c.thread.Do(func(d cudaipc.Driver) error {
		started := time.Now()
		if err := queue(d); err != nil {
			return err
		}
		err := d.StreamSynchronize(c.stream)
		took = time.Since(started)
		return err
	})
	return took, err
}

// upload copies the first bytes of the host memory to the device.
func (c *card) upload(to uint64, bytes int) error {
	_, err := c.whole(func(d cudaipc.Driver) error {
		return d.CopyHtoDAsync(cudaipc.Pointer(to), c.host.At(0, uint64(bytes)), uint64(bytes), c.stream)
	})
	return err
}

// download copies from the device to the beginning of the host memory.
func (c *card) download(from uint64, bytes int) ([]byte, error) {
	_, err := c.whole(func(d cudaipc.Driver) error {
		return d.CopyDtoHAsync(c.host.At(0, uint64(bytes)), cudaipc.Pointer(from), uint64(bytes), c.stream)
	})
	return c.host.Bytes()[:bytes], err
}

// allocate takes memory of the process's own; it goes with the process.
func (c *card) allocate(bytes int) (at cudaipc.Pointer, err error) {
	return at, c.thread.Do(func(d cudaipc.Driver) (err error) {
		at, err = d.MemAlloc(uint64(bytes))
		return err
	})
}

// partner is the reader's process of a producer, which asks it something and hears an answer.
type partner struct {
	role string
	cmd  *exec.Cmd
	in   io.WriteCloser
	tell *json.Encoder
	hear *json.Decoder
}

func startPartner(role string, order []byte) (*partner, error) {
	p := &partner{role: role, cmd: exec.Command("/proc/self/exe", role, string(order))}
	p.cmd.Stderr = os.Stderr
	var err error
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.tell, p.hear = json.NewEncoder(p.in), json.NewDecoder(out)
	return p, p.cmd.Start()
}

// answer waits for what the partner says next.
func (p *partner) answer(into any) error {
	if err := p.hear.Decode(into); err != nil {
		return fmt.Errorf("%s ended early: %w", p.role, err)
	}
	return nil
}

// end lets the partner end and waits for it.
func (p *partner) end() error {
	_ = p.in.Close()
	if err := p.cmd.Wait(); err != nil {
		return fmt.Errorf("%s: %w", p.role, err)
	}
	return nil
}

// nextOrder reads what a partner is asked; false: it may end.
func nextOrder(from *json.Decoder, into any) (bool, error) {
	err := from.Decode(into)
	if err == io.EOF {
		return false, nil
	}
	return err == nil, err
}
