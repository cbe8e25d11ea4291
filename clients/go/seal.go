package callboard

import (
	"context"

	"callboard/protocol"
	"callboard/tensor"
)

// Scope says which attributes a seal covers.
type Scope uint64

// Scopes of a seal.
const (
	// ScopeAll: every attribute, those not yet born included.
	ScopeAll Scope = protocol.ScopeAll
	// ScopeInclude: the attributes named.
	ScopeInclude Scope = protocol.ScopeInclude
	// ScopeExclude: every known attribute but those named.
	ScopeExclude Scope = protocol.ScopeExclude
)

// SealOptions narrow a seal. The zero value seals everything.
type SealOptions struct {
	Scope Scope
	// Attributes are the names for ScopeInclude and ScopeExclude.
	Attributes []string
	// StampNs is the application's time in ns; 0 takes the broker's clock.
	StampNs uint64
}

// AdvanceWriteFloor seals through an ordinal: what was written at or below it becomes
// immutable and readable, all in one step. Backwards and repeated seals succeed and
// change nothing. The Op tells Floor and Epoch.
func (s *Stage) AdvanceWriteFloor(ordinal uint64, o SealOptions) (*Op, error) {
	c := s.client
	if err := c.enter(); err != nil {
		return nil, err
	}
	defer c.leave()
	err := c.mayWrite()
	switch {
	case err != nil:
	case o.Scope > ScopeExclude:
		err = fail(protocol.StatusInvalidArgument, "scope is %d: expected ScopeAll, ScopeInclude or ScopeExclude", o.Scope)
	case o.Scope == ScopeAll && len(o.Attributes) > 0:
		err = fail(protocol.StatusInvalidArgument, "scope all takes no attributes, %d are given", len(o.Attributes))
	}
	for _, name := range o.Attributes {
		if err == nil {
			err = checkName(name)
		}
	}
	if err != nil {
		return nil, refused(err)
	}
	head := sizeOf[protocol.SealArguments]()
	r := request{what: "sealing", opcode: protocol.OpSeal, ordinal: ordinal, value: uint64(o.Scope), size: head, names: o.Attributes}
	if o.Scope != ScopeAll {
		r.size += stringListBytes(o.Attributes)
	}
	r.fill = func(dst []byte) error {
		args := protocol.SealArguments{StampNs: o.StampNs}
		copy(dst, bytesOf(&args))
		if o.Scope != ScopeAll {
			putStringList(dst[head:], o.Attributes)
		}
		return nil
	}
	op, err := c.submit(r)
	return op, refused(err)
}

// WriteFloor is the floor of an attribute, known or not, at the newest epoch. No
// broker is involved.
func (s *Stage) WriteFloor(name string) (uint64, error) {
	c := s.client
	if err := c.enter(); err != nil {
		return 0, err
	}
	defer c.leave()
	floor, err := c.reader.WriteFloor(name)
	return floor, asError(err)
}

// Handoff says what becomes of a block that covers its whole column.
type Handoff uint32

// How a mapped block becomes a version.
const (
	HandoffDefault Handoff = protocol.HandoffDefault
	HandoffAdopt   Handoff = protocol.HandoffAdopt
	HandoffCopy    Handoff = protocol.HandoffCopy
)

// DeclareOptions state an attribute before anybody writes it.
type DeclareOptions struct {
	DType    DType
	RowShape []uint64
	Semantic Semantic
	// Device is where its rows lie; the zero Device is where the attribute lies that exists,
	// else the host. Kind array is the host's alone.
	Device Device
	// Retain is how many versions stay readable, at most 1 048 576; 0 for the stage's
	// default, or for what an attribute has that exists.
	Retain uint32
	// Handoff is what becomes of a buffer that was filled in place; HandoffDefault as for
	// Retain 0.
	Handoff Handoff
	// IsArray declares kind array: a row of its own length for each prim.
	IsArray bool
}

// Declare states an attribute's schema and settings. It waits for the broker. An
// attribute that exists with the same schema is accepted, and its settings change where
// the options name others: fewer retained versions go with the next seal, more come with
// time, and another handoff counts from the next buffer on. Another schema is
// INVALID_ARGUMENT.
func (s *Stage) Declare(ctx context.Context, name string, o DeclareOptions) error {
	c := s.client
	if err := c.enter(); err != nil {
		return err
	}
	defer c.leave()
	schema := tensor.Schema{Kind: kindOf(o.IsArray), DType: o.DType, RowShape: o.RowShape, Semantic: o.Semantic}
	err := checkName(name)
	var device Device
	if err == nil {
		if device, err = c.ofBroker(o.Device); err == nil {
			schema.Device = deviceFor(device, nil)
			err = schema.Validate()
		}
		if err != nil {
			err = named(name, err)
		}
	}
	if err == nil {
		err = c.mayWrite()
	}
	if err != nil {
		return refused(err)
	}
	head := sizeOf[protocol.DeclareArguments]()
	_, err = c.call(ctx, request{what: "declaring attribute " + name, opcode: protocol.OpDeclare, size: head + len(name), fill: func(dst []byte) error {
		args := protocol.DeclareArguments{Schema: givenSchema(&schema, device), NameOffsetBytes: uint32(head), NameBytes: uint32(len(name)), Retain: o.Retain, Handoff: uint32(o.Handoff)}
		copy(dst, bytesOf(&args))
		copy(dst[head:], name)
		return nil
	}})
	return refused(err)
}
