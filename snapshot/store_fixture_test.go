package snapshot

import (
	"errors"
	"fmt"
	"testing"

	"callboard/protocol"
	"callboard/tensor"

	"github.com/stretchr/testify/require"
)

// fixture is a store over plain Go memory, in one goroutine. Segments come at once,
// or with delayed when somebody waits for them; jobs wait in jobs until then.
type fixture struct {
	t       testing.TB
	store   *Store
	memory  *Memory
	root    []byte
	delayed bool
	tight   bool            // memory runs out: a refused op may cost retained versions (rule V7)
	refuse  *protocol.Error // what making a segment meets
	grow    []GrowRequest
	jobs    []*fixtureJob
	retired []uint64
	fakes   *fakes // nil: no devices

	before   []wantedRecord // the versions that there were before the step
	expected [2]map[protocol.RecordEntry]bool
	epochs   [2]uint64
}

const fixtureGeneration = 12345

type fixtureJob struct {
	job  *Job
	then func(Outcome)
	fail func(error) // nil: it must not
}

func newFixture(t testing.TB, config Config, limitBytes uint64) *fixture {
	return newFixtureOf(t, config, limitBytes, nil)
}

func newFixtureOf(t testing.TB, config Config, limitBytes uint64, devices *fakes) *fixture {
	f := &fixture{t: t, root: make([]byte, protocol.DirectoryBytes), fakes: devices}
	config.Devices = devices.config()
	f.memory = NewMemory(limitBytes)
	f.memory.Grow = func(r GrowRequest) {
		if f.delayed {
			f.grow = append(f.grow, r)
			return
		}
		f.grown(r)
	}
	f.memory.Retired = func(seg *Segment) {
		f.retired = append(f.retired, seg.ID)
		if seg.Device != nil {
			f.fakes.retire(f.memory, seg)
			return
		}
		for i := range seg.Bytes {
			seg.Bytes[i] = 0xdd // whoever still looks at it shall see
		}
	}
	config.Generation, config.Stage, config.Host = fixtureGeneration, "default", "here"
	var err error
	f.store, err = NewStore(config, f.root, f.memory)
	require.NoError(t, err)
	return f
}

func (f *fixture) grown(r GrowRequest) {
	if f.refuse != nil {
		f.memory.Grown(r, nil, f.refuse)
		return
	}
	if r.Arena.Device() != nil {
		f.memory.Grown(r, f.fakes.grown(r), nil)
		return
	}
	bytes := make([]byte, r.SizeBytes)
	for i := 0; i < len(bytes); i += 64 {
		bytes[i] = 0xaa // new memory is not zeros here, so that nobody relies on it
	}
	*at[protocol.RegionHeader](bytes, 0) = protocol.RegionHeader{Magic: protocol.MagicSegment, Version: protocol.VersionWord, SizeBytes: r.SizeBytes, RegionID: r.ID,
		Generation: fixtureGeneration, OwnerIncarnation: r.Arena.Owner}
	f.memory.Grown(r, &Segment{ID: r.ID, Bytes: bytes}, nil)
}

// settle lets everything happen that an op may wait for, oldest first.
func (f *fixture) settle() (happened bool) {
	for len(f.grow) > 0 {
		r := f.grow[0]
		f.grow = f.grow[1:]
		f.grown(r)
		happened = true
	}
	for len(f.jobs) > 0 {
		f.endJob()
		happened = true
	}
	return happened
}

func (f *fixture) endJob() {
	j := f.jobs[0]
	f.jobs = f.jobs[1:]
	j.job.Run()
	f.step(func() {
		out, err := j.job.Finish()
		if err != nil && j.fail != nil {
			j.fail(err)
			return
		}
		require.NoError(f.t, err)
		if j.then != nil {
			j.then(out)
		}
	})
}

// step does one thing in the loop; records and books are checked around it.
func (f *fixture) step(what func()) {
	epoch := f.store.epoch
	f.before = f.versionRecords()
	if f.fakes != nil {
		f.fakes.looping = true
		defer func() { f.fakes.looping = false }()
	}
	what()
	require.LessOrEqual(f.t, f.store.epoch, epoch+1, "one step, one epoch")
	if f.store.epoch > epoch {
		f.expectRecord()
	}
	f.checkRecords()
}

// try repeats an op as the loop does until it is not ErrRetry, which must have
// changed nothing, as must an error.
func (f *fixture) try(op func() error) (err error) {
	for n := 0; ; n++ {
		before := f.visible()
		f.step(func() { err = op() })
		if err == nil {
			return nil
		}
		for i, line := range f.visible() {
			require.Equal(f.t, before[i], line, "an op that ended with %v changed something", err)
		}
		if !errors.Is(err, ErrRetry) {
			return err
		}
		require.True(f.t, f.settle(), "nothing is there that an op could wait for")
		require.Less(f.t, n, 100, "an op waits for ever")
	}
}

