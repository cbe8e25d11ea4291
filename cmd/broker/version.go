package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"callboard/broker"
	"callboard/control"
	"callboard/protocol"
)

func newVersion() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Show the versions of this program and of what it speaks",
		Args:  noArguments,
	}
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		abi := protocol.VersionText(protocol.VersionWord)
		if *asJSON {
			return printJSON(cmd.OutOrStdout(), map[string]any{
				"version": broker.Version, "abi": abi, "control_plane": control.EventVersion, "go": runtime.Version(),
			})
		}
		fmt.Fprintf(cmd.OutOrStdout(), "callboard %s (ABI %s, control plane %d, %s)\n", broker.Version, abi, control.EventVersion, runtime.Version())
		return nil
	}
	return cmd
}
