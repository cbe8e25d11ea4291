package conformance

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"callboard/tensor"
)

// laterError says that a call was refused as not supported where the scenario expected it to be made.
type laterError struct{ text string }

func (e laterError) Error() string { return "NOT_SUPPORTED: " + e.text }

var (
	upper      = regexp.MustCompile(`^[A-Z][A-Za-z_]+(\|[A-Z][A-Za-z_]+)*$`)
	comparison = regexp.MustCompile(`^([a-z@][A-Za-z0-9_./#]*?)(>=|<=|!=|=|>|<|~)(.*)$`)
)

// refused are the ways to say that an argument is wrong: Python has classes of its own for what needs no stage.
var refused = []string{"INVALID_ARGUMENT", "ValueError", "TypeError"}

// check compares an answer with what a step expects.
func (n *namespace) check(a *answer, expect []word) error {
	wanted := ""
	for i, w := range expect {
		if w.list == nil && !w.quoted && (w.text == "refused" || upper.MatchString(w.text)) && (i == 0 || expect[i-1].text != "~") {
			wanted = w.text
		}
	}
	switch {
	case wanted == "" && notBuilt(a):
		return laterError{a.text}
	case wanted == "" && !a.ok:
		return fmt.Errorf("it failed: %s %s", a.code, a.text)
	case a.ok && (strings.HasPrefix(wanted, "OK|")): // done or not yet
		return nil
	case wanted != "" && a.ok:
		return fmt.Errorf("expected %s, but it succeeded", wanted)
	case wanted != "":
		codes := strings.Split(wanted, "|")
		if wanted == "refused" {
			codes = refused
		}
		if !slices.Contains(codes, a.code) {
			if notBuilt(a) {
				return laterError{a.text}
			}
			return fmt.Errorf("expected %s, got %s: %s", wanted, a.code, a.text)
		}
		if a.text == "" {
			return fmt.Errorf("the error has no text (behaviour 224)")
		}
	}
	for i := 0; i < len(expect); i++ {
		w := expect[i]
		var err error
		switch {
		case w.list != nil:
			lists := [][]string{w.list}
			for i+1 < len(expect) && expect[i+1].list != nil && expect[i+1].text == "" {
				i++
				lists = append(lists, expect[i].list)
			}
			err = n.checkValues(a, w.text, lists)
		case w.text == wanted || w.text == "ok":
		case w.text == "~" && i+1 < len(expect):
			i++
			err = match(n.pattern(expect[i].text), n.plain(a.text))
		case w.text == "distinct":
			err = distinct(a.fields)
		case w.text == "none":
			if len(a.groups) != 0 {
				err = fmt.Errorf("expected no group, got %d", len(a.groups))
			}
		default:
			err = n.checkField(a, w.text)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// notBuilt holds for what is said of what is not done yet.
func notBuilt(a *answer) bool { return a.code == "NOT_SUPPORTED" }

var keptName = regexp.MustCompile(`\$[a-z]+`)

// pattern puts what was kept in place of "$name".
func (n *namespace) pattern(text string) string {
	return keptName.ReplaceAllStringFunc(text, func(name string) string {
		if v, kept := n.kept[name[1:]]; kept {
			return regexp.QuoteMeta(v)
		}
		return name
	})
}

// distinct holds when no field is empty and no two are equal.
func distinct(fields map[string]string) error {
	seen := map[string]string{}
	for key, value := range fields {
		if other, twice := seen[value]; value == "" || twice {
			return fmt.Errorf("%s is %q, and so is %s", key, value, other)
		}
		seen[value] = key
	}
	return nil
}

func match(pattern, text string) error {
	re, err := regexp.Compile(pattern)
	if err != nil {
		return err
	}
	if !re.MatchString(text) {
		return fmt.Errorf("the text %q does not match %q", text, pattern)
	}
	return nil
}

// group finds a group: "" is the only or first one, "x" attribute x's, "x#1" its second.
func (n *namespace) group(a *answer, name string) (map[string]string, error) {
	name, number, _ := strings.Cut(name, "#")
	nth, _ := strconv.Atoi(number)
	for _, g := range a.groups {
		if name == "" || n.plain(g["attribute"]) == name {
			if nth == 0 {
				return g, nil
			}
			nth--
		}
	}
	return nil, fmt.Errorf("there is no group %q#%d among %d", name, nth, len(a.groups))
}

func (n *namespace) checkValues(a *answer, name string, lists [][]string) error {
	g, err := n.group(a, name)
	if err != nil {
		return err
	}
	if name == "" && len(a.groups) != 1 {
		return fmt.Errorf("expected one group, got %d", len(a.groups))
	}
	got, err := rows(g)
	if err != nil {
		return err
	}
	t := parseType(g["type"])
	want := make([][]byte, len(lists))
	for i, list := range lists {
		if want[i], err = encode(t, list, n.kept); err != nil {
			return err
		}
	}
	if g["kind"] != "array" { // one list has all prims' values
		got, want = [][]byte{bytes.Join(got, nil)}, [][]byte{bytes.Join(want, nil)}
	}
	if !slices.EqualFunc(got, want, bytes.Equal) {
		return fmt.Errorf("attribute %s: expected %s, got %s", n.plain(g["attribute"]), show(t, want), show(t, got))
	}
	return nil
}

func show(t tensor.DType, rows [][]byte) string {
	var texts []string
	for _, r := range rows {
		texts = append(texts, decode(t, r))
	}
	return strings.Join(texts, " ")
}

// field looks up "epoch", "shape", "x.shape", "x#1.shape". A field that the answer itself has not is the first group's.
func (n *namespace) field(a *answer, name string) (string, error) {
	if v, ok := a.fields[name]; ok {
		return n.plain(v), nil
	}
	switch name {
	case "groups":
		return strconv.Itoa(len(a.groups)), nil
	case "at":
		return a.where, nil
	case "text":
		return n.plain(a.text), nil
	case "code":
		return a.code, nil
	}
	of, key := "", name
	if i := strings.LastIndexByte(name, '.'); i >= 0 {
		of, key = name[:i], name[i+1:]
	}
	g, err := n.group(a, of)
	if err != nil {
		return "", fmt.Errorf("field %s: %w", name, err)
	}
	switch key {
	case "dtype":
		return parseType(g["type"]).String(), nil
	case "lanes":
		return strconv.Itoa(int(parseType(g["type"]).Lanes)), nil
	case "semantic":
		n, _ := strconv.Atoi(g["semantic"])
		return tensor.Semantic(n).String(), nil
	case "bytes":
		return strconv.Itoa(len(g["data"]) / 2), nil
	case "mapped":
		return strconv.FormatBool(g["map"] != "-"), nil
	}
	v, ok := g[key]
	if !ok {
		return "", fmt.Errorf("the answer has no field %s", name)
	}
	return n.plain(v), nil
}

func (n *namespace) checkField(a *answer, text string) error {
	if keep, is := strings.CutPrefix(text, "let:"); is {
		name, of, _ := strings.Cut(keep, "=")
		v, err := n.field(a, of)
		n.kept[name] = v
		return err
	}
	m := comparison.FindStringSubmatch(text)
	if m == nil {
		return fmt.Errorf("%q is no expectation", text)
	}
	got, err := n.field(a, m[1])
	if err != nil {
		return err
	}
	want := n.value(m[3])
	holds := false
	switch m[2] {
	case "=":
		holds = got == want
	case "!=":
		holds = got != want
	case "~":
		return match(m[3], got)
	default:
		x, err1 := strconv.ParseUint(got, 10, 64)
		y, err2 := strconv.ParseUint(want, 10, 64)
		if err1 != nil || err2 != nil {
			return fmt.Errorf("%s: %q and %q are not both numbers", text, got, want)
		}
		holds = m[2] == ">" && x > y || m[2] == "<" && x < y || m[2] == ">=" && x >= y || m[2] == "<=" && x <= y
	}
	if !holds {
		return fmt.Errorf("expected %s, got %s", text, got)
	}
	return nil
}
