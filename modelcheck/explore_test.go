package modelcheck

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// litmus is two processors with straight-line programs over two words: the classic tests of a memory model.
type litmus struct {
	programs [2][]instruction
	bad      func(s litmusState) bool // asked when both have ended
}

type instruction struct {
	kind  byte // 's'tore, 'l'oad into the next register, 'f'ence, 'x' store with full barrier
	addr  uint8
	value uint8
}

type litmusState struct {
	memory    [2]uint8
	at        [2]uint8
	registers [2][2]uint8
	loaded    [2]uint8
	buffers   [2]StoreBuffer
}

func (l litmus) Start() litmusState { return litmusState{} }

func (l litmus) Next(s *litmusState, to *Steps[litmusState]) {
	for p := range 2 {
		if !s.buffers[p].Empty() {
			n := *s
			addr, v := n.buffers[p].Drain(n.memory[:])
			to.Add(n, "memory", "takes word %d = %d", addr, v)
		}
		if int(s.at[p]) == len(l.programs[p]) {
			continue
		}
		n := *s
		in := l.programs[p][s.at[p]]
		b := &n.buffers[p]
		n.at[p]++
		switch in.kind {
		case 's':
			b.Store(in.addr, in.value)
		case 'l':
			n.registers[p][n.loaded[p]] = b.Load(n.memory[:], in.addr)
			n.loaded[p]++
		case 'f', 'x':
			if !b.Empty() {
				continue
			}
			if in.kind == 'x' {
				n.memory[in.addr] = in.value
			}
		}
		to.Add(n, [2]string{"left", "right"}[p], string(in.kind)+" word %d", in.addr)
	}
}

func (l litmus) Rest(s *litmusState) string {
	if l.bad(*s) {
		return "forbidden outcome"
	}
	return ""
}

const x, y = 0, 1

// The explorer is only worth what its memory model is worth: each outcome that x86-64 allows must be found, each that
// it forbids must not.
func TestStoreBuffersAllowAndForbidWhatX86Does(t *testing.T) {
	bothSawNothing := func(s litmusState) bool { return s.registers[0][0] == 0 && s.registers[1][0] == 0 }
	for _, c := range []struct {
		name        string
		left, right []instruction
		bad         func(litmusState) bool
		allowed     bool
	}{
		{"store buffering: both may miss the other's store",
			[]instruction{{'s', x, 1}, {'l', y, 0}}, []instruction{{'s', y, 1}, {'l', x, 0}}, bothSawNothing, true},
		{"store buffering with fences",
			[]instruction{{'s', x, 1}, {'f', 0, 0}, {'l', y, 0}}, []instruction{{'s', y, 1}, {'f', 0, 0}, {'l', x, 0}}, bothSawNothing, false},
		{"store buffering with a fence on one side only",
			[]instruction{{'s', x, 1}, {'f', 0, 0}, {'l', y, 0}}, []instruction{{'s', y, 1}, {'l', x, 0}}, bothSawNothing, true},
		{"store buffering with full-barrier stores",
			[]instruction{{'x', x, 1}, {'l', y, 0}}, []instruction{{'x', y, 1}, {'l', x, 0}}, bothSawNothing, false},
		{"message passing: stores arrive in order",
			[]instruction{{'s', x, 1}, {'s', y, 1}}, []instruction{{'l', y, 0}, {'l', x, 0}},
			func(s litmusState) bool { return s.registers[1] == [2]uint8{1, 0} }, false},
		{"load buffering: no load sees a later store's effect",
			[]instruction{{'l', x, 0}, {'s', y, 1}}, []instruction{{'l', y, 0}, {'s', x, 1}},
			func(s litmusState) bool { return s.registers[0][0] == 1 && s.registers[1][0] == 1 }, false},
		{"own stores are seen at once",
			[]instruction{{'s', x, 1}, {'s', x, 2}, {'l', x, 0}}, nil,
			func(s litmusState) bool { return s.registers[0][0] != 2 }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			out := Explore[litmusState](litmus{[2][]instruction{c.left, c.right}, c.bad}, 10_000)
			require.Equal(t, c.allowed, out.Fault != "", "%v", out)
			require.Equal(t, !c.allowed, out.Holds())
		})
	}
}

