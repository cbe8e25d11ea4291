package callboard

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"callboard/protocol"
	"callboard/snapshot"
)

// floorState is the floors that a restarted broker goes on from. Where they cannot be
// read nothing counts as sealed, and everything may have been.
type floorState struct {
	reader *snapshot.Reader
	pinned snapshot.Pinned
	held   bool
	floors snapshot.Floors
	known  bool
}

func floorsNow(r *snapshot.Reader) *floorState {
	s := &floorState{reader: r}
	if s.held = r.Pin(&s.pinned) == nil; !s.held {
		return s
	}
	var err error
	s.floors, err = s.pinned.Floors()
	s.known = err == nil
	return s
}

func (s *floorState) release() {
	if s.held {
		s.pinned.Release()
	}
}

// of is the floor of a name.
func (s *floorState) of(name string) (floor uint64, ok bool) {
	if !s.known {
		return 0, false
	}
	floor, err := s.floors.OfName(name)
	return floor, err == nil
}

// others gives the floors of all known attributes but those named.
func (s *floorState) others(but []string) (floors []uint64, ok bool) {
	if !s.known {
		return nil, false
	}
	columns, err := s.reader.AllColumns()
	for _, column := range columns {
		if !slices.Contains(but, column.Name) {
			floors = append(floors, s.floors.Of(column.NameID))
		}
	}
	return floors, err == nil
}

// reached gives the floor of what a seal was about when it is at or above its ordinal.
func (s *floorState) reached(r *request) (floor uint64, ok bool) {
	floors := []uint64{}
	switch ok = s.known; r.value {
	case protocol.ScopeAll:
		floors = append(floors, s.floors.Global, s.floors.Default)
	case protocol.ScopeExclude:
		floors, ok = s.others(r.names)
	default:
		for _, name := range r.names {
			floor, there := s.of(name)
			floors, ok = append(floors, floor), ok && there
		}
	}
	if !ok || len(floors) == 0 {
		return 0, false
	}
	floor = slices.Min(floors)
	return floor, floor >= r.at
}

// maybe tells whether an operation may have been sealed before the broker went: of one
// that is about several names, whether any of them was.
func (s *floorState) maybe(r *request) bool {
	if !r.changes() || r.flags&protocol.FlagAbort != 0 || r.opcode == protocol.OpMap {
		return false
	}
	if r.opcode == protocol.OpSeal && r.value != protocol.ScopeInclude {
		return false // it names nothing: others' floors are not its doing
	}
	if r.flags&protocol.FlagNextOrdinal != 0 {
		return !s.known || s.reader.Epoch() != r.epoch // nothing was sealed since: neither was this
	}
	if len(r.names) == 0 { // a delete of prims
		floors, ok := s.others(nil)
		return !ok || slices.ContainsFunc(floors, func(floor uint64) bool { return floor >= r.at })
	}
	return slices.ContainsFunc(r.names, func(name string) bool {
		floor, ok := s.of(name)
		return !ok || floor >= r.at
	})
}

// settleOps ends what was in flight when the broker went (rule B1). The caller holds
// mutex.
func (c *client) settleOps(s *floorState) {
	for id, op := range c.ops {
		delete(c.ops, id)
		e := protocol.CompletionEntry{OpID: id, Ordinal: op.request.at}
		if op.request.opcode == protocol.OpSeal {
			if floor, ok := s.reached(&op.request); ok {
				e.Value, e.Epoch = floor, s.pinned.Epoch()
				op.finish(nil, &e, nil)
				continue
			}
		}
		failure := &Error{Status: protocol.StatusBrokerRestarted, OpID: id, operation: true,
			Text: op.what() + ": the broker was restarted before this was sealed; submit it again"}
		e.Status = uint32(failure.Status)
		if s.maybe(&op.request) {
			failure.SealedMaybe, e.Flags = true, protocol.CompletionSealedMaybe
			failure.Text = op.what() + ": the broker was restarted, and this may have been sealed before; look what is there, or write it again at a higher ordinal"
		}
		op.finish(failure, &e, nil)
		if op.request.opcode == protocol.OpSeal {
			c.unsealed.told(&op.request) // by the failed seal
		}
	}
}

// unsealed is what this client's finished operations wrote that no seal covers yet, as
// far as it knows: the highest ordinal by name, "" for deletes of prims.
type unsealed map[string]uint64

// note takes a finished operation in.
func (u unsealed) note(r *request) {
	switch r.opcode {
	case protocol.OpWrite, protocol.OpUnmapGroup, protocol.OpUnmapAttribute, protocol.OpDelete:
	default:
		return
	}
	if r.flags&(protocol.FlagSeal|protocol.FlagAbort) != 0 {
		return
	}
	for _, name := range r.names {
		u[name] = max(u[name], r.at)
	}
	if len(r.names) == 0 {
		u[""] = max(u[""], r.at)
	}
}

// told takes out what a seal was about.
func (u unsealed) told(r *request) {
	for name, ordinal := range u {
		named := slices.Contains(r.names, name)
		if ordinal <= r.at && (r.value == protocol.ScopeAll || named == (r.value == protocol.ScopeInclude)) {
			delete(u, name)
		}
	}
}

// above describes what no seal reached.
func (u unsealed) above(s *floorState) (lost []string) {
	for name, ordinal := range u {
		floor, ok := s.of(name)
		if name == "" {
			floor, ok = min(s.floors.Global, s.floors.Default), s.known
		}
		if ok && floor >= ordinal {
			continue
		}
		if name == "" {
			name = "deleted prims"
		}
		lost = append(lost, fmt.Sprintf("%s at ordinal %d", name, ordinal))
	}
	slices.Sort(lost)
	return lost
}

// refuseOnce tells a producer what it has to write again: operations that had ended well
// and were not sealed. No operation of its own is left that could say so. The caller
// holds mutex.
func (c *client) refuseOnce() *Error {
	text := fmt.Sprintf("the broker was restarted, and what was written and not sealed is gone: %s; write it again", strings.Join(c.lost[:min(len(c.lost), 8)], ", "))
	c.lost = nil
	tell(slog.LevelWarn, logCall, "stage %s: %s", c.options.Stage, text)
	return fail(protocol.StatusBrokerRestarted, "%s", text)
}
