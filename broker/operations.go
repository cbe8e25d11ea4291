package broker

import (
	"fmt"
	"unicode/utf8"

	"callboard/protocol"
	"callboard/snapshot"
	"callboard/tensor"
)

// outcome is what a completion reports.
type outcome struct {
	snapshot.Outcome
	resultBytes uint32
	again       bool // the op goes on when its job has ended
}

// merge takes over what a finished job adds.
func (o *outcome) merge(got snapshot.Outcome) {
	if got.Handle != 0 {
		o.Handle = got.Handle
	}
	if got.Ordinal != 0 {
		o.Ordinal = got.Ordinal
	}
	if got.Count != 0 {
		o.Count = got.Count
	}
	if got.Value != 0 {
		o.Value = got.Value
	}
	o.Epoch = max(o.Epoch, got.Epoch)
	o.Flags |= got.Flags
}

// execute runs one op. ErrRetry: nothing happened, try again later. A job: the op
// completes when the job is done.
func (b *Broker) execute(c *client, e *protocol.SubmissionEntry) (out outcome, job *snapshot.Job, err error) {
	if c.arguments, err = c.server.CopyArguments(c.arguments, e.ArgumentOffsetBytes, e.ArgumentBytes); err != nil {
		panic("broker: the arguments of a checked entry are gone: " + err.Error())
	}
	switch e.Opcode {
	case protocol.OpNop:
		return out, nil, nil
	case protocol.OpQueryPaths:
		out, err = b.queryPaths(c, e)
	case protocol.OpQueryFilter:
		return b.queryFilter(c, e)
	case protocol.OpQueryPrims:
		out, err = b.queryPage(c, e, (*snapshot.Query).Prims)
	case protocol.OpQueryAttributes:
		out, err = b.queryPage(c, e, (*snapshot.Query).Attributes)
	case protocol.OpQueryRelease:
		if _, err = c.query(e.Handle); err == nil {
			delete(c.queries, e.Handle)
		}
	case protocol.OpIntern:
		out, err = b.intern(c, e)
	case protocol.OpWrite:
		return b.write(c, e)
	case protocol.OpMap:
		return b.mapAttribute(c, e)
	case protocol.OpListGroups:
		out, err = b.listGroups(c, e)
	case protocol.OpClaimGroup:
		return b.claimGroup(c, e)
	case protocol.OpUnmapGroup:
		return b.unmapGroup(c, e)
	case protocol.OpUnmapAttribute:
		return b.unmapAttribute(c, e)
	case protocol.OpSeal:
		out.Outcome, job, err = b.seal(c, e)
	case protocol.OpDelete:
		out.Outcome, err = b.delete(c, e)
	case protocol.OpDeclare:
		err = b.declare(c)
	case protocol.OpPin:
		out, err = b.pin(c)
	case protocol.OpMirror:
		return b.mirror(c, e)
	case protocol.OpArenaClosed:
		b.closedArena(c, e.Value)
	case protocol.OpSessionsClosed:
		b.memory.ReleaseQuarantine(c.arena) // nobody writes into what was leased before the restart (rule B1)
	default:
		err = protocol.Errorf(protocol.StatusNotSupported, "operation %d is not part of this version", e.Opcode)
	}
	return out, job, err
}

// writer refuses clients that attached read-only.
func (c *client) writer() error {
	if c.flags&protocol.AttachReadOnly != 0 {
		return protocol.Errorf(protocol.StatusAccessDenied, "this client attached read-only: it may not write, map, delete or seal")
	}
	return nil
}

func (c *client) query(handle uint64) (*snapshot.Query, error) {
	q := c.queries[handle]
	if q == nil {
		return nil, protocol.Errorf(protocol.StatusInvalidHandle, "query %d is unknown or was released", handle)
	}
	return q, nil
}

