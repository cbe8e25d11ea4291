package snapshot

import (
	"callboard/fault"
	"callboard/protocol"
)

// attribute is a name: one column for each schema that its prims carry (rule L6).
type attribute struct {
	name    string
	id      uint64
	columns []*column
}

// column is one schema of one attribute.
type column struct {
	index     uint32
	name      string
	nameID    uint64
	attribute *attribute // nil for the floors
	schema    protocol.Schema
	rowBytes  uint64  // of an array column: of a RowRef
	device    *Device // where the rows lie; nil: on the host, or on a device that is not there in this life
	retain    int
	handoff   uint32
	entry     *protocol.AttributeEntry

	slots     []slot
	lastPage  *protocol.SlotPage
	freeSlots []int      // places in slots, ready for the next version
	versions  []*version // not yet reclaimed, oldest first; the last one is published
	excess    bool       // in Store.excess
	lost      bool       // its rows went with another life, which no epoch has shown yet
	hard      bool       // what only retention keeps may go as well
	cache     *version   // a reclaimed one, for the next seal
	layout    *layout    // of the last version; nil before the first

	pending    []*capture       // unsealed, by ordinal, then as accepted (rule O1)
	about      byPrim[*capture] // of pending, but for
	unindexed  []*capture       // those that nobody has looked for by prim yet
	log        [logVersions]changed
	due        due
	spares     []spare
	lags       bool // in Store.lagging
	tombstones tombstones
	ragged     *ragged // of an array column
}

// slot is one VersionSlot of the column's chain.
type slot struct {
	shared *protocol.VersionSlot
	record uint64 // its index in the recovery records
}

// version is one published state.
type version struct {
	slot         int
	birth, death uint64
	block        *Block
	ordinals     *Block // a uint64 for each row; nil: all rows are of ordinal highest
	layoutBlock  *Block
	rows         uint64
	generation   uint64 // of the layout
	lowest       uint64
	highest      uint64
	sequence     uint64 // counts the column's versions from 1
	adopted      bool
	data         []*dataBlock // of an array column: those that no newer version refers to
	mirrors      []mirror
}

func (c *column) latest() *version {
	if len(c.versions) == 0 {
		return nil
	}
	return c.versions[len(c.versions)-1]
}

// sequence is how many versions the column has had.
func (c *column) sequence() uint64 {
	if v := c.latest(); v != nil {
		return v.sequence
	}
	return 0
}

// findColumn finds the first column of a name; nil when nobody wrote or declared it.
func (s *Store) findColumn(name string) *column {
	if a := s.byName[name]; a != nil {
		return a.columns[0]
	}
	return nil
}

// makeColumn adds a column. The entry is published at once, without versions.
func (s *Store) makeColumn(name string, schema protocol.Schema, rowBytes uint64, retain, handoff uint32) (*column, error) {
	nameID := uint64(0)
	if name != floorName {
		var err error
		if nameID, err = s.dictionary.intern(protocol.StringToken, name); err != nil {
			return nil, err
		}
	}
	if fault.On(fault.SemanticLost) {
		schema.Semantic = 0
	}
	c := &column{index: uint32(len(s.columns)), name: name, nameID: nameID, schema: schema, rowBytes: rowBytes, retain: int(retain), handoff: handoff}
	if schema.Kind == protocol.KindArray {
		c.ragged = &ragged{}
	}
	if c.onDevice() {
		var err error
		if c.device, err = s.device("device", schema.DeviceType, schema.DeviceID); err != nil {
			return nil, err
		}
	}
	raw, err := s.attributes.entry(uint64(c.index))
	if err != nil {
		return nil, err
	}
	if err := s.growSlots(c); err != nil {
		return nil, err
	}
	e := at[protocol.AttributeEntry](raw, 0)
	e.NameID, e.Schema, e.RowBytes, e.Retain, e.Handoff = nameID, schema, rowBytes, retain, handoff
	e.SlotPages = s.firstSlotPage
	c.entry = e
	store32(&e.State, protocol.AttributeLive)
	s.columns = append(s.columns, c)
	if name != floorName {
		if c.attribute = s.byName[name]; c.attribute == nil {
			c.attribute = &attribute{name: name, id: nameID}
			s.byName[name] = c.attribute
		}
		c.attribute.columns = append(c.attribute.columns, c)
	}
	store32(&s.root.AttributeCount, uint32(len(s.columns)))
	return c, nil
}

// growSlots adds a page of slots to the column's chain. For the first page it
// leaves the place in s.firstSlotPage.
func (s *Store) growSlots(c *column) error {
	b, err := s.metadata(sizeOf[protocol.SlotPage]())
	if err != nil {
		return err
	}
	firstRecord := s.recordSlots
	if err := s.records.reserve(firstRecord + protocol.SlotsPerPage); err != nil {
		s.memory.Drop(b)
		return err
	}
	s.recordSlots += protocol.SlotsPerPage
	clear(b.Bytes)
	page := at[protocol.SlotPage](b.Bytes, 0)
	page.Attribute, page.FirstSlot, page.FirstRecord = uint64(c.index), uint64(len(c.slots)), firstRecord
	for i := range page.Slots {
		page.Slots[i].Birth, page.Slots[i].Death = protocol.Infinite, protocol.Infinite
	}
	place := protocol.Ref{Segment: b.Ref.Segment, OffsetBytes: b.Ref.OffsetBytes}
	if c.lastPage == nil {
		s.firstSlotPage = place
	} else {
		next := &c.lastPage.Next
		store64(&next.OffsetBytes, place.OffsetBytes)
		store64(&next.Segment, place.Segment)
	}
	first := len(c.slots)
	for i := range page.Slots {
		c.slots = append(c.slots, slot{shared: &page.Slots[i], record: firstRecord + uint64(i)})
	}
	for i := protocol.SlotsPerPage - 1; i >= 0; i-- {
		c.freeSlots = append(c.freeSlots, first+i)
	}
	c.lastPage = page
	return nil
}
