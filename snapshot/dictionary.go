package snapshot

import (
	"strings"
	"unicode/utf8"

	"callboard/protocol"
)

// dictionary interns paths and tokens. Texts lie in metadata blocks for ever;
// readers resolve ids without asking (rule L3).
type dictionary struct {
	store *Store
	table table
	ids   [2]map[string]uint64 // by sort
	texts []string             // by index
	block []byte               // the block that texts are appended to
	place protocol.Ref         // where block[0] lies
	used  uint64
	made  int // blocks that texts lie in
}

const textBlockBytes = 64 << 10

// intern gives the id of a text, which is the same for the same text and sort as
// long as the generation lives (behaviour 248).
func (d *dictionary) intern(sort uint32, text string) (uint64, error) {
	byText := d.ids[sort-protocol.StringToken]
	if id, ok := byText[text]; ok {
		return id, nil
	}
	if err := checkText(sort, text); err != nil {
		return 0, err
	}
	i := uint64(len(d.texts))
	raw, err := d.table.entry(i)
	if err != nil {
		return 0, err
	}
	if uint64(len(text)) > uint64(len(d.block))-d.used {
		b, err := d.store.metadata(max(textBlockBytes, uint64(len(text))))
		if err != nil {
			return 0, err
		}
		d.block, d.used = b.Bytes, 0
		d.made++
		d.place = protocol.Ref{Segment: b.Ref.Segment, OffsetBytes: b.Ref.OffsetBytes}
	}
	copy(d.block[d.used:], text)
	e := at[protocol.StringEntry](raw, 0)
	e.Bytes = protocol.Ref{Segment: d.place.Segment, OffsetBytes: d.place.OffsetBytes + d.used}
	e.LengthBytes, e.Sort, e.Hash = uint32(len(text)), sort, protocol.HashString(text)
	d.used += uint64(len(text))
	text = strings.Clone(text)
	d.texts = append(d.texts, text)
	id := protocol.StringID(d.store.root.IdentityTag, i)
	byText[text] = id
	store64(&d.store.root.StringCount, i+1)
	return id, nil
}

// text is the inverse of intern; ok is false for an id that was never given out.
func (d *dictionary) text(id uint64) (text string, ok bool) {
	i, ok := protocol.StringIndex(d.store.root.IdentityTag, id)
	if !ok || i >= uint64(len(d.texts)) {
		return "", false
	}
	return d.texts[i], true
}

// checkText refuses texts that are no path or no token, and says why.
func checkText(sort uint32, text string) error {
	kind, limit := "token", protocol.NameBytesMax
	if sort == protocol.StringPath {
		kind, limit = "path", protocol.PathBytesMax
	}
	bad := func(why string) error {
		shown := text
		if len(shown) > 80 {
			shown = shown[:80] + "…"
		}
		return protocol.Errorf(protocol.StatusInvalidArgument, "%s %q is not valid: %s", kind, shown, why)
	}
	switch {
	case text == "":
		return bad("it is empty")
	case len(text) > limit:
		return protocol.Errorf(protocol.StatusInvalidArgument, "%s of %d bytes is longer than %d bytes", kind, len(text), limit)
	case !utf8.ValidString(text):
		return bad("it is not UTF-8")
	case strings.ContainsRune(text, 0):
		return bad("it holds a NUL byte")
	case sort != protocol.StringPath || text == "/":
		return nil
	case text[0] != '/':
		return bad(`it does not start with "/"`)
	case strings.HasSuffix(text, "/"):
		return bad(`it ends with "/"`)
	case strings.Contains(text, "//"):
		return bad(`it has an empty component ("//")`)
	}
	return nil
}
