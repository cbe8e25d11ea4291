package conformance

import (
	"encoding/hex"
	"fmt"
	"net/url"
	"strconv"
	"strings"
)

// answer is what a driver said.
type answer struct {
	raw string
	// ok with fields and groups; else an error; else absent.
	ok     bool
	fields map[string]string
	groups []map[string]string

	code, where, text string
	absent            string
}

func parseAnswer(line string) (a answer, err error) {
	a.raw = line
	switch verb, rest, _ := strings.Cut(line, " "); verb {
	case "ok":
		a.ok = true
		for i, section := range strings.Split(" "+rest, " /") {
			fields := map[string]string{}
			for _, word := range strings.Fields(section) {
				key, value, _ := strings.Cut(word, "=")
				if value, err = url.PathUnescape(value); err != nil {
					return a, fmt.Errorf("a driver said %q: %w", line, err)
				}
				fields[key] = value
			}
			if i == 0 {
				a.fields = fields
			} else {
				a.groups = append(a.groups, fields)
			}
		}
	case "error":
		words := strings.SplitN(rest, " ", 3)
		if len(words) < 2 {
			return a, fmt.Errorf("a driver said %q", line)
		}
		a.code, a.where = words[0], words[1]
		if len(words) == 3 {
			a.text = words[2]
		}
	case "absent":
		a.absent = rest
	default:
		return a, fmt.Errorf("a driver said %q", line)
	}
	return a, nil
}

// short is the answer without long data, for messages.
func (a *answer) short() string {
	if len(a.raw) > 700 {
		return a.raw[:700] + "…"
	}
	return a.raw
}

// rows gives the bytes of a group's prims, in order, through its row map.
func rows(group map[string]string) (all [][]byte, err error) {
	if group["kind"] == "array" {
		for _, one := range strings.Split(group["data"], ";") {
			raw, err := hex.DecodeString(one)
			if err != nil {
				return nil, err
			}
			all = append(all, raw)
		}
		return all, nil
	}
	data, err := hex.DecodeString(group["data"])
	if err != nil {
		return nil, err
	}
	n, err := strconv.Atoi(group["rows"])
	if err != nil || n == 0 {
		return nil, err
	}
	if len(data)%n != 0 {
		return nil, fmt.Errorf("%d bytes in %d rows", len(data), n)
	}
	size, prims := len(data)/n, n
	if paths, said := group["paths"]; said {
		prims = 0
		if paths != "" {
			prims = strings.Count(paths, ",") + 1
		}
	}
	var through []string
	if m := group["map"]; m != "" && m != "-" {
		through = strings.Split(m, ",")
	}
	for i := range prims {
		row := i
		if through != nil {
			if i >= len(through) {
				return nil, fmt.Errorf("prim %d has no entry in the row map %s", i, group["map"])
			}
			if row, err = strconv.Atoi(through[i]); err != nil {
				return nil, err
			}
		}
		if row >= n {
			return nil, fmt.Errorf("prim %d has row %d of %d", i, row, n)
		}
		all = append(all, data[row*size:(row+1)*size])
	}
	return all, nil
}
