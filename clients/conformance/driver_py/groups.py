"""Verbs about groups to fill: of own sessions, and claimed of others'."""

from __future__ import annotations

from typing import Any

import callboard as cb
import numpy as np


class Groups:
    """What the driver knows of groups; mixed into Driver."""

    stage: Any
    handles: dict[str, Any]

    def __init__(self) -> None:
        self.listed = 0  # the session whose groups were listed last

    def hold_group(self, name: str, g: cb.Group) -> str:
        self.handles[name] = g
        arrays = [np.asarray(g.array(i)) for i in range(g.rows if g.is_array else 1)]
        shape = ";".join(",".join(map(str, a.shape)) for a in arrays)
        data = ";".join(a.tobytes().hex() for a in arrays)
        prims, kind = ",".join(map(str, g.prims)), "array" if g.is_array else "fixed"
        return (
            f"/ kind={kind} rows={g.rows} index={g.index} attempt={g.attempt} prims={prims} shape={shape}"
            f" type={g.dtype.code}:{g.dtype.bits}:{g.dtype.lanes} data={data}"
        )

    def do_next(self, c: Any) -> str:
        """Claims a session's next group, or gives none."""
        g = self.handles[c.args[0]].fetch_map_next()
        return "" if g is None else self.hold_group(f"{c.args[0]}.{g.index}", g)

    def do_open(self, c: Any) -> str:
        groups = self.stage.list_groups(c.args[0])
        for g in groups:
            self.listed = g.session
        columns = {"indexes": "index", "attempts": "attempt", "rows": "rows"}
        return f"open={len(groups)} " + " ".join(
            f"{key}=" + ",".join(str(getattr(g, field)) for g in groups) for key, field in columns.items()
        )

    def do_claim(self, c: Any) -> str:
        g = self.stage.claim_group(self.listed, c.number("index") if "index" in c.opt else None)
        return "" if g is None else self.hold_group(c.args[0], g)

    def do_giveup(self, c: Any) -> str:
        self.handles[c.args[0]].give_up()
        return ""

    def do_work(self, c: Any) -> str:
        """Each byte of a row is the place of its prim in the session's query."""

        def fill(g: cb.Group) -> None:
            if g.is_array:
                for i in range(g.rows):
                    np.asarray(g.array(i, flat=True)).view(np.uint8)[:] = g.first_prim + i
                return
            g.array(0, flat=True).view(np.uint8).reshape(g.rows, -1)[:] = (
                np.arange(g.rows, dtype=np.uint8)[:, None] + g.first_prim
            )

        left = c.number("n")
        while left > 0:
            left -= self.stage.work_on(c.args[0], fill, idle=0)
        return ""
