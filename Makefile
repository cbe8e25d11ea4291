# Every target does its own set-up: a fresh clone, Go 1.26, a C compiler and Python 3.10 with headers are enough;
# `make test` wants Python 3.11 or 3.12, for the frameworks of test-matrix.
# Nothing is written outside the tree but the caches of Go and pip.

GO     ?= go
CC     ?= cc
PYTHON ?= python3

VENV   := .venv
PY     := $(VENV)/bin/python
PIP    := $(PY) -m pip install --quiet --disable-pip-version-check
BUILD  := build

# Programs that start Python (the demo, the integration tests) take this one.
export CALLBOARD_PYTHON := $(abspath $(PY))

# How many targets run side by side where that is safe: most wait, for processes that they start, more than they compute.
JOBS := $(shell nproc)

# Go of everything, and of what is worth the race detector's time: the models explore interleavings themselves, and what
# the others run is programs, which are built without it.
GO_ALL  := ./...
GO_RACE  = $$($(GO) list ./... | grep -v -e /model -e /bench -e /examples -e /abigen -e /conformance -e /cclient -e /quickstart -e /cudaemu)
GO_TEST  = $(GO) test -count=1 -p $$((2 * $(JOBS)))

# With which driver the tests of device memory run: go test shows nothing of packages that pass.
GPU_DRIVER = $(GO) test -count=1 -v -run 'TestDriver$$' ./integration/gpu ./cudaipc | sed -n 's/^driver of/test: &/p'

# Go under QEMU's user emulation: what is about shared layouts, machine code of our own, and calls into the driver, which
# is the emulated one, compiled for arm64. The models and the store's histories take minutes. Two tests are left out for
# what QEMU does not tell a program: that descriptors were cut off, and at which address a SIGBUS came. Programs with
# cudaipc in them are linked dynamically; their C library lies where Debian's cross compiler has it.
GO_ARM64       := ./protocol ./ring ./tensor ./shm ./cudaipc ./clients/go
ARM64          := GOARCH=arm64 CC=aarch64-linux-gnu-gcc QEMU_LD_PREFIX=/usr/aarch64-linux-gnu CALLBOARD_TEST_QEMU=qemu-aarch64
NOT_UNDER_QEMU := 'TestBadMessagesAreErrorsAndLeakNoDescriptor|TestGuardSurvivesTruncationByAnotherProcess'

