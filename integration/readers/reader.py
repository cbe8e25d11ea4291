"""A reader in Python for the integration tests, beside those in Go and C.

    reader.py stress N   takes snapshots, checks every row and reports in one JSON line: after a line on standard
                         input, and not before N snapshots
    reader.py latest A   prints the first element of attribute A, newest state

What does not work is told on standard error, by its name and text, with exit status 1. Stamps, columns and checks
are those of stress_roles_test.go.
"""

from __future__ import annotations

import json
import select
import sys

import callboard as cb
import numpy as np

ALPHA_ROWS, GAMMA_ROWS, SCATTER_PARTS, HELD_FOR = 512, 3072, 6, 12
ROW = np.arange(GAMMA_ROWS, dtype=np.uint64)


class Stress:
    def __init__(self, stage: cb.Stage) -> None:
        self.stage = stage
        self.counts = dict.fromkeys(("Snapshots", "Held", "Torn", "Mixed", "Refused"), 0)
        self.first = ""
        self.pairs = [
            (stage.query_from_path_list([f"/a/{i}" for i in range(ALPHA_ROWS)]), ("alpha", "beta"), ALPHA_ROWS),
            (stage.query_from_path_list([f"/g/{i}" for i in range(GAMMA_ROWS)]), ("gamma", "delta"), GAMMA_ROWS),
        ]

    def note(self, what: str, text: str, count: int = 1) -> None:
        """Counts what must not be and keeps the first text."""
        self.counts[what] += count
        self.first = self.first or "Python: " + text

    def check(self, group: cb.ReadGroup) -> None:
        """Every word of row i is the ordinal that wrote the row, and i."""
        rows = np.asarray(group.array())
        if group.index_map is not None:
            rows = rows[np.asarray(group.index_map)]
        numbers = ROW[: len(rows)]
        by = np.full(len(rows), group.ordinal, np.uint64)
        if group.attribute in ("gamma", "delta"):
            back = (by + np.uint64(SCATTER_PARTS) - numbers % SCATTER_PARTS) % SCATTER_PARTS
            by = np.where(by > back + 1, by - back, 1).astype(np.uint64)
        want = (by << np.uint64(20)) | numbers
        wrong = (rows.reshape(len(rows), -1) != want[:, None]).any(axis=1)
        if wrong.any():
            i = int(wrong.argmax())
            where = f"{group.attribute}, epoch {group.epoch}, ordinal {group.ordinal}: row {i}"
            self.note("Torn", f"{where} is {rows[i]}, expected {want[i]}", int(wrong.sum()))

    def look(self, hold: bool) -> None:
        """Reads both pairs at one epoch and checks them; `hold`: once more over later commits."""
        with self.stage.snapshot() as snapshot:
            self.counts["Snapshots"] += 1
            groups: list[cb.ReadGroup] = []
            for query, names, rows in self.pairs:
                with snapshot.read(query, names) as read:
                    pair = list(read)
                groups += pair
                for group in pair:
                    floor = snapshot.floor(group.attribute)
                    if floor != group.ordinal or group.prim_count != rows:
                        what = f"ordinal {group.ordinal}, floor {floor}, {group.prim_count} rows of {rows}"
                        self.note("Mixed", f"epoch {snapshot.epoch}: {group.attribute} has {what}")
                if len(pair) != 2 or pair[0].ordinal != pair[1].ordinal:
                    self.note("Mixed", f"epoch {snapshot.epoch}: ordinals {[g.ordinal for g in pair]}, expected a pair")
            for group in groups:
                self.check(group)
            if hold:
                later = snapshot.epoch
                while later < snapshot.epoch + HELD_FOR:
                    later = self.stage.follow(later)
                for group in groups:
                    self.check(group)
                self.counts["Held"] += 1
            for group in groups:
                group.release()

    def run(self, least: int) -> None:
        print('"ready"', flush=True)
        epoch = 0
        while self.counts["Snapshots"] < least or not select.select([sys.stdin], [], [], 0)[0]:
            epoch = self.stage.follow(epoch)
            try:
                self.look(self.counts["Snapshots"] % 8 == 7)
            except cb.CallboardError as error:
                self.note("Refused", f"read after {self.counts['Snapshots']} snapshots: {error!r}")
        print(json.dumps({**self.counts, "First": self.first}), flush=True)


def main(verb: str, argument: str) -> None:
    try:
        with cb.connect(client_name="reader", read_only=True) as stage:
            if verb == "stress":
                Stress(stage).run(int(argument))
            else:
                print(int(np.asarray(stage.latest(argument)).flat[0]))
    except cb.CallboardError as error:
        sys.exit(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main(*sys.argv[1:])
