package snapshot

import (
	"fmt"
	"testing"

	"callboard/protocol"
	"callboard/tensor"

	"github.com/stretchr/testify/require"
)

// TestRowsFilledElsewhere: rule C5, behaviour 304. A session may be filled in the memory of
// the host or of any device, wherever the attribute lies; what lies elsewhere is copied when
// it is handed back, never adopted, and the client's block is free then.
func TestRowsFilledElsewhere(t *testing.T) {
	places := []tensor.Device{tensor.CPU, {Type: tensor.DeviceCUDA}, {Type: tensor.DeviceCUDA, ID: 1}}
	for _, lies := range places {
		for _, filled := range places {
			t.Run(fmt.Sprint(lies, " filled on ", filled), func(t *testing.T) {
				f := newDeviceFixture(t, Config{Retain: 2})
				p := f.paths(4)
				arena := f.memory.NewArena(protocol.SegmentClient, 7, "client", false)
				schema := bytesSchema(4)
				schema.DeviceType, schema.DeviceID = lies.Type, lies.ID
				fill := func(ordinal uint64, init uint32, rows, expect string, sel tensor.Selection) Outcome {
					m, err := f.open(f, arena, Target{Query: queryOf(p...), Name: "a", Schema: schema, Ordinal: ordinal, StagingType: filled.Type, StagingID: filled.ID}, init)
					require.NoError(t, err)
					number := m.Group(0).DeviceNumber
					require.Equal(t, filled.Type == tensor.DeviceCUDA, number == filled.ID+1)
					if expect != "" {
						for i, row := range []byte(expect) {
							if row == '0' {
								row = 0
							}
							require.Equal(t, []byte{row, row, row, row}, f.get(m, 0)[4*i:4*i+4], "init %d", init)
						}
					}
					for i := range rows {
						f.put(m, 0, uint64(i)*4, letters(rows[i], 1, 4))
					}
					out, err := f.unmap(nil, m, sel, true, false)
					require.NoError(t, err)
					f.seal(ordinal, protocol.ScopeAll)
					return out
				}
				out := fill(1, protocol.InitZero, "abcd", "0000", all)
				adopted := uint32(0)
				if lies == filled {
					adopted = protocol.CompletionAdopted
				}
				require.Equal(t, adopted, out.Flags)
				require.Equal(t, "abcd", f.valuesAt("a", p))
				if lies != filled {
					require.Zero(t, f.memory.arenaOn(arena, f.store.served(&protocol.Schema{DeviceType: filled.Type, DeviceID: filled.ID})).blocks, "the client's memory is free")
				}
				fill(2, protocol.InitCurrent, "xy", "abcd", tensor.Selection{Count: 2})
				require.Equal(t, "xycd", f.valuesAt("a", p))
				fill(3, protocol.InitCurrent, "mnop", "xycd", tensor.Selection{Count: 4, Mask: []uint64{0b1010}})
				require.Equal(t, "xncp", f.valuesAt("a", p))
				f.delete(4, queryOf(p[2]), "a")
				f.seal(4, protocol.ScopeAll)
				fill(5, protocol.InitCurrent, "", "xn0p", tensor.Selection{Count: 2, IndexMap: []uint32{1, 0}})
				require.Equal(t, "nx.p", f.valuesAt("a", p))
				f.memory.CloseArena(arena)
				f.checkBooks()
			})
		}
	}
}

// TestSeveralClientsFillADeviceByTheHost: rules M2, C5. What groups on the host hold goes to
// the device when they are handed back.
func TestSeveralClientsFillADeviceByTheHost(t *testing.T) {
	f := newShares(t, 4, Config{Retain: 2})
	devices := newFakes(t, 1<<30)
	f.fixture = newFixtureOf(t, Config{Retain: 2}, 1<<30, devices)
	f.arena = f.memory.NewArena(protocol.SegmentClient, 7, "client", false)
	f.prims = f.paths(4)
	write := func(ordinal uint64, rows string) *Session {
		var m *Session
		require.NoError(t, f.try(func() (err error) {
			m, _, err = f.store.Map(owner, f.arena, &Target{Query: queryOf(f.prims...), Name: "a", Schema: onDevice(bytesSchema(4), 0), Ordinal: ordinal, StagingType: tensor.DeviceCPU}, protocol.InitCurrent, 3)
			return err
		}))
		require.Equal(t, 2, m.Groups())
		for i, who := range []any{anna, bert} {
			_, err := f.claim(who, m, uint64(i))
			require.NoError(t, err)
			require.Zero(t, m.Group(uint32(i)).DeviceNumber)
			for k, row := range []byte(rows[3*i : min(3*i+3, len(rows))]) {
				f.put(m, uint32(i), uint64(4*k), letters(row, 1, 4))
			}
		}
		return m
	}
	m := write(1, "abcd")
	for i := range uint64(2) {
		_, err := f.run(func() (Outcome, *Job, error) { return f.store.UnmapGroup(m, i, all, true, false) })
		require.NoError(t, err)
	}
	f.store.EndSession(m)
	f.seal(1, protocol.ScopeAll)
	require.Equal(t, "abcd", f.valuesAt("a", f.prims))
	require.EqualValues(t, 1, f.versionAt(1, 1).DeviceNumber)

	// A device that fails leaves the group to the next attempt.
	m = write(2, "xyzw")
	devices.devices[0].fail = errDriver
	_, err := f.run(func() (Outcome, *Job, error) { return f.store.UnmapGroup(m, 0, all, true, false) })
	require.Contains(t, requireStatus(t, protocol.StatusOpFailed, err).Text, "cuda:0: CUDA_ERROR")
	require.EqualValues(t, 2, m.Group(0).Attempt)
	require.EqualValues(t, protocol.GroupUnclaimed, m.Group(0).State)
	_, err = f.claim(bert, m, 0) // what init asks for cannot be had
	requireStatus(t, protocol.StatusOpFailed, err)
	require.EqualValues(t, 3, m.Group(0).Attempt)
	devices.devices[0].fail = nil
	_, err = f.claim(bert, m, 0)
	require.NoError(t, err)
	require.Equal(t, "aaaabbbbcccc", string(f.get(m, 0)))
	f.store.AbortSession(m)
	f.store.ReleaseLent(anna)
	f.store.ReleaseLent(bert)
	f.seal(2, protocol.ScopeAll)
	require.Equal(t, "abcd", f.valuesAt("a", f.prims))
	f.checkBooks()
}
