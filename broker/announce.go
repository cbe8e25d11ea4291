package broker

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"callboard/control"
	"callboard/protocol"
	"callboard/snapshot"
	"callboard/tensor"
)

// identity says whose events and answers these are.
func (b *Broker) identity() control.Identity {
	return control.Identity{Host: b.host, Stage: b.config.Stage, Generation: b.generation.Number, Broker: b.incarnation, Version: Version}
}

// startNATS starts the control plane and writes the runtime file.
func (b *Broker) startNATS() (err error) {
	id := b.identity()
	if b.nats, err = control.Start(control.Options{Identity: id, Port: b.config.NATSPort, External: b.config.External, Log: b.config.Log}); err != nil {
		return err
	}
	if b.announce, err = control.NewAnnouncer(b.nats.Events(), control.AnnouncerOptions{Identity: id}); err != nil {
		return err
	}
	endpoints := []control.Endpoint{control.DescribeEndpoint(b.describe), control.FloorEndpoint(b.floor), control.QueryEndpoint(b.primsNow), control.ReadEndpoint(b.readNow)}
	if b.service, err = control.NewService(b.nats.Requests(), control.ServiceOptions{Identity: id, Endpoints: endpoints, Stats: b.stats}); err != nil {
		return err
	}
	return control.WriteRuntimeFile(filepath.Join(b.runtimeDir, control.RuntimeFileName), b.nats.Info())
}

// onSeal notes a commit; the announcer sends it (rule K2).
func (b *Broker) onSeal(s *snapshot.Sealed) {
	if b.announce == nil { // a recovery shows what was lost before anybody can be told
		return
	}
	b.notes = b.notes[:0]
	for i := range s.Columns {
		c := &s.Columns[i]
		b.notes = append(b.notes, control.Change{Attribute: c.Name, Column: c.Index, Floor: c.Floor, OrdinalLowest: c.Lowest, OrdinalHighest: c.Highest,
			Rows: c.Rows, Adopted: c.Adopted, LayoutGeneration: c.LayoutGeneration})
	}
	b.announce.Commit(control.CommitNote{Epoch: s.Epoch, StampNS: s.StampNs, Floor: s.Global, Changed: b.notes})
}

// onGroup notes a group that waits to be filled; the announcer sends it (rule K2).
func (b *Broker) onGroup(m *snapshot.Session, index uint32) {
	schema, owner := m.Schema(), m.Owner.(*client)
	if on := m.Device(); on != nil && !m.Split() {
		b.leaseEvent(owner, on, m.ID, uint64(index)) // mapAttribute looks whether it got one
	}
	g := b.group(owner, m, index)
	b.announce.Group(control.GroupEvent{Attribute: m.Name(), Column: g.Column, DType: dtypeOf(&schema), RowShape: rowShapeOf(&schema),
		Semantic: semanticName(schema.Semantic), Kind: tensor.Kind(schema.Kind).String(), Ordinal: g.Ordinal, Owner: owner.incarnation, Session: g.Session,
		GroupIndex: g.GroupIndex, GroupCount: uint32(m.Groups()), Prims: g.PrimCount, Query: control.QueryInfo{Prims: m.Prims(), FirstPrim: g.FirstPrim},
		PrimMode: primMode(m), Attempt: g.Attempt, Device: b.deviceOfGroup(m, &g),
		Block: control.Block{Segment: uint32(g.Block.Segment), OffsetBytes: g.Block.OffsetBytes, LengthBytes: g.Block.LengthBytes}, Gone: m.Gone(index)})
}

func primMode(m *snapshot.Session) string {
	if m.Insert() {
		return "insert"
	}
	return "upsert"
}

func (b *Broker) announceClient(c *client, event, reason string) {
	b.announce.Client(control.ClientEvent{Event: event, Incarnation: c.incarnation, Name: c.name, Language: languageName(c.language), PID: int32(c.pid), Reason: reason})
}

func (b *Broker) health(level, code, text string, numbers map[string]control.Number) {
	if b.announce != nil {
		b.announce.Health(control.HealthEvent{Level: level, Code: code, Text: text, Numbers: numbers})
	}
}

