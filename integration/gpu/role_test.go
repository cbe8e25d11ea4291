package gpu

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	callboard "callboard/clients/go"
	"callboard/cudaipc"
	"callboard/tensor"
)

// order is what a client is asked to do. Rows are runs of Bytes equal bytes: what is
// filled from Value on gives row i the byte Value + i, and what is read is reported as one
// number for each row, or -1 where its bytes differ.
type order struct {
	Do    string
	Name  string // of the attribute
	As    string // what later orders call it; Name if empty
	Prims []int  // of the query
	Bytes int
	Value int

	Device, Staging string // "", "cpu", "cuda:0"
	Ordinal         uint64
	Since           *uint64
	Retain          uint32
	Mask            []int  // of a write: the prims that it is for
	Take            []int  // of a write: from which row each prim takes
	Sync            string // "stream", "event", "both", "default"; "" is none
	Groups          uint64 // of a map: rows of each of several groups
	Init            string // of a map: "zero", "current"
	From            string // of a write: "host", or "cuda:0" for memory of the client's own
	Memory          string // of a write: what is at From in truth: "cuda:1", "nowhere", "short", half of it
	At              uint64 // of a write: the address at From, of memory that is there; 0: new memory
	Async           bool   // of a commit or write: the op is waited for by "wait"
	Count           int
}

type report struct {
	Error, Kind string
	Rows        []int
	Deleted     int
	Device      string
	Adopted     bool
	Loaded      bool // a driver library is in the process
	Number      uint64
	Text        string
}

// part is a client at work.
type part struct {
	stage    *callboard.Stage
	second   []*callboard.Stage
	units    map[int]*unit
	sessions map[string]*callboard.MapSession
	groups   map[string]*callboard.Group
	claims   map[string]*callboard.MapGroup
	ops      map[string]*callboard.Op
}

// unit is the client's own side of a device: a stream, and what it has allocated there.
type unit struct {
	thread *cudaipc.Thread
	stream cudaipc.Stream
	other  cudaipc.Stream // in which nothing is queued
	event  cudaipc.Event
	memory []cudaipc.Pointer
}

