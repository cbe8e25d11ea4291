package callboard_test

import (
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFieldReportsNameTestsThatExist: each row of docs/field-reports.md names tests that there are, and one of them names the
// row, in its comment or in its body.
func TestFieldReportsNameTestsThatExist(t *testing.T) {
	tests := map[string]string{} // by name: comment and body, of all that have the name
	begin := regexp.MustCompile(`(?m)^(?:func (Test\w+)\(|def (test_\w+)\(|    def (test_\w+)\(|static void (\w+)\(void\)$)`)
	for _, name := range tree(t) {
		base := path.Base(name)
		if !strings.HasSuffix(base, "_test.go") && !(strings.HasPrefix(base, "test_") && slices.Contains([]string{".py", ".c"}, path.Ext(base))) {
			continue
		}
		content, err := os.ReadFile(name)
		require.NoError(t, err)
		text, found := string(content), begin.FindAllStringSubmatchIndex(string(content), -1)
		for i, at := range found {
			end := len(text)
			if i+1 < len(found) {
				end = found[i+1][0]
			}
			from := at[0]
			for lines := 0; from > 0 && lines < 8 && (i == 0 || from > found[i-1][1]); from-- {
				if text[from-1] == '\n' {
					lines++
				}
			}
			for group := 2; group < len(at); group += 2 {
				if at[group] >= 0 {
					tests[text[at[group]:at[group+1]]] += text[from:end]
				}
			}
		}
	}
	page, err := os.ReadFile("docs/field-reports.md")
	require.NoError(t, err)
	rows := regexp.MustCompile(`(?m)^\| ([A-G]\d+) \|.*\| ([^|]*) \|$`).FindAllStringSubmatch(string(page), -1)
	require.Greater(t, len(rows), 80)
	for _, row := range rows {
		id, named := row[1], regexp.MustCompile("`(\\w+)`").FindAllStringSubmatch(row[2], -1)
		if len(named) == 0 {
			t.Errorf("row %s names no test", id)
		}
		says := false
		for _, name := range named {
			text, there := tests[name[1]]
			if !there {
				t.Errorf("row %s names %s: there is no such test", id, name[1])
			}
			says = says || regexp.MustCompile(`\b`+id+`\b|`+id+`[A-Z]`).MatchString(text)
		}
		if len(named) > 0 && !says {
			t.Errorf("row %s: none of its tests names the row: write \"field report %s\" into the comment of one", id, id)
		}
	}
}
