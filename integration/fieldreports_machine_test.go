package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	callboard "callboard/clients/go"
	"callboard/integration/harness"
	"callboard/shm"
)

func init() { roles["contained"] = contained }

// locked is how much memory of a process may not be swapped out, as the kernel counts it.
func locked(t *testing.T, pid int) string {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(t, err)
	found := regexp.MustCompile(`VmLck:\s+(\d+) kB`).FindSubmatch(status)
	require.NotNil(t, found, "%s", status)
	return string(found[1])
}

// Where nothing may be locked all works, and nothing is: neither by the broker nor by a client. Field report B10.
func TestB10NothingIsLocked(t *testing.T) {
	prlimit, err := exec.LookPath("prlimit")
	if err != nil {
		skip(t, "prlimit is not installed")
	}
	none := func(c *exec.Cmd) {
		c.Args = append([]string{prlimit, "--memlock=0:0", c.Path}, c.Args[1:]...)
		c.Path = prlimit
	}
	h := newHost(t)
	s := h.serveAs(t, "one", none)
	require.True(t, s.started(t), "%s", &s.errors)
	c := h.dial(t, "one")
	_, err = c.Publish(within(t, soon), "pinned/value", make([]uint64, 1<<20))
	require.NoError(t, err)
	p := spawnAs(t, "pinner", nil, append(os.Environ(), shm.RuntimeEnv+"="+filepath.Join(h.base, "callboard", "one")), none)
	expect(t, p, "pinned")
	for _, pid := range []int{s.command.Process.Pid, p.PID()} {
		limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", pid))
		require.NoError(t, err)
		require.Regexp(t, `Max locked memory +0 `, string(limits))
		require.Equal(t, "0", locked(t, pid), "kB of process %d", pid)
	}
	p.Tell("look")
	expect(t, p, "the same")
	_ = c.Close()
	s.end(t, syscall.SIGTERM)
}

// What docs/operating.md says of the size of memory is enough: seven times the live data, with the defaults and one
// reader, of columns that are replaced, filled in place and changed in part. Too little is told. Field report B16.
func TestB16SevenTimesTheLiveDataIsAmple(t *testing.T) {
	const column = 4 << 20 // bytes of each of three
	rounds := func(times int) error {
		s := harness.Start(t, "--memory", fmt.Sprint(times*3*column))
		producer, reader, ctx := s.Dial("producer"), s.Dial("reader"), within(t, 4*soon)
		paths := make([]string, 1024)
		for i := range paths {
			paths[i] = fmt.Sprintf("/World/%d", i)
		}
		all, err := producer.QueryFromPathList(ctx, paths)
		require.NoError(t, err)
		few, err := producer.QueryFromPathList(ctx, paths[100:200])
		require.NoError(t, err)
		write := func(q *callboard.Query, rows [][1024]float32, ordinal uint64) error {
			op, err := producer.WriteAttribute(ctx, q, "changed", rows, callboard.WriteOptions{Ordinal: ordinal, RowShape: []uint64{1024}})
			if err == nil {
				err = op.Wait(ctx)
			}
			if err == nil {
				err = seal(ctx, producer, ordinal, "changed")
			}
			return err
		}
		if err := write(all, make([][1024]float32, len(paths)), 1); err != nil {
			return err
		}
		var held *callboard.Snapshot // from one round to the next
		for round := range uint64(40) {
			if _, err := producer.Publish(ctx, "replaced", make([]float32, column/4)); err != nil {
				return err
			}
			m, err := producer.Map(ctx, "filled", []int{column / 4}, callboard.DType{Code: 2, Bits: 32, Lanes: 1})
			if err != nil {
				return err
			}
			if err := m.Commit(ctx); err != nil {
				return err
			}
			if err := write(few, make([][1024]float32, 100), round+2); err != nil {
				return err
			}
			if held != nil {
				held.Release()
			}
			held, err = reader.Snapshot(ctx)
			require.NoError(t, err)
		}
		return nil
	}
	require.NoError(t, rounds(7))
	require.ErrorIs(t, rounds(2), callboard.ErrOutOfMemory)
}

// contained writes and reads where nothing of the stage but its socket can be reached.
func contained(p *part) error {
	var config struct{ Hidden []string }
	p.read(&config)
	for _, dir := range config.Hidden {
		found, err := os.ReadDir(dir)
		if err != nil || len(found) > 0 {
			return fmt.Errorf("%s is not hidden: %d entries, %v", dir, len(found), err)
		}
	}
	if pid := os.Getpid(); pid != 1 {
		return fmt.Errorf("this is process %d: it has no pid namespace of its own", pid)
	}
	ctx, s, err := dialRole("contained", false)
	if err != nil {
		return err
	}
	if _, err := s.Publish(ctx, "inside", make([]uint64, 1<<16)); err != nil {
		return err
	}
	g, err := s.Latest(ctx, "outside")
	if err != nil {
		return err
	}
	p.say(fmt.Sprint(g.Shape()))
	g.Release()
	return s.Close()
}

// A client whose /dev/shm, IPC, process numbers and network are its own meets the broker by the runtime directory alone:
// memory comes as descriptors. Field reports C1, C7, C8.
func TestC1C7C8TheSocketIsAllThatIsShared(t *testing.T) {
	h := newHost(t)
	s := h.serve(t, "one")
	require.True(t, s.started(t), "%s", &s.errors)
	other := h.dial(t, "one")
	_, err := other.Publish(within(t, soon), "outside", make([]uint64, 1<<16))
	require.NoError(t, err)
	own := func(c *exec.Cmd) {
		inPidNamespace(t, c)
		c.SysProcAttr.Cloneflags |= syscall.CLONE_NEWNS | syscall.CLONE_NEWIPC | syscall.CLONE_NEWNET
		c.Args = []string{"sh", "-c", `mount --make-rprivate / && mount -t tmpfs none "$0" && exec "$1"`, h.shm, c.Path}
		c.Path = "/bin/sh"
	}
	probe := exec.Command("/bin/true")
	own(probe)
	if out, err := probe.CombinedOutput(); err != nil {
		skip(t, fmt.Sprintf("a process with mounts of its own needs root: %v: %s", err, out))
	}
	p := spawnAs(t, "contained", map[string]any{"Hidden": []string{h.shm}}, append(os.Environ(), shm.RuntimeEnv+"="+filepath.Join(h.base, "callboard", "one")), own)
	expect(t, p, "[65536]")
	require.NoError(t, p.Wait(soon))
	g, err := other.Latest(within(t, soon), "inside")
	require.NoError(t, err)
	require.Equal(t, []int64{65536}, g.Shape())
	g.Release()
	_ = other.Close()
	s.end(t, syscall.SIGTERM)
}
