package callboard

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// withoutContext are the functions that may make a context of their own, and why. Whatever else waits takes its
// caller's.
var withoutContext = map[string]string{
	"askDevice":    "as pull",
	"claim":        "cleans up behind a caller that has given up",
	"openSession":  "cleans up behind a caller that has given up",
	"pinByBroker":  "the broker may store into the slots as long as the session lives",
	"pull":         "memory that is met for the first time while the broker is gone: doc.go says so",
	"leaveDevices": "Close takes none, as io.Closer has it; it waits for 2 s at most",
	"next":         "of the log: slog's handlers take one",
}

func TestWaitsTakeTheirCallersContext(t *testing.T) {
	files, err := os.ReadDir(".")
	require.NoError(t, err)
	found := map[string]bool{}
	for _, file := range files {
		if !strings.HasSuffix(file.Name(), ".go") || strings.HasSuffix(file.Name(), "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file.Name(), nil, 0)
		require.NoError(t, err)
		for _, declared := range parsed.Decls {
			function, ok := declared.(*ast.FuncDecl)
			if !ok {
				continue
			}
			ast.Inspect(function, func(n ast.Node) bool {
				if s, ok := n.(*ast.SelectorExpr); ok && (s.Sel.Name == "Background" || s.Sel.Name == "TODO") {
					if x, ok := s.X.(*ast.Ident); ok && x.Name == "context" {
						found[function.Name.Name] = true
					}
				}
				return true
			})
		}
	}
	require.Equal(t, slices.Sorted(maps.Keys(withoutContext)), slices.Sorted(maps.Keys(found)))
}
