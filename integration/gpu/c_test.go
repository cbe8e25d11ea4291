package gpu

import (
	"bufio"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"callboard/integration/harness"
)

// cProgram is where clients/c/tests/test_cuda_live.c was built, which hears what to do by
// its arguments and says in a line what came of each: beside this binary, or now.
func cProgram(t *testing.T) string {
	t.Helper()
	return programOfC(t, "test_cuda_live", "make", "cc")
}

// programOfC is where a program of clients/c was built: beside this binary, or now.
func programOfC(t *testing.T, name string, tools ...string) string {
	t.Helper()
	if beside := besideUs(name); beside != "" {
		return beside
	}
	root, err := harness.Root()
	if err != nil {
		skip(t, "neither the C program nor its sources are here: "+err.Error())
	}
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			skip(t, tool+" is not here, with which the C client is built")
		}
	}
	client := filepath.Join(root, "clients", "c")
	if out, err := exec.Command("make", "--silent", "-C", client, "build/"+name).CombinedOutput(); err != nil {
		t.Fatalf("building %s: %v\n%s", name, err, out)
	}
	return filepath.Join(client, "build", name)
}

// inC runs the C program to its end; how: "with" or "without" libcallboard_cuda enabled. It has to give everything back.
func (m *machine) inC(program, how string, orders ...string) []string {
	m.t.Helper()
	c := m.commandC(program, how, orders...)
	var errors strings.Builder
	c.Stderr = &errors
	out, err := c.Output()
	require.NoError(m.t, err, "%q printed\n%s\n%s", orders, out, &errors)
	m.gaveBack(c)
	return strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
}

func (m *machine) commandC(program, how string, orders ...string) *exec.Cmd {
	c := exec.Command(program, append([]string{how}, orders...)...)
	c.Env = append(append(m.Env(), m.env...), "CUDAEMU_DELAY_US=10000") // a row is filled by an operation each, so the last is late
	return c
}

func (m *machine) gaveBack(c *exec.Cmd) {
	m.t.Helper()
	for _, p := range m.report() {
		if driver.emulated && p.PID == c.Process.Pid {
			require.Zero(m.t, p.Counts, "the C program did not give everything back")
		}
	}
}

// TestCxxOwners: the forms in C++ of streams, copies and publishing with options, with exceptions and without.
func TestCxxOwners(t *testing.T) {
	for _, name := range []string{"live_cxx17", "live_cxx17_no_exceptions"} {
		t.Run(name, func(t *testing.T) {
			program := programOfC(t, name, "make", "cc", "c++")
			m := start(t)
			require.Equal(t, []string{"ok"}, m.inC(program, m.Stage, "gpu"))
		})
	}
}

// TestCExchange: what C writes on a device, in place and by copy, in every form of synchronisation, C and Go read there and
// on the host; and the other way round (behaviours 302 to 307, rules C1 to C5).
func TestCExchange(t *testing.T) {
	program := cProgram(t)
	m := start(t)
	reader := m.client("reader")
	read := order{Do: "read", Name: "x", Prims: prims(4)}
	require.Equal(t, []string{"0", "ok"}, m.inC(program, "with", "devices", "declare x 64 0"))
	ordinal := 0
	for _, how := range []string{"none", "stream", "event", "both", "legacy"} {
		for _, told := range []string{"map x 4 64 V N " + how + " there", "write x 4 64 V N " + how + " 0 1", "write x 4 64 V N " + how + " 0 3",
			"write x 4 64 V N none host 1", "map x 4 64 V N none host"} {
			ordinal++
			value := 10 + ordinal
			order := strings.NewReplacer("V", strconv.Itoa(value), "N", strconv.Itoa(ordinal)).Replace(told)
			here := strings.Trim(fmt.Sprint(rows(value, 4)), "[]")
			require.Equal(t, []string{"ok", "ok", "cuda:0 " + here, "host " + here, "cuda:0 " + here}, m.inC(program, "with", order, "seal "+strconv.Itoa(ordinal),
				"read x 4 there", "read x 4 host", "export x 4"), order)
			got := reader.do(read)
			require.Equal(t, "cuda:0", got.Device, order)
			require.Equal(t, rows(value, 4), got.Rows, order)
		}
	}
	writer := m.client("writer")
	next := uint64(ordinal + 1)
	writer.do(order{Do: "map", Name: "x", Prims: prims(4), Ordinal: next})
	writer.do(order{Do: "fill", Name: "x", Value: 90})
	writer.do(order{Do: "commit", Name: "x", Sync: "stream"})
	writer.do(order{Do: "seal", Name: "x", Ordinal: next})
	require.Equal(t, []string{"cuda:0 90 91 92 93", "host 90 91 92 93"}, m.inC(program, "with", "read x 4 there", "read x 4 host"))
	require.Equal(t, []string{"ok", "cuda:0 7", "ok", "cuda:0 8"}, m.inC(program, "with", "publish image 100 7 0", "latest image there", "publish image 100 8 host",
		"latest image 0"))
}

