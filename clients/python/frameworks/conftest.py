"""The broker of the client's other tests, and which frameworks are tried."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

_spec = importlib.util.spec_from_file_location("client_tests", Path(__file__).parents[1] / "tests" / "conftest.py")
_tests = importlib.util.module_from_spec(_spec)
sys.modules["client_tests"] = _tests
_spec.loader.exec_module(_tests)
Broker, new_broker = _tests.Broker, _tests.new_broker

ROOT = Path(__file__).parents[3]

# Where each framework is installed.
ENVIRONMENTS = {
    "numpy": ".venv-matrix",
    "numpy1": ".venv-numpy1",
    "jax": ".venv-matrix",
    "warp": ".venv-matrix",
    "torch": ".venv-frameworks",
    "tensorflow": ".venv-frameworks",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--frameworks", default="numpy,numpy1,jax,warp", help="which of " + ",".join(ENVIRONMENTS))
    parser.addoption("--update", action="store_true", help="write docs/frameworks/matrix.md anew")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "framework" in metafunc.fixturenames:
        metafunc.parametrize("framework", metafunc.config.getoption("--frameworks").split(","))


def python_of(framework: str) -> Path:
    python = ROOT / ENVIRONMENTS[framework] / "bin" / "python"
    if not python.exists():
        pytest.fail(f"{python} does not exist: `make test-matrix` or `make test-frameworks` sets it up")
    return python
