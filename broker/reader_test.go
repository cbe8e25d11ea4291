package broker

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/stretchr/testify/require"

	"callboard/control"
	"callboard/protocol"
)

// observing connects to the broker's NATS as an observer may.
func observing(t *testing.T, b *Broker) (*nats.Conn, control.Subjects) {
	t.Helper()
	c, err := control.Connect(b.nats.Info(), control.RoleObserver)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	subjects, err := control.NewSubjects(b.host, b.config.Stage)
	require.NoError(t, err)
	return c, subjects
}

func asking(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// refusal is the error that a request must end with.
func refusal(t *testing.T, c *nats.Conn, subject string, request any) *control.RPCError {
	t.Helper()
	var refused *control.RPCError
	err := control.Request(asking(t), c, subject, request, &struct{}{})
	require.True(t, errors.As(err, &refused), "%v", err)
	return refused
}

func schemaWith(code, bits uint8, lanes uint16) protocol.Schema {
	s := float32s
	s.DtypeCode, s.DtypeBits, s.DtypeLanes = code, bits, lanes
	return s
}

func (p *peer) writeSealed(ordinal uint64, query uint64, name string, schema protocol.Schema, rows int, data []byte) {
	p.t.Helper()
	p.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpWrite, Handle: query, Ordinal: ordinal, Flags: protocol.FlagSeal}, writeArguments(name, schema, uint64(rows), data))
}

// L5: an observer reads sealed values, each with what makes it readable; what waits for its seal is not shown (behaviour 120).
func TestReadOverNATS(t *testing.T) {
	b := startBroker(t, nil)
	p := attachPeer(t, b)
	c, subjects := observing(t, b)
	q := p.query("/World/a", "/World/b c", "/other")
	vectors := schemaWith(2, 32, 3)
	p.writeSealed(7, q, "pose", vectors, 3, floats(1, 2.5, float32(math.NaN()), 0.1, float32(math.Inf(1)), float32(math.Inf(-1)), 0, 7, 8))
	p.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpWrite, Handle: q, Ordinal: 9}, writeArguments("pose", vectors, 3, make([]byte, 36)))

	var r control.ReadResponse
	require.NoError(t, control.Request(asking(t), c, subjects.Read(), control.ReadRequest{Attribute: "pose"}, &r))
	require.EqualValues(t, 1, r.Epoch)
	require.Equal(t, b.incarnation, r.Broker)
	require.EqualValues(t, 7, r.Floor)
	require.NotZero(t, r.StampNS)
	require.Len(t, r.Groups, 1)
	g := r.Groups[0]
	require.Equal(t, control.DType{Code: 2, Bits: 32, Lanes: 3, Name: "float32x3"}, g.DType)
	require.Equal(t, []uint64{3, 3}, g.Shape, "lanes are the last axis")
	require.Empty(t, g.RowShape)
	require.Equal(t, "fixed", g.Kind)
	require.EqualValues(t, 7, g.Ordinal)
	require.Equal(t, []string{"/World/a", "/World/b c", "/other"}, g.Prims)
	require.Equal(t, `[1,2.5,"NaN",0.1,"Infinity","-Infinity",0,7,8]`, string(g.Values), "the shortest digits of the 32-bit numbers")

	// Some prims, in the order asked for, as bytes.
	r = control.ReadResponse{}
	require.NoError(t, control.Request(asking(t), c, subjects.Read(), control.ReadRequest{Attribute: "pose", Prims: []string{"/other", "/World/a"}, Encoding: "base64"}, &r))
	require.Equal(t, []string{"/other", "/World/a"}, r.Groups[0].Prims)
	require.Equal(t, floats(0, 7, 8, 1, 2.5, float32(math.NaN())), r.Groups[0].Data)
	require.Empty(t, r.Groups[0].Values)

	// 64-bit integers are text: readers that keep numbers as float64 do not spoil them.
	words := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, math.MaxUint64), 0), 5)
	p.writeSealed(10, q, "count", schemaWith(1, 64, 1), 3, words)
	r = control.ReadResponse{}
	require.NoError(t, control.Request(asking(t), c, subjects.Read(), control.ReadRequest{Attribute: "count"}, &r))
	require.JSONEq(t, `["18446744073709551615","0","5"]`, string(r.Groups[0].Values))
}

