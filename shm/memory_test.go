package shm

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

type header struct {
	magic uint64
	count uint32
	_     uint32
}

func TestWordsReadBackWhatTheyWroteAndTouchNothingElse(t *testing.T) {
	b := mapped(t, anyObject(t, 4096), true).Bytes()
	StoreU64(b, 8, math.MaxUint64)
	StoreU32(b, 16, 7)
	require.Equal(t, uint64(math.MaxUint64), LoadU64(b, 8))
	require.Equal(t, uint64(1), AddU64(b, 8, 2))
	require.True(t, CasU64(b, 8, 1, 5))
	require.False(t, CasU64(b, 8, 1, 6), "it holds 5")
	require.Equal(t, uint32(10), AddU32(b, 16, 3))
	require.True(t, CasU32(b, 16, 10, 11))
	require.False(t, CasU32(b, 16, 10, 12))
	require.Equal(t, uint32(11), LoadU32(b, 16))
	require.Equal(t, uint64(0), LoadU64(b, 0))
	require.Equal(t, uint32(0), LoadU32(b, 20))
	StoreU64(b, 4088, 1) // the last word of the region
}

// A bad offset of our own is our bug: a panic that carries the numbers.
func TestWordsPanicWithNumbersOutsideOrMisaligned(t *testing.T) {
	b := mapped(t, anyObject(t, 4096), true).Bytes()
	for name, c := range map[string]struct {
		f    func()
		want string
	}{
		"behind the end":   {func() { LoadU64(b, 4089) }, "8-byte word at offset 4089 lies outside a region of 4096 bytes"},
		"before the start": {func() { LoadU32(b, -4) }, "4-byte word at offset -4 lies outside a region of 4096 bytes"},
		"half inside":      {func() { StoreU32(b, 4093, 1) }, "offset 4093"},
		"misaligned":       {func() { StoreU64(b, 12, 1) }, "8-byte word at offset 12 of a region of 4096 bytes is not aligned"},
		"tiny region":      {func() { LoadU64(b[:4], 0) }, "region of 4 bytes"},
		"empty region":     {func() { LoadU32(nil, 0) }, "region of 0 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			defer func() { require.Contains(t, recover(), c.want) }()
			c.f()
			t.Error("no panic")
		})
	}
}

// Offsets and counts from peers are errors, also where their product overflows (R5).
func TestViewAndSliceRefuseWhatDoesNotLieInside(t *testing.T) {
	b := mapped(t, anyObject(t, 4096), true).Bytes()
	v, err := View[header](b, 4080)
	require.NoError(t, err)
	v.magic = 9
	require.Equal(t, uint64(9), LoadU64(b, 4080))
	s, err := Slice[uint64](b, 0, 512)
	require.NoError(t, err)
	require.Len(t, s, 512)
	empty, err := Slice[uint64](b, 4096, 0)
	require.NoError(t, err)
	require.Empty(t, empty)

	bad := func(err error) { t.Helper(); require.ErrorIs(t, err, ErrBounds) }
	_, err = View[header](b, 4088)
	bad(err)
	_, err = View[header](b, math.MaxUint64)
	bad(err)
	_, err = View[header](b, 4)
	bad(err)
	_, err = View[struct{}](b, 0)
	bad(err)
	_, err = Slice[uint64](b, 0, 513)
	bad(err)
	_, err = Slice[uint64](b, 0, -1)
	bad(err)
	_, err = Slice[[1 << 32]byte](b, 0, math.MaxInt)
	bad(err)
	_, err = Slice[uint64](b, 4097, 0)
	bad(err)
}

// A file shorter than the mapping would fault behind its end (B2): refused by numbers.
func TestMapRefusesAFileShorterThanAsked(t *testing.T) {
	o := anyObject(t, 4096)
	_, err := Map(o.File(), 8192, true)
	require.ErrorIs(t, err, ErrTooSmall)
	require.ErrorContains(t, err, "it has 4096 bytes, 8192 are expected")
	_, err = Map(o.File(), 0, true)
	require.Error(t, err)
}

// Reserved addresses stand for memory that the host cannot reach: a stray access is noticed at once.
func TestReservedAddressesFaultAndGoBack(t *testing.T) {
	m, err := Reserve(1 << 40) // more than any machine has
	require.NoError(t, err)
	b := m.Bytes()
	require.Len(t, b, 1<<40)
	require.ErrorIs(t, Guard(func() { b[1<<39] = 1 }), ErrFault)
	require.ErrorIs(t, Guard(func() { _ = append([]byte(nil), b[4096:8192]...) }), ErrFault)
	require.NoError(t, m.Close())
	require.Nil(t, m.Bytes())
	_, err = Reserve(0)
	require.Error(t, err)
}

