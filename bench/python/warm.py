"""What Python's client costs once it is warm, beside what else there is in the same process.

    reads   a value or a group, as a View and as a NumPy array; beside them np.from_dlpack of an array of our own
    map     map, fill, unmap, and in a with block, which waits for the seal; beside it the same in C (map.c)

What is compared takes turns, a batch of reads or a round of map at a time, so that what disturbs one disturbs all.

Usage: warm.py STAGE LIBRARY ROUNDS
Prints a line for each batch and each round: what it was, and the nanoseconds of one.
"""

import ctypes
import sys
import time
from collections.abc import Callable
from timeit import Timer

import callboard as cb
import numpy as np

BATCH = 200  # reads, some 0.2 ms: few are disturbed
WARM_UP = 20
SHAPE = (3,)

READS = {
    "from_dlpack": "from_dlpack(array)",
    "view": "stage.latest(name)",
    "numpy": "stage.latest(name).numpy()",
    "asarray": "asarray(stage.latest(name))",
    "group": "for group in stage.read_attributes(query, name): group.array()",
}


def measure_reads(stage: cb.Stage, batches: int) -> None:
    name = "bench/read"
    with stage.map(name, shape=SHAPE, dtype="float32") as session:
        session.array[:] = 1
    own = np.zeros(SHAPE, np.float32)
    with stage.query_from_path_list(["/"]) as query:
        names = {"stage": stage, "name": name, "query": query, "array": own}
        names |= {"from_dlpack": np.from_dlpack, "asarray": np.asarray}
        if not np.array_equal(stage.latest(name).numpy(), np.ones(SHAPE, np.float32)):
            raise SystemExit("bench: what is read is not what was written")
        timers = {what: Timer(statement, globals=names) for what, statement in READS.items()}
        for number in range(WARM_UP + batches):
            for what, timer in timers.items():
                seconds = timer.timeit(BATCH)
                if number >= WARM_UP:
                    print(what, seconds / BATCH * 1e9)


def map_in_c(library: str, stage_name: str) -> tuple[Callable[[float], tuple[int, int]], Callable[[], None]]:
    """A round through the C client, which gives the nanoseconds to its unmap and to its seal, and the end of them."""
    c = ctypes.CDLL(library)
    unmapped_ns, sealed_ns = ctypes.c_uint64(), ctypes.c_uint64()
    c.map_connect(stage_name.encode())

    def round_in_c(value: float) -> tuple[int, int]:
        c.map_round(b"bench/map/c", ctypes.c_float(value), ctypes.byref(unmapped_ns), ctypes.byref(sealed_ns))
        return unmapped_ns.value, sealed_ns.value

    return round_in_c, c.map_close


def map_and_unmap(stage: cb.Stage, name: str, value: float) -> int:
    start = time.perf_counter_ns()
    session = stage.map(name)
    session.array[0] = value
    op = session.unmap_attribute()
    unmapped_ns = time.perf_counter_ns() - start
    op.wait()
    return unmapped_ns


def map_and_leave(stage: cb.Stage, name: str, value: float) -> int:
    start = time.perf_counter_ns()
    with stage.map(name) as session:
        session.array[0] = value
    return time.perf_counter_ns() - start


def measure_map(stage: cb.Stage, library: str, stage_name: str, rounds: int) -> None:
    """Each client fills an attribute of its own, so that neither waits for the other's seals."""
    round_in_c, close = map_in_c(library, stage_name)
    name = "bench/map/python"
    for attribute in (name, "bench/map/c"):
        stage.declare(attribute, dtype="float32", row_shape=SHAPE).wait()
    for number in range(WARM_UP + rounds):
        unmap_c, map_c = round_in_c(number)
        unmap_python = map_and_unmap(stage, name, -1)
        map_python = map_and_leave(stage, name, number)
        if number >= WARM_UP:
            print(f"unmap_c {unmap_c}\nunmap_python {unmap_python}\nmap_c {map_c}\nmap_python {map_python}")
    if (stage.latest("bench/map/c").numpy()[0], stage.latest(name).numpy()[0]) != (number, number):
        raise SystemExit("bench: what is read is not what was mapped last")
    close()


def main() -> None:
    stage_name, library, rounds = sys.argv[1:]
    with cb.connect(stage_name, client_name="bench python") as stage:
        measure_reads(stage, max(1, int(rounds) // 10))
        measure_map(stage, library, stage_name, int(rounds))


if __name__ == "__main__":
    main()