# Lines that run it begin with +: it is a make of its own, and takes part in a -j.
C_CLIENT  := $(MAKE) --no-print-directory --silent -C clients/c
C_SOURCES := $(wildcard clients/c/src/*.c clients/c/cuda/*.c)
C_HEADERS := $(wildcard clients/c/include/*.h clients/c/src/*.h clients/c/cuda/*.h)

# CUDA's headers and the emulated driver, for programs that are no tests of Go: those compile their own.
CUDA_BUILD := $(abspath $(BUILD)/cuda)
EMULATED   := $(CUDA_BUILD)/libcuda.so.1

CLIENT_SOURCES := $(shell find clients/python -name '*.py' -o -name '*.pyi' -o -name '*.c' -o -name '*.h' -o -name '*.toml')

.DEFAULT_GOAL := build
.DELETE_ON_ERROR:
.PHONY: build demo test test-rest test-programs test-go test-race test-c test-valgrind test-arm64 arm64 test-python test-matrix test-frameworks test-bench test-gorgonia gpu-test lint lint-go lint-c lint-python stress bench generate clean

build:
	+@$(C_CLIENT) all
	@$(GO) build -o bin/callboard ./cmd/broker

# A real simulation, photographs and an observer, end to end. More: make demo DEMO_ARGS=--help
demo: build $(VENV)/.client $(VENV)/.demo
	@bin/callboard demo $(DEMO_ARGS)

test: test-go test-race
	@$(MAKE) --no-print-directory --output-sync=recurse -j$(JOBS) test-rest
	@$(MAKE) --no-print-directory test-bench
	@cat docs/conformance.md
	@echo
	@$(PY) clients/python/frameworks/matrix.py

# What shares no file while it runs. The output of each comes when it is over.
test-rest: test-valgrind test-arm64 test-python test-c test-matrix test-gorgonia

# Programs of the C client that several packages of Go's tests run, and would build, side by side.
test-programs: build
	+@$(C_CLIENT) -j$(JOBS) all live examples

# -count=1: what runs programs by exec is not seen by Go's cache of test results.
test-go: test-programs $(VENV)/.client $(VENV)/.test
	@echo 'test: Go'
	@$(GPU_DRIVER)
	@$(GO_TEST) $(GO_ALL)

# The short form: what takes long is the work and not the interleaving, and test-go does it in full. Every process with the
# detector in it, and tests start hundreds, would sleep for a second when it ends.
test-race: test-programs $(VENV)/.client $(VENV)/.test
	@echo 'test: Go with the race detector'
	@$(GPU_DRIVER)
	@GORACE=atexit_sleep_ms=20 $(GO_TEST) -race -short $(GO_RACE)

# Under the address and undefined-behaviour sanitizers, with a broker of the tests' own. The integration tests run
# the same client against the real one.
test-c: build
	@echo 'test: C'
	+@$(C_CLIENT) test

# The same tests, for what sanitizers do not see.
test-valgrind:
	@echo 'test: C under valgrind'
	+@scripts/if-installed valgrind $(C_CLIENT) valgrind

# Layouts and portability on the hardware that robots have: docs/memory-model.md argues the order of memory.
test-arm64:
	@echo 'test: arm64'
	@GOARCH=arm64 $(GO) build $(GO_ALL)
	@scripts/if-installed 'qemu-aarch64 aarch64-linux-gnu-gcc' $(MAKE) --no-print-directory arm64

# Programs that need a broker have this machine's: the two share memory all the same.
arm64: build
	@$(ARM64) CALLBOARD_BROKER=$(abspath bin/callboard) $(GO) test -count=1 -vet=off -exec qemu-aarch64 -skip $(NOT_UNDER_QEMU) $(GO_ARM64)
	+@$(C_CLIENT) arm64

test-python: build $(VENV)/.client $(VENV)/.test
	@echo 'test: Python'
	@$(PY) -m pytest -q clients/python/tests

# Every cell of docs/frameworks/matrix.md and the code of the pages beside it. MATRIX_ARGS=--update writes the table. The
# pinned frameworks have releases for Python 3.11 and 3.12.
test-matrix: build $(VENV)/.client $(VENV)/.test .venv-numpy1/.client .venv-matrix/.client
	@echo 'test: NumPy, JAX and Warp'
	@$(PY) -m pytest -q clients/python/frameworks $(MATRIX_ARGS)

# The same with frameworks that bring gigabytes: PyTorch comes from PyPI with CUDA's libraries.
test-frameworks: build $(VENV)/.client $(VENV)/.test .venv-frameworks/.client
	@echo 'test: PyTorch and TensorFlow'
	@$(PY) -m pytest -q clients/python/frameworks --frameworks torch,tensorflow $(MATRIX_ARGS)

# That the figures can be made: a few rounds of each, thrown away. Those of a GPU with the emulated driver, if no other one
# is named; an empty CALLBOARD_CUDA_LIBRARY takes the machine's own.
test-bench: build $(VENV)/.client $(VENV)/.test $(EMULATED)
	@echo 'test: bench'
	@CALLBOARD_CUDA_LIBRARY="$${CALLBOARD_CUDA_LIBRARY-$(EMULATED)}" $(GO) run ./bench -quick >/dev/null

# What a machine with a GPU needs to run the tests of device memory on it, and to measure: a folder to be carried there,
# which needs no Go, no compiler, no network and no sources there. `sh run` in it does all; docs/gpu.md says more.
# C and C++ are without sanitizers, whose libraries may not be there. The part in Python has its place in the tree below
# `python`; the emulated driver's sources are for a test of two devices.
KIT        := bin/gpu
KIT_GO     := CGO_ENABLED=0 $(GO)
KIT_PYTHON := $(wildcard clients/python/tests/*.py) clients/python/pyproject.toml docs/gpu.md $(wildcard docs/frameworks/*.md) $(wildcard integration/cudaemu/csrc/*)

gpu-test: $(BUILD)/wheel/.made
	@rm -rf $(KIT)
	@mkdir -p $(KIT)/python
	+@$(C_CLIENT) BUILD=build/carried CHECKS='-O1 -s' build/carried/test_cuda_live
	@cp clients/c/build/carried/test_cuda_live $(KIT)
	+@scripts/if-installed c++ $(C_CLIENT) BUILD=build/carried CHECKS='-O1 -s -static-libstdc++ -static-libgcc' build/carried/live_cxx17 build/carried/live_cxx17_no_exceptions
	@for program in clients/c/build/carried/live_cxx17*; do [ ! -f $$program ] || cp $$program $(KIT); done
	@$(KIT_GO) test -c -ldflags='-s -w' -o $(KIT)/gpu.test ./integration/gpu
	@$(KIT_GO) build -ldflags='-s -w' -o $(KIT)/callboard ./cmd/broker
	@$(KIT_GO) build -ldflags='-s -w' -o $(KIT)/bench ./bench
	@cp $(BUILD)/wheel/*.whl $(KIT)/python
	@cp --parents $(KIT_PYTHON) $(KIT)/python
	@cp integration/gpu/run.sh $(KIT)/run
	@echo 'gpu-test: $(KIT)'

# The adapter for programs that use gorgonia.org/cu, a module of its own. It needs CUDA's headers, which come from PyPI, and
# runs against the emulated driver; functions of the driver that cu names and nobody calls stay unresolved.
CUDA_HEADERS  := nvidia-cuda-runtime-cu12==12.4.127
CUDA_UNLINKED := -Wl,--unresolved-symbols=ignore-all

test-gorgonia: $(VENV)/.made $(EMULATED)
	@echo 'test: the adapter for gorgonia.org/cu'
	@[ -f $(CUDA_BUILD)/nvidia/cuda_runtime/include/cuda.h ] || { \
	    $(PY) -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: -d $(CUDA_BUILD) $(CUDA_HEADERS) && \
	    $(PY) -m zipfile -e $(CUDA_BUILD)/nvidia_cuda_runtime_cu12-*.whl $(CUDA_BUILD); }
	@ln -sf libcuda.so.1 $(CUDA_BUILD)/libcuda.so
	@cd clients/go/gorgonia && export CGO_CFLAGS=-I$(CUDA_BUILD)/nvidia/cuda_runtime/include CGO_LDFLAGS='-L$(CUDA_BUILD) $(CUDA_UNLINKED)' \
	    CGO_LDFLAGS_ALLOW='$(CUDA_UNLINKED)' LD_LIBRARY_PATH=$(CUDA_BUILD) && \
	    $(GO) vet ./... && $(GO) test -count=1 -ldflags='-extldflags=$(CUDA_UNLINKED)' ./...

lint: lint-go lint-c lint-python

lint-go:
	@echo 'lint: Go'
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); \
	    [ -z "$$unformatted" ] || { echo "not gofmt'd: $$unformatted"; exit 1; }
	@$(GO) vet $(GO_ALL)
	@$(GO) tool staticcheck $(GO_ALL)
	@$(GO) run ./protocol/abigen -check
	@$(GO) test -count=1 .

lint-c:
	@echo 'lint: C'
	+@$(C_CLIENT) all live examples

lint-python: $(VENV)/.test
	@echo 'lint: Python'
	@$(PY) -m ruff check --quiet .

# The stress test in full: two producers, four readers, half a minute.
stress: build
	@$(GO) test -count=1 -v -run 'TestStress$$' ./integration -stress=30s

# Figures go to bench/results/. More: make bench BENCH_ARGS=--help
bench: build $(VENV)/.client $(VENV)/.test
	@$(GO) run ./bench $(BENCH_ARGS)

# The C header, the Python module, docs/abi.md, the golden listing and the vectors, from protocol/*.go.
generate:
	@$(GO) run ./protocol/abigen

clean:
	+@$(C_CLIENT) clean
	rm -rf bin $(BUILD) $(VENV) .venv-* clients/python/build clients/python/src/*.egg-info

$(EMULATED): $(wildcard integration/cudaemu/csrc/*)
	@mkdir -p $(@D)
	@$(CC) -std=c11 -D_GNU_SOURCE -O1 -fPIC -pthread -fvisibility=hidden -shared -Wl,-soname,libcuda.so.1 -o $@ integration/cudaemu/csrc/*.c -ldl

# The virtual environment. Each part has a stamp, so that a changed file installs again what depends on it.

$(VENV)/.made: scripts/make-venv
	@echo 'set-up: $(VENV)'
	@scripts/make-venv $(PYTHON) $(VENV)
	@touch $@

$(VENV)/.test: clients/python/requirements-test.txt $(VENV)/.made
	@$(PIP) -r $<
	@touch $@

$(VENV)/.demo: examples/demo/requirements.txt $(VENV)/.made
	@echo 'set-up: simulation and photographs'
	@$(PIP) -r $<
	@touch $@

$(VENV)/.client: $(BUILD)/wheel/.made $(VENV)/.made
	@$(PIP) --force-reinstall --no-deps $(BUILD)/wheel/*.whl
	@touch $@

$(BUILD)/wheel/.made: $(CLIENT_SOURCES) $(C_SOURCES) $(C_HEADERS) $(VENV)/.made
	@echo 'set-up: Python client'
	@rm -rf $(@D) clients/python/build/lib.* # setuptools packs what an earlier build left there
	@$(PY) -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir $(@D) ./clients/python
	@touch $@

# The frameworks of the matrix: .venv-NAME has what requirements-NAME.txt says, and the same client.

.venv-%/.made: clients/python/frameworks/requirements-%.txt scripts/make-venv
	@echo 'set-up: $(@D)'
	@scripts/make-venv $(PYTHON) $(@D)
	@$(@D)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

.venv-%/.client: $(BUILD)/wheel/.made .venv-%/.made
	@$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps $(BUILD)/wheel/*.whl
	@touch $@

.PRECIOUS: .venv-%/.made .venv-%/.client