// Every element type is written as something that reads back as the same number.
func TestReadOverNATSOfEveryType(t *testing.T) {
	b := startBroker(t, nil)
	p := attachPeer(t, b)
	c, subjects := observing(t, b)
	q := p.query("/a")
	for i, one := range []struct {
		code, bits uint8
		raw        []byte
		want       string
	}{
		{0, 8, []byte{0x80}, `[-128]`},
		{0, 64, []byte{0, 0, 0, 0, 0, 0, 0, 0x80}, `["-9223372036854775808"]`},
		{1, 32, []byte{255, 255, 255, 255}, `[4294967295]`},
		{6, 8, []byte{1}, `[true]`},
		{2, 16, []byte{0x01, 0x7c}, `["NaN"]`},
		{2, 16, []byte{0xff, 0xfb}, `[-65504]`},
		{4, 16, []byte{0x80, 0xbf}, `[-1]`},
		{2, 64, binary.LittleEndian.AppendUint64(nil, math.Float64bits(0.1)), `[0.1]`},
		{5, 64, floats(1.5, float32(math.Inf(-1))), `[[1.5,"-Infinity"]]`},
	} {
		name := fmt.Sprintf("v%d", i)
		p.writeSealed(uint64(i+1), q, name, schemaWith(one.code, one.bits, 1), 1, one.raw)
		var r control.ReadResponse
		require.NoError(t, control.Request(asking(t), c, subjects.Read(), control.ReadRequest{Attribute: name}, &r), name)
		require.JSONEq(t, one.want, string(r.Groups[0].Values), name)
	}
}

// What does not fit NATS is refused with both sizes and a way out, before it is made.
func TestReadOverNATSNamesBothSizes(t *testing.T) {
	b := startBroker(t, nil)
	p := attachPeer(t, b)
	c, subjects := observing(t, b)
	q := p.query("/a")
	image := schemaWith(1, 8, 1)
	image.RowDimensions, image.RowShape = 1, [6]uint64{3 << 20}
	fill := func(ordinal uint64, name string, size uint64) {
		image.RowShape[0] = size
		done, _ := p.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpMap, Handle: q, Ordinal: ordinal}, mapArguments(name, image))
		p.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpUnmapAttribute, Handle: done.Handle, Flags: protocol.FlagSeal}, nil)
	}
	fill(1, "image", 3<<20)
	for _, encoding := range []string{"json", "base64"} {
		refused := refusal(t, c, subjects.Read(), control.ReadRequest{Attribute: "image", Encoding: encoding})
		require.Equal(t, control.CodeTooLarge, refused.Code)
		require.Contains(t, refused.Text, "3145728 bytes")
		require.Contains(t, refused.Text, fmt.Sprint(c.MaxPayload()))
		require.Contains(t, refused.Text, "callboard read")
	}
	fill(2, "medium", 600<<10) // fits as bytes, not as numbers
	refused := refusal(t, c, subjects.Read(), control.ReadRequest{Attribute: "medium"})
	require.Equal(t, control.CodeTooLarge, refused.Code)
	require.Contains(t, refused.Text, "base64")
	var r control.ReadResponse
	require.NoError(t, control.Request(asking(t), c, subjects.Read(), control.ReadRequest{Attribute: "medium", Encoding: "base64"}, &r))
	require.Len(t, r.Groups[0].Data, 600<<10)
}

