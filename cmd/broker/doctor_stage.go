package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"callboard/broker"
	callboard "callboard/clients/go"
	"callboard/protocol"
	"callboard/shm"
)

// runtimePlaces looks at every place where clients look (rule I5), and tells whether one of them may have a broker.
func (d *diagnosis) runtimePlaces() (found bool) {
	if dir := os.Getenv(shm.RuntimeEnv); dir != "" {
		d.ok("runtime directory", "%s=%s: no other place is looked at", shm.RuntimeEnv, dir)
	}
	if list := os.Getenv(shm.TrustEnv); list != "" {
		d.ok("runtime directory", "%s=%s: directories of these users are entered too", shm.TrustEnv, list)
	}
	dir, err := shm.FindRuntime(d.stage)
	var places *shm.FindError
	switch {
	case err == nil:
		d.ok("runtime directory", "%s has a socket", dir)
		return true
	case !errors.As(err, &places):
		d.trouble(stateFail, "runtime directory", "correct it; every client refuses it too", "%v", err)
		return false
	}
	for _, place := range places.Places {
		var bad *shm.DirError
		switch {
		case errors.As(place.Err, &bad):
			d.trouble(stateFail, "runtime directory", "no broker starts there and no client looks there while it is so", "%v", place.Err)
		default:
			d.ok("runtime directory", "%s: %v", place.Path, place.Err)
		}
	}
	d.trouble(stateWarn, "broker", strings.TrimSuffix("callboard serve --stage "+d.stage, " --stage "+defaultStage), "none runs for stage %q", d.stage)
	return false
}

const doctorWait = 5 * time.Second

// broker attaches, as a client that only reads.
func (d *diagnosis) broker(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, doctorWait)
	defer cancel()
	begin := time.Now()
	stage, err := callboard.Dial(ctx, callboard.Options{Stage: d.stage, Name: "callboard doctor", ReadOnly: true})
	if err != nil {
		var failed *callboard.Error
		do := "its log says more"
		if errors.As(err, &failed) {
			switch failed.Status {
			case protocol.StatusNotFound:
				do = "`callboard gc` removes what a killed broker left; then `callboard serve`"
			case protocol.StatusIncompatibleVersion:
				do = fmt.Sprintf("use one version on both sides; this program is %s (ABI %s)", broker.Version, protocol.VersionText(protocol.VersionWord))
			case protocol.StatusAccessDenied:
				do = "run as the broker's user, or have its operator say serve --allow-uid"
			case protocol.StatusOutOfMemory:
				do = "see shared memory"
			case protocol.StatusTimeout:
				do = "it listens and does not answer: is it stopped (Ctrl-Z, a debugger)?"
			}
		}
		d.trouble(stateFail, "broker", do, "%v", err)
		return
	}
	defer func() { _ = stage.Close() }()
	d.ok("broker", "attached within %s", time.Since(begin).Round(time.Millisecond))
}

// nats asks the broker over NATS for its state.
func (d *diagnosis) nats(ctx context.Context, stage string) {
	const do = "reading and writing work without it; `watch`, `info` and `ls` do not"
	dir, info, err := runtimeInfo(stage)
	if err != nil {
		d.trouble(stateFail, "NATS", do, "%v", err)
		return
	}
	description, err := describeStage(ctx, stage)
	if err != nil {
		d.trouble(stateFail, "NATS", do, "%s of %s: %v", info.URL, filepath.Join(dir, shm.NATSFile), err)
		return
	}
	d.ok("NATS", "%s answers", info.URL)
	if description.BrokerVersion != broker.Version {
		d.trouble(stateWarn, "version", "use one version on both sides", "the broker is %s, this program %s", description.BrokerVersion, broker.Version)
	} else {
		d.ok("version", "broker and this program are %s (ABI %s)", broker.Version, protocol.VersionText(protocol.VersionWord))
	}
	d.servedGPU(&description.GPU)
	m := description.Memory
	used := m.Held - min(m.Held, m.Free+m.Recycled)
	if used > m.Limit/10*9 {
		d.trouble(stateWarn, "memory of the stage", "`callboard info` shows who pins; raise serve --memory", "%s of %s are used", formatSize(used), formatSize(m.Limit))
	} else {
		d.ok("memory of the stage", "%s of %s are used", formatSize(used), formatSize(m.Limit))
	}
	if dropped := description.Counters["announcements_dropped"]; dropped > 0 {
		d.trouble(stateWarn, "announcements", "events were lost: NATS was out of reach, or a subscriber too slow; `describe` has the state", "%d of %d dropped", int64(dropped), int64(description.Counters["announced"]+dropped))
	}
}
