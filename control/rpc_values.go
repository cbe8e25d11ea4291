package control

import (
	"context"
	"encoding/json"
)

// QueryRequest asks which prims there are. All conditions must hold; without any, every prim that carries an attribute
// matches.
type QueryRequest struct {
	Paths  []string `json:"paths,omitempty"`  // only these, in this order
	Prefix string   `json:"prefix,omitempty"` // only paths that begin with it
	Has    []string `json:"has,omitempty"`    // only prims that carry all these attributes
	Where  []Where  `json:"where,omitempty"`  // only prims that satisfy all these
	First  int      `json:"first,omitempty"`  // skip so many of those that match
	Limit  int      `json:"limit,omitempty"`  // at most so many in the answer; 0: QueryPage
}

// Where is a condition on an attribute, or on "@path".
type Where struct {
	Attribute string   `json:"attribute"`
	Operator  string   `json:"op"` // has, in, contains, lt, le, gt, ge; of "@path" in and prefix
	Values    []string `json:"values,omitempty"`
}

// QueryPage is the most prims in one answer.
const QueryPage = 1000

// QueryResponse is the answer to query: what is sealed at its epoch.
type QueryResponse struct {
	Source
	Count uint64 `json:"count,string"` // prims that match, on all pages
	First uint64 `json:"first,string"` // position of the first in this answer
	Prims []Prim `json:"prims"`
}

// Prim is one prim. Its id is good for one generation of the stage.
type Prim struct {
	Path string `json:"path"`
	ID   uint64 `json:"id,string"`
}

// The encodings of values in a ReadResponse.
const (
	EncodingJSON   = "json"   // numbers
	EncodingText   = "text"   // of kind array of uint8: a text for each row
	EncodingBase64 = "base64" // the bytes as they lie in memory, little endian
)

// ReadRequest asks for the newest sealed value of an attribute.
type ReadRequest struct {
	Attribute string   `json:"attribute"`
	Prims     []string `json:"prims,omitempty"`    // of these, in this order; absent: of all that carry it
	Encoding  string   `json:"encoding,omitempty"` // json (default), text or base64
}

// ReadResponse is the answer to read.
type ReadResponse struct {
	Source
	Attribute string      `json:"attribute"`
	Floor     uint64      `json:"floor,string"`
	StampNS   uint64      `json:"stamp_ns,string"` // time of the seal that the epoch came from
	Groups    []ReadGroup `json:"groups"`          // one for each schema that the prims have; none before the first seal
}

// ReadGroup is the rows of one column. Values, Texts or Data is there, as the encoding says.
type ReadGroup struct {
	Column   uint32          `json:"column"`
	DType    DType           `json:"dtype"`
	Kind     string          `json:"kind"`
	RowShape []uint64        `json:"row_shape"`
	Semantic string          `json:"semantic"`
	Device   Device          `json:"device"`
	Ordinal  uint64          `json:"ordinal,string"` // the highest among the rows
	Shape    []uint64        `json:"shape"`          // of Values: prims, row shape, lanes if there are several; of kind array the prims alone
	Prims    []string        `json:"prims"`
	Sizes    []uint64        `json:"sizes,omitempty"`  // of kind array: the elements of each row
	Values   json.RawMessage `json:"values,omitempty"` // one flat array, row by row; of kind array one for each row
	Texts    []string        `json:"texts,omitempty"`  // one for each row
	Data     []byte          `json:"data,omitempty"`   // base64, row by row
}

const (
	querySchema = `{"type":"object","additionalProperties":false,"properties":{"paths":{"type":"array","items":{"type":"string"}},` +
		`"prefix":{"type":"string"},"has":{"type":"array","items":{"type":"string"}},` +
		`"where":{"type":"array","items":{"type":"object","additionalProperties":false,"required":["attribute","op"],"properties":{"attribute":{"type":"string"},` +
		`"op":{"enum":["has","in","contains","prefix","lt","le","gt","ge"]},"values":{"type":"array","items":{"type":"string"}}}}},` +
		`"first":{"type":"integer","minimum":0},"limit":{"type":"integer","minimum":0}}}`
	readSchema = `{"type":"object","additionalProperties":false,"required":["attribute"],"properties":{"attribute":{"type":"string"},` +
		`"prims":{"type":"array","items":{"type":"string"}},"encoding":{"enum":["json","text","base64"]}}}`

	queryDoc = "the prims that match: paths, a prefix, attributes that they carry, conditions on their values"
	readDoc  = "the newest sealed value of an attribute, if it is small"
)

// QueryEndpoint is answered on the stage's own subject.
func QueryEndpoint(answer func(context.Context, QueryRequest) (*QueryResponse, *RPCError)) Endpoint {
	return Endpoint{Name: "query", Doc: queryDoc, Schema: querySchema, Handler: Typed(answer)}
}

// ReadEndpoint is answered on the stage's own subject.
func ReadEndpoint(answer func(context.Context, ReadRequest) (*ReadResponse, *RPCError)) Endpoint {
	return Endpoint{Name: "read", Doc: readDoc, Schema: readSchema, Handler: Typed(answer)}
}
