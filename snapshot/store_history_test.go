package snapshot

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"callboard/protocol"
	"callboard/tensor"

	"github.com/stretchr/testify/require"
)

// history drives a store and the naive one with the same random steps. What it
// decides depends on the seed and on the naive store alone.
type history struct {
	*fixture
	naive   naive
	random  *rand.Rand // decides what is done
	lazy    *rand.Rand // decides when jobs end
	prims   []uint64
	queries []*Query
	clients []*historyClient
	shares  []*historyShare
	stamp   uint64
	handoff uint32
	reader  *Reader
	pinned  PinSource // the reader's
	scratch [][]byte
	list    *PrimList
	views   []*heldView
	prompt  bool // jobs end at once, so that they do not decide about epochs
}

type historyClient struct {
	pinSet
	incarnation uint64
	arena       *Arena
	sessions    []*historySession
}

type historySession struct {
	session *Session
	prims   []uint64
	name    string
	bytes   int // of a row, as in historyRowBytes
	next    bool
	insert  bool
	fresh   map[int]string // what the client knows to be in its rows
	starts  []int
	late    bool // it is there when the event has completed
}

var historyNames = []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k"}

// historyDevices are the devices that attributes lie on.
var historyDevices = map[string]uint32{"i": 0, "j": 1, "k": 0}

// historyRowBytes are the sizes of rows; below 0 those of an array's elements.
var historyRowBytes = map[string]int{"a": 1, "b": 8, "c": 64, "d": 700, "e": 3, "f": 64, "g": -2, "h": -5, "i": 1, "j": 64, "k": 700}

// historyBytes are those of a column.
func historyBytes(c *column) int {
	if c.ragged != nil {
		return -int(elementBytes(&c.schema))
	}
	return int(c.rowBytes)
}

func historySchema(name string, rowBytes int) protocol.Schema {
	if rowBytes < 0 {
		return arraySchema(-rowBytes)
	}
	if id, ok := historyDevices[name]; ok {
		return onDevice(bytesSchema(rowBytes), id)
	}
	return bytesSchema(rowBytes)
}

func newHistory(t testing.TB, seed uint64, config Config, delayed bool) *history {
	h := &history{fixture: newFixtureOf(t, config, 1<<30, newFakes(t, 1<<30, 1<<30)), random: rand.New(rand.NewPCG(seed, 1)), lazy: rand.New(rand.NewPCG(seed, 2)), handoff: config.Handoff}
	h.delayed, h.prompt = delayed, config.CopyInlineBytes == 1<<30
	h.naive = naive{floors: map[string]uint64{}, epochs: map[uint64]*naiveEpoch{}}
	h.prims = h.paths(50)
	h.attachReader()
	for range 8 {
		h.queries = append(h.queries, h.newQuery())
	}
	for range 2 + h.random.IntN(2) {
		h.clients = append(h.clients, h.newClient())
	}
	return h
}

func (h *history) newQuery() *Query {
	switch first := h.random.IntN(len(h.prims)); h.random.IntN(4) {
	case 0: // with duplicates (behaviour 91)
		q := NewQuery()
		for range 1 + h.random.IntN(60) {
			q.Add(h.prims[h.random.IntN(len(h.prims))])
		}
		return q
	case 1:
		return queryOf(h.prims[:1+first]...)
	default:
		p := slices.Clone(h.prims)
		h.random.Shuffle(len(p), func(i, k int) { p[i], p[k] = p[k], p[i] })
		if h.random.IntN(2) == 0 {
			first = min(first, 2) // so few that a block catches up by its log (rule O7)
		}
		return queryOf(p[:1+first]...)
	}
}

func (h *history) newClient() *historyClient {
	h.stamp++
	c := &historyClient{incarnation: h.stamp}
	c.arena = h.memory.NewArena(protocol.SegmentClient, c.incarnation, fmt.Sprint("client ", c.incarnation), h.random.IntN(2) == 0)
	h.store.AddPins(&c.pinSet)
	return c
}

func (h *history) row(rowBytes int) string {
	h.stamp++
	if rowBytes < 0 {
		rowBytes *= -[]int{0, 1, 3, 40, 200}[h.random.IntN(5)]
	}
	text := fmt.Sprint(h.stamp, "|")
	for len(text) < rowBytes {
		text += text
	}
	return text[:rowBytes]
}

