package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	callboard "callboard/clients/go"
	"callboard/cudaipc"
	"callboard/tensor"
)

const (
	scatterSets   = 4  // different sets of rows, in turn
	scatterWarmUp = 6  // rounds until blocks are used again
	scatterRounds = 50 // at most
)

// scatterCase changes some rows of a column on the prims /p0, /p1, …: runs of neighbours at random places.
type scatterCase struct {
	RowBytes int `json:"row_bytes"`
	Rows     int `json:"rows"` // of the column
	Changed  int `json:"changed"`
	InRuns   int `json:"in_runs_of"` // rows: a divisor of Changed
}

// rows are those of a set, the same in every process.
func (c scatterCase) rows(set int) (rows []uint32) {
	random := rand.New(rand.NewPCG(uint64(c.Changed), uint64(set)))
	for _, run := range random.Perm(c.Rows / c.InRuns)[:c.Changed/c.InRuns] {
		for k := range c.InRuns {
			rows = append(rows, uint32(run*c.InRuns+k))
		}
	}
	return rows
}

func (c scatterCase) bytes() int { return c.Changed * c.RowBytes }

// fillRow writes what a row holds after the write with an ordinal, which no other row and no other write gives.
func fillRow(row []byte, number uint32, ordinal uint64) {
	binary.LittleEndian.PutUint32(row, number)
	binary.LittleEndian.PutUint32(row[4:], uint32(ordinal))
	for at := 8; at < len(row); at += 4 {
		binary.LittleEndian.PutUint32(row[at:], number+uint32(ordinal)+uint32(at))
	}
}

// scatterOrder is what the two processes of a column are told.
type scatterOrder struct {
	Stage string
	Cases []scatterCase // of one column
	Large int           // bytes of the copy that shows the card's bandwidth
	Limit limits
}

// scatterRun are the samples of a case, in nanoseconds.
type scatterRun struct{ Whole, Commit, Copy, Runs []float64 }

type scatterOutcome struct {
	Cases []scatterRun
	Large []float64
	Tally tally
}

// written tells the checking process of a write: of a case's set, or of the whole column.
type written struct {
	Ordinal   uint64
	Case, Set int
	All       bool
}

// scatterer is the producer of a column.
type scatterer struct {
	stage    *callboard.Stage
	card     *card
	checker  *partner
	order    scatterOrder
	column   string
	ordinal  uint64
	from, to cudaipc.Pointer // of copies beside
	out      scatterOutcome
}

// columnOf is the attribute that a case writes: every repetition the same one.
func columnOf(c scatterCase) string { return fmt.Sprintf("bench/column/%d", c.RowBytes) }

func scatterRole(ctx context.Context, raw []byte) (outcome any, err error) {
	s := &scatterer{}
	if err := json.Unmarshal(raw, &s.order); err != nil {
		return nil, err
	}
	first := s.order.Cases[0]
	s.column = columnOf(first)
	all := first.Rows * first.RowBytes
	if s.card, err = openCard(all); err != nil {
		return nil, err
	}
	if s.stage, err = callboard.Dial(ctx, callboard.Options{Stage: s.order.Stage, Name: "bench producer"}); err != nil {
		return nil, err
	}
	defer s.stage.Close()
	if s.ordinal, err = s.stage.WriteFloor(s.column); err != nil {
		return nil, err
	}
	space := max(all, s.order.Large)
	if s.from, err = s.card.allocate(space); err == nil {
		s.to, err = s.card.allocate(space)
	}
	if err != nil {
		return nil, err
	}
	if err := s.writeAll(ctx, first); err != nil {
		return nil, err
	}
	if s.checker, err = startPartner("gpu-check", raw); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.checker.end()) }()
	if err := s.check(written{Ordinal: s.ordinal, All: true}); err != nil {
		return nil, err
	}
	for i := range s.order.Cases {
		run, err := s.runCase(ctx, i)
		if err != nil {
			return nil, fmt.Errorf("%+v: %w", s.order.Cases[i], err)
		}
		s.out.Cases = append(s.out.Cases, run)
	}
	for started := time.Now(); !s.order.Limit.over(len(s.out.Large), started); {
		took, err := s.copyBeside(s.order.Large)
		if err != nil {
			return nil, err
		}
		s.out.Large = append(s.out.Large, took)
	}
	return s.out, nil
}

