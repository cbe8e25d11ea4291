package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"callboard/integration/harness"
	"callboard/protocol"
)

// languages are those of the clients beside the one in Go.
var languages = []string{"C", "Python"}

// program gives the command line of readers/<name> in a language. The C one is built
// against the C client, the other runs on the Python that has the client.
func program(t *testing.T, language, name string) []string {
	t.Helper()
	if language == "Python" {
		return []string{python(t), filepath.Join("readers", name+".py")}
	}
	root, err := harness.Root()
	require.NoError(t, err)
	client := filepath.Join(root, "clients", "c")
	out, err := exec.Command("make", "--silent", "-C", client, "all").CombinedOutput()
	require.NoError(t, err, "%s", out)
	compiler := "cc"
	if named := os.Getenv("CC"); named != "" {
		compiler = named
	}
	path := filepath.Join(t.TempDir(), name)
	arguments := []string{"-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread",
		"-I" + filepath.Join(client, "include"), "-I" + filepath.Join(client, "tests"),
		filepath.Join("readers", name+".c"), filepath.Join(client, "build", "libcallboard.a"), "-o", path}
	out, err = exec.Command(compiler, arguments...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return []string{path}
}

// python is a Python that has the client.
func python(t *testing.T) string {
	t.Helper()
	path := os.Getenv("CALLBOARD_PYTHON")
	if path == "" {
		skip(t, "CALLBOARD_PYTHON names no Python that has the client; `make test` sets it")
	}
	if out, err := exec.Command(path, "-c", "import callboard").CombinedOutput(); err != nil {
		skip(t, fmt.Sprintf("%s cannot import the client: %s", path, out))
	}
	return path
}

// latestIn reads an attribute's first element in another language; err has what the
// program wrote.
func latestIn(reader []string, env []string, attribute string) (string, error) {
	command := exec.Command(reader[0], append(reader[1:len(reader):len(reader)], "latest", attribute)...)
	command.Env = env
	out, err := command.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return strings.TrimSpace(string(out)), nil
}

// The stress with one reader in each language side by side: what the C client and the
// Python client see of two producers is as whole as what the Go client sees. Behaviour 146;
// field reports E1, E5; rules V1-V4, S4.
func TestStressReadersOfEveryLanguage(t *testing.T) {
	const least = 1000 // snapshots of each of the others
	limit := 3 * time.Second
	if testing.Short() {
		limit /= 2
	}
	if *stressFor > 0 {
		limit = *stressFor
	}
	commands := map[string][]string{}
	for _, language := range languages {
		commands[language] = program(t, language, "reader")
	}
	r := stress(t, limit, func(s *stage) (readers []*harness.Process) {
		readers = append(readers, spawn(t, "stress-reader", nil, s.Env()))
		for _, language := range languages {
			readers = append(readers, spawnAs(t, "stress-reader", nil, s.Env(), func(c *exec.Cmd) {
				c.Path = commands[language][0]
				c.Args = append(commands[language], "stress", fmt.Sprint(least))
			}))
		}
		return readers
	})
	if *injectTear {
		for i, language := range append([]string{"Go"}, languages...) {
			require.Positive(t, r.readers[i].Torn, "pinned blocks were used anew and the reader in %s did not notice", language)
		}
		t.Logf("--inject-tear reports %d torn rows, as it must; the first trouble: %s", r.torn, r.first)
		return
	}
	r.requireWhole(t)
	for i, language := range languages {
		require.GreaterOrEqual(t, r.readers[1+i].Snapshots, uint64(least), "snapshots of the reader in %s", language)
	}
}

// shared are all structs that processes share, as Go sees them.
var shared = []any{
	protocol.RegionHeader{}, protocol.Ref{}, protocol.BlockRef{}, protocol.Doorbell{}, protocol.MessageHeader{},
	protocol.HelloRequest{}, protocol.HelloReply{}, protocol.SegmentRequest{}, protocol.SegmentReply{}, protocol.ErrorReply{},
	protocol.TakeoverRequest{}, protocol.TakeoverReply{}, protocol.DeviceRequest{}, protocol.DeviceReply{},
	protocol.ChannelHeader{}, protocol.ChannelControl{}, protocol.PinSlot{}, protocol.SubmissionEntry{}, protocol.CompletionEntry{},
	protocol.StringList{}, protocol.FilterArguments{}, protocol.FilterPredicate{}, protocol.Schema{}, protocol.WriteArguments{}, protocol.Selection{}, protocol.WriteEntry{},
	protocol.MapArguments{}, protocol.UnmapArguments{}, protocol.SealArguments{}, protocol.DeclareArguments{},
	protocol.GroupDescriptor{}, protocol.ClaimResults{}, protocol.MirrorResults{}, protocol.RecordHeader{}, protocol.DirectoryHeader{}, protocol.AttributeEntry{},
	protocol.VersionSlot{}, protocol.SlotPage{}, protocol.LayoutHeader{}, protocol.LayoutRow{}, protocol.RowRef{},
	protocol.TombstoneRow{}, protocol.FloorTable{}, protocol.FloorRow{}, protocol.StringEntry{}, protocol.SegmentEntry{},
	protocol.RecordEntry{},
}

// The three clients, as they were built here, lay out every shared struct alike: each
// says its sizes and offsets at run time. A struct that one of them lacks shows as well.
// Field report D4; rule K1.
func TestD4LayoutsAgreeInEveryLanguage(t *testing.T) {
	var ours strings.Builder
	for _, v := range shared {
		of := reflect.TypeOf(v)
		fmt.Fprintf(&ours, "%s %d\n", of.Name(), of.Size())
		for i := range of.NumField() {
			if f := of.Field(i); f.Name != "_" {
				fmt.Fprintf(&ours, "%s.%s %d %d\n", of.Name(), f.Name, f.Offset, f.Type.Size())
			}
		}
	}
	// Names are spelt as each language does: BlockRef.OffsetBytes, BlockRef.offset_bytes.
	plain := func(listing string) []string {
		return strings.Split(strings.ToLower(strings.ReplaceAll(listing, "_", "")), "\n")
	}
	for _, language := range languages {
		t.Run(language, func(t *testing.T) {
			command := program(t, language, "layout")
			out, err := exec.Command(command[0], command[1:]...).CombinedOutput()
			require.NoError(t, err, "%s", out)
			require.Equal(t, plain(ours.String()), plain(string(out)))
		})
	}
}
