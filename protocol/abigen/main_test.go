package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestOutputsAreUpToDate: what is committed is what the source says (G1, G2).
func TestOutputsAreUpToDate(t *testing.T) {
	root, err := moduleRoot()
	require.NoError(t, err)
	m, err := load(filepath.Join(root, "protocol"))
	require.NoError(t, err)
	outputs, err := generate(m)
	require.NoError(t, err)
	again, err := generate(m)
	require.NoError(t, err)
	require.Equal(t, outputs, again, "G1: no map order")
	changed, err := stale(root, outputs)
	require.NoError(t, err)
	for _, o := range changed {
		t.Errorf("%s is stale: run %s", o.path, command)
	}
}

func TestStaleNamesFilesThatDifferOrAreMissing(t *testing.T) {
	root := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(root, "same"), []byte("a"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(root, "other"), []byte("b"), 0o600))
	changed, err := stale(root, []output{{"same", []byte("a")}, {"other", []byte("c")}, {"missing/x", nil}})
	require.NoError(t, err)
	require.Equal(t, []output{{"other", []byte("c")}, {"missing/x", nil}}, changed)
}

const head = "package protocol\n\nimport \"structs\"\n\nvar _ structs.HostLayout\n\ntype Status uint32\n\n"

func parse(t *testing.T, source string) (*model, error) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "region.go"), []byte(head+source), 0o600))
	return load(dir)
}

// TestFaultyLayoutsAreRefused: G3 and G4, one fault each.
func TestFaultyLayoutsAreRefused(t *testing.T) {
	structure := func(fields string) string {
		return "// S is one.\ntype S struct {\n_ structs.HostLayout\n" + fields + "}\n"
	}
	for _, c := range []struct{ name, source, want string }{
		{"hole between fields", structure("// A is one.\nA uint32\n// B is one.\nB uint64\n"), "S.B is at 8, but the field before it ends at 4"},
		{"hole at the end", structure("// A is one.\nA uint64\n// B is one.\nB uint8\n"), "S has 16 bytes, but its last field ends at 9"},
		{"signed field", structure("// A is one.\nA int64\n"), "S.A has type int64"},
		{"machine word", structure("// A is one.\nA uintptr\n"), "S.A has type uintptr"},
		{"pointer", structure("// A is one.\nA *uint64\n"), "S.A has type *uint64"},
		{"string", structure("// A is one.\nA string\n"), "S.A has type string"},
		{"array of one", structure("// A is one.\nA [1]uint64\n"), "S.A has type [1]uint64"},
		{"array of arrays", structure("// A is one.\nA [2][2]uint64\n"), "S.A has type [2][2]uint64"},
		{"named number that is no status", "type Other uint32\n" + structure("// A is one.\nA Other\n"), "S.A has type"},
		{"struct without the marker", "type Other struct{ A uint64 }\n" + structure("// A is one.\nA Other\n"), "S.A has type"},
		{"field without a comment", structure("A uint64\n"), "S.A has no comment"},
		{"struct without a comment", "type S struct {\n_ structs.HostLayout\n// A is one.\nA uint64\n}\n", "struct S has no comment"},
		{"constant without a comment", "const A = 1\n", "constant A has no comment"},
		{"negative constant", "// A is one.\nconst A = -1\n", "constant A = -1 is not an unsigned 64-bit integer"},
		{"text constant", "// A is one.\nconst A = \"x\"\n", "is not an unsigned 64-bit integer"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := parse(t, c.source)
			require.ErrorContains(t, err, "region.go:")
			require.ErrorContains(t, err, c.want)
		})
	}
}

func TestNestedStructsComeBeforeTheirUsers(t *testing.T) {
	m, err := parse(t, `// Outer uses Inner.
type Outer struct {
	_ structs.HostLayout
	// Inners are two.
	Inners [2]Inner
	// Result is a Status.
	Result Status
	// Pad is 0.
	Pad [4]uint8
}

// Inner is used.
type Inner struct {
	_ structs.HostLayout
	// Value is one.
	Value uint64
}

// hidden is not exported and may look as it likes.
type hidden struct{ a uint8; b uint64 }
`)
	require.NoError(t, err)
	ordered := m.ordered()
	require.Len(t, ordered, 2)
	require.Equal(t, "Inner", ordered[0].name)
	require.Equal(t, []field{
		{name: "Inners", doc: "Inners are two.", offset: 0, elem: "Inner", width: 8, count: 2},
		{name: "Result", doc: "Result is a Status.", offset: 16, elem: "u32", width: 4, count: 1},
		{name: "Pad", doc: "Pad is 0.", offset: 20, elem: "u8", width: 1, count: 4},
	}, ordered[1].fields)
}

// TestNamesInOtherLanguages: G2.
func TestNamesInOtherLanguages(t *testing.T) {
	for name, want := range map[string]string{
		"OffsetBytes": "offset_bytes", "OpID": "op_id", "ABIMajor": "abi_major", "StatusOK": "status_ok", "Uuid": "uuid",
		"CqEntries": "cq_entries", "StampNs": "stamp_ns", "All": "all", "DeviceIDMax": "device_id_max",
	} {
		require.Equal(t, want, snake(name))
	}
	require.Equal(t, "CBD_STATUS_INVALID_ARGUMENT", cConst("StatusInvalidArgument"))
	require.Equal(t, "cbd_abi_version_slot", cStruct("VersionSlot"))
}

func TestDrawingsBecomeFencedBlocks(t *testing.T) {
	got := markdown("Before:\n\n\ta -> b\n\n\tc\n\nAfter.\n")
	require.Equal(t, "Before:\n\n```text\na -> b\n\nc\n```\n\nAfter.", got)
	require.Equal(t, "```text\nx\n```", markdown("\tx\n"))
}
