"""A simulation node: a humanoid that publishes its bodies and joints at every step.

All attributes of a step are written at one ordinal, the step's number, and sealed together, so that readers see the
whole step or none of it. Body positions are written in place, into memory that becomes the next version without a copy.
The others are handed over as arrays, which copies them once.
"""

import argparse
import time

import callboard as cb
import numpy as np
from child import Child
from humanoid import ATTRIBUTES, BODIES, STAMP, Humanoid


def publish(stage, world, bodies, whole, ordinal):
    """One step of the world, sealed at the ordinal."""
    at = {"ordinal": ordinal}
    ops = [
        stage.write_attribute(bodies, "body/rotation", world.rotation, semantic=cb.Semantic.MATRIX, **at),
        stage.write_attribute(whole, "joint/position", world.joint_position, **at),
        stage.write_attribute(whole, "joint/velocity", world.joint_velocity, **at),
        stage.write_attribute(whole, "humanoid/centre_of_mass", world.centre_of_mass, semantic=cb.Semantic.POINT, **at),
    ]
    with stage.map_attribute(bodies, "body/position", dtype="float64x3", **at) as session:
        for group in session:
            group.array(0)[:] = world.position
        ops.append(stage.write_attribute(whole, STAMP, np.array([time.monotonic_ns()]), **at))
    ops.append(stage.advance_write_floor(ordinal, scope=cb.Scope.INCLUDE, attributes=[*ATTRIBUTES, STAMP]))
    for op in reversed(ops):  # the seal is the last to complete: one wait, and the others are there already
        op.wait(timeout=10.0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stage", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--rate", type=float, required=True, help="steps per second")
    parser.add_argument("--keep", action="store_true", help="go on after the last step until told to end")
    options = parser.parse_args()

    child, world = Child(), Humanoid()
    with cb.connect(options.stage) as stage:
        bodies = stage.query_from_path_list(world.paths)
        whole = stage.query_from_path_list([BODIES])
        child.ready()
        start = time.monotonic()
        while not child.stopped:
            world.advance()
            child.sleep(start + world.step / options.rate - time.monotonic())
            publish(stage, world, bodies, whole, world.step)
            if world.step == options.steps:
                child.result(steps=world.step, seconds=time.monotonic() - start)
                if not options.keep:
                    break


if __name__ == "__main__":
    main()
