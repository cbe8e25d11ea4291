package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Codes of an RPCError; they follow HTTP, since micro clients show them.
const (
	CodeBadRequest = "400"
	CodeNotFound   = "404"
	CodeTooLarge   = "413"
	CodeBroken     = "500"
	CodeNotServed  = "501"
	CodeBusy       = "503"
	CodeTimeout    = "504"
	CodeNotThere   = "NOT_THERE" // made by Request: no broker on the subject
)

// RPCError is what a request is refused with: headers Nats-Service-Error-Code and Nats-Service-Error, and a JSON body.
type RPCError struct {
	Code string `json:"code"`
	Text string `json:"text"`
}

func (e *RPCError) Error() string { return e.Text + " (" + e.Code + ")" }

// Handler answers one request. It gets a JSON object no larger than MaxRequest, or nothing for an empty request, and runs
// on a goroutine of its own, never on the stage loop. It must return soon after ctx ends: by then the caller has got an error.
type Handler func(ctx context.Context, request []byte) (response any, err *RPCError)

// Typed makes a Handler of a function over a request struct. Unknown fields and wrong types are refused by name.
func Typed[Request, Response any](answer func(ctx context.Context, request Request) (Response, *RPCError)) Handler {
	return func(ctx context.Context, data []byte) (any, *RPCError) {
		var request Request
		if err := decodeRequest(data, &request); err != nil {
			return nil, err
		}
		response, err := answer(ctx, request)
		if err != nil {
			return nil, err
		}
		return response, nil
	}
}

