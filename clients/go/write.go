package callboard

import (
	"context"
	"fmt"

	"callboard/protocol"
)

// WriteOptions say where and how values are written.
type WriteOptions struct {
	// Ordinal is the application's key; it must lie above the attribute's write floor.
	Ordinal uint64
	// Semantic is what the numbers stand for; none is "no opinion".
	Semantic Semantic
	// RowShape declares the shape of one row of a new attribute; nil folds all that
	// trails dimension 0 into lanes. An attribute that exists keeps its own.
	RowShape []uint64
	// Selection narrows the write; nil writes the whole query.
	Selection *Selection
	// Insert refuses prims that exist, with ALREADY_EXISTS: a prim exists when it carries
	// any attribute, sealed or only written (behaviour 94, 96).
	Insert bool
	// IsArray writes kind array: a row of its own length for each prim. Several tensors
	// ([]Tensor, [][]float32, []string) are a row each; one tensor is packed: it is cut
	// into rows of equal length. Nothing folds: (n, 3) of float32 is 3 n elements.
	IsArray bool
	// Device is where a new attribute lies, and an existing one must; the zero Device is where
	// the attribute lies, and the host where there is none.
	Device Device
	// Sync is what a tensor in device memory waits for before it is copied: the work that
	// fills it.
	Sync CUDASync
}

// Write is one attribute of WriteAttributes.
type Write struct {
	Name   string
	Values any
	// Semantic, RowShape, Selection and IsArray are as in WriteOptions.
	Semantic  Semantic
	RowShape  []uint64
	Selection *Selection
	IsArray   bool
}

// WriteAttribute writes an attribute of the query's prims at an ordinal. values is a
// Tensor, a slice as FromSlice takes it, or a Group; they are copied before it
// returns, strided ones as well. Nobody sees them before a seal.
//
// A tensor in device memory (Tensor.Address, Device) is copied on its device, behind what
// o.Sync names, and must stay as it is until the Op is done. It must be compact, and of a
// device that the broker serves. Where the attribute lies is another matter (o.Device):
// the broker copies there.
//
// A payload above 64 KiB, and one in device memory, is copied straight into memory that the broker leases,
// which waits for the lease: only then does ctx matter.
//
// Errors at once (rule R6): INVALID_ARGUMENT, FLOOR_VIOLATION, NOT_SUPPORTED, QUEUE_FULL;
// what only the broker knows comes from the Op's Wait.
func (s *Stage) WriteAttribute(ctx context.Context, q *Query, name string, values any, o WriteOptions) (*Op, error) {
	c := s.client
	if err := c.enter(); err != nil {
		return nil, err
	}
	defer c.leave()
	p, query, err := c.prepare(q, &writeChecks{name: name, values: values, rowShape: o.RowShape, semantic: o.Semantic, selection: o.Selection, isArray: o.IsArray, insert: o.Insert, device: o.Device})
	if err == nil {
		err = c.checkOrdinal(name, o.Ordinal)
	}
	if err == nil && o.Sync != (CUDASync{}) && p.gpu == nil {
		err = fail(protocol.StatusInvalidArgument, "attribute %q: a CUDASync is given and the values are on the host: wait for your device before you write", name)
	}
	if err != nil {
		return nil, refused(err)
	}
	p.sync = o.Sync
	op, err := c.write(ctx, query, &p, o.Ordinal, 0)
	return op, refused(err)
}

// WriteAttributes writes several attributes of the query's prims in one operation,
// all or none (behaviour 198, 201). Everything is checked before anything is
// submitted. All payloads travel through the argument area.
func (s *Stage) WriteAttributes(ctx context.Context, q *Query, ordinal uint64, writes ...Write) (*Op, error) {
	if len(writes) == 1 {
		w := &writes[0]
		return s.WriteAttribute(ctx, q, w.Name, w.Values, WriteOptions{Ordinal: ordinal, Semantic: w.Semantic, RowShape: w.RowShape, Selection: w.Selection, IsArray: w.IsArray})
	}
	c := s.client
	if err := c.enter(); err != nil {
		return nil, err
	}
	defer c.leave()
	if len(writes) == 0 {
		return nil, refused(fail(protocol.StatusInvalidArgument, "no attribute is given to write"))
	}
	var query *queryHandle
	payloads := make([]payload, len(writes))
	seen := map[string]bool{}
	for i := range writes {
		w := &writes[i]
		var err error
		if payloads[i], query, err = c.prepare(q, &writeChecks{name: w.Name, values: w.Values, rowShape: w.RowShape, semantic: w.Semantic, selection: w.Selection, isArray: w.IsArray}); err == nil {
			err = c.checkOrdinal(w.Name, ordinal)
		}
		if err == nil && seen[w.Name] {
			err = fail(protocol.StatusInvalidArgument, "attribute %q is given twice in one write", w.Name)
		}
		if err == nil && payloads[i].gpu != nil {
			err = fail(protocol.StatusNotSupported, "attribute %q: the values lie on %s: one write of several attributes takes host memory; write it by itself", w.Name, payloads[i].tensor.Device)
		}
		if err != nil {
			return nil, refused(err)
		}
		seen[w.Name] = true
	}
	if err := c.settle(ctx); err != nil {
		return nil, refused(err)
	}
	op, err := c.submit(inlineWrite(query, payloads, ordinal, 0))
	return op, refused(err)
}

