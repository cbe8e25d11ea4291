package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/jedib0t/go-pretty/v6/progress"
)

// bar shows how far the consumer has come: a bar on a terminal, ten lines elsewhere.
type bar struct {
	at, total uint64
	out       io.Writer
	writer    progress.Writer // nil: no terminal
	tracker   *progress.Tracker
}

func newBar(out io.Writer, total uint64) *bar {
	b := &bar{total: total, out: out}
	if file, ok := out.(*os.File); ok {
		if info, err := file.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
			b.writer = progress.NewWriter()
			b.writer.SetOutputWriter(out)
			b.writer.SetUpdateFrequency(100 * time.Millisecond)
			b.writer.SetTrackerLength(40)
			b.writer.SetStyle(progress.StyleBlocks)
			b.tracker = &progress.Tracker{Message: "steps verified", Total: int64(total), Units: progress.UnitsDefault}
			b.writer.AppendTracker(b.tracker)
			go b.writer.Render()
		}
	}
	return b
}

func (b *bar) set(at uint64) {
	at = min(at, b.total)
	if b.writer != nil {
		b.tracker.SetValue(int64(at))
	} else if at*10/b.total > b.at*10/b.total {
		fmt.Fprintf(b.out, "%d of %d steps verified\n", at, b.total)
	}
	b.at = max(b.at, at)
}

// stop leaves the terminal as it should be for what is printed next.
func (b *bar) stop() {
	if b.writer == nil {
		return
	}
	if b.at == b.total {
		b.tracker.MarkAsDone()
	}
	time.Sleep(150 * time.Millisecond) // one more update, so that the last state is seen
	b.writer.Stop()
	for b.writer.IsRenderInProgress() {
		time.Sleep(10 * time.Millisecond)
	}
}
