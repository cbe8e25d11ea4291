"""Verbs that do the same many times."""

from __future__ import annotations

import gc
import sys
import time
from typing import Any

import callboard as cb
import numpy as np

LIMIT = 20.0
PERIOD = 0.003  # seconds from round to round of a race


class Rounds:
    """Mixed into Driver."""

    stage: Any
    handles: dict[str, Any]

    def do_race(self, c: Any) -> str:
        """Inserts a prim per round when the clock strikes, and tells in which rounds it was the first; another process
        does the same."""
        won, lost = [], []
        for i in range(c.number("n")):
            with self.stage.query_from_path_list([f"{c.args[1]}/{i}"]) as q:
                time.sleep(max(0.0, c.number("clock") / 1000 + i * PERIOD - time.time()))
                try:
                    self.stage.write_attribute(
                        q,
                        c.args[0],
                        np.array([c.number("value")], np.uint64),
                        ordinal=1,
                        prim_mode=cb.PrimMode.INSERT,
                    ).wait(LIMIT)
                except cb.AlreadyExists:
                    lost.append(i)
                else:
                    won.append(i)
        return f"won={','.join(map(str, won))} lost={','.join(map(str, lost))}"

    def do_deletes(self, c: Any) -> str:
        """Writes, deletes and seals all rows n times, at ordinals of their own."""
        query, name = self.handles[c.args[0]], c.args[1]
        values = np.zeros(len(query), np.uint8)
        for i in range(1, 2 * c.number("n"), 2):
            self.stage.write_attribute(query, name, values, ordinal=i)
            self.stage.delete_attributes(query, [name], ordinal=i + 1)
            self.stage.advance_write_floor(i + 1, scope=cb.Scope.INCLUDE, attributes=[name]).wait(LIMIT)
        return ""

    def do_cycles(self, c: Any) -> str:
        """Makes lists and gives them back, and tells by how many bytes the heap grew at least: a block has 16."""
        gc.collect()
        before = sys.getallocatedblocks()
        for _ in range(c.number("n")):
            self.stage.paths.list([1, 2, 3]).release()
        gc.collect()
        return f"grown={16 * max(0, sys.getallocatedblocks() - before)}"

    def do_frames(self, c: Any) -> str:
        """Reads with one query, and a snapshot each time."""
        query, groups = self.handles[c.args[0]], 0
        for _ in range(c.number("n")):
            with self.stage.snapshot() as snapshot, snapshot.read(query, [c.args[1]]) as read:
                for group in read:
                    group.release()
                    groups += 1
        return f"groups={groups}"
