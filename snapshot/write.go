package snapshot

import (
	"strings"

	"callboard/fault"
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
	// ElementSizes are element counts of an array attribute's rows: of a write's payload,
	// none where it is packed; of a session's prims.
	ElementSizes []uint64
	// StagingType and StagingID say where a session is filled (rule C5), as in MapArguments:
	// 0, 0 where the attribute lies.
	StagingType, StagingID uint32
}

// Outcome is what an operation's completion reports.
type Outcome struct {
	Handle, Value, Ordinal, Epoch, Count uint64
	Flags                                uint32
}

// Job is a copy that is too long for the loop (rule L1). Run works anywhere, on
// memory that the job holds; then either Finish or, when Run met a memory fault,
// Abort ends the operation in the loop. Until then seals that cover the operation
// meet ErrRetry, as do operations on a session that is filled.
//
// With Device set it waits for devices, for as long as these take: it runs on a goroutine of
// its own. That a device fails is for Finish to tell: only that op fails then.
type Job struct {
	Bytes  uint64
	Device bool
	Run    func()
	Finish func() (Outcome, error)
	// Abort makes nothing of the operation visible.
	Abort func()
}

// schemaOf translates and checks a schema from the wire, but for whether its device is
// there. The bytes are those of a row in a version's block.
func schemaOf(w *protocol.Schema) (tensor.Schema, uint64, error) {
	t := tensor.Schema{Kind: tensor.Kind(w.Kind), DType: tensor.DType{Code: w.DtypeCode, Bits: w.DtypeBits, Lanes: w.DtypeLanes},
		Semantic: tensor.Semantic(w.Semantic), Device: tensor.Device{Type: w.DeviceType, ID: w.DeviceID}}
	if w.RowDimensions > protocol.RowDimensionsMax {
		return t, 0, protocol.Errorf(protocol.StatusInvalidArgument, "row_shape has %d dimensions: at most %d", w.RowDimensions, protocol.RowDimensionsMax)
	}
	if w.RowDimensions > 0 {
		t.RowShape = w.RowShape[:w.RowDimensions]
	}
	if t.Kind == tensor.Array && t.Device.Type == tensor.DeviceCUDA {
		return t, 0, protocol.Errorf(protocol.StatusNotSupported, "device is %s and kind is array: rows of lengths of their own are served from host memory only; use kind fixed, or device cpu", t.Device)
	}
	if err := t.Validate(); err != nil {
		return t, 0, err
	}
	if err := tensor.CheckSemantic(t.Kind, t.DType, t.Semantic); err != nil {
		return t, 0, err
	}
	rowBytes, err := t.RowBytes()
	if t.Kind == tensor.Array {
		rowBytes = refBytes
	}
	return t, rowBytes, err
}

// resolved is what a target means.
type resolved struct {
	attribute *attribute // nil: nobody wrote or declared the name
	column    *column    // nil: none has this schema; then it is made
	schema    protocol.Schema
	rowBytes  uint64
	device    *Device // where the rows lie; nil: on the host
	differs   error   // why the first column of the name does not have the schema
}

// use makes a column what the target means. An error: it lies on a device that is not
// there in this life of the broker, or not yet.
func (s *Store) use(r *resolved, c *column) (err error) {
	if c.onDevice() && c.device == nil {
		if c.device, err = s.device("device", c.schema.DeviceType, c.schema.DeviceID); err != nil {
			return named(c.name, err)
		}
	}
	r.column, r.schema, r.rowBytes, r.device = c, c.schema, c.rowBytes, c.device
	return nil
}

// placed gives a schema that names no device the one where the column lies.
func (c *column) placed(w protocol.Schema) protocol.Schema {
	if w.DeviceType == 0 && w.DeviceID == 0 {
		w.DeviceType, w.DeviceID = c.schema.DeviceType, c.schema.DeviceID
	}
	return w
}

