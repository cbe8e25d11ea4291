package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"github.com/spf13/cobra"

	"callboard/broker"
	"callboard/control"
	"callboard/protocol"
	"callboard/shm"
)

// serveFlags are the operator's choices as they stand on the command line.
type serveFlags struct {
	stage, handoff, shmDir, logLevel  *string
	natsURL, natsCreds, observerCreds *string
	memory, unsealed                  sizeValue
	retain                            *uint32
	natsPort                          *uint16
	quiet, untilStdinCloses           *bool
	fresh, takeover                   *bool
}

func newServe() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the broker of a stage",
		Long: `Run the broker of a stage, with a NATS server of its own, until Ctrl-C or SIGTERM.

When it is ready it prints one line to standard output: the stage, the directory by which clients find it, the address
of NATS, and the limit of its memory. Everything else is logged to standard error. On its end it removes all that it
made; a second Ctrl-C ends it at once.

What a broker left that was killed is recovered by the next start: everything that was sealed is there as it was, readers
read on without noticing, and producers are told what they have to write again. --fresh gives it up instead, and so does
"callboard gc". A broker that runs is replaced in the same way with --takeover: it exits and removes nothing.

Memory is taken as it is needed, up to --memory. A container's /dev/shm often has 64 MB: give it more (--shm-size).`,
		Example: `  callboard serve
  callboard serve --stage robots --memory 2GiB --retain 8
  callboard serve --stage robots --takeover
  callboard serve --nats-url tls://nats.example:4222 --nats-creds broker.creds`,
		Args: noArguments,
	}
	flags := cmd.Flags()
	f := &serveFlags{
		stage:    stageFlag(cmd),
		retain:   flags.Uint32("retain", 4, "versions of each attribute that stay readable"),
		handoff:  flags.String("handoff", "adopt", "what becomes of a buffer that was filled in place: adopt it, or copy it for producers that\nmay write on"),
		shmDir:   flags.String("shm-dir", shm.DefaultShmBase, "where shared memory lies; a tmpfs, to be fast"),
		natsPort: flags.Uint16("nats-port", 0, "port of the embedded NATS server on 127.0.0.1 (default a free one)"),
		natsURL:  flags.String("nats-url", "", "use this NATS server instead of an embedded one"),
		natsCreds: flags.String("nats-creds", "",
			"credentials file for --nats-url; or put user and password into the URL"),
		observerCreds: flags.String("nats-observer-creds", "", "credentials file that observers get for --nats-url"),
		logLevel:      flags.String("log-level", "info", "debug, info, warn or error"),
		fresh:         flags.Bool("fresh", false, "give up what an earlier broker of the stage left, instead of recovering it"),
		takeover:      flags.Bool("takeover", false, "take the stage over from a broker that runs, with everything that is sealed"),
		quiet:         flags.Bool("quiet", false, "no ready line, and no log but errors"),
		untilStdinCloses: flags.Bool(untilStdinCloses, false,
			"end when standard input does: for supervisors"),
	}
	flags.Var(&f.memory, "memory", "most bytes of shared memory, like 512MiB (default half of what --shm-dir has)")
	flags.Var(&f.unsealed, "max-unsealed", "most bytes that wait for a seal (default a quarter of --memory)")
	_ = flags.MarkHidden(untilStdinCloses)
	_ = cmd.RegisterFlagCompletionFunc("handoff", cobra.FixedCompletions([]string{"adopt", "copy"}, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("log-level", cobra.FixedCompletions([]string{"debug", "info", "warn", "error"}, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.MarkFlagDirname("shm-dir")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		config, err := f.config(cmd.ErrOrStderr())
		if err != nil {
			return err
		}
		return serve(cmd.Context(), config, f, cmd.OutOrStdout())
	}
	return cmd
}

// untilStdinCloses is the hidden flag of commands that a supervisor starts: a pipe ends with the process that holds its
// other end, however that dies.
const untilStdinCloses = "until-stdin-closes"

// config checks what the broker does not, above all spelling.
func (f *serveFlags) config(logTo io.Writer) (broker.Config, error) {
	config := broker.Config{
		Stage: *f.stage, ShmDir: *f.shmDir, MemoryBytes: uint64(f.memory), UnsealedBytes: uint64(f.unsealed),
		Retain: *f.retain, NATSPort: int(*f.natsPort), Fresh: *f.fresh, Takeover: *f.takeover,
	}
	if config.Stage == "" {
		config.Stage = defaultStage
	}
	if err := shm.CheckStage(config.Stage); err != nil {
		return config, &exitError{exitUsage, err}
	}
	if config.Retain == 0 {
		return config, usagef("--retain is 0: expected at least 1, the newest version")
	}
	switch *f.handoff {
	case "adopt":
		config.Handoff = protocol.HandoffAdopt
	case "copy":
		config.Handoff = protocol.HandoffCopy
	default:
		return config, usagef("--handoff is %q: expected adopt or copy", *f.handoff)
	}
	var level slog.Level
	if err := level.UnmarshalText([]byte(*f.logLevel)); err != nil {
		return config, usagef("--log-level is %q: expected debug, info, warn or error", *f.logLevel)
	}
	if *f.quiet {
		level = slog.LevelError
	}
	config.Log = slog.New(slog.NewTextHandler(logTo, &slog.HandlerOptions{Level: level}))
	if *f.natsURL != "" {
		config.External = &control.External{
			URL: *f.natsURL, Full: control.Credential{CredentialsFile: *f.natsCreds}, Observer: control.Credential{CredentialsFile: *f.observerCreds},
		}
		if config.NATSPort != 0 {
			return config, usagef("--nats-port is for the embedded server: leave it out with --nats-url")
		}
	} else if *f.natsCreds != "" || *f.observerCreds != "" {
		return config, usagef("credentials files are for an external server: give --nats-url too")
	}
	return config, nil
}

func serve(ctx context.Context, config broker.Config, f *serveFlags, out io.Writer) error {
	// Who read the log may end before the broker does; writing on must not end a broker that serves others.
	signal.Ignore(syscall.SIGPIPE)
	// Pinned to one processor, Go would give the loop, the copies and NATS one thread in turn; two let the kernel decide.
	if runtime.GOMAXPROCS(0) < 2 {
		runtime.GOMAXPROCS(2)
	}
	warnOfRemoveIPC(config.Log)
	b, err := broker.Start(config)
	if err != nil {
		return err
	}
	if !*f.quiet {
		fmt.Fprintf(out, "callboard ready stage=%s runtime=%s nats=%s memory=%s shm=%s\n",
			b.Stage(), b.RuntimeDir(), b.NATSURL(), formatSizeToken(b.MemoryBytes()), b.MemoryDir())
	}
	stdinClosed := make(chan struct{})
	if *f.untilStdinCloses {
		go waitForEnd(os.Stdin, stdinClosed)
	}
	select {
	case <-ctx.Done():
	case <-stdinClosed:
	case <-b.Left():
	}
	// Close waits for copies and announcements; somebody who is in a hurry says it again.
	again := make(chan os.Signal, 1)
	signal.Notify(again, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(again)
	closed := make(chan struct{})
	go func() {
		b.Close()
		close(closed)
	}()
	select {
	case <-closed:
		return nil
	case <-again:
		return exitf(exitFailure, "ended at once; `callboard gc` removes what stage %s left", b.Stage())
	}
}

func waitForEnd(in io.Reader, ended chan<- struct{}) {
	_, _ = io.Copy(io.Discard, in)
	close(ended)
}
