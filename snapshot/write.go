package snapshot

import (
	"strings"

	"callboard/protocol"
	"callboard/tensor"
)

// Target names the attribute, the prims and the ordinal that rows are for.
type Target struct {
	Query   *Query
	Name    string
	Schema  protocol.Schema // Kind 0: the attribute's own
	Ordinal uint64
	Next    bool // take the floor + 1 instead of Ordinal (rule O8)
	Insert  bool
}

// Outcome is what an operation's completion reports.
type Outcome struct {
	Handle, Value, Ordinal, Epoch, Count uint64
	Flags                                uint32
}

// Job is a copy that is too long for the loop (rule L1). Run works anywhere, on
// memory that the job holds; then either Finish or, when Run met a memory fault,
// Abort ends the operation in the loop. Until then the column, or the session that
// is filled, is busy: other operations on it meet ErrRetry.
type Job struct {
	Bytes  uint64
	Run    func()
	Finish func() (Outcome, error)
	// Abort makes nothing visible, but rows that Run has written over rows of the same
	// unsealed ordinal stay written over: the client whose memory failed did that.
	Abort func()
}

// schemaOf translates and checks a schema from the wire.
func schemaOf(w *protocol.Schema) (tensor.Schema, uint64, error) {
	t := tensor.Schema{Kind: tensor.Kind(w.Kind), DType: tensor.DType{Code: w.DtypeCode, Bits: w.DtypeBits, Lanes: w.DtypeLanes},
		Semantic: tensor.Semantic(w.Semantic), Device: tensor.Device{Type: w.DeviceType, ID: w.DeviceID}}
	if w.RowDimensions > protocol.RowDimensionsMax {
		return t, 0, protocol.Errorf(protocol.StatusInvalidArgument, "row_shape has %d dimensions: at most %d", w.RowDimensions, protocol.RowDimensionsMax)
	}
	if w.RowDimensions > 0 {
		t.RowShape = w.RowShape[:w.RowDimensions]
	}
	if t.Kind == tensor.Array {
		return t, 0, protocol.Errorf(protocol.StatusNotSupported, "array attributes are not part of this version; use kind fixed with a row_shape")
	}
	if t.Device.Type == tensor.DeviceCUDA {
		return t, 0, protocol.Errorf(protocol.StatusNotSupported, "device is %s: this broker serves host memory only", t.Device)
	}
	if t.Device != tensor.CPU {
		return t, 0, protocol.Errorf(protocol.StatusInvalidArgument, "device is %s: expected cpu (DLPack device 1, 0)", t.Device)
	}
	if err := t.Validate(); err != nil {
		return t, 0, err
	}
	if err := tensor.CheckSemantic(t.Kind, t.DType, t.Semantic); err != nil {
		return t, 0, err
	}
	rowBytes, err := t.RowBytes()
	return t, rowBytes, err
}

// resolve checks a target against what exists. c is nil for an attribute that
// nobody wrote yet; then schema is the one to make it with.
func (s *Store) resolve(t *Target) (c *column, schema protocol.Schema, rowBytes uint64, err error) {
	if strings.HasPrefix(t.Name, "@") {
		return nil, schema, 0, protocol.Errorf(protocol.StatusNotSupported, "attribute %q: names that start with @ are reserved", t.Name)
	}
	if c = s.findColumn(t.Name); c == nil {
		if err := checkText(protocol.StringToken, t.Name); err != nil {
			return nil, schema, 0, err
		}
	}
	if t.Insert {
		return nil, schema, 0, protocol.Errorf(protocol.StatusNotSupported, "prim mode INSERT is not part of this version; use UPSERT")
	}
	if c != nil && (t.Schema.Kind == 0 || t.Schema == c.schema) {
		return c, c.schema, c.rowBytes, nil
	}
	if t.Schema.Kind == 0 {
		return nil, schema, 0, protocol.Errorf(protocol.StatusInvalidArgument, "attribute %q does not exist: an element type is needed to make it", t.Name)
	}
	given, rowBytes, err := schemaOf(&t.Schema)
	if err != nil {
		return nil, schema, 0, named(t.Name, err)
	}
	if c == nil {
		if limit := s.memory.LimitBytes; rowBytes > limit {
			return nil, schema, 0, protocol.Errorf(protocol.StatusOutOfMemory, "attribute %q: one row has %d bytes, more than the %d that the whole stage may use; raise `serve --memory` or make the rows smaller", t.Name, rowBytes, limit)
		}
		schema = t.Schema
		clear(schema.RowShape[schema.RowDimensions:])
		return nil, schema, rowBytes, nil
	}
	stored, _, err := schemaOf(&c.schema)
	if err != nil {
		panic("snapshot: stored schema of " + c.name + " is not valid: " + err.Error())
	}
	if err := stored.Accept(&given); err != nil {
		return nil, schema, 0, named(t.Name, err)
	}
	return c, c.schema, c.rowBytes, nil
}

