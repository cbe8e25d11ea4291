"""The code on the frameworks' pages runs as it stands, in the environment of its framework and against a broker.

A block is marked in the line above its fence, `<!-- run: jax -->` or `<!-- run: numpy, numpy1 -->`; all blocks of a
page are one program. Python that is not run says why: `<!-- not run: needs a GPU -->`.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import ENVIRONMENTS, ROOT, Broker, python_of

PAGES = ROOT / "docs" / "frameworks"
NAMES = {
    "numpy": "numpy",
    "numpy1": "numpy",
    "jax": "jax",
    "warp": "warp",
    "torch": "pytorch",
    "tensorflow": "tensorflow",
}
MARK = re.compile(r"<!-- (run|not run): (.+) -->")


def program(page: str, framework: str) -> str:
    """The page's blocks for the framework, each line where it stands on the page, so that a traceback fits."""
    lines = page.splitlines()
    kept = [""] * len(lines)
    for first, line in enumerate(lines):
        if not line.startswith("```python"):
            continue
        mark = MARK.fullmatch(lines[first - 1])
        if mark is None:
            raise ValueError(
                f"line {first + 1}: Python without `<!-- run: FRAMEWORK -->` or `<!-- not run: WHY -->` above"
            )
        names = mark[2].split(", ") if mark[1] == "run" else []
        if unknown := set(names) - set(ENVIRONMENTS):
            raise ValueError(f"line {first}: no framework {sorted(unknown)}, expected some of {sorted(ENVIRONMENTS)}")
        last = lines.index("```", first)
        if framework in names:
            kept[first + 1 : last] = lines[first + 1 : last]
    if not any(kept):
        raise ValueError(f"no block for {framework}")
    return "\n".join(kept)


def test_the_pages_code_runs(framework: str, new_broker: Callable[..., Broker], tmp_path: Path) -> None:
    source = tmp_path / f"{NAMES[framework]}.md.py"
    source.write_text(program((PAGES / f"{NAMES[framework]}.md").read_text(), framework))
    done = subprocess.run(
        [python_of(framework), source], env=new_broker().environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, f"status {done.returncode}:\n{done.stdout}{done.stderr}"


def test_no_page_has_python_that_is_neither_run_nor_said_not_to_be() -> None:
    for page in PAGES.glob("*.md"):
        if page.stem in NAMES.values():
            program(page.read_text(), next(f for f, name in NAMES.items() if name == page.stem))
    with pytest.raises(ValueError, match="no block for numpy"):
        program((PAGES / "cupy.md").read_text(), "numpy")


@pytest.mark.parametrize(
    ("page", "error"),
    [
        ("words\n```python\n1\n```", "line 2: Python without"),
        ("<!-- run: numpi -->\n```python\n1\n```", "no framework"),
        ("<!-- run: jax -->\n```python\n1\n```", "no block for numpy"),
    ],
    ids=["without a mark", "unknown framework", "another's"],
)
def test_a_page_that_would_run_nothing_is_refused(page: str, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        program(page, "numpy")
