package gpu

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"callboard/control"
)

// rows is what value, value+1, … are, n of them.
func rows(value, n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = (value + i) % 256
	}
	return out
}

// prims is 0, 1, … n-1.
func prims(n int) []int { return rows(0, n) }

const rowBytes = 4096

// A whole column that was filled on the device is handed over where it lies, and read in place by another process; an
// observer hears of it (rules C1, C3, C5, M1; behaviours 302 to 305, 307).
func TestWholeColumnsAreAdopted(t *testing.T) {
	m := start(t)
	commits := m.observe(control.Subjects.Commit)
	producer, reader := m.client("producer", "CUDAEMU_DELAY_US=20000"), m.client("reader") // eight rows are late by eight delays
	producer.do(order{Do: "declare", Name: "x", Bytes: rowBytes, Device: "cuda:0"})
	for n, sync := range []string{"stream", "event", "both", "default"} {
		ordinal := uint64(n + 1)
		require.Equal(t, "cuda:0", producer.do(order{Do: "map", Name: "x", Prims: prims(8), Ordinal: ordinal}).Device)
		producer.do(order{Do: "fill", Name: "x", Value: 10 * n})
		require.True(t, producer.do(order{Do: "commit", Name: "x", Sync: sync}).Adopted, "a whole column is adopted")
		producer.do(order{Do: "seal", Name: "x", Ordinal: ordinal})
		got := reader.do(order{Do: "read", Name: "x", Prims: prims(8)})
		require.Equal(t, report{Rows: rows(10*n, 8), Device: "cuda:0", Adopted: true}, got, "sync %s", sync)
	}
	await(t, commits, func(raw []byte) bool {
		var e control.CommitEvent
		require.NoError(t, json.Unmarshal(raw, &e))
		return slices.ContainsFunc(e.Changed, func(c control.Change) bool { return c.Attribute == "x" })
	})
}

// Rows that are written one by one, by a mask, or out of another order, from the host and from memory of the client's
// own, lie on the device beside those that were there (rules C4, C5; behaviours 18, 302, 303, 304).
func TestRowsAreScattered(t *testing.T) {
	m := start(t)
	producer, reader := m.client("producer"), m.client("reader")
	producer.do(order{Do: "declare", Name: "x", Bytes: rowBytes, Device: "cuda:0"})
	want := rows(0, 8)
	ordinal := uint64(0)
	seal := func(what string) {
		t.Helper()
		producer.do(order{Do: "seal", Name: "x", Ordinal: ordinal})
		require.Equal(t, want, reader.do(order{Do: "read", Name: "x", Prims: prims(8)}).Rows, what)
		require.Equal(t, want, reader.do(order{Do: "look", Name: "x", Device: "cpu"}).Rows, what)
	}
	write := func(o order) {
		t.Helper()
		ordinal++
		o.Do, o.Name, o.Bytes, o.Ordinal, o.Sync = "write", "x", rowBytes, ordinal, map[bool]string{true: "stream"}[o.From != "host"]
		producer.do(o)
	}
	write(order{Prims: prims(8), Value: 0, From: "host"})
	seal("all, from the host")
	for n, from := range []string{"host", "cuda:0"} {
		v := 50 * (n + 1)
		write(order{Prims: []int{5, 2}, Value: v, From: from})
		want[5], want[2] = v, v+1
		seal("two, from " + from)
		write(order{Prims: prims(8), Mask: []int{0, 7}, Value: v + 10, From: from})
		want[0], want[7] = v+10, v+17
		seal("masked, from " + from)
		write(order{Prims: []int{1, 3, 4}, Take: []int{3, 0, 1}, Value: v + 20, From: from})
		want[1], want[3], want[4] = v+23, v+20, v+21
		seal("by a map of indices, from " + from)
	}
	since := ordinal - 1
	got := reader.do(order{Do: "read", Name: "x", Prims: prims(8), Since: &since})
	require.Equal(t, []int{want[1], want[3], want[4]}, got.Rows, "what changed (behaviour 304)")
	producer.do(order{Do: "delete", Name: "x", Prims: []int{2}, Ordinal: ordinal + 1})
	producer.do(order{Do: "seal", Name: "x", Ordinal: ordinal + 1})
	require.Equal(t, slices.Delete(slices.Clone(want), 2, 3), reader.do(order{Do: "read", Name: "x", Prims: prims(8)}).Rows)
	since = ordinal
	require.Equal(t, 1, reader.do(order{Do: "read", Name: "x", Prims: prims(8), Since: &since}).Deleted)
}

