package integration

import (
	"context"
	"errors"
	"fmt"

	callboard "callboard/clients/go"
)

func init() {
	roles["adopting-producer"] = adoptingProducer
	roles["scattering-producer"] = scatteringProducer
	roles["stress-reader"] = stressReader
}

// Columns of the stress. Rows are four words wide; every word of row i at ordinal n
// is stamp(n, i), with n the ordinal that wrote the row.
//
//	alpha, beta   written whole at each ordinal, sealed together; alpha is adopted
//	gamma, delta  at ordinal n > 1 the rows with i % scatterParts = n % scatterParts
const (
	alphaRows    = 512
	gammaRows    = 3072 // 96 KiB: copied by the workers, not by the loop (rule L1)
	scatterParts = 6
)

type wide [4]uint64

func stamp(ordinal uint64, row int) wide {
	w := ordinal<<20 | uint64(row)
	return wide{w, w, w, w}
}

// writtenBy is the ordinal that wrote a row of gamma, as ordinal n shows it.
func writtenBy(n uint64, row int) uint64 {
	back := (n + scatterParts - uint64(row)%scatterParts) % scatterParts
	if n > back+1 {
		return n - back
	}
	return 1
}

func paths(kind string, n, from, step int) (out []string) {
	for i := from; i < n; i += step {
		out = append(out, fmt.Sprintf("/%s/%d", kind, i))
	}
	return out
}

type producerReport struct {
	Commits, Adopted uint64
	Restarted        uint64 // ticks that a restart of the broker spoilt; they were done again
	Maybe            uint64 // of these, sealed before
	Lied             uint64 // outcomes that the write floor contradicts
	Refused          uint64 // writes and seals
	First            string // the first refusal or lie
}

// spoilt takes in a tick that a restart of the broker ended, and tells whether it was
// sealed. The floor of the tick's attribute is the judge: nobody else seals it.
func (r *producerReport) spoilt(s *callboard.Stage, name string, ordinal uint64, err error) (sealed bool) {
	r.Restarted++
	floor, problem := s.WriteFloor(name)
	if problem != nil {
		note(&r.Refused, &r.First, "floor at ordinal %d: %v", ordinal, problem)
	}
	var why *callboard.Error
	maybe := errors.As(err, &why) && why.SealedMaybe
	if maybe {
		r.Maybe++
	}
	if maybe != (floor >= ordinal) {
		note(&r.Lied, &r.First, "floor %d after ordinal %d, sealed_maybe is %v: %v", floor, ordinal, maybe, err)
	}
	return floor >= ordinal
}

// produce runs a producer's ticks from ordinal 1 until it is told to stop. A tick that
// a restart of the broker spoilt is done again. name is an attribute that each tick seals.
func produce(p *part, name string, tick func(ctx context.Context, s *callboard.Stage, ordinal uint64) (adopted bool, err error), prepare func(context.Context, *callboard.Stage) error) error {
	ctx := context.Background()
	s, err := callboard.Dial(ctx, callboard.Options{Name: "producer"})
	if err != nil {
		return err
	}
	defer s.Close()
	if err := prepare(ctx, s); err != nil {
		return err
	}
	var report producerReport
	sealed := uint64(0)
	for ordinal := uint64(1); ; ordinal++ {
		adopted, err := tick(ctx, s, ordinal)
		if floor, problem := s.WriteFloor(name); problem == nil && floor < sealed {
			note(&report.Lied, &report.First, "floor %d, but ordinal %d was sealed", floor, sealed)
		}
		switch {
		case errors.Is(err, callboard.ErrSessionEnded):
			return err
		case errors.Is(err, callboard.ErrBrokerRestarted):
			if !report.spoilt(s, name, ordinal, err) {
				ordinal--
			}
		case err != nil:
			note(&report.Refused, &report.First, "write at ordinal %d: %v", ordinal, err)
		default:
			report.Commits++
			sealed = ordinal
		}
		if adopted {
			report.Adopted++
		}
		if ordinal == 1 {
			p.say("ready")
		}
		select {
		case <-p.orders:
			p.say(report)
			return nil
		default:
		}
	}
}

