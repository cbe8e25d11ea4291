"""Many queries that are released at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from driver import Command


class Hoard:
    """Verbs of Driver."""

    stage: Any
    hoarded: list[Any]

    def do_hoard(self, c: Command) -> str:
        self.hoarded = [self.stage.query_from_path_list(c.args) for _ in range(c.number("n"))]
        return ""

    def do_discard(self, c: Command) -> str:
        for query in self.hoarded:
            query.release()
        return f"released={len(self.hoarded)}"
