"""A MuJoCo humanoid that moves in the same way every time.

The simulation publishes one; the consumer runs its own beside it and compares. Controls are a function of the step's
number alone, so both take the same path, bit by bit, on the same machine.
"""

import importlib.util
import pathlib

import mujoco
import numpy as np

BODIES = "/World/humanoid"  # the prim of the whole; each body is a prim below it
RESET_EVERY = 2000          # steps; a run that goes on for hours stays in sight
SUBSTEPS = 3                # of 3 ms each


def model_file():
    """The humanoid that gymnasium ships. Nothing of gymnasium is imported."""
    spec = importlib.util.find_spec("gymnasium")
    if spec is None:
        raise SystemExit("gymnasium is not installed: pip install -r examples/demo/requirements.txt")
    return pathlib.Path(spec.origin).parent / "envs" / "mujoco" / "assets" / "humanoid.xml"


class Humanoid:
    """The state after `step` steps. Arrays are MuJoCo's own memory: valid until the next advance."""

    def __init__(self):
        self.model = mujoco.MjModel.from_xml_path(str(model_file()))
        self.data = mujoco.MjData(self.model)
        self.step = 0
        random = np.random.default_rng(seed=20)
        self._speed = random.uniform(0.02, 0.15, self.model.nu)
        self._phase = random.uniform(0.0, 2.0 * np.pi, self.model.nu)
        low, high = self.model.actuator_ctrlrange.T
        self._middle, self._swing = (low + high) / 2, (high - low) / 2

    @property
    def paths(self):
        """One prim for each body but the ground, in the order of the rows below."""
        return [f"{BODIES}/{self.model.body(i).name}" for i in range(1, self.model.nbody)]

    def advance(self):
        if self.step % RESET_EVERY == 0:
            mujoco.mj_resetData(self.model, self.data)
        self.step += 1
        self.data.ctrl[:] = self._middle + self._swing * np.sin(self._speed * self.step + self._phase)
        mujoco.mj_step(self.model, self.data, nstep=SUBSTEPS)
        # A step leaves body positions one step behind the joints; these two bring them up to date.
        mujoco.mj_kinematics(self.model, self.data)
        mujoco.mj_comPos(self.model, self.data)

    @property
    def position(self):
        """Body origins in the world, float64 (bodies, 3), metres."""
        return self.data.xpos[1:]

    @property
    def rotation(self):
        """Body orientations, float64 (bodies, 9), row-major rotation matrices."""
        return self.data.xmat[1:]

    @property
    def joint_position(self):
        """float64 (1, nq): place and quaternion of the root, then one angle per joint, radians."""
        return self.data.qpos[np.newaxis]

    @property
    def joint_velocity(self):
        """float64 (1, nv)."""
        return self.data.qvel[np.newaxis]

    @property
    def centre_of_mass(self):
        """float64 (1, 3), metres."""
        return self.data.subtree_com[1:2]

    def centre_of_mass_of(self, position, rotation):
        """The same, computed from body origins and orientations: needs both to be of one instant."""
        offset = self.model.body_ipos[1:]
        mass = self.model.body_mass[1:]
        centres = position + np.einsum("bij,bj->bi", rotation.reshape(-1, 3, 3), offset)
        return mass @ centres / mass.sum()


# What the simulation publishes at each step, with the property above that holds the simulator's own value.
ATTRIBUTES = {
    "body/position": "position",
    "body/rotation": "rotation",
    "joint/position": "joint_position",
    "joint/velocity": "joint_velocity",
    "humanoid/centre_of_mass": "centre_of_mass",
}
STAMP = "tick/stamp"  # int64, CLOCK_MONOTONIC in ns just before the step was handed over
