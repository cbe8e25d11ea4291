package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	// A command that ends on its own is asked to by the first signal; serve and demo have their own way.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run is the whole program but the process around it.
func run(ctx context.Context, arguments []string, out, notes io.Writer) int {
	root := newRoot()
	root.SetArgs(arguments)
	root.SetOut(out)
	root.SetErr(notes)
	err := root.ExecuteContext(ctx)
	if err != nil && err.Error() != "" {
		fmt.Fprintf(notes, "callboard: %v\n", err)
	}
	return exitCode(err)
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "callboard",
		Short: "Exchange tensors between processes through shared memory",
		Long: `Callboard lets processes on one machine exchange tensors through shared memory, without copying them.

A broker serves a stage: named attributes (position, camera/rgb) over named prims (/World/R0). Producers
fill buffers in place, the broker publishes them, readers look at the newest snapshot in place. Start here:

  callboard serve          in one terminal: a stage with the name "default"
  callboard demo           or: a simulation, a camera and a consumer, with a stage of their own
  callboard watch          in another one: what happens, live
  callboard ls             what there is
  callboard read NAME      what it holds`,
		Example: `  callboard serve --memory 2GiB
  callboard ls --stage robots
  callboard read body/position --prim /World/humanoid/torso`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          noArguments,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetHelpTemplate(root.HelpTemplate() + exitCodesHelp)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usagef("%v; see `%s --help`", err, cmd.CommandPath())
	})
	root.AddCommand(newServe(), newDemo(), newLs(), newInfo(), newRead(), newWatch(), newGC(), newDoctor(), newVersion(), newSelfTest())
	return root
}

const stageEnv = "CALLBOARD_STAGE"

// stageFlag adds --stage; the value is valid once the command runs.
func stageFlag(cmd *cobra.Command) *string {
	return cmd.Flags().String("stage", os.Getenv(stageEnv), "name of the stage (default $"+stageEnv+", else "+defaultStage+")")
}

// defaultStage is the stage that is meant when nobody names one.
const defaultStage = "default"

func jsonFlag(cmd *cobra.Command) *bool {
	return cmd.Flags().Bool("json", false, "print JSON instead of text for people")
}
