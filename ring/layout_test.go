package ring

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"callboard/protocol"
)

// TestLayoutOfZerosTakesTheDefaults is rule R1's sizes.
func TestLayoutOfZerosTakesTheDefaults(t *testing.T) {
	l, err := NewLayout(0, 0, 0, 0, 0)
	require.NoError(t, err)
	require.Equal(t, Layout{
		SqEntries: 256, CqEntries: 512, PinCount: 4096, ArgumentBytes: 1 << 20, ResultBytes: 1 << 20,
		SqOffset:       4096,
		CqOffset:       4096 + 256*64,
		PinOffset:      4096 + 256*64 + 512*64,
		ArgumentOffset: 4096 + 256*64 + 512*64 + 4096*16,
		ResultOffset:   4096 + 256*64 + 512*64 + 4096*16 + 1<<20,
		TotalBytes:     4096 + 256*64 + 512*64 + 4096*16 + 2<<20,
	}, l)
}

func TestLayoutRoundsPartsUpToPages(t *testing.T) {
	l, err := NewLayout(1, 2, 3, 1, 4097)
	require.NoError(t, err)
	require.Equal(t, []uint64{4096, 8192, 12288, 16384, 20480, 28672},
		[]uint64{l.SqOffset, l.CqOffset, l.PinOffset, l.ArgumentOffset, l.ResultOffset, l.TotalBytes})
	require.Equal(t, []uint32{4096, 8192}, []uint32{l.ArgumentBytes, l.ResultBytes})
}

func TestLayoutRefusesSizesBeyondTheBoundsAndNamesThem(t *testing.T) {
	for _, c := range []struct {
		sq, cq, pins, arguments, results uint32
		want                             string
	}{
		{sq: 3, want: "SqEntries is 3, expected a power of two such as 4"},
		{sq: 65536, want: "SqEntries is 65536, expected at most 32768"},
		{cq: 32767, want: "CqEntries is 32767, expected a power of two such as 32768"},
		{cq: 1 << 31, want: "CqEntries is 2147483648, expected at most 32768"},
		{pins: 65537, want: "PinCount is 65537, expected at most 65536"},
		{arguments: 64<<20 + 1, want: "ArgumentBytes is 67108865, expected at most 67108864"},
		{results: 1<<32 - 1, want: "ResultBytes is 4294967295, expected at most 67108864"},
	} {
		_, err := NewLayout(c.sq, c.cq, c.pins, c.arguments, c.results)
		require.ErrorIs(t, err, ErrLayout)
		require.ErrorContains(t, err, c.want)
	}
	_, err := NewLayout(32768, 32768, 65536, 64<<20, 64<<20)
	require.NoError(t, err, "the bounds themselves are allowed")
}

func TestHeaderComesBackAsItWasWritten(t *testing.T) {
	l, err := NewLayout(8, 16, 100, 0, 12345)
	require.NoError(t, err)
	mem := heapBytes(l.TotalBytes)
	id := Identity{Incarnation: 1, Generation: 2, BrokerIncarnation: 3, RingGeneration: 4, Features: 5, Flags: 6, Name: "simulator"}
	require.NoError(t, l.WriteHeader(mem, id))
	gotLayout, gotID, err := ReadHeader(mem)
	require.NoError(t, err)
	require.Equal(t, l, gotLayout)
	require.Equal(t, id, gotID)
}

