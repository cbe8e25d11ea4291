package snapshot

import (
	"callboard/protocol"
)

// table is a doubling table of the directory: page k holds base<<k entries.
type table struct {
	store *Store
	base  uint64
	size  uint64         // bytes of an entry
	refs  []protocol.Ref // in the directory's root
	pages [][]byte
}

// entry is the bytes of entry i; it makes the page when it is missing. A new page
// is zeros before its place is published.
func (t *table) entry(i uint64) ([]byte, error) {
	page, place := protocol.PagePlace(t.base, i)
	if page >= len(t.refs) {
		return nil, protocol.Errorf(protocol.StatusLimit, "a table of the directory is full: entry %d needs page %d of %d", i, page, len(t.refs))
	}
	for len(t.pages) <= page {
		b, err := t.store.metadata(t.size * t.base << len(t.pages))
		if err != nil {
			return nil, err
		}
		clear(b.Bytes)
		ref := &t.refs[len(t.pages)]
		store64(&ref.OffsetBytes, b.Ref.OffsetBytes)
		store64(&ref.Segment, b.Ref.Segment)
		t.pages = append(t.pages, b.Bytes)
	}
	return t.pages[page][place*t.size:][:t.size:t.size], nil
}