// Rows of an odd size lie at odd distances, which a device need not copy in one go: then they are copied one by one, and
// it is not asked again (the driver's reference, cuMemcpy2DAsync). A second question would cost the broker its context.
func TestRowsAtDistancesThatADeviceRefuses(t *testing.T) {
	all := make([]int, 1300) // more than the broker queues in one go
	for i := range all {
		all[i] = i
	}
	for name, env := range map[string][]string{
		"any":          nil,
		"odd":          {"CUDAEMU_PITCH=512", "CUDAEMU_FAIL=cuMemcpy2DAsync:2:719"},
		"too far":      {"CUDAEMU_ATTRIBUTE=11:23", "CUDAEMU_FAIL=cuMemcpy2DAsync:1:719"},
		"does not say": {"CUDAEMU_ATTRIBUTE=11:none"},
	} {
		t.Run(name, func(t *testing.T) {
			if env != nil {
				needsEmulation(t)
			}
			m := startWith(t, nil, env)
			producer, reader := m.client("producer"), m.client("reader")
			producer.do(order{Do: "declare", Name: "x", Bytes: 12, Device: "cuda:0"})
			producer.do(order{Do: "write", Name: "x", Prims: all, Bytes: 12, From: "host", Ordinal: 1})
			producer.do(order{Do: "seal", Name: "x", Ordinal: 1})
			want := rows(0, len(all))
			for n := range 3 {
				var odd []int
				for i := 1 + n; i < len(want); i += 2 {
					odd = append(odd, i)
					want[i] = (100 + 10*n + len(odd) - 1) % 256
				}
				ordinal := uint64(n + 2)
				producer.do(order{Do: "write", Name: "x", Prims: odd, Bytes: 12, Value: 100 + 10*n, From: "cuda:0", Sync: "stream", Ordinal: ordinal})
				producer.do(order{Do: "seal", Name: "x", Ordinal: ordinal})
				require.Equal(t, want, reader.do(order{Do: "read", Name: "x", Prims: all}).Rows)
			}
		})
	}
}

// A session is filled on the host for a device's attribute, and on a device for the host's; it starts with zeros or with
// what is sealed (rule C5; behaviour 180).
func TestStagingElsewhere(t *testing.T) {
	m := start(t)
	p := m.client("client")
	p.do(order{Do: "declare", Name: "device", Bytes: rowBytes, Device: "cuda:0"})
	p.do(order{Do: "declare", Name: "host", Bytes: rowBytes})
	for _, c := range []struct{ name, staging, lies string }{{"device", "cpu", "cuda:0"}, {"host", "cuda:0", "cpu"}} {
		sync := map[bool]string{true: "stream"}[c.staging != "cpu"]
		require.Equal(t, c.staging, p.do(order{Do: "map", Name: c.name, Prims: prims(4), Ordinal: 1, Staging: c.staging}).Device)
		p.do(order{Do: "fill", Name: c.name, Value: 7})
		require.False(t, p.do(order{Do: "commit", Name: c.name, Sync: sync}).Adopted, "it is copied")
		p.do(order{Do: "seal", Name: c.name, Ordinal: 1})
		require.Equal(t, report{Rows: rows(7, 4), Device: c.lies}, p.do(order{Do: "read", Name: c.name, Prims: prims(4)}))

		for n, init := range []string{"current", "zero"} {
			p.do(order{Do: "map", Name: c.name, Prims: prims(4), Ordinal: uint64(2 + n), Staging: c.staging, Init: init})
			p.do(order{Do: "fill", Name: c.name, Mask: []int{1}, Value: 90})
			p.do(order{Do: "commit", Name: c.name, Sync: sync})
			p.do(order{Do: "seal", Name: c.name, Ordinal: uint64(2 + n)})
		}
		require.Equal(t, []int{7, 91, 9, 10}, p.do(order{Do: "read", Name: c.name, Prims: prims(4), Ordinal: 2}).Rows)
		require.Equal(t, []int{0, 91, 0, 0}, p.do(order{Do: "read", Name: c.name, Prims: prims(4)}).Rows)
	}
}

