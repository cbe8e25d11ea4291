package snapshot

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"

	"callboard/protocol"
	"callboard/tensor"

	"github.com/stretchr/testify/require"
)

// shares is a fixture with a session of several groups, and who claims them.
type shares struct {
	*fixture
	arena  *Arena
	told   []string // OnGroup: session, group, attempt
	q      *Query
	prims  []uint64
	opened *Session
	schema protocol.Schema
	on     [2]uint32 // staging
}

const owner, anna, bert = "owner", "anna", "bert"

func newShares(t *testing.T, rows int, c Config) *shares { return newSharesOn(t, nil, rows, c) }

func newSharesOn(t *testing.T, devices *fakes, rows int, c Config) *shares {
	f := &shares{}
	c.OnGroup = func(m *Session, index uint32) {
		f.told = append(f.told, fmt.Sprintf("%d.%d.%d", m.ID, index, m.Group(index).Attempt))
	}
	f.fixture = newFixtureOf(t, c, 1<<30, devices)
	f.delayed = true
	f.arena = f.memory.NewArena(protocol.SegmentClient, 7, "client", false)
	f.prims = f.paths(rows)
	f.q = queryOf(f.prims...)
	f.schema = bytesSchema(8)
	return f
}

func (f *shares) map3(ordinal, groupRows uint64, init uint32) *Session {
	t := Target{Query: f.q, Name: "a", Schema: f.schema, Ordinal: ordinal, StagingType: f.on[0], StagingID: f.on[1]}
	require.NoError(f.t, f.try(func() (err error) {
		var job *Job
		f.opened, job, err = f.store.Map(owner, f.arena, &t, init, groupRows)
		require.Nil(f.t, job)
		return err
	}))
	return f.opened
}

func (f *shares) claim(who any, m *Session, index uint64) (got uint32, err error) {
	_, err = f.run(func() (Outcome, *Job, error) {
		var job *Job
		var err error
		_, got, job, err = f.store.Claim(who, m.ID, index)
		return Outcome{}, job, err
	})
	return got, err
}

// fill writes a byte to all rows of a group, and makes sure that it says which prims they are for.
func (f *shares) fill(m *Session, index uint32, value byte) {
	d := m.Group(index)
	require.Equal(f.t, uint32(protocol.GroupClaimed), d.State)
	told := d.Block
	told.LengthBytes = d.LeaseBytes
	if d.DeviceNumber != 0 {
		told = protocol.BlockRef{Segment: d.PrimsSegment, LengthBytes: d.PrimsOffsetBytes + 8*d.PrimCount}
		require.EqualValues(f.t, protocol.SegmentShared|protocol.SegmentOnDevice, f.memory.Segment(d.Block.Segment).Sort)
		require.True(f.t, f.store.Claims(m.groups[index].claimant, d.PrimsSegment))
	}
	require.True(f.t, f.store.Claims(m.groups[index].claimant, d.Block.Segment))
	require.EqualValues(f.t, protocol.SegmentShared, f.memory.Segment(told.Segment).Sort)
	mem := f.memory.Segment(told.Segment).Bytes[told.OffsetBytes:][:told.LengthBytes]
	for i := range d.PrimCount {
		require.Equal(f.t, f.prims[d.FirstPrim+i], binary.LittleEndian.Uint64(mem[d.PrimsOffsetBytes+8*i:]))
	}
	f.put(m, index, 0, slices.Repeat([]byte{value}, int(d.Rows*8)))
}

func (f *shares) unmap(who any, m *Session, index uint32, adopt bool) error {
	return f.unmapAfter(nil, who, m, index, adopt)
}

// unmapAfter is unmap of what is there when wait has returned, as a broker does it.
func (f *shares) unmapAfter(wait func() error, who any, m *Session, index uint32, adopt bool) error {
	_, err := f.run(func() (Outcome, *Job, error) {
		_, err := f.store.FindGroup(who, m.ID, uint64(index))
		if err == ErrRetry {
			return Outcome{}, nil, err
		}
		if err != nil {
			job := f.store.HandBack(who, m.ID, uint64(index), wait, err)
			if job != nil {
				err = nil
			}
			return Outcome{}, job, err
		}
		return f.store.UnmapAfter(wait, m, uint64(index), all, adopt, false)
	})
	return err
}

