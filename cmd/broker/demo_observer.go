package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"

	"callboard/control"
)

// counter counts what `callboard watch --json` shows. It subscribes before the first commit, so the commits that it was told
// of are all there were.
type counter struct {
	mu      sync.Mutex
	events  uint64
	commits uint64 // announced, each of a coalesced event counted
	epoch   uint64 // newest
	groups  uint64
	gaps    uint64 // events lost
}

// understand implements the reading of a process's lines.
func (c *counter) understand(text string, stderr bool) (line, bool) {
	if stderr {
		return line{Ready: true}, strings.HasPrefix(text, "watching ")
	}
	var shown struct {
		Subject string          `json:"subject"`
		Event   json.RawMessage `json:"event"`
		Gap     *struct {
			Lost uint64 `json:"lost,string"`
		} `json:"gap"`
	}
	if err := json.Unmarshal([]byte(text), &shown); err != nil {
		return line{Failure: fmt.Sprintf("`watch --json` printed what is no JSON (%v): %.200s", err, text)}, true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if shown.Gap != nil {
		c.gaps += shown.Gap.Lost
		return line{}, false
	}
	c.events++
	subject, err := control.ParseEventSubject(shown.Subject)
	if err != nil {
		return line{Failure: err.Error()}, true
	}
	switch subject.Kind {
	case control.KindGroup:
		c.groups++
	case control.KindCommit:
		var commit control.CommitEvent
		if err := json.Unmarshal(shown.Event, &commit); err != nil {
			return line{Failure: fmt.Sprintf("a commit event is not understood: %v", err)}, true
		}
		c.commits += commit.Count
		c.epoch = commit.Epoch
	}
	return line{}, false
}

// counts is a copy of everything counted so far.
func (c *counter) counts() (events, commits, epoch, groups, gaps uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.events, c.commits, c.epoch, c.groups, c.gaps
}
