package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"callboard/control"
)

const changesShown = 4 // of one commit; the rest is counted

// lineWriter shows one line for each event, for people.
func lineWriter(out io.Writer, attribute string) func(*arrival) (bool, error) {
	return func(a *arrival) (bool, error) {
		if a.lost > 0 {
			if _, err := fmt.Fprintf(out, "%s  GAP     %s lost between %d and %d\n", formatTime(a.header.TimeNS), plural(a.lost, "event"), a.before, a.header.Seq); err != nil {
				return false, err
			}
		}
		if attribute != "" && !concerns(a, attribute) {
			return false, nil
		}
		text, err := describeEvent(a, attribute)
		if err != nil {
			text = fmt.Sprintf("not understood: %v", err)
		}
		_, err = fmt.Fprintf(out, "%s  %-6s  %s\n", formatTime(a.header.TimeNS), a.kind, text)
		return true, err
	}
}

// concerns says whether an event is about an attribute.
func concerns(a *arrival, attribute string) bool {
	switch a.kind {
	case control.KindGroup:
		var group control.GroupEvent
		return json.Unmarshal(a.data, &group) == nil && group.Attribute == attribute
	case control.KindCommit:
		var commit control.CommitEvent
		return json.Unmarshal(a.data, &commit) == nil &&
			slices.ContainsFunc(commit.Changed, func(c control.Change) bool { return c.Attribute == attribute })
	}
	return false
}

func describeEvent(a *arrival, attribute string) (string, error) {
	switch a.kind {
	case control.KindCommit:
		var commit control.CommitEvent
		err := json.Unmarshal(a.data, &commit)
		return describeCommit(&commit, attribute), err
	case control.KindGroup:
		var g control.GroupEvent
		err := json.Unmarshal(a.data, &g)
		ordinal := strconv.FormatUint(g.Ordinal, 10)
		if g.Ordinal == 0 {
			ordinal = "next" // taken when the group is handed back
		}
		return fmt.Sprintf("%s@%s  %s of %s, group %d of %d, session %d", g.Attribute, ordinal, plural(g.Prims, "prim"), rowType(g.DType, g.RowShape), g.GroupIndex+1, g.GroupCount, g.Session), err
	case control.KindClient:
		var c control.ClientEvent
		err := json.Unmarshal(a.data, &c)
		text := fmt.Sprintf("%s  %s (%s, pid %d)", c.Event, c.Name, c.Language, c.PID)
		if c.Reason != "" {
			text += ": " + c.Reason
		}
		return text, err
	case control.KindHealth:
		var h control.HealthEvent
		err := json.Unmarshal(a.data, &h)
		text := fmt.Sprintf("%s %s: %s", h.Level, h.Code, h.Text)
		for _, name := range slices.Sorted(maps.Keys(h.Numbers)) {
			text += fmt.Sprintf(" %s=%d", name, h.Numbers[name])
		}
		return text, err
	}
	return string(a.data), nil
}

func describeCommit(commit *control.CommitEvent, attribute string) string {
	text := fmt.Sprintf("epoch %d", commit.Epoch)
	if commit.Count > 1 {
		text = fmt.Sprintf("epochs %d–%d", commit.FromEpoch, commit.Epoch)
	}
	var parts []string
	left := uint64(commit.Omitted)
	for _, c := range commit.Changed {
		if attribute != "" && c.Attribute != attribute {
			continue
		}
		if len(parts) == changesShown {
			left++
			continue
		}
		part := fmt.Sprintf("%s@%d", c.Attribute, c.Floor)
		if c.Rows > 0 {
			part += " " + plural(c.Rows, "row")
		}
		if c.Adopted {
			part += " adopted"
		}
		parts = append(parts, part)
	}
	text += "  " + strings.Join(parts, ", ")
	if left > 0 {
		text += ", and " + plural(left, "other")
	}
	return text
}

// rowType is a dtype with the shape of a row: uint8 400×600×3.
func rowType(dtype control.DType, shape []uint64) string {
	if len(shape) == 0 {
		return dtype.Name
	}
	return dtype.Name + " " + formatShape(shape)
}