func (h *history) rows(n, rowBytes int) (rows []string, bytes []byte) {
	for range n {
		rows = append(rows, h.row(rowBytes))
		bytes = append(bytes, rows[len(rows)-1]...)
	}
	return rows, bytes
}

// sizes are the element counts of an array's rows; some that are all equal are left out,
// so that the payload is packed.
func (h *history) sizes(rows []string, rowBytes int) (sizes []uint64) {
	if rowBytes > 0 {
		return nil
	}
	equal := true
	for _, row := range rows {
		sizes = append(sizes, uint64(len(row)/-rowBytes))
		equal = equal && len(row) == len(rows[0])
	}
	if equal && h.random.IntN(2) == 0 {
		return nil
	}
	return sizes
}

// selection picks targets among size; payload is how many rows it takes. A session's
// payload has one row for each prim.
func (h *history) selection(size int, session bool) (sel tensor.Selection, payload int) {
	sel.Count, payload = tensor.All, size
	switch h.random.IntN(7) {
	case 0:
		sel.Count = uint64(1 + h.random.IntN(size))
		payload = int(sel.Count)
	case 1, 2:
		sel.Count = uint64(1 + h.random.IntN(size))
		sel.Mask = []uint64{h.random.Uint64(), h.random.Uint64(), h.random.Uint64()}
		payload = int(sel.Count)
	case 3, 4:
		sel.Count = uint64(1 + h.random.IntN(size))
		if !session {
			payload = 1 + h.random.IntN(4)
		}
		for range sel.Count {
			sel.IndexMap = append(sel.IndexMap, uint32(h.random.IntN(payload)))
		}
	}
	return sel, payload
}

// name and ordinal of the next op: mostly what is admitted. Several ordinals wait at
// once, in any order (rule O1).
func (h *history) what() (name string, rowBytes int, ordinal uint64) {
	name = historyNames[h.random.IntN(len(historyNames))]
	rowBytes = historyRowBytes[name]
	if h.random.IntN(20) == 0 {
		rowBytes++ // another schema (rule L6)
		if h.random.IntN(2) == 0 {
			rowBytes = -min(rowBytes, 255) // another kind (behaviour 28)
		}
	}
	ordinal = h.naive.floor(name) + 1 + uint64(h.random.IntN(4))
	if h.random.IntN(15) == 0 {
		ordinal -= min(ordinal, uint64(h.random.IntN(4)))
	}
	return name, rowBytes, ordinal
}

func (h *history) outcome(want protocol.Status, err error, what string) bool {
	if want == protocol.StatusOK {
		require.NoError(h.t, err, what)
		return true
	}
	require.Error(h.t, err, "%s: expected %v", what, want)
	requireStatus(h.t, want, err)
	return false
}

// finish runs an op whose job may end later. The naive store accepts it now, and
// seals with it when it ends.
func (h *history) finish(want protocol.Status, what string, op func() (Outcome, *Job, error), accept, seal func()) {
	err := h.try(func() error {
		_, job, err := op()
		if job != nil {
			h.jobs = append(h.jobs, &fixtureJob{job: job, then: func(Outcome) { seal() }})
		}
		if err == nil {
			accept()
			if job == nil {
				seal()
			}
		}
		return err
	})
	if h.prompt {
		h.settle()
	}
	h.outcome(want, err, what)
}

// settleBefore ends the seals that an op on a name must wait for, so that what it
// meets is known.
func (h *history) settleBefore(name string) {
	for _, z := range h.store.active {
		if z.coversName(name) {
			h.settle()
			return
		}
	}
}