// A new attribute lies where its first write, or session, says, and on the host where none does; a write to one that
// exists goes where that lies, wherever the values come from (rule C5; behaviour 302).
func TestWhereAttributesLie(t *testing.T) {
	m := start(t)
	p := m.client("client")
	p.do(order{Do: "declare", Name: "host", Bytes: rowBytes})
	for _, c := range []struct {
		name, from, device, lies string
	}{{"a", "cuda:0", "cuda:0", "cuda:0"}, {"b", "host", "cuda:0", "cuda:0"}, {"c", "cuda:0", "", "cpu"}, {"host", "cuda:0", "", "cpu"}, {"d", "host", "", "cpu"}} {
		p.do(order{Do: "write", Name: c.name, Device: c.device, Prims: prims(3), Bytes: rowBytes, Value: 3, Ordinal: 1, From: c.from, Sync: map[bool]string{true: "event"}[c.from != "host"]})
		p.do(order{Do: "seal", Name: c.name, Ordinal: 1})
		got := p.do(order{Do: "read", Name: c.name, Prims: prims(3)})
		require.Equal(t, rows(3, 3), got.Rows, c.name)
		require.Equal(t, c.lies, got.Device, c.name)
	}
	require.Equal(t, "cuda:0", p.do(order{Do: "map", Name: "mapped", Prims: prims(3), Bytes: 64, Device: "cuda:0", Ordinal: 1}).Device)
	p.do(order{Do: "abort", Name: "mapped"})
	p.refused(order{Do: "declare", Name: "host", Bytes: rowBytes, Device: "cuda:0"}, "INVALID_ARGUMENT", "cuda:0", "cpu")
	p.refused(order{Do: "map", Name: "host", Prims: prims(3), Bytes: rowBytes, Device: "cuda:0", Ordinal: 9}, "INVALID_ARGUMENT", "cuda:0", "cpu")
}

// A reader without a driver, and one that wants the host, get a copy that is made once; a device's reader gets one of
// the host's attributes. Nobody loads a driver who touches no device memory (rule C5; behaviours 283, 307).
func TestMirrors(t *testing.T) {
	m := start(t)
	producer, reader := m.client("producer"), m.client("reader")
	plain := m.client("no driver", "CALLBOARD_CUDA_LIBRARY=/nowhere/libcuda.so.1")
	producer.do(order{Do: "write", Name: "host", Prims: prims(4), Bytes: rowBytes, Value: 20, Ordinal: 1, From: "host"})
	producer.do(order{Do: "seal", Name: "host", Ordinal: 1})
	require.False(t, producer.do(order{Do: "loaded"}).Loaded, "a producer of host memory loads no driver")
	producer.do(order{Do: "write", Name: "device", Prims: prims(4), Bytes: rowBytes, Value: 10, Ordinal: 1, From: "cuda:0", Device: "cuda:0", Sync: "stream"})
	producer.do(order{Do: "seal", Name: "device", Ordinal: 1})

	got := plain.do(order{Do: "read", Name: "device", Prims: prims(4), Device: "cpu"})
	require.Equal(t, rows(10, 4), got.Rows)
	require.Equal(t, "cpu", got.Device)
	require.Equal(t, rows(10, 4), plain.do(order{Do: "look", Name: "device"}).Rows)
	require.Equal(t, []int{12, 10}, plain.do(order{Do: "read", Name: "device", Prims: []int{2, 0}, Device: "cpu"}).Rows)
	plain.refused(order{Do: "read", Name: "device", Prims: prims(4)}, "NOT_SUPPORTED", "/nowhere/libcuda.so.1", "Device: CPU")
	require.False(t, plain.do(order{Do: "loaded"}).Loaded)

	got = reader.do(order{Do: "read", Name: "host", Prims: prims(4), Device: "cuda:0"})
	require.Equal(t, rows(20, 4), got.Rows)
	require.Equal(t, "cuda:0", got.Device)
	first := reader.do(order{Do: "pointer", Name: "host"}).Number
	reader.do(order{Do: "read", Name: "host", Prims: prims(4), Device: "cuda:0"})
	require.Equal(t, first, reader.do(order{Do: "pointer", Name: "host"}).Number, "it is made once for each version")
	reader.do(order{Do: "read", Name: "device", Prims: prims(4), Device: "cpu"})
	require.Equal(t, "cpu", reader.do(order{Do: "dlpack", Name: "device"}).Device, "as plain host memory (field report F12)")
}