// rows gives the first byte of each prim's row, in the query's order.
func (f *shares) rows() string {
	rows := f.rowsAt(1, f.store.Epoch())
	var out []byte
	for _, prim := range f.prims {
		if row := rows[prim]; row != "" {
			out = append(out, row[0])
		}
	}
	return string(out)
}

func (f *shares) unclaimed(name string) (list []string) {
	require.NoError(f.t, f.store.Unclaimed(0, name, func(m *Session, index uint32) { list = append(list, fmt.Sprintf("%d.%d", m.ID, index)) }))
	return list
}

// TestGroupsAreClaimedOnce: rule M2, behaviour 175, 188. Three groups, three clients; the
// first claim wins; nothing of a split session becomes a version as it lies (rule M1).
func TestGroupsAreClaimedOnce(t *testing.T) {
	for _, adopt := range []bool{true, false} {
		f := newShares(t, 5, Config{})
		m := f.map3(1, 2, protocol.InitZero)
		require.Equal(t, []string{"1.0.1", "1.1.1", "1.2.1"}, f.told)
		require.Equal(t, []string{"1.0", "1.1", "1.2"}, f.unclaimed("a"))
		require.Empty(t, f.unclaimed("b"))
		require.Zero(t, m.Group(1).Block, "nobody has it yet")
		for i, who := range []any{owner, anna, bert} {
			got, err := f.claim(who, m, protocol.AnyGroup)
			require.NoError(t, err)
			require.EqualValues(t, i, got)
			f.fill(m, got, byte('x'+i))
			require.True(t, f.store.Claims(who, m.Group(got).Block.Segment))
		}
		require.EqualValues(t, 1, m.Group(2).Rows, "what is left")
		require.Empty(t, f.unclaimed(""))
		_, err := f.claim(bert, m, protocol.AnyGroup)
		requireStatus(t, protocol.StatusEnd, err)
		_, err = f.claim(bert, m, 1)
		require.Contains(t, requireStatus(t, protocol.StatusInvalidHandle, err).Text, "was claimed before")
		requireStatus(t, protocol.StatusInvalidHandle, f.unmap(bert, m, 1, adopt))
		requireStatus(t, protocol.StatusInvalidHandle, f.unmap(bert, m, 7, adopt))
		_, _, err = f.store.UnmapGroup(m, 0, all, adopt, true)
		require.Contains(t, requireStatus(t, protocol.StatusInvalidArgument, err).Text, "cannot be sealed alone")

		require.NoError(t, f.unmap(bert, m, 2, adopt))
		requireStatus(t, protocol.StatusInvalidHandle, f.unmap(bert, m, 2, adopt))
		require.NoError(t, f.unmap(anna, m, 1, adopt))
		require.False(t, m.Done())
		require.Equal(t, []uint64{0}, m.Held(owner))
		require.NoError(t, f.unmap(owner, m, 0, adopt))
		require.True(t, m.Done())
		f.checkBooks()
		out, err := f.run(func() (Outcome, *Job, error) { return f.store.SealSession(m) })
		require.NoError(t, err)
		require.EqualValues(t, 1, out.Value)
		f.store.EndSession(m)
		require.Equal(t, "xxyyz", f.rows())
		require.NotEqual(t, protocol.SegmentShared, f.store.columns[1].latest().block.arena.Sort)
		f.checkBooks()

		// The next session finds the segment warm; ordinary leases never get it.
		segments := f.memory.Usage().Segments
		f.map3(2, 2, protocol.InitNone)
		require.Equal(t, segments, f.memory.Usage().Segments)
		f.store.EndSession(f.opened)
		_, err = f.open("new", f.memory.NewArena(protocol.SegmentClient, 8, "new", false), Target{Query: f.q, Name: "a", Ordinal: 2}, 0)
		require.NoError(t, err)
		require.EqualValues(t, protocol.SegmentClient, f.memory.Segment(f.store.sessions[3].Group(0).Block.Segment).Sort)
		f.store.AbortSessions("new")
		f.checkBooks()
	}
}

