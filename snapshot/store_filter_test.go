package snapshot

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"callboard/protocol"
	"callboard/tensor"

	"github.com/stretchr/testify/require"
)

// filter makes a query, with all that it waits for.
func (f *fixture) filter(filter Filter) (q *Query, out Outcome, err error) {
	out, err = f.run(func() (Outcome, *Job, error) { return f.store.Filter(&filter, func(made *Query) { q = made }) })
	return q, out, err
}

func (f *fixture) found(predicates ...Predicate) []uint64 {
	q, out, err := f.filter(Filter{Predicates: predicates})
	require.NoError(f.t, err)
	require.Equal(f.t, q.Size(), out.Count)
	return q.Prims()
}

func numberSchema(name string) protocol.Schema {
	d, err := tensor.ParseDType(name)
	if err != nil {
		panic(err)
	}
	return protocol.Schema{Kind: protocol.KindFixed, DtypeCode: d.Code, DtypeBits: d.Bits, DtypeLanes: d.Lanes, DeviceType: tensor.DeviceCPU}
}

func floats(values ...float32) (b []byte) {
	for _, v := range values {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return b
}

func has(name string) Predicate { return Predicate{Operator: protocol.FilterHas, Name: name} }
func in(name string, values ...string) Predicate {
	return Predicate{Operator: protocol.FilterIn, Name: name, Values: values}
}

// HAS, AND, every prim, and what was found on them (behaviour 232–235, 240).
func TestFilterSeesCompletedWrites(t *testing.T) {
	f := newFixture(t, Config{}, 1<<30)
	p := f.paths(5)
	f32 := numberSchema("float32")
	_, err := f.write(queryOf(p[2], p[0], p[1]), "t", f32, 1, floats(1, 2, 3))
	require.NoError(t, err)
	require.Equal(t, p[:3], f.found(has("t")), "in the order of the paths, without a seal")
	q, _, err := f.filter(Filter{Predicates: []Predicate{has("t")}, Sealed: true})
	require.NoError(t, err)
	require.Empty(t, q.Prims())
	f.seal(1, protocol.ScopeAll)
	_, err = f.write(queryOf(p[3], p[0]), "u", f32, 2, floats(4, 5))
	require.NoError(t, err)
	require.Equal(t, p[:1], f.found(has("t"), has("u")))
	require.Equal(t, p[:4], f.found(), "no predicate is every prim that carries anything")
	require.Empty(t, f.found(has("nobody")))

	names := func(filter Filter) (out []string) {
		q, got, err := f.filter(filter)
		require.NoError(t, err)
		for _, id := range q.Attributes() {
			text, _ := f.store.Text(id)
			out = append(out, text)
		}
		require.EqualValues(t, len(out), got.Value)
		return out
	}
	require.Equal(t, []string{"t", "u"}, names(Filter{Predicates: []Predicate{has("t")}}))
	require.Equal(t, []string{"t"}, names(Filter{Predicates: []Predicate{has("t")}, Sealed: true}))
	require.Equal(t, []string{"u"}, names(Filter{Predicates: []Predicate{has("t")}, Scoped: true, Attributes: []string{"u", "nobody"}}))
	require.Empty(t, names(Filter{Scoped: true}))
	require.Empty(t, names(Filter{Predicates: []Predicate{has("nobody")}}))

	f.delete(3, queryOf(p[0]), "t")
	require.Equal(t, p[1:3], f.found(has("t")), "a delete counts before its seal, too")
}

// IN and PREFIX on paths (behaviour 237, 243).
func TestFilterPaths(t *testing.T) {
	f := newFixture(t, Config{}, 1<<30)
	p := f.paths(12)
	_, err := f.write(queryOf(p[1:]...), "t", bytesSchema(1), 1, make([]byte, 11))
	require.NoError(t, err)
	require.Equal(t, []uint64{p[2], p[4]}, f.found(in(PathName, "/p4", "/p2", "/p0", "/missing")))
	require.Equal(t, []uint64{p[1], p[10], p[11]}, f.found(Predicate{Operator: protocol.FilterPrefix, Name: PathName, Values: []string{"/p1"}}))
	require.Equal(t, p[10:11], f.found(Predicate{Operator: protocol.FilterPrefix, Name: PathName, Values: []string{"/p1"}}, in(PathName, "/p10", "/p2"), has("t")))
}

// Every pairing that there is not is refused, with nothing made (behaviour 242, 244).
func TestFilterRefusals(t *testing.T) {
	f := newFixture(t, Config{}, 1<<30)
	p := f.paths(2)
	wide := numberSchema("float32x3")
	_, err := f.write(queryOf(p...), "wide", wide, 1, make([]byte, 24))
	require.NoError(t, err)
	_, err = f.write(queryOf(p...), "flag", numberSchema("bool"), 1, make([]byte, 2))
	require.NoError(t, err)
	_, err = f.write(queryOf(p...), "x", numberSchema("int32"), 1, make([]byte, 8))
	require.NoError(t, err)
	for _, c := range []struct {
		predicate Predicate
		status    protocol.Status
		says      string
	}{
		{Predicate{Operator: 0, Name: "x"}, protocol.StatusInvalidArgument, "operator is 0"},
		{Predicate{Operator: 9, Name: "x"}, protocol.StatusInvalidArgument, "operator is 9"},
		{has(PathName), protocol.StatusNotSupported, "HAS on \"@path\""},
		{Predicate{Operator: protocol.FilterLess, Name: PathName, Values: []string{"/a"}}, protocol.StatusNotSupported, "LT on"},
		{Predicate{Operator: protocol.FilterPrefix, Name: "x", Values: []string{"/a"}}, protocol.StatusNotSupported, "PREFIX on \"x\""},
		{Predicate{Operator: protocol.FilterContains, Name: "x", Values: []string{"a"}}, protocol.StatusNotSupported, "CONTAINS on attribute \"x\""},
		{in("wide", "1"), protocol.StatusNotSupported, "float32x3"},
		{in("flag", "1"), protocol.StatusNotSupported, "bool"},
		{has("@active"), protocol.StatusNotSupported, "@active"},
		{in("x", "one"), protocol.StatusInvalidArgument, "\"one\" is not a number"},
		{in("x"), protocol.StatusInvalidArgument, "0 values"},
		{Predicate{Operator: protocol.FilterLess, Name: "x", Values: []string{"1", "2"}}, protocol.StatusInvalidArgument, "2 values"},
		{Predicate{Operator: protocol.FilterHas, Name: "x", Values: []string{"1"}}, protocol.StatusInvalidArgument, "1 values"},
		{in(PathName, "a"), protocol.StatusInvalidArgument, "start with"},
		{has(""), protocol.StatusInvalidArgument, "empty"},
	} {
		q, _, err := f.filter(Filter{Predicates: []Predicate{c.predicate}})
		require.ErrorContains(t, err, c.says)
		requireStatus(t, c.status, err)
		require.Nil(t, q)
	}
	_, _, err = f.filter(Filter{Scoped: true, Attributes: []string{"@path"}})
	requireStatus(t, protocol.StatusNotSupported, err)
	require.Empty(t, f.found(in("nobody", "anything")), "what nobody wrote has no type to refuse")
}

// Tokens compare by their texts, bytewise; CONTAINS is any of (behaviour 241, 243).
func TestFilterTokens(t *testing.T) {
	f := newFixture(t, Config{}, 1<<30)
	p := f.paths(4)
	var ids []uint64
	for _, text := range []string{"b", "a", "Z", "é"} {
		id, err := f.store.Intern(protocol.StringToken, text)
		require.NoError(t, err)
		ids = append(ids, id)
	}
	words := func(ids ...uint64) (b []byte) {
		for _, id := range ids {
			b = binary.LittleEndian.AppendUint64(b, id)
		}
		return b
	}
	one := numberSchema("uint64")
	one.Semantic = uint32(tensor.SemanticTokenID)
	_, err := f.write(queryOf(p...), "one", one, 1, words(ids...))
	require.NoError(t, err)
	require.Equal(t, []uint64{p[1], p[2]}, f.found(Predicate{Operator: protocol.FilterLess, Name: "one", Values: []string{"b"}}), "Z and a")
	require.Equal(t, []uint64{p[3]}, f.found(Predicate{Operator: protocol.FilterGreater, Name: "one", Values: []string{"z"}}))
	require.Equal(t, []uint64{p[0], p[3]}, f.found(in("one", "é", "b", "never written")))

	two := one
	two.RowDimensions, two.RowShape[0] = 1, 2
	_, err = f.write(queryOf(p...), "two", two, 1, words(ids[0], ids[1], ids[2], 0, ids[1], ids[2], 0, 77))
	require.NoError(t, err)
	contains := func(values ...string) Predicate {
		return Predicate{Operator: protocol.FilterContains, Name: "two", Values: values}
	}
	require.Equal(t, p[:3], f.found(contains("a", "Z")))
	require.Equal(t, p[2:3], f.found(contains("a"), contains("Z")), "all of needs one each")
	require.Equal(t, []uint64{p[1], p[3]}, f.found(contains("")))
	_, _, err = f.filter(Filter{Predicates: []Predicate{in("two", "a")}})
	requireStatus(t, protocol.StatusNotSupported, err)
}

// A value means the same whatever the column's type: it is a decimal number or refused.
func TestFilterNumbersAreDecimal(t *testing.T) {
	for _, d := range []string{"int32", "uint8", "int64", "float16", "float32", "float64"} {
		dtype, err := tensor.ParseDType(d)
		require.NoError(t, err)
		made := func(text string) error {
			p := Predicate{Operator: protocol.FilterIn, Name: "x", Values: []string{text}}
			if dtype.Code == tensor.CodeFloat {
				_, err := p.floats(dtype.Bits)
				return err
			}
			_, err := p.integers(dtype)
			return err
		}
		for _, text := range []string{"0", "-0", "+7", "10", "0.5", ".5", "5.", "-1e3", "1E-05", "1e400", "inf", "-Inf", "Infinity", "nan", "NaN", "99999999999999999999"} {
			require.NoError(t, made(text), "%s in %s", text, d)
		}
		for _, text := range []string{"", " 1", "1 ", "010", "-00", "00.5", "0x10", "0b11", "0o7", "1_0", "0x1p-2", "1e", "e1", ".", "+", "--1", "1\n", "infinit", "one", "True"} {
			err := made(text)
			requireStatus(t, protocol.StatusInvalidArgument, err)
			require.ErrorContains(t, err, "is not a number", "%q in %s", text, d)
		}
	}
}

// Integers compare exactly with whatever number is given.
func TestFilterIntegersCompareExactly(t *testing.T) {
	values := []string{"0", "1", "-1", "127", "128", "-128", "-129", "255", "256", "0.5", "-0.5", "-0.0", "1e400", "-1e400", "inf", "-inf", "9223372036854775807",
		"9223372036854775808", "-9223372036854775808", "-9223372036854775809", "18446744073709551615", "18446744073709551616", "18446744073709551614", "1e18", "+127", "126.99999"}
	for _, d := range []string{"int8", "uint8", "int64", "uint64", "uint16", "int32"} {
		dtype, err := tensor.ParseDType(d)
		require.NoError(t, err)
		for bits := range 64 {
			if raceEnabled && bits%8 != 7 {
				continue
			}
			for _, x := range []uint64{0, 1, ^uint64(0), 1 << bits, 1<<bits - 1, ^uint64(0) << bits} {
				row := binary.LittleEndian.AppendUint64(nil, x)[:dtype.Bits/8]
				var number big.Float
				switch shifted := x << (64 - dtype.Bits); {
				case dtype.Code == tensor.CodeInt:
					number.SetInt64(int64(shifted) >> (64 - dtype.Bits))
				default:
					number.SetUint64(shifted >> (64 - dtype.Bits))
				}
				for _, text := range values {
					want, _, err := big.ParseFloat(text, 0, 200, big.ToNearestEven)
					if text == "1e400" || text == "-1e400" {
						want = big.NewFloat(math.Inf(map[bool]int{true: 1, false: -1}[text == "1e400"]))
					} else {
						require.NoError(t, err, text)
					}
					c := number.Cmp(want)
					for operator, holds := range map[uint32]bool{protocol.FilterIn: c == 0, protocol.FilterLess: c < 0, protocol.FilterLessEqual: c <= 0,
						protocol.FilterGreater: c > 0, protocol.FilterGreaterEqual: c >= 0} {
						p := Predicate{Operator: operator, Name: "x", Values: []string{text}}
						test, err := p.integers(dtype)
						if err != nil || test(row) != holds {
							t.Fatalf("%s %s %s %s: expected %v (%v)", d, number.String(), operatorNames[operator], text, holds, err)
						}
					}
				}
			}
		}
	}
}

// Half floats, all of them, against what math makes of them; and back.
func TestFilterHalfFloats(t *testing.T) {
	require.Equal(t, []float64{1, -2, 65504, 5.960464477539063e-08, 6.103515625e-05, 0.333251953125},
		[]float64{halfToFloat(0x3c00), halfToFloat(0xc000), halfToFloat(0x7bff), halfToFloat(1), halfToFloat(0x400), halfToFloat(0x3555)})
	for h := range 1 << 16 {
		v := halfToFloat(uint16(h))
		if math.IsNaN(v) {
			require.True(t, math.IsNaN(halfToFloat(floatToHalf(v))))
			continue
		}
		require.Equal(t, uint16(h), floatToHalf(v))
		if next := halfToFloat(uint16(h) + 1); h&0x7fff < 0x7bff { // halfway goes to even
			require.Equal(t, uint16(h)+uint16(h&1), floatToHalf((v+next)/2))
		}
	}
	require.Equal(t, uint16(0x7c00), floatToHalf(65520))
}

// A filter over many rows is a Job; what is accepted, sealed and reclaimed meanwhile
// does not change what it finds (behaviour 245).
func TestFilterIsOfItsBeginning(t *testing.T) {
	f := newFixture(t, Config{Retain: 1, CopyInlineBytes: 512}, 1<<30)
	n := 2000
	p := f.paths(n)
	f32, many := numberSchema("float32"), queryOf(p[:n-1]...)
	values := make([]float32, n-1)
	for i := range values {
		values[i] = float32(i)
	}
	_, err := f.write(many, "t", f32, 1, floats(values...))
	require.NoError(t, err)
	f.seal(1, protocol.ScopeAll)
	_, err = f.write(queryOf(p[0]), "t", f32, 2, floats(1000))
	require.NoError(t, err)
	var q *Query
	filter := Filter{Predicates: []Predicate{{Operator: protocol.FilterGreaterEqual, Name: "t", Values: []string{"1000"}}}}
	job := f.start(func() (Outcome, *Job, error) { return f.store.Filter(&filter, func(made *Query) { q = made }) })
	require.NotNil(t, job)
	for ordinal := uint64(2); ordinal < 8; ordinal++ { // its blocks would be used again
		_, err = f.write(queryOf(p[n-1], p[1], p[0]), "t", f32, ordinal, floats(5000, 5000, 0))
		require.NoError(t, err)
		_, err = f.write(many, "t", f32, ordinal, make([]byte, 4*(n-1)))
		require.NoError(t, err)
		f.delete(ordinal, queryOf(p[1500:1510]...))
		f.seal(ordinal, protocol.ScopeAll)
	}
	job.Run()
	out, err := job.Finish()
	require.NoError(t, err)
	want := append([]uint64{p[0]}, p[1000:n-1]...)
	require.Equal(t, want, q.Prims())
	require.EqualValues(t, len(want), out.Count)
	require.EqualValues(t, 1, out.Epoch)
	f.checkBooks()
}

// Random filters agree with a model that plays everything onto maps.
func TestFilterAgainstTheObvious(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	for round := range 30 {
		obviousFilters(t, r, round)
	}
}

type filterOp struct {
	ordinal uint64
	name    string
	prims   []uint64
	values  []float32 // nil: deleted
}

func obviousFilters(t *testing.T, r *rand.Rand, round int) {
	f := newFixture(t, Config{Retain: uint32(1 + r.IntN(3)), CopyInlineBytes: uint64(8 + r.IntN(200))}, 1<<30)
	f.delayed = round%2 == 0
	prims, names, f32 := f.paths(40), []string{"a", "b", "c"}, numberSchema("float32")
	var ops []filterOp
	floor := uint64(0)
	some := func() (out []uint64) {
		for _, i := range r.Perm(len(prims))[:r.IntN(12)] {
			out = append(out, prims[i])
		}
		return out
	}
	for range 60 {
		ordinal := floor + 1 + r.Uint64N(4)
		switch r.IntN(6) {
		case 0:
			floor += r.Uint64N(3)
			f.seal(floor, protocol.ScopeAll)
		case 1:
			chosen := some()
			name := names[r.IntN(3)]
			if f.store.byName[name] == nil {
				continue // a delete of what nobody wrote is none of what comes later
			}
			f.delete(ordinal, queryOf(chosen...), name)
			ops = append(ops, filterOp{ordinal, name, chosen, nil})
		case 2, 3:
			chosen, name := some(), names[r.IntN(3)]
			values := make([]float32, len(chosen))
			for i := range values {
				values[i] = float32(r.IntN(10))
			}
			_, err := f.write(queryOf(chosen...), name, f32, ordinal, floats(values...))
			require.NoError(t, err)
			ops = append(ops, filterOp{ordinal, name, chosen, values})
		default:
			f.compareFilter(r, ops, floor, names)
		}
	}
}

// compareFilter makes a random filter and finds what it should by hand.
func (f *fixture) compareFilter(r *rand.Rand, ops []filterOp, floor uint64, names []string) {
	filter := Filter{Sealed: r.IntN(3) == 0, Scoped: r.IntN(2) == 0}
	state := map[string]map[uint64]float32{"a": {}, "b": {}, "c": {}}
	played := slices.Clone(ops)
	slices.SortStableFunc(played, func(a, b filterOp) int { return cmp.Compare(a.ordinal, b.ordinal) })
	for _, op := range played {
		if filter.Sealed && op.ordinal > floor {
			continue
		}
		for i, prim := range op.prims {
			if op.values == nil {
				delete(state[op.name], prim)
			} else {
				state[op.name][prim] = op.values[i]
			}
		}
	}
	want := map[uint64]bool{}
	for _, rows := range state {
		for prim := range rows {
			want[prim] = true
		}
	}
	keep := func(p Predicate, holds func(prim uint64) bool) {
		filter.Predicates = append(filter.Predicates, p)
		for prim := range want {
			if !holds(prim) {
				delete(want, prim)
			}
		}
	}
	for range r.IntN(3) {
		name, bound := names[r.IntN(3)], float32(r.IntN(10))
		text := strconv.Itoa(int(bound))
		operator := uint32(1 + r.IntN(8))
		switch operator {
		case protocol.FilterHas:
			keep(has(name), func(prim uint64) bool { _, ok := state[name][prim]; return ok })
		case protocol.FilterPrefix, protocol.FilterContains:
			prefix := "/p" + text
			keep(Predicate{Operator: protocol.FilterPrefix, Name: PathName, Values: []string{prefix}}, func(prim uint64) bool {
				path, _ := f.store.Text(prim)
				return strings.HasPrefix(path, prefix)
			})
		default:
			keep(Predicate{Operator: operator, Name: name, Values: []string{text}}, func(prim uint64) bool {
				v, ok := state[name][prim]
				return ok && (operator == protocol.FilterIn && v == bound || operator == protocol.FilterLess && v < bound || operator == protocol.FilterLessEqual && v <= bound ||
					operator == protocol.FilterGreater && v > bound || operator == protocol.FilterGreaterEqual && v >= bound)
			})
		}
	}
	if filter.Scoped {
		filter.Attributes = names[:r.IntN(4)]
	}
	what := fmt.Sprintf("%+v", filter)
	for _, p := range filter.Predicates { // a name that nobody wrote has no type
		if p.Name != PathName && f.store.byName[p.Name] == nil {
			require.Empty(f.t, want, what)
		}
	}
	q, _, err := f.filter(filter)
	require.NoError(f.t, err, what)
	var sorted []uint64
	for prim := range want {
		sorted = append(sorted, prim)
	}
	slices.Sort(sorted)
	require.Equal(f.t, sorted, q.Prims(), what)
	reported := map[string]bool{}
	for _, id := range q.Attributes() {
		text, _ := f.store.Text(id)
		reported[text] = true
	}
	for _, name := range names {
		carried := slices.ContainsFunc(sorted, func(prim uint64) bool { _, ok := state[name][prim]; return ok })
		require.Equal(f.t, carried && (!filter.Scoped || slices.Contains(filter.Attributes, name)), reported[name], "%s reported by %s", name, what)
	}
}

// CONTAINS looks into the rows of an array (behaviour 241); what is written, sealed and
// given back while it does changes nothing of what it finds.
func TestFilterLooksIntoArrays(t *testing.T) {
	f := newFixture(t, Config{Retain: 1, CopyInlineBytes: 512}, 1<<30)
	n := 500
	p := f.paths(n)
	var ids []uint64
	for _, text := range []string{"one", "two", "three"} {
		id, err := f.store.Intern(protocol.StringToken, text)
		require.NoError(t, err)
		ids = append(ids, id)
	}
	schema := arraySchema(1)
	schema.DtypeBits, schema.Semantic = 64, uint32(tensor.SemanticTokenID)
	write := func(q *Query, ordinal uint64, row func(i int) []uint64) {
		target := Target{Query: q, Name: "t", Schema: schema, Ordinal: ordinal, ElementSizes: []uint64{}}
		var bytes []byte
		for i := range int(q.Size()) {
			words := row(i)
			target.ElementSizes = append(target.ElementSizes, uint64(len(words)))
			for _, word := range words {
				bytes = binary.LittleEndian.AppendUint64(bytes, word)
			}
		}
		_, err := f.run(func() (Outcome, *Job, error) {
			return f.store.Write(&target, bytes, q.Size(), tensor.Selection{Count: tensor.All}, false)
		})
		require.NoError(t, err)
	}
	contains := Predicate{Operator: protocol.FilterContains, Name: "t", Values: []string{"one", "three"}}
	write(queryOf(p...), 1, func(i int) []uint64 { // row i has i%4 tokens, the last of which is "two" or "one"
		return slices.Repeat([]uint64{ids[1], ids[1], ids[i/250]}, 2)[3-i%4 : 3]
	})
	want := []uint64{}
	for i, prim := range p {
		if i < 250 && i%4 > 0 {
			want = append(want, prim)
		}
	}
	require.Equal(t, want, f.found(contains), "unsealed")
	f.seal(1, protocol.ScopeAll)
	require.Equal(t, want, f.found(contains))
	write(queryOf(p[4]), 2, func(int) []uint64 { return []uint64{ids[2]} })
	want = slices.Insert(want, 3, p[4])
	require.Equal(t, want, f.found(contains))

	var q *Query
	filter := Filter{Predicates: []Predicate{contains}}
	job := f.start(func() (Outcome, *Job, error) { return f.store.Filter(&filter, func(made *Query) { q = made }) })
	require.NotNil(t, job)
	for ordinal := uint64(2); ordinal < 8; ordinal++ {
		write(queryOf(p...), ordinal, func(int) []uint64 { return []uint64{7, 8, 9} })
		f.seal(ordinal, protocol.ScopeAll)
	}
	held := len(f.store.findColumn("t").versions)
	job.Run()
	_, err := job.Finish()
	require.NoError(t, err)
	require.Equal(t, want, q.Prims())
	require.Less(t, len(f.store.findColumn("t").versions), held, "let go of")
	f.checkBooks()
	_, _, err = f.filter(Filter{Predicates: []Predicate{in("t", "one")}})
	requireStatus(t, protocol.StatusNotSupported, err)
}