// play runs a client until its input ends.
func play() int {
	p := &part{units: map[int]*unit{}, sessions: map[string]*callboard.MapSession{}, groups: map[string]*callboard.Group{}, claims: map[string]*callboard.MapGroup{}, ops: map[string]*callboard.Op{}}
	var err error
	p.stage, err = callboard.Dial(context.Background(), callboard.Options{Name: os.Getenv(roleEnv), ReattachWait: patience})
	p.say(report{}, err)
	if err != nil {
		return 1
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var o order
		if err := json.Unmarshal(lines.Bytes(), &o); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		if o.As == "" {
			o.As = o.Name
		}
		do := orders[o.Do]
		if do == nil {
			p.say(report{}, fmt.Errorf("no order is named %q", o.Do))
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		r, err := do(p, ctx, o)
		cancel()
		p.say(r, err)
	}
	if err := p.leave(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// leave gives everything back.
func (p *part) leave() error {
	var err error
	for _, m := range p.sessions {
		m.Abort()
	}
	for _, g := range p.claims {
		g.GiveUp()
	}
	for _, g := range p.groups {
		g.Release()
	}
	stages := p.second
	if p.stage != nil {
		stages = append(stages, p.stage)
	}
	for _, s := range stages {
		// What an export held comes back on a goroutine of its own.
		for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
			info, e := s.Info()
			if e != nil || info.Pins == 0 {
				err = errors.Join(err, e)
				break
			}
			if time.Now().After(deadline) {
				err = errors.Join(err, fmt.Errorf("%d pins are not given back", info.Pins))
				break
			}
		}
		err = errors.Join(err, s.Close())
	}
	for _, u := range p.units {
		err = errors.Join(err, u.thread.Do(func(d cudaipc.Driver) error {
			err := d.StreamSynchronize(u.stream)
			for _, m := range u.memory {
				err = errors.Join(err, d.MemFree(m))
			}
			return errors.Join(err, d.EventDestroy(u.event), d.StreamDestroy(u.other), d.StreamDestroy(u.stream))
		}), u.thread.Close())
	}
	return err
}

func (p *part) say(r report, err error) {
	if err != nil {
		r.Error, r.Kind = err.Error(), "other"
		var e *callboard.Error
		if errors.As(err, &e) {
			r.Kind = e.Status.String()
		}
	}
	line, err := json.Marshal(r)
	if err != nil {
		panic(err)
	}
	_, _ = os.Stdout.Write(append(line, '\n'))
}

// unit opens a device as a program of the user's would.
func (p *part) unit(ordinal int) (*unit, error) {
	if u := p.units[ordinal]; u != nil {
		return u, nil
	}
	d, err := cudaipc.Load("")
	if err != nil {
		return nil, err
	}
	u := &unit{}
	if u.thread, err = cudaipc.NewThread(d, ordinal); err != nil {
		return nil, err
	}
	err = u.thread.Do(func(d cudaipc.Driver) (err error) {
		if u.stream, err = d.StreamCreate(); err == nil {
			u.other, err = d.StreamCreate()
		}
		if err == nil {
			u.event, err = d.EventCreate(cudaipc.EventLocal)
		}
		return err
	})
	p.units[ordinal] = u
	return u, err
}

// fill queues the rows' bytes behind each other.
func (u *unit) fill(at uint64, rows, bytes, value int) error {
	return u.thread.Do(func(d cudaipc.Driver) error {
		for i := range rows {
			if err := d.MemsetD8Async(cudaipc.Pointer(at+uint64(i*bytes)), byte(value+i), uint64(bytes), u.stream); err != nil {
				return err
			}
		}
		return nil
	})
}

// sync gives what an unmap waits for after a fill. But for "stream" the fill is in none of the streams that the library
// uses, so that only the event says when it is done.
func (u *unit) sync(how string) (callboard.CUDASync, error) {
	s := callboard.CUDASync{}
	if how == "stream" {
		s.Stream = uint64(u.stream)
	}
	if how == "both" {
		s.Stream = uint64(u.other)
	}
	if how == "default" { // the legacy default stream, which is made to wait
		s.Stream, s.WaitEvent = 1, uint64(u.event)
	}
	if how == "event" || how == "both" {
		s.WaitEvent = uint64(u.event)
	}
	if s.WaitEvent == 0 {
		return s, nil
	}
	return s, u.thread.Do(func(d cudaipc.Driver) error { return d.EventRecord(u.event, u.stream) })
}

// download copies device memory to the host.
func (u *unit) download(at, size uint64) ([]byte, error) {
	host, err := cudaipc.NewHost(size)
	if err != nil {
		return nil, err
	}
	defer host.Close()
	err = u.thread.Do(func(d cudaipc.Driver) error {
		if err := d.CopyDtoHAsync(host.At(0, size), cudaipc.Pointer(at), size, u.stream); err != nil {
			return err
		}
		return d.StreamSynchronize(u.stream)
	})
	return slices.Clone(host.Bytes()[:size]), err
}

func deviceOf(text string) (callboard.Device, error) {
	var n int
	switch {
	case text == "" || text == "host":
		return callboard.Device{}, nil
	case text == "cpu":
		return callboard.CPU, nil
	}
	_, err := fmt.Sscanf(text, "cuda:%d", &n)
	return callboard.CUDA(n), err
}

func (p *part) query(ctx context.Context, prims []int) (*callboard.Query, error) {
	paths := make([]string, len(prims))
	for i, n := range prims {
		paths[i] = fmt.Sprintf("/p%d", n)
	}
	return p.stage.QueryFromPathList(ctx, paths)
}

// orders are what a client can be asked.
var orders map[string]func(*part, context.Context, order) (report, error)

func init() { // cycle refers to it
	orders = map[string]func(*part, context.Context, order) (report, error){
		"declare": func(p *part, ctx context.Context, o order) (r report, err error) {
			device, err := deviceOf(o.Device)
			if err == nil {
				err = p.stage.Declare(ctx, o.Name, callboard.DeclareOptions{DType: tensor.Uint8, RowShape: []uint64{uint64(o.Bytes)}, Device: device, Retain: o.Retain})
			}
			return r, err
		},
		"map":     mapRows,
		"fill":    fillRows,
		"record":  recordEvent,
		"commit":  commit,
		"write":   writeRows,
		"read":    readRows,
		"look":    lookAgain,
		"pointer": pointer,
		"host":    hostAccess,
		"dlpack":  exportRows,
		"cycle":   cycle,
		"claim":   claimGroup,
		"ready":   fillClaimed,
		"mark":    recordClaimed,
		"return":  handBack,
		"work":    workOn,
		"take":    takeAll,
		"limit": func(p *part, ctx context.Context, o order) (r report, err error) {
			info, err := p.stage.Info()
			return report{Number: info.PinnedBytesMax}, err
		},
		"idle": func(p *part, ctx context.Context, o order) (report, error) { // its own work is done
			u, err := p.unit(0)
			if err == nil {
				err = u.thread.Do(func(d cudaipc.Driver) error { return d.StreamSynchronize(u.stream) })
			}
			return report{}, err
		},
		"drop": func(p *part, ctx context.Context, o order) (report, error) {
			p.claims[o.As].GiveUp()
			delete(p.claims, o.As)
			return report{}, nil
		},
		"wait": func(p *part, ctx context.Context, o order) (r report, err error) {
			err = p.ops[o.As].Wait(ctx)
			r.Adopted = p.ops[o.As].Adopted()
			return r, err
		},
		"done": func(p *part, ctx context.Context, o order) (r report, err error) {
			if p.ops[o.As].Done() {
				r.Number = 1
			}
			return r, nil
		},
		"abort": func(p *part, ctx context.Context, o order) (report, error) {
			p.sessions[o.As].Abort()
			delete(p.sessions, o.As)
			return report{}, nil
		},
		"seal": func(p *part, ctx context.Context, o order) (r report, err error) {
			options := callboard.SealOptions{}
			if o.Name != "" {
				options = callboard.SealOptions{Scope: callboard.ScopeInclude, Attributes: []string{o.Name}}
			}
			op, err := p.stage.AdvanceWriteFloor(o.Ordinal, options)
			if err == nil {
				err = op.Wait(ctx)
			}
			return r, err
		},
		"delete": func(p *part, ctx context.Context, o order) (r report, err error) {
			q, err := p.query(ctx, o.Prims)
			if err != nil {
				return r, err
			}
			op, err := p.stage.DeleteAttributes(q, []string{o.Name}, o.Ordinal)
			if err == nil {
				err = op.Wait(ctx)
			}
			return r, err
		},
		"release": func(p *part, ctx context.Context, o order) (report, error) {
			p.groups[o.As].Release()
			delete(p.groups, o.As)
			return report{}, nil
		},
		// carry queues a copy of a group's rows and releases the group behind it; arrived reports them.
		"carry": func(p *part, ctx context.Context, o order) (r report, err error) {
			g := p.groups[o.As]
			from, err := g.DevicePointer()
			if err != nil {
				return r, err
			}
			u, err := p.unit(int(g.Device().ID))
			if err != nil {
				return r, err
			}
			size := uint64(g.Rows() * o.Bytes)
			err = u.thread.Do(func(d cudaipc.Driver) error {
				to, err := d.MemAlloc(size)
				if err != nil {
					return err
				}
				u.memory = append(u.memory, to)
				return d.CopyDtoDAsync(to, cudaipc.Pointer(from), size, u.stream)
			})
			if err != nil {
				return r, err
			}
			stream := uint64(u.stream)
			if o.Value != 0 {
				stream = uint64(o.Value)
			}
			return r, g.ReleaseAfter(ctx, stream)
		},
		"arrived": func(p *part, ctx context.Context, o order) (r report, err error) {
			u := p.units[0]
			data, err := u.download(uint64(u.memory[len(u.memory)-1]), uint64(o.Bytes*o.Count))
			for i := 0; err == nil && i < o.Count; i++ {
				r.Rows = append(r.Rows, int(data[i*o.Bytes]))
			}
			return r, err
		},
		// touch makes a call of the kind that notices what left service.
		"touch": func(p *part, ctx context.Context, o order) (report, error) {
			return report{Number: p.stage.Epoch()}, nil
		},
		"second": func(p *part, ctx context.Context, o order) (report, error) {
			s, err := callboard.Dial(ctx, callboard.Options{Name: "second"})
			if err == nil {
				p.second, p.stage = append(p.second, p.stage), s
			}
			return report{}, err
		},
		"close": func(p *part, ctx context.Context, o order) (report, error) { // and what it has open stays
			s := p.stage
			p.stage = nil
			return report{}, s.Close()
		},
		"loaded": func(p *part, ctx context.Context, o order) (report, error) {
			raw, err := os.ReadFile("/proc/self/maps")
			return report{Loaded: bytes.Contains(raw, []byte("libcuda"))}, err
		},
		"epoch": func(p *part, ctx context.Context, o order) (report, error) {
			epoch, err := p.stage.Follow(ctx, o.Ordinal)
			return report{Number: epoch}, err
		},
	}
}

func mapRows(p *part, ctx context.Context, o order) (r report, err error) {
	q, err := p.query(ctx, o.Prims)
	if err != nil {
		return r, err
	}
	options := callboard.MapOptions{Ordinal: o.Ordinal, GroupRows: o.Groups}
	if o.Bytes > 0 {
		options.DType, options.RowShape = tensor.Uint8, []uint64{uint64(o.Bytes)}
	}
	if options.Device, err = deviceOf(o.Device); err != nil {
		return r, err
	}
	if options.Staging, err = deviceOf(o.Staging); err != nil {
		return r, err
	}
	options.Init = map[string]callboard.Init{"zero": callboard.InitZero, "current": callboard.InitCurrent}[o.Init]
	m, err := p.stage.MapAttribute(ctx, q, o.Name, options)
	if err != nil {
		return r, err
	}
	p.sessions[o.As] = m
	r.Device = m.Device().String()
	return r, nil
}

func fillRows(p *part, ctx context.Context, o order) (r report, err error) {
	m := p.sessions[o.As]
	t, err := m.Array()
	if err != nil {
		return r, err
	}
	rows, size := int(t.Shape[0]), int(t.Shape[1])
	only := func(i int) bool { return o.Mask == nil || slices.Contains(o.Mask, i) }
	if t.Device.Host() {
		for i := range rows {
			if only(i) {
				copy(t.Data[i*size:][:size], bytes.Repeat([]byte{byte(o.Value + i)}, size))
			}
		}
		return r, nil
	}
	u, err := p.unit(int(t.Device.ID))
	if err != nil {
		return r, err
	}
	if o.Mask == nil {
		return r, u.fill(uint64(t.Address), rows, size, o.Value)
	}
	for _, i := range o.Mask {
		if err := u.fill(uint64(t.Address)+uint64(i*size), 1, size, o.Value+i); err != nil {
			return r, err
		}
	}
	return r, nil
}

// recordEvent records a group's event as the unmap would, which does not follow.
func recordEvent(p *part, ctx context.Context, o order) (r report, err error) {
	m := p.sessions[o.As]
	for g, err := range m.Groups(ctx) {
		if err != nil {
			return r, err
		}
		event, err := g.Event()
		if err != nil {
			return r, err
		}
		u, err := p.unit(int(g.Device().ID))
		if err != nil {
			return r, err
		}
		return r, u.thread.Do(func(d cudaipc.Driver) error { return d.EventRecord(cudaipc.Event(event), u.stream) })
	}
	return r, errors.New("the session has no group")
}

func commit(p *part, ctx context.Context, o order) (r report, err error) {
	m := p.sessions[o.As]
	var syncs []callboard.CUDASync
	if o.Sync != "" {
		u, err := p.unit(int(m.Device().ID))
		if err != nil {
			return r, err
		}
		s, err := u.sync(o.Sync)
		if err != nil {
			return r, err
		}
		syncs = append(syncs, s)
	}
	op, err := m.UnmapAttribute(syncs...)
	if err != nil {
		return r, err
	}
	delete(p.sessions, o.As)
	p.ops[o.As] = op
	if !o.Async {
		err = op.Wait(ctx)
	}
	r.Adopted = op.Adopted()
	return r, err
}

// writeRows writes len(Take) or len(Prims) rows, from the host or from memory of the
// client's own on a device.
func writeRows(p *part, ctx context.Context, o order) (r report, err error) {
	q, err := p.query(ctx, o.Prims)
	if err != nil {
		return r, err
	}
	rows := len(o.Prims)
	options := callboard.WriteOptions{Ordinal: o.Ordinal, RowShape: []uint64{uint64(o.Bytes)}}
	if options.Device, err = deviceOf(o.Device); err != nil {
		return r, err
	}
	if o.Take != nil {
		s := callboard.Selection{Count: callboard.AllPrims}
		for _, i := range o.Take {
			s.IndexMap = append(s.IndexMap, uint32(i))
			rows = max(rows, i+1)
		}
		options.Selection = &s
	}
	if o.Mask != nil {
		s := callboard.Selection{Count: callboard.AllPrims, Mask: make([]uint64, (len(o.Prims)+63)/64)}
		for _, i := range o.Mask {
			s.Mask[i/64] |= 1 << (i % 64)
		}
		options.Selection = &s
	}
	t := callboard.Tensor{Shape: []int64{int64(rows), int64(o.Bytes)}, DType: tensor.Uint8}
	device, err := deviceOf(o.From)
	if err != nil {
		return r, err
	}
	if device == (callboard.Device{}) || device == callboard.CPU {
		for i := range rows {
			t.Data = append(t.Data, bytes.Repeat([]byte{byte(o.Value + i)}, o.Bytes)...)
		}
	} else {
		truly, filled := device, rows
		switch o.Memory {
		case "short":
			filled = rows / 2
		case "cuda:1":
			truly = callboard.CUDA(1)
		}
		u, err := p.unit(int(truly.ID))
		if err != nil {
			return r, err
		}
		var at cudaipc.Pointer
		err = u.thread.Do(func(d cudaipc.Driver) (err error) {
			at, err = d.MemAlloc(uint64(filled * o.Bytes))
			return err
		})
		if err != nil {
			return r, err
		}
		u.memory = append(u.memory, at)
		if err := u.fill(uint64(at), filled, o.Bytes, o.Value); err != nil {
			return r, err
		}
		switch {
		case o.Memory == "nowhere":
			at = 64
		case o.At != 0:
			at = cudaipc.Pointer(o.At)
		}
		if options.Sync, err = u.sync(o.Sync); err != nil {
			return r, err
		}
		t.Device, t.Address = device, uintptr(at)
	}
	op, err := p.stage.WriteAttribute(ctx, q, o.Name, t, options)
	if err != nil {
		return r, err
	}
	p.ops[o.As] = op
	if !o.Async {
		err = op.Wait(ctx)
	}
	return r, err
}

func readRows(p *part, ctx context.Context, o order) (r report, err error) {
	q, err := p.query(ctx, o.Prims)
	if err != nil {
		return r, err
	}
	options := callboard.ReadOptions{Since: o.Since}
	if options.Device, err = deviceOf(o.Device); err != nil {
		return r, err
	}
	if o.Ordinal > 0 {
		options.At = &o.Ordinal
	}
	read, err := p.stage.ReadAttributes(ctx, q, []string{o.Name}, options)
	if err != nil {
		return r, err
	}
	defer read.Release()
	for g, err := range read.Groups() {
		if err != nil {
			return r, err
		}
		if g.IsDelete() {
			r.Deleted += len(g.Prims())
			g.Release()
			continue
		}
		if old := p.groups[o.As]; old != nil {
			old.Release()
		}
		p.groups[o.As] = g
		if err := p.contents(g, &r); err != nil {
			return r, err
		}
	}
	return r, nil
}

// lookAgain reports the rows of a group that was read, or of its mirror on Device.
func lookAgain(p *part, ctx context.Context, o order) (r report, err error) {
	g := p.groups[o.As]
	if o.Device != "" {
		device, err := deviceOf(o.Device)
		if err != nil {
			return r, err
		}
		if g, err = g.On(ctx, device); err != nil {
			return r, err
		}
		defer g.Release()
	}
	return r, p.contents(g, &r)
}

func (p *part) contents(g *callboard.Group, r *report) error {
	t, err := g.Array()
	if err != nil {
		return err
	}
	r.Device, r.Adopted = t.Device.String(), g.Adopted()
	size := int(t.Shape[1])
	data := t.Data
	if !t.Device.Host() {
		u, err := p.unit(int(t.Device.ID))
		if err != nil {
			return err
		}
		if data, err = u.download(uint64(t.Address), uint64(int(t.Shape[0])*size)); err != nil {
			return err
		}
	}
	r.Rows = []int{}
	for i := range g.Prims() {
		row := data[g.Row(i)*size:][:size]
		value := int(row[0])
		if !bytes.Equal(row, bytes.Repeat(row[:1], size)) {
			value = -1
		}
		r.Rows = append(r.Rows, value)
	}
	return nil
}

// pointer reports a group's device pointer: of a session, or of what was read.
func pointer(p *part, ctx context.Context, o order) (r report, err error) {
	if m := p.sessions[o.As]; m != nil {
		r.Number, err = m.DevicePointer()
		return r, err
	}
	r.Number, err = p.groups[o.As].DevicePointer()
	return r, err
}

// hostAccess touches a group as host memory.
func hostAccess(p *part, ctx context.Context, o order) (r report, err error) {
	if m := p.sessions[o.As]; m != nil {
		_, err = callboard.Values[uint8](m)
		return r, err
	}
	_, err = callboard.Values[uint8](p.groups[o.As])
	return r, err
}

// exportRows exports a group that was read and reports where, and that it says so.
func exportRows(p *part, ctx context.Context, o order) (r report, err error) {
	g := p.groups[o.As]
	t, err := g.Array()
	if err != nil {
		return r, err
	}
	m, err := g.ExportVersioned(0, 0)
	if err != nil {
		return r, err
	}
	defer tensor.Discard(m)
	r.Device = callboard.Device{Type: uint32(m.Tensor.Device.Type), ID: uint32(m.Tensor.Device.ID)}.String()
	back, err := tensor.ImportVersioned(m)
	if err != nil {
		return r, err
	}
	switch {
	case m.Tensor.Strides == nil || m.Tensor.ByteOffset != 0 || m.Flags != tensor.FlagReadOnly:
		return r, fmt.Errorf("the export says strides %v, byte_offset %d, flags %d", m.Tensor.Strides, m.Tensor.ByteOffset, m.Flags)
	case back.Address != t.Address+uintptr(t.ByteOffset) || back.Device != t.Device || !slices.Equal(back.Shape, t.Shape):
		return r, fmt.Errorf("the export is %+v of %+v", back, t)
	}
	return r, nil
}

// cycle maps, fills, commits and seals Count times, from Ordinal on; Value rises by one each.
func cycle(p *part, ctx context.Context, o order) (r report, err error) {
	for i := range o.Count {
		next := o
		next.Ordinal, next.Value = o.Ordinal+uint64(i), o.Value+i
		for _, step := range []func(*part, context.Context, order) (report, error){mapRows, fillRows, commit, orders["seal"]} {
			if _, err := step(p, ctx, next); err != nil {
				return r, fmt.Errorf("cycle %d: %w", i, err)
			}
		}
	}
	return r, nil
}
