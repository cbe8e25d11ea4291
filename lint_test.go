package callboard_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

const module = "callboard"

// ladder gives each part of the tree its rung. A file may import its own part and rungs below its own, never a rung
// beside or above it. So clients/go cannot reach broker: they stand on one rung.
var ladder = map[string]int{
	"protocol":   0,
	"fault":      0,
	"modelcheck": 0,
	"shm":        1,
	"tensor":     1,
	"control":    1,
	"ring":       2,
	"cudaipc":    2,
	"snapshot":   3,
	"broker":     4,
	"clients/go": 4,
	"cmd":        5,
}

// free parts may import anything: they look at the system from outside, and nothing on the ladder may need them.
var free = []string{"integration", "bench", "examples", "clients/conformance"}

// homes says which parts may import an outside library, tests included. A program that does not use NATS links none
// of it, and a raw system call has one place where it is looked for.
var homes = map[string][]string{
	"golang.org/x/sys":           {"shm", "cudaipc"},
	"github.com/nats-io/":        {"control", "broker", "integration", "examples"},
	"github.com/ebitengine/":     {"cudaipc"},
	"github.com/spf13/cobra":     {"cmd"},
	"github.com/jedib0t/go-pret": {"cmd", "bench", "examples"},
}

// goFile is one parsed Go file of the tree.
type goFile struct {
	path string // slash-separated, relative to the module root
	part string // the key of ladder or the entry of free that it belongs to; "" at the root
	test bool
	ast  *ast.File
}

func (f goFile) imports() []string {
	var out []string
	for _, spec := range f.ast.Imports {
		name, _ := strconv.Unquote(spec.Path.Value)
		out = append(out, name)
	}
	return out
}

// skipped directories hold what tools made or what is not ours to judge; .gitignore names the same ones.
var skipped = []string{".git", ".venv", "bin", "build", "dist", "__pycache__", ".pytest_cache", ".ruff_cache"}

// tree lists every file of the project, slash-separated and relative to its root, where go test runs this package.
func tree(t *testing.T) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (slices.Contains(skipped, entry.Name()) || strings.HasSuffix(name, ".egg-info") || strings.HasPrefix(name, ".venv-")):
			return filepath.SkipDir
		case entry.Type().IsRegular() && entry.Name() != ".git": // which is a file in a linked worktree
			files = append(files, filepath.ToSlash(name))
		}
		return nil
	})
	require.NoError(t, err)
	require.Contains(t, files, "go.mod", "this test must run in the module root")
	return files
}

func goFiles(t *testing.T) []goFile {
	t.Helper()
	var out []goFile
	set := token.NewFileSet()
	for _, name := range tree(t) {
		if path.Ext(name) != ".go" || strings.Contains(name, "testdata/") {
			continue
		}
		parsed, err := parser.ParseFile(set, name, nil, parser.ParseComments|parser.SkipObjectResolution)
		require.NoError(t, err)
		out = append(out, goFile{path: name, part: partOf(path.Dir(name)), test: strings.HasSuffix(name, "_test.go"), ast: parsed})
	}
	require.NotEmpty(t, out)
	return out
}

// partOf maps a directory to its part of the tree: "clients/go/x" to "clients/go", "shm" to "shm".
func partOf(dir string) string {
	if dir == "." {
		return ""
	}
	elements := strings.Split(dir, "/")
	if elements[0] == "clients" && len(elements) > 1 {
		return elements[0] + "/" + elements[1]
	}
	return elements[0]
}

// TestImportsRunDownOnly holds the order of packages that docs/architecture.md draws. Test files may look down from
// any height: a client's test may start a broker.
func TestImportsRunDownOnly(t *testing.T) {
	for _, file := range goFiles(t) {
		if file.part == "" || slices.Contains(free, file.part) {
			continue
		}
		rung, known := ladder[file.part]
		require.True(t, known, "%s: %q has no rung: add it to ladder or free here and to docs/architecture.md", file.path, file.part)
		if file.test {
			continue
		}
		for _, name := range file.imports() {
			inside, ours := strings.CutPrefix(name, module+"/")
			if !ours {
				require.NotEqual(t, module, name, "%s imports the module root, which holds no code", file.path)
				continue
			}
			other := partOf(inside)
			if other == file.part {
				continue
			}
			if other == "modelcheck" && path.Base(path.Dir(file.path)) != "model" {
				t.Errorf("%s imports modelcheck: only packages named model may, so that no binary links it", file.path)
			}
			below, known := ladder[other]
			if !known || below >= rung {
				t.Errorf("%s (rung %d) imports %s: only rungs below its own are allowed", file.path, rung, name)
			}
		}
	}
}

