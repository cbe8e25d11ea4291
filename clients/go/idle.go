package callboard

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"callboard/protocol"
)

// CloseIfIdle is Close where nothing of the stage is in use. Else it fails with ErrOpFailed,
// whose text lists the open map sessions, queries, operations that are not done, and views,
// snapshots and reads; the stage stays as it is, and the call can be repeated. What another
// goroutine makes while it looks is closed over.
func (s *Stage) CloseIfIdle() error {
	c := s.client
	if c.enter() != nil { // closed already
		return nil
	}
	list := c.inUse()
	c.leave()
	if list != "" {
		tell(slog.LevelWarn, logHandle, "stage %s: not closed: %s in use", c.options.Stage, list)
		return &Error{Status: protocol.StatusOpFailed, Text: "the stage is in use and stays open: " + list + "; give them back and close again"}
	}
	c.close()
	return nil
}

// inUse lists what is alive; "" for nothing. The caller has entered.
func (c *client) inUse() string {
	c.rooting.Lock()
	root := c.root
	c.rooting.Unlock()
	c.mutex.Lock()
	defer c.mutex.Unlock()
	var names []string
	for m := range c.sessions {
		names = append(names, fmt.Sprintf("%q", m.name))
	}
	slices.Sort(names)
	queries := len(c.queries)
	if root != nil {
		if _, registered := c.queries[root.handle]; registered {
			queries-- // the library's own
		}
	}
	ops := 0
	for _, op := range c.ops {
		if op.request.changes() && op.request.flags&protocol.FlagAbort == 0 { // the others are the library's own
			ops++
		}
	}
	// Whoever holds the client is the stage, this call, a session, who tells of epochs, or a view, snapshot or read.
	views := int(c.holders.Load()-c.telling.Load()) - 2 - len(names)
	if c.gap.Load() != nil {
		views-- // who looks for the next broker
	}
	var list []string
	add := func(n int, one, many string) {
		switch {
		case n == 1:
			list = append(list, "1 "+one)
		case n > 1:
			list = append(list, fmt.Sprintf("%d %s", n, many))
		}
	}
	add(len(names), "map session on "+strings.Join(names, ""), "map sessions on "+strings.Join(names, ", "))
	add(queries, "query", "queries")
	add(ops, "op", "ops")
	add(views, "view, snapshot or read", "views, snapshots or reads")
	return strings.Join(list, ", ")
}