func (c *client) prepare(q *Query, w *writeChecks) (p payload, query *queryHandle, err error) {
	if query, err = q.use(c); err != nil {
		return p, nil, err
	}
	if err = c.mayWrite(); err != nil {
		return p, nil, err
	}
	p, err = c.check(q, w)
	return p, query, err
}

func (c *client) mayWrite() error {
	if c.identity.Flags&protocol.AttachReadOnly != 0 {
		return fail(protocol.StatusAccessDenied, "this client attached read-only: it may not write, map or seal")
	}
	return nil
}

// write submits one checked payload: through the arguments where it is small, else
// through a leased block. The operation returned is the last one.
func (c *client) write(ctx context.Context, query *queryHandle, p *payload, ordinal uint64, flags uint32) (*Op, error) {
	if err := c.settle(ctx); err != nil {
		return nil, err
	}
	if p.sizeBytes == 0 || p.gpu == nil && p.sizeBytes <= protocol.InlineBytesMax {
		return c.submit(inlineWrite(query, []payload{*p}, ordinal, flags))
	}
	m, err := c.openSession(ctx, mapRequest{query: query, name: p.name, schema: p.schema, ordinal: ordinal, flags: flags & protocol.FlagNextOrdinal, primMode: p.primMode, sizes: p.sessionSizes(), staging: p.staging})
	if err != nil {
		return nil, err
	}
	sync := CUDASync{}
	if p.gpu != nil {
		sync, err = p.copyOnDevice(m)
	} else {
		var dst []byte
		if dst, err = m.memory(0); err == nil {
			err = p.copyTo(dst)
		}
	}
	if err != nil {
		m.abort()
		return nil, err
	}
	op, err := m.unmapAttribute(p.count, p.mask, sync, flags)
	if err != nil {
		m.abort()
	}
	return op, err
}

// inlineWrite is OpWrite with all payloads in the arguments.
func inlineWrite(query *queryHandle, payloads []payload, ordinal uint64, flags uint32) request {
	entry := sizeOf[protocol.WriteEntry]()
	heads := sizeOf[protocol.WriteArguments]() + len(payloads)*entry
	size := heads
	for i := range payloads {
		p := &payloads[i]
		size = align8(size) + len(p.name)
		size = align8(size) + 8*len(p.mask) + 8*len(p.sizes)
		size = align8(size) + int(p.sizeBytes)
	}
	names := make([]string, len(payloads))
	for i := range payloads {
		names[i] = payloads[i].name
	}
	what := "writing " + payloads[0].String()
	if len(payloads) > 1 {
		what = fmt.Sprintf("writing %d attributes", len(payloads))
	}
	return request{what: what, opcode: protocol.OpWrite, flags: flags, query: query, ordinal: ordinal, size: size, names: names, fill: func(dst []byte) error {
		args := protocol.WriteArguments{EntryCount: uint32(len(payloads)), PrimMode: payloads[0].primMode}
		copy(dst, bytesOf(&args))
		at := heads
		for i := range payloads {
			p := &payloads[i]
			e := protocol.WriteEntry{Schema: p.schema, PayloadRows: p.rows, NameBytes: uint32(len(p.name)), Selection: protocol.Selection{Count: p.count, Sort: protocol.SelectRows}}
			at = align8(at)
			e.NameOffsetBytes = uint32(at)
			at += copy(dst[at:], p.name)
			at = align8(at)
			if p.mask != nil {
				e.Selection.Sort, e.Selection.WordsOffsetBytes, e.Selection.WordCount = protocol.SelectMask, uint32(at), uint32(len(p.mask))
				at += copy(dst[at:], bytesOfSlice(p.mask))
			}
			at = align8(at)
			if len(p.sizes) > 0 {
				e.ElementSizesOffsetBytes, e.ElementSizesCount = uint32(at), uint32(len(p.sizes))
				at += copy(dst[at:], bytesOfSlice(p.sizes))
			}
			e.Payload.OffsetBytes, e.Payload.LengthBytes = uint64(at), p.sizeBytes
			if err := p.copyTo(dst[at:]); err != nil {
				return err
			}
			at += int(p.sizeBytes)
			copy(dst[sizeOf[protocol.WriteArguments]()+i*entry:], bytesOf(&e))
		}
		return nil
	}}
}

func align8(n int) int { return (n + 7) &^ 7 }