// strings reads a StringList at the start of a private copy.
func stringList(b []byte) ([]string, error) {
	list, ok := decode[protocol.StringList](b, 0)
	if !ok || uint64(list.TotalBytes) > uint64(len(b)) {
		return nil, protocol.Errorf(protocol.StatusInvalidArgument, "string list says %d bytes: the arguments have %d", list.TotalBytes, len(b))
	}
	b = b[:list.TotalBytes]
	if uint64(list.Count) > uint64(len(b))/4 {
		return nil, protocol.Errorf(protocol.StatusInvalidArgument, "string list says %d strings: %d bytes cannot hold them", list.Count, len(b))
	}
	out := make([]string, 0, list.Count)
	at := uint64(8)
	for i := range list.Count {
		length, ok := decode[uint32](b, at)
		if !ok || uint64(length) > uint64(len(b))-at-4 {
			return nil, protocol.Errorf(protocol.StatusInvalidArgument, "string %d of the list says %d bytes: the list ends before", i, length)
		}
		at += 4
		out = append(out, string(b[at:at+uint64(length)]))
		at += (uint64(length) + 3) &^ 3
		at = min(at, uint64(len(b)))
	}
	return out, nil
}

// resultRoom is the op's room for results of need bytes.
func (c *client) resultRoom(e *protocol.SubmissionEntry, need int, what string) ([]byte, error) {
	room, err := c.server.Result(e.ResultOffsetBytes, e.ResultBytes)
	if err != nil || len(room) < need {
		return nil, protocol.Errorf(protocol.StatusInvalidArgument, "result room has %d bytes: %d are needed for %s", len(room), need, what)
	}
	return room, nil
}

// queryPaths makes or extends a query; the path ids go into the result room.
func (b *Broker) queryPaths(c *client, e *protocol.SubmissionEntry) (out outcome, err error) {
	paths, err := stringList(c.arguments)
	if err != nil {
		return out, err
	}
	room, err := c.resultRoom(e, 8*len(paths), "the path ids")
	if err != nil {
		return out, err
	}
	var q *snapshot.Query
	if e.Handle != 0 {
		if q, err = c.query(e.Handle); err != nil {
			return out, err
		}
	} else if err = c.roomForQuery(); err != nil {
		return out, err
	}
	ids := make([]uint64, len(paths))
	for i, path := range paths {
		if ids[i], err = b.store.Intern(protocol.StringPath, path); err != nil {
			return out, err
		}
	}
	if q == nil {
		q = snapshot.NewQuery()
		c.lastQuery++
		c.queries[c.lastQuery] = q
		e.Handle = c.lastQuery
	}
	for i, id := range ids {
		q.Add(id)
		putWord(room, i, id)
	}
	out.Handle, out.Count, out.resultBytes = e.Handle, q.Size(), uint32(8*len(ids))
	return out, nil
}

// queriesMax bounds the queries of one client.
const queriesMax = 65536

func (c *client) roomForQuery() error {
	if len(c.queries) >= queriesMax {
		return protocol.Errorf(protocol.StatusLimit, "this client has %d queries, the limit is %d; release some", len(c.queries), queriesMax)
	}
	return nil
}

func (b *Broker) intern(c *client, e *protocol.SubmissionEntry) (out outcome, err error) {
	texts, err := stringList(c.arguments)
	if err != nil {
		return out, err
	}
	if e.Value != protocol.StringToken && e.Value != protocol.StringPath {
		return out, protocol.Errorf(protocol.StatusInvalidArgument, "string sort is %d: expected %d (token) or %d (path)", e.Value, protocol.StringToken, protocol.StringPath)
	}
	room, err := c.resultRoom(e, 8*len(texts), "the ids")
	if err != nil {
		return out, err
	}
	for i, text := range texts {
		id, err := b.store.Intern(uint32(e.Value), text)
		if err != nil {
			return out, err
		}
		putWord(room, i, id)
	}
	out.Count, out.resultBytes = uint64(len(texts)), uint32(8*len(texts))
	return out, nil
}

// name reads an attribute's name out of the arguments.
func (c *client) attributeName(offset, length uint32) (string, error) {
	if uint64(offset)+uint64(length) > uint64(len(c.arguments)) {
		return "", protocol.Errorf(protocol.StatusInvalidArgument, "attribute name at %d of %d bytes: the arguments have %d", offset, length, len(c.arguments))
	}
	name := string(c.arguments[offset:][:length])
	if !utf8.ValidString(name) {
		return "", protocol.Errorf(protocol.StatusInvalidArgument, "attribute name %q is not UTF-8", clipText(name, 80))
	}
	return name, nil
}