// TestAGroupThatIsAWholeColumn: with one group of a split session handed back, the
// column is exactly that group; it is copied all the same (rule M1).
func TestAGroupThatIsAWholeColumn(t *testing.T) {
	f := newShares(t, 4, Config{})
	m := f.map3(1, 2, protocol.InitNone)
	_, err := f.claim(anna, m, 0)
	require.NoError(t, err)
	f.fill(m, 0, 'a')
	require.NoError(t, f.unmap(anna, m, 0, true))
	f.seal(1, protocol.ScopeAll) // takes what is there (rule O3)
	require.Equal(t, "aa", f.rows())
	require.False(t, f.store.columns[1].latest().adopted)
	require.ErrorContains(t, f.store.Failed(m), "write floor")
	require.True(t, f.store.Settled(m))
	require.Empty(t, f.unclaimed(""))
	_, err = f.claim(bert, m, 1)
	require.Contains(t, requireStatus(t, protocol.StatusInvalidHandle, err).Text, "cannot be committed")
	f.store.EndSession(m)
	require.Equal(t, "aa", f.rows())
	f.checkBooks()
}

// TestDeadClaimants: rule M2. The block of a claimant that hung up is not used again
// before its death is proven; the group is announced as attempt 2, in a fresh block.
func TestDeadClaimants(t *testing.T) {
	f := newShares(t, 4, Config{})
	m := f.map3(1, 2, protocol.InitZero)
	_, err := f.claim(anna, m, 1)
	require.NoError(t, err)
	first := m.Group(1).Block
	f.fill(m, 1, 'a')
	gone := m.Gone(1)
	require.True(t, gone(), "it was claimed")
	require.Zero(t, f.store.AbortSessions(anna))
	require.Equal(t, "1.1.2", f.told[len(f.told)-1])
	require.False(t, m.Gone(1)())
	require.True(t, f.store.Claims(anna, first.Segment), "until it is proven dead")
	f.checkBooks()
	requireStatus(t, protocol.StatusInvalidHandle, f.unmap(anna, m, 1, true))

	_, err = f.claim(bert, m, 1)
	require.NoError(t, err)
	require.EqualValues(t, 2, m.Group(1).Attempt)
	require.NotEqual(t, first.OffsetBytes, m.Group(1).Block.OffsetBytes)
	f.store.ReleaseLent(anna)
	require.False(t, f.store.Claims(anna, first.Segment))
	f.fill(m, 1, 'b')
	_, err = f.claim(owner, m, 0)
	require.NoError(t, err)
	f.fill(m, 0, 'o')
	require.NoError(t, f.unmap(owner, m, 0, true))
	require.NoError(t, f.unmap(bert, m, 1, true))
	f.store.EndSession(m)
	f.seal(1, protocol.ScopeAll)
	require.Equal(t, "oobb", f.rows())
	f.checkBooks()
}

// TestClaimsThatAreGivenUp: the group is filled anew for the next attempt, in the same block.
func TestClaimsThatAreGivenUp(t *testing.T) {
	f := newShares(t, 4, Config{})
	m := f.map3(1, 2, protocol.InitZero)
	_, err := f.claim(anna, m, 1)
	require.NoError(t, err)
	f.fill(m, 1, 'a')
	place := m.Group(1).Block
	require.NoError(t, f.store.GiveUp(m, 1))
	requireStatus(t, protocol.StatusInvalidHandle, f.store.GiveUp(m, 9))
	require.Equal(t, "1.1.2", f.told[len(f.told)-1])
	_, err = f.claim(bert, m, 1)
	require.NoError(t, err)
	require.Equal(t, place, m.Group(1).Block)
	require.Zero(t, m.groups[1].block.Bytes[0], "init is of each attempt (behaviour 180)")
	f.store.EndSession(m)
	alone := f.map3(1, 0, protocol.InitZero)
	require.False(t, alone.Split())
	requireStatus(t, protocol.StatusInvalidArgument, f.store.GiveUp(alone, 0))
	_, err = f.claim(anna, alone, 0)
	requireStatus(t, protocol.StatusInvalidHandle, err)
	f.store.EndSession(alone)
	f.store.dropLent(func(*lent) bool { return true })
	f.checkBooks()
}

