"""The motion model of a stream: which dimensions have a velocity, and what disturbs them.

Only importer of filterpy, whose functions give F and Q for one second; a frame's own
time step scales them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

from monitor.calibration.space import Dimension, DimensionKind, FloatArray, IntArray, Space
from monitor.tracking.settings import DimensionNoise, TrackerSettings


@dataclass(frozen=True)
class MotionModel:
    """Constant velocity for some dimensions, random walk for the others.

    The state holds the K dimensions of the space, then the V velocities: H = [I 0].

    moving         (V,) positions in the space of the dimensions with a velocity
    transition     (S, S) F for one second
    diffusion      (S, S) Q for one second
    initial_speed  (V,) standard deviation of a velocity that is not yet known
    missing        (K,) variance of a detection whose covariance is missing
    """

    space: Space
    moving: IntArray
    transition: FloatArray
    diffusion: FloatArray
    initial_speed: FloatArray
    missing: FloatArray

    @property
    def k(self) -> int:
        """Number of measured dimensions."""
        return self.space.k

    @property
    def size(self) -> int:
        """Number of states S = K + V."""
        return int(self.space.k + self.moving.size)

    @cached_property
    def dimensions(self) -> tuple[Dimension, ...]:
        """Of the state: the space's own, then `<name>_velocity` in unit/s."""
        measured = self.space.dimensions
        return measured + tuple(
            Dimension(f"{measured[i].name}_velocity", f"{measured[i].unit}/s")
            for i in self.moving.tolist()
        )

    @cached_property
    def _powers(self) -> tuple[FloatArray, FloatArray]:
        """The power of the time step by which each entry of F and of Q grows."""
        velocity = np.zeros(self.size)
        velocity[self.k :] = 1.0
        # ẋ enters x with Δt; white acceleration enters (x, x), (x, ẋ), (ẋ, ẋ) with Δt³, Δt², Δt;
        # a random walk, which has no velocity, enters with Δt.
        order = np.zeros(self.size)
        order[self.moving] = 1.0
        return np.maximum(velocity[None, :] - velocity[:, None], 0.0), order[:, None] + order + 1.0

    def step(self, seconds: float) -> tuple[FloatArray, FloatArray]:
        """F and Q for a time step ≥ 0, (S, S) each.

        A step of a + b gives what a step of a and then one of b give: a frame that is
        skipped changes nothing but the detections it would have brought.
        """
        transition, diffusion = self._powers
        return self.transition * seconds**transition, self.diffusion * seconds**diffusion


@cache
def one_second() -> tuple[FloatArray, FloatArray]:
    """F and Q, (2, 2) each, of one dimension with constant velocity and unit density."""
    # The package takes half a second to import, which a sidecar without a tracker need not spend.
    from filterpy.common import Q_continuous_white_noise, kinematic_state_transition

    return kinematic_state_transition(1, 1.0), Q_continuous_white_noise(2, 1.0, 1.0)


def motion_model(space: Space, settings: TrackerSettings) -> MotionModel:
    """The model of a space.

    Dimensions with a velocity are the lengths named in the settings; where none of them
    is, all lengths: the edges of an image box all move.
    """
    dimensions = space.dimensions
    lengths = [i for i, d in enumerate(dimensions) if d.kind is DimensionKind.LENGTH]
    named = [i for i in lengths if dimensions[i].name in settings.velocity_dimensions]
    moving = np.array(named or lengths, np.int64)
    k, size = space.k, space.k + moving.size
    own = [settings.dimensions.get(d.name, DimensionNoise()) for d in dimensions]

    transition, diffusion = np.eye(size), np.zeros((size, size))
    constant_velocity, white_acceleration = one_second()
    for i, dimension in enumerate(dimensions):
        if i in moving:
            velocity = k + int(np.searchsorted(moving, i))
            block = np.ix_([i, velocity], [i, velocity])
            transition[block] = constant_velocity
            diffusion[block] = white_acceleration * _chosen(
                own[i].density, settings.acceleration_density
            )
        else:
            angle = dimension.kind is not DimensionKind.LENGTH
            general = settings.turn_density if angle else settings.walk_density
            diffusion[i, i] = _chosen(own[i].density, general)
    return MotionModel(
        space=space,
        moving=moving,
        transition=transition,
        diffusion=diffusion,
        initial_speed=np.array(
            [_chosen(own[i].initial_speed, settings.initial_speed) for i in moving.tolist()]
        ),
        missing=np.array(
            [_chosen(noise.missing_deviation, settings.missing_deviation) ** 2 for noise in own]
        ),
    )


def _chosen(own: float | None, general: float) -> float:
    return general if own is None else own
