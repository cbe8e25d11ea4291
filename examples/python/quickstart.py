"""The first five minutes: publish an array, fill one in place, look at both, follow changes.

Start a broker first: bin/callboard serve
"""

import callboard as cb
import numpy as np

with cb.connect() as stage:
    # One array under a name. This copies once, and seals: everybody sees all of it, or none.
    frame = np.random.default_rng(1).integers(0, 256, (480, 640, 3), dtype=np.uint8)
    ordinal = stage.publish("camera/rgb", frame)
    print(f"published camera/rgb at ordinal {ordinal}")

    # The same without a copy: fill the memory that others will look at.
    with stage.map("camera/rgb", shape=(480, 640, 3), dtype="uint8") as m:
        m.array[:] = frame[::-1]
    print(f"handed over {'without a copy' if m.op.adopted else 'by a copy'}, ordinal {m.op.ordinal}")

    # A view of the newest value, in place, read-only; valid as long as it lives, whatever is published meanwhile.
    latest = stage.latest("camera/rgb")
    print(latest, "mean", np.asarray(latest).mean())

    # Many rows at once: one attribute over prims, at an ordinal of the application's own.
    start = stage.write_floor() + 1
    with stage.query_from_path_list(["/World/R0", "/World/R1"]) as robots:
        for tick in range(start, start + 3):
            with stage.map_attribute(robots, "position", dtype="float32x3", ordinal=tick) as session:
                session.array[:] = tick
            stage.write_attribute(robots, "mass", np.full(2, 1.5), ordinal=tick)
            stage.advance_write_floor(tick).wait()

        # Both attributes of one instant.
        with stage.read_attributes(robots, ["position", "mass"]) as read:
            for group in read:
                print(group.attribute, group.ordinal, stage.paths.resolve(group.prims), group.array(0).tolist())

    # What others wait for: a snapshot per change. Here the first is there already.
    for snapshot in stage.watch("camera/rgb"):
        print("epoch", snapshot.epoch, snapshot["camera/rgb"].shape)
        break
