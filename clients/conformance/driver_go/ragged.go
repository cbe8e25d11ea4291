package main

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	callboard "callboard/clients/go"
)

// ragged is memory with a row of its own length for each prim.
type ragged interface {
	Tensor(i int) (callboard.Tensor, error)
}

// raggedRows describes the rows of n prims: shapes and bytes, one after the other.
func raggedRows(v ragged, n int) (shape, data string, err error) {
	shapes, datas := make([]string, n), make([]string, n)
	for i := range n {
		t, err := v.Tensor(i)
		if err != nil {
			return "", "", err
		}
		size, err := t.Bytes()
		if err != nil {
			return "", "", err
		}
		shapes[i], datas[i] = join(t.Shape), hexOf(t.Data[:size])
	}
	return strings.Join(shapes, ";"), strings.Join(datas, ";"), nil
}

// fillRow puts bytes into one row of a group of kind array.
func fillRow(g mapped, c command) (*answer, error) {
	data, err := hex.DecodeString(c.opt["data"])
	if err != nil {
		return nil, err
	}
	t, err := g.Tensor(int(c.number("row")))
	if err != nil {
		return nil, err
	}
	if copy(t.Data[c.number("at"):], data) < len(data) {
		return nil, fmt.Errorf("%d bytes at %s do not fit into a row of %d", len(data), strconv.FormatUint(c.number("at"), 10), len(t.Data))
	}
	return &answer{}, nil
}
