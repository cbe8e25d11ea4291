package conformance

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What the supervisor believes must be able to fail: each line is an answer, expectations that it meets, and
// expectations that it does not.
func TestExpectationsCanFail(t *testing.T) {
	group := "ok epoch=7 ended=true / attribute=s1.x kind=fixed type=2:32:1 shape=3 rows=3 data=0000803f0000004000004040 paths=/s1/a,/s1/b map=2,0 semantic=1 ordinal=4"
	cases := []struct {
		answer string
		holds  string
		fails  []string
	}{
		{group, "[3 1] x[3 1] groups=1 x.ordinal=4 semantic=point paths=/a,/b mapped=true epoch>6 shape~^3$ dtype=float32",
			[]string{"[1 2]", "[3]", "[3 1 2]", "[3 2]", "y[3 1]", "x#1[3 1]", "none", "groups=2", "ordinal>4", "paths=/b,/a", "semantic=none", "mapped=false", "lanes=2", "refused", "FLOOR_VIOLATION", "nonsense=1"}},
		{"ok epoch=7 / attribute=s1.x kind=array type=0:32:1 data=01000000;;0200000003000000", "[1] [] [2 3]", []string{"[1 2 3]", "[1] [2 3]", "[1] [] [2]"}},
		{"error FLOOR_VIOLATION call attribute s1.x: ordinal 4 is not above the floor 7", `FLOOR_VIOLATION ~ "4.*7" at=call`,
			[]string{"ok", "INVALID_ARGUMENT", "refused", `FLOOR_VIOLATION ~ "8"`, "FLOOR_VIOLATION at=wait", "[1]"}},
		{"error ValueError call count is 0", `refused ~ "count"`, []string{"INVALID_ARGUMENT", "TypeError", "ok"}},
		{"error TIMEOUT wait ", "", []string{"TIMEOUT"}}, // without a text (behaviour 224)
		{"ok A=x B=y", "distinct", nil},
		{"ok A=x B=x", "", []string{"distinct"}},
		{"ok A=x B=", "", []string{"distinct"}},
	}
	for _, c := range cases {
		a, err := parseAnswer(c.answer)
		require.NoError(t, err)
		n := &namespace{prefix: "s1", kept: map[string]string{}}
		if c.holds != "" {
			words, err := tokens(c.holds)
			require.NoError(t, err)
			require.NoError(t, n.check(&a, words), "%s\n%s", c.answer, c.holds)
		}
		for _, text := range c.fails {
			words, err := tokens(text)
			require.NoError(t, err)
			require.Error(t, n.check(&a, words), "%s\nmust not meet %s", c.answer, text)
		}
	}
}

// A refusal as not built is told apart, so that it can be "later" where the case allows it and a failure elsewhere.
func TestNotSupportedIsToldApart(t *testing.T) {
	a, err := parseAnswer("error NOT_SUPPORTED call array attributes are not part of this version")
	require.NoError(t, err)
	n := &namespace{kept: map[string]string{}}
	var later laterError
	for _, text := range []string{"ok", "[1 2]", "INVALID_ARGUMENT"} {
		words, err := tokens(text)
		require.NoError(t, err)
		require.True(t, errors.As(n.check(&a, words), &later), text)
	}
	words, err := tokens(`NOT_SUPPORTED ~ "array"`)
	require.NoError(t, err)
	require.NoError(t, n.check(&a, words))
}

// Kept fields compare across answers; composed lines carry the namespace and the values' bytes.
func TestComposedLines(t *testing.T) {
	n := &namespace{prefix: "s9", kept: map[string]string{"t": "5,6"}}
	for text, line := range map[string]string{
		"query q /a / \"\"": "query q /s9/a / %",
		"write q x float32 [1 2] ordinal=3 semantic=point":  "write q s9.x ordinal=3 semantic=1 type=2:32:1 shape=2 data=0000803f00000040",
		"write q @path uint64 [$t] ordinal=1":               "write q @path ordinal=1 type=1:64:1 shape=2 data=05000000000000000600000000000000",
		"write q x uint8 [1] [2 3] array map=[0 1] count=2": "write q s9.x array=1 map=0,1 count=2 type=1:8:1 shape=1;2 data=01;0203",
		"batch q ordinal=1 | a int8 [-1] | b bool [1]":      "batch q ordinal=1 / s9.a type=0:8:1 shape=1 data=ff / s9.b type=6:8:1 shape=1 data=01",
		"seal 4 x y":     "seal s9.x s9.y ordinal=4 scope=include",
		"seal 4 all":     "seal ordinal=4 scope=all",
		"resolve $t#1 7": "resolve 6 7",
	} {
		words, err := tokens(text)
		require.NoError(t, err)
		got, err := n.compose(words)
		require.NoError(t, err)
		require.Equal(t, line, got, text)
	}
}

func TestScenariosThatCannotFailAreRefused(t *testing.T) {
	for text, want := range map[string]string{
		"case 1 nothing\nA query q /a":                     "asserts 0 times",
		"case without a number\nA query q /a -> ok":        "cites 0 cases",
		"A query q /a -> ok":                               "before the first case",
		"case 1 x\nA query q /a ->":                        "nothing is expected",
		"case 1 x\nonly fortran \"why\"\nA query q -> ok":  "fortran",
		"case 1 x\nonly go\nA query q -> ok":               "reason",
		"case 1 x\nB2 query q -> ok":                       "B2",
		"case 1 x\nA write q x float32 [1 2 ordinal=1 -> ": "no end",
	} {
		_, err := ParseScenarios("test", text)
		require.ErrorContains(t, err, want, text)
	}
}

func TestTableLeavesNothingOut(t *testing.T) {
	table := NewTable(ParseCases("| # | case | |\n|---|---|---|\n| 1 | One. | now |\n| 2 | Two. | later |\n| 3 | Three. | now (fixed) |\n"))
	table.Add(1, "go", Result{Outcome: Passed})
	table.Add(1, "go", Result{Outcome: Failed, Note: "why"})
	table.Add(3, "c", Result{Outcome: Passed})
	table.Add(3, "c", Result{Outcome: Later})
	table.Add(3, "go", Result{Outcome: Passed})
	table.Add(3, "go", Result{Outcome: NotOffered, Note: "a reason"})
	table.Add(3, Pairs, Result{Outcome: NotOffered})
	table.Add(3, Pairs, Result{Outcome: Passed})
	table.Add(3, Pairs, Result{Outcome: Failed})
	text := table.Markdown()
	require.Contains(t, text, "| 1 | One. | **fail** | **missing** | **missing** |  |")
	require.Contains(t, text, "| 2 | Two. | **missing** | **missing** | **missing** |  |")
	require.Contains(t, text, "| 3 | Three. | pass, part n/a | pass, part later | **missing** | **fail** 1/2 |")
	require.Contains(t, text, "- 1 (go): why")
	require.Contains(t, text, "- 3 (go): a reason")
	require.Equal(t, 3, len(table.cases))
	require.False(t, table.Case(1).Later())
	require.True(t, table.Case(3).Later())
	require.Nil(t, table.Case(4))
	require.Equal(t, 6, table.Counts()["missing"], strings.TrimSpace(text))
}
