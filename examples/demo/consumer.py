"""A consumer: takes one consistent snapshot per change, computes on it in place and checks every value.

It runs a humanoid of its own beside the published one. So it knows what the simulator's values are at every step, and a
row of another step, a byte of another frame or an attribute that is one step ahead would show.
"""

import argparse
import time

import callboard as cb
import numpy as np
import photographs
from child import Child
from humanoid import ATTRIBUTES, BODIES, STAMP, Humanoid

TOLERANCE = 1e-9  # of what is computed here in another order of operations than in the simulator


class Check:
    """Counts what was compared, and what differs."""

    def __init__(self, pictures):
        self.world = Humanoid()
        self.pictures = pictures
        self.snapshots = self.torn = self.wrong = self.values = self.frames = self.frames_wrong = 0
        self.first_difference = ""
        self.frame = 0

    def differs(self, text):
        self.first_difference = self.first_difference or text

    def tick(self, groups):
        """The attributes of the simulation in one snapshot: name → (ordinal, array)."""
        ordinals = {ordinal for ordinal, _ in groups.values()}
        if len(ordinals) != 1 or len(groups) != len(ATTRIBUTES) + 1:
            self.torn += 1
            held = {name: ordinal for name, (ordinal, _) in groups.items()}
            self.differs(f"one snapshot holds ordinals {held}: expected all attributes, with one ordinal")
            return
        step = ordinals.pop()
        while self.world.step < step:
            self.world.advance()
        for name, own in ATTRIBUTES.items():
            self.compare(step, name, groups[name][1], getattr(self.world, own))
        position, rotation = groups["body/position"][1], groups["body/rotation"][1]
        matrices = rotation.reshape(-1, 3, 3)
        unit = np.broadcast_to(np.eye(3), matrices.shape)
        self.compare(step, "rotation times its transpose", matrices @ matrices.transpose(0, 2, 1), unit, TOLERANCE)
        centre = self.world.centre_of_mass_of(position, rotation)
        self.compare(step, "centre of mass from bodies", centre, groups["humanoid/centre_of_mass"][1][0], TOLERANCE)

    def compare(self, step, name, found, expected, tolerance=0.0):
        equal = np.abs(found - expected) <= tolerance
        self.values += equal.size
        if not equal.all():
            self.wrong += equal.size - int(np.count_nonzero(equal))
            first = np.argmin(equal)
            here, own = float(found.flat[first]), float(np.asarray(expected).flat[first])
            self.differs(f"step {step}: {name}, value {first}, is {here!r}: the simulator has {own!r}")

    def camera(self, number, frame):
        if number == self.frame:
            return  # seen already: the simulation moved, not the camera
        self.frame = number
        self.frames += 1
        if not photographs.matches(self.pictures, number, frame):
            self.frames_wrong += 1
            self.differs(f"camera frame {number} is not the photograph that was published")


def groups_of(snapshot, query, names):
    """name → (ordinal, array) of one query at the snapshot's epoch; the arrays are views, nothing is copied."""
    with snapshot.read(query, names) as read:
        return {group.attribute: (group.ordinal, group.array(0)) for group in read}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stage", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--keep", action="store_true", help="go on after the last step until told to end")
    options = parser.parse_args()

    child, check = Child(), Check(photographs.load())
    latency_us = []
    with cb.connect(options.stage) as stage:
        bodies = stage.query_from_path_list(check.world.paths)
        whole = stage.query_from_path_list([BODIES])
        camera = stage.query_from_path_list([photographs.PRIM])
        of_bodies = [name for name in ATTRIBUTES if name.startswith("body/")]
        of_whole = [name for name in ATTRIBUTES if name not in of_bodies] + [STAMP]
        child.ready()
        epoch, reported = 0, False
        while not child.stopped:
            waiting_since = time.monotonic_ns()
            try:
                epoch = stage.follow(after=epoch, timeout=0.2)
            except cb.Timeout:
                continue  # and look whether to stop
            with stage.snapshot() as snapshot:
                groups = groups_of(snapshot, whole, of_whole)
                now = time.monotonic_ns()
                groups |= groups_of(snapshot, bodies, of_bodies)
                frames = groups_of(snapshot, camera, [photographs.ATTRIBUTE])
            check.snapshots += 1
            for number, frame in frames.values():
                check.camera(number, frame[0])
            if groups:
                fresh = STAMP in groups and groups[STAMP][0] > check.world.step
                if fresh and groups[STAMP][1][0] >= waiting_since:  # else the time that this loop was busy would count
                    latency_us.append((now - int(groups[STAMP][1][0])) / 1e3)
                check.tick(groups)
            if check.first_difference:
                child.failure(check.first_difference)
            if check.snapshots % 20 == 0:
                child.progress(check.world.step)
            if check.world.step >= options.steps and not reported:
                reported = True
                child.progress(check.world.step)
                report(child, check, latency_us)
                if not options.keep:
                    break


def report(child, check, latency_us):
    p50, p99 = np.percentile(latency_us, [50, 99]) if latency_us else (0.0, 0.0)
    child.result(
        last_step=check.world.step,
        snapshots=check.snapshots,
        torn=check.torn,
        values=check.values,
        values_wrong=check.wrong,
        frames=check.frames,
        frames_wrong=check.frames_wrong,
        latency_p50_us=float(p50),
        latency_p99_us=float(p99),
        latencies=len(latency_us),
    )


if __name__ == "__main__":
    main()