// TestAbortedSessionsOfSeveralGroups: rule M3. What was handed back is taken back; what
// a claimant still writes to is not used again before it has learnt of it.
func TestAbortedSessionsOfSeveralGroups(t *testing.T) {
	for _, died := range []bool{false, true} {
		f := newShares(t, 6, Config{})
		_, err := f.write(queryOf(f.prims...), "a", bytesSchema(8), 3, make([]byte, 48))
		require.NoError(t, err)
		m := f.map3(3, 2, protocol.InitNone)
		for i, who := range []any{anna, bert, owner} {
			_, err := f.claim(who, m, uint64(i))
			require.NoError(t, err)
			f.fill(m, uint32(i), 'x')
		}
		require.NoError(t, f.unmap(anna, m, 0, died))
		block := m.groups[1].block
		if died {
			require.Equal(t, 1, f.store.AbortSessions(owner))
			require.Len(t, f.store.lent, 2, "the owner's own too: it is not proven dead")
			f.store.ReleaseLent(owner)
		} else {
			f.store.AbortSession(m)
		}
		require.NotNil(t, block.Bytes)
		require.Len(t, f.store.lent, 1)
		f.checkBooks()
		requireStatus(t, protocol.StatusInvalidHandle, f.unmap(bert, m, 1, true))
		require.Empty(t, f.store.lent)
		requireStatus(t, protocol.StatusInvalidHandle, f.unmap(anna, m, 0, true))
		f.seal(3, protocol.ScopeAll)
		require.Equal(t, "\x00\x00\x00\x00\x00\x00", f.rows(), "the write, and nothing of the session")
		f.checkBooks()
	}
}

// TestAbortAfterAllGroups: a session whose groups were all handed back has not been
// committed yet (rule M3).
func TestAbortAfterAllGroups(t *testing.T) {
	f := newShares(t, 4, Config{})
	m := f.map3(1, 2, protocol.InitZero)
	for i := range 2 {
		_, err := f.claim(anna, m, uint64(i))
		require.NoError(t, err)
		require.NoError(t, f.unmap(anna, m, uint32(i), true))
	}
	f.store.AbortSession(m)
	f.seal(1, protocol.ScopeAll)
	require.Empty(t, f.rows())
	f.checkBooks()
}

// TestGroupsThatAreCopiedAndFilledByJobs: abort while a copy is on its way, death while a
// group is filled.
func TestGroupsThatAreCopiedAndFilledByJobs(t *testing.T) {
	f := newShares(t, 6, Config{CopyInlineBytes: 8})
	f.delayed = false
	m := f.map3(1, 3, protocol.InitZero)
	_, _, job, err := f.store.Claim(anna, m.ID, 0)
	require.NoError(t, err)
	require.NotNil(t, job)
	_, err = f.store.FindGroup(anna, m.ID, 0)
	require.ErrorIs(t, err, ErrRetry)
	f.store.AbortSessions(anna)
	job.Run()
	_, err = job.Finish()
	require.NoError(t, err)
	f.store.ReleaseLent(anna)
	_, err = f.claim(bert, m, 0)
	require.NoError(t, err)
	f.fill(m, 0, 'b')
	_, job, err = f.store.UnmapGroup(m, 0, all, false, false)
	require.NoError(t, err)
	require.NotNil(t, job)
	require.Empty(t, m.Held(bert))
	f.store.EndSession(m)
	job.Run()
	_, err = job.Finish()
	requireStatus(t, protocol.StatusInvalidHandle, err)
	require.Empty(t, f.store.columns[1].pending)
	f.checkBooks()

	// A claimant whose memory is gone: the group is another's, like that of a dead one.
	m = f.map3(1, 3, protocol.InitZero)
	_, err = f.claim(bert, m, 0)
	require.NoError(t, err)
	_, job, err = f.store.UnmapGroup(m, 0, all, false, false)
	require.NoError(t, err)
	job.Abort()
	require.Equal(t, "2.0.2", f.told[len(f.told)-1])
	_, err = f.claim(anna, m, 0)
	require.NoError(t, err)
	f.store.EndSession(m)
	f.store.ReleaseLent(anna)
	f.checkBooks()
}

