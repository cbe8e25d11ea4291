package protocol

import (
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// random makes a generator whose seed the log names.
func random(t *testing.T) *rand.Rand {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, seed))
}

// TestStatusNamesAndTextsAreDistinctAndNeverEmpty: behaviour 222.
func TestStatusNamesAndTextsAreDistinctAndNeverEmpty(t *testing.T) {
	names, texts := map[string]Status{}, map[string]Status{}
	for s := range Status(StatusCount) {
		require.Regexp(t, `^[A-Z]+(_[A-Z]+)*$`, s.String())
		require.NotEmpty(t, strings.TrimSpace(s.Text()))
		require.NotContains(t, names, s.String())
		require.NotContains(t, texts, s.Text())
		names[s.String()], texts[s.Text()] = s, s
	}
	// The constants and the table of names cannot drift apart.
	statuses := 0
	for _, c := range listedConstants {
		if name, ok := strings.CutPrefix(c.name, "Status"); ok && c.name != "StatusCount" {
			statuses++
			require.EqualValues(t, c.value, names[upperSnake(name)], c.name)
		}
	}
	require.Equal(t, StatusCount, statuses)
}

func upperSnake(name string) string {
	var b strings.Builder
	for i := range len(name) {
		if i > 0 && name[i] >= 'A' && name[i] <= 'Z' && name[i-1] >= 'a' {
			b.WriteByte('_')
		}
		b.WriteByte(name[i])
	}
	return strings.ToUpper(b.String())
}

func TestUnknownStatusNamesItsNumber(t *testing.T) {
	for _, s := range []Status{StatusCount, 4294967295} {
		require.Contains(t, s.String(), itoa(uint32(s)))
		require.Contains(t, s.Text(), itoa(uint32(s)))
	}
	require.Equal(t, "STATUS_20", Status(20).String())
}

func TestVersionTextNamesMajorAndMinor(t *testing.T) {
	require.Equal(t, "1.0", VersionText(VersionWord))
	require.Equal(t, "65535.10", VersionText(65535<<16|10))
	require.Equal(t, "0.0", VersionText(0))
}

// TestPagePlaceIsDenseFromTheFirstPageToTheLast: entries fill page after page, none
// twice, and what 24 pages hold covers the indices in use.
func TestPagePlaceIsDenseFromTheFirstPageToTheLast(t *testing.T) {
	for _, base := range []uint64{1, AttributePageBase, StringPageBase} {
		page, place := 0, uint64(0)
		for i := range uint64(20000) {
			gotPage, gotPlace := PagePlace(base, i)
			require.Equal(t, [2]uint64{uint64(page), place}, [2]uint64{uint64(gotPage), gotPlace}, "base %d entry %d", base, i)
			if place++; place == base<<page {
				page, place = page+1, 0
			}
		}
	}
	last := uint64(AttributePageBase)<<24 - AttributePageBase - 1
	page, place := PagePlace(AttributePageBase, last)
	require.Equal(t, len(DirectoryHeader{}.AttributePages)-1, page)
	require.EqualValues(t, AttributePageBase<<23-1, place)
	page, place = PagePlace(AttributePageBase, last+1)
	require.Equal(t, 24, page)
	require.Zero(t, place)
}

// TestStringIDOfAnotherGenerationIsRefused: rule L3.
func TestStringIDOfAnotherGenerationIsRefused(t *testing.T) {
	r := random(t)
	for range 1000 {
		tag, i := IdentityTagOf(r.Uint64()), r.Uint64N(1<<40-1)
		id := StringID(tag, i)
		require.NotZero(t, id)
		got, ok := StringIndex(tag, id)
		require.True(t, ok)
		require.Equal(t, i, got)
		for _, other := range []uint64{tag ^ 1, tag ^ 1<<23} {
			_, ok = StringIndex(other, id)
			require.False(t, ok, "tag %#x id %#x", other, id)
		}
		_, ok = StringIndex(tag, tag<<40)
		require.False(t, ok, "lower 40 bits are 0")
	}
	_, ok := StringIndex(0, 0)
	require.False(t, ok, "0 is no id, whatever the tag")
}

func TestIdentityTagIsNeverZeroAndHas24Bits(t *testing.T) {
	seen := map[uint64]bool{}
	for g := range uint64(10000) {
		tag := IdentityTagOf(g)
		require.NotZero(t, tag)
		require.Less(t, tag, uint64(1<<24))
		seen[tag] = true
	}
	require.Equal(t, uint64(1), IdentityTagOf(0), "mix(0) is 0, and 0 is no tag")
	require.Greater(t, len(seen), 9900, "neighbouring generations have different tags")
}

