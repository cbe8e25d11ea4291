package conformance

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"callboard/tensor"
)

// A history is a list of moves that up to four clients make one after the other. What is in it depends on its seed
// alone, so it can be played under any configuration and by any client (metamorphic_test.go), and by an oracle that is
// slow and obvious (oracle_test.go).
type history []move

// move is one call. Ordinals count from 1 in each history.
type move struct {
	role    int
	verb    string // write, map, unmap, abort, delete, seal, read, snapshot, sread, drop
	names   []string
	prims   []int
	ordinal uint64
	insert  bool
	rows    []string // the payload, a row each
	count   uint64   // 0: no selection
	gather  []uint32
	mask    []uint64
	scope   string
	handle  string // of a session or a snapshot
	since   string // a snapshot whose cursor it is
	at      uint64 // 0: the latest
}

// subject is an attribute that histories are about.
type subject struct {
	name  string
	dtype tensor.DType
	array bool
}

var subjects = []subject{
	{"narrow", tensor.DType{Code: tensor.CodeUint, Bits: 8, Lanes: 1}, false},
	{"plain", tensor.DType{Code: tensor.CodeFloat, Bits: 32, Lanes: 1}, false},
	{"wide", tensor.DType{Code: tensor.CodeInt, Bits: 64, Lanes: 3}, false},
	{"ragged", tensor.DType{Code: tensor.CodeUint, Bits: 16, Lanes: 1}, true},
}

func subjectOf(name string) subject {
	return subjects[slices.IndexFunc(subjects, func(s subject) bool { return s.name == name })]
}

// historyPrims is how many prims a history is about.
const historyPrims = 24

// author makes a history up.
type author struct {
	random    *rand.Rand
	roles     int
	top       map[string]uint64 // about the floor of each attribute
	sessions  [][2]string       // handles, and the attributes
	owners    map[string]int
	snapshots []string
	handles   int
	moves     history
	lists     [][]int // of prims, which come again and again
}

// once leaves out what came before.
func once(prims []int) (out []int) {
	for _, prim := range prims {
		if !slices.Contains(out, prim) {
			out = append(out, prim)
		}
	}
	return out
}

// makeUp makes a history of some moves.
func makeUp(seed uint64, moves int) history {
	a := &author{random: rand.New(rand.NewPCG(seed, 0)), top: map[string]uint64{}, owners: map[string]int{}}
	a.roles = 1 + a.random.IntN(4)
	for _, s := range subjects { // every attribute is there from the beginning
		a.add(move{verb: "write", names: []string{s.name}, prims: []int{0}, ordinal: 1, rows: a.payload(s, 1)})
	}
	a.add(move{verb: "seal", ordinal: 1, scope: "all"})
	for len(a.moves) < moves {
		a.next()
	}
	a.add(move{verb: "seal", ordinal: 1000, scope: "all"})
	everything := make([]int, historyPrims)
	for i := range everything {
		everything[i] = i
	}
	a.add(move{verb: "read", names: a.allNames(), prims: everything})
	return a.moves
}

func (a *author) add(m move) { a.moves = append(a.moves, m) }

func (a *author) allNames() (names []string) {
	for _, s := range subjects {
		names = append(names, s.name)
	}
	return names
}

func (a *author) someNames() []string {
	names := a.allNames()
	a.random.Shuffle(len(names), func(i, k int) { names[i], names[k] = names[k], names[i] })
	return names[:1+a.random.IntN(len(names))]
}

func (a *author) somePrims() []int {
	if a.lists == nil { // half of them name prims twice
		for i := range 6 {
			list := a.random.Perm(historyPrims)[:1+a.random.IntN(historyPrims)]
			if i < 3 {
				list = append(list, list[:a.random.IntN(len(list))]...)
				a.random.Shuffle(len(list), func(i, k int) { list[i], list[k] = list[k], list[i] })
			}
			a.lists = append(a.lists, list)
		}
	}
	if a.random.IntN(4) != 0 { // a query that comes again has its rows in another order than its prims
		return a.lists[a.random.IntN(len(a.lists))]
	}
	if a.random.IntN(3) == 0 { // all, in order: what may be adopted
		all := make([]int, historyPrims)
		for i := range all {
			all[i] = i
		}
		return all
	}
	return a.random.Perm(historyPrims)[:1+a.random.IntN(historyPrims)]
}

// payload is n rows of random bytes.
func (a *author) payload(s subject, n int) []string {
	rows := make([]string, n)
	for i := range rows {
		elements := 1
		if s.array {
			elements = a.random.IntN(5)
		}
		raw := make([]byte, elements*s.dtype.Size())
		for k := range raw {
			raw[k] = byte(a.random.Uint32())
		}
		rows[i] = string(raw)
	}
	return rows
}

// above is an ordinal that is unsealed most of the time.
func (a *author) above(name string) uint64 {
	if a.random.IntN(12) == 0 {
		return max(1, a.top[name]) // as good as sealed
	}
	return a.top[name] + 1 + uint64(a.random.IntN(4))
}

func (a *author) handle() string {
	a.handles++
	return fmt.Sprint("h", a.handles)
}