// adoptingProducer fills alpha in place and writes beta at the same ordinal.
func adoptingProducer(p *part) error {
	var q *callboard.Query
	beta := make([]wide, alphaRows)
	tick := func(ctx context.Context, s *callboard.Stage, ordinal uint64) (bool, error) {
		m, err := s.MapAttribute(ctx, q, "alpha", callboard.MapOptions{Ordinal: ordinal, DType: callboard.DType{Code: 1, Bits: 64, Lanes: 4}})
		if err != nil {
			return false, err
		}
		defer m.Abort()
		rows, err := callboard.Rows[wide](m)
		if err != nil {
			return false, err
		}
		for i := range rows {
			rows[i] = stamp(ordinal, i)
			beta[i] = rows[i]
		}
		handed, err := m.UnmapAttribute()
		if err != nil {
			return false, err
		}
		written, err := s.WriteAttribute(ctx, q, "beta", beta, callboard.WriteOptions{Ordinal: ordinal})
		if err != nil {
			return false, err
		}
		if err := seal(ctx, s, ordinal, "alpha", "beta"); err != nil {
			return false, err
		}
		if err := handed.Wait(ctx); err != nil {
			return false, err
		}
		return handed.Adopted(), written.Wait(ctx)
	}
	return produce(p, "alpha", tick, func(ctx context.Context, s *callboard.Stage) (err error) {
		q, err = s.QueryFromPathList(ctx, paths("a", alphaRows, 0, 1))
		return err
	})
}

// scatteringProducer writes a sixth of the rows of gamma and delta at each ordinal.
func scatteringProducer(p *part) error {
	var whole *callboard.Query
	var parts [scatterParts]*callboard.Query
	tick := func(ctx context.Context, s *callboard.Stage, ordinal uint64) (bool, error) {
		q, first, step := whole, 0, 1
		if ordinal > 1 {
			first, step = int(ordinal%scatterParts), scatterParts
			q = parts[first]
		}
		values := make([]wide, 0, gammaRows)
		for i := first; i < gammaRows; i += step {
			values = append(values, stamp(ordinal, i))
		}
		written, err := s.WriteAttributes(ctx, q, ordinal, callboard.Write{Name: "gamma", Values: values}, callboard.Write{Name: "delta", Values: values})
		if err != nil {
			return false, err
		}
		if err := seal(ctx, s, ordinal, "gamma", "delta"); err != nil {
			return false, err
		}
		return false, written.Wait(ctx)
	}
	return produce(p, "gamma", tick, func(ctx context.Context, s *callboard.Stage) (err error) {
		if whole, err = s.QueryFromPathList(ctx, paths("g", gammaRows, 0, 1)); err != nil {
			return err
		}
		for i := range parts {
			if parts[i], err = s.QueryFromPathList(ctx, paths("g", gammaRows, i, scatterParts)); err != nil {
				return err
			}
		}
		return nil
	})
}

type readerReport struct {
	Snapshots, Held uint64
	Torn            uint64 // rows that are not what their ordinal says
	Mixed           uint64 // snapshots whose columns of one tick disagree
	Refused         uint64 // reads
	First           string // of those three

	seen [4]uint64 // ordinals of the last snapshot: what was sealed is never lost
}

// note counts what must not be and keeps the first text.
func note(count *uint64, first *string, format string, args ...any) {
	if *first == "" {
		*first = fmt.Sprintf(format, args...)
	}
	*count++
}

// readerOrder is what a reader of the stress is asked to be.
type readerOrder struct {
	// KeepFirst holds the first snapshot to the end.
	KeepFirst bool
}

// heldFor is how many commits a held snapshot outlives: more than are retained.
const heldFor = 12

