"""A producer or a follower that lives through deaths of the broker, until its input ends: see restart.c."""

import json
import select
import sys
import time

import callboard as cb
import numpy as np

ROWS = 64


def goes_on() -> bool:
    return not select.select([sys.stdin], [], [], 0)[0]


def tick(stage: cb.Stage, query: cb.Query, names: list[str], n: int) -> None:
    values = np.full(ROWS, n, "i8")
    stage.write_attribute(query, names[0], values, ordinal=n).release()
    with stage.map_attribute(query, names[1], dtype="i8", ordinal=n) as session:
        session.array[:] = values
    stage.advance_write_floor(n, scope=cb.Scope.INCLUDE, attributes=names).wait()


def produce(stage: cb.Stage, query: cb.Query, names: list[str]) -> dict[str, int]:
    n = restarted = maybe = 0
    while goes_on():
        try:
            tick(stage, query, names, n + 1)
            n += 1
        except cb.BrokerRestarted as error:
            restarted += 1
            maybe += error.sealed_maybe
            n = max(n, stage.write_floor(names[1]))
            time.sleep(0.002)
        except cb.QueueFull:
            time.sleep(0.001)
    return {"ticks": n, "restarted": restarted, "maybe": maybe}


def follow(stage: cb.Stage, query: cb.Query, names: list[str]) -> dict[str, int]:
    epoch = reads = last = 0
    more = True
    while more:
        more = goes_on()  # before it looks: the last look is at what was there at the end
        try:
            epoch = stage.follow(epoch, 0.05)
        except cb.Timeout:
            pass
        seen = 0
        with stage.read_attributes(query, names) as read:
            for group in read:
                values = group.array(0)
                low, high = int(values.min()), int(values.max())
                if not (low == high == group.ordinal and low >= last and seen in (0, low)):
                    sys.exit(f"{group.attribute} holds {low} to {high} at ordinal {group.ordinal}, after {last}")
                seen = low
                group.release()
        last = seen
        reads += 1
    return {"reads": reads, "last": last}


def main() -> None:
    with cb.connect() as stage, stage.query_from_path_list([f"/row/{i}" for i in range(ROWS)]) as query:
        print(json.dumps("ready"), flush=True)
        run = produce if sys.argv[1] == "produce" else follow
        print(json.dumps(run(stage, query, [sys.argv[2], sys.argv[2] + "/map"])), flush=True)


main()
