package gpu

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"callboard/control"
	"callboard/control/natstest"
	"callboard/cudaipc"
	"callboard/integration/cudaemu"
	"callboard/integration/harness"
)

// machine is one emulated machine, or this real one, with a broker on it.
type machine struct {
	*harness.Broker
	t       *testing.T
	dir     string   // of the emulation's counts
	env     []string // of every process
	clients []*process
}

// start runs a broker that must serve a device. env is for the broker and all clients.
func start(t *testing.T, env ...string) *machine {
	t.Helper()
	return startWith(t, env, nil, "--gpu", "required")
}

// startWith gives the broker more of an environment, and arguments.
func startWith(t *testing.T, env, brokerEnv []string, args ...string) *machine {
	t.Helper()
	m := &machine{t: t, dir: t.TempDir(), env: env}
	m.env = append(m.env, "CUDAEMU_DIR="+m.dir)
	if driver.library != "" {
		m.env = append(m.env, cudaipc.LibraryEnv+"="+driver.library)
	}
	m.Broker = harness.StartIn(t, append(append([]string{}, m.env...), brokerEnv...), append([]string{"--memory", "64MiB", "--gpu-memory", "256MiB"}, args...)...)
	t.Cleanup(m.finish)
	return m
}

// client starts one more.
func (m *machine) client(name string, env ...string) *process {
	m.t.Helper()
	all := append(append(m.Env(), m.env...), env...)
	p := spawn(m.t, name, all)
	m.clients = append(m.clients, p)
	return p
}

// finish ends everything and wants nothing left (field reports A4, F2, F3).
func (m *machine) finish() {
	for _, p := range m.clients {
		p.end()
	}
	if m.Running() {
		m.Stop()
		require.Empty(m.t, m.Residue())
	}
	if !driver.emulated {
		return
	}
	for _, p := range m.report() {
		require.False(m.t, p.Alive, "process %d runs", p.PID)
		for _, c := range m.clients {
			if c.PID() == p.PID && !c.killed {
				require.Zero(m.t, p.Counts, "%s did not give everything back", c.Name)
			}
		}
	}
}

func (m *machine) report() []cudaemu.Process {
	m.t.Helper()
	all, err := cudaemu.Report(m.dir)
	require.NoError(m.t, err)
	return all
}

// held is what a process has of the emulated device.
func (m *machine) held(pid int) cudaemu.Counts {
	m.t.Helper()
	for _, p := range m.report() {
		if p.PID == pid {
			return p.Held()
		}
	}
	return cudaemu.Counts{}
}

// eventually waits for a condition.
func eventually(t *testing.T, condition func() bool, what string, args ...any) {
	t.Helper()
	for deadline := time.Now().Add(patience); !condition(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			require.FailNowf(t, "it did not come to pass", what, args...)
		}
	}
}

// nats connects an observer.
func (m *machine) nats() (*nats.Conn, control.Subjects) {
	m.t.Helper()
	info, err := control.ReadRuntimeFile(filepath.Join(m.RuntimeDir, control.RuntimeFileName))
	require.NoError(m.t, err)
	role := control.RoleObserver
	if info.Observer == (control.Credential{}) { // as on a server of serveNATS
		role = control.RoleFull
	}
	conn, err := control.Connect(info, role)
	require.NoError(m.t, err)
	m.t.Cleanup(conn.Close)
	names, err := control.NewSubjects(info.Host, info.Stage)
	require.NoError(m.t, err)
	return conn, names
}

// serveNATS runs a NATS server that outlives brokers, and gives its URL.
func serveNATS(t *testing.T) string {
	t.Helper()
	s := natstest.Serve(t, &server.Options{Username: "all", Password: "p"})
	return "nats://all:p@" + s.Addr().String()
}

// settled tells whether nobody but clients that live has anything of the first device, and nobody a mapped group.
func (m *machine) settled() bool {
	d := m.description()
	living := map[string]bool{}
	for _, c := range d.Clients {
		living[fmt.Sprint(c.Incarnation)] = true
	}
	g := d.GPU.Devices[0]
	for _, a := range g.Arenas {
		for _, importer := range a.Importers {
			if !living[importer] {
				return false
			}
		}
	}
	return g.EventsLeased == 0 && staging(g.Memory) == 0 && g.Memory.Waiting == 0
}

// staging is how many bytes are in nothing that a pool tells of: in groups that are mapped, in copies that are being made.
func staging(m control.MemoryDescription) uint64 {
	return m.Held - m.Free - m.Live - m.Retained - m.Pinned - m.Recycled - m.Waiting - m.Mirrors - m.Open - m.Directory
}

// observe subscribes to what the broker announces on a subject of its stage.
func (m *machine) observe(subject func(control.Subjects) string) <-chan []byte {
	m.t.Helper()
	conn, names := m.nats()
	heard := make(chan []byte, 1024)
	_, err := conn.Subscribe(subject(names), func(msg *nats.Msg) {
		select {
		case heard <- msg.Data:
		default:
		}
	})
	require.NoError(m.t, err)
	require.NoError(m.t, conn.Flush())
	return heard
}

// await reads what was announced until one is what the test waits for.
func await(t *testing.T, heard <-chan []byte, wanted func([]byte) bool) {
	t.Helper()
	for limit := time.After(patience); ; {
		select {
		case raw := <-heard:
			if wanted(raw) {
				return
			}
		case <-limit:
			t.Fatal("it was not announced")
		}
	}
}