// selection reads which elements a payload is for.
func (c *client) selection(s *protocol.Selection) (out tensor.Selection, err error) {
	out.Count = s.Count
	short := func(what string, size int) error {
		return protocol.Errorf(protocol.StatusInvalidArgument, "%s of %d words at %d needs %d bytes: the arguments have %d", what, s.WordCount, s.WordsOffsetBytes, size*int(s.WordCount), len(c.arguments))
	}
	ok := true
	switch s.Sort {
	case protocol.SelectRows:
	case protocol.SelectIndexMap:
		if out.IndexMap, ok = words[uint32](c.arguments, uint64(s.WordsOffsetBytes), uint64(s.WordCount)); !ok {
			return out, short("index map", 4)
		}
	case protocol.SelectMask:
		if out.Mask, ok = words[uint64](c.arguments, uint64(s.WordsOffsetBytes), uint64(s.WordCount)); !ok {
			return out, short("mask", 8)
		}
	default:
		return out, protocol.Errorf(protocol.StatusInvalidArgument, "selection sort is %d: expected %d (rows), %d (index map) or %d (mask)", s.Sort, protocol.SelectRows, protocol.SelectIndexMap, protocol.SelectMask)
	}
	return out, nil
}

// short says that arguments end before what they should hold.
func (c *client) short(what string, need int) error {
	return protocol.Errorf(protocol.StatusInvalidArgument, "arguments have %d bytes: %s needs %d", len(c.arguments), what, need)
}

// entriesMax bounds the attributes of one write.
const entriesMax = 4096

// write runs OpWrite. The rows lie in the arguments.
func (b *Broker) write(c *client, e *protocol.SubmissionEntry) (out outcome, job *snapshot.Job, err error) {
	if err := c.writer(); err != nil {
		return out, nil, err
	}
	args, ok := decode[protocol.WriteArguments](c.arguments, 0)
	if !ok {
		return out, nil, c.short("WriteArguments", len(encode(&args)))
	}
	if args.EntryCount == 0 || args.EntryCount > entriesMax {
		return out, nil, protocol.Errorf(protocol.StatusInvalidArgument, "a write of %d attributes: expected 1 to %d", args.EntryCount, entriesMax)
	}
	c.entries = c.entries[:0]
	for i := range uint64(args.EntryCount) {
		entry, err := c.entry(e, i, args.PrimMode)
		if err != nil {
			return out, nil, err
		}
		c.entries = append(c.entries, entry)
	}
	out.Outcome, job, err = b.store.WriteBatch(c.entries, e.Flags&protocol.FlagSeal != 0)
	return out, job, err
}

// entry reads attribute i of a write.
func (c *client) entry(e *protocol.SubmissionEntry, i uint64, mode uint32) (entry snapshot.Entry, err error) {
	at := uint64(len(encode(&protocol.WriteArguments{}))) + i*uint64(len(encode(&protocol.WriteEntry{})))
	w, ok := decode[protocol.WriteEntry](c.arguments, at)
	if !ok {
		return entry, c.short(fmt.Sprintf("WriteEntry %d", i), int(at)+len(encode(&w)))
	}
	t, err := c.target(e, &w.Schema, w.NameOffsetBytes, w.NameBytes, mode)
	if err != nil {
		return entry, err
	}
	if w.Payload.Segment != 0 {
		return entry, protocol.Errorf(protocol.StatusNotSupported, "attribute %q: payload lies in segment %d: map the attribute and unmap it to hand over a block", t.Name, w.Payload.Segment)
	}
	size := uint64(len(c.arguments))
	if w.Payload.OffsetBytes > size || w.Payload.LengthBytes > size-w.Payload.OffsetBytes {
		return entry, protocol.Errorf(protocol.StatusInvalidArgument, "attribute %q: payload of %d bytes at %d: the arguments have %d", t.Name, w.Payload.LengthBytes, w.Payload.OffsetBytes, size)
	}
	entry = snapshot.Entry{Target: *t, Bytes: c.arguments[w.Payload.OffsetBytes:][:w.Payload.LengthBytes], Rows: w.PayloadRows}
	if entry.Target.ElementSizes, err = c.elementSizes(w.ElementSizesOffsetBytes, w.ElementSizesCount); err == nil {
		entry.Selection, err = c.selection(&w.Selection)
	}
	return entry, err
}

