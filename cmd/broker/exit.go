package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/spf13/cobra"

	"callboard/control"
	"callboard/shm"
)

// Exit codes, the same for every command.
const (
	exitOK       = 0
	exitFailure  = 1
	exitUsage    = 2
	exitNoBroker = 3
	exitNotFound = 4
	exitTimeout  = 5
)

const exitCodesHelp = `
Exit codes:
  0 done   1 failed   2 wrong usage   3 no broker found   4 no such attribute or prim   5 timed out
`

// exitError is an error with a code of its own.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

func exitf(code int, format string, v ...any) error {
	return &exitError{code, fmt.Errorf(format, v...)}
}

func usagef(format string, v ...any) error { return exitf(exitUsage, format, v...) }

// noArguments makes every argument a usage error.
func noArguments(cmd *cobra.Command, arguments []string) error {
	switch {
	case len(arguments) == 0:
		return nil
	case !cmd.HasParent():
		return usagef("%q is no command; see `callboard --help`", arguments[0])
	}
	return usagef("`%s` takes no arguments, only flags: got %q; see `%[1]s --help`", cmd.CommandPath(), arguments[0])
}

// exitCode finds the code for an error of any command.
func exitCode(err error) int {
	var own *exitError
	var rpc *control.RPCError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &own):
		return own.code
	case errors.Is(err, shm.ErrNoBroker):
		return exitNoBroker
	case errors.As(err, &rpc) && rpc.Code == control.CodeNotFound:
		return exitNotFound
	case errors.As(err, &rpc) && rpc.Code == control.CodeNotThere:
		return exitNoBroker
	case errors.As(err, &rpc) && rpc.Code == control.CodeTimeout, errors.Is(err, context.DeadlineExceeded):
		return exitTimeout
	}
	return exitFailure
}

// noBroker makes a missing file of a broker exit code 3; other errors stay what they are.
func noBroker(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return &exitError{exitNoBroker, err}
	}
	return err
}