// TestRefusedGroups: what waiting may cure is another attempt's; the rest fails the session.
func TestRefusedGroups(t *testing.T) {
	f := newShares(t, 4, Config{UnsealedBytesMax: 5000})
	m := f.map3(1, 2, protocol.InitNone)
	for i := range 2 {
		_, err := f.claim(anna, m, uint64(i))
		require.NoError(t, err)
		f.fill(m, uint32(i), 'a')
	}
	require.NoError(t, f.unmap(anna, m, 0, true))
	_, _, err := f.store.UnmapGroup(m, 1, all, true, false)
	requireStatus(t, protocol.StatusQueueFull, err)
	require.Equal(t, "1.1.2", f.told[len(f.told)-1])
	require.NoError(t, f.store.Failed(m))
	_, err = f.claim(anna, m, 1)
	require.NoError(t, err)
	_, _, err = f.store.UnmapGroup(m, 1, tensor.Selection{}, true, false)
	requireStatus(t, protocol.StatusInvalidArgument, err)
	require.Error(t, f.store.Failed(m))
	f.store.EndSession(m)
	require.Zero(t, f.store.unsealedBytes)
	f.checkBooks()
}

// TestWhatCannotBeSplit says why.
func TestWhatCannotBeSplit(t *testing.T) {
	f := newShares(t, 5000, Config{})
	try := func(rows uint64, next bool) error {
		return f.try(func() error {
			_, _, err := f.store.Map(owner, f.arena, &Target{Query: f.q, Name: "a", Schema: bytesSchema(8), Ordinal: 1, Next: next}, 0, rows)
			return err
		})
	}
	require.Contains(t, requireStatus(t, protocol.StatusLimit, try(1, false)).Text, "5000 groups, the limit is 4096; use 2 or more")
	require.Contains(t, requireStatus(t, protocol.StatusNotSupported, try(2000, true)).Text, "needs an ordinal")
	f.refuse = protocol.Errorf(protocol.StatusOutOfMemory, "none")
	requireStatus(t, protocol.StatusOutOfMemory, try(2000, false))
	f.refuse = nil
	require.Empty(t, f.store.opening)
	require.NoError(t, try(2000, false))
	require.Empty(t, f.store.opening)
	require.NoError(t, try(9000, true), "one group")
	f.store.AbortSessions(owner)
	f.checkBooks()
}

// TestSharedSegmentsAreNotTakenOver: a broker that recovers retires them, since nobody
// knows who else may still write there; what was captured of the session is gone (rule B1).
func TestSharedSegmentsAreNotTakenOver(t *testing.T) {
	f := newShares(t, 4, Config{})
	_, err := f.write(f.q, "a", bytesSchema(8), 1, make([]byte, 32))
	require.NoError(t, err)
	f.seal(1, protocol.ScopeAll)
	m := f.map3(2, 2, protocol.InitNone)
	_, err = f.claim(anna, m, 0)
	require.NoError(t, err)
	shared := m.Group(0).Block.Segment
	require.NoError(t, f.unmap(anna, m, 0, true))

	var segments []*Segment
	for _, seg := range f.memory.segments {
		segments = append(segments, &Segment{ID: seg.ID, Bytes: seg.Bytes})
	}
	memory := NewMemory(1 << 30)
	got, err := Recover(Config{Generation: 12345, Incarnation: 2, Stage: "default", Host: "here"}, f.root, memory, segments)
	require.NoError(t, err)
	require.Len(t, got.Unused, 1)
	require.Equal(t, shared, got.Unused[0].ID)
	require.Nil(t, memory.Segment(shared))
	raw, ok := got.Store.segments.have(shared - 1)
	require.True(t, ok)
	require.EqualValues(t, protocol.SegmentRetired, at[protocol.SegmentEntry](raw, 0).State)
}