func TestReadAndQueryOverNATSRefuse(t *testing.T) {
	b := startBroker(t, nil)
	p := attachPeer(t, b)
	c, subjects := observing(t, b)
	// Before anything is sealed there is nothing, which is no error.
	var none control.QueryResponse
	require.NoError(t, control.Request(asking(t), c, subjects.Query(), control.QueryRequest{}, &none))
	require.Zero(t, none.Count)
	require.Zero(t, none.Epoch)
	p.query("/b")
	p.writeSealed(1, p.query("/a"), "pose", float32s, 1, floats(1))
	for _, one := range []struct {
		subject, request, code, text string
	}{
		{subjects.Read(), `{"attribute":"mass"}`, "404", `attribute "mass" does not exist`},
		{subjects.Read(), `{"attribute":"pose","prims":["/b"]}`, "404", `prim /b has no sealed value of attribute "pose"`},
		{subjects.Read(), `{"attribute":"pose","prims":["/never"]}`, "404", `prim /never has no sealed value`},
		{subjects.Read(), `{"attribute":"pose","prims":["a"]}`, "400", "path"},
		{subjects.Read(), `{"attribute":"pose","encoding":"xml"}`, "400", `encoding is "xml"`},
		{subjects.Read(), `{"attribute":7}`, "400", "attribute"},
		{subjects.Read(), `{"attribut":"pose"}`, "400", "attribut"},
		{subjects.Read(), `{}`, "400", ""},
		{subjects.Read(), `{"attribute":"@floor"}`, "501", "reserved"},
		{subjects.Read(), "\x00\xff", "400", ""},
		{subjects.Read(), `{"attribute":"pose"}{`, "400", ""},
		{subjects.Query(), `{"limit":1001}`, "400", "limit 1001"},
		{subjects.Query(), `{"first":-1}`, "400", "first is -1"},
		{subjects.Query(), `{"has":[""]}`, "400", ""},
		{subjects.Query(), `{"has":"pose"}`, "400", "has"},
		{subjects.Query(), `[]`, "400", ""},
		{subjects.Query(), `{"where":[{"attribute":"pose","op":"like","values":["1"]}]}`, "400", `where[0]: operator is "like"`},
		{subjects.Query(), `{"where":[{"attribute":"pose","op":"lt","values":["heavy"]}]}`, "400", `"heavy" is not a number`},
		{subjects.Query(), `{"where":[{"attribute":"pose","op":"lt"}]}`, "400", "0 values"},
		{subjects.Query(), `{"where":[{"attribute":"pose","op":"contains","values":["x"]}]}`, "501", "CONTAINS"},
		{subjects.Query(), `{"where":[{"attribute":"@floor","op":"has"}]}`, "501", "reserved"},
		{subjects.Read(), `{"attribute":"pose","encoding":"text"}`, "400", "text is kind array of uint8"},
		{subjects.Query(), `{"paths":["` + strings.Repeat("a", 70<<10) + `"]}`, "413", ""},
	} {
		reply, err := c.Request(one.subject, []byte(one.request), patience)
		require.NoError(t, err, one.request)
		require.Equal(t, one.code, reply.Header.Get(micro.ErrorCodeHeader), "%.60s: %s", one.request, reply.Header.Get(micro.ErrorHeader))
		require.Contains(t, reply.Header.Get(micro.ErrorHeader), one.text, "%.60s", one.request)
		var body control.RPCError
		require.NoError(t, json.Unmarshal(reply.Data, &body))
	}
}

