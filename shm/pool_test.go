package shm

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// grow does what the broker does: ask, add a segment of the size that the pool names,
// ask again.
func grow(t *testing.T, p *Pool, next *uint64, size uint64, pages bool) Block {
	t.Helper()
	ask := p.Alloc
	if pages {
		ask = p.AllocPages
	}
	b, ok := ask(size)
	if !ok {
		*next++
		p.AddSegment(*next, p.NextSegmentSize(size))
		b, ok = ask(size)
		require.True(t, ok, "a segment of NextSegmentSize(%d) has room for it", size)
	}
	return b
}

func TestCapacitiesWasteAtMostAQuarterAndAreClasses(t *testing.T) {
	classSize := func(class int) uint64 {
		if class < 4 {
			return uint64(class) * BlockAlign
		}
		return uint64(4+class%4) << (class/4 - 1) * BlockAlign
	}
	for class := 1; class < 210; class++ {
		require.Equal(t, class, classOf(classSize(class)))
		require.Equal(t, class, classOf(classSize(class+1)-1))
	}
	require.EqualValues(t, 256, capacity(0, false))
	for size := uint64(1); size < 1<<40; size += 1 + size/7 {
		length := capacity(size, false)
		require.GreaterOrEqual(t, length, size)
		require.Zero(t, length%BlockAlign)
		if size >= 1024 {
			require.LessOrEqual(t, length-size, size/4+BlockAlign, "size %d", size)
		}
		if size < largeBlock {
			require.Equal(t, length, classSize(classOf(length)), "warm lists hold one length each (size %d)", size)
		}
		paged := capacity(size, true)
		require.Zero(t, paged%PageAlign)
		require.GreaterOrEqual(t, paged, size)
		if size < largeBlock {
			require.Equal(t, paged, classSize(classOf(paged)))
		}
	}
}

func TestSegmentSizesDoubleAndALargeBlockGetsItsOwn(t *testing.T) {
	p := NewPool(4096)
	for i, want := range []uint64{1, 2, 4, 8, 16, 32, 64, 64} {
		require.Equal(t, want<<20, p.NextSegmentSize(100))
		p.AddSegment(uint64(i), want<<20)
	}
	require.EqualValues(t, 100<<20+4096, p.NextSegmentSize(100<<20))
	require.EqualValues(t, 4<<20, NewPool(4096).NextSegmentSize(2<<20), "the header needs room, too")
	require.EqualValues(t, 100<<20+4096, SegmentSizeFor(100<<20, 1))
	require.True(t, p.SegmentFree(3))
	require.False(t, p.SegmentFree(50), "unknown is not free")
	_, ok := p.Alloc(100 << 20)
	require.False(t, ok)
	p.AddSegment(99, p.NextSegmentSize(100<<20))
	b, ok := p.Alloc(100 << 20)
	require.True(t, ok)
	require.Equal(t, Block{Segment: 99, Offset: 4096, Length: 100 << 20}, b)
	_, ok = p.Alloc(math.MaxUint64)
	require.False(t, ok)
	_, ok = p.AllocPages(1 << 60)
	require.False(t, ok)
	require.Less(t, p.NextSegmentSize(math.MaxUint64), uint64(1<<61))
}

func TestFreedBlockIsLeasedAgainFirstAndWithoutMemory(t *testing.T) {
	p := NewPool(4096)
	p.AddSegment(1, 1<<20)
	a, _ := p.Alloc(1000)
	b, _ := p.Alloc(1000)
	p.Free(a)
	p.Free(b)
	again, _ := p.Alloc(900)
	require.Equal(t, b, again, "last in, first out")
	p.Free(again)
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		x, _ := p.Alloc(1000)
		y, _ := p.AllocPages(5000)
		p.Free(x)
		p.Free(y)
	}))
}

