package snapshot

import (
	"bytes"
	"slices"
	"testing"

	"callboard/protocol"
	"callboard/tensor"

	"github.com/stretchr/testify/require"
)

// write4 writes rows of four bytes to a column on device 0, from host memory.
func (f *fixture) write4(name string, ordinal uint64, prims []uint64, rows string, sel tensor.Selection) error {
	_, err := f.run(func() (Outcome, *Job, error) {
		t := Target{Query: queryOf(prims...), Name: name, Schema: onDevice(bytesSchema(4), 0), Ordinal: ordinal}
		var payload []byte
		for i := range rows {
			payload = append(payload, letters(rows[i], 1, 4)...)
		}
		return f.store.Write(&t, payload, uint64(len(rows)), sel, false)
	})
	return err
}

// TestColumnsOnADevice: behaviour 18, 62–92 on a device. Dense, scattered, masked and
// indexed writes show the rows that they would show on the host, and all others stay;
// every copy is made by a Job, to the device, and none by the host (rules C4, L1).
func TestColumnsOnADevice(t *testing.T) {
	for _, retain := range []uint32{1, 3} {
		columnsOnADevice(t, newDeviceFixture(t, Config{Retain: retain}))
	}
}

func columnsOnADevice(t *testing.T, f *fixture) {
	p := f.paths(6)
	require.NoError(t, f.write4("a", 1, p, "abcdef", all))
	f.seal(1, protocol.ScopeAll)
	require.Equal(t, "abcdef", f.valuesAt("a", p))
	v := f.versionAt(1, 1)
	require.EqualValues(t, 1, v.DeviceNumber, "1 + the index (rule C1)")
	require.Equal(t, f.header().StartedNs, v.ArenaGeneration)
	segment := f.memory.Segment(v.Block.Segment)
	require.EqualValues(t, protocol.SegmentBroker|protocol.SegmentOnDevice, segment.Sort)
	require.Same(t, &f.fakes.devices[0].Device, segment.Device)

	require.NoError(t, f.write4("a", 2, []uint64{p[4], p[1]}, "xy", all))
	f.seal(2, protocol.ScopeAll)
	require.Equal(t, "aycdxf", f.valuesAt("a", p), "scattered")
	require.NoError(t, f.write4("a", 3, p, "ABCDEF", tensor.Selection{Count: 6, Mask: []uint64{0b101001}}))
	f.seal(3, protocol.ScopeAll)
	require.Equal(t, "AycDxF", f.valuesAt("a", p), "masked")
	require.NoError(t, f.write4("a", 4, p[:4], "mn", tensor.Selection{Count: 4, IndexMap: []uint32{1, 0, 0, 1}}))
	require.NoError(t, f.write4("a", 4, p[2:4], "r", tensor.Selection{Count: 1}))
	f.seal(4, protocol.ScopeAll)
	require.Equal(t, "nmrnxF", f.valuesAt("a", p), "indexed, and counted")
	require.Equal(t, map[uint64]uint64{p[0]: 4, p[1]: 4, p[2]: 4, p[3]: 4, p[4]: 2, p[5]: 3}, f.ordinalsAt(1, 4))
	f.delete(5, queryOf(p[1], p[2]), "a")
	f.seal(5, protocol.ScopeAll)
	require.Equal(t, "n..nxF", f.valuesAt("a", p))
	f.delete(6, queryOf(p...), "a")
	f.seal(6, protocol.ScopeAll)
	require.Equal(t, "......", f.valuesAt("a", p))
	require.Zero(t, f.versionAt(1, 6).DeviceNumber, "no rows lie nowhere")
	require.NoError(t, f.write4("a", 7, p[3:], "uvw", all))
	f.seal(7, protocol.ScopeAll)
	require.Equal(t, "...uvw", f.valuesAt("a", p))
	for ordinal := uint64(8); ordinal < 12; ordinal++ {
		require.NoError(t, f.write4("a", ordinal, p[4:5], "x", all))
		f.seal(ordinal, protocol.ScopeAll)
		require.Equal(t, "...uxw", f.valuesAt("a", p))
	}
	f.checkBooks()
}