// resolve checks a target against what exists. Whether its prims may have another
// schema than they have is checkSchema's to say.
func (s *Store) resolve(t *Target) (r resolved, err error) {
	if err := checkReserved(t.Name); err != nil {
		return r, err
	}
	r.attribute = s.byName[t.Name]
	if r.attribute == nil {
		if err := checkText(protocol.StringToken, t.Name); err != nil {
			return r, err
		}
		if t.Schema.Kind == 0 {
			return r, protocol.Errorf(protocol.StatusInvalidArgument, "attribute %q does not exist: an element type is needed to make it", t.Name)
		}
	} else {
		for _, c := range r.attribute.columns {
			if t.Schema == c.schema || t.Schema.DeviceType == 0 && c.placed(t.Schema) == c.schema || t.Schema.Kind == 0 && (len(r.attribute.columns) == 1 || c.carriesFirst(t.Query)) {
				return r, s.use(&r, c)
			}
		}
		if t.Schema.Kind == 0 {
			return r, protocol.Errorf(protocol.StatusInvalidArgument, "attribute %q has %d schemas and the first prim carries none of them: an element type is needed to choose", t.Name, len(r.attribute.columns))
		}
	}
	r.schema = t.Schema
	if r.attribute != nil {
		r.schema = r.attribute.columns[0].placed(t.Schema)
	} else if r.schema.DeviceType == 0 && r.schema.DeviceID == 0 {
		r.schema.DeviceType = tensor.DeviceCPU
	}
	given, rowBytes, err := schemaOf(&r.schema)
	if err != nil {
		return r, named(t.Name, err)
	}
	if r.attribute != nil {
		for _, c := range r.attribute.columns {
			stored, _, err := schemaOf(&c.schema)
			if err != nil {
				panic("snapshot: stored schema of " + c.name + " is not valid: " + err.Error())
			}
			asked := given
			if t.Schema.DeviceType == 0 {
				asked.Device = stored.Device
			}
			if err = stored.Accept(&asked); err == nil {
				return r, s.use(&r, c)
			}
			if r.differs == nil {
				r.differs = err
			}
		}
	}
	if r.device, err = s.device("device", r.schema.DeviceType, r.schema.DeviceID); err != nil {
		return r, named(t.Name, err)
	}
	if sp := s.memory.on(r.device); rowBytes > sp.LimitBytes {
		option := "--memory"
		if r.device != nil {
			option = "--gpu-memory"
		}
		return r, protocol.Errorf(protocol.StatusOutOfMemory, "attribute %q: one row has %d bytes, more than the %d that the whole stage may use on %s; raise `serve %s` or make the rows smaller", t.Name, rowBytes, sp.LimitBytes, r.device, option)
	}
	r.rowBytes = rowBytes
	clear(r.schema.RowShape[r.schema.RowDimensions:])
	return r, nil
}

// carriesFirst tells whether the first prim of q carries the column, sealed or not.
func (c *column) carriesFirst(q *Query) bool {
	if q == nil || len(q.prims) == 0 {
		return false
	}
	before, _ := c.standing(q.prims[0], protocol.Infinite)
	return before
}

// checkReserved refuses names that nobody may write, delete or seal.
func checkReserved(name string) error {
	if strings.HasPrefix(name, "@") {
		return protocol.Errorf(protocol.StatusNotSupported, "attribute %q: names that start with @ are reserved", name)
	}
	return nil
}

// named puts the attribute's name before an error's text.
func named(name string, err error) error {
	e := StatusError(err)
	return protocol.Errorf(e.Status, "attribute %q: %s", name, e.Text)
}

// admit decides the ordinal and whether it may be written now. ErrRetry: a seal that
// covers it is on its way.
func (s *Store) admit(name string, ordinal uint64, next bool) (uint64, error) {
	floor := s.floorOf(name)
	if next {
		if floor == protocol.Infinite {
			return 0, protocol.Errorf(protocol.StatusFloorViolation, "attribute %q: the write floor is %d, nothing comes after it", name, floor)
		}
		ordinal = floor + 1
		if fault.On(fault.NextOrdinalSkips) {
			ordinal++
		}
	}
	if ordinal <= floor && !(fault.On(fault.FloorOffByOne) && ordinal == floor) {
		return 0, protocol.Errorf(protocol.StatusFloorViolation, "attribute %q: ordinal %d is at or below the write floor %d; write above it", name, ordinal, floor)
	}
	for _, z := range s.active {
		if ordinal <= z.ordinal && z.coversName(name) {
			return 0, ErrRetry
		}
	}
	return ordinal, nil
}

// payload is rows that an operation brings.
type payload struct {
	bytes     []byte
	rows      uint64
	selection tensor.Selection
	staged    *Block       // the lease that bytes lie in; may be captured; nil: bytes are the arguments'
	adopt     bool         // the producer promises not to touch staged again
	session   *Session     // of several groups, that the rows are of; else nil
	wait      func() error // until it returns, the rows are not there; nil: they are
	holder    any          // who may write to staged until then, and perhaps for longer

	starts   []uint64 // of an array: where each row begins in bytes, and the last one ends; nil: packed
	rowBytes uint64   // of a packed array: of each row
}

// incoming is one attribute's write on its way to being accepted.
type incoming struct {
	resolved
	name     string
	payload  payload
	ordinal  uint64
	capture  *capture      // nil: nothing is addressed
	tail     *capture      // the one to join instead of standing alone
	instead  *capture      // the one that it makes pointless: earlier values of the same prims at the same ordinal
	deletes  []*remembered // accepted before, to stand in its column too
	meets    bool          // some of its prims are in remembered deletes
	source   *Block        // the lease that the payload is copied from
	from     []uint32      // of an array: the payload's row for each of the capture's prims; nil: row i
	standing bool          // the capture is among its column's already
	first    bool          // the column has no rows yet, and so many come that a Job makes their row map
	late     *Block        // the lease that a Job waits for work on; it goes back when that has arrived
	holder   any           // who has it else
	arrived  bool
	copied   uint64
	flags    uint32
}

