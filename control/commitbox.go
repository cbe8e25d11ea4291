package control

// CommitNote is what the stage loop tells of one seal. Changed is copied: the caller may reuse it at once.
type CommitNote struct {
	Epoch   uint64
	StampNS uint64
	Floor   uint64 // global write floor afterwards
	Changed []Change
}

// commitBox merges commits that nobody has announced yet. It is always used under the announcer's mutex or by its
// goroutine alone. Its slice and map keep their storage, so a warm merge allocates nothing.
type commitBox struct {
	count     uint64
	fromEpoch uint64
	newest    CommitNote
	changed   []Change
	at        map[uint32]int // column → position in changed
}

func newCommitBox() *commitBox {
	return &commitBox{at: make(map[uint32]int, 16), changed: make([]Change, 0, 16)}
}

func (b *commitBox) merge(note *CommitNote) {
	if b.count == 0 {
		b.fromEpoch = note.Epoch
	}
	b.count++
	b.newest = CommitNote{Epoch: note.Epoch, StampNS: note.StampNS, Floor: note.Floor}
	for i := range note.Changed {
		change := &note.Changed[i]
		position, known := b.find(change.Column, i)
		if !known {
			b.at[change.Column] = len(b.changed)
			b.changed = append(b.changed, *change)
			continue
		}
		mergeChange(&b.changed[position], change)
	}
}

// find looks first where a stage that commits the same columns in the same order every tick has put it.
func (b *commitBox) find(column uint32, guess int) (int, bool) {
	if guess < len(b.changed) && b.changed[guess].Column == column {
		return guess, true
	}
	position, known := b.at[column]
	return position, known
}

// mergeChange lets the newest state win and widens the ordinal range. A change without rows has no ordinals to add.
func mergeChange(into, next *Change) {
	merged := *next
	switch {
	case next.Rows == 0:
		merged.OrdinalLowest, merged.OrdinalHighest, merged.Adopted = into.OrdinalLowest, into.OrdinalHighest, into.Adopted
	case into.Rows != 0:
		merged.OrdinalLowest = min(into.OrdinalLowest, next.OrdinalLowest)
		merged.OrdinalHighest = max(into.OrdinalHighest, next.OrdinalHighest)
	}
	merged.Rows = into.Rows + next.Rows
	*into = merged
}

func (b *commitBox) reset() {
	b.count = 0
	b.changed = b.changed[:0]
	clear(b.at)
}

// event makes the JSON form, with at most limit columns.
func (b *commitBox) event(limit int) *CommitEvent {
	shown := b.changed[:min(len(b.changed), limit)]
	return &CommitEvent{
		Header:    at(b.newest.Epoch),
		Floor:     b.newest.Floor,
		FromEpoch: b.fromEpoch,
		Count:     b.count,
		StampNS:   b.newest.StampNS,
		Changed:   shown,
		Omitted:   uint32(len(b.changed) - len(shown)),
	}
}
