package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/constant"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
)

// sources in the order in which a reader meets them; a file that is not named
// here comes last.
var sources = []string{"version.go", "status.go", "region.go", "attach.go", "channel.go", "operations.go", "directory.go"}

// loader holds what is needed to turn syntax into the model.
type loader struct {
	set    *token.FileSet
	pkg    *types.Package
	info   *types.Info
	sizes  types.Sizes // amd64
	other  types.Sizes // arm64, which must agree
	model  *model
	faults []error
}

// load reads package protocol in dir. Preconditions: the package compiles.
// Every fault is reported, not only the first (G3, G4).
func load(dir string) (*model, error) {
	l := &loader{
		set:   token.NewFileSet(),
		info:  &types.Info{Defs: map[*ast.Ident]types.Object{}},
		sizes: types.SizesFor("gc", "amd64"),
		other: types.SizesFor("gc", "arm64"),
		model: &model{structs: map[string]*structure{}},
	}
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, fmt.Errorf("listing %s: %w", dir, err)
	}
	var syntax []*ast.File
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(l.set, name, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, fmt.Errorf("parsing: %w", err)
		}
		syntax = append(syntax, parsed)
	}
	if len(syntax) == 0 {
		return nil, fmt.Errorf("reading %s: %w", dir, fs.ErrNotExist)
	}
	slices.SortStableFunc(syntax, func(a, b *ast.File) int { return l.rank(a) - l.rank(b) })

	config := types.Config{Importer: importer.ForCompiler(l.set, "source", nil), Sizes: l.sizes}
	if l.pkg, err = config.Check("callboard/protocol", l.set, syntax, l.info); err != nil {
		return nil, fmt.Errorf("type checking: %w", err)
	}
	for _, parsed := range syntax {
		l.file(parsed)
	}
	return l.model, errors.Join(l.faults...)
}

func (l *loader) rank(f *ast.File) int {
	if i := slices.Index(sources, l.base(f)); i >= 0 {
		return i
	}
	return len(sources)
}

func (l *loader) base(n ast.Node) string { return filepath.Base(l.set.Position(n.Pos()).Filename) }

func (l *loader) fault(n ast.Node, format string, args ...any) {
	at := l.set.Position(n.Pos())
	l.faults = append(l.faults, fmt.Errorf("%s:%d: %s", filepath.Base(at.Filename), at.Line, fmt.Sprintf(format, args...)))
}

func (l *loader) file(parsed *ast.File) {
	out := file{name: l.base(parsed), prose: floating(parsed)}
	for _, decl := range parsed.Decls {
		general, ok := decl.(*ast.GenDecl)
		if !ok {
			continue
		}
		switch general.Tok {
		case token.CONST:
			if g := l.group(general); len(g.consts) > 0 {
				out.items = append(out.items, g)
			}
		case token.TYPE:
			for _, spec := range general.Specs {
				if s := l.structure(general, spec.(*ast.TypeSpec)); s != nil {
					out.items = append(out.items, s)
					l.model.structs[s.name] = s
				}
			}
		}
	}
	if len(out.items) > 0 {
		l.model.files = append(l.model.files, out)
	}
}

// floating returns the comments that belong to no declaration and stand between
// declarations: they hold the drawings.
func floating(parsed *ast.File) []string {
	var out []string
	for _, c := range parsed.Comments {
		inside := c == parsed.Doc || c.Pos() < parsed.Package
		for _, decl := range parsed.Decls {
			start := decl.Pos()
			switch d := decl.(type) {
			case *ast.GenDecl:
				if d.Doc != nil {
					start = d.Doc.Pos()
				}
			case *ast.FuncDecl:
				if d.Doc != nil {
					start = d.Doc.Pos()
				}
			}
			inside = inside || c.Pos() >= start && c.Pos() < decl.End()
		}
		if text := c.Text(); !inside && text != "" {
			out = append(out, text)
		}
	}
	return out
}

// group reads the exported integer constants of one declaration.
func (l *loader) group(decl *ast.GenDecl) *group {
	g := &group{doc: strings.TrimSpace(decl.Doc.Text())}
	for _, spec := range decl.Specs {
		values := spec.(*ast.ValueSpec)
		for _, name := range values.Names {
			if !name.IsExported() {
				continue
			}
			object := l.info.Defs[name].(*types.Const)
			number, exact := constant.Uint64Val(constant.ToInt(object.Val()))
			if !exact {
				l.fault(name, "constant %s = %s is not an unsigned 64-bit integer", name.Name, object.Val())
				continue
			}
			c := newValue(name.Name, number)
			c.doc = strings.TrimSpace(values.Doc.Text())
			if decl.Lparen == token.NoPos {
				c.doc, g.doc = g.doc, ""
			}
			if c.doc == "" {
				l.fault(name, "constant %s has no comment", name.Name)
			}
			g.consts = append(g.consts, c)
		}
	}
	return g
}

