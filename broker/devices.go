package broker

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"time"

	"callboard/control"
	"callboard/cudaipc"
	"callboard/protocol"
	"callboard/snapshot"
)

const (
	// probePause is how long a device that was not to be had is not tried again, however
	// often clients ask for it (behaviour 306).
	probePause = 3 * time.Second
	// probeWait bounds one try, a context and a self-test for each device included.
	probeWait = 60 * time.Second
)

// devices are the devices that this broker serves, and why it does not serve the others.
// What a device is asked for goes through its Thread; the loop never does that.
type devices struct {
	config  GPUConfig
	trying  sync.Mutex // one try at a time; taken before mu
	tried   time.Time  // under trying
	mu      sync.Mutex
	driver  string
	verdict cudaipc.Verdict // why there is no list
	list    []*device       // by the broker's index: where the operator named some, in that order
	places  []*arena        // where addresses lead to
}

// device is one device. What is set when it is served does not change then.
type device struct {
	index  uint32
	info   cudaipc.DeviceInfo
	thread *cudaipc.Thread // nil: verdict says why
	events *cudaipc.Events
	lanes  *lanes
	serial serial // allocating and freeing, which take the driver long
	store  *snapshot.Device

	verdict cudaipc.Verdict // under devices.mu
	lost    error           // under devices.mu: the context is gone, and this is what the driver said
}

// serial does things one after the other, each on the goroutine of the first that finds
// nothing on its way.
type serial struct {
	mu   sync.Mutex
	todo []func()
	busy bool
}

func (s *serial) do(group *sync.WaitGroup, f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.todo = append(s.todo, f)
	if s.busy {
		return
	}
	s.busy = true
	group.Go(func() {
		for {
			s.mu.Lock()
			if len(s.todo) == 0 {
				s.busy = false
				s.mu.Unlock()
				return
			}
			next := s.todo[0]
			s.todo = s.todo[1:]
			s.mu.Unlock()
			next()
		}
	})
}

// openDevices brings up what there is, before anything else of the broker: it takes seconds.
// An error: the operator demands more than that.
func (b *Broker) openDevices() error {
	b.devices = &devices{config: b.config.GPU}
	for _, g := range b.devices.try(b.ctx) {
		b.adopt(g)
	}
	if b.config.GPU.Mode != GPURequired {
		return nil
	}
	all := b.devices.all()
	for _, g := range all {
		if g.thread == nil && (len(b.config.GPU.Devices) > 0 || b.devices.count() == 0) {
			return fmt.Errorf("--gpu says that device memory is required: device %d is not served: %s", g.index, b.devices.why(g.index))
		}
	}
	if len(all) == 0 {
		return fmt.Errorf("--gpu says that device memory is required, and none is served: %s", b.devices.why(0))
	}
	return nil
}

// adopt gives a device that was brought up what the store needs of it.
func (b *Broker) adopt(g *device) {
	g.lanes = &lanes{device: g, fail: b.copyFailure}
	g.store = &snapshot.Device{Index: g.index, LimitBytes: b.config.GPU.MemoryBytes, Zero: g.zero,
		Copy: func(copies []snapshot.DeviceCopy) error { return b.copyAll(g, copies) }}
	if g.store.LimitBytes == 0 {
		g.store.LimitBytes = g.info.MemoryBytes
	}
}

// copyFailure says what an error of the driver in a copy means.
func (b *Broker) copyFailure(g *device, err error) error {
	if cudaipc.CodeOf(err).ContextLost() {
		return b.loseDevice(g, err)
	}
	return protocol.Errorf(protocol.StatusInternal, "device %d (%s, %v): copying: %v", g.index, g.info.Name, g.info.UUID, err)
}

// tryDevices tries again what is not served (behaviour 306), on the time of whoever asks.
func (b *Broker) tryDevices() {
	tried := make(chan struct{})
	b.deviceWork.Go(func() {
		defer close(tried)
		served := b.devices.try(b.ctx)
		if len(served) == 0 {
			return
		}
		b.do(func() {
			for _, g := range served {
				b.adopt(g)
				b.store.AddDevice(g.store)
			}
		})
		b.tellDevices(served, false)
	})
	select {
	case <-tried:
	case <-b.ctx.Done():
	}
}

// storeDevices are the devices that the store begins with.
func (b *Broker) storeDevices() (all []*snapshot.Device) {
	for _, g := range b.devices.all() {
		if g.store != nil {
			all = append(all, g.store)
		}
	}
	return all
}