// TestADeviceColumnIsCompacted: rule L2, on a device.
func TestADeviceColumnIsCompacted(t *testing.T) {
	f := newDeviceFixture(t, Config{Retain: 1})
	p := f.paths(26)
	require.NoError(t, f.write4("a", 1, p, "abcdefghijklmnopqrstuvwxyz", all))
	f.seal(1, protocol.ScopeAll)
	f.delete(2, queryOf(p[:15]...), "a")
	f.seal(2, protocol.ScopeAll)
	require.NoError(t, f.write4("a", 3, []uint64{p[20], p[3]}, "XY", all))
	f.seal(3, protocol.ScopeAll)
	require.EqualValues(t, 12, f.versionAt(1, 3).Rows)
	require.Equal(t, "...Y...........pqrstXvwxyz", f.valuesAt("a", p))
	f.checkBooks()
}

// TestADeviceColumnCatchesUp: rule O7. A block that comes back gets the rows that changed
// since, neighbours as one copy, and no others.
func TestADeviceColumnCatchesUp(t *testing.T) {
	f := newDeviceFixture(t, Config{Retain: 1, CopyInlineBytes: 1 << 30})
	p := f.paths(260)
	d := f.fakes.devices[0]
	want := letters('a', 260, 1)
	require.NoError(t, f.write4("a", 1, p, string(want), all))
	f.seal(1, protocol.ScopeAll)
	for ordinal := uint64(2); ordinal < 30; ordinal++ {
		first := int(ordinal * 7 % 240)
		rows := string(letters('A'+byte(ordinal%20), 6, 1))
		copy(want[first:], rows)
		require.NoError(t, f.write4("a", ordinal, p[first:first+6], rows, all))
		single := p[first*3%260]
		want[first*3%260] = '0' + byte(ordinal%10)
		require.NoError(t, f.write4("a", ordinal, []uint64{single}, string(want[first*3%260]), all))
		copied, lists := f.attribute(1).CopiedBytes, d.lists
		d.copies = 0
		f.seal(ordinal, protocol.ScopeAll)
		require.Equal(t, string(want), f.valuesAt("a", p), "ordinal %d", ordinal)
		require.Equal(t, lists+1, d.lists, "one call for a seal of one column")
		if ordinal > 4 {
			require.LessOrEqual(t, d.copies, 8)
			require.Less(t, f.attribute(1).CopiedBytes-copied, uint64(260*4))
			require.NotEmpty(t, f.store.findColumn("a").spares)
		}
	}
	require.Empty(t, f.store.lagging[1:])
	require.False(t, f.store.CatchUp(), "the loop copies nothing on a device")
	f.checkBooks()
}