// newValue makes a constant; feature bits are masks over 64-bit words, so that
// they are 64 bits wide in C however small they are.
func newValue(name string, number uint64) value {
	return value{name: name, number: number, wide: number > 1<<32-1 || strings.HasPrefix(name, "Feature")}
}

// structure reads one struct; nil when it is not one that crosses a process
// boundary.
func (l *loader) structure(decl *ast.GenDecl, spec *ast.TypeSpec) *structure {
	named := l.info.Defs[spec.Name].Type()
	plain, ok := named.Underlying().(*types.Struct)
	if !ok || !spec.Name.IsExported() || !hasHostLayout(plain) {
		return nil
	}
	s := &structure{name: spec.Name.Name, doc: strings.TrimSpace(decl.Doc.Text()), size: l.sizes.Sizeof(named)}
	if s.doc == "" {
		l.fault(spec, "struct %s has no comment", s.name)
	}
	if other := l.other.Sizeof(named); other != s.size {
		l.fault(spec, "struct %s has %d bytes on amd64 and %d on arm64", s.name, s.size, other)
	}
	docs := fieldDocs(spec)
	var vars []*types.Var
	for v := range plain.Fields() {
		vars = append(vars, v)
	}
	offsets := l.sizes.Offsetsof(vars)
	end := int64(0)
	for i, v := range vars {
		if isHostLayout(v.Type()) {
			continue
		}
		f := field{name: v.Name(), doc: docs[v.Name()], offset: offsets[i]}
		if !l.element(&f, v.Type()) {
			l.fault(spec, "%s.%s has type %s; want uint8, uint16, uint32, uint64, Status, a struct of this package, or an array of 2 or more of them", s.name, f.name, v.Type())
			continue
		}
		if f.offset != end {
			l.fault(spec, "%s.%s is at %d, but the field before it ends at %d: name the padding", s.name, f.name, f.offset, end)
		}
		if f.scalar() && f.offset%f.width != 0 {
			l.fault(spec, "%s.%s is at %d, not a multiple of its %d bytes", s.name, f.name, f.offset, f.width)
		}
		if f.doc == "" {
			l.fault(spec, "%s.%s has no comment", s.name, f.name)
		}
		end = f.offset + f.size()
		s.fields = append(s.fields, f)
	}
	if end != s.size {
		l.fault(spec, "%s has %d bytes, but its last field ends at %d: name the padding", s.name, s.size, end)
	}
	return s
}

// element fills in the field's element type; false when the type is refused.
func (l *loader) element(f *field, t types.Type) bool {
	f.count = 1
	if array, ok := t.(*types.Array); ok {
		f.count, t = array.Len(), array.Elem()
		if f.count < 2 {
			return false
		}
	}
	f.width = l.sizes.Sizeof(t)
	if named, ok := t.(*types.Named); ok {
		if plain, ok := named.Underlying().(*types.Struct); ok {
			f.elem = named.Obj().Name()
			return named.Obj().Pkg() == l.pkg && named.Obj().Exported() && hasHostLayout(plain)
		}
		if named.Obj().Pkg() != l.pkg || named.Obj().Name() != "Status" {
			return false
		}
	}
	basic, ok := t.Underlying().(*types.Basic)
	if !ok {
		return false
	}
	switch basic.Kind() {
	case types.Uint8, types.Uint16, types.Uint32, types.Uint64:
		f.elem = fmt.Sprintf("u%d", 8*f.width)
		return true
	}
	return false
}

func hasHostLayout(s *types.Struct) bool {
	for v := range s.Fields() {
		if isHostLayout(v.Type()) {
			return true
		}
	}
	return false
}

func isHostLayout(t types.Type) bool { return types.TypeString(t, nil) == "structs.HostLayout" }

func fieldDocs(spec *ast.TypeSpec) map[string]string {
	docs := map[string]string{}
	for _, f := range spec.Type.(*ast.StructType).Fields.List {
		for _, name := range f.Names {
			docs[name.Name] = strings.TrimSpace(f.Doc.Text())
		}
	}
	return docs
}
