package shm

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// removing begins the name of a generation on its way out. It gets this name before the
// first of its objects goes, so half a generation never looks like one (field reports
// A1, A2).
const removing = ".gone-"

// Generation is one life of a stage's memory: a directory named by its number.
type Generation struct {
	Number uint64 // creation time in ns since 1970; only its order means something
	Path   string
}

// NewGeneration makes a generation in stageDir, newer than all that are there, even if
// the clock went back. The caller holds the stage's lock.
func NewGeneration(stageDir string) (Generation, error) {
	for range makeTries {
		if err := MakeDir(stageDir); err != nil {
			return Generation{}, err
		}
		there, err := Generations(stageDir)
		if err != nil {
			return Generation{}, err
		}
		number := uint64(time.Now().UnixNano())
		if len(there) > 0 {
			number = max(number, there[len(there)-1].Number+1)
		}
		path := filepath.Join(stageDir, strconv.FormatUint(number, 10))
		err = os.Mkdir(path, 0o700)
		if err == nil {
			err = os.Chmod(path, 0o700)
		}
		switch {
		case err == nil:
			return Generation{Number: number, Path: path}, nil
		case errors.Is(err, os.ErrExist), errors.Is(err, os.ErrNotExist):
			continue
		default:
			return Generation{}, fmt.Errorf("making a generation in %s (%s): %w", stageDir, describe(stageDir), err)
		}
	}
	return Generation{}, fmt.Errorf("making a generation in %s: somebody removes it again and again", stageDir)
}

// Generations lists a stage's generations, oldest first. Names that are not ours are
// passed over; a stage that does not exist has none.
func Generations(stageDir string) ([]Generation, error) {
	entries, err := os.ReadDir(stageDir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("listing generations in %s (%s): %w", stageDir, describe(stageDir), err)
	}
	var found []Generation
	for _, entry := range entries {
		number, err := strconv.ParseUint(entry.Name(), 10, 64)
		// The way back refuses "+7" and "007": one number, one name.
		if err != nil || number == 0 || strconv.FormatUint(number, 10) != entry.Name() || !entry.IsDir() {
			continue
		}
		found = append(found, Generation{Number: number, Path: filepath.Join(stageDir, entry.Name())})
	}
	slices.SortFunc(found, func(a, b Generation) int {
		if a.Number < b.Number {
			return -1
		}
		return 1
	})
	return found, nil
}

// Lock takes the generation's own lock, which its broker holds for as long as it lives:
// who finds it free may take the generation up (rule S1).
func (g Generation) Lock() (*DirLock, error) { return lockExisting(g.Path) }

// ClaimGeneration locks the newest generation of a stage whose lock is free. The caller
// holds the stage's lock. There is none: a nil lock and no error.
func ClaimGeneration(stageDir string) (Generation, *DirLock, error) {
	there, err := Generations(stageDir)
	if err != nil {
		return Generation{}, nil, err
	}
	for _, g := range slices.Backward(there) {
		lock, err := g.Lock()
		switch {
		case err == nil:
			return g, lock, nil
		case errors.Is(err, ErrLocked), errors.Is(err, os.ErrNotExist):
		default:
			return Generation{}, nil, err
		}
	}
	return Generation{}, nil, nil
}

// Objects lists the names of a generation's objects, whatever has them, and removes what
// its broker was killed while it made. The caller holds the generation's lock.
func (g Generation) Objects() ([]string, error) {
	entries, err := os.ReadDir(g.Path)
	if err != nil {
		return nil, fmt.Errorf("listing the objects in %s (%s): %w", g.Path, describe(g.Path), err)
	}
	var names []string
	for _, entry := range entries {
		if name := entry.Name(); strings.HasPrefix(name, unfinished) {
			err = errors.Join(err, os.RemoveAll(filepath.Join(g.Path, name)))
		} else {
			names = append(names, name)
		}
	}
	return names, err
}

// Replace writes a small file of the generation, which is there as a whole or as it was before. When somebody removed the
// directory it is made again (field report A1).
func (g Generation) Replace(name string, data []byte) error {
	draft := filepath.Join(g.Path, unfinished+name)
	err := os.WriteFile(draft, data, 0o600)
	if errors.Is(err, os.ErrNotExist) {
		if err = MakeDir(g.Path); err == nil {
			err = os.WriteFile(draft, data, 0o600)
		}
	}
	if err == nil {
		err = os.Rename(draft, filepath.Join(g.Path, name))
	}
	if err != nil {
		return fmt.Errorf("writing %s of generation %s: %w", name, g.Path, errors.Join(err, os.RemoveAll(draft)))
	}
	return nil
}

// RemoveGeneration removes a generation and all its objects. Mappings of living clients
// stay valid. One that is gone, wholly or in part, is no error. Empty directories above
// are LeaveDir's matter.
func RemoveGeneration(g Generation) error {
	gone := filepath.Join(filepath.Dir(g.Path), removing+filepath.Base(g.Path))
	err := os.Rename(g.Path, gone)
	switch {
	case err == nil, errors.Is(err, os.ErrNotExist):
	case errors.Is(err, os.ErrExist):
		// Left by a removal that was killed, of the same number: clear it, then again.
		if err := os.RemoveAll(gone); err != nil {
			return fmt.Errorf("removing generation %s: %w", g.Path, err)
		}
		if err := os.Rename(g.Path, gone); err != nil {
			return fmt.Errorf("removing generation %s: %w", g.Path, err)
		}
	default:
		return fmt.Errorf("removing generation %s (%s): %w", g.Path, describe(g.Path), err)
	}
	if err := os.RemoveAll(gone); err != nil {
		return fmt.Errorf("removing generation %s: %w", g.Path, err)
	}
	return nil
}

// Sweep removes a stage's generations except the one numbered keep (0 keeps none), and
// what killed removals left. One whose own directory lock somebody holds stays. The
// caller holds the stage's lock (rule S1). It goes on after an error and returns all.
func Sweep(stageDir string, keep uint64) (removed []string, err error) {
	there, err := Generations(stageDir)
	if err != nil {
		return nil, err
	}
	var problems []error
	for _, g := range there {
		if g.Number == keep {
			continue
		}
		lock, err := g.Lock()
		switch {
		case errors.Is(err, ErrLocked), errors.Is(err, os.ErrNotExist):
			continue
		case err != nil:
			problems = append(problems, err)
			continue
		}
		err = RemoveGeneration(g)
		_ = lock.Unlock()
		if err != nil {
			problems = append(problems, err)
			continue
		}
		removed = append(removed, g.Path)
	}
	problems = append(problems, removeHalfGone(stageDir))
	return removed, errors.Join(problems...)
}

func removeHalfGone(stageDir string) error {
	entries, err := os.ReadDir(stageDir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	problems := []error{err}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), removing) {
			problems = append(problems, os.RemoveAll(filepath.Join(stageDir, entry.Name())))
		}
	}
	return errors.Join(problems...)
}