// named puts the attribute's name before an error's text.
func named(name string, err error) error {
	e := StatusError(err)
	return protocol.Errorf(e.Status, "attribute %q: %s", name, e.Text)
}

// admit decides the ordinal and whether it may be written now.
func (s *Store) admit(t *Target, c *column) (ordinal uint64, err error) {
	floor := s.floorOf(t.Name)
	ordinal = t.Ordinal
	if t.Next {
		if floor == protocol.Infinite {
			return 0, protocol.Errorf(protocol.StatusFloorViolation, "attribute %q: the write floor is %d, nothing comes after it", t.Name, floor)
		}
		ordinal = floor + 1
	}
	if ordinal <= floor {
		return 0, protocol.Errorf(protocol.StatusFloorViolation, "attribute %q: ordinal %d is at or below the write floor %d; write above it", t.Name, ordinal, floor)
	}
	if c == nil {
		return ordinal, nil
	}
	if c.busy {
		return 0, ErrRetry // an ordinal that differs is refused when the copy has ended
	}
	if c.building != nil && c.building.ordinal != ordinal {
		return 0, protocol.Errorf(protocol.StatusQueueFull, "attribute %q: ordinal %d is not sealed yet, so ordinal %d must wait; seal %d first", t.Name, c.building.ordinal, ordinal, c.building.ordinal)
	}
	return ordinal, nil
}

// payload is rows that an operation brings.
type payload struct {
	bytes     []byte
	rows      uint64
	selection tensor.Selection
	staged    *Block // the lease that bytes lie in; may be adopted; nil: bytes are the arguments'
	adopt     bool   // the producer promises not to touch staged again
}

// Write puts rows into the building version of an attribute. bytes and selection
// are the caller's again when Write returns, or, when it returns a Job, when that
// has ended.
func (s *Store) Write(t *Target, bytes []byte, rows uint64, selection tensor.Selection, seal bool) (Outcome, *Job, error) {
	out, job, err := s.put(t, payload{bytes: bytes, rows: rows, selection: selection}, seal)
	if err == nil {
		s.counters.Writes++
	}
	return out, job, err
}

// put checks everything, then leases everything, then copies: an error or ErrRetry
// has changed nothing that anybody can see.
func (s *Store) put(t *Target, p payload, seal bool) (Outcome, *Job, error) {
	w, err := s.prepare(t, p, seal)
	if err != nil {
		return Outcome{}, nil, err
	}
	if w.plan.total == 0 {
		return s.putNothing(t, w.ordinal, seal)
	}
	if err := w.lease(); err != nil {
		w.drop()
		return Outcome{}, nil, err
	}
	if w.copied > s.config.CopyInlineBytes {
		return Outcome{}, w.job(), nil
	}
	w.copyNow()
	return w.commit(), nil, nil
}

// prepare checks a write and plans its rows; it takes nothing. A plan of no rows at
// all (behaviour 19, or a mask without a bit) has nothing to lease either.
func (s *Store) prepare(t *Target, p payload, seal bool) (w change, err error) {
	w = change{store: s, name: t.Name, payload: p, seal: seal}
	if w.column, w.schema, w.rowBytes, err = s.resolve(t); err != nil {
		return w, err
	}
	if w.ordinal, err = s.admit(t, w.column); err != nil {
		return w, err
	}
	if t.Query.Size() == 0 && p.rows == 0 {
		return w, nil
	}
	w.choice = selected{Selection: p.selection}
	if w.choice.count, err = p.selection.Resolve(t.Query.Size(), p.rows); err != nil {
		return w, named(t.Name, err)
	}
	if w.rowBytes != 0 && uint64(len(p.bytes))/w.rowBytes < p.rows {
		return w, protocol.Errorf(protocol.StatusInvalidArgument, "attribute %q: payload has %d bytes: %d rows of %d bytes need more", t.Name, len(p.bytes), p.rows, w.rowBytes)
	}
	var from *layout
	if w.column != nil {
		from = w.column.layout
	}
	w.plan = s.planRows(from, t.Query, &w.choice)
	w.whole = w.plan.dense && w.choice.whole(t.Query)
	return w, nil
}

// putNothing is a write of no rows; its seal is a seal all the same.
func (s *Store) putNothing(t *Target, ordinal uint64, seal bool) (Outcome, *Job, error) {
	if seal {
		out, err := s.Seal(ordinal, protocol.ScopeInclude, []string{t.Name}, 0)
		return out, nil, err
	}
	return Outcome{Ordinal: ordinal, Epoch: s.epoch}, nil, nil
}