// try probes the driver and brings up what is not served yet; it takes a second or more
// for each device. It gives the devices that are new.
func (d *devices) try(ctx context.Context) (served []*device) {
	d.trying.Lock()
	defer d.trying.Unlock()
	if d.config.Mode == GPUOff || time.Since(d.tried) < probePause {
		return nil
	}
	defer func() { d.tried = time.Now() }()
	ctx, cancel := context.WithTimeout(ctx, probeWait)
	defer cancel()
	report := cudaipc.Probe("")
	d.note(&report)
	for _, g := range d.all() {
		if g.thread != nil {
			continue
		}
		verdict := d.bringUp(ctx, &report, g)
		d.mu.Lock()
		g.verdict = verdict
		d.mu.Unlock()
		if verdict.Answer == cudaipc.Yes {
			served = append(served, g)
		}
	}
	return served
}

// note takes over what a probe found: devices keep their indices, new ones come last.
func (d *devices) note(r *cudaipc.Report) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.verdict = r.Verdict; r.Driver != nil {
		d.driver = r.Driver.Name()
	}
	if len(d.config.Devices) > 0 { // each has its place, there or not
		for i := len(d.list); i < len(d.config.Devices); i++ {
			d.list = append(d.list, &device{index: uint32(i)})
		}
		for i, name := range d.config.Devices {
			g := d.list[i]
			if g.thread != nil {
				continue
			}
			g.verdict = d.missing(r, name)
			for _, found := range r.Devices {
				if found.UUID.String() == name || strconv.Itoa(found.Ordinal) == name {
					g.info, g.verdict = found.DeviceInfo, found.Verdict
				}
			}
		}
		return
	}
	for _, found := range r.Devices {
		var g *device
		for _, known := range d.list {
			if known.info.UUID == found.UUID {
				g = known
			}
		}
		if g == nil {
			g = &device{index: uint32(len(d.list))}
			d.list = append(d.list, g)
		}
		if g.thread == nil {
			g.info, g.verdict = found.DeviceInfo, found.Verdict
		}
	}
}

// missing is the verdict on a device that the operator named and the driver does not have.
func (d *devices) missing(r *cudaipc.Report, name string) cudaipc.Verdict {
	if r.Driver == nil || len(r.Devices) == 0 {
		return r.Verdict
	}
	return cudaipc.Verdict{Answer: cudaipc.No, Cause: cudaipc.Cause{Reason: cudaipc.ReasonNoDevice,
		Advice: "name one of those that `nvidia-smi -L` lists and that CUDA_VISIBLE_DEVICES leaves"},
		Text: fmt.Sprintf("--gpu names device %s; the driver has %d, and not this one", name, len(r.Devices))}
}

// bringUp makes a device's context and events and has another process open its memory.
func (d *devices) bringUp(ctx context.Context, r *cudaipc.Report, g *device) cudaipc.Verdict {
	if g.verdict.Answer == cudaipc.No || r.Driver == nil {
		return g.verdict
	}
	for _, other := range d.all() {
		if other != g && other.thread != nil && other.info.UUID == g.info.UUID {
			return cudaipc.Verdict{Answer: cudaipc.No, Cause: cudaipc.Cause{Reason: "named twice", Advice: "name each device once"}}
		}
	}
	thread, err := cudaipc.NewThread(r.Driver, g.info.Ordinal)
	if err != nil {
		return verdictOn(err)
	}
	command := exec.CommandContext(ctx, d.config.SelfTest[0], d.config.SelfTest[1:]...)
	if err := cudaipc.SelfTest(ctx, thread, command); err != nil {
		_ = thread.Close()
		return verdictOn(err)
	}
	events, err := cudaipc.NewEvents(thread, d.config.Events)
	if err != nil {
		_ = thread.Close()
		return verdictOn(err)
	}
	d.mu.Lock()
	g.thread, g.events = thread, events
	d.mu.Unlock()
	return cudaipc.Verdict{Answer: cudaipc.Yes}
}

// verdictOn says why bringing a device up failed.
func verdictOn(err error) cudaipc.Verdict {
	v := cudaipc.Verdict{Answer: cudaipc.No, Cause: cudaipc.WhyOf(err), Text: err.Error()}
	var failed *cudaipc.SelfTestError
	if errors.As(err, &failed) {
		v.Cause, v.Text = failed.Cause, fmt.Sprintf("self-test: %s: %v", failed.Step, failed.Err)
		v.Reason = "self-test failed: " + v.Reason
	}
	return v
}

