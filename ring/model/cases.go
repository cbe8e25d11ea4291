package model

// Case is one exploration and what it is to show.
type Case struct {
	Name   string
	Config Config
}

// Sound lists R3 with all its rules.
func Sound() []Case {
	return []Case{
		{"one client", Config{Clients: 1, Entries: 3}},
		{"two clients", Config{Clients: 2, Entries: 2}},
		{"one client, round trips", Config{Clients: 1, Entries: 3, RoundTrip: true}},
		{"two clients, round trips", Config{Clients: 2, Entries: 1, RoundTrip: true}},
	}
}

// SoundLarge lists wider bounds.
func SoundLarge() []Case {
	return []Case{
		{"two clients", Config{Clients: 2, Entries: 3}},
		{"two clients, round trips", Config{Clients: 2, Entries: 2, RoundTrip: true}},
		{"two clients, round trips", Config{Clients: 2, Entries: 3, RoundTrip: true}},
	}
}

// Spare lists what does no harm when it alone is left out: the doorbell's value, compared by the kernel, covers it.
func Spare() []Case {
	return cases([]named{
		{"sleep announced after the look, value read before it", SleepBeforeLook},
		{"no fence between announcement and look", SleepBarrier},
	})
}

// Broken lists every other rule left out, in both directions.
func Broken() []Case {
	return cases([]named{
		{"no look at the rings before the wait", Recheck},
		{"value read after the look", ValueBeforeLook},
		{"announcement and value after the look", SleepAndValue},
		{"the wait does not compare", CompareInWait},
		{"bell rings before the entry is in the ring", EntryBeforeRing},
		{"sleeping loaded before the entry is stored", RingBeforeLook},
		{"doorbell loaded and stored, no barrier", RingBarrier},
		{"sleeper not woken", Wake},
	})
}

type named struct {
	name string
	rule Rule
}

func cases(rules []named) (all []Case) {
	for _, r := range rules {
		all = append(all, Case{"SQ: " + r.name, Config{Clients: 1, Entries: 2, Without: r.rule}})
	}
	for _, r := range rules {
		all = append(all, Case{"CQ: " + r.name, Config{Clients: 1, Entries: 2, RoundTrip: true, Side: Completion, Without: r.rule}})
	}
	return all
}
