package shm

import (
	"fmt"
	"os"
	"strings"
)

const bootIDPath = "/proc/sys/kernel/random/boot_id"

// HostName gives this machine's name as one token of [A-Za-z0-9_-], fit for a NATS
// subject as it is; every other character becomes '-'. "localhost" where none is set.
func HostName() string {
	name, err := os.Hostname()
	if err != nil {
		name = ""
	}
	return hostToken(name)
}

func hostToken(name string) string {
	token := strings.Map(func(r rune) rune {
		if nameRune(r) {
			return r
		}
		return '-'
	}, name)
	if strings.Trim(token, "-") == "" {
		return "localhost"
	}
	return token
}

// BootID identifies this boot of this machine's kernel. Containers of one machine share
// it, so equal boot ids mean that shared memory can be shared.
func BootID() (string, error) {
	text, err := os.ReadFile(bootIDPath)
	if err != nil {
		return "", fmt.Errorf("reading the kernel's boot id: %w", err)
	}
	id := strings.TrimSpace(string(text))
	if id == "" {
		return "", fmt.Errorf("reading the kernel's boot id: %s is empty", bootIDPath)
	}
	return id, nil
}

// HostID names one boot of one host: "<host name>/<boot id>".
func HostID() (string, error) {
	boot, err := BootID()
	if err != nil {
		return "", err
	}
	return HostName() + "/" + boot, nil
}

// nameRune says what stage names, host tokens and the like are made of (rule L5).
func nameRune(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-'
}
