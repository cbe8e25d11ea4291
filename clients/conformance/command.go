package conformance

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"callboard/tensor"
)

// namespace keeps scenarios that share a broker apart (invariant F3), and what a scenario keeps.
type namespace struct {
	prefix string // "" on a broker of its own
	kept   map[string]string
}

func (n *namespace) attribute(name string) string {
	if n.prefix == "" || strings.HasPrefix(name, "@") || name == "" {
		return name
	}
	return n.prefix + "." + name
}

func (n *namespace) path(path string) string {
	if n.prefix == "" || path == "/" || !strings.HasPrefix(path, "/") {
		return path
	}
	return "/" + n.prefix + path
}

// filter has the names or the paths of a filter: op:name:values, op:/path,/path, only:name,name.
func (n *namespace) filter(text string) string {
	op, rest, _ := strings.Cut(text, ":")
	each := func(list string, change func(string) string) string {
		all := strings.Split(list, ",")
		for i := range all {
			all[i] = change(all[i])
		}
		return strings.Join(all, ",")
	}
	switch {
	case op == "raw":
		number, rest, _ := strings.Cut(rest, ":")
		return op + ":" + number + ":" + strings.TrimPrefix(n.filter("has:"+rest), "has:")
	case strings.HasPrefix(rest, "/"):
		return op + ":" + each(rest, n.path)
	case op == "only":
		return op + ":" + each(rest, n.attribute)
	}
	name, values, has := strings.Cut(rest, ":")
	if has {
		return op + ":" + n.attribute(name) + ":" + values
	}
	return op + ":" + n.attribute(name)
}

// plain takes the namespace off a text again, so that expectations need not know it.
func (n *namespace) plain(text string) string {
	if n.prefix == "" {
		return text
	}
	return strings.ReplaceAll(strings.ReplaceAll(text, "/"+n.prefix+"/", "/"), n.prefix+".", "")
}

// quote makes a text one word; the empty text is "%" alone.
func quote(text string) string {
	if text == "" {
		return "%"
	}
	return strings.NewReplacer("%", "%25", " ", "%20", ",", "%2C", ";", "%3B", "=", "%3D", "\n", "%0A").Replace(text)
}

// where names of attributes and handles stand among the words of a verb: "h" is a handle, "n" a name, "p" a path, "N" names to
// the end, "P" paths to the end, "F" filters to the end, "t" texts to the end. What is not listed has plain words.
var shapes = map[string]string{
	"query": "hP", "find": "hF", "await": "h", "list": "hi", "listed": "h", "retain": "h", "unlist": "h", "slice": "hh", "querylist": "hh", "join": "i", "split": "i", "drop": "h", "write": "hn", "publish": "n", "seal": "oN", "declare": "n", "wait": "h",
	"op": "h", "floor": "n", "read": "hN", "show": "h", "latest": "n", "snapshot": "h", "sread": "hhN", "sfloor": "hn",
	"map": "hhn", "fill": "h", "unmap": "h", "abort": "h", "next": "h", "open": "n", "claim": "hn", "giveup": "h", "work": "n", "delete": "hN", "intern": "ht", "resolve": "i", "waits": "h", "flood": "hn", "hoard": "P", "threads": "hn", "frontier": "n", "ticks": "hn", "chase": "hn", "race": "np", "deletes": "hn", "frames": "hn", "log": "www",
}

// compose writes a step as the line that its driver reads.
func (n *namespace) compose(words []word) (string, error) {
	if words[0].text == "batch" {
		return n.composeBatch(words)
	}
	return n.section(words[0].text, words[0].text, words[1:])
}

// composeBatch has the entries of a batch behind bars.
func (n *namespace) composeBatch(words []word) (string, error) {
	var sections [][]word
	from := 1
	for i, w := range words {
		if w.text == "|" && !w.quoted {
			sections = append(sections, words[from:i])
			from = i + 1
		}
	}
	sections = append(sections, words[from:])
	var lines []string
	for i, s := range sections {
		verb, shape := "batch", "h"
		if i > 0 {
			verb, shape = "", "n"
		}
		line, err := n.sectionOf(verb, shape, s)
		if err != nil {
			return "", err
		}
		lines = append(lines, strings.TrimSpace(line))
	}
	return strings.Join(lines, " / "), nil
}

func (n *namespace) section(verb, name string, words []word) (string, error) {
	return n.sectionOf(verb, shapes[name], words)
}

