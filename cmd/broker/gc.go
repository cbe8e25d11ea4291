package main

import (
	"errors"
	"fmt"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"callboard/shm"
)

// swept is one row of what gc tells.
type swept struct {
	Stage string `json:"stage"`
	What  string `json:"what"` // memory or runtime
	Path  string `json:"path"`
	Bytes uint64 `json:"bytes"`
	Files int    `json:"files"`
	State string `json:"state"` // removed, would be removed, in use or failed
	Why   string `json:"why,omitempty"`
}

func newGC() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "gc",
		Short: "Remove what dead brokers left behind",
		Long: `Remove what brokers left behind that were killed: shared memory and runtime directories of this user, of all stages.

What a running broker or a living client uses stays. A lock that the kernel releases with its process proves that nobody
uses a thing any more; neither age nor process ids are looked at. It is safe to run this at any time.`,
		Example: "  callboard gc --dry-run\n  callboard gc",
		Args:    noArguments,
	}
	dryRun := cmd.Flags().Bool("dry-run", false, "only show what would be removed")
	base := cmd.Flags().String("shm-dir", shm.DefaultShmBase, "where shared memory lies, as given to serve")
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		rows, err := collect(*base, *dryRun, nil)
		if *asJSON {
			return errors.Join(printJSON(cmd.OutOrStdout(), rows), err)
		}
		if len(rows) == 0 && err == nil {
			fmt.Fprintln(cmd.ErrOrStderr(), "nothing is left behind")
			return nil
		}
		t := newTable(cmd.OutOrStdout(), "stage", "what", "state", "size", "files", "path", "")
		for _, r := range rows {
			t.AppendRow(table.Row{r.Stage, r.What, r.State, formatSize(r.Bytes), r.Files, r.Path, r.Why})
		}
		rightAligned(t, 4, 5)
		t.Render()
		return err
	}
	return cmd
}

// collect removes leftovers, all or those that are wanted, and tells what it did. The error joins what could not be
// removed though nobody uses it.
func collect(base string, dryRun bool, wanted func(shm.Leftover) bool) ([]swept, error) {
	memory, memoryErr := shm.Leftovers(base)
	runtime, runtimeErr := shm.RuntimeLeftovers()
	problems := []error{memoryErr, runtimeErr}
	rows := []swept{}
	for i, leftover := range append(memory, runtime...) {
		if wanted != nil && !wanted(leftover) {
			continue
		}
		row := swept{Stage: leftover.Stage, What: "memory", Path: leftover.Path, Bytes: leftover.Bytes, Files: leftover.Files}
		if i >= len(memory) {
			row.What = "runtime"
		}
		switch {
		case leftover.InUse != "":
			row.State, row.Why = "in use", leftover.InUse
		case dryRun:
			row.State = "would be removed"
		default:
			row.State = "removed"
			if err := shm.RemoveLeftover(leftover); errors.Is(err, shm.ErrLocked) {
				row.State, row.Why = "in use", err.Error()
			} else if err != nil {
				row.State, row.Why = "failed", err.Error()
				problems = append(problems, err)
			}
		}
		rows = append(rows, row)
	}
	return rows, errors.Join(problems...)
}