func queryOf(ctx context.Context, stage *callboard.Stage, rows []uint32) (*callboard.Query, error) {
	paths := make([]string, len(rows))
	for i, row := range rows {
		paths[i] = fmt.Sprintf("/p%d", row)
	}
	return stage.QueryFromPathList(ctx, paths)
}

// everyRow are the numbers of a column's rows.
func everyRow(c scatterCase) []uint32 {
	rows := make([]uint32, c.Rows)
	for i := range rows {
		rows[i] = uint32(i)
	}
	return rows
}

// writeAll makes the column.
func (s *scatterer) writeAll(ctx context.Context, c scatterCase) error {
	rows := everyRow(c)
	query, err := queryOf(ctx, s.stage, rows)
	if err != nil {
		return err
	}
	defer query.Release()
	_, _, err = s.commit(ctx, query, c, rows)
	return err
}

func (s *scatterer) seal() (*callboard.Op, error) {
	return s.stage.AdvanceWriteFloor(s.ordinal, callboard.SealOptions{Scope: callboard.ScopeInclude, Attributes: []string{s.column}})
}

// commit writes rows with the next ordinal: map, fill, unmap, seal. It says how long map took, and unmap to the end of the
// seal; what fills the rows is done before the unmap, so that nothing is waited for that is not the broker's.
func (s *scatterer) commit(ctx context.Context, query *callboard.Query, c scatterCase, rows []uint32) (mapped, committed time.Duration, err error) {
	s.ordinal++
	started := time.Now()
	session, err := s.stage.MapAttribute(ctx, query, s.column, callboard.MapOptions{
		Ordinal: s.ordinal, DType: tensor.Uint8, RowShape: []uint64{uint64(c.RowBytes)}, Device: callboard.CUDA(0)})
	if err != nil {
		return 0, 0, err
	}
	mapped = time.Since(started)
	defer session.Abort()
	at, err := session.DevicePointer()
	if err != nil {
		return 0, 0, err
	}
	payload := s.card.host.Bytes()
	for i, row := range rows {
		fillRow(payload[i*c.RowBytes:][:c.RowBytes], row, s.ordinal)
	}
	if err := s.card.upload(at, len(rows)*c.RowBytes); err != nil {
		return 0, 0, err
	}
	started = time.Now()
	unmap, err := session.UnmapAttribute()
	if err != nil {
		return 0, 0, err
	}
	seal, err := s.seal()
	if err != nil {
		return 0, 0, err
	}
	if err := errors.Join(seal.Wait(ctx), unmap.Wait(ctx)); err != nil {
		return 0, 0, err
	}
	committed = time.Since(started)
	if len(rows) < c.Rows && unmap.Adopted() {
		return 0, 0, errors.New("the broker adopted the rows of a part of the column: nothing was scattered")
	}
	return mapped, committed, nil
}

// check has the other process look at the whole column.
func (s *scatterer) check(w written) error {
	var bytes int64
	if err := errors.Join(s.checker.tell.Encode(w), s.checker.answer(&bytes)); err != nil {
		return err
	}
	s.out.Tally.add(tally{1, bytes})
	return nil
}

// copyBeside copies so many bytes at once.
func (s *scatterer) copyBeside(bytes int) (ns float64, err error) {
	took, err := s.card.whole(func(d cudaipc.Driver) error { return d.CopyDtoDAsync(s.to, s.from, uint64(bytes), s.card.stream) })
	return float64(took), err
}

// runsBeside makes a copy for each run of the rows.
func (s *scatterer) runsBeside(c scatterCase, rows []uint32) (ns float64, err error) {
	took, err := s.card.whole(func(d cudaipc.Driver) error {
		for i := 0; i < len(rows); i += c.InRuns {
			to, from := s.to+cudaipc.Pointer(int(rows[i])*c.RowBytes), s.from+cudaipc.Pointer(i*c.RowBytes)
			if err := d.CopyDtoDAsync(to, from, uint64(c.InRuns*c.RowBytes), s.card.stream); err != nil {
				return err
			}
		}
		return nil
	})
	return float64(took), err
}