// TestHeaderThatLiesIsRefusedWithTheFieldNamed changes one field at a time.
func TestHeaderThatLiesIsRefusedWithTheFieldNamed(t *testing.T) {
	le := binary.LittleEndian
	for _, c := range []struct {
		offset int // of a word in ChannelHeader
		width  int
		value  uint64
		want   string
	}{
		{0, 8, protocol.MagicSegment, "Magic"},
		{8, 4, 0, "has not finished"},
		{8, 4, 2 << 16, "version 2.0, this library 1.0"},
		{12, 4, 64, "HeaderBytes is 64, expected at least 256"},
		{12, 4, 1032, "HeaderBytes is 1032, expected at most 1024"},
		{16, 8, 4096, "SizeBytes is 4096, expected exactly"},
		{80, 8, 0, "SqOffsetBytes is 0, expected at least 4096"},
		{80, 8, 4100, "SqOffsetBytes is 4100, expected a multiple of 4096"},
		{80, 8, 1<<64 - 4096, "SqOffsetBytes is 18446744073709547520, expected at most"},
		{88, 8, 4096, "CqOffsetBytes is 4096, expected at least"},
		{104, 8, 1 << 40, "ArgumentOffsetBytes is 1099511627776, expected at most"},
		{112, 8, 4096, "ResultOffsetBytes is 4096, expected at least"},
		{120, 4, 1 << 26, "ArgumentOffsetBytes is"},
		{120, 4, 1<<26 + 1, "ArgumentBytes is 67108865, expected at most"},
		{124, 4, 0, "ResultBytes is 0, expected at least 1"},
		{128, 4, 7, "SqEntries is 7, expected a power of two"},
		{128, 4, 128, "CqOffsetBytes is 8192, expected at least"},
		{132, 4, 0, "CqEntries is 0"},
		{136, 4, 65536, "PinOffsetBytes is"},
		{136, 4, 65537, "PinCount is 65537"},
	} {
		p := newPair(t, 4, 4)
		if c.width == 8 {
			le.PutUint64(p.mem[c.offset:], c.value)
		} else {
			le.PutUint32(p.mem[c.offset:], uint32(c.value))
		}
		_, _, err := ReadHeader(p.mem)
		require.ErrorContains(t, err, c.want, "offset %d value %d", c.offset, c.value)
	}
}

func TestHeaderOfALaterMinorVersionIsRead(t *testing.T) {
	p := newPair(t, 4, 4)
	binary.LittleEndian.PutUint32(p.mem[8:], protocol.VersionWord+1)
	binary.LittleEndian.PutUint32(p.mem[12:], 512)
	_, _, err := ReadHeader(p.mem)
	require.NoError(t, err)
}

func TestMemoryThatIsNoChannelIsRefusedByEveryone(t *testing.T) {
	p := newPair(t, 4, 4)
	for name, mem := range map[string][]byte{
		"nil": nil, "one byte": p.mem[:1], "less than a page": p.mem[:4088],
		"cut": p.mem[:len(p.mem)-8], "misaligned": heapBytes(uint64(len(p.mem)) + 1)[1:],
	} {
		_, _, err := ReadHeader(mem)
		require.Error(t, err, name)
		require.Error(t, p.layout.WriteHeader(mem, Identity{}), name)
		_, err = NewClient(mem, p.layout, p.bell)
		require.Error(t, err, name)
		_, err = NewServer(mem, p.layout)
		require.Error(t, err, name)
		_, err = NewPins(mem, p.layout)
		require.Error(t, err, name)
		_, err = NewPinTable(mem, p.layout)
		require.Error(t, err, name)
	}
	_, err := NewBell(p.doorbell[:128], p.directory)
	require.ErrorContains(t, err, "doorbell has 128 bytes")
	_, err = NewBell(p.doorbell, p.directory[:1024])
	require.ErrorContains(t, err, "directory has 1024 bytes")
}

// TestRoomsAreCheckedAtTheirEdges: offset and size together may wrap 32 bits.
func TestRoomsAreCheckedAtTheirEdges(t *testing.T) {
	p := newPair(t, 4, 4)
	for _, c := range []struct {
		offset, size uint32
		ok           bool
	}{
		{0, 0, true}, {0, 4096, true}, {4088, 8, true}, {4096, 0, true}, {8, 1, true},
		{0, 4097, false}, {4088, 9, false}, {4104, 0, false}, {4, 4, false}, {4095, 1, false},
		{8, 1<<32 - 8, false}, {1<<32 - 8, 8, false}, {1<<32 - 8, 1<<32 - 1, false},
	} {
		for _, room := range []func(uint32, uint32) ([]byte, error){p.server.Arguments, p.server.Result} {
			got, err := room(c.offset, c.size)
			require.Equal(t, c.ok, err == nil, fmt.Sprint(c))
			if c.ok {
				require.Len(t, got, int(c.size))
				require.Equal(t, int(c.size), cap(got), "an append must not reach the neighbour's room")
			}
		}
		_, err := p.server.CopyArguments(nil, c.offset, c.size)
		require.Equal(t, c.ok, err == nil, fmt.Sprint(c))
	}
}
