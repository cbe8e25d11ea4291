package model

import "fmt"

// Rule names one rule of the protocol that an exploration leaves out. AllRules leaves none out.
type Rule uint8

const (
	AllRules            Rule = iota
	RecordBeforeEpoch        // V6: the record is committed before the epoch word is stored
	RollForward              // B2: a record that is newer than the epoch word makes the epoch
	UndoDeaths               // B2: deaths that are later than the record are undone
	FreeLaterSlots           // B2: slots that were born later than the record are freed
	HorizonStays             // V3: a recovery leaves horizons alone
	DeadInRecord             // B2: the record holds dead versions too, as long as they are not reclaimed
	ParityByEpoch            // B2: the record to be written next is the one that was not recovered from
	ChecksumLast             // B2: the checksum is stored after all that it is about
	TwoRecords               // B2: there are two records, in turn
	OnlyWordsThatDiffer      // B2: a recovery stores only words that differ
	PinsOutliveBroker        // I3: pins stay when the broker dies
	ReclaimAfterEpoch        // V3: what a seal replaces is reclaimed only after its epoch was stored
	AnyHorizonFollows        // V2: a recovery raises the horizon of all to that of each
	AheadAfterReclaim        // V3, O7: between seals, only blocks that were reclaimed are brought up to date
	ruleCount
)

// Config bounds one exploration.
type Config struct {
	Attrs    int  // 1..2
	MaxEpoch int  // 2..6; the stage starts at epoch 1
	Kills    int  // how often the broker is killed
	PinAll   bool // the reader pins ALL, and looks at the horizon of all alone
	Ahead    bool // between seals the broker copies into free blocks, and may be killed half-way
	Without  Rule // the rule left out
}

// String tells the bounds.
func (c Config) String() string {
	text := fmt.Sprintf("A=%d E=%d kills=%d", c.Attrs, c.MaxEpoch, c.Kills)
	if c.PinAll {
		text += " ALL"
	}
	if c.Ahead {
		text += " ahead"
	}
	return text
}

// Case is one exploration and what it is to show.
type Case struct {
	Name   string
	Config Config
}

// Sound lists the protocol with all its rules, in bounds that a test explores in seconds.
func Sound() []Case {
	return []Case{
		{"one kill", Config{Attrs: 1, MaxEpoch: 5, Kills: 1}},
		{"two kills, also one in a recovery", Config{Attrs: 1, MaxEpoch: 5, Kills: 2}},
		{"two attributes", Config{Attrs: 2, MaxEpoch: 3, Kills: 1}},
		{"one pin for ALL", Config{Attrs: 1, MaxEpoch: 4, Kills: 1, PinAll: true}},
		{"blocks are brought up to date between seals", Config{Attrs: 1, MaxEpoch: 4, Kills: 2, Ahead: true}},
	}
}

// SoundLarge lists bounds that take minutes and gigabytes.
func SoundLarge() []Case {
	return []Case{
		{"three kills", Config{Attrs: 1, MaxEpoch: 4, Kills: 3}},
		{"two kills, more epochs", Config{Attrs: 1, MaxEpoch: 6, Kills: 2}},
		{"two attributes, two kills", Config{Attrs: 2, MaxEpoch: 3, Kills: 2}},
		{"two attributes, one pin for ALL", Config{Attrs: 2, MaxEpoch: 3, Kills: 1, PinAll: true}},
	}
}

// Broken lists every rule left out, in bounds that let its fault show.
func Broken() []Case {
	one := Config{Attrs: 1, MaxEpoch: 5, Kills: 2}
	two := Config{Attrs: 2, MaxEpoch: 3, Kills: 1}
	all := Config{Attrs: 1, MaxEpoch: 5, Kills: 1, PinAll: true}
	ahead := Config{Attrs: 1, MaxEpoch: 5, Kills: 1, Ahead: true}
	without := func(c Config, r Rule) Config { c.Without = r; return c }
	return []Case{
		{"epoch before the record", without(one, RecordBeforeEpoch)},
		{"no roll forward", without(one, RollForward)},
		{"later deaths not undone", without(two, UndoDeaths)},
		{"later slots not freed", without(two, FreeLaterSlots)},
		{"horizons reset", without(one, HorizonStays)},
		{"dead versions not in the record", without(one, DeadInRecord)},
		{"record chosen by a counter from 0", without(one, ParityByEpoch)},
		{"checksum not last", without(one, ChecksumLast)},
		{"one record only", without(one, TwoRecords)},
		{"slots cleared and rebuilt", without(one, OnlyWordsThatDiffer)},
		{"pins dropped with the broker", without(one, PinsOutliveBroker)},
		{"reclaim before the epoch", without(one, ReclaimAfterEpoch)},
		{"horizon of all not raised again", without(all, AnyHorizonFollows)},
		{"a recovered dead version's block brought up to date before it was reclaimed", without(ahead, AheadAfterReclaim)},
	}
}
