package shm

import (
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// stage makes a stage's memory directory under a base of its own on the real tmpfs.
func stage(t *testing.T, name string) (base, dir string) {
	t.Helper()
	base = shmDir(t)
	dir = ShmDir(base, name)
	require.NoError(t, MakeDir(dir))
	return base, dir
}

func TestGenerationsAreNewerThanAllBeforeThemEvenIfTheClockGoesBack(t *testing.T) {
	_, dir := stage(t, "s")
	first, err := NewGeneration(dir)
	require.NoError(t, err)
	future := uint64(math.MaxInt64)
	require.NoError(t, os.Mkdir(filepath.Join(dir, strconv.FormatUint(future, 10)), 0o700))
	last, err := NewGeneration(dir)
	require.NoError(t, err)
	require.Equal(t, future+1, last.Number)
	require.NoError(t, VerifyDir(last.Path))

	for _, foreign := range []string{"007", "+7", "0", "notes", "12x", ".gone-5"} {
		require.NoError(t, os.Mkdir(filepath.Join(dir, foreign), 0o700))
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "77"), nil, 0o600)) // a number, but no directory
	there, err := Generations(dir)
	require.NoError(t, err)
	require.Len(t, there, 3)
	require.Equal(t, first.Number, there[0].Number)
	require.Equal(t, last, there[2])
	none, err := Generations(filepath.Join(dir, "absent"))
	require.NoError(t, err)
	require.Empty(t, none)
}

// A1, A3: what a user or a kill left half removed, or half made, is no obstacle.
func TestHalfRemovedAndHalfMadeGenerationsGo(t *testing.T) {
	base, dir := stage(t, "s")
	g, err := NewGeneration(dir)
	require.NoError(t, err)
	o, err := CreateObject(g.Path, "segment-1", 4096)
	require.NoError(t, err)
	require.NoError(t, o.Close())
	require.NoError(t, os.WriteFile(filepath.Join(g.Path, unfinished+"segment-2"), nil, 0o600))
	// A removal that was killed half-way left this one of the same number.
	require.NoError(t, os.MkdirAll(filepath.Join(dir, removing+fmt.Sprint(g.Number), "x"), 0o700))

	require.NoError(t, RemoveGeneration(g))
	require.NoError(t, RemoveGeneration(g), "gone already is fine")
	require.NoError(t, LeaveDir(dir))
	entries, err := os.ReadDir(base)
	require.NoError(t, err)
	require.Empty(t, entries, "nothing is left, the user's directory neither")
	g, err = NewGeneration(dir)
	require.NoError(t, err, "it makes what is missing above")
	require.DirExists(t, g.Path)
}

// S1: a start keeps one generation and removes its stage's others; another stage's stay.
func TestSweepKeepsOneGenerationAndOtherStages(t *testing.T) {
	base, dir := stage(t, "s")
	other := ShmDir(base, "other")
	foreign, err := NewGeneration(other)
	require.NoError(t, err)
	var all []Generation
	for range 4 {
		g, err := NewGeneration(dir)
		require.NoError(t, err)
		all = append(all, g)
	}
	require.NoError(t, os.Mkdir(filepath.Join(dir, removing+"1"), 0o700))
	held, err := LockDir(all[0].Path)
	require.NoError(t, err)
	removed, err := Sweep(dir, all[3].Number)
	require.NoError(t, err)
	require.Equal(t, []string{all[1].Path, all[2].Path}, removed)
	require.NoError(t, held.Unlock())
	removed, err = Sweep(dir, 0)
	require.NoError(t, err)
	require.Len(t, removed, 2)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, entries)
	require.DirExists(t, foreign.Path)
}

// A8, A9, A14, A26: whatever the dead leave, gc finds it by locks and removes it all.
func TestLeftoversGoOnlyWhenNeitherBrokerNorClientHoldsALock(t *testing.T) {
	base, dir := stage(t, "s")
	g, err := NewGeneration(dir)
	require.NoError(t, err)
	segment, err := CreateObject(g.Path, "segment-1", 1<<20)
	require.NoError(t, err)
	require.NoError(t, segment.Close())
	channel, err := CreateObject(g.Path, ChannelPrefix+"9", 8192)
	require.NoError(t, err)
	require.NoError(t, os.Mkdir(filepath.Join(filepath.Dir(dir), "not.a.stage"), 0o700))
	require.NoError(t, MakeDir(ShmDir(base, "private")))
	require.NoError(t, os.WriteFile(filepath.Join(ShmDir(base, "private"), "notes"), nil, 0o600))

	only := func() Leftover {
		t.Helper()
		all, err := Leftovers(base)
		require.NoError(t, err)
		require.Len(t, all, 1, "neither odd names nor directories without our files count")
		return all[0]
	}
	l := only()
	require.Equal(t, Leftover{Stage: "s", Path: dir, Bytes: 1<<20 + 8192, Files: 2}, l)

	// A broker holds the stage.
	broker, err := LockDir(dir)
	require.NoError(t, err)
	require.Contains(t, only().InUse, "is in use by")
	require.ErrorIs(t, RemoveLeftover(l), ErrLocked)
	require.NoError(t, broker.Unlock())

	// A client of a dead broker still holds its channel.
	client, err := channel.WritableFile()
	require.NoError(t, err)
	require.NoError(t, LockShared(client))
	require.Contains(t, only().InUse, "a client still uses "+channel.Path())
	require.ErrorIs(t, RemoveLeftover(l), ErrLocked)
	require.FileExists(t, channel.Path())
	require.NoError(t, client.Close())
	require.NoError(t, channel.Close())

	require.Empty(t, only().InUse)
	require.NoError(t, RemoveLeftover(l))
	require.NoError(t, RemoveLeftover(l), "two gc at once are fine")
	require.NoDirExists(t, dir)
	all, err := Leftovers(filepath.Join(base, "absent"))
	require.NoError(t, err)
	require.Empty(t, all)
}

