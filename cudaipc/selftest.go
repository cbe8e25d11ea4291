package cudaipc

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"callboard/protocol"
	"callboard/shm"
)

// selfTestBytes is the size of the shared allocation. The child copies its first half over
// its second one.
const selfTestBytes = ArenaAlign

// selfTestWait bounds each step of a self-test, beside what the caller's context says. The
// first context of a process takes seconds on a machine with many devices.
const selfTestWait = 30 * time.Second

// selfTestRequest is the one line that the child reads.
type selfTestRequest struct {
	UUID          []byte
	Memory, Event []byte
	Seed          byte
}

// selfTestReply is the one line that it answers, and its only output.
type selfTestReply struct {
	Step      string // the one that failed, or "" when the copy is recorded
	Code      Code
	Text      string
	Namespace string // its pid namespace
}

// SelfTestError says at which step of a self-test sharing failed, and what can be done.
type SelfTestError struct {
	Step string
	Cause
	Err error
}

func (e *SelfTestError) Error() string {
	return fmt.Sprintf("self-test of device memory between processes: %s: %v: %s: %s", e.Step, e.Err, e.Reason, e.Advice)
}

// Unwrap gives what the step met.
func (e *SelfTestError) Unwrap() error { return e.Err }

// SelfTest shares real memory with a real process: it exports an allocation with a pattern
// and an event, and starts command, which opens both, copies the pattern and records the
// event. Only that shows WSL2, pid namespaces, sandboxes and parts of devices for what they
// are.
//
// command runs SelfTestChild with its standard input and output; it is killed if ctx ends
// or it does not answer. nil: sharing works on this device. *SelfTestError: it does not.
func SelfTest(ctx context.Context, t *Thread, command *exec.Cmd) (err error) {
	e, err := newSelfTest(t)
	defer func() {
		if closing := e.close(); err == nil && closing != nil {
			err = failedStep("taking it back", closing)
		}
	}()
	if err != nil {
		return failedStep("exporting", err)
	}
	return e.run(ctx, command)
}

// selfTest is the exporting side.
type selfTest struct {
	thread  *Thread
	host    *Host
	memory  Pointer
	event   Event
	stream  Stream
	request selfTestRequest
}

func newSelfTest(t *Thread) (*selfTest, error) {
	e := &selfTest{thread: t, request: selfTestRequest{UUID: t.info.UUID[:], Seed: byte(time.Now().UnixNano())}}
	var err error
	if e.host, err = NewHost(selfTestBytes / 2); err != nil {
		return e, err
	}
	fillPattern(e.host.Bytes(), e.request.Seed)
	return e, t.Do(func(d Driver) (err error) {
		if e.stream, err = d.StreamCreate(); err != nil {
			return err
		}
		if e.memory, err = d.MemAlloc(selfTestBytes); err != nil {
			return err
		}
		if e.event, err = d.EventCreate(EventShared); err != nil {
			return err
		}
		memory, err := d.IPCGetMemHandle(e.memory)
		if err != nil {
			return err
		}
		event, err := d.IPCGetEventHandle(e.event)
		if err != nil {
			return err
		}
		e.request.Memory, e.request.Event = memory[:], event[:]
		half := uint64(selfTestBytes / 2)
		if err := d.MemsetD8Async(e.memory+Pointer(half), 0, half, e.stream); err != nil {
			return err
		}
		if err := d.CopyHtoDAsync(e.memory, e.host.At(0, half), half, e.stream); err != nil {
			return err
		}
		return d.StreamSynchronize(e.stream)
	})
}

// close comes after the child has ended: it had all of it open.
func (e *selfTest) close() error {
	err := e.thread.Do(func(d Driver) (err error) {
		if e.stream != 0 {
			err = errors.Join(d.StreamSynchronize(e.stream), d.StreamDestroy(e.stream))
		}
		if e.event != 0 {
			err = errors.Join(err, d.EventDestroy(e.event))
		}
		if e.memory != 0 {
			err = errors.Join(err, d.MemFree(e.memory))
		}
		return err
	})
	if e.host != nil {
		err = errors.Join(err, e.host.Close())
	}
	return err
}