// visible is all that users could notice of a store; its first lines tell how many
// columns there are.
func (f *fixture) visible() (lines []string) {
	s := f.store
	lines = append(lines, fmt.Sprint(s.epoch, len(s.columns), len(s.sessions), s.unsealedBytes, len(s.inserts), s.floors.standard, s.floors.byName))
	for _, c := range s.columns {
		line := fmt.Sprint(c.name, c.rowBytes, c.retain, c.handoff, c.entry.VersionCount)
		if !f.tight {
			line += fmt.Sprint(" horizon ", c.entry.Horizon, len(c.versions))
		}
		if c.layout != nil {
			line += fmt.Sprint(" rows ", c.layout.prims, c.layout.generation)
		}
		for _, k := range c.pending {
			if !k.filling {
				bytes := k.bytes
				if k.block != nil && k.block.device() != nil {
					bytes = f.content(k.block.Ref.Segment, k.block.Ref.OffsetBytes, uint64(len(k.bytes)))
				}
				line += fmt.Sprintf(" unsealed %d %v %v %v %x", k.ordinal, k.deletes, k.prims, k.from, bytes)
			}
		}
		lines = append(lines, line)
	}
	return lines
}

// run is try for an op that may end with a Job, which is then waited for.
func (f *fixture) run(op func() (Outcome, *Job, error)) (out Outcome, err error) {
	var failed error
	err = f.try(func() error {
		o, job, err := op()
		out = o
		if job != nil {
			f.jobs = append(f.jobs, &fixtureJob{job: job, then: func(o Outcome) { out = o }, fail: func(e error) { failed = e }})
		}
		return err
	})
	f.settle()
	if err == nil {
		err = failed
	}
	return out, err
}

func (f *fixture) write(q *Query, name string, s protocol.Schema, ordinal uint64, bytes []byte) (Outcome, error) {
	return f.run(func() (Outcome, *Job, error) {
		t := Target{Query: q, Name: name, Schema: s, Ordinal: ordinal}
		_, rowBytes, err := schemaOf(&s)
		require.NoError(f.t, err)
		return f.store.Write(&t, bytes, uint64(len(bytes))/rowBytes, tensor.Selection{Count: tensor.All}, false)
	})
}

func (f *fixture) seal(ordinal, scope uint64, names ...string) Outcome {
	out, err := f.run(func() (Outcome, *Job, error) { return f.store.Seal(ordinal, scope, names, ordinal*1000) })
	require.NoError(f.t, err)
	return out
}

// open maps, with all that it waits for.
func (f *fixture) open(owner any, a *Arena, t Target, init uint32) (m *Session, err error) {
	var failed error
	err = f.try(func() error {
		var job *Job
		var err error
		if m, job, err = f.store.Map(owner, a, &t, init, 0); job != nil {
			f.jobs = append(f.jobs, &fixtureJob{job: job, fail: func(e error) { failed = e }})
		}
		return err
	})
	f.settle()
	if err == nil {
		err = failed
	}
	return m, err
}

// paths are path ids of /p0, /p1 …
func (f *fixture) paths(n int) (ids []uint64) {
	for i := range n {
		require.NoError(f.t, f.try(func() error {
			id, err := f.store.Intern(protocol.StringPath, fmt.Sprintf("/p%d", i))
			if err == nil {
				ids = append(ids, id)
			}
			return err
		}))
	}
	return ids
}

func queryOf(prims ...uint64) *Query {
	q := NewQuery()
	for _, prim := range prims {
		q.Add(prim)
	}
	return q
}

// bytesSchema is rows of n bytes.
func bytesSchema(n int) protocol.Schema {
	s := protocol.Schema{Kind: protocol.KindFixed, DtypeCode: uint8(tensor.CodeUint), DtypeBits: 8, DtypeLanes: 1, DeviceType: tensor.DeviceCPU}
	if n > 1 {
		s.RowDimensions, s.RowShape[0] = 1, uint64(n)
	}
	return s
}

// arraySchema is rows of any number of elements of n bytes.
func arraySchema(n int) protocol.Schema {
	return protocol.Schema{Kind: protocol.KindArray, DtypeCode: uint8(tensor.CodeUint), DtypeBits: 8, DtypeLanes: uint16(n), DeviceType: tensor.DeviceCPU}
}

// pinSet is a channel.
type pinSet struct{ pins []Pin }

func (p *pinSet) AppendPins(to []Pin) []Pin { return append(to, p.pins...) }

func requireStatus(t testing.TB, want protocol.Status, err error) *protocol.Error {
	t.Helper()
	require.Error(t, err)
	e := StatusError(err)
	require.Equal(t, want.String(), e.Status.String(), e.Text)
	require.NotEmpty(t, e.Text)
	return e
}