// runCase takes turns: a copy, a copy for each run, a commit, the look of the other process.
func (s *scatterer) runCase(ctx context.Context, number int) (run scatterRun, err error) {
	c := s.order.Cases[number]
	var sets [scatterSets][]uint32
	var queries [scatterSets]*callboard.Query
	for i := range sets {
		sets[i] = c.rows(i)
		if queries[i], err = queryOf(ctx, s.stage, sets[i]); err != nil {
			return run, err
		}
		defer queries[i].Release()
	}
	limit := s.order.Limit
	limit.Rounds = min(limit.Rounds, scatterRounds)
	started := time.Now()
	for round := 0; !limit.over(len(run.Commit), started); round++ {
		set := round % scatterSets
		one, err := s.copyBeside(c.bytes())
		if err != nil {
			return run, err
		}
		each, err := s.runsBeside(c, sets[set])
		if err != nil {
			return run, err
		}
		mapped, committed, err := s.commit(ctx, queries[set], c, sets[set])
		if err != nil {
			return run, err
		}
		if err := s.check(written{Ordinal: s.ordinal, Case: number, Set: set}); err != nil {
			return run, err
		}
		if round < scatterWarmUp {
			started = time.Now()
			continue
		}
		run.Whole, run.Commit = append(run.Whole, float64(mapped+committed)), append(run.Commit, float64(committed))
		run.Copy, run.Runs = append(run.Copy, one), append(run.Runs, each)
	}
	return run, nil
}

// checkRole looks at the column after each write, in a process of its own, and compares all of it with what was written.
func checkRole(ctx context.Context, raw []byte) (any, error) {
	var order scatterOrder
	if err := json.Unmarshal(raw, &order); err != nil {
		return nil, err
	}
	first := order.Cases[0]
	wanted := make([]byte, first.Rows*first.RowBytes)
	card, err := openCard(len(wanted))
	if err != nil {
		return nil, err
	}
	stage, err := callboard.Dial(ctx, callboard.Options{Stage: order.Stage, Name: "bench reader"})
	if err != nil {
		return nil, err
	}
	defer stage.Close()
	query, err := queryOf(ctx, stage, everyRow(first))
	if err != nil {
		return nil, err
	}
	column := columnOf(first)
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var w written
		if more, err := nextOrder(in, &w); !more {
			return nil, err
		}
		rows := everyRow(first)
		if !w.All {
			rows = order.Cases[w.Case].rows(w.Set)
		}
		for _, row := range rows {
			fillRow(wanted[int(row)*first.RowBytes:][:first.RowBytes], row, w.Ordinal)
		}
		if err := checkColumn(ctx, stage, card, query, column, first.RowBytes, wanted); err != nil {
			return nil, fmt.Errorf("after the write with ordinal %d: %w", w.Ordinal, err)
		}
		if err := out.Encode(len(wanted)); err != nil {
			return nil, err
		}
	}
}

func checkColumn(ctx context.Context, stage *callboard.Stage, card *card, query *callboard.Query, column string, rowBytes int, wanted []byte) error {
	read, err := stage.ReadAttributes(ctx, query, []string{column}, callboard.ReadOptions{})
	if err != nil {
		return err
	}
	defer read.Release()
	for group, err := range read.Groups() {
		if err != nil {
			return err
		}
		defer group.Release()
		if len(group.Prims())*rowBytes != len(wanted) {
			return fmt.Errorf("a group has %d prims, expected %d", len(group.Prims()), len(wanted)/rowBytes)
		}
		at, err := group.DevicePointer()
		if err != nil {
			return err
		}
		found, err := card.download(at, group.Rows()*rowBytes)
		if err != nil {
			return err
		}
		for i := range group.Prims() {
			is, want := found[group.Row(i)*rowBytes:][:rowBytes], wanted[i*rowBytes:][:rowBytes]
			if !bytes.Equal(is, want) {
				return fmt.Errorf("the row of /p%d begins with % x, expected % x", i, is[:12], want[:12])
			}
		}
		return nil
	}
	return fmt.Errorf("no group of %s was read", column)
}