// TestABlockOfADeviceIsAdopted: rule M1. The block of a whole column in order becomes the
// version, in the client's own arena, and is never written to: what comes on top pays a copy
// (S4).
func TestABlockOfADeviceIsAdopted(t *testing.T) {
	f := newDeviceFixture(t, Config{Retain: 2})
	p := f.paths(4)
	arena := f.memory.NewArena(protocol.SegmentClient, 7, "client", true)
	fill := func(ordinal uint64, rows string, adopt bool) Outcome {
		m, err := f.open(f, arena, Target{Query: queryOf(p...), Name: "a", Schema: onDevice(bytesSchema(4), 0), Ordinal: ordinal}, protocol.InitNone)
		require.NoError(t, err)
		g := m.Group(0)
		require.Same(t, &f.fakes.devices[0].Device, m.Device())
		require.EqualValues(t, 1, g.DeviceNumber)
		require.Equal(t, f.header().StartedNs, g.ArenaGeneration)
		require.EqualValues(t, protocol.SegmentClient|protocol.SegmentOnDevice, f.memory.Segment(g.Block.Segment).Sort)
		require.EqualValues(t, 7, f.memory.Segment(g.Block.Segment).Owner)
		for i := range rows {
			f.put(m, 0, uint64(i)*4, letters(rows[i], 1, 4))
		}
		out, err := f.unmap(nil, m, all, adopt, false)
		require.NoError(t, err)
		return out
	}
	require.EqualValues(t, protocol.CompletionAdopted, fill(1, "abcd", true).Flags)
	require.Zero(t, f.fakes.devices[0].lists, "nothing was copied")
	f.seal(1, protocol.ScopeAll)
	require.Zero(t, f.fakes.devices[0].lists)
	v := f.versionAt(1, 1)
	require.EqualValues(t, protocol.VersionAdopted, v.Flags)
	require.EqualValues(t, 7, f.memory.Segment(v.Block.Segment).Owner)
	require.NoError(t, f.write4("a", 2, p[1:2], "x", all))
	f.seal(2, protocol.ScopeAll)
	require.Equal(t, "axcd", f.valuesAt("a", p))
	require.Zero(t, f.memory.Segment(f.versionAt(1, 2).Block.Segment).Owner, "what was built lies in the broker's own arena")
	require.Equal(t, "abcd", string(f.rowsAt(1, 1)[p[0]][0])+string(f.rowsAt(1, 1)[p[1]][0])+string(f.rowsAt(1, 1)[p[2]][0])+string(f.rowsAt(1, 1)[p[3]][0]))

	require.EqualValues(t, protocol.CompletionAdoptRefused, fill(3, "efgh", false).Flags, "a view of it is held")
	f.seal(3, protocol.ScopeAll)
	require.Equal(t, "efgh", f.valuesAt("a", p))
	require.EqualValues(t, 1, f.attribute(1).AdoptRefusedCount)
	require.Zero(t, f.memory.Segment(f.versionAt(1, 3).Block.Segment).Owner)
	f.store.AbortSessions(f)
	f.memory.CloseArena(arena)
	f.checkBooks()
}

// TestWhatIsNotThereIsNotShown: rule C3. An unmap with an event is a Job that waits for it;
// until it has ended the rows are not accepted, seals of the ordinal wait, and what is shown
// is what was there when the event completed.
func TestWhatIsNotThereIsNotShown(t *testing.T) {
	for _, seal := range []bool{false, true} {
		for _, adopt := range []bool{false, true} {
			for _, schema := range []protocol.Schema{onDevice(bytesSchema(4), 0), bytesSchema(4)} {
				f := newDeviceFixture(t, Config{Retain: 2})
				p := f.paths(3)
				arena := f.memory.NewArena(protocol.SegmentClient, 7, "client", false)
				m, err := f.open(f, arena, Target{Query: queryOf(p...), Name: "a", Schema: schema, Ordinal: 1, StagingType: tensor.DeviceCUDA}, protocol.InitZero)
				require.NoError(t, err)
				base := m.groups[0].block.base
				kernel := func() error { f.fakes.write(base, []byte("aaaabbbbcccc")); return nil }
				out, job, err := f.store.UnmapAfter(kernel, m, 0, all, adopt, seal)
				require.NoError(t, err)
				require.NotNil(t, job)
				require.True(t, job.Device)
				require.Zero(t, out.Epoch)
				_, _, err = f.store.Seal(1, protocol.ScopeAll, nil, 1)
				require.ErrorIs(t, err, ErrRetry)
				f.store.EndSession(m)
				job.Run()
				f.step(func() {
					out, err = job.Finish()
					require.NoError(t, err)
				})
				if !seal {
					f.seal(1, protocol.ScopeAll)
				}
				require.Equal(t, "abc", f.valuesAt("a", p))
				require.EqualValues(t, schema.DeviceType == tensor.DeviceCUDA, f.versionAt(1, 1).DeviceNumber == 1)
				require.Empty(t, f.store.lent)
				f.checkBooks()
			}
		}
	}
}

