package main

import (
	"fmt"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"
)

func newLs() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List the attributes of a stage",
		Long: `List the attributes of a stage: their types, their rows and how far they are sealed.

  DEVICE     where the rows lie: cpu, or a GPU by the broker's index (callboard info)
  FLOOR      the ordinal through which the attribute is sealed; what is sealed never changes
  ORDINALS   what is kept of it
  ADOPTED    versions taken over from a producer without a copy; COPIED: versions written by the broker`,
		Example: "  callboard ls\n  callboard ls --stage robots --json | jq '.attributes[].name'",
		Args:    noArguments,
	}
	stage, asJSON := stageFlag(cmd), jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		description, err := describeStage(cmd.Context(), *stage)
		if err != nil {
			return err
		}
		out := cmd.OutOrStdout()
		if *asJSON {
			return printJSON(out, map[string]any{"stage": description.Stage, "attributes": description.Attributes})
		}
		if len(description.Attributes) == 0 {
			fmt.Fprintf(cmd.ErrOrStderr(), "stage %s has no attributes yet\n", description.Stage)
			return nil
		}
		t := newTable(out, "name", "kind", "dtype", "row shape", "semantic", "device", "rows", "floor", "ordinals", "adopted", "copied", "bytes")
		for _, a := range description.Attributes {
			t.AppendRow(table.Row{a.Name, a.Kind, a.DType.Name, formatShape(a.RowShape), a.Semantic, formatDevice(a.Device), a.Rows, a.Floor,
				formatSpans(a.Ordinals), a.Adopted, a.Scattered, formatSize(a.Bytes)})
		}
		rightAligned(t, 7, 8, 10, 11, 12)
		t.Render()
		return nil
	}
	return cmd
}