func (n *namespace) sectionOf(verb, shape string, words []word) (string, error) {
	out, options, position := []string{verb}, []string{}, 0
	next := func() byte {
		if len(shape) == 0 {
			return 0
		}
		c := shape[min(position, len(shape)-1)]
		if position >= len(shape) && !strings.ContainsRune("NPFti", rune(c)) {
			return 0
		}
		position++
		return c
	}
	var types []tensor.DType
	var lists [][]string
	shapeGiven := ""
	for _, w := range words {
		key, value, isOption := strings.Cut(w.text, "=")
		switch {
		case w.list != nil:
			lists = append(lists, w.list)
		case isOption && !w.quoted && key == "shape":
			shapeGiven = value
		case isOption && !w.quoted:
			o, err := n.option(key, value)
			if err != nil {
				return "", err
			}
			options = append(options, o)
		case !w.quoted && (w.text == "array" || w.text == "insert" || w.text == "list" || w.text == "readonly"):
			options = append(options, w.text+"=1")
		case !w.quoted && verb == "seal" && (w.text == "all" || w.text == "include" || w.text == "exclude"):
			options = append(options, "scope="+w.text)
		default:
			switch c := next(); {
			case c == 'n' || c == 'N':
				out = append(out, quote(n.attribute(w.text)))
			case c == 'P' && strings.Contains(w.text, ".."):
				for _, path := range counted(w.text) {
					out = append(out, quote(n.path(path)))
				}
			case c == 'P' || c == 'p' || c == 't':
				out = append(out, quote(n.path(w.text)))
			case c == 'F':
				out = append(out, quote(n.filter(w.text)))
			case c == 'o':
				options = append(options, "ordinal="+w.text)
			case c == 'i':
				out = append(out, strings.Split(n.value(w.text), ",")...)
			case c == 0: // what is left is the element type
				for _, text := range strings.Split(w.text, ";") { // one for each tensor, where they differ
					t, err := wireType(text)
					if err != nil {
						return "", fmt.Errorf("%q: %w", w.text, err)
					}
					types = append(types, t)
				}
			default:
				out = append(out, quote(w.text))
			}
		}
	}
	if verb == "seal" && !slices.ContainsFunc(options, func(o string) bool { return strings.HasPrefix(o, "scope=") }) {
		options = append(options, "scope=include")
	}
	if types != nil {
		o, err := n.payload(types, lists, shapeGiven)
		if err != nil {
			return "", err
		}
		options = append(options, o...)
	}
	return strings.Join(append(out, options...), " "), nil
}

// counted is "/p0", "/p1", … "/p9" for "/p0..9".
func counted(text string) (paths []string) {
	head, last, _ := strings.Cut(text, "..")
	name := strings.TrimRight(head, "0123456789")
	first, err1 := strconv.Atoi(head[len(name):])
	end, err2 := strconv.Atoi(last)
	if err1 != nil || err2 != nil {
		return []string{text}
	}
	for ; first <= end; first++ {
		paths = append(paths, name+strconv.Itoa(first))
	}
	return paths
}

// value looks up what was kept.
func (n *namespace) value(text string) string {
	name, is := strings.CutPrefix(text, "$")
	if !is {
		return text
	}
	name, index, indexed := strings.Cut(name, "#")
	v := n.kept[name]
	if i, err := strconv.Atoi(index); indexed && err == nil {
		if all := strings.Split(v, ","); i < len(all) {
			return all[i]
		}
	}
	return v
}

func (n *namespace) option(key, value string) (string, error) {
	value = n.value(value)
	switch key {
	case "semantic":
		if _, err := strconv.Atoi(value); err != nil {
			s, err := tensor.ParseSemantic(value)
			if err != nil {
				return "", err
			}
			value = strconv.Itoa(int(s))
		}
	case "type":
		t, err := wireType(value)
		if err != nil {
			return "", err
		}
		value = formatType(t)
	}
	return key + "=" + value, nil
}

// payload is type, shape and data of a write: one tensor, or with several lists one for each.
func (n *namespace) payload(types []tensor.DType, lists [][]string, shape string) ([]string, error) {
	var names, shapes, datas []string
	for _, t := range types {
		names = append(names, formatType(t))
	}
	typed := "type=" + strings.Join(names, ";")
	for i, list := range lists {
		t := types[min(i, len(types)-1)]
		data, err := encode(t, list, n.kept)
		if err != nil {
			return nil, err
		}
		datas = append(datas, hex.EncodeToString(data))
		size := max(1, t.Size())
		shapes = append(shapes, strconv.Itoa(len(data)/size))
	}
	if len(lists) == 0 {
		if shape == "" {
			return []string{typed}, nil
		}
		datas, shapes = []string{""}, []string{"0"}
	}
	if shape != "" {
		shapes = strings.Split(shape, ";")
	}
	return []string{typed, "shape=" + strings.Join(shapes, ";"), "data=" + strings.Join(datas, ";")}, nil
}
