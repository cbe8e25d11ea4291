package snapshot

import (
	"sync/atomic"

	"callboard/protocol"
	"callboard/tensor"
)

// Column is what a reader knows of one column. It never changes and stays valid as
// long as its Reader.
type Column struct {
	// Index is the column's index, Name and NameID its attribute's name.
	Index  uint32
	Name   string
	NameID uint64
	// Schema is what the rows are; RowBytes the size of one in a version's block.
	Schema   tensor.Schema
	RowBytes uint64
	// Unreadable is why this library cannot read the column, nil if it can: a later
	// broker may have kinds that it does not know. Other columns stay readable.
	Unreadable error

	entry *protocol.AttributeEntry
	chain atomic.Pointer[[]*protocol.SlotPage] // pages found so far; a chain only grows
}

// ColumnCounters are a column's running totals, for display.
type ColumnCounters struct {
	Versions, Adopted, Scattered, AdoptRefused, CopiedBytes uint64
}

// Counters reads the column's running totals.
func (c *Column) Counters() ColumnCounters {
	return ColumnCounters{Versions: atomic.LoadUint64(&c.entry.VersionCount), Adopted: atomic.LoadUint64(&c.entry.AdoptedCount),
		Scattered: atomic.LoadUint64(&c.entry.ScatteredCount), AdoptRefused: atomic.LoadUint64(&c.entry.AdoptRefusedCount),
		CopiedBytes: atomic.LoadUint64(&c.entry.CopiedBytes)}
}

// Retain is how many versions stay readable now; a declaration may change it.
func (c *Column) Retain() uint32 { return atomic.LoadUint32(&c.entry.Retain) }

// Handoff is protocol.HandoffAdopt or HandoffCopy, as it is now.
func (c *Column) Handoff() uint32 { return atomic.LoadUint32(&c.entry.Handoff) }

// columnTable is an immutable list of the columns found so far.
type columnTable struct {
	list   []*Column
	byName map[string][]*Column
}

// Columns gives the columns of an attribute's name: none when nobody wrote or
// declared it, more than one when it has several schemas (rule L6). The slice is
// shared; do not change it. A warm call takes no lock and no memory.
func (r *Reader) Columns(name string) ([]*Column, error) {
	t, err := r.columns()
	if err != nil {
		return nil, err
	}
	return t.byName[name], nil
}

// AllColumns gives every column but the floors', by index. The slice is shared.
func (r *Reader) AllColumns() ([]*Column, error) {
	t, err := r.columns()
	if err != nil || len(t.list) == 0 {
		return nil, err
	}
	return t.list[1:], nil
}

// columns is the table, brought up to the directory's count.
func (r *Reader) columns() (*columnTable, error) {
	t := r.table.Load()
	if atomic.LoadUint32(&r.root.AttributeCount) <= uint32(len(t.list)) {
		return t, nil
	}
	r.growing.Lock()
	defer r.growing.Unlock()
	t = r.table.Load()
	count := atomic.LoadUint32(&r.root.AttributeCount)
	if count <= uint32(len(t.list)) {
		return t, nil
	}
	grown := &columnTable{list: t.list[:len(t.list):len(t.list)], byName: map[string][]*Column{}}
	for _, c := range t.list {
		grown.add(c)
	}
	for i := uint32(len(t.list)); i < count; i++ {
		c, err := r.readColumn(i)
		if err != nil {
			return nil, err
		}
		grown.list = append(grown.list, c)
		grown.add(c)
	}
	r.table.Store(grown)
	return grown, nil
}

func (t *columnTable) add(c *Column) {
	if c.Index != protocol.FloorColumn {
		t.byName[c.Name] = append(t.byName[c.Name], c)
	}
}

// readColumn reads the entry of a column once; the count says that it is complete.
func (r *Reader) readColumn(i uint32) (*Column, error) {
	e, err := entry[protocol.AttributeEntry](r, "attribute", protocol.AttributePageBase, r.root.AttributePages[:], uint64(i))
	if err != nil {
		return nil, err
	}
	if state := atomic.LoadUint32(&e.State); state != protocol.AttributeLive {
		return nil, corrupt("column %d of %d has state %d, expected %d", i, atomic.LoadUint32(&r.root.AttributeCount), state, protocol.AttributeLive)
	}
	c := &Column{Index: i, NameID: e.NameID, RowBytes: e.RowBytes, entry: e}
	c.chain.Store(&[]*protocol.SlotPage{})
	if i == protocol.FloorColumn {
		c.Name = floorName
		return c, nil
	}
	if c.Name, err = r.Text(c.NameID); err != nil {
		return nil, corrupt("column %d: its name: %v", i, err)
	}
	wire := e.Schema
	schema, rowBytes, err := schemaOf(&wire)
	c.Schema = schema
	switch {
	case err != nil:
		c.Unreadable = named(c.Name, err)
	case rowBytes != c.RowBytes:
		return nil, corrupt("attribute %q: a row of %s has %d bytes in a block, its entry says %d", c.Name, schema.String(), rowBytes, c.RowBytes)
	}
	return c, nil
}

// slotPage is page n of the column's chain; nil when the chain is shorter.
func (r *Reader) slotPage(c *Column, n int) (*protocol.SlotPage, error) {
	if chain := *c.chain.Load(); n < len(chain) {
		return chain[n], nil
	}
	r.growing.Lock()
	defer r.growing.Unlock()
	chain := *c.chain.Load()
	for n >= len(chain) {
		ref := &c.entry.SlotPages
		if len(chain) > 0 {
			ref = &chain[len(chain)-1].Next
		}
		place := loadRef(ref)
		if place.Segment == 0 {
			return nil, nil
		}
		page, err := view[protocol.SlotPage](r, place, "a page of version slots")
		if err != nil {
			return nil, err
		}
		// A page states its place, so a chain cannot lead astray or in a circle.
		if want := uint64(len(chain)) * protocol.SlotsPerPage; page.Attribute != uint64(c.Index) || page.FirstSlot != want {
			return nil, corrupt("column %d: page %d of its slots says column %d, first slot %d; expected first slot %d", c.Index, len(chain), page.Attribute, page.FirstSlot, want)
		}
		chain = append(chain[:len(chain):len(chain)], page)
		c.chain.Store(&chain)
	}
	return chain[n], nil
}