// stressReader takes a snapshot of each epoch that it meets and checks all rows; every
// eighth it keeps over later commits and checks again.
func stressReader(p *part) error {
	ctx := context.Background()
	s, err := callboard.Dial(ctx, callboard.Options{Name: "reader", ReadOnly: true})
	if err != nil {
		return err
	}
	defer s.Close()
	qa, err := s.QueryFromPathList(ctx, paths("a", alphaRows, 0, 1))
	if err != nil {
		return err
	}
	qg, err := s.QueryFromPathList(ctx, paths("g", gammaRows, 0, 1))
	if err != nil {
		return err
	}
	p.say("ready")
	var report readerReport
	var order readerOrder
	p.read(&order)
	var kept []*callboard.Group
	if order.KeepFirst {
		if kept, err = report.keep(ctx, s, qa, qg); err != nil {
			return err
		}
		defer func() {
			for _, g := range kept {
				g.Release()
			}
		}()
	}
	var epoch uint64
	for stop := false; ; {
		select {
		case <-p.orders:
			stop = true
		default:
		}
		if stop && report.Held > 0 { // else it had no time for what the test is about
			p.say(report)
			return nil
		}
		if epoch, err = s.Follow(ctx, epoch); err != nil {
			return fmt.Errorf("refused wait: %w", err)
		}
		if err := report.look(ctx, s, qa, qg, report.Snapshots%8 == 7); err != nil {
			note(&report.Refused, &report.First, "read after %d snapshots: %v", report.Snapshots, err)
		}
		if err := report.check(kept); err != nil {
			note(&report.Refused, &report.First, "the first snapshot after %d: %v", report.Snapshots, err)
		}
	}
}

// keep gives views of everything at one epoch.
func (r *readerReport) keep(ctx context.Context, s *callboard.Stage, qa, qg *callboard.Query) (groups []*callboard.Group, err error) {
	snapshot, err := s.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	defer snapshot.Release()
	for _, part := range []struct {
		q     *callboard.Query
		names []string
	}{{qa, []string{"alpha", "beta"}}, {qg, []string{"gamma", "delta"}}} {
		read, err := snapshot.Read(ctx, part.q, part.names...)
		if err != nil {
			return nil, err
		}
		defer read.Release()
		for g, err := range read.Groups() {
			if err != nil {
				return nil, err
			}
			groups = append(groups, g)
		}
	}
	return groups, nil
}

// look reads both pairs at one epoch and checks them.
func (r *readerReport) look(ctx context.Context, s *callboard.Stage, qa, qg *callboard.Query, hold bool) error {
	snapshot, err := s.Snapshot(ctx)
	if err != nil {
		return err
	}
	defer snapshot.Release()
	r.Snapshots++
	var groups []*callboard.Group
	var ordinals []uint64
	for _, pair := range []struct {
		q     *callboard.Query
		names [2]string
	}{{qa, [2]string{"alpha", "beta"}}, {qg, [2]string{"gamma", "delta"}}} {
		read, err := snapshot.Read(ctx, pair.q, pair.names[:]...)
		if err != nil {
			return err
		}
		defer read.Release()
		for _, name := range pair.names {
			g, err := read.Group(name)
			if err != nil {
				return err
			}
			defer g.Release()
			floor, err := snapshot.Floor(name)
			if err != nil {
				return err
			}
			if floor != g.Ordinal() {
				note(&r.Mixed, &r.First, "epoch %d: %s has ordinal %d and floor %d", snapshot.Epoch(), name, g.Ordinal(), floor)
			}
			groups, ordinals = append(groups, g), append(ordinals, g.Ordinal())
		}
	}
	for i, ordinal := range ordinals {
		if ordinal < r.seen[i] {
			note(&r.Mixed, &r.First, "epoch %d: %s went back from ordinal %d to %d", snapshot.Epoch(), groups[i].Attribute(), r.seen[i], ordinal)
		}
		r.seen[i] = ordinal
	}
	if ordinals[0] != ordinals[1] || ordinals[2] != ordinals[3] {
		note(&r.Mixed, &r.First, "epoch %d: ordinals %v, expected two pairs", snapshot.Epoch(), ordinals)
	}
	if err := r.check(groups); err != nil || !hold {
		return err
	}
	for later := snapshot.Epoch(); later < snapshot.Epoch()+heldFor; {
		if later, err = s.Follow(ctx, later); err != nil {
			return err
		}
	}
	r.Held++
	return r.check(groups)
}

func (r *readerReport) check(groups []*callboard.Group) error {
	for _, g := range groups {
		rows, err := callboard.Rows[wide](g)
		if err != nil {
			return err
		}
		for i, row := range rows {
			by := g.Ordinal()
			if g.Attribute() == "gamma" || g.Attribute() == "delta" {
				by = writtenBy(by, i)
			}
			if want := stamp(by, i); row != want {
				note(&r.Torn, &r.First, "%s, epoch %d, ordinal %d: row %d is %x, expected %x", g.Attribute(), g.Epoch(), g.Ordinal(), i, row, want)
			}
		}
	}
	return nil
}