// Behaviour 232, 240: the prims that carry attributes, by prefix, by paths, page by page.
func TestQueryOverNATS(t *testing.T) {
	b := startBroker(t, nil)
	p := attachPeer(t, b)
	c, subjects := observing(t, b)
	paths := []string{}
	for i := range 25 {
		paths = append(paths, fmt.Sprintf("/World/r%02d", i))
	}
	q, half := p.query(append(append([]string{}, paths...), "/other")...), p.query(paths[:10]...)
	p.query("/named/only") // a path that carries nothing is no prim
	p.writeSealed(1, q, "pose", float32s, 26, make([]byte, 26*4))
	p.writeSealed(2, half, "mass", float32s, 10, make([]byte, 10*4))
	ask := func(q control.QueryRequest) (names []string, r control.QueryResponse) {
		require.NoError(t, control.Request(asking(t), c, subjects.Query(), q, &r))
		for _, prim := range r.Prims {
			require.NotZero(t, prim.ID)
			names = append(names, prim.Path)
		}
		return names, r
	}
	names, r := ask(control.QueryRequest{})
	require.EqualValues(t, 26, r.Count)
	require.EqualValues(t, 2, r.Epoch)
	require.Equal(t, append(append([]string{}, paths...), "/other"), names)
	names, _ = ask(control.QueryRequest{Has: []string{"pose", "mass"}})
	require.Equal(t, paths[:10], names)
	names, _ = ask(control.QueryRequest{Has: []string{"mass", "never"}})
	require.Empty(t, names)
	names, _ = ask(control.QueryRequest{Prefix: "/oth"})
	require.Equal(t, []string{"/other"}, names)
	names, _ = ask(control.QueryRequest{Paths: []string{"/other", "/nobody", "/named/only", "/World/r03"}})
	require.Equal(t, []string{"/other", "/World/r03"}, names, "in the order asked for, those that are there")
	names, _ = ask(control.QueryRequest{Where: []control.Where{{Attribute: "weight", Operator: "ge", Values: []string{"23.5"}}}})
	require.Empty(t, names, "nobody has written it")
	weights := make([]float32, 26)
	for i := range weights {
		weights[i] = float32(i)
	}
	p.writeSealed(3, q, "weight", float32s, 26, floats(weights...))
	p.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpWrite, Handle: q, Ordinal: 9}, writeArguments("weight", float32s, 26, make([]byte, 26*4)))
	where := func(attribute, operator string, values ...string) control.Where {
		return control.Where{Attribute: attribute, Operator: operator, Values: values}
	}
	names, r = ask(control.QueryRequest{Where: []control.Where{where("weight", "ge", "23.5")}})
	require.Equal(t, []string{paths[24], "/other"}, names, "sealed values alone")
	require.EqualValues(t, 3, r.Epoch)
	names, _ = ask(control.QueryRequest{Where: []control.Where{where("weight", "in", "3", "12", "25"), where("@path", "prefix", "/World/"), where("mass", "has")}})
	require.Equal(t, []string{paths[3]}, names)
	names, _ = ask(control.QueryRequest{Paths: []string{"/other", paths[2], paths[1]}, Where: []control.Where{where("weight", "lt", "2")}})
	require.Equal(t, []string{paths[1]}, names)
	var all []string
	for first := 0; first < 25; first += len(names) {
		names, r = ask(control.QueryRequest{Prefix: "/World/", First: first, Limit: 7})
		require.EqualValues(t, 25, r.Count)
		require.NotEmpty(t, names)
		all = append(all, names...)
	}
	require.Equal(t, paths, all)
}

// A page holds what NATS takes, however long the paths are.
func TestQueryOverNATSPagesByBytes(t *testing.T) {
	b := startBroker(t, nil)
	p := attachPeer(t, b)
	c, subjects := observing(t, b)
	const prims = 400
	for from := 0; from < prims; from += 10 {
		var paths []string
		for i := from; i < from+10; i++ {
			paths = append(paths, fmt.Sprintf("/%s%d", strings.Repeat("p", 4000), i))
		}
		p.writeSealed(uint64(from+1), p.query(paths...), "x", float32s, 10, make([]byte, 40))
	}
	seen := 0
	for seen < prims {
		var r control.QueryResponse
		require.NoError(t, control.Request(asking(t), c, subjects.Query(), control.QueryRequest{First: seen}, &r))
		require.EqualValues(t, prims, r.Count)
		require.NotEmpty(t, r.Prims)
		require.Less(t, len(r.Prims), prims, "1.6 MB of paths do not fit one answer")
		seen += len(r.Prims)
	}
}

// K2, V2: requests over NATS read beside a loop that seals as fast as it can, always one whole epoch, and hold nothing afterwards.
func TestReadOverNATSWhileSealing(t *testing.T) {
	b := startBroker(t, func(c *Config) { c.Retain = 1 })
	p := attachPeer(t, b)
	c, subjects := observing(t, b)
	q := p.query("/a", "/b", "/c", "/d")
	p.writeSealed(1, q, "x", float32s, 4, floats(1, 1, 1, 1))
	var stop atomic.Bool
	asked := make(chan error, 1)
	go func() {
		for n := 0; !stop.Load() || n < 50; n++ {
			var r control.ReadResponse
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			err := control.Request(ctx, c, subjects.Read(), control.ReadRequest{Attribute: "x"}, &r)
			cancel()
			if err != nil {
				asked <- err
				return
			}
			if v := fmt.Sprint(r.Floor); string(r.Groups[0].Values) != fmt.Sprintf("[%s,%s,%s,%s]", v, v, v, v) {
				asked <- fmt.Errorf("floor %s: %s", v, r.Groups[0].Values)
				return
			}
		}
		asked <- nil
	}()
	for ordinal := uint64(2); ordinal < 3000; ordinal++ {
		v := float32(ordinal)
		p.writeSealed(ordinal, q, "x", float32s, 4, floats(v, v, v, v))
	}
	stop.Store(true)
	require.NoError(t, <-asked)
	var pins int
	require.True(t, b.do(func() { pins = len(b.reader.AppendPins(nil)) }))
	require.Zero(t, pins)
}

