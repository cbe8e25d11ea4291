package broker

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"callboard/cudaipc"
	"callboard/shm"
)

func TestNumbersOfDevicesAreReadAsWritten(t *testing.T) {
	g := shm.Generation{Number: 1, Path: filepath.Join(t.TempDir(), "1")} // which nobody has made yet
	none, err := readNumbers(g.Path)
	require.NoError(t, err)
	require.Empty(t, none)
	d := &devices{}
	for i := range numbersMax {
		for range 2 {
			n, err := d.numberOf(g, cudaipc.UUID{byte(i), 9})
			require.NoError(t, err)
			require.EqualValues(t, i, n)
		}
	}
	_, err = d.numberOf(g, cudaipc.UUID{1, 2, 3})
	require.ErrorContains(t, err, "64")
	again, err := readNumbers(g.Path)
	require.NoError(t, err)
	require.Equal(t, d.numbers, again)

	for _, bad := range []string{"\n", "GPU-1\n", cudaipc.UUID{1}.String() + "0\n", cudaipc.UUID{1}.String() + "\n" + cudaipc.UUID{1}.String() + "\n"} {
		require.NoError(t, os.WriteFile(filepath.Join(g.Path, numbersName), []byte(bad), 0o600))
		_, err = readNumbers(g.Path)
		var damage *damagedError
		require.ErrorAs(t, err, &damage, "%q", bad)
	}
}
