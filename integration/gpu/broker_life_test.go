package gpu

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"callboard/integration/harness"
)

// program runs callboard beside a broker, and gives what it prints.
func (m *machine) program(arguments ...string) string {
	m.t.Helper()
	command := exec.Command(harness.Binary(m.t), arguments...)
	command.Env = append(m.Env(), m.env...)
	out, _ := command.CombinedOutput()
	return string(out)
}

const large = 1 << 20 // bytes of a row, so that copies are jobs

// Rules C1 to C4: rows that one process put on a device are what another one finds there.
func TestBrokerServesWhatAProducerFilled(t *testing.T) {
	m := start(t, "CUDAEMU_DELAY_US=2000")
	p, r := m.client("producer"), m.client("reader")
	p.do(order{Do: "cycle", Name: "pose", Prims: []int{1, 2}, Bytes: large, Device: "cuda:0", Ordinal: 1, Value: 10, Count: 3, Sync: "stream"})
	require.Equal(t, []int{12, 13}, r.do(order{Do: "read", Name: "pose", Prims: []int{1, 2}}).Rows)
	t.Log(m.program("info"))
	t.Log(m.program("read", "pose", "--values", "3"))
	t.Log(m.program("ls"))
}