// Rows of kind array: a list for each, or a text (behaviour 29, 32).
func TestReadArraysOverNATS(t *testing.T) {
	b := startBroker(t, nil)
	p := attachPeer(t, b)
	c, subjects := observing(t, b)
	q := p.query("/a", "/b", "/c")
	array := func(code, bits uint8, lanes uint16) protocol.Schema {
		s := schemaWith(code, bits, lanes)
		s.Kind = protocol.KindArray
		return s
	}
	write := func(ordinal uint64, name string, schema protocol.Schema, rows ...[]byte) {
		var sizes []uint64
		var all []byte
		for _, row := range rows {
			sizes = append(sizes, uint64(len(row))/(uint64(schema.DtypeBits)/8*uint64(schema.DtypeLanes)))
			all = append(all, row...)
		}
		p.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpWrite, Handle: q, Ordinal: ordinal, Flags: protocol.FlagSeal}, raggedArguments(name, schema, sizes, all))
	}
	ask := func(request control.ReadRequest) control.ReadGroup {
		var r control.ReadResponse
		require.NoError(t, control.Request(asking(t), c, subjects.Read(), request, &r))
		require.Len(t, r.Groups, 1)
		return r.Groups[0]
	}
	write(1, "points", array(2, 32, 2), floats(1, 2, 3, 4), nil, floats(5, float32(math.NaN())))
	g := ask(control.ReadRequest{Attribute: "points"})
	require.Equal(t, "array", g.Kind)
	require.Equal(t, []uint64{3}, g.Shape)
	require.Equal(t, []uint64{2, 0, 1}, g.Sizes)
	require.JSONEq(t, `[[1,2,3,4],[],[5,"NaN"]]`, string(g.Values))
	g = ask(control.ReadRequest{Attribute: "points", Prims: []string{"/c", "/a"}, Encoding: control.EncodingBase64})
	require.Equal(t, []uint64{1, 2}, g.Sizes)
	require.Equal(t, floats(5, float32(math.NaN()), 1, 2, 3, 4), g.Data)

	write(2, "name", array(1, 8, 1), []byte("zwölf"), nil, []byte("x"))
	require.Equal(t, []string{"zwölf", "", "x"}, ask(control.ReadRequest{Attribute: "name", Encoding: control.EncodingText}).Texts)
	require.JSONEq(t, `[[120]]`, string(ask(control.ReadRequest{Attribute: "name", Prims: []string{"/c"}}).Values))
	write(3, "name", array(1, 8, 1), []byte{255}, nil, nil)
	refused := refusal(t, c, subjects.Read(), control.ReadRequest{Attribute: "name", Encoding: control.EncodingText})
	require.Equal(t, control.CodeBadRequest, refused.Code)
	require.Contains(t, refused.Text, "prim /a is no UTF-8")

	write(4, "large", array(1, 8, 1), make([]byte, 700<<10), nil, nil)
	refused = refusal(t, c, subjects.Read(), control.ReadRequest{Attribute: "large"})
	require.Equal(t, control.CodeTooLarge, refused.Code)
	require.Equal(t, []uint64{0, 0}, ask(control.ReadRequest{Attribute: "large", Prims: []string{"/b", "/c"}}).Sizes)
}

// raggedArguments are those of a write of kind array with rows of these sizes.
func raggedArguments(name string, schema protocol.Schema, sizes []uint64, payload []byte) []byte {
	out := writeArguments(name, schema, uint64(len(sizes)), payload)
	for len(out)%8 != 0 {
		out = append(out, 0)
	}
	var head protocol.WriteArguments
	w, _ := decode[protocol.WriteEntry](out, uint64(len(encode(&head))))
	w.ElementSizesOffsetBytes, w.ElementSizesCount = uint32(len(out)), uint32(len(sizes))
	copy(out[len(encode(&head)):], encode(&w))
	for _, size := range sizes {
		out = binary.LittleEndian.AppendUint64(out, size)
	}
	return out
}