func (e *selfTest) run(ctx context.Context, command *exec.Cmd) error {
	line, err := json.Marshal(e.request)
	if err != nil {
		return failedStep("asking the child", err)
	}
	var complaints bytes.Buffer
	command.Stderr = &complaints
	stdin, err := command.StdinPipe()
	if err != nil {
		return failedStep("starting the child", err)
	}
	stdout, err := command.StdoutPipe()
	if err != nil {
		return failedStep("starting the child", err)
	}
	if err := command.Start(); err != nil {
		return failedStep("starting the child", err)
	}
	end := sync.OnceFunc(func() { // it lets go of what it has open when its input ends, or is killed
		_ = stdin.Close()
		late := time.AfterFunc(selfTestWait, func() { _ = command.Process.Kill() })
		_ = command.Wait()
		late.Stop()
	})
	defer end()
	ctx, cancel := context.WithTimeout(ctx, selfTestWait)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = command.Process.Kill() })
	defer stop()

	var reply selfTestReply
	if _, err = stdin.Write(append(line, '\n')); err == nil {
		err = json.NewDecoder(stdout).Decode(&reply)
	}
	switch {
	case ctx.Err() != nil:
		return &SelfTestError{"waiting for the child", Cause{ReasonNoAnswer, "the driver blocks in the other process: look at dmesg and nvidia-smi"}, ctx.Err()}
	case err != nil:
		_ = command.Process.Kill()
		end() // and all that it said is there
		said := strings.TrimSpace(complaints.String())
		return &SelfTestError{"waiting for the child", Cause{ReasonNoAnswer, "it ended without an answer; it said: " + said}, err}
	case reply.Step != "":
		return reply.failure()
	}
	return e.verify(ctx)
}

// verify waits for the event that the child recorded, and looks at what it copied.
func (e *selfTest) verify(ctx context.Context) error {
	deadline, _ := ctx.Deadline()
	if err := e.thread.WaitFor(e.event, deadline, nil); err != nil {
		return &SelfTestError{"waiting for the child's event", Cause{ReasonNoAnswer, "an event of another process does not complete here: update the driver"}, err}
	}
	half := uint64(selfTestBytes / 2)
	clear(e.host.Bytes())
	err := e.thread.Do(func(d Driver) error {
		if err := d.CopyDtoHAsync(e.host.At(0, half), e.memory+Pointer(half), half, e.stream); err != nil {
			return err
		}
		return d.StreamSynchronize(e.stream)
	})
	if err != nil {
		return failedStep("reading what the child wrote", err)
	}
	if at := differs(e.host.Bytes()[:half], e.request.Seed); at >= 0 {
		return wrongBytes("reading what the child wrote", at)
	}
	return nil
}

func failedStep(step string, err error) error { return &SelfTestError{step, why(CodeOf(err)), err} }

func wrongBytes(step string, at int) error {
	return &SelfTestError{step, Cause{ReasonWrongBytes, "the two processes do not see the same memory, or not in order: do not use device memory here, and report it"}, fmt.Errorf("byte %d is not what was written", at)}
}

// failure says what a child's answer means, and whether it is where the driver looks.
func (r selfTestReply) failure() error {
	e := &SelfTestError{Step: "the child, " + r.Step, Cause: why(r.Code), Err: errors.New(r.Text)}
	if r.Code != 0 {
		e.Err = &childError{r.Code, r.Text}
	} else if r.Step == stepPattern {
		e.Cause = Cause{ReasonWrongBytes, "the two processes do not see the same memory: do not use device memory here, and report it"}
	}
	if ours, err := os.Readlink("/proc/self/ns/pid"); err == nil && r.Namespace != "" && ours != r.Namespace {
		e.Cause = causes[ErrInvalidContext]
		e.Advice += fmt.Sprintf(" (this process is in %s, the child in %s)", ours, r.Namespace)
	}
	return e
}

// childError is a driver's error of another process.
type childError struct {
	code Code
	text string
}

func (e *childError) Error() string { return e.text }
func (e *childError) Unwrap() error { return e.code }

const (
	stepLoad    = "loading the driver"
	stepDevice  = "finding the device"
	stepMemory  = "opening the memory"
	stepEvent   = "opening the event"
	stepPattern = "reading the pattern"
	stepRecord  = "copying and recording"
)

