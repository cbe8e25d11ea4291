package broker

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"callboard/control"
	"callboard/protocol"
	"callboard/shm"
)

// Version is the broker's own version.
const Version = "0.1.0"

// Config is what an operator decides. The zero value of a field takes the default.
type Config struct {
	// Stage is the stage's name; "default".
	Stage string
	// ShmDir is where shared memory lies; /dev/shm.
	ShmDir string
	// MemoryBytes bounds all segments of the stage; half of the file system.
	MemoryBytes uint64
	// UnsealedBytes bounds what waits for a seal; a quarter of all memory, that of devices
	// included.
	UnsealedBytes uint64
	// PinnedBytes bounds what one client may pin (rule V7); a quarter of all memory.
	PinnedBytes              uint64
	openUnsealed, openPinned bool // the operator left them open
	// Retain is how many versions of an attribute stay readable; 4.
	Retain uint32
	// Handoff is protocol.HandoffAdopt (default) or HandoffCopy.
	Handoff uint32
	// NATSPort is the embedded server's port; a free one.
	NATSPort int
	// External is a NATS server that somebody else runs; the embedded one.
	External *control.External
	// Fresh gives up what an earlier broker of this stage left, instead of recovering it.
	Fresh bool
	// Takeover asks a broker of this stage that runs already to leave its stage to this one.
	Takeover bool
	// GPU is what is done with the devices of this machine; nothing.
	GPU GPUConfig
	// Access is who may attach beside the broker's own user; nobody.
	Access shm.Access
	// Log gets what an operator should know; nothing.
	Log *slog.Logger
}

// GPUMode says how much the operator wants device memory.
type GPUMode int

const (
	GPUOff      GPUMode = iota // no driver is loaded
	GPUAuto                    // serve the devices that work, and say why one does not
	GPURequired                // do not start without them
)

// GPUConfig is what an operator decides about device memory.
type GPUConfig struct {
	Mode GPUMode
	// Devices are those to serve, each by its UUID ("GPU-…") or by the driver's number in this process; none: all.
	Devices []string
	// MemoryBytes bounds the memory that is taken of each device; 0: the device does.
	MemoryBytes uint64
	// Timeout is how long a producer's work on the device may take after its unmap; 10 s.
	Timeout time.Duration
	// Events is how many groups of a device may be on their way at a time; 256.
	Events int
	// SelfTest is the command of a child process that ends in cudaipc's half of the self-test: no device is served that
	// another process cannot open memory of.
	SelfTest []string
}

// eventsMax is what some drivers hold of interprocess events, with room to spare (docs/gpu.md).
const eventsMax = 8192

func (g GPUConfig) withDefaults() (GPUConfig, error) {
	if g.Timeout == 0 {
		g.Timeout = 10 * time.Second
	}
	if g.Events == 0 {
		g.Events = 256
	}
	switch {
	case g.Mode < GPUOff || g.Mode > GPURequired:
		return g, fmt.Errorf("GPU mode is %d: expected off, auto or required", g.Mode)
	case g.Mode != GPUOff && len(g.SelfTest) == 0:
		return g, errors.New("GPUs are to be served, and no command is named for their self-test")
	case g.Timeout < 0:
		return g, fmt.Errorf("gpu-timeout is %v: expected a time", g.Timeout)
	case g.Events < 1 || g.Events > eventsMax:
		return g, fmt.Errorf("gpu-events is %d: expected 1 to %d", g.Events, eventsMax)
	case g.MemoryBytes > 0 && g.MemoryBytes < deviceArenaAlign:
		return g, fmt.Errorf("gpu-memory is %d bytes: an arena takes at least %d", g.MemoryBytes, uint64(deviceArenaAlign))
	}
	return g, nil
}

// withDefaults fills in defaults and refuses what cannot be.
func (c Config) withDefaults() (Config, error) {
	if c.Stage == "" {
		c.Stage = "default"
	}
	if err := shm.CheckStage(c.Stage); err != nil {
		return c, err
	}
	if c.ShmDir == "" {
		c.ShmDir = "/dev/shm"
	}
	if c.MemoryBytes == 0 {
		total, _, err := shm.FileSystem(c.ShmDir)
		if err != nil {
			return c, err
		}
		c.MemoryBytes = total / 2
	}
	if c.MemoryBytes < memoryMin {
		return c, fmt.Errorf("memory is %d bytes: a stage needs at least %d; raise --memory, or the size of %s (containers: --shm-size)", c.MemoryBytes, uint64(memoryMin), c.ShmDir)
	}
	if c.UnsealedBytes > c.MemoryBytes {
		return c, fmt.Errorf("max-unsealed is %d bytes, more than the %d of memory; lower --max-unsealed or raise --memory", c.UnsealedBytes, c.MemoryBytes)
	}
	c.openUnsealed, c.openPinned = c.UnsealedBytes == 0, c.PinnedBytes == 0
	if c.Retain == 0 {
		c.Retain = 4
	}
	if c.Handoff == protocol.HandoffDefault {
		c.Handoff = protocol.HandoffAdopt
	}
	if c.Handoff > protocol.HandoffCopy {
		return c, fmt.Errorf("handoff is %d: expected adopt or copy", c.Handoff)
	}
	var err error
	if c.GPU, err = c.GPU.withDefaults(); err != nil {
		return c, err
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.Log = slog.New(&limitedLog{Handler: c.Log.Handler(), budget: &logBudget{}})
	return c, nil
}

// limitOf bounds what is taken of a device's memory.
func (g *GPUConfig) limitOf(d *device) uint64 { return cmp.Or(g.MemoryBytes, d.info.MemoryBytes) }

// share gives what was left open its part of all memory: that of the host and of the
// devices that are there.
func (c *Config) share(devices []*device) {
	all := c.MemoryBytes
	for _, d := range devices {
		all += c.GPU.limitOf(d)
	}
	if c.openUnsealed {
		c.UnsealedBytes = all / 4
	}
	if c.openPinned {
		c.PinnedBytes = all / 4
	}
}

// memoryMin is room for the directory, the versions and one client.
const memoryMin = 4 << 20
