package cudaipc

import (
	"errors"
	"fmt"
	"os"
	"strings"
)

// Answer is what a probe found.
type Answer int

const (
	// Unknown: nothing speaks against it, and nothing proves it; SelfTest decides.
	Unknown Answer = iota
	// Yes: it is known to work.
	Yes
	// No: it does not work here.
	No
)

// String gives "unknown", "yes" or "no".
func (a Answer) String() string { return [...]string{"unknown", "yes", "no"}[a] }

// Verdict says whether something works, and why not.
type Verdict struct {
	Answer Answer
	Cause
	Text string // the driver's own text, if it said something
}

// String is for people, in one line.
func (v Verdict) String() string {
	text := v.Answer.String()
	if v.Reason != "" {
		text += ": " + v.Reason
	}
	if v.Text != "" {
		text += " (" + v.Text + ")"
	}
	if v.Advice != "" {
		text += ": " + v.Advice
	}
	return text
}

// Report is what a probe found on this machine.
type Report struct {
	Verdict // the best of the devices', or why none could be asked
	// Driver is nil when none could be loaded; Name of it says which one it is.
	Driver  Driver
	Devices []DeviceReport
	// Notes are things about this process that speak for trouble with others.
	Notes []string
}

// DeviceReport is what a probe found about one device.
type DeviceReport struct {
	DeviceInfo
	Verdict
}

// Probe loads the driver and asks what it says about sharing memory between processes. It
// makes no context and no memory. It is cheap enough to be made again, and must be: no
// failure is remembered (behaviour 306).
//
// Yes is what the driver claims; that it is so, SelfTest shows. path is as in Load.
func Probe(path string) Report { return probe(path, "/") }

// probe looks for the kernel's files below root.
func probe(path, root string) Report {
	r := Report{Notes: notes(root)}
	d, err := Load(path)
	if err != nil {
		r.Verdict = refused(err)
		return r
	}
	r.Driver = d
	r.Verdict, r.Devices = ask(d, isWSL(root))
	return r
}

// ask goes through the devices; the verdict is the best of theirs.
func ask(d Driver, wsl bool) (Verdict, []DeviceReport) {
	count, err := d.DeviceCount()
	if err == nil && count == 0 {
		err = &Error{Code: ErrNoDevice, Function: "cuDeviceGetCount"}
	}
	if err != nil {
		return refused(err), nil
	}
	var devices []DeviceReport
	best := Verdict{Answer: No}
	for ordinal := range count {
		devices = append(devices, probeDevice(d, ordinal, wsl))
		if device := devices[ordinal].Verdict; ordinal == 0 || better(device.Answer, best.Answer) {
			best = device
		}
	}
	return best, devices
}

func better(a, b Answer) bool { return a == Yes && b != Yes || a == Unknown && b == No }

// refused is the verdict on a driver that does not start.
func refused(err error) Verdict {
	var library *LibraryError
	switch {
	case errors.Is(err, ErrNotBuilt):
		return Verdict{No, Cause{ReasonNotBuilt, "use a build without the tag nogpu"}, err.Error()}
	case errors.As(err, &library):
		return Verdict{No, Cause{ReasonNoDriver, "install NVIDIA's driver, or name its library in " + LibraryEnv + "; in a container, start it with --gpus or the NVIDIA runtime"}, err.Error()}
	default:
		return Verdict{No, why(CodeOf(err)), err.Error()}
	}
}

// probeDevice asks for what is known to make sharing impossible, the surest first.
func probeDevice(d Driver, ordinal int, wsl bool) DeviceReport {
	device, info, err := Describe(d, ordinal)
	if err != nil {
		return DeviceReport{DeviceInfo{Ordinal: ordinal}, refused(err)}
	}
	r := DeviceReport{DeviceInfo: info}
	for _, rule := range []struct {
		attribute Attribute
		wanted    func(value int) bool
		cause     Cause
	}{
		{AttributeIntegrated, func(v int) bool { return v == 0 }, Cause{ReasonTegra, "integrated devices (Tegra, Jetson) cannot share device memory between processes: keep data on the host, which such a device reaches as well"}},
		{AttributeComputeMode, func(v int) bool { return v == 0 }, Cause{ReasonExclusive, "only one process, or none, may use the device: nvidia-smi -c DEFAULT"}},
		{AttributeUnifiedAddressing, func(v int) bool { return v == 1 }, Cause{ReasonNoAddressing, "the device has no unified addressing, which sharing needs: use a 64-bit driver and a newer device"}},
		{AttributeIPCEvents, func(v int) bool { return v == 1 }, Cause{ReasonNoIPCEvents, "the driver cannot share events between processes on this device: update it"}},
	} {
		value, err := d.DeviceAttribute(device, rule.attribute)
		switch {
		case rule.attribute == AttributeIPCEvents && errors.Is(err, ErrInvalidValue):
			// Drivers before CUDA 12 share events and do not know the question.
			r.Verdict = Verdict{Unknown, Cause{ReasonUnknownEvents, "the driver cannot say whether it shares events: the self-test decides"}, err.Error()}
		case err != nil:
			r.Verdict = refused(err)
			return r
		case !rule.wanted(value):
			r.Verdict = Verdict{No, rule.cause, fmt.Sprintf("attribute %d of %s is %d", rule.attribute, info.Name, value)}
			return r
		}
	}
	switch {
	case wsl:
		r.Verdict = Verdict{Unknown, Cause{ReasonWSL, "drivers share memory there from R510 on, by their documentation; users report that it fails: the self-test decides"}, ""}
	case strings.Contains(info.Name, "MIG"):
		r.Verdict = Verdict{Unknown, Cause{ReasonMIG, "memory is shared within a GPU instance and not across: let all processes use the same one; the self-test decides"}, info.Name}
	case r.Reason == "":
		r.Answer = Yes
	}
	return r
}

// isWSL tells a Linux that runs in Windows: its kernel says so, and the device is behind
// /dev/dxg.
func isWSL(root string) bool {
	version, _ := os.ReadFile(root + "proc/version")
	_, err := os.Stat(root + "dev/dxg")
	return err == nil || strings.Contains(strings.ToLower(string(version)), "microsoft")
}

// notes says what about this process speaks for trouble when others open its memory.
func notes(root string) []string {
	const first = "pid:[4026531836]" // the kernel's own number for the first namespace
	at, err := os.Readlink(root + "proc/self/ns/pid")
	if err != nil || at == first {
		return nil
	}
	return []string{fmt.Sprintf("this process is in a pid namespace of its own (%s): others can open its device memory only from the same one (--pid=host, --pid=container:NAME, shareProcessNamespace)", at)}
}
