package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"callboard/control"
)

func newWatch() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "watch",
		Short: "Show what happens on a stage, live",
		Long: `Show what a stage's broker announces, one line for each event, until Ctrl-C:

  commit   a new epoch is readable: the attributes that changed, their ordinals, how many rows
  group    a producer has mapped memory to fill
  client   somebody came, left or died
  health   something for operators

Events are numbered, so a loss is seen and shown. When the broker ends, its return is waited for.
With --json each line is {"subject": ..., "event": {...}}, the event as docs/control-plane.md has it, or {"gap": {...}}.`,
		Example: `  callboard watch
  callboard watch --attribute body/position --count 10
  callboard watch --json | jq -c 'select(.subject | endswith("commit")) | .event.epoch'`,
		Args: noArguments,
	}
	stage, asJSON := stageFlag(cmd), jsonFlag(cmd)
	attribute := cmd.Flags().String("attribute", "", "only commits and groups of this attribute")
	count := cmd.Flags().Uint64("count", 0, "end after so many events (default never)")
	timeout := cmd.Flags().Duration("timeout", 0, "end after this time, like 10s; with --count it is an error (code 5) if they did not come")
	untilClosed := cmd.Flags().Bool(untilStdinCloses, false, "end when standard input does: for supervisors")
	_ = cmd.Flags().MarkHidden(untilStdinCloses)
	_ = cmd.RegisterFlagCompletionFunc("attribute", completeAttributes(stage))
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		ctx, cancel := context.WithCancel(cmd.Context())
		defer cancel()
		if *untilClosed {
			ended := make(chan struct{})
			go waitForEnd(os.Stdin, ended)
			go func() { <-ended; cancel() }()
		}
		w := &watcher{stage: *stage, notes: cmd.ErrOrStderr(), count: *count, enough: make(chan struct{})}
		w.show = lineWriter(cmd.OutOrStdout(), *attribute)
		if *asJSON {
			w.show = jsonWriter(cmd.OutOrStdout(), *attribute)
		}
		if *timeout > 0 {
			var stop context.CancelFunc
			ctx, stop = context.WithTimeout(ctx, *timeout)
			defer stop()
		}
		err := w.run(ctx)
		if err == nil && *count > 0 && w.shown < *count && ctx.Err() == context.DeadlineExceeded {
			return exitf(exitTimeout, "%s in %v: expected %d", plural(w.shown, "event"), *timeout, *count)
		}
		return err
	}
	return cmd
}

// arrival is one event as it came, with the numbers that every event begins with.
type arrival struct {
	subject string
	kind    control.Kind
	data    []byte
	header  control.Header
	lost    uint64 // events between this one and the one before
	before  uint64 // the number of the one before
}

// watcher follows one stage through restarts of its broker.
type watcher struct {
	stage  string
	notes  io.Writer
	show   func(a *arrival) (shown bool, err error)
	count  uint64 // 0: no limit
	shown  uint64
	enough chan struct{} // closed when count is reached or the output failed
	failed error

	started bool
	last    control.Header
}

const (
	lookForBroker     = 300 * time.Millisecond
	lookForConnection = 200 * time.Millisecond
)

// run returns nil when ctx ends or enough was shown.
func (w *watcher) run(ctx context.Context) error {
	for first := true; ; first = false {
		ended, err := w.follow(ctx)
		switch {
		case ended:
			return w.failed
		case err != nil && first:
			return err // nobody there to begin with is an error; later it is waited for
		case err == nil:
			fmt.Fprintf(w.notes, "the broker of stage %s is gone; waiting for it\n", cmp.Or(w.stage, defaultStage))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(lookForBroker):
		}
	}
}

// follow shows events of one broker, until that is out of reach (false, nil) or the watcher is done (true).
func (w *watcher) follow(ctx context.Context) (ended bool, err error) {
	o, err := observe(w.stage)
	if err != nil {
		return false, err
	}
	defer o.close()
	gone := make(chan struct{}, 1)
	stop, err := o.subscribe(o.subjects.All(), func(subject string, data []byte) {
		if w.take(subject, data) {
			select {
			case gone <- struct{}{}:
			default:
			}
		}
	})
	if err != nil {
		return false, err
	}
	defer stop()
	fmt.Fprintf(w.notes, "watching %s at %s\n", o.subjects.All(), o.info.URL)
	ticks := time.NewTicker(lookForConnection)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return true, nil
		case <-w.enough:
			return true, nil
		case <-gone:
			return false, nil
		case <-ticks.C:
			if !o.connected() {
				return false, nil
			}
		}
	}
}

// take handles one message; true means that the broker said good-bye. It runs on one goroutine at a time.
func (w *watcher) take(subject string, data []byte) (bye bool) {
	select {
	case <-w.enough:
		return false
	default:
	}
	parsed, err := control.ParseEventSubject(subject)
	if err != nil {
		return false // a request of somebody
	}
	a := &arrival{subject: subject, kind: parsed.Kind, data: data}
	if err := json.Unmarshal(data, &a.header); err != nil || a.header.Version != control.EventVersion {
		fmt.Fprintf(w.notes, "an event on %s is not understood (version %d, this program reads %d)\n", subject, a.header.Version, control.EventVersion)
		return false
	}
	if w.started && a.header.Broker == w.last.Broker && a.header.Generation == w.last.Generation {
		if a.header.Seq <= w.last.Seq {
			return false // a repeat
		}
		a.before, a.lost = w.last.Seq, a.header.Seq-w.last.Seq-1
	}
	w.started, w.last = true, a.header
	shown, err := w.show(a)
	if shown {
		w.shown++
	}
	if err != nil || w.count > 0 && w.shown >= w.count {
		w.failed = err
		close(w.enough)
	}
	var health control.HealthEvent
	return a.kind == control.KindHealth && json.Unmarshal(data, &health) == nil && health.Code == control.HealthBye
}

// jsonWriter shows one JSON object a line.
func jsonWriter(out io.Writer, attribute string) func(*arrival) (bool, error) {
	buffered := bufio.NewWriter(out)
	return func(a *arrival) (bool, error) {
		if a.lost > 0 {
			fmt.Fprintf(buffered, `{"gap":{"after_seq":"%d","seq":"%d","lost":"%d"}}`+"\n", a.before, a.header.Seq, a.lost)
		}
		shown := attribute == "" || concerns(a, attribute)
		if shown {
			fmt.Fprintf(buffered, `{"subject":%q,"event":%s}`+"\n", a.subject, a.data)
		}
		return shown, buffered.Flush()
	}
}
