package callboard_test

import (
	"os"
	"path"
	"regexp"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"
)

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.+)$`)
	fenced  = regexp.MustCompile("(?ms)^```.*?^```$")
	code    = regexp.MustCompile("`[^`\n]*`")
)

// anchor is the name by which a heading is linked to: lower case, spaces as hyphens, punctuation gone.
func anchor(title string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
			return unicode.ToLower(r)
		}
		return -1
	}, title)
}

// TestLinksLeadSomewhere: files and headings are moved, and pages that name them are forgotten.
func TestLinksLeadSomewhere(t *testing.T) {
	require.Equal(t, "cmake-and-c", anchor("CMake and C++"))
	pages := map[string]string{} // without what stands in fences
	for _, name := range tree(t) {
		if path.Ext(name) == ".md" {
			text, err := os.ReadFile(name)
			require.NoError(t, err)
			pages[name] = fenced.ReplaceAllString(string(text), "")
		}
	}
	checked := 0
	for name, text := range pages {
		for _, found := range link.FindAllStringSubmatch(code.ReplaceAllString(text, ""), -1) {
			target, part, _ := strings.Cut(found[1], "#")
			if strings.Contains(target, "://") {
				continue
			}
			checked++
			where := name
			if target != "" {
				where = path.Join(path.Dir(name), target)
			}
			if _, err := os.Stat(where); err != nil {
				t.Errorf("%s links to %s: %v", name, found[1], err)
				continue
			}
			if part == "" {
				continue
			}
			known := false
			for _, title := range heading.FindAllStringSubmatch(pages[where], -1) {
				known = known || anchor(title[1]) == part
			}
			if !known {
				t.Errorf("%s links to %s: no heading of %s is called so", name, found[1], where)
			}
		}
	}
	require.Greater(t, checked, 50, "links found")
}
