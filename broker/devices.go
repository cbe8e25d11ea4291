package broker

import (
	"cmp"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"callboard/control"
	"callboard/cudaipc"
	"callboard/protocol"
	"callboard/snapshot"
)

// devices are the devices that this broker serves, and why it does not serve the others.
// What a device is asked for goes through its Thread; the loop never does that.
type devices struct {
	config GPUConfig

	trying sync.Mutex // one try at a time; taken before mu
	tried  time.Time  // under trying

	mu      sync.Mutex
	driver  string
	verdict cudaipc.Verdict // of the last probe as a whole
	first   []*device       // up before the stage's memory is there: they have no index yet
	known   []*device       // that the operator named, or else that the driver has
	serving []*device       // those of them that are served, by the broker's index; nil: that device is not, now
	numbers []cudaipc.UUID  // which device has the index, for the stage's life (device_numbers.go)
	places  []*arena        // where addresses lead to
}

// device is one device. All but verdict, lost and oddPitches stays as it is once it is served.
type device struct {
	name   string // as the operator named it; "": he did not
	info   cudaipc.DeviceInfo
	index  uint32          // the broker's, for the stage's life
	thread *cudaipc.Thread // nil: it is not served
	events *cudaipc.Events
	lanes  *lanes
	// Of copies of rows at a distance: the longest that the device takes, 0 if it does not say,
	// and that it refused one.
	maxPitch   uint64
	oddPitches atomic.Bool
	serial     serial // allocating and freeing, which take the driver long
	store      *snapshot.Device
	shared     bool            // the loop's: a client was given a handle
	verdict    cudaipc.Verdict // under devices.mu: why it is not served
	lost       error           // under devices.mu: its context is gone, and this is what the driver said
}

// serial does things one after the other, beside who hands them in.
type serial struct {
	mu   sync.Mutex
	todo []func()
	busy bool
}

func (s *serial) do(group *sync.WaitGroup, f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.todo = append(s.todo, f); s.busy {
		return
	}
	s.busy = true
	group.Go(func() {
		for next := s.next(); next != nil; next = s.next() {
			next()
		}
	})
}

func (s *serial) next() func() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.todo) == 0 {
		s.busy = false
		return nil
	}
	f := s.todo[0]
	s.todo = s.todo[1:]
	return f
}

// served finds the device with an index of the broker's; nil: there is none.
func (d *devices) served(index uint32) *device {
	d.mu.Lock()
	defer d.mu.Unlock()
	if index >= uint32(len(d.serving)) {
		return nil
	}
	return d.serving[index]
}

// all are the devices that are served, by index.
func (d *devices) all() []*device {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(d.serving), func(g *device) bool { return g == nil })
}

// up are the devices that were brought up, served or not yet.
func (d *devices) up() []*device {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(d.known), func(g *device) bool { return g.thread == nil })
}

// serveDevice gives a device that was brought up its index, and what the store needs of it.
func (b *Broker) serveDevice(g *device) error {
	b.devices.mu.Lock()
	defer b.devices.mu.Unlock()
	index, err := b.devices.numberOf(b.generation, g.info.UUID)
	if err != nil {
		return err
	}
	g.index, g.verdict = index, cudaipc.Verdict{Answer: cudaipc.Yes}
	g.lanes = &lanes{device: g, fail: b.copyFailure}
	g.store = &snapshot.Device{Index: g.index, LimitBytes: b.config.GPU.limitOf(g), Zero: g.zero,
		Copy: func(copies []snapshot.DeviceCopy) error { return b.copyAll(g, copies) }}
	b.devices.serving[index] = g
	return nil
}

// storeDevices are the devices that the store begins with.
func (b *Broker) storeDevices() (all []*snapshot.Device) {
	for _, g := range b.devices.all() {
		all = append(all, g.store)
	}
	return all
}

// add and remove keep count of where addresses lead to.
func (d *devices) add(a *arena) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.places = append(d.places, a)
}

func (d *devices) remove(a *arena) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.places = slices.DeleteFunc(d.places, func(other *arena) bool { return other == a })
}

// of finds the device that an address lies on; nil: none of ours.
func (d *devices) of(address uint64) *device {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, a := range d.places {
		if at := cudaipc.Pointer(address); at >= a.base && uint64(at-a.base) < a.bytes {
			return a.device
		}
	}
	return nil
}

const offText = "this broker serves host memory only, by its operator's choice (serve --gpu off)"

// why says for people why no device is served.
func (d *devices) why() string {
	if d.config.Mode == GPUOff {
		return offText
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return reasonOf(d.worst())
}

// worst is the verdict on the first device that is not served, or on all of them.
func (d *devices) worst() cudaipc.Verdict {
	for _, g := range d.known {
		if g.thread == nil {
			return g.verdict
		}
	}
	return d.verdict
}

// reasonOf is a verdict for people: what it is, what the driver says, what helps.
func reasonOf(v cudaipc.Verdict) string {
	text := v.Reason
	if v.Text != "" {
		text += " (" + v.Text + ")"
	}
	if v.Advice != "" {
		text += ": " + v.Advice
	}
	return text
}

const lostAdvice = "start the broker anew (serve --takeover): attributes in host memory stay, those on the device begin without rows"

// describe tells operators.
func (d *devices) describe() control.GPUDescription {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := control.GPUDescription{State: control.GPUOff, Driver: d.driver, Devices: []control.DeviceDescription{}}
	if d.config.Mode == GPUOff {
		out.Text = offText
		return out
	}
	out.State = control.GPUFailed
	for _, g := range d.known {
		one := control.DeviceDescription{ID: -1, Name: cmp.Or(g.info.Name, g.name), Total: g.info.MemoryBytes, State: control.GPUFailed,
			Arenas: []control.ArenaDescription{}}
		if g.info.Name != "" {
			one.UUID = g.info.UUID.String()
		}
		switch {
		case g.store == nil:
			one.Reason, one.Text, one.Advice = g.verdict.Reason, g.verdict.Text, g.verdict.Advice
		case g.lost != nil:
			one.State, one.Reason, one.Text, one.Advice = control.GPULost, cudaipc.ReasonContextLost, g.lost.Error(), lostAdvice
		default:
			one.State = control.GPUServed
		}
		if g.store != nil {
			s := g.events.Stats()
			one.ID, one.EventsFree, one.EventsLeased, one.EventsRetired = int32(g.index), s.Free, s.Leased, s.Retired
			if out.State != control.GPUServed {
				out.State = one.State
			}
		}
		out.Devices = append(out.Devices, one)
	}
	if out.State == control.GPUFailed {
		v := d.worst()
		out.Reason, out.Text, out.Advice = v.Reason, v.Text, v.Advice
	}
	return out
}

// copyFailure says what an error of the driver in a copy means.
func (b *Broker) copyFailure(g *device, err error) error {
	if cudaipc.CodeOf(err).ContextLost() {
		return b.loseDevice(g, err)
	}
	return protocol.Errorf(protocol.StatusInternal, "%v: copying: %v", g, err)
}

// String names a device in texts.
func (g *device) String() string {
	return "device " + strconv.Itoa(int(g.index)) + " (" + g.info.Name + ", " + g.info.UUID.String() + ")"
}
