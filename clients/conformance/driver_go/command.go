package main

import (
	"encoding/hex"
	"fmt"
	"net/url"
	"strconv"
	"strings"

	callboard "callboard/clients/go"
	"callboard/tensor"
)

// command is one line: a verb, words, and options key=value.
type command struct {
	verb string
	args []string
	opt  map[string]string
	more []command // of a batch: its entries
}

func parse(line string) command {
	sections := strings.Split(line, " / ")
	first := parseSection(sections[0])
	for _, s := range sections[1:] {
		first.more = append(first.more, parseSection("entry "+s))
	}
	return first
}

func parseSection(text string) command {
	c := command{opt: map[string]string{}}
	for i, word := range strings.Fields(text) {
		key, value, isOption := strings.Cut(word, "=")
		switch {
		case i == 0:
			c.verb = word
		case isOption:
			c.opt[key] = value
		default:
			plain, _ := url.PathUnescape(word) // "%" alone is wrong, and the empty text
			c.args = append(c.args, plain)
		}
	}
	return c
}

func (c command) has(key string) bool { _, ok := c.opt[key]; return ok }

func (c command) arg(i int) string {
	if i < len(c.args) {
		return c.args[i]
	}
	return ""
}

func (c command) number(key string) uint64 {
	n, _ := strconv.ParseUint(c.opt[key], 0, 64)
	return n
}

// list reads "1,2,3".
func list[T int64 | uint64 | uint32](text string) []T {
	out := []T{}
	for _, word := range strings.Split(text, ",") {
		if n, err := strconv.ParseInt(word, 0, 64); err == nil {
			out = append(out, T(n))
		} else if u, err := strconv.ParseUint(word, 0, 64); err == nil {
			out = append(out, T(u))
		}
	}
	return out
}

func dtypeOf(text string) (t callboard.DType) {
	_, _ = fmt.Sscanf(text, "%d:%d:%d", &t.Code, &t.Bits, &t.Lanes)
	return t
}

// values is the payload: one tensor, or one for each row.
func (c command) values() (any, error) {
	shapes, datas := strings.Split(c.opt["shape"], ";"), strings.Split(c.opt["data"], ";")
	types := strings.Split(c.opt["type"], ";")
	var tensors []callboard.Tensor
	for i := range datas {
		t := callboard.Tensor{DType: dtypeOf(types[min(i, len(types)-1)]), Device: tensor.CPU}
		var err error
		if t.Data, err = hex.DecodeString(datas[i]); err != nil {
			return nil, err
		}
		if t.Shape = []int64{}; shapes[i] != "-" {
			t.Shape = list[int64](shapes[i])
		}
		if c.has("strides") {
			t.Strides = list[int64](c.opt["strides"])
		}
		t.ByteOffset = c.number("offset")
		if c.has("device") {
			_, _ = fmt.Sscanf(c.opt["device"], "%d:%d", &t.Device.Type, &t.Device.ID)
			if t.Device.Type == tensor.DeviceCUDA {
				t.Data, t.Address = nil, 4096
			}
		}
		tensors = append(tensors, t)
	}
	if len(tensors) == 1 && !c.has("list") {
		return tensors[0], nil
	}
	return tensors, nil
}

// selection is nil where the line narrows nothing.
func (c command) selection() *callboard.Selection {
	if !c.has("count") && !c.has("map") && !c.has("mask") {
		return nil
	}
	s := &callboard.Selection{}
	if c.has("count") {
		s.Count = c.number("count")
		if c.opt["count"] == "all" {
			s.Count = callboard.AllPrims
		}
	}
	if c.has("map") {
		s.IndexMap = list[uint32](c.opt["map"])
	}
	if c.has("mask") {
		s.Mask = list[uint64](c.opt["mask"])
	}
	return s
}

func (c command) rowShape() []uint64 {
	if !c.has("row_shape") {
		return nil
	}
	return list[uint64](c.opt["row_shape"])
}

// join writes a list as one word.
func join[T any](values []T) string {
	texts := make([]string, len(values))
	for i, v := range values {
		texts[i] = fmt.Sprint(v)
	}
	return strings.Join(texts, ",")
}

// quote makes a text one word.
func quote(text string) string {
	return strings.NewReplacer("%", "%25", " ", "%20", ",", "%2C", ";", "%3B", "=", "%3D", "\n", "%0A").Replace(text)
}

func hexOf(b []byte) string { return hex.EncodeToString(b) }
