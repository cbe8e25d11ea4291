package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
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
	natsNKey, natsTokenFile           *string
	allowUIDs, allowGIDs              *string
	natsCA, natsCert, natsKey         *string
	memory, unsealed                  sizeValue
	retain                            *uint32
	natsPort                          *uint16
	quiet, untilStdinCloses           *bool
	fresh, takeover                   *bool
	gpu                               gpuFlags
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

Memory is taken as it is needed, up to --memory. A container's /dev/shm often has 64 MB: give it more (--shm-size).

Where NVIDIA's driver is, each device is tried with a second process, and those that work are served too: rows may then lie
in device memory. Without a driver, or where that test fails, host memory is served all the same; "callboard doctor" says
why. --gpu off loads no driver, --gpu required does not start without a device that works.`,
		Example: `  callboard serve
  callboard serve --gpu required,0 --gpu-memory 8GiB
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
			"credentials file for --nats-url; or put user and password, or a token, into the URL"),
		natsNKey:      flags.String("nats-nkey", "", "nkey seed file for --nats-url"),
		natsTokenFile: flags.String("nats-token-file", "", "file with the token for --nats-url: a URL shows in lists of processes"),
		natsCA:        flags.String("nats-ca", "", "certificates that a tls:// server may be signed by (default the system's)"),
		natsCert:      flags.String("nats-cert", "", "certificate for a server that asks for one"),
		natsKey:       flags.String("nats-cert-key", "", "key of --nats-cert"),
		observerCreds: flags.String("nats-observer-creds", "", "credentials file that observers get for --nats-url"),
		allowUIDs:     flags.String("allow-uid", "", "numbers of other users that may attach, like 1000,1001"),
		allowGIDs:     flags.String("allow-gid", "", "numbers of groups whose members may attach"),
		logLevel:      flags.String("log-level", "info", "debug, info, warn or error"),
		fresh:         flags.Bool("fresh", false, "give up what an earlier broker of the stage left, instead of recovering it"),
		takeover:      flags.Bool("takeover", false, "take the stage over from a broker that runs, with everything that is sealed"),
		quiet:         flags.Bool("quiet", false, "no ready line, and no log but errors"),
		untilStdinCloses: flags.Bool(untilStdinCloses, false,
			"end when standard input does: for supervisors"),
	}
	f.gpu.add(cmd)
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

// goThreads is how many threads may run Go at once at least: the stage loop, two that copy, and everything else.
const goThreads = 4

// config checks what the broker does not, above all spelling.
func (f *serveFlags) config(logTo io.Writer) (config broker.Config, err error) {
	config = broker.Config{
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
	if config.Access.UIDs, err = shm.ParseIDs(*f.allowUIDs); err != nil {
		return config, usagef("--allow-uid: %v", err)
	}
	if config.Access.GIDs, err = shm.ParseIDs(*f.allowGIDs); err != nil {
		return config, usagef("--allow-gid: %v", err)
	}
	if config.GPU, err = f.gpu.config(); err != nil {
		return config, err
	}
	config.External, err = f.external()
	return config, err
}

// external reads the flags about a NATS server that somebody else runs; nil: the embedded one.
func (f *serveFlags) external() (*control.External, error) {
	if *f.natsURL == "" {
		for _, given := range []string{*f.natsCreds, *f.observerCreds, *f.natsNKey, *f.natsTokenFile, *f.natsCA, *f.natsCert, *f.natsKey} {
			if given != "" {
				return nil, usagef("credentials and certificates are for an external server: give --nats-url too")
			}
		}
		return nil, nil
	}
	if *f.natsPort != 0 {
		return nil, usagef("--nats-port is for the embedded server: leave it out with --nats-url")
	}
	if (*f.natsCert == "") != (*f.natsKey == "") {
		return nil, usagef("--nats-cert and --nats-cert-key belong together: give both")
	}
	// Others read these names out of nats.json, and have directories of their own.
	for _, name := range []*string{f.natsCreds, f.observerCreds, f.natsNKey, f.natsCA, f.natsCert, f.natsKey} {
		if *name != "" {
			absolute, err := filepath.Abs(*name)
			if err != nil {
				return nil, err
			}
			*name = absolute
		}
	}
	full := control.Credential{CredentialsFile: *f.natsCreds, NKeyFile: *f.natsNKey, CAFile: *f.natsCA, CertFile: *f.natsCert, KeyFile: *f.natsKey}
	if *f.natsTokenFile != "" {
		token, err := os.ReadFile(*f.natsTokenFile)
		if err != nil {
			return nil, usagef("reading --nats-token-file: %v", err)
		}
		full.Token = strings.TrimSpace(string(token))
	}
	given := 0
	for _, way := range []string{full.CredentialsFile, full.NKeyFile, full.Token} {
		if way != "" {
			given++
		}
	}
	if given > 1 {
		return nil, usagef("--nats-creds, --nats-nkey and --nats-token-file are three ways in: give one of them")
	}
	external := &control.External{URL: *f.natsURL, Full: full}
	if *f.observerCreds != "" {
		external.Observer = control.Credential{CredentialsFile: *f.observerCreds, CAFile: *f.natsCA}
	}
	return external, nil
}

func serve(ctx context.Context, config broker.Config, f *serveFlags, out io.Writer) error {
	// Who read the log may end before the broker does; writing on must not end a broker that serves others.
	signal.Ignore(syscall.SIGPIPE)
	// Where processors are few, Go would give the loop, the copies and NATS one thread in turn; so many let the kernel decide.
	runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), goThreads))
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
