package shm

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// RuntimeEnv names a runtime directory and overrides all other places.
	RuntimeEnv = "CALLBOARD_RUNTIME_DIR"
	// AttachSocket is the name of the broker's socket in a runtime directory.
	AttachSocket = "attach.sock"
	// NATSFile is the name of the file with URL and credentials in a runtime directory.
	NATSFile = "nats.json"
)

// ErrNoBroker is wrapped by FindRuntime's error.
var ErrNoBroker = errors.New("no broker found")

// RuntimePlaces lists where a stage's runtime directory may lie, first choice first.
//
// $CALLBOARD_RUNTIME_DIR, if set, is that directory itself and the only place: whoever
// sets it does not want to meet a broker from elsewhere. Else
// $XDG_RUNTIME_DIR/callboard/<stage>, then /tmp/callboard-<uid>/<stage>. A broker and its
// clients need not have the same environment (a service has no XDG_RUNTIME_DIR), so
// clients look in both, and then in /tmp/callboard-<uid>/<stage> of the users that they
// trust (TrustEnv).
func RuntimePlaces(stage string) []string {
	if dir := runtimeOverride(); dir != "" {
		return []string{dir}
	}
	var places []string
	for _, parent := range runtimeParents() {
		places = append(places, filepath.Join(parent, stage))
	}
	return places
}

func runtimeOverride() string {
	dir := os.Getenv(RuntimeEnv)
	if dir == "" {
		return ""
	}
	if absolute, err := filepath.Abs(dir); err == nil {
		dir = absolute
	}
	return dir
}

func runtimeParents() []string {
	var parents []string
	if dir := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		parents = append(parents, filepath.Join(dir, "callboard"))
	}
	return append(parents, userDir("/tmp"))
}

// RuntimeDir is Access.RuntimeDir for this user alone.
func RuntimeDir(stage string) (string, error) { return Access{}.RuntimeDir(stage) }

// RuntimeDir chooses where a broker puts a stage's runtime directory; MakeDir makes it.
// $XDG_RUNTIME_DIR counts only if it is a directory of this very user: `sudo` often
// leaves another user's there. Nor does it where other users are admitted, since they
// cannot pass through it.
func (a Access) RuntimeDir(stage string) (string, error) {
	if err := CheckStage(stage); err != nil {
		return "", err
	}
	places := RuntimePlaces(stage)
	if len(places) == 1 {
		return places[0], nil
	}
	var st unix.Stat_t
	xdg := filepath.Dir(filepath.Dir(places[0]))
	if !a.Open() && unix.Stat(xdg, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR && int(st.Uid) == os.Geteuid() {
		return places[0], nil
	}
	return places[len(places)-1], nil
}

// PlaceError is one place that FindRuntime looked at, and what is wrong with it.
type PlaceError struct {
	Path string
	Err  error
}

// FindError is FindRuntime's error: every place with its reason. It is ErrNoBroker to
// errors.Is.
type FindError struct {
	Stage  string
	Places []PlaceError
}

func (e *FindError) Error() string {
	var text strings.Builder
	fmt.Fprintf(&text, "%v for stage %q; looked at:", ErrNoBroker, e.Stage)
	for _, place := range e.Places {
		fmt.Fprintf(&text, "\n  %s: %v", place.Path, place.Err)
	}
	if e.refused() {
		return text.String() // something is there: what is wrong with it stands beside it
	}
	if e.Stage == "default" {
		text.WriteString("\nstart one with `callboard serve`")
	} else {
		fmt.Fprintf(&text, "\nstart one with `callboard serve --stage %s`", e.Stage)
	}
	return text.String()
}

// refused tells whether a place was there and was not fit.
func (e *FindError) refused() bool {
	for _, place := range e.Places {
		var bad *DirError
		if errors.As(place.Err, &bad) {
			return true
		}
	}
	return false
}

// Unwrap gives ErrNoBroker and the reasons of all places.
func (e *FindError) Unwrap() []error {
	all := []error{ErrNoBroker}
	for _, place := range e.Places {
		all = append(all, place.Err)
	}
	return all
}

// FindRuntime finds the runtime directory of a stage's broker, for clients: the first
// place that belongs to this user, or to one that it trusts (TrustEnv), and has a socket.
// It does not connect: a broker that has died may have left its socket (Dial says so).
func FindRuntime(stage string) (string, error) {
	if err := CheckStage(stage); err != nil {
		return "", err
	}
	trusted, err := TrustedUIDs()
	if err != nil {
		return "", err
	}
	notFound := &FindError{Stage: stage}
	places := RuntimePlaces(stage)
	if runtimeOverride() == "" {
		for _, uid := range trusted {
			if place := filepath.Join("/tmp", fmt.Sprintf("callboard-%d", uid), stage); !slices.Contains(places, place) {
				places = append(places, place)
			}
		}
	}
	for _, path := range places {
		err := inspectRuntime(path, trusted)
		if err == nil {
			return path, nil
		}
		notFound.Places = append(notFound.Places, PlaceError{Path: path, Err: err})
	}
	return "", notFound
}

func inspectRuntime(path string, allow []uint32) error {
	if err := VerifyDir(path, allow...); err != nil {
		var bad *DirError
		if errors.As(err, &bad) && errors.Is(bad.Err, os.ErrNotExist) {
			return fmt.Errorf("%w: %s", os.ErrNotExist, bad.Path)
		}
		return err
	}
	socket := filepath.Join(path, AttachSocket)
	info, err := os.Lstat(socket)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("the directory is there, but no %s in it: the broker is starting or has ended", AttachSocket)
	case err != nil:
		return fmt.Errorf("%s (%s): %w", socket, describe(socket), err)
	case info.Mode().Type() != os.ModeSocket:
		return fmt.Errorf("%s (%s): is no socket", socket, describe(socket))
	}
	return nil
}