// TestDevicesThatAreNotServed: behaviour 230; rules L4, C5. A device that does not exist is
// refused and not taken for another; where there are none the reason is told; an
// attribute's rows go where it lies unless the schema says otherwise; arrays and filters by
// value are for the host.
func TestDevicesThatAreNotServed(t *testing.T) {
	f := newDeviceFixture(t, Config{NoDevice: "not this"})
	p := f.paths(2)
	arena := f.memory.NewArena(protocol.SegmentClient, 7, "client", false)
	write := func(name string, s protocol.Schema) error {
		_, err := f.run(func() (Outcome, *Job, error) {
			return f.store.Write(&Target{Query: queryOf(p...), Name: name, Schema: s, Ordinal: 1}, make([]byte, 8), 2, all, false)
		})
		return err
	}
	require.Contains(t, requireStatus(t, protocol.StatusInvalidArgument, write("a", onDevice(bytesSchema(4), 2))).Text, "cuda:2, which does not exist: this broker serves cuda:0, cuda:1")
	requireStatus(t, protocol.StatusInvalidArgument, f.store.Declare("a", onDevice(bytesSchema(4), 7), 0, 0))
	wrong := bytesSchema(4)
	wrong.DeviceType = 13
	requireStatus(t, protocol.StatusInvalidArgument, write("a", wrong))
	wrong = bytesSchema(4)
	wrong.DeviceID = 1
	requireStatus(t, protocol.StatusInvalidArgument, write("a", wrong))
	require.Contains(t, requireStatus(t, protocol.StatusNotSupported, f.store.Declare("a", onDevice(arraySchema(4), 0), 0, 0)).Text, "kind is array: rows of lengths of their own are served from host memory only; use kind fixed, or device cpu")
	for _, staging := range [][2]uint32{{2, 2}, {1, 1}, {9, 0}} {
		_, err := f.open(f, arena, Target{Query: queryOf(p...), Name: "a", Schema: bytesSchema(4), Ordinal: 1, StagingType: staging[0], StagingID: staging[1]}, 0)
		requireStatus(t, protocol.StatusInvalidArgument, err)
	}
	_, err := f.open(f, arena, Target{Query: queryOf(p...), Name: "a", Schema: arraySchema(4), Ordinal: 1, ElementSizes: []uint64{1, 1}, StagingType: 2}, 0)
	require.Contains(t, requireStatus(t, protocol.StatusNotSupported, err).Text, "staging is cuda:0: its rows are filled in host memory only; leave staging out, or ask for the cpu")
	require.Len(t, f.store.columns, 1)

	require.NoError(t, f.store.Declare("a", onDevice(bytesSchema(4), 1), 0, 0))
	anywhere := bytesSchema(4)
	anywhere.DeviceType = 0
	require.NoError(t, write("a", anywhere))
	require.NoError(t, write("host", anywhere))
	require.Contains(t, requireStatus(t, protocol.StatusInvalidArgument, write("a", bytesSchema(4))).Text, "device is cpu but the attribute lies on cuda:1")
	f.seal(1, protocol.ScopeAll)
	require.EqualValues(t, 2, f.versionAt(1, 1).DeviceNumber)
	require.Zero(t, f.versionAt(2, 1).DeviceNumber)
	require.EqualValues(t, tensor.DeviceCPU, f.attribute(2).Schema.DeviceType)
	filter := func(operator uint32, values ...string) error {
		_, _, err := f.store.Filter(&Filter{Predicates: []Predicate{{Operator: operator, Name: "a", Values: values}}}, func(q *Query) { require.EqualValues(t, 2, q.Size()) })
		return err
	}
	require.NoError(t, filter(protocol.FilterHas))
	for _, operator := range []uint32{protocol.FilterLess, protocol.FilterLessEqual, protocol.FilterGreater, protocol.FilterGreaterEqual, protocol.FilterIn, protocol.FilterContains} {
		text := requireStatus(t, protocol.StatusNotSupported, filter(operator, "1")).Text
		for _, words := range []string{operatorNames[operator], `attribute "a"`, "cuda:1, where no filter looks", "HAS", "read the attribute on the cpu", "attribute of the host"} {
			require.Contains(t, text, words)
		}
	}
	f.checkBooks()

	for why, want := range map[string]string{"": "without any", "libcuda.so.1 is not there": "libcuda.so.1 is not there"} {
		f = newFixture(t, Config{NoDevice: why}, 1<<30)
		text := requireStatus(t, protocol.StatusNotSupported, f.store.Declare("a", onDevice(bytesSchema(4), 0), 0, 0)).Text
		require.Contains(t, text, want)
		require.Contains(t, text, "host memory only")
	}
}

