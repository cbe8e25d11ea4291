package snapshot

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"callboard/protocol"
	"callboard/tensor"

	"github.com/stretchr/testify/require"
)

// naive is the slow, obvious store that the real one must agree with: maps that are
// copied as a whole.
type naive struct {
	columns  map[string]*naiveColumn
	floors   map[string]uint64 // by name, where one was ever sealed on its own
	standard uint64
	epochs   map[uint64]*naiveEpoch
	epoch    uint64
}

type naiveColumn struct {
	index    uint32
	rowBytes int
	retain   int
	sealed   map[uint64]string // by path id; nil: never sealed
	building map[uint64]string // nil: nothing unsealed
	ordinal  uint64            // of building
	births   []uint64          // epochs that published it
}

// naiveEpoch is what readers of an epoch see.
type naiveEpoch struct {
	rows             map[uint32]map[uint64]string
	floors           map[string]uint64
	standard, global uint64
}

func (n *naive) floor(name string) uint64 { return max(n.floors[name], n.standard) }

// admits tells the status that a write must end with.
func (n *naive) admits(name string, rowBytes int, ordinal uint64) protocol.Status {
	c := n.columns[name]
	switch {
	case c != nil && c.rowBytes != rowBytes:
		return protocol.StatusInvalidArgument
	case ordinal <= n.floor(name):
		return protocol.StatusFloorViolation
	case c != nil && c.building != nil && c.ordinal != ordinal:
		return protocol.StatusQueueFull
	}
	return protocol.StatusOK
}

func (n *naive) column(name string, rowBytes, retain int) *naiveColumn {
	if n.columns[name] == nil {
		n.columns[name] = &naiveColumn{index: uint32(len(n.columns) + 1), rowBytes: rowBytes, retain: retain}
	}
	return n.columns[name]
}

func (n *naive) put(c *naiveColumn, prims []uint64, ordinal uint64, rows []string, sel *tensor.Selection) {
	if c.building == nil {
		c.building, c.ordinal = maps.Clone(c.sealed), ordinal
		if c.building == nil {
			c.building = map[uint64]string{}
		}
	}
	for i := range min(sel.Count, uint64(len(prims))) {
		row := uint32(i)
		if sel.IndexMap != nil {
			row = sel.IndexMap[i]
		}
		if sel.Mask == nil || sel.Mask[i/64]>>(i%64)&1 == 1 {
			c.building[prims[i]] = rows[row]
		}
	}
	if len(c.building) == 0 {
		c.building = nil // nothing was addressed, nothing was there
	}
}

// seal publishes as behaviour 111 to 116 say.
func (n *naive) seal(ordinal, scope uint64, names []string) {
	if scope == protocol.ScopeExclude && len(names) == 0 {
		scope = protocol.ScopeAll
	}
	covered := names
	if scope != protocol.ScopeInclude {
		covered = nil
		for name := range n.columns {
			if !slices.Contains(names, name) {
				covered = append(covered, name)
			}
		}
	}
	moved := false
	for _, name := range covered {
		if ordinal > n.floor(name) {
			n.floors[name], moved = ordinal, true
		}
	}
	if scope == protocol.ScopeAll && ordinal > n.standard {
		n.standard, moved = ordinal, true
	}
	if !moved {
		return
	}
	n.epoch++
	e := &naiveEpoch{rows: map[uint32]map[uint64]string{}, floors: maps.Clone(n.floors), standard: n.standard, global: ^uint64(0)}
	for name, c := range n.columns {
		if slices.Contains(covered, name) && c.building != nil && c.ordinal <= ordinal {
			c.sealed, c.building = c.building, nil
			c.births = append(c.births, n.epoch)
		}
		if c.sealed != nil {
			e.rows[c.index] = c.sealed
		}
		e.global = min(e.global, n.floor(name))
	}
	if len(n.columns) == 0 {
		e.global = n.standard
	}
	n.epochs[n.epoch] = e
}

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
	stamp   uint64
	handoff uint32
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
	next    bool
	fresh   map[int]string // what the client knows to be in its rows
}

