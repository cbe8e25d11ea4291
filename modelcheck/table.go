package modelcheck

import (
	"fmt"
	"strings"
)

// Row is one line of an outcome table.
type Row struct {
	Name    string // what was explored: the rules as they are, or the rule left out
	Bounds  string // the bounds, in short
	Outcome Outcome
}

// Table prints rows as an aligned Markdown table: name, bounds, states, verdict, steps to the fault.
func Table(rows []Row) string {
	cells := [][]string{{"explored", "bounds", "states", "verdict", "steps", "fault"}}
	for _, r := range rows {
		steps := ""
		if r.Outcome.Fault != "" {
			steps = fmt.Sprint(len(r.Outcome.Trace))
		}
		cells = append(cells, []string{r.Name, r.Bounds, fmt.Sprint(r.Outcome.States), r.Outcome.Verdict(), steps, r.Outcome.Fault})
	}
	width := make([]int, len(cells[0]))
	for _, line := range cells {
		for i, c := range line {
			width[i] = max(width[i], len([]rune(c)))
		}
	}
	var b strings.Builder
	for n, line := range cells {
		for i, c := range line {
			fmt.Fprintf(&b, "| %-*s ", width[i], c)
		}
		b.WriteString("|\n")
		if n == 0 {
			for _, w := range width {
				b.WriteString("|" + strings.Repeat("-", w+2))
			}
			b.WriteString("|\n")
		}
	}
	return b.String()
}

// Section returns what stands in text between the lines "<!-- name -->" and "<!-- end -->", and text with that part
// replaced by with. It is how a results file keeps its table equal to what the test prints. ok is false where a marker
// is missing.
func Section(text, name, with string) (part, replaced string, ok bool) {
	begin := "<!-- " + name + " -->\n"
	before, rest, ok := strings.Cut(text, begin)
	if !ok {
		return "", "", false
	}
	part, after, ok := strings.Cut(rest, "<!-- end -->")
	if !ok {
		return "", "", false
	}
	return part, before + begin + with + "<!-- end -->" + after, true
}