func (h *history) next() {
	if len(h.jobs) > 0 && h.lazy.IntN(2) == 0 {
		h.endJob()
	}
	if len(h.grow) > 0 && h.lazy.IntN(2) == 0 {
		r := h.grow[0]
		h.grow = h.grow[1:]
		h.grown(r)
	}
	for range h.lazy.IntN(4) { // as far as nobody rings
		h.step(func() { h.store.CatchUp() })
	}
	c := h.clients[h.random.IntN(len(h.clients))]
	if h.random.IntN(6) == 0 {
		h.shareSome(c)
		h.check()
		return
	}
	if h.random.IntN(15) == 0 {
		h.meet()
		h.check()
		return
	}
	switch k := h.random.IntN(100); {
	case k < 25:
		h.writeSome()
	case k < 42:
		h.mapSome(c)
	case k < 59:
		h.unmapSome(c)
	case k < 66:
		h.deleteSome()
	case k < 69:
		if len(c.sessions) > 0 {
			h.step(func() { h.store.EndSession(c.sessions[0].session) })
			c.sessions = c.sessions[1:]
		}
	case k < 84:
		h.sealSome()
	case k < 86:
		h.declareSome()
	case k < 90:
		if h.naive.epoch > 0 {
			p := Pin{Epoch: h.store.Epoch(), Attribute: protocol.PinAll}
			if h.random.IntN(2) == 0 {
				p.Attribute = uint32(h.random.IntN(len(h.naive.columns) + 1))
			}
			c.pins = append(c.pins, p)
		}
	case k < 96:
		if n := len(c.pins); n > 0 {
			c.pins = slices.Delete(c.pins, 0, 1+h.random.IntN(n))
		}
	case k < 98:
		h.queries[h.random.IntN(len(h.queries))] = h.newQuery()
	case k < 99:
		h.queries[h.random.IntN(len(h.queries))].Add(h.prims[h.random.IntN(len(h.prims))])
	default:
		h.die(c)
	}
	h.check()
}

func (h *history) writeSome() {
	name, rowBytes, ordinal := h.what()
	q := h.queries[h.random.IntN(len(h.queries))]
	sel, payload := h.selection(int(q.Size()), false)
	rows, bytes := h.rows(payload, rowBytes)
	t := Target{Query: q, Name: name, Schema: historySchema(name, rowBytes), Ordinal: ordinal, Insert: h.random.IntN(10) == 0, ElementSizes: h.sizes(rows, rowBytes)}
	if h.naive.find(name, rowBytes) != nil && rowBytes > 0 && h.random.IntN(2) == 0 {
		t.Schema.DeviceType, t.Schema.DeviceID = 0, 0 // where it lies
	}
	publish := h.random.IntN(6) == 0
	if t.Next = publish && h.random.IntN(2) == 0; t.Next || publish || h.waits(name, ordinal) {
		h.settleBefore(name)
	}
	if t.Next {
		ordinal = h.naive.floor(name) + 1
	}
	prims, values := targetsOf(q.prims, rows, &sel)
	want := h.naive.admits(name, rowBytes, ordinal, t.Insert, prims)
	h.finish(want, "write "+name, func() (Outcome, *Job, error) {
		return h.store.Write(&t, bytes, uint64(payload), sel, publish)
	}, func() { h.accept(name, rowBytes, naiveOp{ordinal, t.Insert, prims, values}) }, func() { h.publishNow(publish, name, ordinal) })
}

// waits tells whether a seal on its way covers an ordinal.
func (h *history) waits(name string, ordinal uint64) bool {
	return slices.ContainsFunc(h.store.active, func(z *sealing) bool { return z.coversName(name) && ordinal <= z.ordinal })
}

func (h *history) accept(name string, rowBytes int, op naiveOp) {
	if len(op.prims) > 0 {
		h.naive.column(name, rowBytes, 3).accept(op)
	}
}

func (h *history) publishNow(publish bool, name string, ordinal uint64) {
	if publish {
		h.naive.seal(ordinal, protocol.ScopeInclude, []string{name})
	}
}

func (h *history) deleteSome() {
	q := h.queries[h.random.IntN(len(h.queries))]
	var names []string
	ordinal := uint64(0)
	if h.random.IntN(3) > 0 {
		for range 1 + h.random.IntN(2) {
			names = append(names, historyNames[h.random.IntN(len(historyNames))])
		}
		ordinal = h.naive.floor(names[0]) + uint64(h.random.IntN(4))
	} else {
		for _, name := range historyNames {
			ordinal = max(ordinal, h.naive.floor(name)+uint64(h.random.IntN(4)))
		}
	}
	if len(h.store.active) > 0 {
		h.settle()
	}
	prims := slices.Clone(q.prims)
	want := protocol.StatusOK
	for _, name := range names {
		if ordinal <= h.naive.floor(name) {
			want = protocol.StatusFloorViolation
		}
	}
	for _, c := range h.naive.columns {
		if len(names) == 0 && !slices.ContainsFunc(prims, c.mentions) || len(names) > 0 && !slices.Contains(names, c.name) {
			continue
		}
		if ordinal <= h.naive.floor(c.name) {
			want = protocol.StatusFloorViolation
		}
	}
	err := h.try(func() error { _, err := h.store.Delete(q, names, ordinal); return err })
	if h.outcome(want, err, fmt.Sprint("delete ", names)) {
		h.naive.delete(naiveDelete{naiveOp{ordinal: ordinal, prims: prims}, names})
	}
}

