package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"time"

	"callboard/control"
	"callboard/cudaipc"
)

const (
	// probePause is how long what was not to be had is not tried again, however often
	// clients ask for it (behaviour 306).
	probePause = 3 * time.Second
	// probeWait bounds one try, a context and a self-test for each device included.
	probeWait = 60 * time.Second
)

// openDevices brings up what there is, before anything else of the broker: it takes seconds.
// An error: the operator demands more than that.
func (b *Broker) openDevices() error {
	b.devices = &devices{config: b.config.GPU}
	b.devices.first = b.devices.try(b.ctx)
	b.config.share(b.devices.first)
	missing := len(b.devices.first) < max(1, len(b.config.GPU.Devices))
	if b.config.GPU.Mode == GPURequired && missing {
		return fmt.Errorf("device memory is required (--gpu) and not served: %s", b.devices.why())
	}
	return nil
}

// tryDevices tries again what is not served (behaviour 306), on the time of whoever asks.
func (b *Broker) tryDevices() {
	tried := make(chan struct{})
	b.deviceWork.Go(func() {
		defer close(tried)
		served := b.devices.try(b.ctx)
		b.do(func() {
			b.store.NoDevice(b.devices.why())
			served = slices.DeleteFunc(served, func(g *device) bool {
				err := b.serveDevice(g)
				if err == nil {
					b.store.AddDevice(g.store)
					return false
				}
				b.config.Log.Error("a device that is up is not served", "name", g.info.Name, "uuid", g.info.UUID.String(), "error", err)
				b.devices.shutDown(g, err)
				return true
			})
			b.config.share(b.devices.all())
			b.store.SetLimits(b.config.UnsealedBytes, b.config.PinnedBytes)
		})
		b.tellDevices(served)
	})
	select {
	case <-tried:
	case <-b.ctx.Done():
	}
}

// try probes the driver and brings up what is not up yet; it takes a second or more for each
// device. It gives the devices that are up now and were not before.
func (d *devices) try(ctx context.Context) (up []*device) {
	d.trying.Lock()
	defer d.trying.Unlock()
	if d.config.Mode == GPUOff || time.Since(d.tried) < probePause {
		return nil
	}
	defer func() { d.tried = time.Now() }()
	ctx, cancel := context.WithTimeout(ctx, probeWait)
	defer cancel()
	report := cudaipc.Probe("")
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.verdict = report.Verdict; report.Driver != nil {
		d.driver = report.Driver.Name()
	}
	d.note(&report)
	for _, g := range d.known {
		if g.thread != nil || g.verdict.Answer == cudaipc.No {
			continue
		}
		d.mu.Unlock() // nobody else writes what bringUp does, and describe need not wait for it
		thread, events, err := d.bringUp(ctx, report.Driver, g.info)
		longest := maxPitch(report.Driver, g.info.Ordinal)
		d.mu.Lock()
		if err != nil {
			g.verdict = verdictOn(err)
			continue
		}
		g.thread, g.events, g.maxPitch = thread, events, longest
		up = append(up, g)
	}
	return up
}

// note takes over what a probe found.
func (d *devices) note(r *cudaipc.Report) {
	for _, name := range d.config.Devices[min(len(d.known), len(d.config.Devices)):] { // the first time
		d.known = append(d.known, &device{name: name})
	}
	for _, g := range d.known {
		if g.thread == nil {
			g.verdict = missing(r, cmp.Or(g.name, g.info.UUID.String()))
		}
	}
	for _, found := range r.Devices {
		g := d.find(&found)
		if g == nil && len(d.config.Devices) == 0 {
			g = &device{}
			d.known = append(d.known, g)
		}
		if g != nil && g.thread == nil {
			g.info, g.verdict = found.DeviceInfo, found.Verdict
		}
	}
}

