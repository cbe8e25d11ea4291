package broker

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"

	"callboard/control"
	"callboard/snapshot"
	"callboard/tensor"
)

// readNow answers the request read: the newest sealed rows of an attribute.
func (b *Broker) readNow(ctx context.Context, q control.ReadRequest) (answer *control.ReadResponse, failure *control.RPCError) {
	if q.Encoding == "" {
		q.Encoding = control.EncodingJSON
	}
	if q.Encoding != control.EncodingJSON && q.Encoding != control.EncodingText && q.Encoding != control.EncodingBase64 {
		return nil, refuse(control.CodeBadRequest, "encoding is %q: expected %q, %q or %q", q.Encoding, control.EncodingJSON, control.EncodingText, control.EncodingBase64)
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
		reading := valueReading{looking: r, broker: b, request: &q, ids: ids, limit: b.payload()}
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
	broker  *Broker
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
	if text := r.request.Encoding == control.EncodingText; text && (!c.IsArray() || c.Schema.DType != tensor.Uint8) {
		return refuse(control.CodeBadRequest, "attribute %q is %s: text is kind array of uint8; ask with encoding %q or %q", c.Name, c.Schema.String(), control.EncodingJSON, control.EncodingBase64)
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
	places, err := r.places(c, &v, rows)
	if err != nil {
		return err
	}
	dtype, rowShape := c.Schema.DType, append([]uint64{}, c.Schema.RowShape...)
	g := control.ReadGroup{Column: c.Index, DType: control.DType{Code: dtype.Code, Bits: dtype.Bits, Lanes: dtype.Lanes, Name: dtype.String()},
		Kind: c.Schema.Kind.String(), RowShape: rowShape, Semantic: c.Schema.Semantic.String(), Device: r.broker.deviceAt(c.Schema.Device.Type, c.Schema.Device.ID),
		Shape: append([]uint64{uint64(len(rows.Rows))}, rowShape...), Prims: []string{}}
	if dtype.Lanes > 1 {
		g.Shape = append(g.Shape, uint64(dtype.Lanes))
	}
	for i, row := range rows.Rows {
		if err := r.alive(); err != nil {
			return err
		}
		g.Ordinal = max(g.Ordinal, v.RowOrdinal(row))
		path, err := r.Text(rows.Prims[i])
		if err != nil {
			return err
		}
		g.Prims = append(g.Prims, path)
		r.used += len(path) + 3
		r.carry(rows.Prims[i])
	}
	if c.IsArray() {
		g.Shape = g.Shape[:1]
		for _, row := range places {
			g.Sizes = append(g.Sizes, uint64(len(row)/dtype.Size()))
		}
		r.used += 21 * len(places)
	}
	size, err := r.encode(&g, c, places)
	if err != nil {
		return err
	}
	if r.used += size; r.used > r.limit {
		return r.tooLarge(uint64(r.used), "")
	}
	answer.Groups = append(answer.Groups, g)
	return nil
}

// places are the bytes of the rows, in place. Numbers take a byte at least: what is
// larger than that already is refused before anything is made of it.
func (r *valueReading) places(c *snapshot.Column, v *snapshot.Version, rows *snapshot.RowMap) (places [][]byte, err error) {
	switch {
	case c.IsArray():
		if places, err = r.pin.Ragged(v, rows); err != nil {
			return nil, err
		}
	case v.DeviceNumber != 0:
		if size := c.RowBytes * uint64(len(rows.Rows)); size/2 > uint64(r.limit) {
			return nil, r.tooLarge(size, "at least ")
		}
		if places, err = r.broker.downloadRows(v, rows.Rows); err != nil {
			return nil, err
		}
	default:
		places = make([][]byte, len(rows.Rows))
		for i, row := range rows.Rows {
			places[i] = v.Data[uint64(row)*c.RowBytes:][:c.RowBytes]
		}
	}
	raw := uint64(0)
	for _, row := range places {
		raw += uint64(len(row))
	}
	if raw/2 > uint64(r.limit) {
		return nil, r.tooLarge(raw, "at least ")
	}
	return places, nil
}

// encode writes rows as the request wants them, and gives the size of that.
func (r *valueReading) encode(g *control.ReadGroup, c *snapshot.Column, rows [][]byte) (size int, err error) {
	switch {
	case r.request.Encoding == control.EncodingBase64:
		g.Data = slices.Concat(rows...)
		return base64.StdEncoding.EncodedLen(len(g.Data)), nil
	case r.request.Encoding == control.EncodingText:
		for i, row := range rows {
			if !utf8.Valid(row) {
				return 0, refuse(control.CodeBadRequest, "attribute %q: the row of prim %s is no UTF-8; ask with encoding %q or %q", c.Name, g.Prims[i], control.EncodingJSON, control.EncodingBase64)
			}
			text := string(row)
			quoted, err := json.Marshal(text)
			if err != nil {
				return 0, err
			}
			g.Texts, size = append(g.Texts, text), size+len(quoted)+1
		}
		return size, nil
	case !c.IsArray():
		g.Values, err = r.numbers(c.Schema.DType, slices.Concat(rows...))
		return len(g.Values), err
	}
	all := []byte{'['}
	for i, row := range rows {
		if i > 0 {
			all = append(all, ',')
		}
		one, err := r.numbers(c.Schema.DType, row)
		if err != nil {
			return 0, err
		}
		if all = append(all, one...); r.used+len(all) > r.limit {
			return 0, r.tooLarge(uint64(r.used+len(all)), "at least ")
		}
	}
	g.Values = append(all, ']')
	return len(g.Values), nil
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
