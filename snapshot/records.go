package snapshot

import (
	"callboard/protocol"
)

// records keeps the two recovery records (rule B2): for every version slot that is
// not free, what a restarted broker must know. A seal writes one of them, in turn,
// and only the entries that changed since that one was last written.
type records struct {
	store   *Store
	headers *[2]protocol.RecordHeader
	tables  [2]table
	wanted  []protocol.RecordEntry // what every entry should say
	dirty   [2][]uint64            // entries that record r has not got yet
	marked  [2][]bool              // the same as a set
	sums    [2]uint64
}

func newRecords(s *Store) records {
	r := records{store: s, headers: &s.root.Records}
	for i := range r.tables {
		r.tables[i] = table{store: s, base: protocol.RecordPageBase, size: sizeOf[protocol.RecordEntry](), refs: s.root.Records[i].Pages[:]}
	}
	return r
}

// reserve makes room for n entries in both records.
func (r *records) reserve(n uint64) error {
	for uint64(len(r.wanted)) < n {
		i := uint64(len(r.wanted))
		for k := range r.tables {
			if _, err := r.tables[k].entry(i); err != nil {
				return err
			}
		}
		r.wanted = append(r.wanted, protocol.RecordEntry{})
		for k := range r.marked {
			r.marked[k] = append(r.marked[k], false)
		}
	}
	return nil
}

// set says what entry i is from now on; the next seals write it.
func (r *records) set(i uint64, e protocol.RecordEntry) {
	r.wanted[i] = e
	for k := range r.dirty {
		if !r.marked[k][i] {
			r.marked[k][i] = true
			r.dirty[k] = append(r.dirty[k], i)
		}
	}
}

// write brings the record of an epoch up to date and commits it by its checksum.
func (r *records) write(epoch uint64) {
	k := epoch % 2
	h := &r.headers[k]
	store64(&h.Checksum, 0)
	for _, i := range r.dirty[k] {
		raw, err := r.tables[k].entry(i)
		if err != nil {
			panic("snapshot: a reserved record entry is missing: " + err.Error())
		}
		e := at[protocol.RecordEntry](raw, 0)
		r.sums[k] += protocol.RecordEntryHash(i, &r.wanted[i]) - protocol.RecordEntryHash(i, e)
		*e = r.wanted[i]
		step()
		r.marked[k][i] = false
	}
	r.dirty[k] = r.dirty[k][:0]
	h.Epoch, h.EntryCount, h.EntrySum = epoch, uint64(len(r.wanted)), r.sums[k]
	h.AttributeCount, h.StringCount = uint64(len(r.store.columns)), uint64(len(r.store.dictionary.texts))
	h.SegmentCount, h.LayoutGeneration = r.store.root.SegmentCount, r.store.layoutGeneration
	step()
	store64(&h.Checksum, protocol.RecordChecksum(h))
}
