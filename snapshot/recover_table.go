package snapshot

import (
	"callboard/protocol"
)

// have is the bytes of entry i, if its page is there.
func (t *table) have(i uint64) ([]byte, bool) {
	page, place := protocol.PagePlace(t.base, i)
	if page >= len(t.pages) {
		return nil, false
	}
	return t.pages[page][place*t.size:][:t.size:t.size], true
}

// room is how many entries the table's pages hold.
func (t *table) room() uint64 { return t.base<<len(t.pages) - t.base }

// readTable finds a table's pages. They are published at once, not by a seal: what is
// there now is what counts.
func (r *recovery) readTable(t *table, what string) error {
	for i := range t.refs {
		if t.refs[i].Segment == 0 {
			continue
		}
		if i > len(t.pages) {
			return corrupt("%s has page %d, and no page %d", what, i, len(t.pages))
		}
		page, err := r.claimTable(what, t.refs[i], t.size*t.base<<i)
		if err != nil {
			return err
		}
		t.pages = append(t.pages, page)
	}
	return nil
}

// readRecords chooses the record that is believed: the newest valid one. A seal stores
// its record before the epoch word, and the next seal writes the other one, so it is of
// the epoch that the word says, or of the one after that.
func (r *recovery) readRecords() error {
	records := &r.store.records
	for k := range records.tables {
		if err := r.readTable(&records.tables[k], "a recovery record"); err != nil {
			return err
		}
	}
	r.record = -1
	for k := range records.headers {
		if h := &records.headers[k]; r.valid(k) && h.Epoch > r.epoch {
			r.record, r.epoch = k, h.Epoch
		}
	}
	shown := r.root.Epoch
	if r.record < 0 {
		if shown != 0 || records.headers[0].Checksum != 0 || records.headers[1].Checksum != 0 {
			return corrupt("it shows epoch %d, and neither recovery record is valid", shown)
		}
		return nil // nothing was ever sealed
	}
	if r.epoch != shown && r.epoch-1 != shown {
		return corrupt("it shows epoch %d, and its newest valid recovery record is of epoch %d", shown, r.epoch)
	}
	h := &records.headers[r.record]
	if h.AttributeCount > uint64(r.root.AttributeCount) || h.StringCount > r.root.StringCount || h.SegmentCount > r.root.SegmentCount {
		return corrupt("it counts %d attributes, %d strings and %d segments, its recovery record %d, %d and %d", r.root.AttributeCount, r.root.StringCount,
			r.root.SegmentCount, h.AttributeCount, h.StringCount, h.SegmentCount)
	}
	t := &records.tables[r.record]
	r.entries = make([]protocol.RecordEntry, h.EntryCount)
	for i := range r.entries {
		raw, _ := t.have(uint64(i))
		r.entries[i] = *at[protocol.RecordEntry](raw, 0)
	}
	r.store.layoutGeneration = h.LayoutGeneration
	return nil
}

// valid tells whether record k was completed: its checksum is over the header, and by
// EntrySum over all entries.
func (r *recovery) valid(k int) bool {
	h, t := &r.store.records.headers[k], &r.store.records.tables[k]
	if h.Checksum != protocol.RecordChecksum(h) || h.Epoch%2 != uint64(k) || h.Epoch == 0 || h.EntryCount > t.room() {
		return false
	}
	sum := uint64(0)
	for i := range h.EntryCount {
		raw, _ := t.have(i)
		sum += protocol.RecordEntryHash(i, at[protocol.RecordEntry](raw, 0))
	}
	return sum == h.EntrySum
}

// entry is what the record says of slot number i, all zero where it says nothing.
func (r *recovery) entry(i uint64) protocol.RecordEntry {
	if i < uint64(len(r.entries)) {
		return r.entries[i]
	}
	return protocol.RecordEntry{}
}

// checkOwned refuses a record that tells of slots that are not there.
func (r *recovery) checkOwned() error {
	for i := range r.entries {
		if e := &r.entries[i]; e.Birth != 0 && !r.owned[i] {
			return corrupt("entry %d of its recovery record is of column %d, slot %d, which is not there", i, e.AttributeSlot>>32, uint32(e.AttributeSlot))
		}
	}
	return nil
}

// planRecords says what the next seals write into the records: the one that was not
// recovered from comes next, since its turn goes by the epoch, and may hold anything.
func (r *recovery) planRecords() {
	records := &r.store.records
	records.wanted = make([]protocol.RecordEntry, len(r.owned))
	copy(records.wanted, r.entries)
	for k := range records.tables {
		records.marked[k] = make([]bool, len(records.wanted))
		for i := range records.wanted {
			raw, _ := records.tables[k].have(uint64(i))
			e := at[protocol.RecordEntry](raw, 0)
			records.sums[k] += protocol.RecordEntryHash(uint64(i), e)
			if *e != records.wanted[i] {
				records.marked[k][i] = true
				records.dirty[k] = append(records.dirty[k], uint64(i))
			}
		}
	}
}

// readStrings makes the dictionary anew. Strings are valid as soon as they are counted,
// whatever was sealed: ids were given out (rule L3).
func (r *recovery) readStrings() error {
	d := &r.store.dictionary
	if err := r.readTable(&d.table, "the table of strings"); err != nil {
		return err
	}
	for i := range r.root.StringCount {
		raw, ok := d.table.have(i)
		if !ok {
			return corrupt("it counts %d strings, and its table of strings ends before %d", r.root.StringCount, i)
		}
		e := at[protocol.StringEntry](raw, 0)
		if e.Sort != protocol.StringToken && e.Sort != protocol.StringPath || e.LengthBytes > protocol.PathBytesMax {
			return corrupt("string %d is of sort %d and %d bytes", i, e.Sort, e.LengthBytes)
		}
		bytes, err := r.bytes("a string", e.Bytes.Segment, e.Bytes.OffsetBytes, uint64(e.LengthBytes))
		if err != nil {
			return err
		}
		text := string(bytes)
		if protocol.HashString(text) != e.Hash || checkText(e.Sort, text) != nil {
			return corrupt("string %d has hash %#x, its entry says %#x, or it is no valid text", i, protocol.HashString(text), e.Hash)
		}
		ids := d.ids[e.Sort-protocol.StringToken]
		if id, twice := ids[text]; twice {
			return corrupt("string %d is %q, as is the one with id %#x", i, text, id)
		}
		ids[text] = protocol.StringID(r.root.IdentityTag, i)
		d.texts = append(d.texts, text)
		if n := len(r.texts); n > 0 && r.texts[n-1].segment == e.Bytes.Segment && r.texts[n-1].offset+r.texts[n-1].length == e.Bytes.OffsetBytes {
			r.texts[n-1].length += uint64(e.LengthBytes)
			continue
		}
		r.texts = append(r.texts, extent{e.Bytes.Segment, e.Bytes.OffsetBytes, uint64(e.LengthBytes)})
	}
	texts := widen(r.texts)
	for _, e := range texts {
		if _, _, err := r.claim("the texts of strings", e.segment, e.offset, e.length, pieceText); err != nil {
			return err
		}
	}
	d.made = len(texts)
	return nil
}

// isString tells whether an id is that of a string of a sort.
func (r *recovery) isString(id uint64, sort uint32) bool {
	text, ok := r.store.dictionary.text(id)
	return ok && r.store.dictionary.ids[sort-protocol.StringToken][text] == id
}
