package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// programs are the paths of what a measurement starts.
type programs struct {
	callboard, relay, pin      string
	latency, latencyGo, python string // the round in C and Go; python: "" without the Python client
	cost                       string // what a commit costs
	mapInC                     string // a library: the C client's map, beside Python's
	driver                     string // of CUDA, for brokers and clients; "": what they find
}

const buildDir = "build/bench"

// build compiles the C programs. The broker and the C client are those that `make
// build` made: what is measured is what is shipped.
func build() (programs, error) {
	callboard, err := findBroker()
	if err != nil {
		return programs{}, err
	}
	p := programs{
		callboard: callboard,
		relay:     filepath.Join(buildDir, "relay"),
		pin:       filepath.Join(buildDir, "pin"),
		latency:   filepath.Join(buildDir, "latency"),
		cost:      filepath.Join(buildDir, "cost"),
		mapInC:    filepath.Join(buildDir, "map.so"),
		latencyGo: filepath.Join(buildDir, "latency-go"),
	}
	library := "clients/c/build/libcallboard.a"
	if _, err := os.Stat(library); err != nil {
		return p, notThere(library)
	}
	if err := os.MkdirAll(buildDir, 0o755); err != nil {
		return p, err
	}
	for _, unit := range [][]string{
		{p.relay, "bench/relay/relay.c"},
		{p.pin, "bench/relay/pin.c"},
		{p.latency, "bench/latency/latency.c", "-Iclients/c/include", library, "-lpthread"},
		{p.cost, "bench/cost/cost.c", "-Iclients/c/include", library, "-lpthread"},
		{p.mapInC, "-shared", "-fPIC", "bench/python/map.c", "-Iclients/c/include", library, "-lpthread"},
	} {
		args := append([]string{"-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror", "-o"}, unit...)
		if out, err := exec.Command(compiler(), args...).CombinedOutput(); err != nil {
			return p, fmt.Errorf("compiling %s: %w\n%s", unit[0], err, out)
		}
	}
	if out, err := exec.Command("go", "build", "-o", p.latencyGo, "./bench/latency/goclient").CombinedOutput(); err != nil {
		return p, fmt.Errorf("building ./bench/latency/goclient: %w\n%s", err, out)
	}
	p.python = pythonWithClient()
	return p, nil
}

func notThere(path string) error {
	return fmt.Errorf("%s is not there: run `make bench` in the root of the repository, which builds it first", path)
}

// findBroker gives the broker that was carried here beside this program, else the one that `make build` made.
func findBroker() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	for _, path := range []string{filepath.Join(filepath.Dir(self), "callboard"), "bin/callboard"} {
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	return "", notThere("bin/callboard")
}

func compiler() string {
	if cc := os.Getenv("CC"); cc != "" {
		return cc
	}
	return "cc"
}

// pythonWithClient finds the interpreter of the tree's virtual environment, if it can
// import the client.
func pythonWithClient() string {
	python := os.Getenv("CALLBOARD_PYTHON")
	if python == "" {
		python = ".venv/bin/python"
	}
	if exec.Command(python, "-c", "import callboard; callboard.connect").Run() != nil {
		return ""
	}
	return python
}

// describePython says which Python and which NumPy.
func (p programs) describePython() string {
	out, err := exec.Command(p.python, "-c", "import sys, numpy; print('Python', sys.version.split()[0] + ', NumPy', numpy.__version__)").Output()
	if err != nil {
		return p.python
	}
	return strings.TrimSpace(string(out))
}
