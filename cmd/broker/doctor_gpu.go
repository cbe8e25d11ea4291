package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"callboard/control"
	"callboard/cudaipc"
)

// selfTestWait bounds the self-test of one device: two processes make a context each.
const selfTestWait = 30 * time.Second

// gpu asks the driver, and has a second process open memory of each device that the driver does not rule out, as a broker does
// at its start. That a machine has no GPU is nothing wrong.
func (d *diagnosis) gpu(ctx context.Context) {
	report := cudaipc.Probe("")
	library := cudaipc.DefaultLibrary
	if named := os.Getenv(cudaipc.LibraryEnv); named != "" {
		library = fmt.Sprintf("%s ($%s)", named, cudaipc.LibraryEnv)
	}
	if report.Driver == nil || len(report.Devices) == 0 {
		d.noGPU(library, report.Verdict)
		return
	}
	version, err := report.Driver.Version()
	if err != nil {
		d.trouble(stateWarn, "GPU driver", "host memory is served all the same", "%s does not tell its version: %v", library, err)
	} else {
		d.ok("GPU driver", "%s: %s, CUDA %d.%d, %s", library, report.Driver.Name(), version/1000, version%1000/10, plural(uint64(len(report.Devices)), "device"))
	}
	for i := range report.Devices {
		d.device(ctx, report.Driver, &report.Devices[i])
	}
	for _, note := range report.Notes {
		d.ok("GPU", "%s", note)
	}
}

// noGPU says why there is no device to look at.
func (d *diagnosis) noGPU(library string, v cudaipc.Verdict) {
	found := fmt.Sprintf("%s: %s", library, v.Reason)
	if v.Text != "" {
		found += ": " + v.Text
	}
	switch v.Reason {
	case cudaipc.ReasonNoDriver, cudaipc.ReasonNotBuilt: // as on most machines
		d.ok("GPU", "%s; only host memory is served", found)
	default:
		d.trouble(stateWarn, "GPU", v.Advice, "%s; only host memory is served", found)
	}
}

// device looks at one.
func (d *diagnosis) device(ctx context.Context, driver cudaipc.Driver, r *cudaipc.DeviceReport) {
	name := fmt.Sprintf("device %d: %s, %s, %s", r.Ordinal, r.Name, r.UUID, formatSize(r.MemoryBytes))
	if r.Answer == cudaipc.No {
		d.trouble(stateWarn, "GPU", r.Advice, "%s: not served: %s: %s", name, r.Reason, r.Text)
		return
	}
	if r.Reason != "" {
		name += fmt.Sprintf(" (%s: %s)", r.Reason, r.Advice)
	}
	var failed *cudaipc.SelfTestError
	switch err := selfTest(ctx, driver, r.Ordinal); {
	case err == nil:
		d.ok("GPU", "%s: another process opened its memory and an event, and copied", name)
	case errors.As(err, &failed):
		d.trouble(stateWarn, "GPU", failed.Advice, "%s: not served: self-test failed: %s: %s: %v", name, failed.Reason, failed.Step, failed.Err)
	default:
		d.trouble(stateWarn, "GPU", cudaipc.WhyOf(err).Advice, "%s: not served: %s: %v", name, cudaipc.WhyOf(err).Reason, err)
	}
}

func selfTest(ctx context.Context, driver cudaipc.Driver, ordinal int) error {
	words, err := selfTestCommand()
	if err != nil {
		return err
	}
	thread, err := cudaipc.NewThread(driver, ordinal)
	if err != nil {
		return err
	}
	defer func() { _ = thread.Close() }()
	ctx, cancel := context.WithTimeout(ctx, selfTestWait)
	defer cancel()
	return cudaipc.SelfTest(ctx, thread, exec.CommandContext(ctx, words[0], words[1:]...))
}

// servedGPU says what the running broker makes of the devices.
func (d *diagnosis) servedGPU(g *control.GPUDescription) {
	const check = "GPU of the stage"
	if g.State == control.GPUOff {
		d.ok(check, "the broker was told to serve none (--gpu off)")
		return
	}
	for _, one := range g.Devices {
		text := strings.TrimSpace(fmt.Sprintf("%s %s", one.Name, one.UUID))
		switch one.State {
		case control.GPUServed:
			d.ok(check, "%s: served as device %d by %s, %s held", text, one.ID, g.Driver, formatSize(one.Memory.Held))
		case control.GPULost:
			d.trouble(stateFail, check, one.Advice, "%s: %s: %s", text, one.Reason, one.Text)
		default:
			d.trouble(stateWarn, check, one.Advice, "%s: not served: %s: %s", text, one.Reason, one.Text)
		}
	}
	switch {
	case len(g.Devices) > 0:
	case g.Reason == cudaipc.ReasonNoDriver || g.Reason == cudaipc.ReasonNotBuilt:
		d.ok(check, "none: %s", strings.TrimSpace(g.Reason+" "+g.Text))
	default:
		d.trouble(stateWarn, check, g.Advice, "none: %s: %s", g.Reason, g.Text)
	}
}