func (c *naiveColumn) mentions(prim uint64) bool {
	_, ok := c.sealed[prim]
	return ok || slices.ContainsFunc(c.pending, func(op naiveOp) bool { return op.values != nil && slices.Contains(op.prims, prim) })
}

// meet has every client hand a few rows of one attribute of a device over, at one ordinal, so
// that a seal takes them from the arenas of all of them.
func (h *history) meet() {
	name := slices.Sorted(maps.Keys(historyDevices))[h.random.IntN(len(historyDevices))]
	ordinal := h.naive.floor(name) + 1 + uint64(h.random.IntN(2))
	for _, c := range h.clients {
		q := queryOf(h.prims[h.random.IntN(len(h.prims))])
		n := len(c.sessions)
		if h.mapRows(c, name, historyRowBytes[name], ordinal, q); len(c.sessions) > n {
			h.unmapSession(c, n)
		}
	}
}

func (h *history) mapSome(c *historyClient) {
	name, rowBytes, ordinal := h.what()
	h.mapRows(c, name, rowBytes, ordinal, h.queries[h.random.IntN(len(h.queries))])
}

func (h *history) mapRows(c *historyClient, name string, rowBytes int, ordinal uint64, q *Query) {
	t := Target{Query: q, Name: name, Schema: historySchema(name, rowBytes), Ordinal: ordinal, Next: h.random.IntN(4) == 0, Insert: h.random.IntN(10) == 0}
	if len(h.store.active) > 0 {
		h.settle()
	}
	if t.Next {
		ordinal = h.naive.floor(name) + 1
	}
	init := uint32(h.random.IntN(3))
	starts := []int{0} // of the rows, in bytes
	for range q.Size() {
		size := rowBytes
		if rowBytes < 0 {
			t.ElementSizes = append(t.ElementSizes, uint64(h.random.IntN(60)))
			size = -rowBytes * int(t.ElementSizes[len(t.ElementSizes)-1])
		}
		starts = append(starts, starts[len(starts)-1]+size)
	}
	if rowBytes > 0 && h.random.IntN(3) == 0 { // filled elsewhere (rule C5)
		t.StagingType, t.StagingID = tensor.DeviceCUDA, uint32(h.random.IntN(2))
		if h.random.IntN(2) == 0 {
			t.StagingType, t.StagingID = tensor.DeviceCPU, 0
		}
	}
	s := &historySession{prims: slices.Clone(q.prims), name: name, bytes: rowBytes, next: t.Next, insert: t.Insert, fresh: map[int]string{}, starts: starts}
	want := h.naive.admits(name, rowBytes, ordinal, t.Insert, s.prims)
	var err error
	s.session, err = h.open(c, c.arena, t, init)
	if !h.outcome(want, err, "map "+name) {
		return
	}
	g := s.session.Group(0)
	require.EqualValues(h.t, starts[len(s.prims)], g.Block.LengthBytes)
	require.EqualValues(h.t, len(s.prims), g.Rows)
	if c.arena.pages && g.DeviceNumber == 0 {
		require.Zero(h.t, g.Block.OffsetBytes%4096, "GUARD leases whole pages (rule M1)")
		require.Zero(h.t, g.LeaseBytes%4096)
	}
	s.late = g.DeviceNumber != 0 && h.random.IntN(2) == 0
	bytes := h.get(s.session, 0)
	for i, prim := range s.prims {
		row := bytes[starts[i]:starts[i+1]]
		current := make([]byte, len(row))
		if n := h.naive.find(name, rowBytes); n != nil && init == protocol.InitCurrent {
			copy(current, n.sealed[prim].Value) // of an array as much as there is room for
		}
		want := string(current)
		if init != protocol.InitNone {
			require.Equal(h.t, want, string(row), "init %d (behaviour 180)", init)
		}
		if init == protocol.InitNone || h.random.IntN(2) == 0 {
			row = []byte(h.row(max(rowBytes, len(row))))[:len(row)]
			if !s.late {
				h.put(s.session, 0, uint64(starts[i]), row)
			}
		}
		s.fresh[i] = string(row)
	}
	c.sessions = append(c.sessions, s)
}

