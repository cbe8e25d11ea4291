"""A node with one event loop, asyncio's: two stages beside its input; see loop.c."""

import asyncio
import json
import os
import sys

import callboard as cb


def report(**what: object) -> None:
    print(json.dumps(what), flush=True)


async def main() -> None:
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    stages, seen = [], [0, 0]
    for place in range(2):
        os.environ["CALLBOARD_RUNTIME_DIR"] = sys.argv[1 + 2 * place]
        stages.append(cb.connect(sys.argv[2 + 2 * place], reattach_timeout=8))

    def look(source: int) -> None:
        try:
            epoch = stages[source].drain()
        except cb.SessionEnded:
            loop.remove_reader(stages[source].fileno())  # it stays readable
            epoch = 0
        if epoch != seen[source]:
            seen[source] = epoch
            report(source=source, epoch=epoch)

    def read() -> None:
        line = os.read(0, 64).decode().strip()
        if line:
            report(source=2, line=line)
        else:
            ended.set()

    for place, stage in enumerate(stages):
        loop.add_reader(stage.fileno(), look, place)
    loop.add_reader(0, read)
    print(json.dumps("ready"), flush=True)
    await asyncio.wait_for(ended.wait(), 180)
    for stage in stages:
        loop.remove_reader(stage.fileno())
        stage.close()


asyncio.run(main())
