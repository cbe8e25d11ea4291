package model

import "fmt"

// Rule names one rule of the protocol that an exploration leaves out. AllRules leaves none out.
type Rule uint8

const (
	AllRules            Rule = iota
	ReaderFence              // V2: pins are stored, then horizons loaded; without a fence the pin lingers in the buffer
	BrokerFence              // V3: the horizon is stored, then pins are scanned
	HorizonBeforeScan        // V3: the horizon rises before the scan that decides, not after it
	PinBeforeCheck           // V2: the pin is stored before the horizon is looked at
	PinCoversInterval        // V3: a pin keeps every version with birth ≤ pin < death, not only the current epoch's
	AnyHorizon               // V2: every raise of a horizon raises horizon_any, which readers that pin ALL look at
	ReclaimAfterEpoch        // V3: a version is dead only once the epoch word has reached its death
	DeathBeforeEpoch         // V6: deaths are stored before the epoch
	SlotsBeforeEpoch         // V6: new slots are stored before the epoch
	SlotRecheck              // V4: the reader loads birth again after the other fields
	RefillThroughMax         // V4: a refill makes birth MAX before it touches another field
	PinsOutliveSession       // I3: pins are cleared only when the process is dead
	PinsNeverMove            // V1: a pin stays in its word
	PinUntilLastWord         // V2: the pin is dropped after the last word was read
	OneEpoch                 // V2: one read loads the epoch once
	ClearBeforeHandOver      // I3: clear, then fence, and only then hand the channel on
	ReleaseBarrier           // V1: the store that drops a pin is a full barrier
	EpochBarrier             // V6: so is the store of the epoch
	BlockPerReader           // V4: a block and a slot for every reader beside the retained and the building one
	GrowAfterPass            // V4: the pool grows when a pass frees no block
	RetainedKept             // V3: the horizon rises only for versions that are no longer retained
	AsOfPinsItsEpoch         // V5: a read as of an epoch pins that version's last epoch, not the newest
	AsOfChecksItsEpoch       // V5: and compares the horizon with that epoch
	AheadAfterReclaim        // V3, O7: between seals, only blocks that were reclaimed are brought up to date
	ruleCount
)

// Config bounds one exploration.
type Config struct {
	Readers  int  // 1..2
	Attrs    int  // 1..2
	MaxEpoch int  // 2..7; the stage starts at epoch 1
	PinAll   bool // readers store one pin for ALL instead of one for each attribute
	AsOf     bool // readers read as of any epoch (one attribute only); else the latest
	Ahead    bool // between seals the broker writes the newest state into free blocks
	Retain   int  // versions kept beside what pins keep; 0 means 1
	Deaths   int  // how often a reader may die
	Buffer   int  // stores the broker's buffer holds, 2..4; 0 means 2; a fence follows sooner than 4
	NoBuffer bool // stores reach memory at once (sequential consistency); to show what the buffers find
	Without  Rule // the rule left out
}

func (c Config) retain() int { return max(c.Retain, 1) }
func (c Config) buffer() int {
	if c.Buffer == 0 {
		return 2
	}
	return c.Buffer
}

// slots is the number of version slots and of blocks that each attribute has.
func (c Config) slots() uint8 {
	n := c.Readers + c.retain() + 1
	if c.Without == BlockPerReader {
		n--
	}
	return uint8(n)
}

// pinWords is the number of pins a reader uses.
func (c Config) pinWords() uint8 {
	if c.PinAll {
		return 1
	}
	return uint8(c.Attrs)
}

// pinOf is the pin that keeps attribute a: its own, or the one for ALL.
func (c Config) pinOf(a uint8) uint8 {
	if c.PinAll {
		return 0
	}
	return a
}

func (c Config) check() {
	if c.Readers < 1 || c.Readers > maxReaders || c.Attrs < 1 || c.Attrs > maxAttrs || c.MaxEpoch < 2 || c.MaxEpoch > 7 ||
		c.slots() > maxSlots || c.AsOf && (c.Attrs != 1 || c.PinAll) {
		panic(fmt.Sprintf("model: bounds %+v do not fit (readers ≤ %d, attributes ≤ %d, epochs ≤ 7, slots ≤ %d; as-of has one attribute)",
			c, maxReaders, maxAttrs, maxSlots))
	}
}

// String gives the bounds in short.
func (c Config) String() string {
	s := fmt.Sprintf("N=%d A=%d E=%d K=%d", c.Readers, c.Attrs, c.MaxEpoch, c.slots())
	if c.PinAll {
		s += " ALL"
	}
	if c.AsOf {
		s += fmt.Sprintf(" as-of R=%d", c.retain())
	}
	if c.Ahead {
		s += " ahead"
	}
	if c.Deaths > 0 {
		s += fmt.Sprintf(" deaths=%d", c.Deaths)
	}
	if c.Buffer > 0 {
		s += fmt.Sprintf(" buffer=%d", c.Buffer)
	}
	if c.NoBuffer {
		s += " SC"
	}
	return s
}
