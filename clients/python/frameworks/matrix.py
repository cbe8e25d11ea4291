"""The cells of the matrix, and what is expected of each. Only the standard library is needed.

A cell is a framework, a direction, a door, an element type and a shape. expected.txt says the outcome of every cell,
in rules of which the first that fits counts. A rule that decides nothing is an error, as is a cell without a rule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from callboard import _types

DTYPES = tuple(_types._SCALARS)
SHAPES = ("0-d", "zero-size", "size-1", "n-d", "strided", "read-only", "lanes")

# in: the framework's array is written to an attribute. read: a view of a read group goes to the framework.
# map: a view of a map group does, and the framework fills it where it can.
DOORS = {
    "in": ("plain", "legacy", "versioned", "exchange"),
    "read": ("plain", "from_dlpack", "legacy", "versioned", "exchange", "copy"),
    "map": ("plain", "from_dlpack", "legacy", "versioned", "exchange"),
}

# What may come out where no error does.
OUTCOMES = {
    "value": "the right values arrive; a write copies them once, and an array without bytes has none to share",
    "view": "the same memory, and the framework does not write to it",
    "shared": "the same memory, and what the framework writes there arrives in the attribute",
    "unguarded": "the same memory, read-only, and the framework would write to it: the process would be stopped",
    "copy": "memory of the framework's own",
    "absent": "the framework has no such door, type or shape",
}
PLAIN = {"value", "view", "shared"}  # need no reason
# Behind an outcome: as unsigned integers of the same width; one value of no dimensions as an array of shape (1,).
BITS, ONE = ":bits", ":1-d"


class Cell(NamedTuple):
    direction: str
    door: str
    dtype: str
    shape: str

    def __str__(self) -> str:
        return " ".join(self)


CELLS = tuple(
    Cell(direction, door, dtype, shape)
    for direction, doors in DOORS.items()
    for dtype in DTYPES
    for shape in SHAPES
    for door in doors
)


class Rule(NamedTuple):
    line: int
    patterns: tuple[tuple[str, ...], ...]
    outcome: str
    words: str  # of an exception, or of what is absent
    why: str

    def met(self, outcome: str, said: str) -> bool:
        return outcome == self.outcome and self.words in said

    def fits(self, cell: Cell) -> bool:
        return all(
            any(fnmatchcase(value, pattern) for pattern in patterns)
            for value, patterns in zip(cell, self.patterns, strict=True)
        )


def rules(text: str) -> dict[str, list[Rule]]:
    """The rules of each framework: `direction | door | dtype | shape | outcome | why` under `[framework]`."""
    found: dict[str, list[Rule]] = {}
    framework: list[Rule] | None = None
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        if line.startswith("["):
            framework = found.setdefault(line.strip("[]"), [])
            continue
        fields = [field.strip() for field in line.split("|")]
        if framework is None or len(fields) not in (5, 6):
            raise ValueError(f"line {number}: expected direction | door | dtype | shape | outcome | why, not {line!r}")
        outcome, _, words = fields[4].partition(": ")
        rule = Rule(number, tuple(tuple(f.split(",")) for f in fields[:4]), outcome, words, "".join(fields[5:]))
        if not rule.why and outcome.split(":")[0] not in PLAIN:
            raise ValueError(f"line {number}: {outcome} needs a reason")
        if not words and (outcome.endswith("Error") or outcome == "absent"):
            raise ValueError(f"line {number}: {outcome} needs words of its text")
        framework.append(rule)
    return found


def expand(framework: str, rules: list[Rule]) -> dict[Cell, Rule]:
    """The rule of every cell."""
    chosen = {cell: next((rule for rule in rules if rule.fits(cell)), None) for cell in CELLS}
    missing = [str(cell) for cell, rule in chosen.items() if rule is None]
    if missing:
        raise ValueError(f"{framework}: no rule for {len(missing)} cells, the first is {missing[0]!r}")
    used = {rule.line for rule in chosen.values() if rule is not None}
    idle = [rule.line for rule in rules if rule.line not in used]
    if idle:
        raise ValueError(f"{framework}: the rules of lines {idle} decide no cell")
    return {cell: rule for cell, rule in chosen.items() if rule is not None}


def expected(framework: str) -> dict[Cell, Rule]:
    text = (Path(__file__).parent / "expected.txt").read_text()
    return expand(framework, rules(text)[framework])


# ---- as a table --------------------------------------------------------------------------------------


def _names(names: list[str], all_of: tuple[str, ...], every: str) -> str:
    return every if len(names) == len(all_of) else " ".join(names)


def _same(outcomes: dict[Cell, str], direction: str) -> Iterator[tuple[list[str], list[str], tuple[str, ...]]]:
    """Element types and shapes with one row of outcomes: types that agree in all shapes are told together."""
    doors = DOORS[direction]
    by_types: dict[tuple[tuple[str, ...], ...], list[str]] = {}
    for dtype in DTYPES:
        rows = tuple(tuple(outcomes[Cell(direction, door, dtype, shape)] for door in doors) for shape in SHAPES)
        by_types.setdefault(rows, []).append(dtype)
    for rows, dtypes in by_types.items():
        by_row: dict[tuple[str, ...], list[str]] = {}
        for shape, row in zip(SHAPES, rows, strict=True):
            by_row.setdefault(row, []).append(shape)
        for row, shapes in by_row.items():
            yield dtypes, shapes, row


def table(outcomes: dict[Cell, str]) -> str:
    """The outcomes in Markdown, one table for each direction; equal rows are told once."""
    parts = []
    for direction, doors in DOORS.items():
        lines = [f"| {direction}: dtype | shape | " + " | ".join(doors) + " |", "|---" * (len(doors) + 2) + "|"]
        before: list[str] = []
        for dtypes, shapes, row in _same(outcomes, direction):
            first = "" if dtypes == before else _names(dtypes, DTYPES, "all")
            lines.append(f"| {first} | {_names(shapes, SHAPES, 'all')} | " + " | ".join(row) + " |")
            before = dtypes
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def summary(outcomes: dict[str, dict[Cell, str]]) -> str:
    """How many cells of each framework and door came out how, in Markdown."""
    kinds = (*OUTCOMES, "error")
    lines = ["| framework | door | " + " | ".join(kinds) + " |", "|---" * (len(kinds) + 2) + "|"]
    for framework, cells in outcomes.items():
        for direction, doors in DOORS.items():
            for door in doors:
                found = [o.split(":")[0] for cell, o in cells.items() if cell[:2] == (direction, door)]
                counts = Counter(kind if kind in OUTCOMES else "error" for kind in found)
                numbers = " | ".join(str(counts[kind] or "") for kind in kinds)
                lines.append(f"| {framework} | {direction}: {door} | {numbers} |")
    return "\n".join(lines)


def main() -> None:
    """For the end of `make test`, whose tests found every cell as it is expected."""
    frameworks = rules((Path(__file__).parent / "expected.txt").read_text())
    print("# The matrix\n\nCells of docs/frameworks/matrix.md; of torch and tensorflow: by `make test-frameworks`.\n")
    print(summary({name: {cell: rule.outcome for cell, rule in expected(name).items()} for name in frameworks}))


if __name__ == "__main__":
    main()