// A killed broker leaves socket and credentials; gc takes those and nothing else.
func TestRuntimeLeftoversTakeOnlyTheBrokersFiles(t *testing.T) {
	xdg := privateDir(t)
	t.Setenv("XDG_RUNTIME_DIR", xdg)
	ours := func() []Leftover { // others may have stages under /tmp
		t.Helper()
		all, err := RuntimeLeftovers()
		require.NoError(t, err)
		var mine []Leftover
		for _, l := range all {
			if filepath.Dir(filepath.Dir(l.Path)) == xdg || filepath.Dir(l.Path) == xdg {
				mine = append(mine, l)
			}
		}
		return mine
	}
	abandon := func(dir string) {
		t.Helper()
		require.NoError(t, MakeDir(dir))
		l, err := Listen(filepath.Join(dir, AttachSocket))
		require.NoError(t, err)
		require.NoError(t, l.Close())
		require.NoError(t, os.WriteFile(filepath.Join(dir, NATSFile), []byte("{}"), 0o600))
	}
	dir := filepath.Join(xdg, "callboard", "s")
	abandon(dir)
	lock, err := LockDir(dir)
	require.NoError(t, err)
	require.Len(t, ours(), 1)
	require.NotEmpty(t, ours()[0].InUse)
	require.NoError(t, lock.Unlock())
	require.Equal(t, 2, ours()[0].Files)
	require.NoError(t, RemoveLeftover(ours()[0]))
	require.NoDirExists(t, filepath.Join(xdg, "callboard"), "the empty parent went, too")
	require.Empty(t, ours())

	// In a place that a user chose, files of the user's stay.
	chosen := filepath.Join(xdg, "chosen")
	t.Setenv(RuntimeEnv, chosen)
	require.Empty(t, ours())
	abandon(chosen)
	require.NoError(t, os.WriteFile(filepath.Join(chosen, "thesis.tex"), nil, 0o600))
	require.Len(t, ours(), 1)
	require.NoError(t, RemoveLeftover(ours()[0]))
	require.FileExists(t, filepath.Join(chosen, "thesis.tex"))
	require.NoFileExists(t, filepath.Join(chosen, AttachSocket))
	require.Empty(t, ours())
	_, err = net.Dial("unixpacket", filepath.Join(chosen, AttachSocket))
	require.Error(t, err)
}

// S1: the newest generation that nobody holds is taken up; one that somebody holds is not,
// and is not swept either. What was half made when its broker was killed goes.
func TestClaimGenerationTakesTheNewestThatNobodyHolds(t *testing.T) {
	_, dir := stage(t, "s")
	g, lock, err := ClaimGeneration(dir)
	require.NoError(t, err)
	require.Nil(t, lock, "there is none")
	require.Empty(t, g.Path)
	var all []Generation
	for range 3 {
		g, err := NewGeneration(dir)
		require.NoError(t, err)
		all = append(all, g)
	}
	held, err := all[2].Lock()
	require.NoError(t, err)
	defer held.Unlock()
	g, lock, err = ClaimGeneration(dir)
	require.NoError(t, err)
	require.Equal(t, all[1], g)
	defer lock.Unlock()
	_, err = g.Lock()
	require.ErrorIs(t, err, ErrLocked)
	swept, err := Sweep(dir, g.Number)
	require.NoError(t, err)
	require.Equal(t, []string{all[0].Path}, swept)

	o, err := CreateObject(g.Path, "segment-1", 4096)
	require.NoError(t, err)
	require.NoError(t, o.Close())
	draft := filepath.Join(g.Path, unfinished+"segment-2")
	require.NoError(t, os.MkdirAll(filepath.Join(draft, "full"), 0o700), "in whatever form")
	require.NoError(t, os.Mkdir(filepath.Join(g.Path, "directory"), 0o700))
	names, err := g.Objects()
	require.NoError(t, err)
	require.Equal(t, []string{"directory", "segment-1"}, names, "OpenObject says what is none")
	require.NoDirExists(t, draft)
}