// find gives the place of a device that a probe found.
func (d *devices) find(found *cudaipc.DeviceReport) *device {
	for _, g := range d.known {
		if g.name == found.UUID.String() || g.name == strconv.Itoa(found.Ordinal) || g.name == "" && g.info.UUID == found.UUID {
			return g
		}
	}
	return nil
}

// missing is the verdict on a device that the driver does not have.
func missing(r *cudaipc.Report, name string) cudaipc.Verdict {
	if r.Driver == nil || len(r.Devices) == 0 {
		return r.Verdict
	}
	return cudaipc.Verdict{Answer: cudaipc.No, Text: fmt.Sprintf("there is no device %s; the driver has %d others", name, len(r.Devices)), Cause: cudaipc.Cause{Reason: cudaipc.ReasonNoDevice,
		Advice: "--gpu takes what `nvidia-smi -L` lists and CUDA_VISIBLE_DEVICES leaves, each once"}}
}

// bringUp makes a device's context and events, and has another process open its memory.
func (d *devices) bringUp(ctx context.Context, driver cudaipc.Driver, info cudaipc.DeviceInfo) (*cudaipc.Thread, *cudaipc.Events, error) {
	thread, err := cudaipc.NewThread(driver, info.Ordinal)
	if err != nil {
		return nil, nil, err
	}
	err = cudaipc.SelfTest(ctx, thread, exec.CommandContext(ctx, d.config.SelfTest[0], d.config.SelfTest[1:]...))
	var events *cudaipc.Events
	if err == nil {
		events, err = cudaipc.NewEvents(thread, d.config.Events)
	}
	if err != nil {
		_ = thread.Close()
	}
	return thread, events, err
}

// shutDown undoes bringUp of a device that was not served yet.
func (d *devices) shutDown(g *device, why error) {
	d.mu.Lock()
	thread, events := g.thread, g.events
	g.thread, g.events, g.verdict = nil, nil, verdictOn(why)
	d.mu.Unlock()
	_ = events.Close()
	_ = thread.Close()
}

// verdictOn says why bringing a device up failed.
func verdictOn(err error) cudaipc.Verdict {
	v := cudaipc.Verdict{Answer: cudaipc.No, Cause: cudaipc.WhyOf(err), Text: err.Error()}
	var failed *cudaipc.SelfTestError
	if errors.As(err, &failed) {
		v.Cause, v.Text = failed.Cause, fmt.Sprintf("%s: %v", failed.Step, failed.Err)
		v.Reason = "self-test failed: " + v.Reason
	}
	return v
}

// tellFirstTry says what came of the devices at the start.
func (b *Broker) tellFirstTry() {
	b.tellDevices(b.devices.all())
	d := b.devices
	if d.config.Mode == GPUOff {
		return
	}
	refused := map[string]cudaipc.Verdict{}
	d.mu.Lock()
	for _, g := range d.known {
		if g.thread == nil {
			refused["device "+cmp.Or(g.name, g.info.UUID.String())] = g.verdict
		}
	}
	if len(d.known) == 0 {
		refused["device memory"] = d.verdict
	}
	d.mu.Unlock()
	for what, v := range refused {
		text := what + " is not served: " + reasonOf(v)
		if v.Reason == cudaipc.ReasonNoDriver || v.Reason == cudaipc.ReasonNotBuilt {
			b.config.Log.Debug(text) // as on most machines
			continue
		}
		b.config.Log.Warn(text)
		b.health(control.LevelWarning, control.HealthGPUFailed, text, nil)
	}
}

// tellDevices says which devices are served from now on.
func (b *Broker) tellDevices(served []*device) {
	for _, g := range served {
		b.config.Log.Info("device memory is served", "device", g.index, "name", g.info.Name, "uuid", g.info.UUID.String(), "driver", g.thread.Driver().Name())
		b.health(control.LevelInfo, control.HealthGPUServed, g.String()+" is served", map[string]control.Number{"device": control.Number(g.index)})
	}
}