func (h *history) unmapSome(c *historyClient) {
	if len(c.sessions) == 0 {
		return
	}
	h.unmapSession(c, h.random.IntN(len(c.sessions)))
}

func (h *history) unmapSession(c *historyClient, i int) {
	s := c.sessions[i]
	c.sessions = slices.Delete(c.sessions, i, i+1)
	m := s.session
	adopt, publish := h.random.IntN(3) > 0, h.random.IntN(4) == 0
	if s.next || publish || h.waits(s.name, m.ordinal) {
		h.settleBefore(s.name)
	}
	ordinal := m.ordinal
	if s.next {
		ordinal = h.naive.floor(s.name) + 1
	}
	sel, _ := h.selection(len(s.prims), true)
	if h.random.IntN(2) == 0 {
		sel = tensor.Selection{Count: tensor.All}
	}
	rows := make([]string, len(s.prims))
	for i := range rows {
		rows[i] = s.fresh[i]
	}
	prims, values := targetsOf(s.prims, rows, &sel)
	want := h.naive.admits(s.name, s.bytes, ordinal, s.insert, prims)
	got, err := h.store.FindSession(c, m.ID)
	require.NoError(h.t, err)
	require.Same(h.t, m, got)
	var wait func() error
	if base := m.groups[0].block.base; s.late {
		wait = func() error { // what its client has queued is done
			for i := range s.prims {
				h.fakes.write(base+uint64(s.starts[i]), []byte(s.fresh[i]))
			}
			return nil
		}
		if want != protocol.StatusOK { // the op ends when that is done, with its error
			_, err := h.run(func() (Outcome, *Job, error) { return h.store.UnmapAfter(wait, m, 0, sel, adopt, publish) })
			h.outcome(want, err, "unmap "+s.name)
			h.step(func() { h.store.EndSession(m) })
			return
		}
	}
	h.finish(want, "unmap "+s.name, func() (Outcome, *Job, error) {
		out, job, err := h.store.UnmapAfter(wait, m, 0, sel, adopt, publish)
		if h.handoff == protocol.HandoffCopy && err == nil {
			require.Zero(h.t, out.Flags)
		}
		return out, job, err
	}, func() { h.accept(s.name, s.bytes, naiveOp{ordinal, s.insert, prims, values}) }, func() { h.publishNow(publish, s.name, ordinal) })
	_, _, err = h.store.UnmapGroup(m, 0, sel, adopt, publish)
	requireStatus(h.t, protocol.StatusInvalidHandle, err) // behaviour 188
	h.step(func() { h.store.EndSession(m) })
	_, err = h.store.FindSession(c, m.ID)
	requireStatus(h.t, protocol.StatusInvalidHandle, err) // behaviour 187
}

func (h *history) sealSome() {
	ordinal := uint64(0)
	for _, name := range historyNames {
		ordinal = max(ordinal, h.naive.floor(name))
	}
	ordinal += uint64(h.random.IntN(3))
	scope, names := uint64(protocol.ScopeAll), []string(nil)
	if k := h.random.IntN(10); k > 3 {
		scope = protocol.ScopeInclude
		if k > 7 {
			scope = protocol.ScopeExclude
		}
		for range h.random.IntN(4) {
			names = append(names, historyNames[h.random.IntN(len(historyNames))])
		}
		if h.random.IntN(10) == 0 {
			names = append(names, fmt.Sprint("unborn", h.random.IntN(30))) // a name that nobody wrote
		}
	}
	if len(h.jobs) > 0 && h.random.IntN(2) == 0 || len(h.store.active) > 0 {
		h.settle()
	}
	covered, of := names, scope
	h.finish(protocol.StatusOK, "seal", func() (Outcome, *Job, error) { return h.store.Seal(ordinal, scope, names, 7) },
		func() {
			if scope == protocol.ScopeExclude && len(names) > 0 { // it covers what is known when it is accepted, not when its copies have ended
				of, covered = protocol.ScopeInclude, nil
				for _, c := range h.naive.columns {
					if !slices.Contains(names, c.name) {
						covered = append(covered, c.name)
					}
				}
			}
		}, func() {
			h.naive.seal(ordinal, of, covered)
			require.Equal(h.t, h.naive.epoch, h.store.Epoch())
		})
}

