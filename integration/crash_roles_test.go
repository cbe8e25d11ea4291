package integration

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	callboard "callboard/clients/go"
	"callboard/control"
	"callboard/shm"
)

func init() {
	roles["half-filler"] = halfFiller
	roles["pinner"] = pinner
	roles["idle"] = func(p *part) error { return idle(p, false) }
	roles["read-only"] = func(p *part) error { return idle(p, true) }
	roles["subscriber"] = subscriber
	roles["attach"] = attach
}

// halfFiller maps memory and fills half of it.
func halfFiller(p *part) error {
	ctx, s, err := dialRole("half-filler", false)
	if err != nil {
		return err
	}
	m, err := s.Map(ctx, "half/filled", []int{half}, callboard.DType{Code: 1, Bits: 8, Lanes: 1})
	if err != nil {
		return err
	}
	bytes, err := m.Bytes()
	if err != nil {
		return err
	}
	for i := range len(bytes) / 2 {
		bytes[i] = 0xee
	}
	p.say("half")
	p.hear()
	return nil
}

// pinner keeps a view of pinned/value, also over the end of its session.
func pinner(p *part) error {
	ctx, s, err := dialRole("pinner", true)
	if err != nil {
		return err
	}
	g, err := s.Latest(ctx, "pinned/value")
	if errors.Is(err, callboard.ErrNotFound) {
		g, err = s.Latest(ctx, "others/value")
	}
	if err != nil {
		return err
	}
	bytes, err := g.Bytes()
	if err != nil {
		return err
	}
	was := slices.Clone(bytes)
	p.say("pinned")
	for {
		switch order := p.hear(); order {
		case "close":
			if err := s.Close(); err != nil {
				return err
			}
			p.say("closed")
		case "look":
			if slices.Equal(was, bytes) {
				p.say("the same")
			} else {
				p.say("changed")
			}
		default:
			return fmt.Errorf("order %q", order)
		}
	}
}

func idle(p *part, readOnly bool) error {
	_, s, err := dialRole("idle", readOnly)
	if err != nil {
		return err
	}
	defer s.Close()
	p.say("idle")
	p.hear()
	return nil
}

// subscriber listens on NATS alone.
func subscriber(p *part) error {
	info, err := control.ReadRuntimeFile(filepath.Join(os.Getenv(shm.RuntimeEnv), control.RuntimeFileName))
	if err != nil {
		return err
	}
	connection, err := control.Connect(info, control.RoleObserver)
	if err != nil {
		return err
	}
	if _, err := control.Subscribe(connection, "callboard.>", func(string, []byte) {}); err != nil {
		return err
	}
	p.say("subscribed")
	p.hear()
	return nil
}

// attachSteps are how far a client gets before it dies.
var attachSteps = []string{"connect", "half a hello", "hello", "reply read", "descriptors mapped"}

type attachConfig struct{ Socket, Step string }

// attach stops after a step.
func attach(p *part) error {
	var c attachConfig
	p.read(&c)
	conn, err := shm.Dial(c.Socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	w := &wire{conn: conn}
	switch hello := helloMessage("attach"); c.Step {
	case "connect":
	case "half a hello":
		err = conn.Send(hello[:len(hello)/2])
	case "hello":
		err = conn.Send(hello)
	case "reply read": // the descriptors arrive, nothing is done with them
		if err = conn.Send(hello); err == nil {
			_, _, err = receive(conn)
		}
	case "descriptors mapped":
		if err = conn.Send(hello); err == nil {
			err = w.receiveHello()
		}
	default:
		err = fmt.Errorf("no step is named %q", c.Step)
	}
	if err != nil {
		return err
	}
	p.say(c.Step)
	p.hear()
	return nil
}
