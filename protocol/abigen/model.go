package main

import (
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// model is what package protocol declares, in source order.
type model struct {
	files   []file
	structs map[string]*structure
}

// file is one source file: its floating comments (drawings and what they say),
// and its declarations.
type file struct {
	name  string
	prose []string
	items []any // *structure or *group
}

// structure is one struct that crosses a process boundary.
type structure struct {
	name   string
	doc    string
	size   int64
	fields []field
}

// field is one member. An array has count above 1.
type field struct {
	name   string
	doc    string
	offset int64
	elem   string // u8, u16, u32, u64, or the name of a structure
	width  int64  // of one element
	count  int64
}

func (f field) size() int64 { return f.width * f.count }

// scalar says whether elements are plain numbers.
func (f field) scalar() bool { return f.elem[0] == 'u' }

// group is a const declaration.
type group struct {
	doc    string
	consts []value
}

type value struct {
	name   string
	doc    string
	number uint64
	wide   bool // 64 bits in C
}

// ordered returns the structures so that each comes after those it contains.
func (m *model) ordered() []*structure {
	var out []*structure
	done := map[string]bool{}
	var visit func(s *structure)
	visit = func(s *structure) {
		if done[s.name] {
			return
		}
		done[s.name] = true
		for _, f := range s.fields {
			if !f.scalar() {
				visit(m.structs[f.elem])
			}
		}
		out = append(out, s)
	}
	for _, f := range m.files {
		for _, item := range f.items {
			if s, ok := item.(*structure); ok {
				visit(s)
			}
		}
	}
	return out
}

// groups returns every const declaration in source order.
func (m *model) groups() []*group {
	var out []*group
	for _, f := range m.files {
		for _, item := range f.items {
			if g, ok := item.(*group); ok {
				out = append(out, g)
			}
		}
	}
	return out
}

// snake turns OffsetBytes into offset_bytes, OpID into op_id, ABIMajor into abi_major.
func snake(name string) string {
	var out strings.Builder
	runes := []rune(name)
	for i, r := range runes {
		if i > 0 && unicode.IsUpper(r) {
			after := unicode.IsLower(runes[i-1]) || unicode.IsDigit(runes[i-1])
			before := i+1 < len(runes) && unicode.IsUpper(runes[i-1]) && unicode.IsLower(runes[i+1])
			if after || before {
				out.WriteByte('_')
			}
		}
		out.WriteRune(unicode.ToLower(r))
	}
	return out.String()
}

func upper(name string) string { return strings.ToUpper(snake(name)) }

// namer turns the Go names in a comment into those of another language.
type namer struct {
	constName  func(string) string
	structName func(string) string
	structs    map[string]*structure
	consts     map[string]bool
	fields     map[string]bool // of every structure
}

func (m *model) namer(constName, structName func(string) string) *namer {
	n := &namer{constName, structName, m.structs, map[string]bool{}, map[string]bool{}}
	for _, g := range m.groups() {
		for _, c := range g.consts {
			n.consts[c.name] = true
		}
	}
	for _, s := range m.structs {
		for _, f := range s.fields {
			n.fields[f.name] = true
		}
	}
	return n
}

var word = regexp.MustCompile(`(^|[^A-Za-z0-9])([A-Z][A-Za-z0-9]*)`)

// translate rewrites doc, the comment of what is called self, in structure owner
// (nil outside one). A name of one word is rewritten only where it cannot be the
// start of an English sentence: "All" and "Segment" are words too.
func (n *namer) translate(doc, self string, owner *structure) string {
	var out strings.Builder
	last := 0
	for _, at := range word.FindAllStringSubmatchIndex(doc, -1) {
		w := doc[at[4]:at[5]]
		out.WriteString(doc[last:at[4]])
		out.WriteString(n.rename(w, doc[:at[4]], self, owner))
		last = at[5]
	}
	return out.String() + doc[last:]
}

func (n *namer) rename(w, before, self string, owner *structure) string {
	long := strings.Contains(snake(w), "_")
	start := before == "" || strings.HasSuffix(before, ". ") || strings.HasSuffix(before, "\n")
	switch {
	case before == "" && w == self && owner != nil && owner.name != self:
		return snake(w)
	case n.consts[w] && (long || w == "Infinite" || w == self || !start):
		return n.constName(w)
	case n.structs[w] != nil && (long || w == self):
		return n.structName(w)
	case n.fields[w] && (long || strings.HasSuffix(before, ".")):
		return snake(w)
	case owner != nil && !start && owner.has(w):
		return snake(w)
	}
	return w
}

func (s *structure) has(name string) bool {
	return slices.ContainsFunc(s.fields, func(f field) bool { return f.name == name })
}

// wrap breaks paragraphs into lines of at most width columns.
func wrap(text string, width int) []string {
	var out []string
	for _, paragraph := range strings.Split(strings.TrimSpace(text), "\n\n") {
		if len(out) > 0 {
			out = append(out, "")
		}
		line := ""
		for _, w := range strings.Fields(paragraph) {
			if line != "" && len([]rune(line))+1+len([]rune(w)) > width {
				out, line = append(out, line), ""
			}
			if line != "" {
				line += " "
			}
			line += w
		}
		out = append(out, line)
	}
	return out
}