// describe answers for the whole stage, or for some attributes.
func (b *Broker) describe(_ context.Context, r control.DescribeRequest) (*control.Description, *control.RPCError) {
	var d *control.Description
	if !b.do(func() { d = b.describeNow() }) {
		return nil, &control.RPCError{Code: control.CodeBroken, Text: "the broker is stopping"}
	}
	if r.FirstAttribute < 0 || r.FirstClient < 0 {
		return nil, &control.RPCError{Code: control.CodeBadRequest, Text: fmt.Sprintf("first_attribute is %d and first_client %d: expected numbers from 0", r.FirstAttribute, r.FirstClient)}
	}
	if len(r.Attributes) > 0 {
		if err := onlyNamed(d, r.Attributes); err != nil {
			return nil, err
		}
	}
	d.AttributeCount, d.ClientCount = len(d.Attributes), len(d.Clients)
	d.Attributes, d.Clients = page(d.Attributes, r.FirstAttribute), page(d.Clients, r.FirstClient)
	return d, nil
}

// page is what one answer holds of a list.
func page[T any](all []T, first int) []T {
	all = all[min(first, len(all)):]
	return all[:min(len(all), control.DescribePage)]
}

// onlyNamed keeps the attributes of these names.
func onlyNamed(d *control.Description, names []string) *control.RPCError {
	wanted := map[string]bool{}
	for _, name := range names {
		wanted[name] = true
	}
	kept := d.Attributes[:0]
	for _, a := range d.Attributes {
		if wanted[a.Name] {
			kept = append(kept, a)
			wanted[a.Name] = false
		}
	}
	for _, name := range names {
		if wanted[name] {
			return &control.RPCError{Code: control.CodeNotFound, Text: fmt.Sprintf("attribute %q does not exist", name)}
		}
	}
	d.Attributes = kept
	return nil
}

func (b *Broker) describeNow() *control.Description {
	state := b.store.Describe()
	d := &control.Description{Source: b.identity().Source(state.Epoch), BrokerVersion: Version, Floor: state.GlobalFloor, GPU: b.describeDevices(&state),
		Attributes: []control.AttributeDescription{}, Clients: []control.ClientDescription{},
		Memory: describeMemory(&state.Usage.MemoryUse),
		Limits: map[string]control.Number{
			"unsealed_bytes": control.Number(b.config.UnsealedBytes), "pinned_bytes_per_client": control.Number(b.config.PinnedBytes),
			"queries_per_client": queriesMax, "row_dimensions": protocol.RowDimensionsMax, "inline_bytes": protocol.InlineBytesMax},
		Counters: b.counters(&state)}
	for i := range state.Columns {
		c := &state.Columns[i]
		a := control.AttributeDescription{Name: c.Name, Column: c.Index, DType: dtypeOf(&c.Schema), Kind: tensor.Kind(c.Schema.Kind).String(),
			RowShape: rowShapeOf(&c.Schema), Semantic: semanticName(c.Schema.Semantic), Device: b.deviceAt(c.Schema.DeviceType, c.Schema.DeviceID), Rows: c.Rows, Floor: c.Floor,
			Ordinals: []control.Span{}, Retain: c.Retain, Handoff: "adopt", Bytes: c.Bytes, Adopted: c.Adopted, Scattered: c.Scattered, AdoptRefused: c.AdoptRefused}
		if c.Handoff == protocol.HandoffCopy {
			a.Handoff = "copy"
		}
		for _, o := range c.Ordinals {
			a.Ordinals = append(a.Ordinals, control.Span{Lowest: o[0], Highest: o[1]})
		}
		d.Attributes = append(d.Attributes, a)
	}
	for _, c := range b.clients {
		pins := c.AppendPins(nil)
		d.Clients = append(d.Clients, control.ClientDescription{Incarnation: c.incarnation, Name: c.name, Language: languageName(c.language), PID: int32(c.pid),
			Sessions: b.store.SessionsOf(c), PinnedBytes: c.pinnedBytes(), Pins: uint32(len(pins))})
	}
	return d
}

func describeMemory(u *snapshot.MemoryUse) control.MemoryDescription {
	return control.MemoryDescription{Limit: u.LimitBytes, Held: u.HeldBytes, Free: u.FreeBytes, Live: u.LiveBytes, Retained: u.RetainedBytes, Pinned: u.PinnedBytes,
		Recycled: u.RecycledBytes, Waiting: u.WaitingBytes, Mirrors: u.MirrorBytes, Open: u.OpenBytes, Directory: u.DirectoryBytes, Spare: u.SpareBytes, LargestFree: u.LargestFreeBytes}
}