// decodeRequest reads exactly one JSON object, or nothing at all, which asks for the defaults.
func decodeRequest(data []byte, into any) *RPCError {
	if len(bytes.TrimSpace(data)) == 0 {
		return nil
	}
	bad := func(format string, v ...any) *RPCError {
		return &RPCError{Code: CodeBadRequest, Text: fmt.Sprintf(format, v...)}
	}
	if first := bytes.TrimSpace(data)[0]; first != '{' {
		return bad("request begins with %q: expected a JSON object or nothing", first)
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	var wrongType *json.UnmarshalTypeError
	var syntax *json.SyntaxError
	switch err := decoder.Decode(into); {
	case errors.As(err, &wrongType):
		return bad("field %q is a JSON %s: expected %s", wrongType.Field, wrongType.Value, wrongType.Type)
	case errors.As(err, &syntax):
		return bad("request is not JSON: %v at byte %d", syntax, syntax.Offset)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return bad("request is not JSON: it ends after %d bytes inside the object", len(data))
	case err != nil: // an unknown field, above all
		return bad("request is not understood: %s", clip(err.Error()))
	}
	if _, err := decoder.Token(); err != io.EOF {
		return bad("request goes on after the JSON object at byte %d: expected one object", decoder.InputOffset())
	}
	return nil
}

// DescribeRequest asks for the stage's state. Without names all attributes are described.
//
// A NATS message holds about 1 MiB, so an answer has at most DescribePage attributes and clients. Who wants all asks again
// with the numbers to go on from, until what has come adds up to the counts.
type DescribeRequest struct {
	Attributes     []string `json:"attributes,omitempty"`
	FirstAttribute int      `json:"first_attribute,omitempty"` // skip so many of those asked for
	FirstClient    int      `json:"first_client,omitempty"`
}

// DescribePage is the most attributes, and the most clients, in one answer.
const DescribePage = 1000

// Description is the answer to describe: everything a subscriber needs to go on after a gap. Its epoch is the one
// that it describes: a commit event of that epoch or below is already in it.
type Description struct {
	Source
	BrokerVersion string                 `json:"broker_version"`
	Floor         uint64                 `json:"floor,string"`
	Attributes    []AttributeDescription `json:"attributes"`
	Clients       []ClientDescription    `json:"clients"`
	// How many there are; the lists may have a part of them only.
	AttributeCount int               `json:"attribute_count"`
	ClientCount    int               `json:"client_count"`
	Memory         MemoryDescription `json:"memory"`
	GPU            GPUDescription    `json:"gpu"`
	Limits         map[string]Number `json:"limits"`
	Counters       map[string]Number `json:"counters"`
}

// AttributeDescription is one column: one name has a column per schema (L6).
type AttributeDescription struct {
	Name         string   `json:"name"`
	Column       uint32   `json:"column"`
	DType        DType    `json:"dtype"`
	Kind         string   `json:"kind"`
	RowShape     []uint64 `json:"row_shape"`
	Semantic     string   `json:"semantic"`
	Device       Device   `json:"device"`
	Rows         uint64   `json:"rows,string"`
	Floor        uint64   `json:"floor,string"`
	Ordinals     []Span   `json:"ordinals"` // that can be read as of, oldest first
	Retain       uint32   `json:"retain"`
	Handoff      string   `json:"handoff"` // "adopt" or "copy"
	Bytes        uint64   `json:"bytes,string"`
	Adopted      uint64   `json:"adopted,string"`       // groups taken over without a copy
	Scattered    uint64   `json:"scattered,string"`     // groups copied
	AdoptRefused uint64   `json:"adopt_refused,string"` // groups that could have been adopted but for a live view (M1)
}

// Span is a range of ordinals, both ends included.
type Span struct {
	Lowest  uint64 `json:"lowest,string"`
	Highest uint64 `json:"highest,string"`
}

// ClientDescription is one attached client.
type ClientDescription struct {
	Incarnation uint64 `json:"incarnation,string"`
	Name        string `json:"name"`
	Language    string `json:"language"`
	PID         int32  `json:"pid"` // for display only
	Sessions    uint32 `json:"sessions"`
	PinnedBytes uint64 `json:"pinned_bytes,string"`
	Pins        uint32 `json:"pins"`
}

// MemoryDescription is the pool, in bytes. What is held and none of the others is staging.
type MemoryDescription struct {
	Limit       uint64 `json:"limit,string"`
	Held        uint64 `json:"held,string"`         // in segments
	Free        uint64 `json:"free,string"`         // of Held, in no block
	Spare       uint64 `json:"spare,string"`        // of Free, in whole segments that wait for the next client
	Live        uint64 `json:"live,string"`         // of Held, in the newest versions
	Retained    uint64 `json:"retained,string"`     // of Held, in versions kept for reads as of an ordinal
	Pinned      uint64 `json:"pinned,string"`       // of Held, in older versions that only readers keep
	Recycled    uint64 `json:"recycled,string"`     // of Held, kept for the next versions; given up when memory is short
	Waiting     uint64 `json:"waiting,string"`      // of Held, in what waits for its seal
	Mirrors     uint64 `json:"mirrors,string"`      // of Held, copies of versions that lie in other memory (rule C5)
	Open        uint64 `json:"open,string"`         // of Held, on a device: out of service and still open in clients (rule C6)
	Directory   uint64 `json:"directory,string"`    // of Held, for attributes, strings and layouts
	LargestFree uint64 `json:"largest_free,string"` // the largest block that fits without a new segment
}

// FloorRequest asks for write floors. Without names only the global floor and those that differ from it are given.
type FloorRequest struct {
	Attributes []string `json:"attributes,omitempty"`
}

// FloorResponse is the answer to floor.
type FloorResponse struct {
	Source
	Floor      uint64           `json:"floor,string"`
	Attributes []AttributeFloor `json:"attributes"`
}

// AttributeFloor is one name's write floor.
type AttributeFloor struct {
	Name  string `json:"name"`
	Floor uint64 `json:"floor,string"`
}

const (
	namesSchema    = `{"type":"object","additionalProperties":false,"properties":{"attributes":{"type":"array","items":{"type":"string"}}}}`
	describeSchema = `{"type":"object","additionalProperties":false,"properties":{"attributes":{"type":"array","items":{"type":"string"}},` +
		`"first_attribute":{"type":"integer","minimum":0},"first_client":{"type":"integer","minimum":0}}}`

	describeDoc = "state of the stage: epoch, floors, attributes, clients, memory, limits, counters"
	floorDoc    = "write floors: the global one and those of attributes"
)

// DescribeEndpoint is answered on the stage's own subject and on the one shared by all brokers.
func DescribeEndpoint(answer func(context.Context, DescribeRequest) (*Description, *RPCError)) Endpoint {
	return Endpoint{Name: "describe", Doc: describeDoc, Schema: describeSchema, Handler: Typed(answer)}
}

// FloorEndpoint is answered on the stage's own subject.
func FloorEndpoint(answer func(context.Context, FloorRequest) (*FloorResponse, *RPCError)) Endpoint {
	return Endpoint{Name: "floor", Doc: floorDoc, Schema: namesSchema, Handler: Typed(answer)}
}