// TestHashStringIsFNV1a: the published test vectors of the function.
func TestHashStringIsFNV1a(t *testing.T) {
	require.Equal(t, uint64(0xcbf29ce484222325), HashString(""))
	require.Equal(t, uint64(0xaf63dc4c8601ec8c), HashString("a"))
	require.Equal(t, uint64(0x85944171f73967e8), HashString("foobar"))
}

// entry makes a record entry that is in use.
func entry(r *rand.Rand) RecordEntry {
	return RecordEntry{
		AttributeSlot: r.Uint64(), Birth: 1 + r.Uint64N(1<<40), Death: r.Uint64(),
		Block: BlockRef{Segment: r.Uint64(), OffsetBytes: r.Uint64(), LengthBytes: r.Uint64()},
		Rows:  r.Uint64(), LayoutGeneration: r.Uint64(),
	}
}

func sum(entries []RecordEntry) (total uint64) {
	for i := range entries {
		total += RecordEntryHash(uint64(i), &entries[i])
	}
	return total
}

// TestRecordSumFollowsSingleChangesInAnyOrder: a seal adds only what changed, and the sum
// is that of the whole table (rule B2).
func TestRecordSumFollowsSingleChangesInAnyOrder(t *testing.T) {
	r := random(t)
	entries := make([]RecordEntry, 64)
	running := uint64(0)
	for range 2000 {
		i := r.IntN(len(entries))
		running -= RecordEntryHash(uint64(i), &entries[i])
		entries[i] = RecordEntry{}
		if r.IntN(3) > 0 {
			entries[i] = entry(r)
		}
		running += RecordEntryHash(uint64(i), &entries[i])
	}
	require.Equal(t, sum(entries), running)
	clear(entries)
	require.Zero(t, sum(entries), "free entries count for nothing")
}

// TestRecordHashSeesEveryFieldAndThePlace: two entries that change places, or one bit
// anywhere, give another sum (rule B2).
func TestRecordHashSeesEveryFieldAndThePlace(t *testing.T) {
	r := random(t)
	a, b := entry(r), entry(r)
	require.NotEqual(t, sum([]RecordEntry{a, b}), sum([]RecordEntry{b, a}))
	before := RecordEntryHash(7, &a)
	flipped := map[uint64]bool{before: true}
	for _, word := range words(reflect.ValueOf(&a).Elem()) {
		for bit := range 64 {
			old := word.Uint()
			word.SetUint(old ^ 1<<bit)
			h := RecordEntryHash(7, &a)
			require.False(t, flipped[h], "bit %d", bit)
			flipped[h] = true
			word.SetUint(old)
		}
	}
	require.Len(t, flipped, 1+8*64)
	free := RecordEntry{AttributeSlot: 9, Death: 3}
	require.Zero(t, RecordEntryHash(7, &free), "birth 0 is a free entry whatever else stands there")
}

// TestRecordChecksumSeesEveryWordButItselfAndThePages: a torn header does not commit.
func TestRecordChecksumSeesEveryWordButItselfAndThePages(t *testing.T) {
	h := RecordHeader{Epoch: 17, EntryCount: 3, EntrySum: 5, AttributeCount: 7, StringCount: 9, SegmentCount: 11, LayoutGeneration: 13}
	seen := map[uint64]bool{RecordChecksum(&h): true}
	fields := words(reflect.ValueOf(&h).Elem())[:7]
	for i, word := range fields {
		word.SetUint(word.Uint() + 1)
		require.False(t, seen[RecordChecksum(&h)], "word %d", i)
		seen[RecordChecksum(&h)] = true
		word.SetUint(word.Uint() - 1)
	}
	changed := h
	changed.Checksum, changed.Pages[3] = 1, Ref{Segment: 4, OffsetBytes: 5}
	require.Equal(t, RecordChecksum(&h), RecordChecksum(&changed))
	require.NotZero(t, RecordChecksum(&RecordHeader{}), "a page of zeros is no record")
}

// words returns every uint64 of v in order.
func words(v reflect.Value) (out []reflect.Value) {
	switch v.Kind() {
	case reflect.Uint64:
		return []reflect.Value{v}
	case reflect.Struct:
		for _, f := range wireFields(v.Type()) {
			out = append(out, words(v.FieldByIndex(f.Index))...)
		}
	case reflect.Array:
		for i := range v.Len() {
			out = append(out, words(v.Index(i))...)
		}
	}
	return out
}