func (a *author) next() {
	role := a.random.IntN(a.roles)
	s := subjects[a.random.IntN(len(subjects))]
	m := move{role: role, names: []string{s.name}, prims: a.somePrims(), ordinal: a.above(s.name)}
	switch n := a.random.IntN(100); {
	case n < 28:
		m.verb = "write"
		if m.insert = a.random.IntN(8) == 0; m.insert {
			m.prims = once(m.prims)
		}
		a.selects(&m)
		rows := len(m.prims)
		if m.gather != nil {
			rows = int(slices.Max(m.gather)) + 1
		} else if m.mask == nil && m.count != 0 {
			rows = int(m.count)
		}
		m.rows = a.payload(s, rows)
	case n < 40:
		m.verb, m.handle, m.rows = "map", a.handle(), a.payload(s, len(m.prims))
		a.sessions = append(a.sessions, [2]string{m.handle, s.name})
		a.owners[m.handle] = role
	case n < 52 && len(a.sessions) > 0:
		i := a.random.IntN(len(a.sessions))
		m = move{verb: "unmap", handle: a.sessions[i][0], names: []string{a.sessions[i][1]}, role: a.owners[a.sessions[i][0]]}
		if a.random.IntN(4) == 0 {
			m.verb = "abort"
		}
		a.sessions = slices.Delete(a.sessions, i, i+1)
	case n < 58:
		m.verb, m.names = "delete", a.someNames()
		for _, name := range m.names {
			m.ordinal = max(m.ordinal, a.above(name))
		}
		m.prims = a.random.Perm(historyPrims)[:1+a.random.IntN(1+a.random.IntN(historyPrims))]
	case n < 74:
		m = move{role: role, verb: "seal", scope: []string{"include", "include", "exclude", "all"}[a.random.IntN(4)], names: a.someNames()}
		covered := m.names
		switch m.scope {
		case "all":
			m.names, covered = nil, a.allNames()
		case "exclude":
			covered = slices.DeleteFunc(a.allNames(), func(n string) bool { return slices.Contains(m.names, n) })
		}
		m.ordinal = 1
		for _, name := range covered {
			m.ordinal = max(m.ordinal, a.top[name]+uint64(a.random.IntN(3)))
		}
		for _, name := range covered {
			a.top[name] = max(a.top[name], m.ordinal)
		}
	case n < 84:
		m.verb, m.ordinal, m.names = "read", 0, a.someNames()
		if a.random.IntN(2) == 0 {
			m.names = []string{s.name}
			m.at = 1 + uint64(a.random.Uint64N(a.top[s.name]+3))
		}
	case n < 90:
		m = move{role: role, verb: "snapshot", handle: a.handle()}
		a.owners[m.handle] = role
		a.snapshots = append(a.snapshots, m.handle)
	case n < 98 && len(a.snapshots) > 0:
		i := a.random.IntN(len(a.snapshots))
		m = move{role: a.owners[a.snapshots[i]], verb: "sread", handle: a.snapshots[i], names: a.someNames(), prims: m.prims}
		for _, earlier := range a.snapshots[:i] {
			if a.owners[earlier] == m.role && a.random.IntN(2) == 0 {
				m.since = earlier
			}
		}
	case len(a.snapshots) > 2:
		i := a.random.IntN(len(a.snapshots))
		m = move{role: a.owners[a.snapshots[i]], verb: "drop", handle: a.snapshots[i]}
		a.snapshots = slices.Delete(a.snapshots, i, i+1)
	default:
		return
	}
	a.add(m)
}

// selects narrows a write, often.
func (a *author) selects(m *move) {
	n := len(m.prims)
	switch a.random.IntN(6) {
	case 0:
		m.count = 1 + uint64(a.random.IntN(n))
	case 1:
		m.count = 1 + uint64(a.random.IntN(n))
		m.gather = make([]uint32, m.count)
		for i := range m.gather {
			m.gather[i] = uint32(a.random.IntN(n))
		}
	case 2:
		m.count, m.mask = uint64(n), []uint64{a.random.Uint64() & (1<<n - 1)}
	}
}

// String is a move for people: what a failure shows.
func (m move) String() string {
	text := fmt.Sprintf("client %d %s", m.role, m.verb)
	add := func(format string, value any) { text += " " + fmt.Sprintf(format, value) }
	if m.handle != "" {
		add("%s", m.handle)
	}
	if m.scope != "" {
		add("%s", m.scope)
	}
	if len(m.names) > 0 {
		add("%s", strings.Join(m.names, ","))
	}
	if m.prims != nil {
		add("prims %v", m.prims)
	}
	if m.ordinal != 0 {
		add("ordinal %d", m.ordinal)
	}
	if m.insert {
		text += " INSERT"
	}
	if m.count != 0 {
		add("count %d", m.count)
	}
	if m.gather != nil {
		add("index map %v", m.gather)
	}
	if m.mask != nil {
		add("mask %b", m.mask)
	}
	if m.rows != nil {
		add("rows %x", m.rows)
	}
	if m.at != 0 {
		add("as of %d", m.at)
	}
	if m.since != "" {
		add("since %s", m.since)
	}
	return text
}

func (h history) String() string {
	lines := make([]string, len(h))
	for i, m := range h {
		lines[i] = fmt.Sprintf("%3d %s", i, m)
	}
	return strings.Join(lines, "\n")
}
