package snapshot

import (
	"callboard/protocol"
)

// Floors are the write floors of one epoch (rule V9). They are valid as long as
// the pin that they were found under.
type Floors struct {
	// Epoch is the epoch that they are of; 0 before the first seal, when all are 0.
	Epoch uint64
	// Global is the lowest floor of all known attributes (behaviour 112).
	Global uint64
	// Default is the floor of every name without one of its own (behaviour 114).
	Default uint64
	// StampNs is the time of the seal in ns, the application's or the broker's.
	StampNs uint64

	reader *Reader
	rows   []protocol.FloorRow
}

// Floors gives the floors at the pinned epoch.
func (p *Pinned) Floors() (Floors, error) {
	if p.epoch == 0 {
		return Floors{reader: p.reader}, nil
	}
	data, head := p.floors.Data, sizeOf[protocol.FloorTable]()
	if uint64(len(data)) < head {
		return Floors{}, corrupt("the floors of epoch %d have %d bytes, at least %d are expected", p.epoch, len(data), head)
	}
	table, err := viewIn[protocol.FloorTable](data, 0, 1)
	if err != nil {
		return Floors{}, err
	}
	count := table[0].Count
	if count > (uint64(len(data))-head)/sizeOf[protocol.FloorRow]() {
		return Floors{}, corrupt("the floors of epoch %d have %d bytes: %d rows do not fit", p.epoch, len(data), count)
	}
	rows, err := viewIn[protocol.FloorRow](data, head, int(count))
	if err != nil {
		return Floors{}, err
	}
	return Floors{Epoch: p.epoch, Global: table[0].GlobalFloor, Default: table[0].DefaultFloor, StampNs: table[0].StampNs, reader: p.reader, rows: rows}, nil
}

// Of is the floor of a name's token id.
func (f *Floors) Of(nameID uint64) uint64 {
	for i := range f.rows {
		if f.rows[i].NameID == nameID {
			return f.rows[i].Floor
		}
	}
	return f.Default
}

// OfName is the floor of a name, known or not.
func (f *Floors) OfName(name string) (uint64, error) {
	columns, err := f.reader.Columns(name)
	if err != nil {
		return 0, err
	}
	if len(columns) > 0 {
		return f.Of(columns[0].NameID), nil
	}
	// A name may have been sealed before anybody wrote it; then only its row tells.
	for i := range f.rows {
		text, err := f.reader.Text(f.rows[i].NameID)
		if err != nil {
			return 0, corrupt("the floor of a name: %v", err)
		}
		if text == name {
			return f.rows[i].Floor, nil
		}
	}
	return f.Default, nil
}

// WriteFloor is the floor of a name at the newest epoch.
func (r *Reader) WriteFloor(name string) (uint64, error) {
	var p Pinned
	if err := r.Pin(&p); err != nil {
		return 0, err
	}
	defer p.Release()
	f, err := p.Floors()
	if err != nil {
		return 0, err
	}
	return f.OfName(name)
}

// Names gives the names that have a floor of their own, by token id.
func (f *Floors) Names(yield func(nameID, floor uint64)) {
	for i := range f.rows {
		yield(f.rows[i].NameID, f.rows[i].Floor)
	}
}
