package gpu

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Two devices, which one client sees in the other order and one sees half of: attributes are found by the device's
// UUID, whatever its number is there (field reports F10, G18).
func TestDevicesInAnotherOrder(t *testing.T) {
	needsEmulation(t)
	m := start(t, "CUDAEMU_DEVICES=2")
	producer := m.client("producer")
	turned := m.client("turned", "CUDA_VISIBLE_DEVICES=1,0")
	half := m.client("half", "CUDA_VISIBLE_DEVICES=1")
	cycle := func(p *process, name, device string, value int) {
		t.Helper()
		p.do(order{Do: "cycle", Name: name, Prims: prims(2), Bytes: rowBytes, Device: device, Ordinal: 1, Value: value, Sync: "stream", Count: 1})
	}
	cycle(producer, "a", "cuda:0", 10)
	cycle(producer, "b", "cuda:1", 20)
	cycle(turned, "c", "cuda:0", 30)
	cycle(half, "d", "cuda:0", 40)
	for _, c := range []struct {
		reader *process
		name   string
		device string
		value  int
	}{
		{turned, "a", "cuda:1", 10}, {turned, "b", "cuda:0", 20}, {producer, "c", "cuda:1", 30}, {producer, "d", "cuda:1", 40},
		{half, "b", "cuda:0", 20}, {half, "c", "cuda:0", 30}, {turned, "d", "cuda:0", 40},
	} {
		got := c.reader.do(order{Do: "read", Name: c.name, Prims: prims(2)})
		require.Equal(t, rows(c.value, 2), got.Rows, "%s reads %s", c.reader.Name, c.name)
		require.Equal(t, c.device, got.Device, "%s reads %s", c.reader.Name, c.name)
	}

	half.refused(order{Do: "read", Name: "a", Prims: prims(2)}, "NOT_SUPPORTED", "GPU-", "CUDA_VISIBLE_DEVICES")
	for device, lies := range map[string]string{"cpu": "cpu", "cuda:0": "cuda:0"} { // the broker copies
		got := half.do(order{Do: "read", Name: "a", Prims: prims(2), Device: device})
		require.Equal(t, rows(10, 2), got.Rows)
		require.Equal(t, lies, got.Device)
	}
	half.refused(order{Do: "map", Name: "a", Prims: prims(2), Ordinal: 2}, "NOT_SUPPORTED", "CUDA_VISIBLE_DEVICES")
	half.do(order{Do: "map", Name: "a", Prims: prims(2), Ordinal: 2, Staging: "cuda:0"}) // filled there, copied here
	half.do(order{Do: "fill", Name: "a", Value: 50})
	half.do(order{Do: "commit", Name: "a", Sync: "stream"})
	half.do(order{Do: "seal", Name: "a", Ordinal: 2})
	require.Equal(t, rows(50, 2), turned.do(order{Do: "read", Name: "a", Prims: prims(2)}).Rows)
	half.refused(order{Do: "declare", Name: "e", Bytes: rowBytes, Device: "cuda:1"}, "INVALID_ARGUMENT", "cuda:1", "1 CUDA device")
}

// A tensor that is said to lie on a device and does not is refused by name, before anything is copied: the process keeps
// its context, and writes what does lie there (field report G18).
func TestTensorsThatLieElsewhere(t *testing.T) {
	needsEmulation(t)
	m := start(t, "CUDAEMU_DEVICES=2")
	p := m.client("client")
	write := order{Do: "write", Name: "x", Prims: prims(4), Bytes: 1 << 20, Ordinal: 1, From: "cuda:0", Device: "cuda:0", Value: 4}
	for memory, says := range map[string]string{
		"cuda:1":  "is memory of GPU 1",
		"nowhere": "the driver knows nothing at 0x40: is it memory of the host?",
		"short":   "but at most 2097152 of them lie in memory of that GPU",
	} {
		bad := write
		bad.Memory = memory
		p.refused(bad, "INVALID_ARGUMENT", "GPU 0", says)
	}
	write.Sync = "stream"
	p.do(write)
	p.do(order{Do: "seal", Name: "x", Ordinal: 1})
	require.Equal(t, rows(4, 4), p.do(order{Do: "read", Name: "x", Prims: prims(4)}).Rows)
}

// A device that the broker was not told to serve is refused by name, both ways (field report F10).
func TestADeviceThatTheBrokerDoesNotServe(t *testing.T) {
	needsEmulation(t)
	m := startWith(t, []string{"CUDAEMU_DEVICES=2"}, nil, "--gpu", "required,0")
	p := m.client("client")
	p.refused(order{Do: "declare", Name: "x", Bytes: rowBytes, Device: "cuda:1"}, "NOT_SUPPORTED", "cuda:1", "GPU-", "callboard info")
	p.refused(order{Do: "write", Name: "x", Prims: prims(2), Bytes: rowBytes, Ordinal: 1, From: "cuda:1"}, "NOT_SUPPORTED", "cuda:1", "GPU-")
	p.do(order{Do: "write", Name: "x", Prims: prims(2), Bytes: rowBytes, Ordinal: 1, From: "cuda:0", Device: "cuda:0", Value: 4, Sync: "stream"})
	p.do(order{Do: "seal", Name: "x", Ordinal: 1})
	require.Equal(t, rows(4, 2), p.do(order{Do: "read", Name: "x", Prims: prims(2)}).Rows)
}

