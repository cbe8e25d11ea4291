package conformance

import (
	"encoding/hex"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"callboard/integration/harness"
)

var (
	metamorphicTime = flag.Duration("metamorphic", time.Minute, "how long histories are played")
	metamorphicSeed = flag.Uint64("seed", 0, "the first history's seed; 0: by the clock")
)

// configuration is one way to come to the same bytes.
type configuration struct {
	name      string
	serve     []string
	retain    int
	languages [4]string // of the clients
	groupRows int       // of map sessions; 0: one group
	keep      bool      // somebody holds every epoch, so no block is used twice
}

var configurations = []configuration{
	{name: "adopt, retain 1, recycled, Go", serve: []string{"--handoff", "adopt", "--retain", "1"}, retain: 1, languages: [4]string{"go", "go", "go", "go"}},
	{name: "copy, retain 8, recycled, C and Python", serve: []string{"--handoff", "copy", "--retain", "8"}, retain: 8, languages: [4]string{"c", "python", "c", "python"}},
	{name: "adopt, retain 8, fresh, mixed", serve: []string{"--handoff", "adopt", "--retain", "8"}, retain: 8, languages: [4]string{"python", "go", "c", "go"}, keep: true},
	{name: "adopt, retain 4, several groups, mixed", serve: []string{"--handoff", "adopt", "--retain", "4"}, retain: 4, languages: [4]string{"c", "go", "python", "c"}, groupRows: 5},
}

// TestMetamorphic plays random histories under every configuration: all must show the bytes that a slow, obvious store
// shows. A history that fails is made as short as it goes and printed with its seed.
func TestMetamorphic(t *testing.T) {
	t.Parallel()
	argv, broken := commands(t)
	require.Empty(t, broken)
	limit := *metamorphicTime
	if testing.Short() {
		limit = 5 * time.Second
	}
	seed := *metamorphicSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("first seed %d", seed)
	var players []*player
	for _, c := range configurations {
		s := &supervisor{argv: argv, running: map[string]*driver{}}
		defer s.stop(t)
		players = append(players, &player{configuration: c, supervisor: s, broker: harness.Start(t, append([]string{"--log-level", "warn"}, c.serve...)...)})
	}
	played, moves, end := 0, 0, time.Now().Add(limit)
	for ; time.Now().Before(end); seed++ {
		h := makeUp(seed, 40+int(seed%100))
		var all sync.WaitGroup // each has a broker and drivers of its own
		failed := make([]error, len(players))
		for i, p := range players {
			all.Go(func() { failed[i] = p.play(h) })
		}
		all.Wait()
		for i, p := range players {
			if err := failed[i]; err != nil {
				short, why := p.shrink(h, err)
				t.Fatalf("configuration %q, seed %d: %v\nthe shortest history that fails, %d of %d moves:\n%v\n%v", p.name, seed, err, len(short), len(h), short, why)
			}
		}
		played++
		moves += len(h)
	}
	t.Logf("%d histories of %d moves under %d configurations", played, moves, len(players))
	require.Positive(t, played)
}

// TestMetamorphicFinds shows that a wrong store would be found and its history shrunk: the oracle is told that the
// store keeps one version, and so expects what is retained to be wrong now and then.
func TestMetamorphicFinds(t *testing.T) {
	t.Parallel()
	argv, broken := commands(t)
	require.Empty(t, broken)
	s := &supervisor{argv: argv, running: map[string]*driver{}}
	defer s.stop(t)
	c := configurations[0]
	c.retain = 8 // it retains one
	p := &player{configuration: c, supervisor: s, broker: harness.Start(t, append([]string{"--log-level", "warn"}, c.serve...)...)}
	for seed := uint64(1); seed < 400; seed++ {
		h := makeUp(seed, 60)
		if err := p.play(h); err != nil {
			short, why := p.shrink(h, err)
			require.ErrorContains(t, why, "OUT_OF_RANGE")
			require.Less(t, len(short), 12, "the history could have been shorter:\n%v", short)
			return
		}
	}
	t.Fatal("no history showed that the store retains less than it should")
}

// player plays histories under one configuration, all on one broker: each has names and ordinals of its own.
type player struct {
	configuration
	supervisor *supervisor
	broker     *harness.Broker
	serial     int
	base       uint64 // ordinals at or below it are sealed

	prefix  string
	queries map[string]string // by role and prims
	epochs  map[string]string // of snapshots
}

// shrinkTime bounds the search for a shorter history.
const shrinkTime = 30 * time.Second

