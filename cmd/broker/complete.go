package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"
)

// completeAttributes offers the attributes of the running stage; a shell waits for it, so not for long.
func completeAttributes(stage *string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, arguments []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(arguments) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		description, err := describeStage(ctx, *stage)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var names []cobra.Completion
		for _, a := range description.Attributes {
			names = append(names, cobra.CompletionWithDesc(a.Name, rowType(a.DType, a.RowShape)))
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}
