"""The round of latency.c through the Python client's short form: map and latest.

Usage: latency.py STAGE ATTRIBUTE BYTES ROUNDS WARM_UP_ROUNDS SECONDS ...
Prints what latency.c prints: cycle and handoff in nanoseconds, one line per round.
Leaving the block of `map` waits for the broker's answer while the reader is at work.
"""

import os
import struct
import sys
import time

import callboard as cb

STAMP = struct.Struct("<QQQ")  # round, time before map, time before the block is left
SAMPLE = struct.Struct("<QQ")  # cycle, handoff
ROUNDS_MIN = 3


def read_rounds(stage_name: str, attribute: str, declared: int, answers: int) -> None:
    stage = cb.connect(stage_name, client_name="bench reader")
    os.read(declared, 1)
    epoch = stage.epoch
    os.write(answers, b"\0" * SAMPLE.size)
    expected = 1
    while True:
        epoch = stage.follow(epoch)
        value = stage.latest(attribute)
        number, started_ns, unmap_ns = STAMP.unpack_from(value)
        now = time.monotonic_ns()
        del value
        if number != expected:
            raise SystemExit(f"bench: the reader found round {number}, expected {expected}")
        expected += 1
        os.write(answers, SAMPLE.pack(now - started_ns, now - unmap_ns))


def answer(answers: int) -> tuple[int, int]:
    data = os.read(answers, SAMPLE.size)
    if not data:
        raise SystemExit("bench: the reader ended early")
    return SAMPLE.unpack(data)


def main() -> None:
    stage_name, attribute, size, rounds, warm_up, seconds = sys.argv[1:7]
    declared, declare = os.pipe()
    answers, respond = os.pipe()
    reader = os.fork()  # before anything is attached
    if reader == 0:
        os.close(declare)
        os.close(answers)
        read_rounds(stage_name, attribute, declared, respond)
    os.close(respond)
    try:
        stage = cb.connect(stage_name, client_name="bench producer")
        shape = (int(size),)
        stage.declare(attribute, dtype="uint8", row_shape=shape).wait()
        os.write(declare, b"!")
        answer(answers)
        samples = []
        until = time.monotonic() + float(seconds)
        number = 0
        while len(samples) < int(rounds):
            number += 1
            started_ns = time.monotonic_ns()
            with stage.map(attribute, shape=shape, dtype="uint8") as session:
                STAMP.pack_into(session.array, 0, number, started_ns, time.monotonic_ns())
            sample = answer(answers)
            if number > int(warm_up):
                samples.append(sample)
            else:
                until = time.monotonic() + float(seconds)
            if len(samples) >= ROUNDS_MIN and time.monotonic() >= until:
                break
        stage.close()
    finally:
        os.kill(reader, 9)
        os.waitpid(reader, 0)
    for cycle_ns, handoff_ns in samples:
        print(cycle_ns, handoff_ns)


if __name__ == "__main__":
    main()
