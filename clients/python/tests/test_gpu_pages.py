"""Python of the documentation that needs a GPU. All of it is read; where a GPU is, with its frameworks, it
runs, and elsewhere says why it did not."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import callboard as cb
import pytest
from conftest import CUDA_LIBRARY, Broker, needs, why_not

DOCS = Path(__file__).parents[3] / "docs"
FENCE = re.compile(r"^```python\n(.*?)^```", re.M | re.S)
NEEDS = re.compile(r"^<!-- not run: needs a GPU -->\n```python\n(.*?)^```", re.M | re.S)

# What names stand for on these pages.
KINDS: dict[str, Any] = {
    "callboard": cb,
    "stage": cb.Stage,
    "session": cb.MapSession,
    "view": cb.View,
    "group": cb.ReadGroup,
    "snapshot": cb.Snapshot,
    "robots": cb.Query,
}

# A page's framework, the expression of its blocks, and what they find there.
PAGES = [
    ("gpu.md", FENCE, ["cupy", "torch"], ""),
    ("frameworks/cupy.md", NEEDS, ["cupy"], ""),
    ("frameworks/pytorch.md", NEEDS, ["torch"], "import callboard, torch; stage = callboard.connect()"),
    ("frameworks/warp.md", NEEDS, ["warp"], "import callboard, warp as wp; stage = callboard.connect()"),
    ("frameworks/jax.md", NEEDS, ["jax"], "import callboard, jax; stage = callboard.connect()"),
]


def blocks(page: str, fence: re.Pattern[str]) -> list[str]:
    return fence.findall((DOCS / page).read_text())


def check(source: str) -> int:
    """Every attribute of something of Callboard's, and every argument by name; how many there were."""
    seen = 0
    for node in ast.walk(ast.parse(source)):
        call = node if isinstance(node, ast.Call) else None
        place = call.func if call is not None else node
        if not isinstance(place, ast.Attribute) or not isinstance(place.value, ast.Name) or place.value.id not in KINDS:
            continue
        member = inspect.getattr_static(KINDS[place.value.id], place.attr, None)
        assert member is not None, f"{place.value.id}.{place.attr} does not exist"
        seen += 1
        if call is not None:
            parameters = inspect.signature(member).parameters
            for word in call.keywords:
                assert word.arg in parameters, f"{place.value.id}.{place.attr} has no argument {word.arg!r}"
    return seen


EVERY_PAGE = pytest.mark.parametrize(("page", "fence", "frameworks", "before"), PAGES, ids=[page for page, *_ in PAGES])


@EVERY_PAGE
def test_a_page_names_what_there_is(page: str, fence: re.Pattern[str], frameworks: list[str], before: str) -> None:
    found = blocks(page, fence)
    assert found and all(check(block) > 0 for block in found)


@EVERY_PAGE
def test_a_page_runs(
    page: str,
    fence: re.Pattern[str],
    frameworks: list[str],
    before: str,
    cuda_library: str | None,
    tmp_path: Path,
) -> None:
    library = cuda_library or "libcuda.so.1"
    needs(frameworks, library, f"the code of {page} was only read")
    run_blocks(page, blocks(page, fence), before, {CUDA_LIBRARY: library}, tmp_path)


@pytest.mark.parametrize(
    ("frameworks", "gpu", "required", "reason", "failure"),
    [
        (["pytest"], True, True, "", False),
        (["pytest"], False, False, "no real GPU is here", False),
        (["pytest"], False, True, "no real GPU is here", True),
        (["nothing_of_the_kind"], True, True, "not installed: nothing_of_the_kind", False),
        (["nothing_of_the_kind"], True, False, "not installed: nothing_of_the_kind", False),
    ],
)
def test_what_did_not_run_says_why(
    frameworks: list[str], gpu: bool, required: bool, reason: str, failure: bool
) -> None:
    assert why_not(frameworks, gpu, required) == (reason, failure)


def test_a_framework_that_is_required_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert why_not(["cupy", "torch"], True, True) == ("not installed: cupy, torch", True)
    assert why_not(["warp"], True, True) == ("not installed: warp", False)


def run_blocks(page: str, found: list[str], before: str, machine: dict[str, str], directory: Path) -> None:
    """Against a broker: those of gpu.md are programs of their own, the producer first; those of a framework are one."""
    broker = Broker(directory, "--gpu", "required", environment=machine)
    try:
        with broker.connect() as stage:
            stage.publish("joints", [[0.0, 1.0]], device="cuda:0")
            stage.publish("limits", [0.0, 1.0])
        programs = found if page == "gpu.md" else ["\n".join([before, *found])]
        for program in programs:
            program = program.replace('stage.watch("pose")', "[stage.snapshot()]")
            done = subprocess.run(
                [sys.executable, "-c", program], env=broker.environment, capture_output=True, text=True, timeout=300
            )
            assert done.returncode == 0, done.stderr
    finally:
        broker.stop()


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("stage.latest('x', devise='cpu')", "no argument 'devise'"),
        ("session.sync = 1", "session.sync does not exist"),
        ("callboard.CudaSink(1)", "callboard.CudaSink does not exist"),
    ],
)
def test_a_page_that_says_wrong_things_is_refused(source: str, error: str) -> None:
    with pytest.raises(AssertionError, match=error):
        check(source)
