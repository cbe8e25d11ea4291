package snapshot

import (
	"strings"
	"sync/atomic"

	"callboard/protocol"
)

// Text resolves a path or token id (rule L3). NOT_FOUND: the id is 0, of another
// generation, or was never given out.
func (r *Reader) Text(id uint64) (string, error) {
	i, ok := protocol.StringIndex(r.root.IdentityTag, id)
	if count := atomic.LoadUint64(&r.root.StringCount); !ok || i >= count {
		return "", protocol.Errorf(protocol.StatusNotFound, "id %#x: no string of this stage has it; ids are those of one generation of the stage (tag %#x, %d strings) and never 0",
			id, r.root.IdentityTag, count)
	}
	e, err := entry[protocol.StringEntry](r, "string", protocol.StringPageBase, r.root.StringPages[:], i)
	if err != nil {
		return "", err
	}
	length, hash := e.LengthBytes, e.Hash
	if length > protocol.PathBytesMax {
		return "", corrupt("string %d is %d bytes long, at most %d are possible", i, length, protocol.PathBytesMax)
	}
	raw, err := r.block(e.Bytes, uint64(length), "a string")
	if err != nil {
		return "", err
	}
	text := string(raw)
	if got := protocol.HashString(text); got != hash {
		return "", corrupt("string %d has hash %#x, its entry says %#x", i, got, hash)
	}
	return text, nil
}

// CheckName refuses what cannot be the name of an attribute that clients write:
// names that are no token, and the reserved ones, which start with "@".
func CheckName(name string) error {
	if strings.HasPrefix(name, "@") {
		return protocol.Errorf(protocol.StatusNotSupported, "attribute %q: names that start with @ are reserved", name)
	}
	return checkText(protocol.StringToken, name)
}

// CheckPath refuses what cannot be a prim's path.
func CheckPath(path string) error { return checkText(protocol.StringPath, path) }