// TestCGroups: a program in C opens a session of several groups on a device and fills some of them, others are a Go
// worker's; and it fills those of a Go owner by cbd_work_on (rules M2, C3, C5).
func TestCGroups(t *testing.T) {
	program := cProgram(t)
	m := start(t)
	worker := m.client("worker")
	require.Equal(t, []string{"ok"}, m.inC(program, "with", "declare x 4096 0"))
	ordinal := 0
	for _, how := range []string{"none", "stream", "event", "both", "legacy"} {
		ordinal++
		first := 10 * ordinal
		value := strconv.Itoa(first)
		require.Equal(t, []string{"ok", "ok", "ok", "ok", "ok"}, m.inC(program, "with", fmt.Sprint("share x 12 3 ", ordinal, " there"), "take x "+value+" "+how,
			"work x "+value+" "+how, "shared", fmt.Sprint("seal ", ordinal)))
		got := worker.do(order{Do: "read", Name: "x", Prims: prims(12)})
		require.Equal(t, rows(first, 12), got.Rows)
		require.Equal(t, "cuda:0", got.Device)

		ordinal++
		share(worker, order{Name: "x", Ordinal: uint64(ordinal)})
		require.Equal(t, []string{"ok"}, m.inC(program, "with", "take x "+value+" "+how))
		worker.do(order{Do: "claim", Name: "x", As: "mine"})
		worker.do(order{Do: "ready", As: "mine", Value: first})
		require.Equal(t, []string{"ok"}, m.inC(program, "with", "work x "+value+" "+how))
		worker.do(order{Do: "return", As: "mine", Sync: "stream"})
		worker.do(order{Do: "wait", As: "x"})
		require.Equal(t, []string{"ok", "host " + strings.Trim(fmt.Sprint(rows(first, 12)), "[]")}, m.inC(program, "with", fmt.Sprint("seal ", ordinal), "read x 12 host"))
	}
}

// TestCWithoutCUDA: a program that never enabled the library, or has no driver, writes and reads attributes of devices on
// the host.
func TestCWithoutCUDA(t *testing.T) {
	program := cProgram(t)
	m := start(t)
	got := m.inC(program, "without", "devices", "declare x 64 0", "write x 2 64 5 1 none host 1", "seal 1", "read x 2 host", "refused read x 2 there",
		"map x 2 64 8 2 none host", "seal 2", "read x 2 host")
	require.Equal(t, []string{"0", "ok", "ok", "ok", "host 5 6"}, got[:5])
	require.Contains(t, got[5], "NOT_SUPPORTED: ")
	require.Contains(t, got[5], "link libcallboard_cuda and call cbd_cuda_enable")
	require.Equal(t, []string{"ok", "ok", "host 8 9"}, got[6:])
}

// TestCRestart: after the broker's death imports of before are void, and the program goes on with the next one (rule B3).
func TestCRestart(t *testing.T) {
	program := cProgram(t)
	m := start(t)
	c := m.commandC(program, "with", "declare x 64 0", "map x 2 64 5 1 stream there", "seal 1", "read x 2 there", "hear", "devices", "refused read x 2 there",
		"map x 2 64 9 2 stream there", "seal 2", "read x 2 there", "read x 2 host")
	in, err := c.StdinPipe()
	require.NoError(t, err)
	out, err := c.StdoutPipe()
	require.NoError(t, err)
	var errors strings.Builder
	c.Stderr = &errors
	require.NoError(t, c.Start())
	defer func() { _ = c.Process.Kill() }() // where the test fails
	lines := bufio.NewScanner(out)
	for _, want := range []string{"ok", "ok", "ok", "cuda:0 5 6"} {
		require.True(t, lines.Scan(), "%s", &errors)
		require.Equal(t, want, lines.Text())
	}
	m.Kill9()
	m.Restart()
	_, err = io.WriteString(in, "\n")
	require.NoError(t, err)
	for _, want := range []string{"0", "END: all 0 groups were fetched", "ok", "ok", "cuda:0 9 10", "host 9 10"} {
		require.True(t, lines.Scan(), "%s", &errors)
		require.Equal(t, want, lines.Text())
	}
	require.NoError(t, c.Wait(), "%s", &errors)
	m.gaveBack(c)
}