// TestUnsafeOnlyInFilesNamedForIt keeps every cast where a reviewer looks for it.
func TestUnsafeOnlyInFilesNamedForIt(t *testing.T) {
	for _, file := range goFiles(t) {
		stem := strings.TrimSuffix(strings.TrimSuffix(file.path, ".go"), "_test")
		if !strings.HasSuffix(stem, "_unsafe") && slices.Contains(file.imports(), "unsafe") {
			t.Errorf("%s imports unsafe: move that code to a file named *_unsafe.go", file.path)
		}
	}
}

func TestOutsideLibrariesStayInTheirPackages(t *testing.T) {
	for _, file := range goFiles(t) {
		for _, name := range file.imports() {
			for library, parts := range homes {
				if strings.HasPrefix(name, library) && !slices.Contains(parts, file.part) {
					t.Errorf("%s imports %s: only %v may", file.path, name, parts)
				}
			}
		}
	}
}

// TestPackagesAreNamedForWhatTheyHold refuses names that say nothing: everything ends up in such a package.
func TestPackagesAreNamedForWhatTheyHold(t *testing.T) {
	empty := []string{"util", "utils", "common", "helper", "helpers", "internal", "misc", "shared"}
	for _, file := range goFiles(t) {
		for element := range strings.SplitSeq(path.Dir(file.path), "/") {
			require.NotContains(t, empty, element, file.path)
		}
		require.NotContains(t, empty, strings.TrimSuffix(file.ast.Name.Name, "_test"), file.path)
	}
}

// TestEveryPackageHasADocGo: a newcomer who reads only the package comments, bottom up, should know the system.
func TestEveryPackageHasADocGo(t *testing.T) {
	documented := map[string]bool{}
	for _, file := range goFiles(t) {
		if dir := path.Dir(file.path); !file.test && !documented[dir] {
			documented[dir] = path.Base(file.path) == "doc.go" && file.ast.Doc.Text() != ""
		}
	}
	for dir, ok := range documented {
		if !ok {
			t.Errorf("%s has no doc.go with a package comment", dir)
		}
	}
}

// TestOneVersion: the software has one version, which stands where each language's tools look for it.
func TestOneVersion(t *testing.T) {
	places := map[string]string{
		"broker/config.go":                         `(?m)^const Version = "(\d+\.\d+\.\d+)"$`,
		"clients/c/CMakeLists.txt":                 `(?m)^project\(callboard VERSION (\d+\.\d+\.\d+) `,
		"clients/python/pyproject.toml":            `(?m)^version = "(\d+\.\d+\.\d+)"$`,
		"clients/python/src/callboard/__init__.py": `(?m)^__version__ = "(\d+\.\d+\.\d+)"$`,
	}
	found := map[string][]string{}
	for name, pattern := range places {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		version := regexp.MustCompile(pattern).FindSubmatch(text)
		require.NotNil(t, version, "%s: no version, or not as here", name)
		found[string(version[1])] = append(found[string(version[1])], name)
	}
	require.Len(t, found, 1, "one version, and not several: change all of these")
}

// The patterns are put together from pieces, so that this file does not match itself.
var (
	machinePath = regexp.MustCompile(`(^|[^\w./-])(/wo` + `rk|/ro` + `ot|/ho` + `me/[a-z<$]\w*)(/|\b[^/\w-]|$)|\.\./sha` + `red/`)
	packageHost = regexp.MustCompile(`(pyp` + `i|pythonhos` + `ted|npm` + `js|proxy\.gol` + `ang|sum\.gol` + `ang|gh` + `cr|qu` + `ay)\.(org|io|com)\b`)
)

// TestNoFileKnowsTheMachineItWasWrittenOn: a path or a package host of one machine works for one person.
func TestNoFileKnowsTheMachineItWasWrittenOn(t *testing.T) {
	for _, bad := range []string{"cd /wo" + "rk/tree", `"/ro` + `ot/x"`, "/ho" + "me/ann/x", "see ../sha" + "red/a.md"} {
		require.Regexp(t, machinePath, bad)
	}
	for _, good := range []string{"/World/R0", "the root /", "work/share", "callboard/root/x", "/home"} {
		require.NotRegexp(t, machinePath, good)
	}
	require.Regexp(t, packageHost, "https://pyp"+"i.org/simple")

	for _, name := range tree(t) {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		if !utf8.Valid(text) || strings.ContainsRune(string(text), 0) {
			continue // a binary file
		}
		for number, line := range strings.Split(string(text), "\n") {
			if machinePath.MatchString(line) || packageHost.MatchString(line) {
				t.Errorf("%s:%d names a place of one machine: %s", name, number+1, strings.TrimSpace(line))
			}
		}
	}
}
