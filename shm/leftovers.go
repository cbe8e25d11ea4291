package shm

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Leftover is what may be left of a stage: its shared memory, or its runtime directory.
type Leftover struct {
	Stage string
	Path  string
	Bytes uint64 // memory or disk that its files really take
	Files int
	InUse string // why it must stay; empty if it may be removed
	// ClientHolds is the channel by which a client keeps it, where no broker does.
	ClientHolds string

	runtime bool // a runtime directory, not memory
}

// Leftovers lists the stages of this user whose memory lies under base (empty:
// DefaultShmBase). A stage is in use if a broker holds its lock or any client holds a
// lock on its channel (an object named ChannelPrefix…); age and pids prove nothing
// (rule S1, field report A27).
func Leftovers(base string) ([]Leftover, error) {
	return leftoversIn(userDir(base), false)
}

// RuntimeLeftovers lists the runtime directories of this user in all places. One is in
// use if a broker holds its lock; only directories with a socket or a NATS file, and
// empty ones, count. Stage is the directory's name.
func RuntimeLeftovers() ([]Leftover, error) {
	if dir := runtimeOverride(); dir != "" {
		l := Leftover{Stage: filepath.Base(dir), Path: dir, runtime: true}
		if VerifyDir(dir) != nil || !l.inspect() {
			return nil, nil
		}
		return []Leftover{l}, nil
	}
	var all []Leftover
	var problems []error
	for _, parent := range runtimeParents() {
		found, err := leftoversIn(parent, true)
		all, problems = append(all, found...), append(problems, err)
	}
	return all, errors.Join(problems...)
}

func leftoversIn(parent string, runtime bool) ([]Leftover, error) {
	entries, err := os.ReadDir(parent)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("looking for leftovers in %s (%s): %w", parent, describe(parent), err)
	}
	var found []Leftover
	for _, entry := range entries {
		path := filepath.Join(parent, entry.Name())
		// What is not a private directory of this user is not ours to judge.
		if !entry.IsDir() || CheckStage(entry.Name()) != nil || VerifyDir(path) != nil {
			continue
		}
		l := Leftover{Stage: entry.Name(), Path: path, runtime: runtime}
		if l.inspect() {
			found = append(found, l)
		}
	}
	return found, nil
}

// inspect fills in size and use; false if nothing of ours is there.
func (l *Leftover) inspect() bool {
	if !l.measure() {
		return false
	}
	lock, reason, channel := l.claim()
	if lock != nil {
		_ = lock.Unlock()
	}
	l.InUse, l.ClientHolds = reason, channel
	return true
}

// RemoveLeftover removes what Leftovers or RuntimeLeftovers found, with the empty
// directories above. It asks anew whether it is in use, and keeps a starting broker out
// meanwhile; in use is an error (ErrLocked), gone already is none.
func RemoveLeftover(l Leftover) error {
	lock, reason, _ := l.claim()
	if lock == nil {
		if _, err := os.Lstat(l.Path); errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return fmt.Errorf("removing %s: %s: %w", l.Path, reason, ErrLocked)
	}
	defer func() { _ = lock.Unlock() }()
	if l.runtime {
		if err := l.removeRuntimeFiles(); err != nil {
			return err
		}
	} else if _, err := Sweep(l.Path, 0); err != nil {
		return err
	}
	return LeaveDir(l.Path)
}

// claim takes the stage's lock, or says why that or a client forbids it; channel is that
// client's.
func (l *Leftover) claim() (lock *DirLock, reason, channel string) {
	lock, err := lockExisting(l.Path)
	if err != nil {
		return nil, err.Error(), ""
	}
	if !l.runtime {
		if reason, channel := channelInUse(l.Path); reason != "" {
			_ = lock.Unlock()
			return nil, reason, channel
		}
	}
	return lock, "", ""
}

func channelInUse(stageDir string) (reason, channel string) {
	there, err := Generations(stageDir)
	if err != nil {
		return err.Error(), ""
	}
	for _, g := range there {
		entries, err := os.ReadDir(g.Path)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err.Error(), ""
		}
		for _, entry := range entries {
			if !strings.HasPrefix(entry.Name(), ChannelPrefix) || !entry.Type().IsRegular() {
				continue
			}
			path := filepath.Join(g.Path, entry.Name())
			free, err := TryLockExclusive(path)
			switch {
			case errors.Is(err, os.ErrNotExist):
			case err != nil:
				return err.Error(), ""
			case !free:
				return "a client still uses " + path, path
			}
		}
	}
	return "", ""
}

// measure counts files and bytes; false if nothing of ours is there.
func (l *Leftover) measure() bool {
	ours := false
	_ = filepath.WalkDir(l.Path, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == l.Path {
			return nil // going away meanwhile is fine
		}
		name := entry.Name()
		if filepath.Dir(path) == l.Path {
			mine := l.runtime && runtimeFile(entry) || !l.runtime && entry.IsDir() && generationName(name)
			ours = ours || mine
			if !mine && entry.IsDir() {
				return fs.SkipDir
			}
			if !mine {
				return nil
			}
		}
		var st unix.Stat_t
		if !entry.IsDir() && unix.Lstat(path, &st) == nil {
			l.Files++
			l.Bytes += uint64(st.Blocks) * 512
		}
		return nil
	})
	// An empty directory is a leftover too: its maker was killed before or after all.
	entries, err := os.ReadDir(l.Path)
	return ours || err == nil && len(entries) == 0
}

func generationName(name string) bool {
	return strings.Trim(strings.TrimPrefix(name, removing), "0123456789") == ""
}

// runtimeFile says whether a broker put the file into its runtime directory. Nothing
// else is ever removed there: the place may be one that a user chose.
func runtimeFile(entry fs.DirEntry) bool {
	name := strings.TrimPrefix(entry.Name(), unfinished)
	kind := entry.Type()
	return (name == AttachSocket || entry.Name() == socketDraft) && kind == os.ModeSocket ||
		strings.HasPrefix(name, "nats") && strings.HasSuffix(name, ".json") && kind.IsRegular()
}

func (l *Leftover) removeRuntimeFiles() error {
	entries, err := os.ReadDir(l.Path)
	if err != nil {
		return fmt.Errorf("removing %s: %w", l.Path, err)
	}
	for _, entry := range entries {
		if !runtimeFile(entry) {
			continue
		}
		if err := os.Remove(filepath.Join(l.Path, entry.Name())); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("removing %s: %w", l.Path, err)
		}
	}
	return nil
}
