package main

import (
	"os"
	"os/exec"
	"runtime"
	"strings"
)

// machine is the kind of machine, not which one.
type machine struct {
	CPUs     int    `json:"cpus"`
	CPU      string `json:"cpu"`
	Virtual  bool   `json:"virtual"`
	Kernel   string `json:"kernel"`
	Go       string `json:"go"`
	Compiler string `json:"compiler"`
	Load     string `json:"load_before"` // average over the minute before
}

func describeMachine() machine {
	m := machine{CPUs: runtime.NumCPU(), Go: runtime.Version(), Kernel: line("/proc/sys/kernel/osrelease")}
	m.Kernel, _, _ = strings.Cut(m.Kernel, "-")
	m.Load, _, _ = strings.Cut(line("/proc/loadavg"), " ")
	info, _ := os.ReadFile("/proc/cpuinfo")
	for entry := range strings.Lines(string(info)) {
		name, value, _ := strings.Cut(entry, ":")
		switch strings.TrimSpace(name) {
		case "model name":
			m.CPU = strings.TrimSpace(value)
		case "flags":
			m.Virtual = strings.Contains(value, " hypervisor")
		}
	}
	if out, err := exec.Command(compiler(), "-dumpfullversion").Output(); err == nil {
		m.Compiler = compiler() + " " + strings.TrimSpace(string(out))
	}
	return m
}

func line(path string) string {
	text, _ := os.ReadFile(path)
	return strings.TrimSpace(string(text))
}