func TestMappingCloseTwiceAndUseAfterwards(t *testing.T) {
	m, err := anyObject(t, 8192).Map(true)
	require.NoError(t, err)
	require.NoError(t, m.DontFork())
	require.NoError(t, m.Populate(true))
	require.NoError(t, m.Populate(false))
	require.NoError(t, m.Close())
	require.NoError(t, m.Close())
	require.Nil(t, m.Bytes())
	require.NoError(t, m.DontFork())
	require.NoError(t, m.Populate(true))
	require.ErrorIs(t, m.ProtectReadOnly(0, 4096), ErrBounds)
}

// Whatever the kernel says to huge pages: bytes stay as they are, seen through another mapping
// too. Where it gives them, the object lies in them.
func TestCollapseChangesNoByte(t *testing.T) {
	const size = 3*hugePage + 4096
	o := anyObject(t, size)
	m, other := mapped(t, o, true), mapped(t, o, false)
	b := m.Bytes()
	for i := range b {
		b[i] = byte(i >> 8)
	}
	want := slices.Clone(b)
	err := m.Collapse()
	require.True(t, bytes.Equal(want, b))
	require.True(t, bytes.Equal(want, other.Bytes()))
	b[hugePage] = 99
	require.EqualValues(t, 99, other.Bytes()[hugePage])
	require.NoError(t, m.Close())
	require.NoError(t, m.Collapse(), "nothing is mapped any more")
	t.Log("the kernel's answer:", err)
}

// GUARD (M1): a store into a protected page faults, its neighbour stays writable.
func TestProtectedPagesFaultOnStoreAndOnlyThose(t *testing.T) {
	m := mapped(t, anyObject(t, 3*4096), true)
	b := m.Bytes()
	require.NoError(t, m.ProtectReadOnly(4096, 4096))
	b[0], b[2*4096] = 1, 1
	require.ErrorIs(t, Guard(func() { b[4096] = 1 }), ErrFault)
	require.NoError(t, m.ProtectWritable(4096, 4096))
	b[4096] = 1
	require.ErrorIs(t, m.ProtectReadOnly(1, 4096), ErrBounds)
	require.ErrorIs(t, m.ProtectReadOnly(4096, math.MaxUint64-4095), ErrBounds)
	require.NoError(t, m.ProtectReadOnly(3*4096, 0))
}

// C10, D1: with a read-only descriptor the kernel refuses a writable mapping.
func TestReadOnlyDescriptorCannotBeMappedWritable(t *testing.T) {
	o := anyObject(t, 4096)
	f, err := o.ReadOnlyFile()
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	_, err = Map(f, 4096, true)
	require.ErrorIs(t, err, unix.EACCES)
	m, err := Map(f, 4096, false)
	require.NoError(t, err)
	require.Error(t, m.ProtectWritable(0, 4096))
	require.NoError(t, m.Close())
	_, err = f.WriteAt([]byte{1}, 0)
	require.Error(t, err)
}

func TestObjectsPagesAreReservedZeroAndPrivate(t *testing.T) {
	dir := shmDir(t)
	o, err := CreateObject(dir, "segment-1", 5<<20)
	require.NoError(t, err)
	defer func() { require.NoError(t, o.Close()) }()
	var st unix.Stat_t
	require.NoError(t, unix.Stat(o.Path(), &st))
	require.Equal(t, uint32(0o600), st.Mode&0o777)
	require.EqualValues(t, 5<<20, st.Size)
	require.EqualValues(t, 5<<20, st.Blocks*512, "every page exists before anybody maps it")
	b := mapped(t, o, true).Bytes()
	require.Zero(t, b[5<<20-1])

	again, err := OpenObject(dir, "segment-1")
	require.NoError(t, err)
	require.Equal(t, o.Size(), again.Size())
	require.NoError(t, again.Close())
	require.NoError(t, again.Close())
}

// S2, A25: a name is never given twice, and a replaced file is never taken for the object.
func TestObjectNamesAreNotReusedAndReplacementIsSeen(t *testing.T) {
	dir := shmDir(t)
	o, err := CreateObject(dir, "a", 4096)
	require.NoError(t, err)
	defer func() { require.NoError(t, o.Close()) }()
	_, err = CreateObject(dir, "a", 4096)
	require.ErrorIs(t, err, os.ErrExist)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1, "the refused attempt left nothing")

	require.NoError(t, os.Remove(o.Path()))
	require.NoError(t, os.WriteFile(o.Path(), make([]byte, 4096), 0o600))
	_, err = o.ReadOnlyFile()
	require.ErrorContains(t, err, "another file in its place")
	require.NoError(t, o.Remove())
	require.NoError(t, o.Remove(), "gone already is fine (A1)")

	require.NoError(t, os.Symlink("/etc/passwd", o.Path()))
	_, err = OpenObject(dir, "a")
	require.ErrorIs(t, err, unix.ELOOP)
	require.ErrorIs(t, err, ErrNotPlain)
	require.NoError(t, unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "directory"), 0o700))
	for _, name := range []string{"pipe", "directory"} {
		_, err = OpenObject(dir, name)
		require.ErrorIs(t, err, ErrNotPlain, name)
	}
	for _, name := range []string{"", ".", "..", "../a", "a/b", ".hidden", "a\x00b"} {
		_, err = CreateObject(dir, name, 4096)
		require.ErrorContains(t, err, "object name", name)
	}
}