// B5: whatever small blocks leave behind, one large block fits again when they are gone.
func TestFragmentationNeverReportsFullWithFreeSpace(t *testing.T) {
	p := NewPool(4096)
	p.AddSegment(1, 1<<20)
	whole := uint64(1<<20 - 4096)
	var blocks []Block
	for {
		b, ok := p.Alloc(256)
		if !ok {
			break
		}
		blocks = append(blocks, b)
	}
	require.Len(t, blocks, int(whole/256), "no byte is lost")
	rand.New(rand.NewPCG(1, 2)).Shuffle(len(blocks), func(i, j int) { blocks[i], blocks[j] = blocks[j], blocks[i] })
	for _, b := range blocks[1:] {
		p.Free(b)
	}
	stats := p.Stats()
	require.Equal(t, whole-256, stats.Free)
	require.GreaterOrEqual(t, stats.LargestFree, (whole-256)/2, "warm neighbours count as one run")
	largest := stats.LargestFree
	for capacity(largest, false) > stats.LargestFree { // the longest request that the run can hold
		largest -= 256
	}
	big, ok := p.Alloc(largest)
	require.True(t, ok, "LargestFree %d keeps its promise", stats.LargestFree)
	p.Free(big)
	p.Free(blocks[0])
	require.Equal(t, whole, p.Stats().LargestFree)
	require.Equal(t, []uint64{1}, p.FreeSegments())
	_, ok = p.AllocPages(896 << 10)
	require.True(t, ok)
}

func TestPagesFitExactlyBetweenNeighbours(t *testing.T) {
	p := NewPool(4096)
	p.AddSegment(1, 4*4096)
	small, _ := p.Alloc(256)
	a, ok := p.AllocPages(1)
	require.True(t, ok)
	require.EqualValues(t, 2*4096, a.Offset)
	b, ok := p.AllocPages(4096)
	require.True(t, ok)
	require.EqualValues(t, 3*4096, b.Offset)
	_, ok = p.AllocPages(1)
	require.False(t, ok, "3 840 bytes are left, but no page")
	p.Free(small)
	c, ok := p.AllocPages(4096)
	require.True(t, ok, "melting the small block makes the page whole")
	require.EqualValues(t, 4096, c.Offset)
}

func TestRemovedSegmentIsNeverUsedAgain(t *testing.T) {
	p := NewPool(4096)
	p.AddSegment(1, 1<<20)
	a, _ := p.Alloc(256)
	b, _ := p.AllocPages(4096)
	p.AddSegment(2, 2<<20)
	require.Equal(t, []uint64{2}, p.FreeSegments())
	p.Free(a)
	p.Free(b)
	require.Equal(t, []uint64{1, 2}, p.FreeSegments())
	p.RemoveSegment(1)
	c, ok := p.Alloc(256)
	require.True(t, ok)
	require.EqualValues(t, 2, c.Segment, "the warm block went with its segment")
	require.Panics(t, func() { p.Free(a) })
	require.PanicsWithValue(t, "shm: removal of segment 2 while 256 bytes of it are leased", func() { p.RemoveSegment(2) })
	p.Free(c)
	p.RemoveSegment(2)
	require.Equal(t, PoolStats{}, p.Stats())
	_, ok = p.Alloc(1)
	require.False(t, ok)
}

// Our own broken invariants panic with the numbers.
func TestWrongFreePanicsWithNumbers(t *testing.T) {
	p := NewPool(4096)
	p.AddSegment(7, 1<<20)
	b, _ := p.Alloc(512)
	panics := func(want string, b Block) {
		t.Helper()
		defer func() { t.Helper(); require.Contains(t, recover(), want) }()
		p.Free(b)
		t.Error("no panic")
	}
	panics("no such segment", Block{Segment: 8, Offset: b.Offset, Length: b.Length})
	panics("no block begins there", Block{Segment: 7, Offset: b.Offset + 256, Length: b.Length})
	panics("no block begins there", Block{Segment: 7, Offset: b.Offset + 1, Length: b.Length})
	panics("no block begins there", Block{Segment: 7, Offset: 1 << 50, Length: b.Length})
	panics("has 512 bytes there", Block{Segment: 7, Offset: b.Offset, Length: 256})
	p.Free(b)
	panics("which are warm", b)
	panics("which are free", Block{Segment: 7, Offset: b.Offset + 512, Length: 1<<20 - 4096 - 512})
	require.Panics(t, func() { p.AddSegment(7, 1<<20) })
	require.Panics(t, func() { p.AddSegment(9, 4096) })
	require.Panics(t, func() { p.RemoveSegment(9) })
}

