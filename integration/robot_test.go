package integration

import (
	"bufio"
	"context"
	"fmt"
	"math"
	"net"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	callboard "callboard/clients/go"
	"callboard/control"
	"callboard/integration/harness"
)

// The nodes of examples/robot, as they stand there: each is killed and started anew under the others, and the broker
// under all. Every tick is whole and gets one command; a sum over all ticks shows that none was lost or counted twice.
// Those that are older than what is kept are lost, and said to be. Ctrl-C leaves nothing behind. Field reports A4, E1,
// E12; rules B1, O1, O3, O4.
func TestRobotNodesAreKilledAndGoOn(t *testing.T) {
	t.Parallel()
	r := newRobot(t)
	seen, watched := r.watch()
	driver, controller := r.driver(20), r.controller()
	require.Zero(t, driver.after)
	require.Zero(t, controller.after)
	r.until(20)
	observer := r.node("observer", r.observer)
	observer.shows(`tick \d+: nearest (\d\.\d\d) m; commanded for (\d\.\d\d) m: heading \d+\.\d{3} rad, speed`)

	controller.kill()
	before := r.floor("command")
	r.eventually(t, "the driver goes on alone", func() bool { return r.floor("imu/turn") >= before+10 })
	require.Equal(t, before, r.floor("command"))
	controller = r.controller()
	require.Equal(t, before, controller.after)
	r.until(before + 20)

	driver.kill()
	controller.shows(`no tick for a second: is the driver running\? the last one is \d+`)
	before = r.floor("imu/turn")
	require.Equal(t, before, r.until(before), "the last tick has its command")
	driver = r.driver(20)
	require.Equal(t, before, driver.after)
	r.until(before + 10)
	controller.shows(`tick \d+: nearest \d\.\d\d m, speed \d\.\d\d m/s, 0 lost; from scan to command \d+\.\d\d ms, at most \d+\.\d\d`)

	for range 5 { // wherever in a tick it is
		driver.kill()
		driver = r.driver(20) // slow enough that no tick is too old for a controller that has to wait for its processor
		r.until(driver.after + 10)
	}

	require.Regexp(t, `^tick \d+: .*, 0 lost$`, controller.order("stop"))
	r.eventually(t, "it stops", func() bool { return r.speed() == 0 })
	require.Equal(t, `"jump": expected stop or go`, controller.order("jump"))
	controller.order("go")
	r.eventually(t, "it goes", func() bool { return r.speed() > 0 })

	r.Kill9()
	r.Restart()
	r.connect(t)
	r.stage.connect(t)
	r.until(r.floor("command") + 20)

	r.eventually(t, "fifty snapshots of whole ticks are looked at", func() bool { return seen() > 50 })
	controller.kill()
	driver.kill()
	before = r.floor("command")
	driver = r.driver(1000)
	r.eventually(t, "the driver is further than what it keeps", func() bool { return r.floor("imu/turn") > before+300 })
	driver.interrupted(`the last tick is \d+`)
	observer.shows("the controller is further behind than the driver keeps ticks")
	last := r.floor("imu/turn")
	controller = r.controller()
	r.eventually(t, "the newest tick has its command", func() bool { return r.floor("command") == last })
	require.Regexp(t, fmt.Sprintf(`^tick %d: .*, %d lost$`, last, last-before-1), controller.order("go"))

	observer.shows(fmt.Sprintf(`tick %d: `, last))
	watched()
	controller.interrupted(fmt.Sprintf(`the last command is for tick %d`, last))
	observer.interrupted("")
	r.stage.eventually(t, soon, "only the test is attached", func(d description) bool { return len(d.Clients) == 1 })
}

// A broker that is stopped ends them, each with one line that says so. Field report A4; rule B1.
func TestRobotNodesEndWithTheStage(t *testing.T) {
	t.Parallel()
	r := newRobot(t)
	nodes := []*robotNode{r.driver(20), r.controller(), r.node("observer", r.observer)}
	r.until(5)
	nodes[2].shows(`tick \d+: nearest`)
	require.NoError(t, r.client.Close())
	r.stage.stop(t)
	for _, n := range nodes {
		require.Error(t, n.Wait(soon), n.Name)
		require.Regexp(t, `^(\S+ \S+ )?`+n.Name+`: [^\n]*the broker[^\n]*\n$`, n.Stderr())
	}
}

