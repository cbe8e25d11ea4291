package model

// Case is one exploration and what it is to show.
type Case struct {
	Name   string
	Config Config
}

// Sound lists the protocol with all its rules, in bounds that a test explores in seconds.
func Sound() []Case {
	return []Case{
		{"latest reads", Config{Readers: 1, Attrs: 1, MaxEpoch: 5}},
		{"latest reads, deep broker buffer", Config{Readers: 1, Attrs: 1, MaxEpoch: 4, Buffer: 4}},
		{"latest reads, two attributes", Config{Readers: 1, Attrs: 2, MaxEpoch: 3}},
		{"snapshot(), one pin for ALL", Config{Readers: 1, Attrs: 2, MaxEpoch: 3, PinAll: true}},
		{"two readers", Config{Readers: 2, Attrs: 1, MaxEpoch: 3}},
		{"reads as of an epoch", Config{Readers: 1, Attrs: 1, MaxEpoch: 5, AsOf: true, Retain: 2}},
		{"a reader dies, its channel is used again", Config{Readers: 1, Attrs: 1, MaxEpoch: 4, Deaths: 1}},
		{"blocks are brought up to date between seals", Config{Readers: 1, Attrs: 1, MaxEpoch: 5, Ahead: true}},
		{"the same, reads as of an epoch", Config{Readers: 1, Attrs: 1, MaxEpoch: 4, AsOf: true, Retain: 2, Ahead: true}},
	}
}

// SoundLarge lists bounds that take minutes and gigabytes.
func SoundLarge() []Case {
	return []Case{
		{"latest reads", Config{Readers: 1, Attrs: 1, MaxEpoch: 7}},
		{"latest reads, deep broker buffer", Config{Readers: 1, Attrs: 1, MaxEpoch: 6, Buffer: 4}},
		{"latest reads, two attributes", Config{Readers: 1, Attrs: 2, MaxEpoch: 4}},
		{"snapshot(), one pin for ALL", Config{Readers: 1, Attrs: 2, MaxEpoch: 4, PinAll: true}},
		{"two readers", Config{Readers: 2, Attrs: 1, MaxEpoch: 4}},
		{"two readers, two attributes, ALL", Config{Readers: 2, Attrs: 2, MaxEpoch: 2, PinAll: true}},
		{"reads as of an epoch", Config{Readers: 1, Attrs: 1, MaxEpoch: 6, AsOf: true, Retain: 2}},
		{"two readers as of an epoch", Config{Readers: 2, Attrs: 1, MaxEpoch: 3, AsOf: true, Retain: 1}},
		{"two readers, blocks are brought up to date", Config{Readers: 2, Attrs: 1, MaxEpoch: 3, Ahead: true}},
		{"two deaths, the channel used again", Config{Readers: 1, Attrs: 1, MaxEpoch: 5, Deaths: 2}},
		{"a death, two attributes", Config{Readers: 1, Attrs: 2, MaxEpoch: 3, Deaths: 1}},
		{"a death of one of two readers", Config{Readers: 2, Attrs: 1, MaxEpoch: 3, Deaths: 1}},
	}
}

// Broken lists every rule left out, in bounds that let its fault show.
func Broken() []Case {
	one := Config{Readers: 1, Attrs: 1, MaxEpoch: 5}
	two := Config{Readers: 1, Attrs: 2, MaxEpoch: 3}
	all := Config{Readers: 1, Attrs: 2, MaxEpoch: 3, PinAll: true}
	asOf := Config{Readers: 1, Attrs: 1, MaxEpoch: 5, AsOf: true, Retain: 2}
	ahead := Config{Readers: 1, Attrs: 1, MaxEpoch: 5, Ahead: true}
	death := Config{Readers: 1, Attrs: 1, MaxEpoch: 5, Deaths: 1}
	without := func(c Config, r Rule) Config { c.Without = r; return c }
	return []Case{
		{"reader: no fence between pins and horizons", without(one, ReaderFence)},
		{"broker: no fence between horizon and scan", without(one, BrokerFence)},
		{"horizon raised after the scan", without(one, HorizonBeforeScan)},
		{"horizon looked at before the pin is stored", without(one, PinBeforeCheck)},
		{"a pin keeps the current epoch only", without(one, PinCoversInterval)},
		{"horizon_any not raised for readers of ALL", without(all, AnyHorizon)},
		{"reclaim before the epoch store", without(one, ReclaimAfterEpoch)},
		{"deaths after the epoch", without(one, DeathBeforeEpoch)},
		{"epoch before the slots", without(one, SlotsBeforeEpoch)},
		{"birth not loaded again", without(one, SlotRecheck)},
		{"refill without birth MAX first", without(one, RefillThroughMax)},
		{"pins cleared while the process lives", without(one, PinsOutliveSession)},
		{"a pin moves to another word", without(one, PinsNeverMove)},
		{"pin dropped before the last word", without(one, PinUntilLastWord)},
		{"epoch loaded anew for the second attribute", without(two, OneEpoch)},
		{"channel handed on before the clear drained", without(death, ClearBeforeHandOver)},
		{"release is not a full barrier", without(one, ReleaseBarrier)},
		{"epoch store is not a full barrier", without(one, EpochBarrier)},
		{"one block and slot too few", without(one, BlockPerReader)},
		{"as of: the pool does not grow after a pass", without(asOf, GrowAfterPass)},
		{"as of: retained versions reclaimed", without(asOf, RetainedKept)},
		{"as of: the newest epoch pinned", without(asOf, AsOfPinsItsEpoch)},
		{"as of: horizon compared with the newest epoch", without(asOf, AsOfChecksItsEpoch)},
		{"a dead version's block brought up to date before it was reclaimed", without(ahead, AheadAfterReclaim)},
	}
}