// A group is exported by this process's number of the device, with its offset in data and with strides; host accessors
// say what to do instead (field reports G1, G4, G18; behaviours 283, 286).
func TestGroupsAsDLPackAndForTheHost(t *testing.T) {
	m := start(t)
	p := m.client("client")
	p.do(order{Do: "write", Name: "x", Prims: prims(4), Bytes: rowBytes, Value: 10, Ordinal: 1, From: "cuda:0", Device: "cuda:0", Sync: "stream"})
	p.do(order{Do: "seal", Name: "x", Ordinal: 1})
	p.do(order{Do: "read", Name: "x", Prims: []int{1, 2}})
	require.Equal(t, "cuda:0", p.do(order{Do: "dlpack", Name: "x"}).Device)
	p.refused(order{Do: "host", Name: "x"}, "INVALID_ARGUMENT", "cuda:0", "Device: CPU", "DevicePointer")
	p.do(order{Do: "release", Name: "x"})
	p.do(order{Do: "map", Name: "x", Prims: prims(4), Ordinal: 2})
	p.refused(order{Do: "host", Name: "x"}, "INVALID_ARGUMENT", "cuda:0", "Staging: CPU", "DevicePointer")
	p.do(order{Do: "abort", Name: "x"})
}

// Rule V8: what a stream reads keeps its bytes until it has read them, whatever is written meanwhile.
func TestAGroupIsReleasedBehindAStream(t *testing.T) {
	m := startWith(t, nil, nil, "--gpu", "required", "--retain", "1")
	p, r := m.client("producer"), m.client("reader", "CUDAEMU_DELAY_US=100000")
	cycle := func(ordinal, count int) {
		p.do(order{Do: "cycle", Name: "x", Prims: prims(4), Bytes: rowBytes, Device: "cuda:0", Ordinal: uint64(ordinal), Value: ordinal, Sync: "stream", Count: count})
	}
	cycle(1, 1)
	require.Equal(t, rows(1, 4), r.do(order{Do: "read", Name: "x", Prims: prims(4)}).Rows)
	if driver.emulated { // a real one may look at what lies there
		r.refused(order{Do: "carry", Name: "x", Bytes: rowBytes, Value: 0x1234560}, "INVALID_ARGUMENT")
	}
	require.Equal(t, rows(1, 4), r.do(order{Do: "look", Name: "x"}).Rows, "it stays")
	r.do(order{Do: "carry", Name: "x", Bytes: rowBytes})
	r.refused(order{Do: "pointer", Name: "x"}, "INVALID_HANDLE")
	cycle(2, 8)
	require.Equal(t, rows(1, 4), r.do(order{Do: "arrived", Bytes: rowBytes, Count: 4}).Rows)
	require.Equal(t, rows(9, 4), r.do(order{Do: "read", Name: "x", Prims: prims(4)}).Rows)
}