// B1, B6: full is a named error with both numbers and the hint, and leaves nothing.
func TestFullFileSystemIsANamedErrorWithBothNumbers(t *testing.T) {
	dir := shmDir(t)
	var st unix.Statfs_t
	require.NoError(t, unix.Statfs(dir, &st))
	free := st.Bavail * uint64(st.Bsize)
	_, err := CreateObject(dir, "huge", free+1<<40)
	var full *NoSpaceError
	require.ErrorAs(t, err, &full)
	require.ErrorIs(t, err, unix.ENOSPC)
	require.Equal(t, free+1<<40, full.Need)
	require.InDelta(t, float64(free), float64(full.Available), 1<<30, "others use the machine too")
	require.Equal(t, "tmpfs", full.FileSystem)
	require.ErrorContains(t, err, "--shm-size=")
	require.ErrorContains(t, err, filepath.Join(dir, "huge"))
	entries, readErr := os.ReadDir(dir)
	require.NoError(t, readErr)
	require.Empty(t, entries)
	_, err = CreateObject(dir, "absurd", math.MaxUint64)
	require.Error(t, err)
}

// The same when the look was right but others took the space meanwhile, on a small tmpfs
// of our own: a rival takes one page between the look and the reservation.
func TestFullWhileReservingGivesBackWhatItTook(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", 0, "size=48m"); err != nil {
		skip(t, "mounting a tmpfs needs root: %v", err)
	}
	defer func() { require.NoError(t, unix.Unmount(dir, 0)) }()
	f, err := os.Create(filepath.Join(dir, "f"))
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	var st unix.Statfs_t
	require.NoError(t, unix.Statfs(dir, &st))
	free := st.Bavail * uint64(st.Bsize)
	rival, err := os.Create(filepath.Join(dir, "rival"))
	require.NoError(t, err)
	defer func() { require.NoError(t, rival.Close()) }()
	reserveAfterLook = func() { require.NoError(t, unix.Fallocate(int(rival.Fd()), 0, 0, 4096)) }
	defer func() { reserveAfterLook = func() {} }()
	err = reserve(f, f.Name(), free)
	var full *NoSpaceError
	require.ErrorAs(t, err, &full)
	require.Equal(t, free, full.Need)
	require.Equal(t, free-4096, full.Available, "what it had taken is given back")
	_, err = CreateObject(dir, "a", 64<<20)
	require.ErrorIs(t, err, unix.ENOSPC)
}

// S3, B4: the broker survives a client that truncates under it, in another process.
func TestGuardSurvivesTruncationByAnotherProcess(t *testing.T) {
	o := anyObject(t, 4*4096)
	b := mapped(t, o, true).Bytes()
	b[3*4096] = 1
	start(t, "truncate", o.Path()).end()

	before := debug.SetPanicOnFault(false)
	defer debug.SetPanicOnFault(before)
	reached := false
	err := Guard(func() {
		copy(make([]byte, 4096), b[3*4096:])
		reached = true
	})
	require.ErrorIs(t, err, ErrFault)
	require.False(t, reached)
	require.ErrorIs(t, Guard(func() { LoadU64(b, 3*4096) }), ErrFault)
	_, err = FutexWake(Word32(b, 3*4096), 1)
	require.ErrorIs(t, err, ErrFault, "the kernel's own look is an error, too")
	require.False(t, debug.SetPanicOnFault(false), "the former setting is restored")
}

func childTruncate(args []string) int {
	if err := os.Truncate(args[0], 0); err != nil {
		return failed(err)
	}
	return ready()
}

// Our own bugs are not a peer's: they pass through Guard.
func TestGuardLetsOtherPanicsThroughAndNests(t *testing.T) {
	require.PanicsWithValue(t, "ours", func() { _ = Guard(func() { panic("ours") }) })
	require.Panics(t, func() { _ = Guard(func() { var p *header; p.count = 1 }) }, "a nil pointer is a bug")
	require.NoError(t, Guard(func() {
		require.NoError(t, Guard(func() {}))
		require.True(t, debug.SetPanicOnFault(true), "the inner one leaves the outer one's setting")
	}))
	sum := 0
	require.Zero(t, testing.AllocsPerRun(100, func() { _ = Guard(func() { sum++ }) }))
}

func TestHostTokens(t *testing.T) {
	require.Equal(t, "node-1-example-org", hostToken("node-1.example.org"))
	require.Equal(t, "localhost", hostToken(""))
	require.Equal(t, "localhost", hostToken("…"))
	require.NotEmpty(t, HostName())
	boot, err := BootID()
	require.NoError(t, err)
	require.Len(t, boot, 36)
	id, err := HostID()
	require.NoError(t, err)
	require.Contains(t, id, boot)
}
