"""Every cell of the matrix, as expected.txt has it: a cell that comes out otherwise fails, and so does one without
an outcome. docs/frameworks/matrix.md is what came out.

behaviour 277 to 300, field reports G1 to G22
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import matrix
import pytest
from conftest import ENVIRONMENTS, ROOT, Broker, python_of
from matrix import CELLS, Cell

PAGE = ROOT / "docs" / "frameworks" / "matrix.md"


def run(framework: str, broker: Broker) -> tuple[dict[str, str], dict[Cell, tuple[str, str]]]:
    """The versions, and of each cell the outcome and what was said. A crash names its cell."""
    done = subprocess.run(
        [python_of(framework), Path(__file__).parent / "probe.py", framework],
        env=broker.environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith(("{", "["))]
    if not lines:
        pytest.fail(f"{framework} did not start, status {done.returncode}:\n{done.stderr}")
    versions, cells = lines[0], [Cell(*line) for line in lines[1::2] if isinstance(line, list)]
    outcomes = {cell: (line[0], line[1]) for cell, line in zip(cells, lines[2::2], strict=False)}
    if done.returncode != 0:
        pytest.fail(f"{framework} ended with status {done.returncode} in the cell {cells[-1]}:\n{done.stderr}")
    assert lines[-1] == {"pinned_bytes": 0}, f"{framework} left versions pinned: {lines[-1]}"
    return versions, outcomes


def differences(wrong: list[Cell], cells: dict[Cell, tuple[str, str]], expected: dict[Cell, matrix.Rule]) -> str:
    """Cells that differ in the same way are told together, with what one of them said."""
    together: dict[tuple[str, ...], list[Cell]] = {}
    for cell in wrong:
        rule = expected[cell]
        words = f" with {rule.words!r}" if rule.words else ""
        way = f"{cells[cell][0]}, expected {rule.outcome}{words} by line {rule.line}"
        together.setdefault((cell.direction, cell.door, way), []).append(cell)
    lines = []
    for (direction, door, way), found in together.items():
        dtypes, shapes = (
            ",".join(dict.fromkeys(c.dtype for c in found)),
            ",".join(dict.fromkeys(c.shape for c in found)),
        )
        lines.append(f"{direction} {door} {dtypes} {shapes} ({len(found)}): {way}; {cells[found[0]][1][:200]}")
    return "\n".join(lines)


def section(framework: str, versions: dict[str, str], outcomes: dict[Cell, str]) -> str:
    said = ", ".join(f"{name} {version}" for name, version in versions.items())
    return f"## {framework}\n\n{said}; {len(outcomes)} cells.\n\n{matrix.table(outcomes)}\n\n{reasons(framework)}\n"


def reasons(framework: str) -> str:
    """Why a cell is no value, view or shared memory, in the words of expected.txt."""
    lines = []
    for rule in dict.fromkeys(matrix.expected(framework).values()):
        if rule.why:
            where = " | ".join(", ".join(patterns) for patterns in rule.patterns)
            lines.append(f"- {where}: {rule.outcome}. {rule.why}".replace("*", "\\*"))
    return "\n".join(lines)


def sections(page: str) -> dict[str, str]:
    head, *rest = page.split("\n## ")
    return {"": head.rstrip("\n") + "\n", **{part.split("\n", 1)[0]: "## " + part.rstrip("\n") + "\n" for part in rest}}


def page(parts: dict[str, str]) -> str:
    return "\n".join(text for name in ("", *ENVIRONMENTS) if (text := parts.get(name, "")))


def test_every_cell_comes_out_as_expected(
    framework: str, new_broker: Callable[..., Broker], request: pytest.FixtureRequest
) -> None:
    expected = matrix.expected(framework)
    versions, cells = run(framework, new_broker())
    assert set(cells) == set(CELLS), f"cells without an outcome: {sorted(set(CELLS) - set(cells))[:5]}"
    wrong = [cell for cell in CELLS if not expected[cell].met(*cells[cell])]
    assert not wrong, f"{len(wrong)} of {len(CELLS)} cells came out otherwise:\n{differences(wrong, cells, expected)}"
    has = sections(PAGE.read_text()) if PAGE.exists() else {"": ""}
    now = section(framework, versions, {cell: outcome for cell, (outcome, _) in cells.items()})
    if request.config.getoption("--update"):
        has[framework] = now
        PAGE.write_text(page(has))
    assert has.get(framework) == now, f"{PAGE} is not what came out: run with --update and commit it"


def test_an_update_without_news_leaves_the_page_as_it_is() -> None:
    text = PAGE.read_text()
    assert page(sections(text)) == text


def test_the_summary_counts_every_cell_once() -> None:
    outcomes = {cell: "copy" if cell.door == "copy" else "view:bits" for cell in CELLS}
    outcomes[Cell("in", "plain", "bool", "0-d")] = "BufferError"
    lines = matrix.summary({"x": outcomes}).splitlines()
    each = len(matrix.DTYPES) * len(matrix.SHAPES)
    assert lines[2] == f"| x | in: plain |  | {each - 1} |  |  |  |  | 1 |"
    assert f"| x | read: copy |  |  |  |  | {each} |  |  |" in lines
    assert sum(int(word) for line in lines[2:] for word in line.split("|") if word.strip().isdigit()) == len(CELLS)


# ---- the file of expectations --------------------------------------------------------------------------


def test_the_expectations_cover_every_cell_and_every_rule_decides_one() -> None:
    for framework in ENVIRONMENTS:
        matrix.expected(framework)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("in | * | * | * | value", "no rule for"),
        ("* | * | * | * | value\nin | * | * | * | value", "lines .3. decide no cell"),
        ("* | * | * | * | BufferError: words", "line 2: BufferError needs a reason"),
        ("* | * | * | * | BufferError | Because.", "line 2: BufferError needs words"),
        ("* | * | * | * | view:bits\nnothing", "line 3: expected"),
    ],
    ids=[
        "cell without a rule",
        "rule that decides nothing",
        "error without a reason",
        "error of any text",
        "line without fields",
    ],
)
def test_expectations_that_would_hide_a_cell_are_refused(text: str, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        matrix.expand("x", matrix.rules("[x]\n" + text)["x"])


def test_a_crash_is_a_failure_that_names_its_cell(
    new_broker: Callable[..., Broker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crash = tmp_path / "python"
    crash.write_text("""#!/bin/sh
echo '{"python": "3"}'
echo '["in", "plain", "bool", "0-d"]'
kill -SEGV $$
""")
    crash.chmod(0o755)
    monkeypatch.setattr("test_matrix.python_of", lambda _: crash)
    with pytest.raises(pytest.fail.Exception, match="status -11 in the cell in plain bool 0-d"):
        run("numpy", new_broker())
