package control

// Whether device memory is served, in GPUDescription.State and DeviceDescription.State.
const (
	GPUOff    = "off"    // the operator does not want it
	GPUServed = "served" // a device is; of several, those whose own state says so
	GPUFailed = "failed" // Reason and Text say why
	GPULost   = "lost"   // a device was served, and its context broke: until the broker is started anew
)

// Codes of health events about device memory.
const (
	HealthGPUServed  = "gpu_served"       // numbers: device
	HealthGPUFailed  = "gpu_failed"       // host memory is served all the same
	HealthGPULost    = "gpu_lost"         // numbers: device. Attributes there fail until the broker is started anew
	HealthGPUEmptied = "gpu_rows_lost"    // numbers: attributes. They restarted without rows (rule B3)
	HealthGPUEvent   = "gpu_event_missed" // numbers: device, event. A producer's work did not complete
)

// GPUDescription tells about device memory: what is served, or precisely why nothing is.
type GPUDescription struct {
	State   string              `json:"state"`
	Driver  string              `json:"driver,omitempty"` // "emulated", or the device and the driver's version
	Reason  string              `json:"reason,omitempty"` // short, for programs: "no driver", "self-test failed"
	Text    string              `json:"text,omitempty"`   // the driver's own words
	Advice  string              `json:"advice,omitempty"` // what a person can do
	Devices []DeviceDescription `json:"devices"`
}

// DeviceDescription is one device.
type DeviceDescription struct {
	ID     int32  `json:"id"` // the broker's index; −1: it is not served
	UUID   string `json:"uuid"`
	Name   string `json:"name"`
	State  string `json:"state"`
	Reason string `json:"reason,omitempty"`
	Text   string `json:"text,omitempty"`
	Advice string `json:"advice,omitempty"`

	Total  uint64            `json:"total,string"` // bytes of the device
	Memory MemoryDescription `json:"memory"`       // of the stage, there

	ArenaCount    int                `json:"arena_count"`
	Arenas        []ArenaDescription `json:"arenas"` // the first ArenasPage of them
	EventsFree    int                `json:"events_free"`
	EventsLeased  int                `json:"events_leased"`
	EventsRetired int                `json:"events_retired"` // never used again (rule C3)
}

// ArenasPage is the most arenas of a device in one answer, ImportersPage the most importers of an arena.
const (
	ArenasPage    = 128
	ImportersPage = 16
)

// ArenaDescription is one arena of device memory.
type ArenaDescription struct {
	Segment uint64 `json:"segment,string"`
	Bytes   uint64 `json:"bytes,string"`
	Owner   uint64 `json:"owner,string"` // incarnation of the client whose staging it is; 0: versions
	Retired bool   `json:"retired"`
	// Importers are clients that may have it open: their incarnations, decimal, ImportersPage at most.
	Importers     []string `json:"importers"`
	ImporterCount int      `json:"importer_count"`
}
