package broker

import (
	"context"
	"encoding/base64"
	"math"
	"slices"
	"strconv"

	"callboard/control"
	"callboard/snapshot"
	"callboard/tensor"
)

// readNow answers the request read: the newest sealed rows of an attribute.
func (b *Broker) readNow(ctx context.Context, q control.ReadRequest) (answer *control.ReadResponse, failure *control.RPCError) {
	if q.Encoding == "" {
		q.Encoding = control.EncodingJSON
	}
	if q.Encoding != control.EncodingJSON && q.Encoding != control.EncodingBase64 {
		return nil, refuse(control.CodeBadRequest, "encoding is %q: expected %q or %q", q.Encoding, control.EncodingJSON, control.EncodingBase64)
	}
	if err := snapshot.CheckName(q.Attribute); err != nil {
		return nil, rpcError(err)
	}
	ids, err := b.findPaths(q.Prims)
	if err != nil {
		return nil, rpcError(err)
	}
	failure = b.look(ctx, func(r *looking) error {
		columns, err := r.Columns(q.Attribute)
		if err != nil {
			return err
		}
		if len(columns) == 0 {
			return refuse(control.CodeNotFound, "attribute %q does not exist", q.Attribute)
		}
		floors, err := r.pin.Floors()
		if err != nil {
			return err
		}
		answer = &control.ReadResponse{Source: b.identity().Source(r.pin.Epoch()), Attribute: q.Attribute, Floor: floors.Of(columns[0].NameID),
			StampNS: floors.StampNs, Groups: []control.ReadGroup{}}
		reading := valueReading{looking: r, request: &q, ids: ids, limit: b.payload()}
		for _, c := range columns {
			if err := reading.add(answer, c); err != nil {
				return err
			}
		}
		return reading.missing()
	})
	if failure != nil {
		return nil, failure
	}
	return answer, nil
}

// valueReading collects the groups of an answer.
type valueReading struct {
	*looking
	request *control.ReadRequest
	ids     []uint64 // of request.Prims
	carried map[uint64]bool
	limit   int // bytes that an answer may have
	used    int
}

// add appends the group of one column, if it has rows of the prims.
func (r *valueReading) add(answer *control.ReadResponse, c *snapshot.Column) error {
	v, err := r.pin.Find(c)
	if err != nil || v.Column == nil || v.Rows == 0 {
		return err
	}
	if c.Schema.Kind == tensor.Array {
		return refuse(control.CodeNotServed, "attribute %q is of kind array: its rows are served from shared memory only (any client)", c.Name)
	}
	ids := r.ids
	if r.request.Prims == nil {
		all, err := r.Prims(&v)
		if err != nil {
			return err
		}
		ids = slices.DeleteFunc(all, func(id uint64) bool { return id == 0 })
	}
	rows, err := r.Rows(snapshot.NewPrimList(ids), &v)
	if err != nil || len(rows.Rows) == 0 {
		return err
	}
	// Numbers take a byte at least; what is larger than that already is not made first.
	if raw := uint64(len(rows.Rows)) * c.RowBytes; raw/2 > uint64(r.limit) {
		return r.tooLarge(raw, "at least ")
	}
	dtype, rowShape := c.Schema.DType, append([]uint64{}, c.Schema.RowShape...)
	g := control.ReadGroup{Column: c.Index, DType: control.DType{Code: dtype.Code, Bits: dtype.Bits, Lanes: dtype.Lanes, Name: dtype.String()},
		Kind: c.Schema.Kind.String(), RowShape: rowShape, Semantic: c.Schema.Semantic.String(), Device: control.Device{Type: int32(c.Schema.Device.Type), ID: int32(c.Schema.Device.ID)},
		Shape: append([]uint64{uint64(len(rows.Rows))}, rowShape...), Prims: []string{}}
	if dtype.Lanes > 1 {
		g.Shape = append(g.Shape, uint64(dtype.Lanes))
	}
	raw := make([]byte, 0, uint64(len(rows.Rows))*c.RowBytes)
	for i, row := range rows.Rows {
		if err := r.alive(); err != nil {
			return err
		}
		g.Ordinal = max(g.Ordinal, v.RowOrdinal(row))
		raw = append(raw, v.Data[uint64(row)*c.RowBytes:][:c.RowBytes]...)
		path, err := r.Text(rows.Prims[i])
		if err != nil {
			return err
		}
		g.Prims = append(g.Prims, path)
		r.used += len(path) + 3
		r.carry(rows.Prims[i])
	}
	size := 0
	if r.request.Encoding == control.EncodingBase64 {
		g.Data, size = raw, base64.StdEncoding.EncodedLen(len(raw))
	} else if g.Values, err = r.numbers(dtype, raw); err != nil {
		return err
	} else {
		size = len(g.Values)
	}
	if r.used += size; r.used > r.limit {
		return r.tooLarge(uint64(r.used), "")
	}
	answer.Groups = append(answer.Groups, g)
	return nil
}

