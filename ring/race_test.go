//go:build race

package ring

import (
	"testing"

	"github.com/stretchr/testify/require"

	"callboard/protocol"
)

// TestRingsOwnAtomicsOrderTheEntries runs the stress on a channel in Go's heap,
// where the race detector sees entries, areas and index words alike, and without
// the edges of edge_race.go: the words of the ring alone must order everything.
func TestRingsOwnAtomicsOrderTheEntries(t *testing.T) {
	edgesOff = true
	defer func() { edgesOff = false }()
	const ops = 6000
	t.Logf("seed %d", stressSeed)
	l, err := stressLayout()
	require.NoError(t, err)
	channel, doorbell, directory := heapBytes(l.TotalBytes), heapBytes(protocol.DoorbellBytes), heapBytes(protocol.DirectoryBytes)
	server, err := NewServer(channel, l)
	require.NoError(t, err)
	pins, err := NewPins(channel, l)
	require.NoError(t, err)
	client, err := newStressClient(channel, doorbell, directory, l)
	require.NoError(t, err)
	bell, err := NewBell(doorbell, directory)
	require.NoError(t, err)
	finished := make(chan error, 1)
	go func() { finished <- client.run(stressSeed, ops) }()
	require.NoError(t, stressServe(server, pins, bell, stressSeed, ops))
	require.NoError(t, <-finished)
}