// shrink leaves out moves as long as the history still fails, but for those that bring the attributes into being.
func (p *player) shrink(h history, why error) (history, error) {
	end := time.Now().Add(shrinkTime)
	for step := len(h) / 2; step > 0; {
		shorter := false
		for from := len(subjects) + 1; from < len(h) && time.Now().Before(end); {
			try := slices.Concat(h[:from], h[min(from+step, len(h)):])
			if err := p.play(try); err != nil {
				h, why, shorter = try, err, true
			} else {
				from += step
			}
		}
		if !shorter || step > 1 {
			step /= 2
		}
	}
	return h, why
}

// play plays a history. It fails at the first move that does not come to what the oracle says.
func (p *player) play(h history) error {
	p.serial++
	p.prefix, p.queries, p.epochs = fmt.Sprintf("m%d", p.serial), map[string]string{}, map[string]string{}
	used := uint64(0)
	defer func() { p.base += used + 1 }()
	for role := range p.languages {
		for _, line := range []string{"reset", fmt.Sprintf("connect dir=%s stage=%s", p.broker.RuntimeDir, p.broker.Stage)} {
			if a, err := p.ask(role, line); err != nil || !a.ok {
				return fmt.Errorf("%s: %s (%v)", line, a.raw, err)
			}
		}
	}
	o := newOracle(p.retain)
	for i, m := range h {
		used = max(used, m.ordinal)
		e := o.play(m)
		if e.skip {
			continue
		}
		if err := p.make(m, &e); err != nil {
			return fmt.Errorf("move %d, %v: %w", i, m, err)
		}
		if p.keep && m.verb == "seal" {
			if a, err := p.ask(0, fmt.Sprintf("snapshot keep%d", i)); err != nil || !a.ok {
				return fmt.Errorf("move %d: holding the epoch: %s (%v)", i, a.raw, err)
			}
		}
	}
	return nil
}

func (p *player) ask(role int, line string) (answer, error) {
	name := fmt.Sprintf("%s %d", p.name, role)
	d, err := p.supervisor.driver(p.languages[role], name)
	if err != nil {
		return answer{}, err
	}
	a, err := d.ask(line)
	if err != nil {
		p.supervisor.forget(p.languages[role], name)
	}
	return a, err
}

func (p *player) attribute(name string) string { return p.prefix + "." + name }
func (p *player) path(prim int) string         { return fmt.Sprintf("/%s/p%d", p.prefix, prim) }

func (p *player) attributes(names []string) string {
	out := make([]string, len(names))
	for i, name := range names {
		out[i] = p.attribute(name)
	}
	return strings.Join(out, " ")
}

// query gives a role's handle for prims.
func (p *player) query(role int, prims []int) (string, error) {
	key := fmt.Sprint(role, prims)
	if q, ok := p.queries[key]; ok {
		return q, nil
	}
	q := fmt.Sprint("q", len(p.queries))
	line := "query " + q
	for _, prim := range prims {
		line += " " + p.path(prim)
	}
	a, err := p.ask(role, line)
	if err == nil && !a.ok {
		err = fmt.Errorf("%s: %s", line, a.raw)
	}
	p.queries[key] = q
	return q, err
}

// make makes a move and compares what comes of it.
func (p *player) make(m move, e *expected) error {
	line, err := p.line(m)
	if err != nil {
		return err
	}
	a, err := p.ask(m.role, line)
	if err != nil {
		return err
	}
	if m.verb == "map" && a.ok {
		if err := p.fill(m, &a); err != nil {
			return err
		}
	}
	if m.verb == "snapshot" && a.ok {
		p.epochs[m.handle] = a.fields["epoch"]
	}
	return p.compare(m, &a, e)
}

func (p *player) line(m move) (string, error) {
	q, err := "", error(nil)
	if m.prims != nil {
		if q, err = p.query(m.role, m.prims); err != nil {
			return "", err
		}
	}
	ordinal := fmt.Sprintf(" ordinal=%d", p.base+m.ordinal)
	switch m.verb {
	case "write":
		line := "write " + q + " " + p.attribute(m.names[0]) + ordinal + payloadWords(subjectOf(m.names[0]), m.rows)
		if m.insert {
			line += " insert=1"
		}
		if m.count != 0 {
			line += fmt.Sprint(" count=", m.count)
		}
		return line + numberWords("map", m.gather) + numberWords("mask", m.mask), nil
	case "map":
		s := subjectOf(m.names[0])
		line := "map " + m.handle + " " + q + " " + p.attribute(s.name) + ordinal + " type=" + formatType(s.dtype)
		if s.array {
			sizes := make([]int, len(m.rows))
			for i, row := range m.rows {
				sizes[i] = len(row) / s.dtype.Size()
			}
			line += " array=1" + numberWords("sizes", sizes)
		}
		if p.groupRows != 0 {
			line += fmt.Sprint(" group_rows=", p.groupRows)
		}
		return line, nil
	case "unmap", "abort", "drop":
		return m.verb + " " + m.handle, nil
	case "delete":
		return "delete " + q + " " + p.attributes(m.names) + ordinal, nil
	case "seal":
		return "seal scope=" + m.scope + ordinal + " " + p.attributes(m.names), nil
	case "read":
		line := "read " + q + " " + p.attributes(m.names)
		if m.at != 0 {
			line += fmt.Sprint(" at=", p.base+m.at)
		}
		return line, nil
	case "snapshot":
		return "snapshot " + m.handle, nil
	case "sread":
		line := "sread " + m.handle + " " + q + " " + p.attributes(m.names)
		if m.since != "" {
			line += " since=" + p.epochs[m.since]
		}
		return line, nil
	}
	return "", fmt.Errorf("no line for verb %q", m.verb)
}

