"""A camera node: photographs, one frame after the other, filled in place.

The frame's memory is the stage's own and becomes the next version without a copy. The camera has its own pace: each
frame takes the next ordinal of its own attribute and is sealed at once.
"""

import argparse
import time

import callboard as cb
import photographs
from child import Child


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stage", required=True)
    parser.add_argument("--rate", type=float, required=True, help="frames per second")
    options = parser.parse_args()

    child, pictures = Child(), photographs.load()
    with cb.connect(options.stage) as stage:
        child.ready()
        start, frame = time.monotonic(), 0
        while not child.stopped:
            frame += 1
            with stage.map(photographs.ATTRIBUTE, shape=photographs.SHAPE, dtype="uint8") as m:
                photographs.expose(pictures, frame, into=m.array)
            child.sleep(start + frame / options.rate - time.monotonic())
    child.result(frames=frame, bytes=frame * photographs.HEIGHT * photographs.WIDTH * 3)


if __name__ == "__main__":
    main()
