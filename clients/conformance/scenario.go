package conformance

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Scenario is what shows some cases: lines for its roles, or a test that is named.
type Scenario struct {
	Cases []int
	Title string
	// Where it stands, for messages.
	Where string
	// Fresh scenarios have a broker of their own, with these further arguments.
	Fresh     bool
	FreshArgs []string
	// Only lists the languages it is about, all when empty; Reason says why.
	Only   []string
	Reason string
	// Later lets a scenario be refused as not built yet though its case is marked "now": it shows a part that is not.
	Later bool
	// Never says why no language can show the case.
	Never string
	// Pytest, GoTest and CTest name tests that are run instead of lines.
	Pytest []string
	GoTest [][2]string // package, test
	CTest  [][2]string // program of clients/c/tests, test
	Steps  []Step
}

// Step is one line of a role.
type Step struct {
	Where string
	Text  string
	Role  string
	Words []word
	// Eventually repeats the step until the expectations hold.
	Eventually bool
	Expect     []word
}

// word is a token of a line: plain text, a "quoted text", or a [list], maybe with a name before it.
type word struct {
	text   string
	quoted bool
	list   []string // not nil: a list; text is what stood before it
}

// Roles in order of appearance.
func (s *Scenario) Roles() (roles []string) {
	for _, step := range s.Steps {
		if !slices.Contains(roles, step.Role) {
			roles = append(roles, step.Role)
		}
	}
	return roles
}

// tests names what a scenario counts on, each with the language that it shows.
func (s *Scenario) tests() (names []namedTest) {
	for _, p := range s.Pytest {
		names = append(names, namedTest{"python", "pytest " + p})
	}
	for _, g := range s.GoTest {
		names = append(names, namedTest{"go", "gotest " + g[0] + " " + g[1]})
	}
	for _, c := range s.CTest {
		names = append(names, namedTest{"c", "ctest " + c[0] + " " + c[1]})
	}
	return names
}

type namedTest struct{ language, name string }

// RunsIn tells whether a language is meant.
func (s *Scenario) RunsIn(language string) bool {
	return len(s.Only) == 0 || slices.Contains(s.Only, language)
}

// LoadScenarios reads all scenario files of a directory, in order of their names.
func LoadScenarios(dir string) ([]*Scenario, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.txt"))
	if err != nil || len(names) == 0 {
		return nil, fmt.Errorf("no scenarios in %s (%v)", dir, err)
	}
	slices.Sort(names)
	var all []*Scenario
	for _, name := range names {
		raw, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		some, err := ParseScenarios(filepath.Base(name), string(raw))
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	return all, nil
}

// ParseScenarios reads scenarios. A scenario that asserts nothing is an error: it could not fail.
func ParseScenarios(file, text string) (all []*Scenario, err error) {
	var s *Scenario
	n := 0
	for line := range strings.Lines(text) {
		n++
		where := fmt.Sprintf("%s:%d", file, n)
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		words, err := tokens(line)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", where, err)
		}
		if words[0].text == "case" {
			s = &Scenario{Where: where}
			all = append(all, s)
		}
		if s == nil {
			return nil, fmt.Errorf("%s: a line before the first case", where)
		}
		if err := s.line(where, line, words); err != nil {
			return nil, fmt.Errorf("%s: %w", where, err)
		}
	}
	for _, s := range all {
		asserts := len(s.tests())
		if s.Never != "" {
			asserts++
		}
		for _, step := range s.Steps {
			if len(step.Expect) > 0 {
				asserts++
			}
		}
		if asserts == 0 || len(s.Cases) == 0 {
			return nil, fmt.Errorf("%s: cites %d cases and asserts %d times; both must be more than none", s.Where, len(s.Cases), asserts)
		}
	}
	return all, nil
}

var role = regexp.MustCompile(`^[A-C]$`)

func (s *Scenario) line(where, line string, words []word) error {
	switch first := words[0].text; {
	case first == "case":
		i := 1
		for ; i < len(words); i++ {
			n, err := strconv.Atoi(words[i].text)
			if err != nil {
				break
			}
			s.Cases = append(s.Cases, n)
		}
		var title []string
		for _, w := range words[i:] {
			title = append(title, w.text)
		}
		s.Title = strings.Join(title, " ")
	case first == "fresh":
		s.Fresh = true
		for _, w := range words[1:] {
			s.FreshArgs = append(s.FreshArgs, w.text)
		}
	case first == "only":
		for _, w := range words[1:] {
			switch {
			case w.quoted:
				s.Reason = w.text
			case slices.Contains(Languages, w.text):
				s.Only = append(s.Only, w.text)
			default:
				return fmt.Errorf("%q is no language: expected %v", w.text, Languages)
			}
		}
		if s.Reason == "" {
			return fmt.Errorf("only needs a reason, for the other languages' n/a")
		}
	case first == "later" && len(words) == 1:
		s.Later = true
	case first == "never" && len(words) == 2:
		s.Never = words[1].text
	case first == "pytest" && len(words) == 2:
		s.Pytest = append(s.Pytest, words[1].text)
	case first == "gotest" && len(words) == 3:
		s.GoTest = append(s.GoTest, [2]string{words[1].text, words[2].text})
	case first == "ctest" && len(words) == 3:
		s.CTest = append(s.CTest, [2]string{words[1].text, words[2].text})
	case role.MatchString(first) && len(words) > 1:
		step := Step{Where: where, Text: line, Role: first}
		for i, w := range words[1:] {
			if !w.quoted && (w.text == "->" || w.text == "~>") {
				step.Words, step.Expect, step.Eventually = words[1:i+1], words[i+2:], w.text == "~>"
				if len(step.Expect) == 0 {
					return fmt.Errorf("nothing is expected behind the arrow")
				}
				s.Steps = append(s.Steps, step)
				return nil
			}
		}
		step.Words = words[1:]
		s.Steps = append(s.Steps, step)
	default:
		return fmt.Errorf("%q begins no line of a scenario", first)
	}
	return nil
}

// tokens splits a line into words. A comment begins with " #".
func tokens(line string) (words []word, err error) {
	for i := 0; i < len(line); {
		switch line[i] {
		case ' ', '\t':
			i++
			continue
		case '#':
			return words, nil
		case '"':
			end := strings.IndexByte(line[i+1:], '"')
			if end < 0 {
				return nil, fmt.Errorf("a quote has no end")
			}
			words = append(words, word{text: line[i+1 : i+1+end], quoted: true})
			i += end + 2
			continue
		}
		// A plain word ends at a space; one that meets "[" outside of "=" is a named list.
		j := i
		for j < len(line) && line[j] != ' ' && line[j] != '\t' && !(line[j] == '[' && !strings.Contains(line[i:j], "=")) {
			j++
		}
		if j < len(line) && line[j] == '[' {
			end := strings.IndexByte(line[j:], ']')
			if end < 0 {
				return nil, fmt.Errorf("a list has no end")
			}
			words = append(words, word{text: line[i:j], list: append([]string{}, strings.Fields(strings.ReplaceAll(line[j+1:j+end], ",", " "))...)})
			i = j + end + 1
			continue
		}
		text := line[i:j]
		if strings.HasPrefix(text, "map=[") || strings.HasPrefix(text, "mask=[") { // map=[2 0 1]
			end := strings.IndexByte(line[i:], ']')
			if end < 0 {
				return nil, fmt.Errorf("a list has no end")
			}
			text = strings.Join(strings.Fields(strings.NewReplacer("[", "", "]", "").Replace(line[i:i+end+1])), ",")
			j = i + end + 1
		}
		words = append(words, word{text: text})
		i = j
	}
	return words, nil
}