var historyNames = []string{"a", "b", "c", "d", "e", "f"}
var historyRowBytes = map[string]int{"a": 1, "b": 8, "c": 64, "d": 700, "e": 3, "f": 64}

func newHistory(t testing.TB, seed uint64, config Config, delayed bool) *history {
	h := &history{fixture: newFixture(t, config, 1<<30), random: rand.New(rand.NewPCG(seed, 1)), lazy: rand.New(rand.NewPCG(seed, 2)), handoff: config.Handoff}
	h.delayed = delayed
	h.naive = naive{columns: map[string]*naiveColumn{}, floors: map[string]uint64{}, epochs: map[uint64]*naiveEpoch{}}
	h.prims = h.paths(14)
	for range 8 {
		h.queries = append(h.queries, h.newQuery())
	}
	for range 1 + h.random.IntN(3) {
		h.clients = append(h.clients, h.newClient())
	}
	return h
}

func (h *history) newQuery() *Query {
	switch first := h.random.IntN(len(h.prims)); h.random.IntN(4) {
	case 0: // with duplicates (behaviour 91)
		q := NewQuery()
		for range 1 + h.random.IntN(6) {
			q.Add(h.prims[h.random.IntN(len(h.prims))])
		}
		return q
	case 1:
		return queryOf(h.prims[:1+first]...)
	default:
		p := slices.Clone(h.prims)
		h.random.Shuffle(len(p), func(i, k int) { p[i], p[k] = p[k], p[i] })
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
		sel.Mask = []uint64{h.random.Uint64()}
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

// name and ordinal of the next op: mostly what is admitted.
func (h *history) what() (name string, rowBytes int, ordinal uint64) {
	name = historyNames[h.random.IntN(len(historyNames))]
	h.settleBefore(name)
	rowBytes = historyRowBytes[name]
	if h.random.IntN(20) == 0 {
		rowBytes++
	}
	ordinal = h.naive.floor(name) + 1 + uint64(h.random.IntN(2))
	if c := h.naive.columns[name]; c != nil && c.building != nil && h.random.IntN(8) > 0 {
		ordinal = c.ordinal
	}
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

// finish runs an op whose job may end later; the naive store follows when it ends.
func (h *history) finish(want protocol.Status, what string, op func() (Outcome, *Job, error), then func(Outcome)) {
	err := h.try(func() error {
		out, job, err := op()
		if job != nil {
			h.jobs = append(h.jobs, &fixtureJob{job, then})
		} else if err == nil {
			then(out)
		}
		return err
	})
	h.outcome(want, err, what)
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
	c := h.clients[h.random.IntN(len(h.clients))]
	switch k := h.random.IntN(100); {
	case k < 25:
		h.writeSome()
	case k < 45:
		h.mapSome(c)
	case k < 62:
		h.unmapSome(c)
	case k < 65:
		if len(c.sessions) > 0 {
			h.step(func() { h.store.EndSession(c.sessions[0].session) })
			c.sessions = c.sessions[1:]
		}
	case k < 80:
		h.sealSome()
	case k < 83:
		h.declareSome()
	case k < 89:
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
	t := Target{Query: q, Name: name, Schema: bytesSchema(rowBytes), Ordinal: ordinal}
	publish := h.random.IntN(6) == 0
	if t.Next = publish; publish {
		ordinal = h.naive.floor(name) + 1
	}
	prims := slices.Clone(q.prims)
	want := h.naive.admits(name, rowBytes, ordinal)
	if want == protocol.StatusOK && h.touches(name, &sel, len(prims)) {
		h.naive.column(name, rowBytes, 3)
	}
	h.finish(want, "write "+name, func() (Outcome, *Job, error) {
		return h.store.Write(&t, bytes, uint64(payload), sel, publish)
	}, func(Outcome) { h.commit(name, prims, ordinal, rows, sel, publish) })
}

// settleBefore ends the jobs of a column that the next op is about, so that what it
// must meet is known.
func (h *history) settleBefore(name string) {
	if c := h.store.findColumn(name); c != nil && c.busy {
		h.settle()
	}
}

// touches tells whether a selection writes anything: else no column is made.
func (h *history) touches(name string, sel *tensor.Selection, size int) bool {
	if sel.Mask == nil {
		return true
	}
	return sel.Mask[0]&(1<<min(sel.Count, uint64(size))-1) != 0
}

func (h *history) commit(name string, prims []uint64, ordinal uint64, rows []string, sel tensor.Selection, publish bool) {
	if c := h.naive.columns[name]; c != nil {
		h.naive.put(c, prims, ordinal, rows, &sel)
	}
	if publish {
		h.naive.seal(ordinal, protocol.ScopeInclude, []string{name})
	}
}

func (h *history) mapSome(c *historyClient) {
	name, rowBytes, ordinal := h.what()
	q := h.queries[h.random.IntN(len(h.queries))]
	t := Target{Query: q, Name: name, Schema: bytesSchema(rowBytes), Ordinal: ordinal, Next: h.random.IntN(4) == 0}
	if t.Next {
		ordinal = h.naive.floor(name) + 1
	}
	init := uint32(h.random.IntN(3))
	s := &historySession{prims: slices.Clone(q.prims), name: name, next: t.Next, fresh: map[int]string{}}
	var err error
	s.session, err = h.open(c, c.arena, t, init)
	if !h.outcome(h.naive.admits(name, rowBytes, ordinal), err, "map "+name) {
		return
	}
	g := s.session.Group()
	require.EqualValues(h.t, len(s.prims)*rowBytes, g.Block.LengthBytes)
	require.EqualValues(h.t, len(s.prims), g.Rows)
	if c.arena.pages {
		require.Zero(h.t, g.Block.OffsetBytes%4096, "GUARD leases whole pages (rule M1)")
		require.Zero(h.t, g.LeaseBytes%4096)
	}
	for i, prim := range s.prims {
		want := string(make([]byte, rowBytes))
		if n := h.naive.columns[name]; n != nil && init == protocol.InitCurrent && n.sealed[prim] != "" {
			want = n.sealed[prim]
		}
		row := s.session.block.Bytes[i*rowBytes : (i+1)*rowBytes]
		if init != protocol.InitNone {
			require.Equal(h.t, want, string(row), "init %d (behaviour 180)", init)
		}
		if init == protocol.InitNone || h.random.IntN(2) == 0 {
			copy(row, h.row(rowBytes))
		}
		s.fresh[i] = string(row)
	}
	c.sessions = append(c.sessions, s)
}

func (h *history) unmapSome(c *historyClient) {
	if len(c.sessions) == 0 {
		return
	}
	i := h.random.IntN(len(c.sessions))
	s := c.sessions[i]
	c.sessions = slices.Delete(c.sessions, i, i+1)
	h.settleBefore(s.name)
	m := s.session
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
	adopt, publish := h.random.IntN(3) > 0, h.random.IntN(4) == 0
	want := h.naive.admits(s.name, int(m.row), ordinal)
	if want == protocol.StatusOK && h.touches(s.name, &sel, len(s.prims)) {
		h.naive.column(s.name, int(m.row), 3)
	}
	got, err := h.store.FindSession(c, m.ID)
	require.NoError(h.t, err)
	require.Same(h.t, m, got)
	err = h.try(func() error {
		out, job, err := h.store.UnmapGroup(m, 0, sel, adopt, publish)
		then := func(out Outcome) {
			if h.handoff == protocol.HandoffCopy {
				require.Zero(h.t, out.Flags)
			}
			h.commit(s.name, s.prims, ordinal, rows, sel, publish)
		}
		if job != nil {
			h.jobs = append(h.jobs, &fixtureJob{job, then})
		} else if err == nil {
			then(out)
		}
		return err
	})
	h.outcome(want, err, "unmap "+s.name)
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
	if len(h.jobs) > 0 {
		h.settle() // else the naive store would have to know which copies are covered
	}
	epoch := h.store.Epoch()
	out := h.seal(ordinal, scope, names...)
	h.naive.seal(ordinal, scope, names)
	require.Equal(h.t, h.naive.epoch, out.Epoch)
	require.Equal(h.t, h.naive.epoch > epoch, h.store.Epoch() > epoch)
}

func (h *history) declareSome() {
	name := historyNames[h.random.IntN(len(historyNames))]
	h.settleBefore(name)
	retain := h.random.IntN(4)
	err := h.try(func() error {
		return h.store.Declare(name, bytesSchema(historyRowBytes[name]), uint32(retain), protocol.HandoffDefault)
	})
	if c := h.naive.columns[name]; c != nil && c.rowBytes != historyRowBytes[name] {
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
		require.Equal(h.t, len(c.sessions), h.store.AbortSessions(c))
		h.store.RemovePins(&c.pinSet)
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
		for name, c := range h.naive.columns {
			if (p.Attribute == c.index || p.Attribute == protocol.PinAll) && c.index < h.header().AttributeCount {
				require.Equal(h.t, e.rows[c.index], h.rowsAt(c.index, p.Epoch), "attribute %s at epoch %d of %d, pin of %d", name, p.Epoch, h.naive.epoch, p.Attribute)
			}
		}
		if p.Attribute == protocol.FloorColumn || p.Attribute == protocol.PinAll {
			h.checkFloors(p.Epoch, e)
		}
	}
	for _, c := range h.naive.columns { // as-of reads find what is retained (rule O4)
		for _, birth := range c.births[max(0, len(c.births)-c.retain):] {
			if h.retained(c, birth) {
				require.Equal(h.t, h.naive.epochs[birth].rows[c.index], h.rowsAt(c.index, birth))
			}
		}
	}
	for i := range h.header().AttributeCount {
		require.LessOrEqual(h.t, h.attribute(i).Horizon, h.naive.epoch, "a horizon is never above the epoch (rule V3)")
		require.LessOrEqual(h.t, h.attribute(i).Horizon, h.header().HorizonAny)
	}
}

// retained tells whether a version must be there: it was never beyond retention.
// Declaring a smaller retention and then a larger one brings nothing back.
func (h *history) retained(c *naiveColumn, birth uint64) bool {
	later := 0
	for _, b := range c.births {
		if b > birth {
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
		require.Nil(h.t, c.building)
	}
	require.Zero(h.t, h.store.unsealedBytes)
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
}

// TestRandomHistoriesAgreeWithANaiveStore also holds that adopting and copying show
// the same at every epoch (rules V1–V9, O1–O3, M1–M3; behaviour 1–19, 62–92, 100–120, 175–195).
func TestRandomHistoriesAgreeWithANaiveStore(t *testing.T) {
	budget := 5 * time.Second
	if testing.Short() {
		budget = time.Second
	}
	start := uint64(time.Now().UnixNano())
	if text := os.Getenv("CALLBOARD_SEED"); text != "" {
		var err error
		start, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
		budget = 0
	}
	t.Logf("first seed: CALLBOARD_SEED=%d", start)
	seeds := 0
	for begin := time.Now(); seeds == 0 || time.Since(begin) < budget; seeds++ {
		seen := map[string]map[uint64]*naiveEpoch{}
		for _, name := range slices.Sorted(maps.Keys(historyConfigs)) {
			c := historyConfigs[name]
			if !t.Run(fmt.Sprintf("%s/%d", name, start+uint64(seeds)), func(t *testing.T) {
				seen[name] = runHistory(t, start+uint64(seeds), 200, c.config, c.delayed).naive.epochs
			}) {
				return
			}
		}
		require.Equal(t, seen["adopt"], seen["copy"])
	}
	t.Logf("%d seeds", seeds)
}