// payloadWords is the payload of a write: one tensor, or one for each row of an array attribute.
func payloadWords(s subject, rows []string) string {
	typed := " type=" + formatType(s.dtype)
	if !s.array {
		return typed + fmt.Sprintf(" shape=%d data=%x", len(rows), strings.Join(rows, ""))
	}
	shapes, datas := make([]string, len(rows)), make([]string, len(rows))
	for i, row := range rows {
		shapes[i], datas[i] = strconv.Itoa(len(row)/s.dtype.Size()), hex.EncodeToString([]byte(row))
	}
	return typed + " array=1 list=1 shape=" + strings.Join(shapes, ";") + " data=" + strings.Join(datas, ";")
}

func numberWords[T any](name string, values []T) string {
	if values == nil {
		return ""
	}
	texts := make([]string, len(values))
	for i, v := range values {
		texts[i] = fmt.Sprint(v)
	}
	return " " + name + "=" + strings.Join(texts, ",")
}

// fill writes the payload of a session into its groups.
func (p *player) fill(m move, a *answer) error {
	rest := m.rows
	for i, g := range a.groups {
		n, err := strconv.Atoi(g["rows"])
		if err != nil || n > len(rest) {
			return fmt.Errorf("group %d has %q rows of %d that are left", i, g["rows"], len(rest))
		}
		parts, word := []string{strings.Join(rest[:n], "")}, ""
		if subjectOf(m.names[0]).array {
			parts, word = rest[:n], " row=%d"
		}
		rest = rest[n:]
		for k, data := range parts {
			if data == "" {
				continue
			}
			line := fmt.Sprintf("fill %s.%d", m.handle, i)
			if word != "" {
				line += fmt.Sprintf(word, k)
			}
			if filled, err := p.ask(m.role, fmt.Sprintf("%s data=%x", line, data)); err != nil || !filled.ok {
				return fmt.Errorf("filling group %d: %s (%v)", i, filled.raw, err)
			}
		}
	}
	if len(rest) > 0 {
		return fmt.Errorf("%d groups leave %d rows out", len(a.groups), len(rest))
	}
	return nil
}

func (p *player) compare(m move, a *answer, e *expected) error {
	if a.absent != "" {
		return fmt.Errorf("the driver has no such call: %s", a.absent)
	}
	switch {
	case !a.ok && e.either && a.code == "OUT_OF_RANGE":
		return nil
	case !a.ok && slices.Contains(e.codes, a.code):
		return nil
	case !a.ok || e.codes != nil:
		return fmt.Errorf("expected error %q, got %s", e.codes, a.short())
	case !e.reads:
		return nil
	}
	values, gone := map[string]map[int]string{}, map[string][]int{}
	for _, g := range a.groups {
		name := strings.TrimPrefix(g["attribute"], p.prefix+".")
		var prims []int
		for _, path := range strings.Split(g["paths"], ",") {
			prim, err := strconv.Atoi(strings.TrimPrefix(path, "/"+p.prefix+"/p"))
			if err != nil {
				return fmt.Errorf("a group of %s has the path %q", name, path)
			}
			prims = append(prims, prim)
		}
		if g["deleted"] == "true" {
			gone[name] = append(gone[name], prims...)
			continue
		}
		all, err := rows(g)
		if err != nil {
			return err
		}
		if len(all) != len(prims) {
			return fmt.Errorf("a group of %s has %d rows for %d prims", name, len(all), len(prims))
		}
		if values[name] == nil {
			values[name] = map[int]string{}
		}
		for i, prim := range prims {
			values[name][prim] = string(all[i])
		}
	}
	for name := range gone {
		slices.Sort(gone[name])
		gone[name] = slices.Compact(gone[name])
	}
	if !maps.EqualFunc(values, e.values, func(x, y map[int]string) bool { return maps.Equal(x, y) }) {
		return fmt.Errorf("expected %x, got %x", e.values, values)
	}
	if !maps.EqualFunc(gone, e.gone, slices.Equal) {
		return fmt.Errorf("expected tombstones of %v, got %v", e.gone, gone)
	}
	return nil
}