// elementSizes reads the element counts of an array's rows; nil: none are given.
func (c *client) elementSizes(offset, count uint32) ([]uint64, error) {
	if count == 0 {
		return nil, nil
	}
	sizes, ok := words[uint64](c.arguments, uint64(offset), uint64(count))
	if !ok {
		return nil, c.short(fmt.Sprintf("element_sizes of %d entries at %d", count, offset), int(offset)+8*int(count))
	}
	return sizes, nil
}

// target reads what is written where.
func (c *client) target(e *protocol.SubmissionEntry, schema *protocol.Schema, nameOffset, nameBytes, mode uint32) (*snapshot.Target, error) {
	q, err := c.query(e.Handle)
	if err != nil {
		return nil, err
	}
	name, err := c.attributeName(nameOffset, nameBytes)
	if err != nil {
		return nil, err
	}
	if mode > protocol.ModeInsert {
		return nil, protocol.Errorf(protocol.StatusInvalidArgument, "prim mode is %d: expected %d (upsert) or %d (insert)", mode, protocol.ModeUpsert, protocol.ModeInsert)
	}
	return &snapshot.Target{Query: q, Name: name, Schema: *schema, Ordinal: e.Ordinal, Next: e.Flags&protocol.FlagNextOrdinal != 0, Insert: mode == protocol.ModeInsert}, nil
}

func (b *Broker) seal(c *client, e *protocol.SubmissionEntry) (out snapshot.Outcome, job *snapshot.Job, err error) {
	if err := c.writer(); err != nil {
		return out, nil, err
	}
	args, ok := decode[protocol.SealArguments](c.arguments, 0)
	if !ok && len(c.arguments) > 0 {
		return out, nil, c.short("SealArguments", len(encode(&args)))
	}
	var names []string
	if rest := c.arguments[min(len(c.arguments), len(encode(&args))):]; len(rest) > 0 {
		if names, err = stringList(rest); err != nil {
			return out, nil, err
		}
	}
	return b.store.Seal(e.Ordinal, e.Value, names, args.StampNs)
}

// delete runs OpDelete. Arguments that hold no name, or no list at all, mean the prims
// themselves.
func (b *Broker) delete(c *client, e *protocol.SubmissionEntry) (out snapshot.Outcome, err error) {
	if err := c.writer(); err != nil {
		return out, err
	}
	q, err := c.query(e.Handle)
	if err != nil {
		return out, err
	}
	if e.Flags != 0 {
		return out, protocol.Errorf(protocol.StatusInvalidArgument, "flags are %#x: a delete takes none; give its ordinal and seal it like a write", e.Flags)
	}
	var names []string
	if len(c.arguments) > 0 {
		if names, err = stringList(c.arguments); err != nil {
			return out, err
		}
	}
	return b.store.Delete(q, names, e.Ordinal)
}

func (b *Broker) declare(c *client) error {
	if err := c.writer(); err != nil {
		return err
	}
	args, ok := decode[protocol.DeclareArguments](c.arguments, 0)
	if !ok {
		return c.short("DeclareArguments", len(encode(&args)))
	}
	name, err := c.attributeName(args.NameOffsetBytes, args.NameBytes)
	if err != nil {
		return err
	}
	return b.store.Declare(name, args.Schema, args.Retain, args.Handoff)
}

// pin runs OpPin: the loop alone raises horizons, so its epoch needs no check (rule V2).
func (b *Broker) pin(c *client) (out outcome, err error) {
	slots, ok := words[uint32](c.arguments, 0, uint64(len(c.arguments)/4))
	if !ok || len(slots) == 0 {
		return out, protocol.Errorf(protocol.StatusInvalidArgument, "op PIN names no pin slot")
	}
	epoch := b.store.Epoch()
	if epoch == 0 {
		return out, protocol.Errorf(protocol.StatusNotFound, "nothing is sealed yet, so nothing can be pinned")
	}
	for _, slot := range slots {
		if _, err := c.pins.Store(slot, epoch); err != nil {
			return out, protocol.Errorf(protocol.StatusInvalidArgument, "%v", err)
		}
	}
	out.Epoch, out.Count = epoch, uint64(len(slots))
	return out, nil
}