// TestGroupsOfAnArray: behaviour 175, 180, 182; rule M2. Rows of an array lie in their
// group's block from 0 on, behind them the path ids and the rows' sizes; what is handed
// back is copied, since others can write there (rule M1).
func TestGroupsOfAnArray(t *testing.T) {
	for _, room := range []uint64{1, 50_000} { // the long rows are copied by a job
		f := newShares(t, 5, Config{})
		_, err := f.writeRows(f.q, "a", 1, "one", "two", "three", "", "five")
		require.NoError(t, err)
		f.seal(1, protocol.ScopeAll)
		sizes := []uint64{0, 0, 2 * room, 4 * room, 3}
		target := Target{Query: f.q, Name: "a", Schema: arraySchema(1), Ordinal: 2, ElementSizes: sizes}
		var m *Session
		require.NoError(t, f.try(func() (err error) {
			m, _, err = f.store.Map(owner, f.arena, &target, protocol.InitCurrent, 2)
			return err
		}))
		require.Equal(t, 3, m.Groups())
		for i, who := range []any{owner, anna, bert} {
			got, err := f.claim(who, m, protocol.AnyGroup)
			require.NoError(t, err)
			d := m.Group(got)
			own := sizes[d.FirstPrim:][:d.Rows]
			mem := f.memory.Segment(d.Block.Segment).Bytes[d.Block.OffsetBytes:][:d.LeaseBytes]
			at := 0
			for k, size := range own {
				require.Equal(t, f.prims[d.FirstPrim+uint64(k)], binary.LittleEndian.Uint64(mem[d.PrimsOffsetBytes+8*uint64(k):]))
				require.Equal(t, size, binary.LittleEndian.Uint64(mem[d.PrimsOffsetBytes+8*(d.Rows+uint64(k)):]))
				row := mem[at:][:size]
				before := []string{"one", "two", "three", "", "five"}[d.FirstPrim+uint64(k)]
				require.Equal(t, before[:min(len(before), len(row))], string(row[:min(len(before), len(row))]))
				for j := range row {
					row[j] = byte('u' + d.FirstPrim + uint64(k))
				}
				at += int(size)
			}
			require.EqualValues(t, at, d.Block.LengthBytes)
			require.NotZero(t, d.PrimsOffsetBytes, "0 would say that nobody else fills it")
			require.NoError(t, f.unmap(who, m, uint32(i), true))
			for j := range mem { // a claimant that goes on writing
				mem[j] = '!'
			}
			f.checkBooks()
		}
		require.True(t, m.Done())
		out, err := f.run(func() (Outcome, *Job, error) { return f.store.SealSession(m) })
		require.NoError(t, err)
		require.EqualValues(t, 2, out.Epoch)
		f.store.EndSession(m)
		require.Equal(t, []string{"", "", strings.Repeat("w", int(2*room)), strings.Repeat("x", int(4*room)), "yyy"}, valuesOf(f.rowsAt(1, 2), f.prims))
		require.Equal(t, []string{"one", "two", "three", "", "five"}, valuesOf(f.rowsAt(1, 1), f.prims))
		f.checkBooks()

		// Aborted, nothing of it stays.
		target.Ordinal = 3
		require.NoError(t, f.try(func() (err error) {
			m, _, err = f.store.Map(owner, f.arena, &target, protocol.InitZero, 1)
			return err
		}))
		_, err = f.claim(anna, m, 2)
		require.NoError(t, err)
		require.NoError(t, f.unmap(anna, m, 2, true))
		f.store.AbortSession(m)
		f.seal(3, protocol.ScopeAll)
		require.Equal(t, strings.Repeat("w", int(2*room)), f.rowsAt(1, f.store.Epoch())[f.prims[2]])
		f.checkBooks()
	}
}