// counter goes up by one or by two to 9; from 9 there is no step.
type counter struct{ bad uint8 }

func (c counter) Start() uint8 { return 0 }
func (c counter) Next(s *uint8, to *Steps[uint8]) {
	for by := uint8(1); by <= 2 && *s+by <= 9; by++ {
		to.Add(*s+by, "counter", "adds %d", by)
		if *s+by == c.bad {
			to.Fail("reached %d", c.bad)
		}
	}
}
func (c counter) Rest(s *uint8) string {
	if c.bad == 0 {
		return ""
	}
	return "stuck"
}

func TestExploreVisitsEveryStateOnce(t *testing.T) {
	out := Explore[uint8](counter{}, 100)
	require.True(t, out.Holds())
	require.Equal(t, 10, out.States)
	require.Equal(t, "holds", out.Verdict())
}

func TestExploreFindsTheShortestPath(t *testing.T) {
	out := Explore[uint8](counter{bad: 7}, 100)
	require.Equal(t, "reached 7", out.Fault)
	require.Len(t, out.Trace, 4, "7 = 2+2+2+1, in any order")
	require.False(t, out.Complete)
	require.Equal(t, 5, strings.Count(out.String(), "\n")+1, "four steps and the fault, a line each")
}

func TestExploreReportsAStateThatCannotMove(t *testing.T) {
	out := Explore[uint8](counter{bad: 200}, 100)
	require.Equal(t, "stuck", out.Fault)
	require.Len(t, out.Trace, 5, "9 = 2+2+2+2+1")
}

// A search that was cut off must not be taken for one that found nothing.
func TestExploreCutOffDoesNotHold(t *testing.T) {
	out := Explore[uint8](counter{}, 5)
	require.False(t, out.Holds())
	require.Empty(t, out.Fault)
	require.Equal(t, "cut off", out.Verdict())
}

// large has more states than one chunk and one hash table of the store hold.
type large struct{}

func (large) Start() [3]uint8 { return [3]uint8{} }
func (large) Next(s *[3]uint8, to *Steps[[3]uint8]) {
	for i := range s {
		if s[i] < 29 {
			n := *s
			n[i]++
			to.Add(n, "digit", "%d", uint8(i))
		}
	}
}
func (large) Rest(*[3]uint8) string { return "" }

func TestStoreGrowsWithoutLosingStates(t *testing.T) {
	out := Explore[[3]uint8](large{}, 1<<20)
	require.True(t, out.Holds())
	require.Equal(t, 30*30*30, out.States)
	require.Equal(t, 3*29, out.Depth)
}

func TestEqualBuffersCompareEqualWhateverWentThroughThem(t *testing.T) {
	var a, b StoreBuffer
	memory := make([]uint8, 4)
	for i := range uint8(Depth) {
		require.True(t, a.Room(Depth))
		a.Store(i, 7)
	}
	require.False(t, a.Room(Depth))
	for !a.Empty() {
		a.Drain(memory)
	}
	require.Equal(t, b, a)
	require.Equal(t, []uint8{7, 7, 7, 7}, memory)
}

func TestSectionIsReplacedAndTheRestKept(t *testing.T) {
	part, text, ok := Section("a\n<!-- t -->\nold\n<!-- end -->\nz", "t", "new\n")
	require.True(t, ok)
	require.Equal(t, "old\n", part)
	require.Equal(t, "a\n<!-- t -->\nnew\n<!-- end -->\nz", text)
	_, _, ok = Section("no markers", "t", "new\n")
	require.False(t, ok)
}
