package ring

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"callboard/protocol"
)

// canaryBytes stand before and behind a region under test; nobody may touch them.
const canaryBytes = 4096

// hostile hands a whole region of any bytes to every reader. Each must answer with
// a value that holds its promise or with an error; a panic or a changed canary
// fails the test.
func hostile(t *testing.T, data []byte) {
	// As a channel that says itself what it is.
	whole := heapBytes(uint64(len(data)))
	copy(whole, data)
	if l, _, err := ReadHeader(whole); err == nil {
		everyReader(t, whole, l)
	}
	// As the content of a channel whose layout the broker made.
	l, err := NewLayout(2, 4, 16, PageBytes, PageBytes)
	require.NoError(t, err)
	fenced := heapBytes(l.TotalBytes + 2*canaryBytes)
	mem := fenced[canaryBytes:][:l.TotalBytes:l.TotalBytes]
	for at := 0; at < len(mem) && len(data) > 0; at += copy(mem[at:], data) {
	}
	everyReader(t, mem, l)
	require.Equal(t, make([]byte, canaryBytes), fenced[:canaryBytes], "a reader wrote before the channel")
	require.Equal(t, make([]byte, canaryBytes), fenced[canaryBytes+l.TotalBytes:], "a reader wrote behind the channel")
}

func everyReader(t *testing.T, mem []byte, l Layout) {
	bell, err := NewBell(heapBytes(protocol.DoorbellBytes), heapBytes(protocol.DirectoryBytes))
	require.NoError(t, err)
	server, err := NewServer(mem, l)
	require.NoError(t, err)
	client, err := NewClient(mem, l, bell)
	require.NoError(t, err)
	pins, err := NewPins(mem, l)
	require.NoError(t, err)
	var typed *CorruptError

	dst := make([]protocol.SubmissionEntry, 3)
	n, err := server.Drain(dst)
	if err != nil {
		require.ErrorAs(t, err, &typed)
	}
	for i := range dst[:n] {
		e := &dst[i]
		require.NoError(t, l.CheckEntry(e))
		room, err := server.Arguments(e.ArgumentOffsetBytes, e.ArgumentBytes)
		require.NoError(t, err, "what Drain lets through has its room")
		require.Len(t, room, int(e.ArgumentBytes))
		_, err = server.Result(e.ResultOffsetBytes, e.ResultBytes)
		require.NoError(t, err)
		server.Complete(&protocol.CompletionEntry{OpID: e.OpID})
	}
	if err := pins.Scan(func(slot int, epoch uint64, _ uint32) {
		require.Less(t, slot, int(l.PinCount))
		require.NotZero(t, epoch)
	}); err != nil {
		require.ErrorAs(t, err, &typed)
	}
	word := func(at int) uint32 { return binary.LittleEndian.Uint32(mem[at%(len(mem)-4):]) }
	for at := range 16 {
		if room, err := server.Arguments(word(at*4), word(at*4+4)); err == nil {
			require.Len(t, room, int(word(at*4+4)))
		}
		if _, err := pins.Store(word(at*8), 5); err != nil {
			require.ErrorAs(t, err, &typed)
		}
	}
	var c protocol.CompletionEntry
	for range 3 {
		e := op(uint64(client.Outstanding()) + 1)
		_ = client.Submit(&e)
		ok, err := client.Poll(&c)
		require.False(t, ok && err != nil)
	}
	// The client's words are honest now, the ring generation is not: still no panic.
	_, _ = server.Drain(dst)
	server.Flush()
	_, err = client.Wait(client.Listen()+1, TurnMax)
	require.NoError(t, err)
}

// region makes bytes that get past the first checks: words that are often small,
// often a limit or beside one, sometimes anything.
func region(random *rand.Rand, sizeBytes int) []byte {
	data := make([]byte, sizeBytes)
	for at := 0; at+8 <= len(data); at += 8 {
		var word uint64
		switch random.IntN(8) {
		case 0, 1:
			word = random.Uint64N(6)
		case 2:
			word = uint64(random.Uint32N(20)) | uint64(random.Uint32N(20))<<32
		case 3:
			word = random.Uint64()
		case 4:
			word = -random.Uint64N(3)
		case 5:
			word = 4096 + random.Uint64N(17) - 8
		}
		binary.LittleEndian.PutUint64(data[at:], word)
	}
	return data
}

func TestRandomRegionsNeverPanicAnyReader(t *testing.T) {
	const seed = 5
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	l, err := NewLayout(2, 4, 16, PageBytes, PageBytes)
	require.NoError(t, err)
	for range 500 {
		hostile(t, region(random, random.IntN(int(l.TotalBytes))))
		// A true header over random content, one word of it spoiled half of the time.
		data := region(random, int(l.TotalBytes))
		require.NoError(t, l.WriteHeader(data, Identity{}))
		if random.IntN(2) == 0 {
			copy(data[8*random.IntN(20):], region(random, 8))
		}
		hostile(t, data)
	}
}

func FuzzRegion(f *testing.F) {
	l, err := NewLayout(1, 1, 1, PageBytes, PageBytes)
	require.NoError(f, err)
	mem := heapBytes(l.TotalBytes)
	require.NoError(f, l.WriteHeader(mem, Identity{Name: "fuzz"}))
	f.Add(mem)
	f.Add([]byte{})
	f.Add([]byte{1})
	f.Add(region(rand.New(rand.NewPCG(1, 1)), 8192))
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 1<<20 {
			data = data[:1<<20]
		}
		hostile(t, data)
	})
}
