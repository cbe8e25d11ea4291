package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"callboard/control"
)

// newTable is the look of every table: no frame, so that columns can be cut and copied.
func newTable(out io.Writer, header ...any) table.Writer {
	t := table.NewWriter()
	t.SetOutputMirror(out)
	style := table.StyleLight
	style.Options = table.Options{SeparateHeader: false}
	style.Box.PaddingLeft, style.Box.PaddingRight = "", "  "
	style.Format.Header = text.FormatUpper
	t.SetStyle(style)
	t.SuppressTrailingSpaces()
	if len(header) > 0 {
		t.AppendHeader(table.Row(header))
	}
	return t
}

// rightAligned columns hold numbers; they are counted from 1.
func rightAligned(t table.Writer, columns ...int) {
	var configs []table.ColumnConfig
	for _, n := range columns {
		configs = append(configs, table.ColumnConfig{Number: n, Align: text.AlignRight, AlignHeader: text.AlignRight})
	}
	t.SetColumnConfigs(configs)
}

func printJSON(out io.Writer, value any) error {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}

var sizeUnits = []struct {
	name  string
	bytes uint64
}{
	{"", 1}, {"b", 1},
	{"k", 1 << 10}, {"kb", 1000}, {"kib", 1 << 10},
	{"m", 1 << 20}, {"mb", 1000 * 1000}, {"mib", 1 << 20},
	{"g", 1 << 30}, {"gb", 1000 * 1000 * 1000}, {"gib", 1 << 30},
	{"t", 1 << 40}, {"tb", 1000 * 1000 * 1000 * 1000}, {"tib", 1 << 40},
}

// parseSize reads 4096, 512MiB, 1.5G or 2gb. A single letter is a power of 1024, as shells and containers have it.
func parseSize(s string) (uint64, error) {
	bad := func(why string) (uint64, error) {
		return 0, fmt.Errorf("size %q %s: expected a number of bytes, or one with a unit like 512MiB, 2GiB, 1.5G or 100MB", s, why)
	}
	digits := strings.TrimRightFunc(s, func(r rune) bool { return (r < '0' || r > '9') && r != '.' })
	unit := strings.ToLower(strings.TrimSpace(s[len(digits):]))
	if digits == "" || strings.TrimLeft(digits, "0123456789.") != "" {
		return bad("is no number")
	}
	for _, u := range sizeUnits {
		if u.name != unit {
			continue
		}
		if whole, err := strconv.ParseUint(digits, 10, 64); err == nil {
			if whole > math.MaxUint64/u.bytes {
				return bad("does not fit into 64 bits")
			}
			return whole * u.bytes, nil
		}
		number, err := strconv.ParseFloat(digits, 64)
		if err != nil || number*float64(u.bytes) >= math.MaxInt64 {
			return bad("is no number that fits")
		}
		return uint64(number * float64(u.bytes)), nil
	}
	return bad(fmt.Sprintf("has the unknown unit %q", unit))
}

// sizeValue is a size on the command line; 0 stands for the default.
type sizeValue uint64

func (s *sizeValue) String() string {
	if *s == 0 {
		return ""
	}
	return formatSize(uint64(*s))
}

func (s *sizeValue) Set(text string) error {
	bytes, err := parseSize(text)
	if err == nil && bytes == 0 {
		err = fmt.Errorf("size %q is nothing: expected at least 1 byte", text)
	}
	*s = sizeValue(bytes)
	return err
}

func (s *sizeValue) Type() string { return "SIZE" }

// formatSize writes a size for people, with three digits at least.
func formatSize(bytes uint64) string {
	if bytes < 1<<10 {
		return fmt.Sprintf("%d B", bytes)
	}
	value, units := float64(bytes), "KMGTPE"
	for i := range units {
		value /= 1024
		if value < 1024 || i == len(units)-1 {
			decimals := 0
			if value < 100 && value != math.Trunc(value) {
				decimals = 1
			}
			return fmt.Sprintf("%.*f %ciB", decimals, value, units[i])
		}
	}
	panic("unreachable")
}

func formatShape(shape []uint64) string {
	parts := make([]string, len(shape))
	for i, extent := range shape {
		parts[i] = strconv.FormatUint(extent, 10)
	}
	if len(parts) == 0 {
		return "-"
	}
	return strings.Join(parts, "×")
}

// formatDevice names a device as clients do.
func formatDevice(d control.Device) string {
	switch d.Type {
	case 0, 1:
		return "cpu"
	case 2:
		return fmt.Sprintf("cuda:%d", d.ID)
	}
	return fmt.Sprintf("%d:%d", d.Type, d.ID)
}

// formatSpans merges ordinals that follow one another: 7–10.
func formatSpans(spans []control.Span) string {
	var parts []string
	for i := 0; i < len(spans); {
		lowest, highest := spans[i].Lowest, spans[i].Highest
		for i++; i < len(spans) && spans[i].Lowest <= highest+1; i++ {
			highest = max(highest, spans[i].Highest)
		}
		if lowest == highest {
			parts = append(parts, strconv.FormatUint(lowest, 10))
		} else {
			parts = append(parts, fmt.Sprintf("%d–%d", lowest, highest))
		}
	}
	if len(parts) == 0 {
		return "-"
	}
	return strings.Join(parts, ", ")
}

func formatTime(ns int64) string { return time.Unix(0, ns).Format("15:04:05.000") }

func plural(n uint64, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}

// formatSizeToken is a size without a space, for lines that programs cut at spaces; --memory reads it back.
func formatSizeToken(bytes uint64) string { return strings.ReplaceAll(formatSize(bytes), " ", "") }
