package main

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// firstUserID is where people's user ids begin; systemd spares those below.
const firstUserID = 1000

// warnOfRemoveIPC warns where logind is told to remove a user's shared memory at the end of his last session: the objects
// of a broker started from a login would vanish under it (field report C5). Only a file that says so counts; what a
// distribution compiled in cannot be seen from here.
func warnOfRemoveIPC(log *slog.Logger) {
	if os.Geteuid() < firstUserID {
		return
	}
	if file := removeIPCFile(logindFiles("/etc/systemd", "/run/systemd", "/usr/lib/systemd")); file != "" {
		log.Warn("systemd removes this user's shared memory when the last login session ends; run as a system service, enable lingering, or set RemoveIPC=no",
			"file", file)
	}
}

// logindFiles lists configuration files in the order in which later ones win.
func logindFiles(roots ...string) []string {
	var main, dropIns []string
	for _, root := range roots {
		main = append(main, filepath.Join(root, "logind.conf"))
		found, _ := filepath.Glob(filepath.Join(root, "logind.conf.d", "*.conf"))
		dropIns = append(dropIns, found...)
	}
	slices.Reverse(main)
	slices.SortStableFunc(dropIns, func(a, b string) int { return strings.Compare(filepath.Base(a), filepath.Base(b)) })
	return append(main, dropIns...)
}

// removeIPCFile names the file whose word is the last one, if that word is yes.
func removeIPCFile(files []string) (file string) {
	for _, name := range files {
		content, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(content)) {
			key, value, found := strings.Cut(strings.TrimSpace(line), "=")
			if !found || strings.TrimSpace(key) != "RemoveIPC" {
				continue
			}
			file = ""
			if slices.Contains([]string{"yes", "true", "on", "1"}, strings.ToLower(strings.TrimSpace(value))) {
				file = name
			}
		}
	}
	return file
}