func (h *history) declareSome() {
	name := historyNames[h.random.IntN(len(historyNames))]
	retain := h.random.IntN(4)
	err := h.try(func() error {
		return h.store.Declare(name, historySchema(name, historyRowBytes[name]), uint32(retain), protocol.HandoffDefault)
	})
	if len(h.naive.named(name)) > 0 && h.naive.find(name, historyRowBytes[name]) == nil {
		requireStatus(h.t, protocol.StatusInvalidArgument, err)
		return
	}
	require.NoError(h.t, err)
	if c := h.naive.column(name, historyRowBytes[name], 3); retain != 0 {
		c.retain = retain
	}
}

// die ends a client as the broker does when its lock is free, and brings another.
func (h *history) die(c *historyClient) {
	h.settle() // a client with a copy on its way is not buried
	h.step(func() {
		require.Equal(h.t, len(c.sessions)+h.dieSharing(c), h.store.AbortSessions(c))
		h.store.RemovePins(&c.pinSet)
		h.dropLentOf(c)
		h.memory.CloseArena(c.arena)
	})
	h.clients[slices.Index(h.clients, c)] = h.newClient()
}

// check compares all that anybody may look at now: every pinned epoch, and the newest.
func (h *history) check() {
	if h.naive.epoch == 0 {
		return
	}
	require.Equal(h.t, h.naive.epoch, h.header().Epoch)
	looked := map[Pin]bool{}
	for _, p := range append(h.allPins(), Pin{h.naive.epoch, protocol.PinAll}) {
		if looked[p] {
			continue
		}
		looked[p] = true
		e := h.naive.epochs[p.Epoch]
		for _, c := range h.naive.columns {
			if (p.Attribute == c.index || p.Attribute == protocol.PinAll) && c.index < h.header().AttributeCount {
				if h.isVoid(c.index, p.Epoch) {
					require.Equal(h.t, len(e.rows[c.index]) > 0, len(h.ordinalsAt(c.index, p.Epoch)) > 0, "the slot and the layout stay as long as the pin")
					continue
				}
				require.Equal(h.t, e.values(c.index), h.rowsAt(c.index, p.Epoch), "attribute %s at epoch %d of %d, pin of %d", c.name, p.Epoch, h.naive.epoch, p.Attribute)
				h.checkOrdinals(c, p.Epoch, e.rows[c.index])
			}
		}
		if p.Attribute == protocol.FloorColumn || p.Attribute == protocol.PinAll {
			h.checkFloors(p.Epoch, e)
		}
	}
	for _, c := range h.naive.columns { // as-of reads find what is retained (rule O4)
		for _, v := range c.versions[max(0, len(c.versions)-c.retain):] {
			if h.retained(c, v.birth) {
				require.Equal(h.t, h.naive.epochs[v.birth].values(c.index), h.rowsAt(c.index, v.birth))
				slot := h.versionAt(c.index, v.birth)
				require.Equal(h.t, []uint64{v.lowest, v.highest}, []uint64{slot.OrdinalLowest, slot.OrdinalHighest}, "rule O4")
			}
		}
	}
	h.checkViews()
	switch h.lazy.IntN(4) {
	case 0:
		h.checkDelta()
	case 1:
		h.checkAsOf()
	}
	for i := range h.header().AttributeCount {
		require.LessOrEqual(h.t, h.attribute(i).Horizon, h.naive.epoch, "a horizon is never above the epoch (rule V3)")
		require.LessOrEqual(h.t, h.attribute(i).Horizon, h.header().HorizonAny)
	}
}

// checkOrdinals compares the ordinal of every row (rule O7).
func (h *history) checkOrdinals(c *naiveColumn, epoch uint64, want map[uint64]naiveRow) {
	got := h.ordinalsAt(c.index, epoch)
	require.Len(h.t, got, len(want))
	for prim, row := range want {
		require.Equal(h.t, row.Ordinal, got[prim], "ordinal of prim %d of attribute %s at epoch %d", prim, c.name, epoch)
	}
}

// retained tells whether a version must be there: it was never beyond retention.
// Declaring a smaller retention and then a larger one brings nothing back.
func (h *history) retained(c *naiveColumn, birth uint64) bool {
	later := 0
	for _, v := range c.versions {
		if v.birth > birth {
			later++
		}
	}
	column := h.store.columns[c.index]
	return later < column.retain && column.entry.Horizon <= birth
}

