package quickstart

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// wanted are the marks that README.md has, each once and in this order.
var wanted = []string{"broker", "python", "go", "c", "c build", "command line"}

// blocks cuts the marked blocks out of a page. The fence must follow its mark at once:
// a mark that runs nothing is an error, as are missing, doubled and unknown ones.
func blocks(page string, wanted ...string) (map[string]string, error) {
	found, order := map[string]string{}, []string{}
	lines := strings.Split(page, "\n")
	for i := 0; i < len(lines); i++ {
		mark, marked := strings.CutPrefix(lines[i], "<!-- run: ")
		if !marked {
			continue
		}
		mark, marked = strings.CutSuffix(mark, " -->")
		if !marked || i+1 == len(lines) || !strings.HasPrefix(lines[i+1], "```") {
			return nil, fmt.Errorf("line %d, %q: expected `<!-- run: NAME -->` and the block's fence in the next line", i+1, lines[i])
		}
		end := slices.Index(lines[i+2:], "```")
		if end < 1 {
			return nil, fmt.Errorf("line %d: block %q is empty or has no end", i+2, mark)
		}
		found[mark] = strings.Join(lines[i+2:i+2+end], "\n") + "\n"
		order = append(order, mark)
		i += 2 + end
	}
	if !slices.Equal(order, wanted) {
		return nil, fmt.Errorf("the marked blocks are %q: expected %q", order, wanted)
	}
	return found, nil
}

// A page that lost a block must not pass for one whose blocks all ran.
func TestBlockMissingDoubledUnknownEmptyOrUnfencedIsAnError(t *testing.T) {
	block := func(mark, body string) string { return "<!-- run: " + mark + " -->\n```x\n" + body + "```\n" }
	page := func(marks ...string) (text string) {
		for _, mark := range marks {
			text += "words\n\n" + block(mark, mark+" 1\n\n"+mark+" 2\n")
		}
		return text
	}
	got, err := blocks(page(wanted...)+"```sh\nnot marked\n```\n", wanted...)
	require.NoError(t, err)
	require.Len(t, got, len(wanted))
	require.Equal(t, "go 1\n\ngo 2\n", got["go"])

	for name, bad := range map[string]string{
		"missing":      page(wanted[1:]...),
		"doubled":      page(append(slices.Clone(wanted), "c build")...),
		"unknown":      page(append(slices.Clone(wanted), "fortran")...),
		"order":        page("python", "broker", "go", "c", "c build", "command line"),
		"empty":        strings.Replace(page(wanted...), "go 1\n\ngo 2\n", "", 1),
		"no fence":     strings.Replace(page(wanted...), "<!-- run: go -->\n", "<!-- run: go -->\n\n", 1),
		"no end":       strings.TrimSuffix(page(wanted...), "```\n"),
		"misspelt end": strings.Replace(page(wanted...), "<!-- run: go -->", "<!-- run: go ->", 1),
	} {
		_, err := blocks(bad, wanted...)
		require.Error(t, err, name)
	}
}
