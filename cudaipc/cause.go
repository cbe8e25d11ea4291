package cudaipc

// Cause is what is known about a refusal: a short reason for programs and tables, and what
// a person can do about it.
type Cause struct {
	Reason string
	Advice string
}

// The reasons, as programs see them.
const (
	ReasonNoDriver      = "no driver"
	ReasonNotBuilt      = "built without GPU support"
	ReasonStub          = "stub library"
	ReasonNoDevice      = "no device"
	ReasonMismatch      = "driver mismatch"
	ReasonTegra         = "integrated device"
	ReasonExclusive     = "exclusive compute mode"
	ReasonNoAddressing  = "no unified addressing"
	ReasonNoIPCEvents   = "no interprocess events"
	ReasonMIG           = "part of a device (MIG)"
	ReasonWSL           = "WSL2"
	ReasonUnknownEvents = "old driver"
	ReasonNamespaces    = "pid namespaces"
	ReasonOtherDevice   = "another device"
	ReasonNoMemory      = "out of device memory"
	ReasonContextLost   = "device error"
	ReasonNoAnswer      = "no answer"
	ReasonWrongBytes    = "wrong bytes"
	ReasonRefused       = "refused by the driver"
)

// causes are the driver's codes at initialisation and when something is opened.
var causes = map[Code]Cause{
	ErrStubLibrary:     {ReasonStub, "this is the library for linking only: put the driver's own libcuda.so.1 before it in the library path (a container: start it with --gpus or the NVIDIA runtime)"},
	ErrNoDevice:        {ReasonNoDevice, "the driver sees no device: check nvidia-smi and CUDA_VISIBLE_DEVICES, and give the container the device (--gpus)"},
	ErrDriverMismatch:  {ReasonMismatch, "the driver library and the kernel module have different versions: reboot, or load the module again after an update; in a container use the host's library"},
	ErrNotInitialized:  {ReasonNoDriver, "the driver could not be initialised: check nvidia-smi, and that /dev/nvidia* can be opened"},
	ErrUnavailable:     {ReasonExclusive, "another process has the device for itself: nvidia-smi -c DEFAULT"},
	ErrInvalidContext:  {ReasonNamespaces, "the driver finds the other process by its number: both must share a pid namespace (--pid=host, --pid=container:NAME, shareProcessNamespace), and nothing is opened in the process that exported it"},
	ErrInvalidDevice:   {ReasonOtherDevice, "the process does not see the device: add it to CUDA_VISIBLE_DEVICES"},
	ErrPeerAccess:      {ReasonOtherDevice, "the two devices cannot reach each other: use the device that the memory lies on"},
	ErrTooManyPeers:    {ReasonOtherDevice, "the device has as many peers as it can have: use the device that the memory lies on"},
	ErrOutOfMemory:     {ReasonNoMemory, "the process's own context and mappings need room on the device as well: end what uses it (nvidia-smi), or lower --gpu-memory"},
	ErrNotSupported:    {ReasonRefused, "the driver does not share memory between processes here: WSL2, MIG, and sandboxes are known for that"},
	ErrNotPermitted:    {ReasonRefused, "the driver is not permitted to share memory here: check the container's security profile"},
	ErrOperatingSystem: {ReasonRefused, "the kernel refused: check the container's devices and security profile, and that the exporter still runs"},
	ErrMapFailed:       {ReasonRefused, "the exporter may have ended, or the address space is limited (ulimit -v)"},
	ErrInvalidHandle:   {ReasonRefused, "the exporter may have ended: attach again"},
	ErrInvalidValue:    {ReasonRefused, "the exporter may have ended, or the memory was not made by cuMemAlloc"},
}

// why looks a code up.
func why(c Code) Cause {
	if c.ContextLost() {
		return Cause{ReasonContextLost, "this process's context on the device is lost: restart it"}
	}
	if known, ok := causes[c]; ok {
		return known
	}
	return Cause{ReasonRefused, "look the code up in the CUDA driver API's documentation; dmesg may tell more"}
}

// WhyOf is what is known about an error of the driver.
func WhyOf(err error) Cause { return why(CodeOf(err)) }