func (h *history) allPins() (pins []Pin) {
	for _, c := range h.clients {
		pins = append(pins, c.pins...)
	}
	return pins
}

func (h *history) checkFloors(epoch uint64, e *naiveEpoch) {
	table, rows := h.floorsAt(epoch)
	require.Equal(h.t, e.standard, table.DefaultFloor)
	require.Equal(h.t, e.global, table.GlobalFloor)
	for name, floor := range e.floors {
		id := h.store.dictionary.ids[0][name]
		require.Equal(h.t, max(floor, e.standard), max(rows[id], table.DefaultFloor), "floor of %s at epoch %d", name, epoch)
		if row, ok := rows[id]; ok {
			require.Greater(h.t, row, table.DefaultFloor, "a row is there only for a name that differs (rule V9)")
		}
	}
}

// finale drops everything; memory must be back where it was (rules S5, V3).
func (h *history) finale() {
	h.settle()
	h.check()
	h.checkBooks()
	for _, c := range slices.Clone(h.clients) {
		h.die(c)
	}
	for _, v := range h.views {
		v.pinned.Release()
	}
	h.views = nil
	for range 2 { // a seal scans pins; nothing is pinned now
		out := h.seal(h.naive.standard+1000, protocol.ScopeAll)
		h.naive.seal(h.naive.standard+1000, protocol.ScopeAll, nil)
		require.Equal(h.t, h.naive.epoch, out.Epoch)
	}
	h.settle()
	h.check()
	h.checkBooks()
	for _, c := range h.store.columns {
		require.LessOrEqual(h.t, len(c.versions), c.retain, "column %d", c.index)
		require.Empty(h.t, c.pending)
	}
	require.Zero(h.t, h.store.unsealedBytes)
	require.Empty(h.t, h.store.inserts)
	require.Empty(h.t, h.store.sessions)
}

func runHistory(t testing.TB, seed uint64, steps int, config Config, delayed bool) *history {
	h := newHistory(t, seed, config, delayed)
	defer func() {
		if t.Failed() {
			fmt.Fprintf(os.Stderr, "history failed: CALLBOARD_SEED=%d (config %+v, delayed %v)\n", seed, config, delayed)
		}
	}()
	for i := range steps {
		h.next()
		if i%50 == 49 {
			h.settle()
			h.checkBooks()
		}
	}
	h.finale()
	return h
}

var historyConfigs = map[string]struct {
	config  Config
	delayed bool
}{
	"adopt":          {Config{Retain: 3, Handoff: protocol.HandoffAdopt, CopyInlineBytes: 1 << 30}, false},
	"copy":           {Config{Retain: 3, Handoff: protocol.HandoffCopy, CopyInlineBytes: 1 << 30}, false},
	"jobs":           {Config{Retain: 3, Handoff: protocol.HandoffAdopt, CopyInlineBytes: 1}, false},
	"late memory":    {Config{Retain: 3, Handoff: protocol.HandoffAdopt, CopyInlineBytes: 500}, true},
	"copy with jobs": {Config{Retain: 3, Handoff: protocol.HandoffCopy, CopyInlineBytes: 200}, true},
	"latest only":    {Config{Retain: 1, Handoff: protocol.HandoffAdopt, CopyInlineBytes: 1000}, false},
}

// TestRandomHistoriesAgreeWithANaiveStore also holds that adopting and copying show
// the same at every epoch (rules V1–V9, O1–O3, M1–M3; behaviour 1–19, 62–92, 100–120, 175–195).
func TestRandomHistoriesAgreeWithANaiveStore(t *testing.T) {
	steps := 200
	if raceEnabled {
		steps = 50
	}
	seeds(t, 10*time.Second, func(t *testing.T, seed uint64) {
		seen := map[string]map[uint64]*naiveEpoch{}
		for _, name := range slices.Sorted(maps.Keys(historyConfigs)) {
			c := historyConfigs[name]
			if !t.Run(name, func(t *testing.T) { seen[name] = runHistory(t, seed, steps, c.config, c.delayed).naive.epochs }) {
				return
			}
		}
		require.Equal(t, seen["adopt"], seen["copy"])
	})
}
