package snapshot

import (
	"maps"
	"slices"

	"callboard/protocol"
	"callboard/ring"

	"github.com/stretchr/testify/require"
)

// attachReader gives the history a reader of its own.
func (h *history) attachReader() {
	l, err := ring.NewLayout(1, 1, 64, 1, 1)
	require.NoError(h.t, err)
	mem := make([]byte, l.TotalBytes)
	table, err := ring.NewPinTable(mem, l)
	require.NoError(h.t, err)
	pins, err := ring.NewPins(mem, l)
	require.NoError(h.t, err)
	h.pinned = channelPins{h.t, pins}
	h.store.AddPins(h.pinned)
	h.reader, err = NewReader(h.root, func(id uint64) ([]byte, error) {
		if seg := h.memory.Segment(id); seg != nil {
			return seg.Bytes, nil
		}
		return nil, protocol.Errorf(protocol.StatusNotFound, "no segment %d", id)
	}, table)
	require.NoError(h.t, err)
	h.list = NewPrimList(h.prims)
}

func (h *history) readerColumns() []*Column {
	columns, err := h.reader.AllColumns()
	require.NoError(h.t, err)
	return columns
}

// readRows are a version's rows by prim, through a row map.
func (h *history) readRows(p *Pinned, v *Version, m *RowMap) map[uint64]naiveRow {
	got := map[uint64]naiveRow{}
	if v.Column.IsArray() {
		rows, err := p.Ragged(v, m)
		require.NoError(h.t, err)
		for i, prim := range m.Prims {
			got[prim] = naiveRow{string(rows[i]), v.RowOrdinal(m.Rows[i])}
		}
		return got
	}
	data := v.Data
	if v.DeviceNumber != 0 {
		require.Nil(h.t, data)
		require.False(h.t, v.Void)
		data = h.content(v.Block.Segment, v.Block.OffsetBytes, v.Block.LengthBytes)
	}
	for i, prim := range m.Prims {
		row := m.Rows[i]
		got[prim] = naiveRow{string(data[uint64(row)*v.Column.RowBytes:][:v.Column.RowBytes]), v.RowOrdinal(row)}
	}
	return got
}

// checkMirror: rule C5. A version's rows in other memory are its rows.
func (h *history) checkMirror(v *Version, want map[uint64]naiveRow, rows *RowMap) {
	number := uint32(h.lazy.IntN(1 + len(h.fakes.devices)))
	if v.Column.IsArray() {
		return
	}
	var place protocol.MirrorResults
	_, err := h.run(func() (Outcome, *Job, error) {
		var job *Job
		var err error
		place, job, err = h.store.Mirror(v.Column.Index, v.Birth, number)
		return Outcome{}, job, err
	})
	if err == nil && place.Block.Segment == 0 {
		place, _, err = h.store.Mirror(v.Column.Index, v.Birth, number)
	}
	require.NoError(h.t, err)
	require.Equal(h.t, v.Block.LengthBytes, place.Block.LengthBytes)
	if v.Rows == 0 {
		return
	}
	require.Equal(h.t, number, place.DeviceNumber)
	data := h.content(place.Block.Segment, place.Block.OffsetBytes, place.Block.LengthBytes)
	for i, prim := range rows.Prims {
		require.Equal(h.t, want[prim].Value, string(data[uint64(rows.Rows[i])*v.Column.RowBytes:][:v.Column.RowBytes]))
	}
}

