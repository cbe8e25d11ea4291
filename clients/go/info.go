package callboard

import (
	"bytes"
	"errors"
	"time"

	"callboard/snapshot"
)

// Info tells about a stage and this attachment. For people and tools.
type Info struct {
	Stage, Host                   string
	Generation, BrokerIncarnation uint64
	// Incarnation is this client's, Name the name it gave.
	Incarnation uint64
	Name        string
	Started     time.Time
	Epoch       uint64
	// MemoryBytesMax, UnsealedBytesMax and PinnedBytesMax are the stage's limits.
	MemoryBytesMax, UnsealedBytesMax, PinnedBytesMax uint64
	RetainDefault                                    uint32
	Strings, Segments                                uint64
	// Pins is how many pin slots this client has in use.
	Pins       int
	Attributes []AttributeInfo
}

// AttributeInfo tells about one column: a name has one for each of its schemas.
type AttributeInfo struct {
	Name     string
	DType    DType
	RowShape []uint64
	Semantic Semantic
	// Device is where its rows lie, by the broker's number: Info loads no driver that would
	// know this process's.
	Device Device
	// IsArray: of kind array; then RowBytes is the size of an element.
	IsArray  bool
	RowBytes uint64
	Retain   uint32
	Handoff  Handoff
	// Floor is the name's write floor.
	Floor uint64
	// Rows is the number of rows of the newest version, Ordinal its highest ordinal,
	// Birth the epoch that published it; 0 when nothing was sealed.
	Rows, Ordinal, Birth uint64
	// Versions, Adopted, Scattered and AdoptRefused count versions, CopiedBytes what
	// the broker copied for them.
	Versions, Adopted, Scattered, AdoptRefused, CopiedBytes uint64
}

// RuntimeDir is the directory where the stage was found: its socket, and the file that
// tells where its NATS is.
func (s *Stage) RuntimeDir() string { return s.client.dir }

// Info looks at the directory; no broker is involved.
func (s *Stage) Info() (Info, error) {
	c := s.client
	if err := c.enter(); err != nil {
		return Info{}, err
	}
	defer c.leave()
	d := c.reader.Directory()
	info := Info{Stage: text(d.StageName[:]), Host: text(d.HostName[:]), Generation: d.Header.Generation, BrokerIncarnation: d.BrokerIncarnation,
		Incarnation: c.identity.Incarnation, Name: c.identity.Name, Started: time.Unix(0, int64(d.StartedNs)), MemoryBytesMax: d.MemoryBytesMax,
		UnsealedBytesMax: d.UnsealedBytesMax, PinnedBytesMax: d.PinnedBytesMax, RetainDefault: d.RetainDefault, Strings: d.StringCount,
		Segments: d.SegmentCount, Pins: c.pins.InUse()}
	columns, err := c.reader.AllColumns()
	if err != nil {
		return info, asError(err)
	}
	info.Epoch = c.reader.Epoch()
	for _, column := range columns {
		a, err := c.attributeInfo(column)
		if err != nil {
			return info, err
		}
		info.Attributes = append(info.Attributes, a)
	}
	return info, nil
}

func text(b []byte) string {
	t, _, _ := bytes.Cut(b, []byte{0})
	return string(t)
}

// attributeInfo looks at one column, at an epoch of its own: all at once would be
// more than a client may pin.
func (c *client) attributeInfo(column *snapshot.Column) (AttributeInfo, error) {
	n := column.Counters()
	a := AttributeInfo{Name: column.Name, DType: column.Schema.DType, RowShape: column.Schema.RowShape, Semantic: column.Schema.Semantic, Device: column.Schema.Device,
		IsArray: column.IsArray(), RowBytes: column.RowBytes, Retain: column.Retain(), Handoff: Handoff(column.Handoff()),
		Versions: n.Versions, Adopted: n.Adopted, Scattered: n.Scattered, AdoptRefused: n.AdoptRefused, CopiedBytes: n.CopiedBytes}
	if a.IsArray {
		a.RowBytes = uint64(a.DType.Size())
	}
	h, err := c.pin(pinColumns{columns: []*snapshot.Column{column}})
	if column.Unreadable != nil || errors.Is(err, ErrLimit) {
		h, err = c.pin(pinColumns{}) // the floor at least
	}
	if err != nil {
		return a, err
	}
	defer h.release()
	floors, err := h.view.pinned.Floors()
	if err != nil {
		return a, asError(err)
	}
	a.Floor = floors.Of(column.NameID)
	if v := h.view.pinned.Versions(); len(v) > 0 {
		a.Rows, a.Ordinal, a.Birth = v[0].Rows, v[0].OrdinalHighest, v[0].Birth
	}
	return a, nil
}