// robot is the stage with the programs, and what a test sees of it.
type robot struct {
	*stage
	t                       *testing.T
	python, lidar, observer string
	client                  *callboard.Stage
	root                    *callboard.Query
}

func newRobot(t *testing.T) *robot {
	t.Helper()
	root, err := harness.Root()
	require.NoError(t, err)
	r := &robot{t: t, python: python(t), observer: filepath.Join(t.TempDir(), "observer")}
	client := filepath.Join(root, "clients", "c")
	out, err := exec.Command("make", "--silent", "-C", client, "build/lidar").CombinedOutput()
	require.NoError(t, err, "%s", out)
	r.lidar = filepath.Join(client, "build", "lidar")
	out, err = exec.Command("go", "build", "-o", r.observer, "../examples/robot/observer").CombinedOutput()
	require.NoError(t, err, "%s", out)
	r.stage = startStage(t)
	r.client = r.Dial("robot test")
	r.root, err = r.client.QueryFromPathList(within(t, soon), []string{"/"})
	require.NoError(t, err)
	return r
}

// robotNode is one of the processes.
type robotNode struct {
	*harness.Process
	t     *testing.T
	stage *stage
	after uint64 // the tick that it goes on after
	port  string // of the controller
}

func (r *robot) node(name string, command ...string) *robotNode {
	r.t.Helper()
	return &robotNode{t: r.t, stage: r.stage, Process: spawnAs(r.t, name, nil, r.Env(), func(c *exec.Cmd) { c.Path, c.Args = command[0], command })}
}

func (r *robot) driver(rate int) *robotNode {
	r.t.Helper()
	n := r.node("lidar", r.lidar, strconv.Itoa(rate))
	n.after = n.number(n.shows(`goes on after tick (\d+)$`)[1])
	return n
}

func (r *robot) controller() *robotNode {
	r.t.Helper()
	n := r.node("controller", r.python, "-W", "error", filepath.Join("..", "examples", "robot", "controller.py"))
	said := n.shows(`goes on after tick (\d+); operators: port (\d+)$`)
	n.after, n.port = n.number(said[1]), said[2]
	return n
}

func (n *robotNode) number(text string) uint64 {
	n.t.Helper()
	value, err := strconv.ParseUint(text, 10, 64)
	require.NoError(n.t, err)
	return value
}

// shows waits for a line with this in it and gives its parts.
func (n *robotNode) shows(pattern string) []string {
	n.t.Helper()
	wanted, deadline := regexp.MustCompile("^"+n.Name+": "+pattern), time.After(2*soon)
	for {
		select {
		case line, open := <-n.Lines():
			require.True(n.t, open, "%s ended; it wrote:\n%s", n.Name, n.Stderr())
			if parts := wanted.FindStringSubmatch(line); parts != nil {
				return parts
			}
		case <-deadline:
			require.FailNow(n.t, "not shown in time", "%s: %s; it wrote:\n%s", n.Name, pattern, n.Stderr())
		}
	}
}

// kill is kill -9. What the node had submitted is done when it returns: the broker has forgotten it.
func (n *robotNode) kill() {
	n.t.Helper()
	n.Process.Kill()
	n.stage.eventually(n.t, soon, n.Name+" stays", func(d description) bool {
		return !slices.ContainsFunc(d.Clients, func(c control.ClientDescription) bool { return int(c.PID) == n.PID() })
	})
}

// order is one line of an operator and the answer.
func (n *robotNode) order(line string) string {
	n.t.Helper()
	c, err := net.DialTimeout("tcp", "127.0.0.1:"+n.port, soon)
	require.NoError(n.t, err)
	defer c.Close()
	require.NoError(n.t, c.SetDeadline(time.Now().Add(soon)))
	_, err = fmt.Fprintln(c, line)
	require.NoError(n.t, err)
	answer, err := bufio.NewReader(c).ReadString('\n')
	require.NoError(n.t, err)
	return answer[:len(answer)-1]
}