// Entry is one attribute of a batch.
type Entry struct {
	Target    Target
	Bytes     []byte
	Rows      uint64
	Selection tensor.Selection
}

// Write captures rows for an attribute at an ordinal; with seal it is sealed in the
// same step. bytes and selection are the caller's again when Write returns, or, when
// it returns a Job, when that has ended.
func (s *Store) Write(t *Target, bytes []byte, rows uint64, selection tensor.Selection, seal bool) (Outcome, *Job, error) {
	out, job, err := s.put(t, payload{bytes: bytes, rows: rows, selection: selection}, seal)
	if err == nil {
		s.counters.Writes++
	}
	return out, job, err
}

func (s *Store) put(t *Target, p payload, seal bool) (Outcome, *Job, error) {
	s.incoming = append(s.incoming[:0], incoming{})
	if err := s.prepare(&s.incoming[0], t, p); err != nil {
		s.dropIncoming()
		return Outcome{}, nil, err
	}
	return s.accept(s.incoming[0].ordinal, seal)
}

// WriteBatch writes several attributes at one ordinal, all or none (behaviour
// 198–203): every entry is checked before anything is leased, and everything is
// leased before the first byte is copied. With seal they appear in one epoch. As
// for Write, bytes and selections are the caller's again when it returns or when
// the Job has ended.
func (s *Store) WriteBatch(entries []Entry, seal bool) (Outcome, *Job, error) {
	s.incoming = s.incoming[:0]
	for i := range entries {
		e := &entries[i]
		s.incoming = append(s.incoming, incoming{})
		err := s.prepare(&s.incoming[i], &e.Target, payload{bytes: e.Bytes, rows: e.Rows, selection: e.Selection})
		if err == nil && len(entries) > 1 {
			err = s.checkBatch(i, e)
		}
		if err != nil {
			if fault.On(fault.BatchInParts) && i > 0 {
				s.incoming = s.incoming[:i]
				_, _, _ = s.accept(s.incoming[0].ordinal, seal)
				return Outcome{}, nil, err
			}
			s.dropIncoming()
			return Outcome{}, nil, err
		}
	}
	out, job, err := s.accept(s.incoming[0].ordinal, seal)
	if err == nil {
		s.counters.Writes += uint64(len(entries))
	}
	return out, job, err
}

// checkBatch checks entry i against those before it. Two of one name would depend on
// their order, which has no meaning in a batch (behaviour 202).
func (s *Store) checkBatch(i int, e *Entry) error {
	if e.Target.Next {
		return protocol.Errorf(protocol.StatusInvalidArgument, "a write of several attributes needs an ordinal: the next one is each attribute's own")
	}
	for _, other := range s.incoming[:i] {
		if other.name == e.Target.Name {
			return protocol.Errorf(protocol.StatusInvalidArgument, "attribute %q is given twice in one write", other.name)
		}
	}
	return nil
}

// prepare checks a write; it takes nothing but an empty capture.
func (s *Store) prepare(w *incoming, t *Target, p payload) (err error) {
	w.name, w.payload = t.Name, p
	if w.resolved, err = s.resolve(t); err != nil {
		return err
	}
	if w.ordinal, err = s.admit(t.Name, t.Ordinal, t.Next); err != nil {
		return err
	}
	if t.Query.Size() == 0 && p.rows == 0 {
		return nil // behaviour 19
	}
	count, err := p.selection.Resolve(t.Query.Size(), p.rows)
	if err != nil {
		if w.column == nil { // a wrong number of rows may come from a wrong schema
			ask := capture{prims: t.Query.prims}
			if err := s.checkSchema(w.attribute, nil, w.differs, &ask, w.ordinal); err != nil {
				return err
			}
		}
		return named(t.Name, err)
	}
	if err := w.checkRagged(t.ElementSizes); err != nil {
		return err
	}
	if w.schema.Kind == protocol.KindFixed && uint64(len(p.bytes))/w.rowBytes < p.rows {
		return protocol.Errorf(protocol.StatusInvalidArgument, "attribute %q: payload has %d bytes: %d rows of %d bytes need more", t.Name, len(p.bytes), p.rows, w.rowBytes)
	}
	k := s.newCapture()
	k.ordinal, k.insert, k.session = w.ordinal, t.Insert, p.session
	k.aim(t.Query, &p.selection, count)
	if len(k.prims) == 0 { // a mask without a bit
		s.dropCapture(k)
		return nil
	}
	w.capture = k
	return s.checkPrims(w.resolved, k, t.Insert)
}

// checkPrims refuses what accepted operations and sealed data do not let these prims do.
func (s *Store) checkPrims(r resolved, k *capture, insert bool) error {
	if insert && !fault.On(fault.InsertIsUpsert) {
		if err := s.checkInsert(k, k.ordinal); err != nil {
			return err
		}
	}
	if len(s.inserts) > 0 {
		if err := s.checkEarlier(k, k.ordinal); err != nil {
			return err
		}
	}
	return s.checkSchema(r.attribute, r.column, r.differs, k, k.ordinal)
}
