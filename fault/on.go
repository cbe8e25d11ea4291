//go:build callboard_faults

package fault

import (
	"fmt"
	"os"
	"slices"
)

var chosen = choose()

func choose() Fault {
	f := Fault(os.Getenv(Env))
	if f != "" && !slices.Contains(All, f) {
		fmt.Fprintf(os.Stderr, "%s is %q: expected one of %v\n", Env, f, All)
		os.Exit(2)
	}
	return f
}

// On tells whether a mistake is to be made.
func On(f Fault) bool { return f == chosen }