// SelfTestChild is the other process of a SelfTest: it reads a request, does what it says,
// answers in one line, and lets go when its input ends.
func SelfTestChild(in io.Reader, out io.Writer) error {
	reader := bufio.NewReader(in)
	line, err := reader.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("reading the request of a self-test: %w", err)
	}
	var request selfTestRequest
	if err := json.Unmarshal(line, &request); err != nil {
		return fmt.Errorf("reading the request of a self-test: %w", err)
	}
	c := &selfTestChild{request: request}
	step, err := c.run()
	reply := selfTestReply{Step: step}
	var refused *ImportError
	if errors.As(err, &refused) { // who reads it finds the cause for itself
		err = refused.Err
	}
	if err != nil {
		reply.Code, reply.Text = CodeOf(err), err.Error()
	}
	reply.Namespace, _ = os.Readlink("/proc/self/ns/pid")
	if err := json.NewEncoder(out).Encode(reply); err != nil {
		return errors.Join(fmt.Errorf("answering a self-test: %w", err), c.close())
	}
	_, _ = io.Copy(io.Discard, reader)
	return c.close()
}

type selfTestChild struct {
	request selfTestRequest
	thread  *Thread
	imports []*Import
	host    *Host
	stream  Stream
}

// run gives the step at which it failed.
func (c *selfTestChild) run() (string, error) {
	d, err := Load("")
	if err != nil {
		return stepLoad, err
	}
	r := c.request
	if len(r.UUID) != len(UUID{}) || len(r.Memory) != len(Handle{}) || len(r.Event) != len(Handle{}) {
		return stepLoad, fmt.Errorf("the request has an id of %d bytes and handles of %d and %d", len(r.UUID), len(r.Memory), len(r.Event))
	}
	ordinal, err := FindDevice(d, UUID(r.UUID))
	if err != nil {
		return stepDevice, err
	}
	if c.thread, err = NewThread(d, ordinal); err != nil {
		return stepDevice, err
	}
	imports := NewImports(c.thread)
	memory, err := imports.Open(Export{Sort: protocol.DeviceArena, Bytes: selfTestBytes, UUID: UUID(r.UUID), Handle: Handle(r.Memory)})
	if err != nil {
		return stepMemory, err
	}
	c.imports = append(c.imports, memory)
	event, err := imports.Open(Export{Sort: protocol.DeviceEvent, UUID: UUID(r.UUID), Handle: Handle(r.Event)})
	if err != nil {
		return stepEvent, err
	}
	c.imports = append(c.imports, event)

	half := uint64(selfTestBytes / 2)
	if c.host, err = NewHost(half); err != nil {
		return stepPattern, err
	}
	err = c.thread.Do(func(d Driver) (err error) {
		if c.stream, err = d.StreamCreate(); err != nil {
			return err
		}
		if err := d.CopyDtoHAsync(c.host.At(0, half), memory.Address, half, c.stream); err != nil {
			return err
		}
		return d.StreamSynchronize(c.stream)
	})
	if err != nil {
		return stepPattern, err
	}
	if at := differs(c.host.Bytes()[:half], r.Seed); at >= 0 {
		return stepPattern, fmt.Errorf("byte %d is not what was written", at)
	}
	err = c.thread.Do(func(d Driver) error {
		if err := d.CopyDtoDAsync(memory.Address+Pointer(half), memory.Address, half, c.stream); err != nil {
			return err
		}
		return d.EventRecord(event.Event, c.stream)
	})
	if err != nil {
		return stepRecord, err
	}
	return "", nil
}

func (c *selfTestChild) close() (err error) {
	if c.thread == nil {
		return nil
	}
	if c.stream != 0 {
		err = c.thread.Do(func(d Driver) error {
			return errors.Join(d.StreamSynchronize(c.stream), d.StreamDestroy(c.stream))
		})
	}
	for _, in := range c.imports {
		_, closing := in.Close()
		err = errors.Join(err, closing)
	}
	if c.host != nil {
		err = errors.Join(err, c.host.Close())
	}
	return errors.Join(err, c.thread.Close())
}

// fillPattern writes bytes that differ between self-tests and between neighbouring pages.
func fillPattern(b []byte, seed byte) {
	for i := range b {
		b[i] = seed + byte(i*7) + byte(i/shm.PageAlign)
	}
}

// differs finds the first byte that fillPattern would not have written; -1: none.
func differs(b []byte, seed byte) int {
	for i := range b {
		if b[i] != seed+byte(i*7)+byte(i/shm.PageAlign) {
			return i
		}
	}
	return -1
}
