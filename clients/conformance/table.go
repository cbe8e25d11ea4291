package conformance

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Languages in the order of the table's columns.
var Languages = []string{"go", "c", "python"}

// Pairs is the column of scenarios with two roles in two languages.
const Pairs = "pairs"

// Case is a numbered case of docs/behaviour.md.
type Case struct {
	Number int
	Text   string
	// Mark is its column of "now" and "later".
	Mark string
}

// Later tells whether a part of the case may answer that it is not built yet.
func (c *Case) Later() bool { return c.Mark != "now" }

var caseLine = regexp.MustCompile(`^\| (\d+) \| (.*) \| ([^|]*) \|$`)

// ParseCases reads the tables of docs/behaviour.md.
func ParseCases(text string) (cases []Case) {
	for line := range strings.Lines(text) {
		if m := caseLine.FindStringSubmatch(strings.TrimSpace(line)); m != nil {
			n, _ := strconv.Atoi(m[1])
			cases = append(cases, Case{Number: n, Text: m[2], Mark: m[3]})
		}
	}
	return cases
}

// Result of a scenario in a column.
type Result struct {
	Outcome    Outcome
	Assertions int
	Note       string
}

// Outcome of a run, the worst last.
type Outcome int

// Outcomes.
const (
	NotOffered Outcome = iota
	Passed
	Later
	Failed
)

// Table collects results by case and column.
type Table struct {
	cases   []Case
	results map[int]map[string][]Result
}

// NewTable has a row for each case.
func NewTable(cases []Case) *Table {
	return &Table{cases: cases, results: map[int]map[string][]Result{}}
}

// Case finds a case.
func (t *Table) Case(number int) *Case {
	i := slices.IndexFunc(t.cases, func(c Case) bool { return c.Number == number })
	if i < 0 {
		return nil
	}
	return &t.cases[i]
}

// Add notes what came of a scenario that cites a case.
func (t *Table) Add(number int, column string, r Result) {
	if t.results[number] == nil {
		t.results[number] = map[string][]Result{}
	}
	t.results[number][column] = append(t.results[number][column], r)
}

// AddAll is Add for each of the cases that a scenario cites.
func (t *Table) AddAll(numbers []int, column string, r Result) {
	for _, number := range numbers {
		t.Add(number, column, r)
	}
}

// Cell sums up a case in a column: the word for it, and notes.
func (t *Table) Cell(number int, column string) (text string, notes []string) {
	count := map[Outcome]int{}
	for _, r := range t.results[number][column] {
		count[r.Outcome]++
		if r.Note != "" && !slices.Contains(notes, r.Note) {
			notes = append(notes, r.Note)
		}
	}
	all := len(t.results[number][column])
	switch {
	case count[Failed] > 0:
		text = "**fail**"
	case count[Passed] > 0 && count[Later] > 0:
		text = "pass, part later"
	case count[Later] > 0:
		text = "later"
	case count[Passed] > 0 && count[NotOffered] > 0 && column != Pairs:
		text = "pass, part n/a"
	case count[Passed] > 0:
		text = "pass"
	case count[NotOffered] > 0:
		text = "n/a"
	case column == Pairs:
		text = ""
	default:
		text = "**missing**"
	}
	if column == Pairs && all > 0 {
		text = strings.TrimPrefix(fmt.Sprintf("%s %d/%d", strings.TrimPrefix(text, "pass"), count[Passed], all-count[NotOffered]), " ")
		if count[NotOffered] == all {
			text = "n/a"
		}
	}
	return text, notes
}

// Counts of the table's language cells, by word.
func (t *Table) Counts() map[string]int {
	counts := map[string]int{}
	for _, c := range t.cases {
		for _, language := range Languages {
			text, _ := t.Cell(c.Number, language)
			counts[strings.Trim(text, "*")]++
		}
	}
	return counts
}

// Summary is one line for each word.
func (t *Table) Summary() string {
	var parts []string
	counts := t.Counts()
	for _, word := range []string{"pass", "pass, part later", "pass, part n/a", "later", "n/a", "missing", "fail"} {
		parts = append(parts, fmt.Sprintf("%s %d", word, counts[word]))
	}
	return fmt.Sprintf("%d cases × %d languages: %s", len(t.cases), len(Languages), strings.Join(parts, "; "))
}

// Markdown is docs/conformance.md.
func (t *Table) Markdown() string {
	var b strings.Builder
	b.WriteString(`# Conformance

Written by ` + "`go test ./clients/conformance -update`" + `; do not edit. What each case of [behaviour.md](behaviour.md) came to in
each client language, from scenarios and named tests that ran (clients/conformance).

**pass**: a scenario ran and its assertions held. **fail**: one did not. **later**: the call is missing yet or answers
NOT_SUPPORTED, in a case that behaviour.md does not mark as wholly "now". **n/a**: the language does not offer it; the notes say why.
**part**: other scenarios of the case are later or n/a there.
**missing**: nothing ran. *pairs*: ordered pairs of two languages, one writes and the other reads, that passed.

`)
	b.WriteString(t.Summary() + ".\n\n| # | case | " + strings.Join(Languages, " | ") + " | pairs |\n|---|---|---|---|---|---|\n")
	var remarks remarks
	for _, c := range t.cases {
		fmt.Fprintf(&b, "| %d | %s ", c.Number, shorten(c.Text))
		for _, column := range append(slices.Clone(Languages), Pairs) {
			text, notes := t.Cell(c.Number, column)
			fmt.Fprintf(&b, "| %s ", text)
			if text != "pass" { // then nothing is left to say
				remarks.add(c.Number, column, notes)
			}
		}
		b.WriteString("|\n")
	}
	b.WriteString("\n## Notes\n\n")
	for _, r := range remarks {
		fmt.Fprintf(&b, "- %s: %s\n", r.who(), r.note)
	}
	return b.String()
}

// remarks are the notes of the table, each once with the cells that it is about.
type remarks []*remark

type remark struct {
	note  string
	cases []int
	// columns by case: "go, c".
	columns map[int]string
}

func (r *remarks) add(number int, column string, notes []string) {
	for _, note := range notes {
		i := slices.IndexFunc(*r, func(other *remark) bool { return other.note == note })
		if i < 0 {
			i = len(*r)
			*r = append(*r, &remark{note: note, columns: map[int]string{}})
		}
		one := (*r)[i]
		if _, known := one.columns[number]; !known {
			one.cases = append(one.cases, number)
			one.columns[number] = column
			continue
		}
		one.columns[number] += ", " + column
	}
}

// who lists the cells, cases with the same columns together: "148, 149 (go, c); 150 (go)".
func (r *remark) who() string {
	var parts []string
	for i := 0; i < len(r.cases); {
		columns, numbers := r.columns[r.cases[i]], []string{}
		for ; i < len(r.cases) && r.columns[r.cases[i]] == columns; i++ {
			numbers = append(numbers, strconv.Itoa(r.cases[i]))
		}
		parts = append(parts, strings.Join(numbers, ", ")+" ("+columns+")")
	}
	return strings.Join(parts, "; ")
}

// shorten keeps a case's first sentence or so.
func shorten(text string) string {
	if len(text) <= 96 {
		return text
	}
	cut := strings.LastIndexByte(text[:96], ' ')
	return strings.TrimRight(text[:cut], " ,;:") + " …"
}