// checkDelta: rule O6, behaviour 127, 133, 144, 151. What changed between a remembered
// epoch and now, put on top of what was read then, is what is there now; and nothing
// else is in it.
func (h *history) checkDelta() {
	then, now := h.naive.epochs[1+h.lazy.Uint64N(h.naive.epoch)], h.naive.epochs[h.naive.epoch]
	var p Pinned
	require.NoError(h.t, h.reader.PinAll(&p))
	defer p.Release()
	for _, column := range h.readerColumns() {
		since := then.floor(column.Name)
		v, err := p.Find(column)
		require.NoError(h.t, err)
		if v.Column == nil {
			require.Nil(h.t, now.rows[column.Index])
			continue
		}
		if v.Void {
			continue
		}
		rows, err := h.reader.Rows(h.list, &v)
		require.NoError(h.t, err)
		require.Equal(h.t, now.rows[column.Index], h.readRows(&p, &v, rows))
		if h.lazy.IntN(8) == 0 {
			h.checkMirror(&v, now.rows[column.Index], rows)
		}
		if column.Frontier() > since { // a device's rows were lost since (rule B3)
			_, err := h.reader.Tombstones(h.list, column, p.Epoch(), since, protocol.Infinite)
			requireStatus(h.t, protocol.StatusOutOfRange, err)
			continue
		}
		changed := h.readRows(&p, &v, rows.Changed(&v, since))
		stones, err := h.reader.Tombstones(h.list, column, p.Epoch(), since, protocol.Infinite)
		require.NoError(h.t, err)

		want, gone := map[uint64]naiveRow{}, map[uint64]uint64{}
		for prim, row := range now.rows[column.Index] {
			if row.Ordinal > since {
				want[prim] = row
			}
		}
		require.Equal(h.t, want, changed, "changes of %s after %d", column.Name, since)
		for prim, ordinal := range now.deleted[column.Index] {
			if ordinal > since {
				gone[prim] = ordinal
			}
		}
		got := map[uint64]uint64{}
		replay := maps.Clone(then.rows[column.Index])
		if replay == nil {
			replay = map[uint64]naiveRow{}
		}
		for i, stone := range stones {
			got[stone.Prim] = stone.Ordinal
			delete(replay, stone.Prim)
			require.Equal(h.t, h.prims[stone.Element], stone.Prim)
			require.True(h.t, i == 0 || stones[i-1].Element < stone.Element)
		}
		require.Equal(h.t, gone, got, "deletes of %s after %d", column.Name, since)
		maps.Copy(replay, changed)
		require.Equal(h.t, now.rows[column.Index], replay, "%s: what was there and what changed", column.Name)
	}
}

// checkAsOf: rules O4 and V5; behaviour 123, 131, 158. A read as of an ordinal is
// exactly that state, or a refusal that says why.
func (h *history) checkAsOf() {
	for _, column := range h.readerColumns() {
		c := h.naive.columns[column.Index-1]
		floor := h.naive.floor(column.Name)
		at := floor - min(floor, h.lazy.Uint64N(8))
		if h.lazy.IntN(10) == 0 {
			at = floor + 1
		}
		var p Pinned
		err := h.reader.PinAt(&p, AsOf(at), column)
		if at > floor {
			requireStatus(h.t, protocol.StatusFloorViolation, err)
			continue
		}
		if err == nil && h.store.columns[column.Index].lost { // until the first epoch of the new life: gone, or without rows
			require.True(h.t, p.Version(0).Column == nil || p.Version(0).Void || p.Version(0).Rows == 0)
			p.Release()
			continue
		}
		birth, exact := c.asOf(at)
		if birth == 0 && err == nil {
			require.Nil(h.t, p.Version(0).Column, "nothing was there")
			p.Release()
			continue
		}
		if !exact || birth == 0 || !h.known(c, birth) {
			if err != nil {
				requireStatus(h.t, protocol.StatusOutOfRange, err)
				continue
			}
			require.True(h.t, exact, "ordinals sealed at once have no state between them")
		}
		require.NoError(h.t, err, "attribute %s as of %d of %d", column.Name, at, floor)
		v := p.Version(0)
		rows, err := h.reader.Rows(h.list, v)
		require.NoError(h.t, err)
		require.Equal(h.t, h.naive.epochs[birth].rows[column.Index], h.readRows(&p, v, rows), "attribute %s as of %d", column.Name, at)
		if h.lazy.IntN(4) == 0 { // it is held while others come and go
			h.views = append(h.views, &heldView{naive: h.naive.epochs[birth].rows[column.Index], pinned: &p, life: h.header().StartedNs})
			continue
		}
		p.Release()
	}
}

// heldView is a read as of an ordinal that somebody goes on looking at.
type heldView struct {
	naive  map[uint64]naiveRow
	pinned *Pinned
	life   uint64
}

func (h *history) checkViews() {
	for _, view := range h.views {
		v := view.pinned.Version(0)
		rows, err := h.reader.Rows(h.list, v)
		require.NoError(h.t, err)
		if v.DeviceNumber != 0 && view.life != h.header().StartedNs { // the rows are gone, but not which prims they were of
			require.Len(h.t, rows.Prims, len(view.naive))
			continue
		}
		require.Equal(h.t, view.naive, h.readRows(view.pinned, v, rows), "a held read")
	}
	for len(h.views) > 3 || len(h.views) > 0 && h.lazy.IntN(10) == 0 {
		h.views[0].pinned.Release()
		h.views = slices.Delete(h.views, 0, 1)
	}
}

// known tells whether a version and the one after it are retained.
func (h *history) known(c *naiveColumn, birth uint64) bool { return h.retained(c, birth) }
