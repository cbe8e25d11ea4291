#!/bin/sh
# Runs what `make gpu-test` made on a machine with a GPU, and says at its end what passed: `sh run` in the carried folder.
# It needs a shell and glibc; for the part in Python also Python 3.11 or later with NumPy and pytest, and PyTorch and CuPy.
#
#   sh run [-o RESULTS] [doctor] [go] [bench] [python]     all four, if none is named
#
# RESULTS is a directory for a log of each part, the figures and the summary; `results` beside this script if it is not
# given. Elsewhere nothing is written but in temporary directories. Further settings, from the environment:
#
#   PYTHON=python3     the interpreter that has the frameworks
#   BENCH_NAME=first   the figures are in first-gpu.md and first-gpu.json
#   BENCH_ARGS=        more arguments of bench, as -repetitions 3
#   REQUIRE_GPU=1      empty: a rehearsal without a GPU, with the driver that CALLBOARD_CUDA_LIBRARY names, and without figures
set -u
kit=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd) || exit 1
results=
if [ "${1:-}" = -o ]; then
    results=${2:?-o: a directory is expected behind it}
    shift 2
fi
[ $# -gt 0 ] || set -- doctor go bench python
for part; do
    case $part in
    doctor | go | bench | python) ;;
    *)
        echo "run: there is no part \"$part\": expected doctor, go, bench or python" >&2
        exit 2
        ;;
    esac
done
results=${results:-$kit/results}
mkdir -p "$results" || exit 1
results=$(CDPATH='' cd -- "$results" && pwd) || exit 1
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM

export REQUIRE_GPU="${REQUIRE_GPU-1}"
PYTHON=${PYTHON:-python3}
BENCH_NAME=${BENCH_NAME:-first}
cd "$kit" || exit 1
chmod +x callboard gpu.test bench test_cuda_live live_cxx* 2>/dev/null # who carried them may not have kept it

doctor() {
    ./callboard doctor >"$scratch/doctor"
    status=$?
    cat "$scratch/doctor"
    if [ "$REQUIRE_GPU" = 1 ] && ! grep -q ' GPU .*another process opened its memory' "$scratch/doctor"; then
        echo 'doctor says of no device that another process opened its memory: a broker would serve none'
        return 1
    fi
    return $status
}

go() {
    ./gpu.test -test.v -test.timeout 20m
}

bench() {
    # shellcheck disable=SC2086 # arguments are words
    if [ "$REQUIRE_GPU" = 1 ]; then
        ./bench -only gpu -results "$results" -name "$BENCH_NAME" ${BENCH_ARGS:-}
    else
        ./bench -only gpu -quick
    fi
}

python() {
    "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
        echo "$PYTHON is not there, or older than 3.11, which the carried client is for: name one in PYTHON"
        return 1
    }
    # A wheel is an archive of what is to lie on the path: neither pip nor a network is needed.
    "$PYTHON" -m zipfile -e python/callboard-*.whl "$scratch/site" || return 1
    "$PYTHON" - <<'END'
import importlib.util
from importlib.metadata import PackageNotFoundError, version
for module, names in {"numpy": ["numpy"], "torch": ["torch"], "cupy": ["cupy", "cupy-cuda12x", "cupy-cuda13x"], "jax": ["jax"], "warp": ["warp-lang"]}.items():
    found = "there" if importlib.util.find_spec(module) else "not there"
    for name in names:
        try:
            found = version(name)
        except PackageNotFoundError:
            pass
    print("with", module, found)
END
    # Plugins of other projects are none of these tests'.
    PYTHONPATH="$scratch/site${PYTHONPATH:+:$PYTHONPATH}" PYTHONDONTWRITEBYTECODE=1 PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 CALLBOARD_BIN="$kit/callboard" \
        "$PYTHON" -m pytest -q -rfEs -p no:cacheprovider --basetemp "$scratch/tests" \
        python/clients/python/tests/test_device*.py python/clients/python/tests/test_gpu_pages.py
}

# What the log of a part says in short.
say() {
    case $1 in
    doctor) grep ' GPU ' "$results/doctor.log" ;;
    go)
        grep '^driver of integration/gpu:' "$results/go.log"
        echo "$(grep -c '^--- PASS' "$results/go.log") tests passed, $(grep -c '^--- SKIP' "$results/go.log") skipped, $(grep -c '^--- FAIL' "$results/go.log") failed"
        grep '^--- FAIL' "$results/go.log"
        ;;
    bench) grep -e '^wrote ' -e '^bench: ' -e '^NVIDIA ' -e '^emulated driver' "$results/bench.log" ;;
    python)
        grep -e '^with ' -e '^driver of CUDA' -e '^FAILED' -e '^ERROR' -e '^SKIPPED' "$results/python.log"
        tail -n 1 "$results/python.log"
        ;;
    esac | cut -c 1-240 | sed 's/^/    /'
}

: >"$scratch/summary"
failed=0
for part; do
    echo "run: $part, log in $results/$part.log"
    if "$part" >"$results/$part.log" 2>&1; then
        echo "passed: $part" >>"$scratch/summary"
    else
        failed=1
        echo "FAILED: $part" >>"$scratch/summary"
        tail -n 40 "$results/$part.log"
    fi
    say "$part" >>"$scratch/summary"
done
{
    nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null
    uname -srm
    [ "$REQUIRE_GPU" = 1 ] || echo 'A rehearsal: a GPU was not asked for.'
    cat "$scratch/summary"
} | tee "$results/summary.log"
exit $failed
