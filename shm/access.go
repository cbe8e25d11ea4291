package shm

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// TrustEnv lists the uids, separated by commas, whose brokers a client attaches to
// beside those of its own user (rule I5). Who owns a runtime directory decides what its
// clients read.
const TrustEnv = "CALLBOARD_TRUST_UID"

// TrustedUIDs reads TrustEnv.
func TrustedUIDs() ([]uint32, error) {
	list, err := ParseIDs(os.Getenv(TrustEnv))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", TrustEnv, err)
	}
	return list, nil
}

// ParseIDs reads numbers of users or groups, separated by commas.
func ParseIDs(text string) (list []uint32, err error) {
	for _, part := range strings.Split(text, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		id, err := strconv.ParseUint(part, 10, 32)
		if err != nil || id == 1<<32-1 { // that one means "no change" to the kernel
			return nil, fmt.Errorf("%q is no id: expected numbers from 0 to 4294967294, separated by commas", part)
		}
		list = append(list, uint32(id))
	}
	return list, nil
}

// Access is who may attach beside the broker's own user (rule I5). The zero value
// admits nobody else.
type Access struct {
	UIDs []uint32
	GIDs []uint32
}

// Open says whether anybody else is admitted.
func (a Access) Open() bool { return len(a.UIDs)+len(a.GIDs) > 0 }

// Admits decides about a peer by what the kernel says of it: the user it ran as when it
// connected, and its groups then, the supplementary ones too.
func (a Access) Admits(uid uint32, groups []uint32) bool {
	return uid == uint32(os.Geteuid()) || slices.Contains(a.UIDs, uid) ||
		slices.ContainsFunc(groups, func(gid uint32) bool { return slices.Contains(a.GIDs, gid) })
}

// group is the one group whose members alone can reach the socket, if that is how it is.
func (a Access) group() (gid int, ok bool) {
	if len(a.UIDs) > 0 || len(a.GIDs) != 1 {
		return 0, false
	}
	return int(a.GIDs[0]), true
}

// GrantDir lets those who are admitted pass through a runtime directory, and the one
// above it where that is ours: mode 0710 and the group where it is one group, else 0711.
// Nobody else lists or changes it; who it is decides the check of each connection.
// Without anybody admitted the directory itself is closed again.
func (a Access) GrantDir(path string) error {
	if !a.Open() {
		return grant(path, 0o700, -1)
	}
	dirs := []string{path}
	if parent := filepath.Dir(path); oursByName(parent) {
		dirs = append(dirs, parent)
	}
	for i, dir := range dirs {
		var err error
		// The directory above is that of other stages too, with groups of their own.
		if gid, one := a.group(); one && i == 0 {
			err = grant(dir, 0o710, gid)
		} else {
			err = grant(dir, 0o711, -1)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// grantSocket is GrantDir for the socket in it.
func (a Access) grantSocket(path string) error {
	if gid, one := a.group(); one {
		return grant(path, 0o660, gid)
	}
	if a.Open() {
		return grant(path, 0o666, -1)
	}
	return grant(path, 0o600, -1)
}

func grant(path string, mode os.FileMode, gid int) error {
	if gid >= 0 {
		if err := unix.Lchown(path, -1, gid); err != nil {
			return fmt.Errorf("giving %s (%s) to group %d: %w; the broker's user must be a member of that group", path, describe(path), gid, err)
		}
	}
	if err := os.Chmod(path, mode); err != nil {
		return fmt.Errorf("setting the mode of %s (%s) to %04o: %w", path, describe(path), mode, err)
	}
	return nil
}
