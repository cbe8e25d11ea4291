package main

import (
	"fmt"
	"os/exec"
	"regexp"
	"strings"
)

// microLine is one of Go's own benchmarks: no processes, no waiting.
type microLine struct {
	Package string `json:"package"`
	Name    string `json:"name"`
	Ns      string `json:"ns_per_op"`
	Allocs  string `json:"allocs_per_op"`
}

// microPackages hold the benchmarks of what a round goes through.
var microPackages = []string{"ring", "snapshot"}

func runMicro() (lines []microLine, err error) {
	for _, pkg := range microPackages {
		out, err := exec.Command("go", "test", "-run", "^$", "-bench", ".", "-benchmem", "-benchtime", "200ms", "./"+pkg).CombinedOutput()
		if err != nil {
			return nil, fmt.Errorf("go test -bench . ./%s: %w\n%s", pkg, err, out)
		}
		lines = append(lines, parseMicro(pkg, string(out))...)
	}
	return lines, nil
}

var microPattern = regexp.MustCompile(`^Benchmark(\S+?)(?:-\d+)?\s+\d+\s+(\S+) ns/op.*?\s(\d+) allocs/op`)

func parseMicro(pkg, output string) (lines []microLine) {
	for line := range strings.Lines(output) {
		if m := microPattern.FindStringSubmatch(line); m != nil {
			lines = append(lines, microLine{pkg, m[1], m[2], m[3]})
		}
	}
	return lines
}
