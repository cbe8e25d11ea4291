package ring

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"callboard/protocol"
	"callboard/shm"
)

// stressSeed is fixed: what a failing run did can be done again.
const stressSeed = 20

// childOps in the environment makes the test binary the client of the stress.
const childOps = "CALLBOARD_RING_CHILD_OPS"

func TestMain(m *testing.M) {
	if ops, err := strconv.Atoi(os.Getenv(childOps)); err == nil {
		if err := stressChild(ops); err != nil {
			fmt.Fprintln(os.Stderr, "client process:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// stressMap maps the one file that holds channel, doorbell and directory.
func stressMap(file *os.File, l Layout) (channel, doorbell, directory []byte, err error) {
	m, err := shm.Map(file, l.TotalBytes+protocol.DoorbellBytes+protocol.DirectoryBytes, true)
	if err != nil {
		return nil, nil, nil, err
	}
	mem := m.Bytes()
	doorbellEnd := l.TotalBytes + protocol.DoorbellBytes
	return mem[:l.TotalBytes], mem[l.TotalBytes:doorbellEnd], mem[doorbellEnd:], nil
}

func stressChild(ops int) error {
	want, err := stressLayout()
	if err != nil {
		return err
	}
	channel, doorbell, directory, err := stressMap(os.NewFile(3, "channel"), want)
	if err != nil {
		return err
	}
	l, _, err := ReadHeader(channel)
	if err != nil {
		return err
	}
	client, err := newStressClient(channel, doorbell, directory, l)
	if err != nil {
		return err
	}
	err = client.run(stressSeed, ops)
	fmt.Printf("%d ops\n", client.ids)
	return err
}

func newStressClient(channel, doorbell, directory []byte, l Layout) (*stressClient, error) {
	bell, err := NewBell(doorbell, directory)
	if err != nil {
		return nil, err
	}
	ring, err := NewClient(channel, l, bell)
	if err != nil {
		return nil, err
	}
	pins, err := NewPinTable(channel, l)
	return &stressClient{ring: ring, pins: pins}, err
}

// TestTwoProcessesOverOneChannel: a broker here, a client with three threads in a
// process of its own. CALLBOARD_STRESS_OPS sets the number of ops.
func TestTwoProcessesOverOneChannel(t *testing.T) {
	ops := 150_000
	if testing.Short() {
		ops = 15_000
	}
	if text := os.Getenv("CALLBOARD_STRESS_OPS"); text != "" {
		var err error
		ops, err = strconv.Atoi(text)
		require.NoError(t, err)
	}
	ops -= ops % stressThreads
	t.Logf("seed %d, %d ops", stressSeed, ops)

	directoryOfFile := "/dev/shm"
	if _, err := os.Stat(directoryOfFile); err != nil {
		directoryOfFile = t.TempDir()
	}
	file, err := os.CreateTemp(directoryOfFile, "callboard-ring-test-")
	require.NoError(t, err)
	defer file.Close()
	require.NoError(t, os.Remove(file.Name()))
	l, err := stressLayout()
	require.NoError(t, err)
	require.NoError(t, file.Truncate(int64(l.TotalBytes+protocol.DoorbellBytes+protocol.DirectoryBytes)))
	channel, doorbell, directory, err := stressMap(file, l)
	require.NoError(t, err)
	require.NoError(t, l.WriteHeader(channel, Identity{Incarnation: 1}))
	server, err := NewServer(channel, l)
	require.NoError(t, err)
	pins, err := NewPins(channel, l)
	require.NoError(t, err)
	bell, err := NewBell(doorbell, directory)
	require.NoError(t, err)

	self, err := os.Executable()
	require.NoError(t, err)
	child := exec.Command(self)
	if qemu := os.Getenv("CALLBOARD_TEST_QEMU"); qemu != "" { // `make arm64`
		child = exec.Command(qemu, self)
	}
	child.Env = append(os.Environ(), fmt.Sprintf("%s=%d", childOps, ops))
	child.ExtraFiles = []*os.File{file}
	child.Stderr = os.Stderr
	output, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	served := stressServe(server, pins, bell, stressSeed, ops)
	var report [256]byte
	n, _ := output.Read(report[:])
	require.NoError(t, child.Wait())
	require.NoError(t, served)
	require.Zero(t, server.Outstanding())
	t.Logf("client: %s", report[:n])
}