// TestAReaderFindsRowsOnADevice: rules V2, V7, C1. A version of a device has a place and no
// bytes; what a reader pins counts its length; what cannot be true is refused.
func TestAReaderFindsRowsOnADevice(t *testing.T) {
	f := newDeviceFixture(t, Config{Retain: 2})
	h := &history{fixture: f, prims: f.paths(4)}
	require.NoError(t, f.write4("a", 1, h.prims, "abcd", all))
	f.seal(1, protocol.ScopeAll)
	require.NoError(t, f.write4("a", 2, h.prims[1:2], "x", all))
	f.seal(2, protocol.ScopeAll)
	h.attachReader()
	var p Pinned
	column := h.readerColumns()[0]
	require.Equal(t, "cuda:0", column.Schema.Device.String())
	require.NoError(t, h.reader.Pin(&p, column))
	v := p.Version(0)
	require.Nil(t, v.Data)
	require.False(t, v.Void)
	require.EqualValues(t, 1, v.DeviceNumber)
	require.EqualValues(t, 16, v.Block.LengthBytes)
	require.Equal(t, letters('a', 1, 4), f.content(v.Block.Segment, v.Block.OffsetBytes, 4))
	rows, err := h.reader.Rows(h.list, v)
	require.NoError(t, err)
	require.Equal(t, map[uint64]naiveRow{h.prims[1]: {"xxxx", 2}}, h.readRows(&p, v, rows.Changed(v, 1)))
	require.EqualValues(t, 16, h.reader.accounts.bytes)
	p.Release()

	slot := f.versionAt(1, 2)
	for what, spoil := range map[string]func(){
		"the offset":       func() { slot.Block.OffsetBytes = 1 << 21 },
		"the segment":      func() { slot.Block.Segment = 1 },
		"another device":   func() { slot.DeviceNumber = 2 },
		"rows beyond it":   func() { slot.Rows = 5 },
		"a place too high": func() { slot.Block.OffsetBytes = 1<<64 - 8 },
	} {
		was := *slot
		spoil()
		requireStatus(t, protocol.StatusInternal, h.reader.Pin(&p, column))
		*slot = was
		require.NoError(t, h.reader.Pin(&p, column), what)
		p.Release()
	}
	f.checkBooks()
}

