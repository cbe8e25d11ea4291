package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	callboard "callboard/clients/go"
)

// driver is what one process holds between commands.
type driver struct {
	stage    *callboard.Stage
	handles  map[string]any
	cursors  map[uint64]callboard.Cursor // by the epoch of the snapshot that they are of
	flooded  []*callboard.Op
	hoarded  []*callboard.Query
	sessions map[string]uint64 // by attribute: whose groups were listed last
	heard    *heard
}

// answer is the rest of a line that begins with "ok".
type answer struct{ parts []string }

func (a *answer) add(key string, value any) *answer {
	a.parts = append(a.parts, fmt.Sprintf("%s=%v", key, value))
	return a
}

// absent says that the Go client has no such call.
type absent string

func (a absent) Error() string { return string(a) }

// late is an error that came from waiting and not from the call; fetched, from fetching what a read gives.
type (
	late    struct{ error }
	fetched struct{ error }
)

func main() {
	d := &driver{handles: map[string]any{}, cursors: map[uint64]callboard.Cursor{}}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 64<<20)
	out := bufio.NewWriter(os.Stdout)
	for lines.Scan() {
		fmt.Fprintln(out, d.line(lines.Text()))
		_ = out.Flush()
	}
	d.reset()
}

func (d *driver) line(text string) string {
	c := parse(text)
	a, err := d.do(c)
	if err == nil {
		return strings.Join(append([]string{"ok"}, a.parts...), " ")
	}
	var no absent
	if errors.As(err, &no) {
		return "absent " + string(no)
	}
	where, waited := "call", late{}
	if gave := (fetched{}); errors.As(err, &gave) {
		where, err = "fetch", gave.error
	}
	if errors.As(err, &waited) {
		where, err = "wait", waited.error
		if own := []error{callboard.ErrTimeout, callboard.ErrInvalidHandle, callboard.ErrSessionEnded}; !errors.Is(err, callboard.ErrOpFailed) &&
			!slices.ContainsFunc(own, func(kind error) bool { return errors.Is(err, kind) }) {
			return "error NOT_ErrOpFailed wait " + err.Error() // behaviour 212
		}
	}
	code, why := "UNKNOWN", err.Error()
	if e := (*callboard.Error)(nil); errors.As(err, &e) {
		code, why = e.Status.String(), e.Text
		if e.OpID != 0 { // of an operation that the call itself waited for
			where = "wait"
		}
	}
	return "error " + code + " " + where + " " + strings.Join(strings.Fields(why), " ")
}

func (d *driver) do(c command) (*answer, error) {
	verbs := map[string]func(command) (*answer, error){
		"connect": d.connect, "close": d.close, "query": d.query, "drop": d.drop, "write": d.write, "batch": d.batch,
		"publish": d.publish, "seal": d.seal, "declare": d.declare, "wait": d.wait, "op": d.op, "floor": d.floor,
		"epoch": d.epoch, "follow": d.follow, "read": d.read, "show": d.show, "latest": d.latest, "snapshot": d.snapshot,
		"sread": d.snapshotRead, "sfloor": d.snapshotFloor, "map": d.mapAttribute, "fill": d.fill, "unmap": d.unmap,
		"abort": d.abort, "log": d.log, "idle": d.idle, "next": d.next, "open": d.open, "claim": d.claim, "giveup": d.giveUp, "work": d.work, "delete": d.delete, "frontier": d.frontier, "intern": d.intern, "resolve": d.resolve, "statuses": d.statuses, "version": d.version,
		"attributes": d.attributes, "handles": d.count, "waits": d.waits, "flood": d.flood, "hoard": d.hoard, "discard": d.discard, "drain": d.drain, "threads": d.threads, "ticks": d.ticks, "chase": d.chase,
		"find": d.find, "await": d.await, "list": d.list, "listed": d.listed, "retain": d.retain, "unlist": d.unlist, "slice": d.slice,
		"race": d.race, "deletes": d.deletes, "cycles": d.cycles, "frames": d.frames, "querylist": d.queryList, "join": d.joinTokens, "split": d.split,
	}
	switch do := verbs[c.verb]; {
	case c.verb == "reset":
		d.reset()
		return &answer{}, nil
	case do == nil:
		return nil, fmt.Errorf("driver_go knows no verb %q", c.verb)
	case d.stage == nil && c.verb != "connect" && c.verb != "statuses" && c.verb != "version":
		return nil, errors.New("not connected")
	default:
		return do(c)
	}
}

func (d *driver) reset() {
	d.hoarded = nil
	d.flooded = nil
	d.stopLog()
	for name, h := range d.handles {
		release(h)
		delete(d.handles, name)
	}
	if d.stage != nil {
		_ = d.stage.Close()
		d.stage = nil
	}
}

func (d *driver) connect(c command) (*answer, error) {
	stage, err := callboard.Dial(context.Background(), callboard.Options{Stage: c.opt["stage"], RuntimeDir: c.opt["dir"], Name: "conformance", ReadOnly: c.has("readonly"), Guard: c.has("guard")})
	if err != nil {
		return nil, err
	}
	if d.stage != nil { // the scenario closed it
		_ = d.stage.Close()
	}
	d.stage = stage
	return &answer{}, nil
}

func (d *driver) close(command) (*answer, error) { return &answer{}, d.stage.Close() }

func (d *driver) drop(c command) (*answer, error) {
	h, ok := d.handles[c.arg(0)]
	if !ok {
		return nil, fmt.Errorf("no handle is named %q", c.arg(0))
	}
	release(h) // stays known: what is released must say so
	return &answer{}, nil
}

func release(h any) {
	switch h := h.(type) {
	case interface{ Release() }:
		h.Release()
	case *callboard.PathList:
		_ = h.Release()
	case *callboard.MapSession:
		h.Abort()
	}
}

// get finds a handle of the wanted sort.
func get[T any](d *driver, name string) (T, error) {
	h, ok := d.handles[name].(T)
	if !ok {
		return h, fmt.Errorf("no %T is named %q", h, name)
	}
	return h, nil
}

// limit bounds every wait, so that a driver never hangs.
func limit() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), 20*time.Second)
}