func (r *valueReading) carry(id uint64) {
	if r.carried == nil {
		r.carried = map[uint64]bool{}
	}
	r.carried[id] = true
}

// missing refuses a request for prims that do not carry the attribute.
func (r *valueReading) missing() error {
	for i, id := range r.ids {
		if !r.carried[id] {
			return refuse(control.CodeNotFound, "prim %s has no sealed value of attribute %q", r.request.Prims[i], r.request.Attribute)
		}
	}
	return nil
}

func (r *valueReading) tooLarge(size uint64, more string) error {
	return refuse(control.CodeTooLarge, "the value of %q takes %s%d bytes in an answer, this NATS server takes %d: ask for fewer prims, or with encoding base64, or read it from shared memory (`callboard read`, or any client)",
		r.request.Attribute, more, size, r.limit+documentBytes)
}

// numbers writes elements as one flat JSON array.
func (r *valueReading) numbers(dtype tensor.DType, raw []byte) ([]byte, error) {
	width := int(dtype.Bits) / 8
	if width == 0 {
		return nil, refuse(control.CodeNotServed, "elements of %s are smaller than a byte: ask with encoding base64", dtype)
	}
	out := []byte{'['}
	for at := 0; at+width <= len(raw); at += width {
		if at > 0 {
			out = append(out, ',')
		}
		out = appendNumber(out, dtype, tensor.Scalar(dtype, raw[at:at+width]))
		if r.used+len(out) > r.limit {
			return nil, r.tooLarge(uint64(r.used+len(out)), "at least ")
		}
		if err := r.alive(); err != nil {
			return nil, err
		}
	}
	return append(out, ']'), nil
}

// appendNumber writes one number so that it reads back as the same one: 64-bit integers
// as decimal strings, what is not finite by name, complex numbers as a pair.
func appendNumber(out []byte, dtype tensor.DType, value any) []byte {
	switch value := value.(type) {
	case bool:
		return strconv.AppendBool(out, value)
	case int64:
		if dtype.Bits == 64 {
			return strconv.AppendQuote(out, strconv.FormatInt(value, 10))
		}
		return strconv.AppendInt(out, value, 10)
	case uint64:
		if dtype.Bits == 64 {
			return strconv.AppendQuote(out, strconv.FormatUint(value, 10))
		}
		return strconv.AppendUint(out, value, 10)
	case float64:
		return appendFloat(out, value, int(dtype.Bits))
	case complex128:
		out = appendFloat(append(out, '['), real(value), int(dtype.Bits)/2)
		return append(appendFloat(append(out, ','), imag(value), int(dtype.Bits)/2), ']')
	case string:
		return strconv.AppendQuote(out, value)
	}
	panic("broker: a scalar of no known kind")
}

func appendFloat(out []byte, value float64, bits int) []byte {
	switch {
	case math.IsNaN(value):
		return append(out, `"NaN"`...)
	case math.IsInf(value, 1):
		return append(out, `"Infinity"`...)
	case math.IsInf(value, -1):
		return append(out, `"-Infinity"`...)
	}
	return strconv.AppendFloat(out, value, 'g', -1, max(32, bits))
}