// A device without room refuses by name and says how much there is; the broker and what is there go on (field reports
// B6, B7).
func TestTheDeviceIsFull(t *testing.T) {
	m := startWith(t, nil, nil, "--gpu", "required", "--gpu-memory", "16MiB")
	p := m.client("client")
	p.do(order{Do: "cycle", Name: "small", Prims: prims(2), Bytes: rowBytes, Device: "cuda:0", Ordinal: 1, Value: 6, Sync: "stream", Count: 1})
	p.refused(order{Do: "map", Name: "large", Prims: prims(8), Bytes: 4 << 20, Device: "cuda:0", Ordinal: 1}, "OUT_OF_MEMORY", "--gpu-memory")
	p.do(order{Do: "cycle", Name: "large", Prims: prims(1), Bytes: 4 << 20, Device: "cuda:0", Ordinal: 1, Value: 7, Sync: "stream", Count: 1})
	require.Equal(t, rows(6, 2), p.do(order{Do: "read", Name: "small", Prims: prims(2)}).Rows)
	require.True(t, m.Running())
}

// The same where the driver has no more, below what the operator allowed.
func TestTheDriverIsOutOfMemory(t *testing.T) {
	needsEmulation(t)
	m := start(t, "CUDAEMU_MEMORY=33554432")
	p := m.client("client")
	p.do(order{Do: "cycle", Name: "small", Prims: prims(2), Bytes: rowBytes, Device: "cuda:0", Ordinal: 1, Value: 6, Sync: "stream", Count: 1})
	p.refused(order{Do: "map", Name: "large", Prims: prims(8), Bytes: 8 << 20, Device: "cuda:0", Ordinal: 1}, "OUT_OF_MEMORY")
	require.Equal(t, rows(6, 2), p.do(order{Do: "read", Name: "small", Prims: prims(2)}).Rows)
	p.do(order{Do: "cycle", Name: "small", Prims: prims(2), Bytes: rowBytes, Device: "cuda:0", Ordinal: 2, Value: 7, Sync: "stream", Count: 3})
	require.True(t, m.Running())
}

// A client whose driver takes long to open a handle holds nobody up but itself.
func TestOpeningIsSlow(t *testing.T) {
	t.Parallel()
	needsEmulation(t)
	m := start(t)
	producer, other := m.client("producer"), m.client("other")
	producer.do(order{Do: "cycle", Name: "x", Prims: prims(2), Bytes: rowBytes, Device: "cuda:0", Ordinal: 1, Value: 1, Sync: "stream", Count: 1})
	slow := m.client("slow", "CUDAEMU_SLOW_OPEN_US=1500000")
	slow.tell(order{Do: "read", Name: "x", Prims: prims(2)})
	for n := range 10 {
		producer.do(order{Do: "cycle", Name: "y", Prims: prims(2), Bytes: rowBytes, Device: "cuda:0", Ordinal: uint64(n + 1), Value: n, Sync: "stream", Count: 1})
		require.Equal(t, rows(n, 2), other.do(order{Do: "read", Name: "y", Prims: prims(2)}).Rows)
	}
	require.Equal(t, rows(1, 2), slow.hear().Rows)
}

// Handles that cannot be opened, as between pid namespaces, come with advice, and with a way that works; a refusal
// that passes does not stick (error 201, behaviour 306).
func TestHandlesThatCannotBeOpened(t *testing.T) {
	needsEmulation(t)
	m := start(t)
	producer := m.client("producer")
	producer.do(order{Do: "cycle", Name: "x", Prims: prims(2), Bytes: rowBytes, Device: "cuda:0", Ordinal: 1, Value: 8, Sync: "stream", Count: 1})

	apart := m.client("in another pid namespace", "CUDAEMU_PIDNS=1")
	apart.refused(order{Do: "read", Name: "x", Prims: prims(2)}, "NOT_SUPPORTED", "201", "pid namespace", "--pid=host")
	apart.refused(order{Do: "map", Name: "x", Prims: prims(2), Ordinal: 2}, "NOT_SUPPORTED", "--pid=host")
	require.Equal(t, rows(8, 2), apart.do(order{Do: "read", Name: "x", Prims: prims(2), Device: "cpu"}).Rows)
	apart.do(order{Do: "map", Name: "x", Prims: prims(2), Ordinal: 2, Staging: "cpu"})
	apart.do(order{Do: "fill", Name: "x", Value: 9})
	apart.do(order{Do: "commit", Name: "x"})
	apart.do(order{Do: "seal", Name: "x", Ordinal: 2})

	once := m.client("refused once", "CUDAEMU_FAIL=cuIpcOpenMemHandle_v2:1:304")
	once.refused(order{Do: "read", Name: "x", Prims: prims(2)}, "NOT_SUPPORTED", "304")
	require.Equal(t, rows(9, 2), once.do(order{Do: "read", Name: "x", Prims: prims(2)}).Rows)
}