// interrupted is Ctrl-C, and the last line then.
func (n *robotNode) interrupted(last string) {
	n.t.Helper()
	n.Signal(syscall.SIGINT)
	if last != "" {
		n.shows(last + "$")
	}
	require.NoError(n.t, n.Wait(soon), "%s wrote:\n%s", n.Name, n.Stderr())
	require.Empty(n.t, n.Stderr(), n.Name)
}

// watch looks at every epoch that it can, all along: the sensors are of one tick, and no command is ahead of them. It
// gives a function that tells how many there were so far, and one that ends this.
func (r *robot) watch() (seen func() int64, end func()) {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r.t.Cleanup(cancel)
	var count atomic.Int64
	torn := []string{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range r.client.Epochs(ctx) {
			snapshot, err := r.client.Snapshot(ctx)
			if err != nil {
				torn = append(torn, err.Error())
				continue
			}
			var floors [4]uint64
			for i, name := range []string{"lidar/points", "lidar/valid", "imu/turn", "command"} {
				if floors[i], err = snapshot.Floor(name); err != nil {
					torn = append(torn, err.Error())
				}
			}
			if floors[0] != floors[1] || floors[0] != floors[2] || floors[3] > floors[0] {
				torn = append(torn, fmt.Sprintf("epoch %d: %d", snapshot.Epoch(), floors))
			}
			snapshot.Release()
			count.Add(1)
		}
	}()
	return count.Load, func() {
		r.t.Helper()
		cancel()
		<-done
		require.Empty(r.t, torn[:min(len(torn), 3)])
	}
}

func (r *robot) floor(name string) uint64 {
	r.t.Helper()
	floor, err := r.client.WriteFloor(name)
	require.NoError(r.t, err)
	return floor
}

func (r *robot) eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	require.Eventually(t, ok, 2*soon, 20*time.Millisecond, what)
}

// until waits for the command of a tick, and wants the newest one that has a command to be right.
func (r *robot) until(tick uint64) uint64 {
	r.t.Helper()
	r.eventually(r.t, fmt.Sprintf("tick %d has its command", tick), func() bool { return r.floor("command") >= tick })
	read, err := r.client.ReadAttributes(within(r.t, soon), r.root, []string{"lidar/points", "lidar/valid", "imu/turn", "command"}, callboard.ReadOptions{Common: true})
	require.NoError(r.t, err)
	defer read.Release()
	tick = read.Ordinal()
	scan := float64(1) + 0.25*float64(tick%5)
	points, valid := values[float32](r, read, "lidar/points"), values[bool](r, read, "lidar/valid")
	require.Len(r.t, points, 3*720)
	for beam, good := range valid {
		require.Equal(r.t, beam%7 != 0, good)
		distance := math.Hypot(float64(points[3*beam]), float64(points[3*beam+1]))
		walker := (uint64(beam)+720-tick*3%720)%720 < 8
		switch {
		case !good:
			require.Zero(r.t, distance)
		case walker:
			require.InDelta(r.t, scan, distance, 1e-5)
		default:
			require.InDelta(r.t, 4, distance, 1e-5)
		}
	}
	require.Equal(r.t, []float64{float64(tick%8+1) / 64}, values[float64](r, read, "imu/turn"))
	heading := 0.0
	for k := range tick {
		heading += float64((k+1)%8+1) / 64
	}
	command := values[float64](r, read, "command")
	require.Equal(r.t, heading, command[0], "all turns up to tick %d, each once", tick)
	require.InDelta(r.t, scan, command[1], 1e-5)
	return tick
}

// speed is what is commanded now.
func (r *robot) speed() float64 {
	r.t.Helper()
	latest, err := r.client.Latest(within(r.t, soon), "command")
	require.NoError(r.t, err)
	defer latest.Release()
	command, err := callboard.Values[float64](latest)
	require.NoError(r.t, err)
	return command[2]
}

// values are an attribute's, in place; they end with the test.
func values[T any](r *robot, read *callboard.Read, name string) []T {
	r.t.Helper()
	group, err := read.Group(name)
	require.NoError(r.t, err)
	r.t.Cleanup(group.Release)
	all, err := callboard.Values[T](group)
	require.NoError(r.t, err)
	return all
}