// TestRowsAtEqualDistancesAreOneCopy: rule C4. Neighbours become one copy, equal distances
// on a device one of several runs, in an order that changes nothing.
func TestRowsAtEqualDistancesAreOneCopy(t *testing.T) {
	host := make([]byte, 64)
	at := func(address uint64) Place { return Place{Address: address} }
	in := func(offset int) Place { return Place{Host: host[offset:][:4]} }
	var l copyList
	for i := range uint64(4) {
		l.add(at(1000+4*i), at(2000+4*i), 4)
	}
	require.Equal(t, []DeviceCopy{{Dst: at(1000), Src: at(2000), Bytes: 16, Rows: 1}}, l.copies)
	l = copyList{}
	for i := range uint64(4) {
		l.add(at(1000+4*i), at(2000+12*i), 4)
	}
	require.Equal(t, []DeviceCopy{{Dst: at(1000), Src: at(2000), Bytes: 4, Rows: 4, DstPitch: 4, SrcPitch: 12}}, l.copies)
	l = copyList{}
	for i := range 4 {
		l.add(at(uint64(1000+4*i)), in(4*i), 4)
	}
	require.Len(t, l.copies, 1)
	require.Len(t, l.copies[0].Src.Host, 16)
	l = copyList{}
	for i := range 4 { // from the host only neighbours
		l.add(at(uint64(1000+4*i)), in(8*i), 4)
	}
	require.Len(t, l.copies, 4)
	l = copyList{}
	l.add(at(1000), at(2000), 4)
	l.add(at(1000), at(3000), 4) // the last one wins
	l.add(at(900), at(3100), 4)
	l.add(at(900+pitchMax+1), at(3200), 4)
	l.add(at(0), at(0), 0)
	require.Len(t, l.copies, 4)
	require.EqualValues(t, 16, l.bytes)
	for _, c := range l.copies {
		require.EqualValues(t, 1, c.Rows)
	}
	require.True(t, slices.Equal(host, bytes.Repeat([]byte{0}, 64)))
	l = copyList{}
	one, other := new(Block), new(Block)
	l.add(Place{Address: 1000, block: one}, Place{Address: 2000, block: one}, 4)
	l.add(Place{Address: 1004, block: one}, Place{Address: 2004, block: other}, 4) // the allocation behind it
	l.add(Place{Address: 1008, block: other}, Place{Address: 2008, block: other}, 4)
	l.add(Place{Address: 1016, block: other}, Place{Address: 2016, block: other}, 4)
	l.add(Place{Address: 1024, block: one}, Place{Address: 2024, block: other}, 4)
	require.Len(t, l.copies, 4)
	require.EqualValues(t, 2, l.copies[2].Rows)
}

// TestRowsOfSeveralProducers: rule C4. What several clients filled in their own arenas goes
// into one version by copies that stay within an allocation each, in whichever order the
// arenas lie.
func TestRowsOfSeveralProducers(t *testing.T) {
	for _, order := range [][]int{{0, 1, 2}, {2, 1, 0}, {1, 2, 0}} {
		f := newDeviceFixture(t, Config{})
		p := f.paths(4)
		require.NoError(t, f.write4("a", 1, p, "abcd", all))
		f.seal(1, protocol.ScopeAll)
		arenas := make([]*Arena, 3)
		fill := func(i int, ordinal uint64) {
			var m *Session
			require.NoError(t, f.try(func() (err error) {
				m, _, err = f.store.Map(owner, arenas[i], &Target{Query: queryOf(p[i]), Name: "a", Schema: onDevice(bytesSchema(4), 0), Ordinal: ordinal}, protocol.InitNone, 0)
				return err
			}))
			f.put(m, 0, 0, letters('x'+byte(i), 1, 4))
			_, err := f.run(func() (Outcome, *Job, error) { return f.store.UnmapGroup(m, 0, all, true, false) })
			require.NoError(t, err)
			f.store.EndSession(m)
		}
		for i := range arenas {
			arenas[i] = f.memory.NewArena(protocol.SegmentClient, uint64(10+i), "client", false)
		}
		for _, i := range order { // where their arenas lie
			fill(i, 2)
		}
		f.seal(2, protocol.ScopeAll)
		require.Equal(t, "xyzd", f.valuesAt("a", p))
		for i := range arenas { // in the order of rows
			fill(i, 3)
		}
		f.seal(3, protocol.ScopeAll)
		require.Equal(t, "xyzd", f.valuesAt("a", p))
		for _, arena := range arenas {
			f.memory.CloseArena(arena)
		}
		f.checkBooks()
	}
}
