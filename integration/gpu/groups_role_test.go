package gpu

import (
	"context"
	"errors"
	"fmt"

	callboard "callboard/clients/go"
	"callboard/cudaipc"
)

// claimGroup claims a group of whoever's session of an attribute: Number is its place in the
// session's prims, Text its attempt, or "none".
func claimGroup(p *part, ctx context.Context, o order) (r report, err error) {
	list, err := p.stage.ListGroups(ctx, o.Name)
	if err != nil {
		return r, err
	}
	if len(list) == 0 {
		return report{Text: "none"}, nil
	}
	g, err := p.stage.ClaimGroup(ctx, list[0].Session, list[0].Index)
	if err != nil {
		return r, err
	}
	p.claims[o.As] = g
	r.Number, r.Text, r.Device = uint64(g.First()), fmt.Sprint(g.Attempt()), g.Device().String()
	if len(g.Prims()) != g.Rows() || g.Rows() != list[0].Rows {
		return r, fmt.Errorf("%d prims for %d rows, listed as %d", len(g.Prims()), g.Rows(), list[0].Rows)
	}
	return r, p.named(ctx, g)
}

// named checks that a group's prims are /p0, /p1 and so on of the session.
func (p *part) named(ctx context.Context, g *callboard.MapGroup) error {
	wanted := make([]int, g.Rows())
	for i := range wanted {
		wanted[i] = g.First() + i
	}
	q, err := p.query(ctx, wanted)
	if err != nil {
		return err
	}
	defer q.Release()
	for i, prim := range q.Prims() {
		if g.Prims()[i] != prim {
			return fmt.Errorf("row %d of the group is said to be prim %#x, and is %#x", i, g.Prims()[i], prim)
		}
	}
	return nil
}

// fillClaimed queues the rows of a claimed group: Value and the row's place in the session.
func fillClaimed(p *part, _ context.Context, o order) (report, error) {
	return report{}, p.fill(p.claims[o.As], o.Value)
}

func (p *part) fill(g *callboard.MapGroup, value int) error {
	at, err := g.DevicePointer()
	if err != nil {
		return err
	}
	u, err := p.unit(int(g.Device().ID))
	if err != nil {
		return err
	}
	t, err := g.Array()
	if err != nil {
		return err
	}
	return u.fill(at, g.Rows(), int(t.Shape[1]), value+g.First())
}

// recordClaimed records a claimed group's event as the unmap would, which does not follow.
func recordClaimed(p *part, _ context.Context, o order) (report, error) {
	g := p.claims[o.As]
	event, err := g.Event()
	if err != nil {
		return report{}, err
	}
	u, err := p.unit(int(g.Device().ID))
	if err != nil {
		return report{}, err
	}
	return report{}, u.thread.Do(func(d cudaipc.Driver) error { return d.EventRecord(cudaipc.Event(event), u.stream) })
}

// takeAll claims and fills all groups of an own session, and keeps them, with work that their
// events are recorded behind.
func takeAll(p *part, ctx context.Context, o order) (r report, err error) {
	for g, err := range p.sessions[o.As].Groups(ctx) {
		if err != nil {
			return r, err
		}
		p.claims["own"] = g
		if err := p.fill(g, o.Value); err != nil {
			return r, err
		}
		if _, err := recordClaimed(p, ctx, order{As: "own"}); err != nil {
			return r, err
		}
	}
	delete(p.claims, "own")
	return r, nil
}

// sync is what a claimed group's unmap waits for.
func (p *part) sync(g *callboard.MapGroup, how string) (s callboard.CUDASync, err error) {
	if how == "" {
		return s, nil
	}
	u, err := p.unit(int(g.Device().ID))
	if err == nil {
		s, err = u.sync(how)
	}
	return s, err
}

func handBack(p *part, ctx context.Context, o order) (r report, err error) {
	g := p.claims[o.As]
	defer g.GiveUp() // where it cannot be handed back
	s, err := p.sync(g, o.Sync)
	if err != nil {
		return r, err
	}
	op, err := g.Unmap(s)
	if err != nil {
		return r, err
	}
	delete(p.claims, o.As)
	p.ops[o.As] = op
	if !o.Async {
		err = op.Wait(ctx)
	}
	return r, err
}

// workOn is a worker of the library's, for Count groups; fill hands each back itself, since
// there is something to wait for.
func workOn(p *part, ctx context.Context, o order) (r report, err error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	err = p.stage.WorkOn(ctx, o.Name, callboard.WorkOptions{}, func(g *callboard.MapGroup) error {
		if err := p.named(ctx, g); err != nil {
			return err
		}
		if err := p.fill(g, o.Value); err != nil {
			return err
		}
		s, err := p.sync(g, o.Sync)
		if err != nil {
			return err
		}
		if r.Number++; r.Number == uint64(o.Count) {
			stop()
		}
		_, err = g.Unmap(s)
		return err
	})
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	return r, err
}