// all are those that are known, served or not.
func (d *devices) all() []*device {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]*device(nil), d.list...)
}

// served finds a device that is served; nil: it is not.
func (d *devices) served(index uint32) *device {
	d.mu.Lock()
	defer d.mu.Unlock()
	if index >= uint32(len(d.list)) || d.list[index].thread == nil {
		return nil
	}
	return d.list[index]
}

// count is how many indices there are while any of them is served, else 0.
func (d *devices) count() uint32 {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, g := range d.list {
		if g.thread != nil {
			return uint32(len(d.list))
		}
	}
	return 0
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

// why says for people why a device is not served.
func (d *devices) why(index uint32) string {
	if d.config.Mode == GPUOff {
		return "this broker serves host memory only, by its operator's choice (serve --gpu off)"
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	v := d.verdict
	switch {
	case index < uint32(len(d.list)):
		v = d.list[index].verdict
	case len(d.list) > 0:
		return fmt.Sprintf("the broker's devices are 0 to %d", len(d.list)-1)
	}
	return reasonOf(v)
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

// describe tells operators.
func (d *devices) describe() control.GPUDescription {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := control.GPUDescription{State: control.GPUOff, Driver: d.driver, Devices: []control.DeviceDescription{}}
	if d.config.Mode == GPUOff {
		return out
	}
	out.State = control.GPUFailed
	for _, g := range d.list {
		one := control.DeviceDescription{ID: int32(g.index), Name: g.info.Name, Total: g.info.MemoryBytes, Limit: d.config.MemoryBytes, State: control.GPUFailed,
			Arenas: []control.ArenaDescription{}, Reason: g.verdict.Reason, Text: g.verdict.Text, Advice: g.verdict.Advice}
		if g.info.Name != "" {
			one.UUID = g.info.UUID.String()
		}
		switch {
		case g.lost != nil:
			one.State, one.Reason, one.Text, one.Advice = control.GPULost, "context lost", g.lost.Error(), lostAdvice
		case g.thread != nil:
			one.State, one.Reason, one.Text, one.Advice = control.GPUServed, "", "", ""
		}
		if one.State != control.GPUFailed {
			s := g.events.Stats()
			one.EventsFree, one.EventsLeased, one.EventsRetired = s.Free, s.Leased, s.Retired
			if out.State != control.GPUServed {
				out.State = one.State
			}
		}
		out.Devices = append(out.Devices, one)
	}
	if out.State == control.GPUFailed {
		v := d.verdict
		if len(d.list) > 0 {
			v = d.list[0].verdict
		}
		out.Reason, out.Text, out.Advice = v.Reason, v.Text, v.Advice
	}
	return out
}

const lostAdvice = "start the broker anew (serve --takeover): attributes in host memory stay, those on the device begin without rows"

// tellDevices says what came of a try, in the log and, where somebody may have expected more, in
// what operators are told.
func (b *Broker) tellDevices(served []*device, first bool) {
	served = slices.DeleteFunc(served, func(g *device) bool { return g.thread == nil })
	for _, g := range served {
		b.config.Log.Info("device memory is served", "device", g.index, "name", g.info.Name, "uuid", g.info.UUID.String(), "driver", b.devices.driver)
	}
	if n := len(served); n > 0 {
		b.health(control.LevelInfo, control.HealthGPUServed, fmt.Sprintf("memory of %d devices is served", n), map[string]control.Number{"devices": control.Number(n)})
	}
	if !first {
		return
	}
	for _, g := range b.devices.all() {
		if g.thread == nil {
			text := fmt.Sprintf("device %d is not served: %s", g.index, b.devices.why(g.index))
			b.config.Log.Warn(text)
			b.health(control.LevelWarning, control.HealthGPUFailed, text, nil)
		}
	}
	if len(b.devices.all()) > 0 || b.config.GPU.Mode == GPUOff {
		return
	}
	text := "device memory is not served: " + b.devices.why(0)
	switch b.devices.verdict.Reason {
	case cudaipc.ReasonNoDriver, cudaipc.ReasonNotBuilt: // nobody missed anything
		b.config.Log.Debug(text)
	default:
		b.config.Log.Warn(text)
		b.health(control.LevelWarning, control.HealthGPUFailed, text, nil)
	}
}