func (b *Broker) counters(state *snapshot.State) map[string]control.Number {
	c, a := state.Counters, b.announce.Counts()
	return map[string]control.Number{
		"seals": control.Number(c.Seals), "versions_adopted": control.Number(c.Adopted), "versions_scattered": control.Number(c.Scattered),
		"adopt_refused": control.Number(c.AdoptRefused), "copied_bytes": control.Number(c.CopiedBytes), "versions_reclaimed": control.Number(c.Reclaimed),
		"writes": control.Number(c.Writes), "deletes": control.Number(c.Deletes), "unmaps": control.Number(c.Unmaps), "aborts": control.Number(c.Aborts),
		"segments": control.Number(state.Usage.Segments), "strings": control.Number(state.Strings), "unsealed_bytes": control.Number(state.UnsealedBytes),
		"announced": control.Number(a.Sent), "announcements_dropped": control.Number(a.Overflow + a.Failed)}
}

// floor answers for the global floor and for names, known or not.
func (b *Broker) floor(_ context.Context, r control.FloorRequest) (*control.FloorResponse, *control.RPCError) {
	answer := &control.FloorResponse{Attributes: []control.AttributeFloor{}}
	if !b.do(func() {
		state := b.store.Describe()
		answer.Source, answer.Floor = b.identity().Source(state.Epoch), state.GlobalFloor
		for _, name := range r.Attributes {
			answer.Attributes = append(answer.Attributes, control.AttributeFloor{Name: name, Floor: b.store.FloorOf(name)})
		}
		if len(r.Attributes) == 0 {
			for _, c := range state.Columns {
				if c.Floor != state.GlobalFloor {
					answer.Attributes = append(answer.Attributes, control.AttributeFloor{Name: c.Name, Floor: c.Floor})
				}
			}
		}
	}) {
		return nil, &control.RPCError{Code: control.CodeBroken, Text: "the broker is stopping"}
	}
	return answer, nil
}

// stats are shown by `nats micro stats`.
func (b *Broker) stats() map[string]any {
	var out map[string]any
	b.do(func() {
		state := b.store.Describe()
		out = map[string]any{"epoch": fmt.Sprint(state.Epoch), "attributes": len(state.Columns), "clients": len(b.clients), "shm_bytes": fmt.Sprint(state.Usage.HeldBytes)}
	})
	return out
}

// holders names who keeps memory, for OUT_OF_MEMORY (rule V7).
func (b *Broker) holders() string {
	var list []string
	for _, c := range b.clients {
		if pinned := c.pinnedBytes(); pinned > 0 {
			list = append(list, fmt.Sprintf("%s (pid %d) pins %d bytes", c.name, c.pid, pinned))
		}
		if n := b.store.SessionsOf(c); n > 0 {
			list = append(list, fmt.Sprintf("%s (pid %d) has %d map sessions open", c.name, c.pid, n))
		}
	}
	if len(list) == 0 {
		return ""
	}
	return "; " + strings.Join(list, ", ")
}

func dtypeOf(s *protocol.Schema) control.DType {
	d := tensor.DType{Code: s.DtypeCode, Bits: s.DtypeBits, Lanes: s.DtypeLanes}
	return control.DType{Code: d.Code, Bits: d.Bits, Lanes: d.Lanes, Name: d.String()}
}

func rowShapeOf(s *protocol.Schema) []uint64 {
	return append([]uint64{}, s.RowShape[:min(s.RowDimensions, protocol.RowDimensionsMax)]...)
}

// deviceAt tells where an attribute's rows lie.
func (b *Broker) deviceAt(sort, index uint32) control.Device {
	d := control.Device{Type: int32(sort), ID: int32(index)}
	if g := b.devices.served(index); g != nil && sort == tensor.DeviceCUDA {
		d.UUID = g.info.UUID.String()
	}
	return d
}

// deviceOfGroup tells where a group is filled, which may be elsewhere (rule C5): of device
// memory all that a client needs, but for the handles (rule C2).
func (b *Broker) deviceOfGroup(m *snapshot.Session, g *protocol.GroupDescriptor) control.Device {
	on := m.Device()
	if on == nil {
		return control.Device{Type: int32(tensor.DeviceCPU)}
	}
	at := b.devices.served(on.Index)
	d := control.Device{Type: int32(tensor.DeviceCUDA), ID: int32(on.Index), UUID: at.info.UUID.String()}
	if g.Block.Segment != 0 {
		event := g.EventIndex
		d.Arena, d.Generation, d.Event = uint32(g.Block.Segment), g.ArenaGeneration, &event
	}
	return d
}

func semanticName(semantic uint32) string { return tensor.Semantic(semantic).String() }

func languageName(language uint32) string {
	switch language {
	case protocol.LanguageGo:
		return "go"
	case protocol.LanguageC:
		return "c"
	case protocol.LanguagePython:
		return "python"
	}
	return "unknown"
}