// Random histories against a model that knows only which bytes are leased (invariant 6).
func TestRandomHistoriesNeverOverlapAndLoseNothing(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	p, next := NewPool(4096), uint64(0)
	owner := map[uint64][]int{} // segment → owner of each 256 bytes, 0 = nobody
	live := map[int]Block{}
	var ids []int
	serial, leased := 0, uint64(0)

	for step := range 20_000 {
		// Waves, so that the pool fills up and drains again.
		if wave := step / 2000 % 2; len(ids) == 0 || random.IntN(100) < 60-25*wave {
			size, pages := uint64(random.ExpFloat64()*3000), random.IntN(8) == 0
			if random.IntN(200) == 0 {
				size *= 300
			}
			b := grow(t, p, &next, size, pages)
			serial++
			require.GreaterOrEqual(t, b.Length, size)
			require.Zero(t, b.Offset%BlockAlign)
			require.GreaterOrEqual(t, b.Offset, uint64(4096), "the header stays alone")
			if pages {
				require.Zero(t, b.Offset%PageAlign|b.Length%PageAlign)
			}
			if owner[b.Segment] == nil {
				owner[b.Segment] = make([]int, p.segments[b.Segment].size/BlockAlign)
			}
			for i := b.Offset / BlockAlign; i < (b.Offset+b.Length)/BlockAlign; i++ {
				if owner[b.Segment][i] != 0 {
					require.FailNow(t, "overlap", "seed %d step %d: %+v with %+v", seed, step, b, live[owner[b.Segment][i]])
				}
				owner[b.Segment][i] = serial
			}
			live[serial], ids = b, append(ids, serial)
			leased += b.Length
		} else {
			i := random.IntN(len(ids))
			id := ids[i]
			ids[i], ids = ids[len(ids)-1], ids[:len(ids)-1]
			b := live[id]
			delete(live, id)
			clear(owner[b.Segment][b.Offset/BlockAlign : (b.Offset+b.Length)/BlockAlign])
			p.Free(b)
			leased -= b.Length
		}
		if step%500 == 0 {
			for _, id := range p.FreeSegments() {
				if random.IntN(2) == 0 {
					p.RemoveSegment(id)
					delete(owner, id)
				}
			}
			checkChain(t, p, seed)
			stats := p.Stats()
			require.Equal(t, leased, stats.Leased)
			require.Equal(t, len(ids), stats.Blocks)
			require.Equal(t, stats.Held, stats.Leased+stats.Free+uint64(stats.Segments)*4096)
		}
	}
	for _, id := range ids {
		p.Free(live[id])
	}
	p.melt()
	for id, s := range p.segments {
		require.Equal(t, s.size-4096, p.extents[s.first].size, "segment %d is one free run again (seed %d)", id, seed)
	}
}

// checkChain walks every segment: no gap, no two free neighbours, every start recorded.
func checkChain(t *testing.T, p *Pool, seed uint64) {
	t.Helper()
	for id, s := range p.segments {
		at, before := p.reserved, int32(0)
		for i := s.first; i != 0; i = p.extents[i].after {
			e := p.extents[i]
			where := fmt.Sprintf("seed %d segment %d offset %d", seed, id, e.offset)
			require.Equal(t, at, e.offset, where)
			require.Equal(t, before, e.before, where)
			require.Equal(t, i, s.lookup(e.offset), where)
			require.False(t, e.state == free && before != 0 && p.extents[before].state == free, where)
			at, before = at+e.size, i
		}
		require.Equal(t, s.size, at)
	}
}

func BenchmarkWarmAllocFree(b *testing.B) {
	p := NewPool(4096)
	p.AddSegment(1, 1<<20)
	for b.Loop() {
		x, _ := p.Alloc(12288)
		p.Free(x)
	}
}
