//go:build !nogpu

package cudaipc_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"

	"callboard/cudaipc"
)

// importer is the inside of a client process.
type importer struct {
	thread  *cudaipc.Thread
	imports *cudaipc.Imports
	open    map[string]*cudaipc.Import
	stream  cudaipc.Stream
	host    *cudaipc.Host
}

// clientRole answers calls until its input ends.
func clientRole() error {
	d, err := cudaipc.Load("")
	if err != nil {
		return err
	}
	c := &importer{open: map[string]*cudaipc.Import{}}
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var ask call
		if err := in.Decode(&ask); err != nil {
			return nil // it lets go
		}
		if c.thread == nil {
			if err := c.start(d, ask); err != nil {
				return err
			}
		}
		got, err := c.do(ask)
		if err != nil {
			got.Err, got.Code = err.Error(), cudaipc.CodeOf(err)
		}
		if err := out.Encode(got); err != nil {
			return err
		}
	}
}

func (c *importer) start(d cudaipc.Driver, ask call) (err error) {
	ordinal := 0
	if ask.Export.UUID != (cudaipc.UUID{}) {
		if ordinal, err = cudaipc.FindDevice(d, ask.Export.UUID); err != nil {
			ordinal = 0 // Open shall refuse it
		}
	}
	if c.thread, err = cudaipc.NewThread(d, ordinal); err != nil {
		return err
	}
	c.imports = cudaipc.NewImports(c.thread)
	if c.host, err = cudaipc.NewHost(1 << 20); err != nil {
		return err
	}
	return c.thread.Do(func(d cudaipc.Driver) (err error) {
		c.stream, err = d.StreamCreate()
		return err
	})
}

func (c *importer) do(ask call) (got answer, err error) {
	switch ask.Verb {
	case "ordinal":
		got.Count = c.thread.Info().Ordinal
	case "open":
		c.open[ask.Key], err = c.imports.Open(ask.Export)
	case "close":
		var last bool
		if last, err = c.open[ask.Key].Close(); last {
			got.Count = 1
		}
	case "count":
		arenas, events := c.imports.Count()
		got.Count = arenas*1000 + events
	case "fill": // and record, not waiting
		err = c.thread.Do(func(d cudaipc.Driver) error {
			if err := d.MemsetD8Async(c.at(ask), ask.Value, ask.Bytes, c.stream); err != nil {
				return err
			}
			if ask.Event == "" {
				return d.StreamSynchronize(c.stream)
			}
			return d.EventRecord(c.open[ask.Event].Event, c.stream)
		})
	case "read":
		err = c.thread.Do(func(d cudaipc.Driver) error {
			return cmp.Or(d.CopyDtoHAsync(c.host.At(0, ask.Bytes), c.at(ask), ask.Bytes, c.stream), d.StreamSynchronize(c.stream))
		})
		got.Bytes = c.host.Bytes()[:ask.Bytes]
	default:
		err = fmt.Errorf("no verb %q", ask.Verb)
	}
	return got, err
}

func (c *importer) at(ask call) cudaipc.Pointer {
	return c.open[ask.Key].Address + cudaipc.Pointer(ask.Offset)
}
