"""Spaces, covariances and frames that the tests of the tracker share; functions, no tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from monitor.frames.frame import EgoMotion
from monitor.frames.space import (
    Dimension,
    DimensionKind,
    FloatArray,
    Space,
    plain_space,
)
from monitor.tracking.motion import TrackerSettings
from monitor.tracking.tracker import (
    Sightings,
    Step,
    TrackerModel,
    TrackerState,
    advance,
    new_tracker,
    tracker_model,
)

YAW = Dimension("yaw", "rad", DimensionKind.ANGLE)
AXIS = Dimension("yaw", "rad", DimensionKind.ANGLE_MODULO_PI)
X, XY, XYZ = (plain_space(tuple(names), "m") for names in ("x", "xy", "xyz"))
XY_YAW = Space((*XY.dimensions, YAW))
BOX = Space((*plain_space(tuple("xyzlwh"), "m").dimensions, YAW))
BOX_ALL_JOINT = Space(BOX.dimensions, angles_in_joint=True)
AXIS_FIRST = Space((AXIS, *XY.dimensions), angles_in_joint=True)
ANGLES = Space((YAW, Dimension("tilt", "rad", DimensionKind.ANGLE_MODULO_PI)))
IMAGE = plain_space(("left", "top", "right", "bottom"), "px")
SPACES = (X, XY, XYZ, XY_YAW, BOX, BOX_ALL_JOINT, AXIS_FIRST, ANGLES, IMAGE)


def named(space: Space) -> str:
    """For the id of a test."""
    joint = " all joint" if space.angles_in_joint else ""
    return ",".join(space.names) + joint


def covariances(
    random: np.random.Generator, n: int, k: int, low: float = 0.1, high: float = 1.0
) -> FloatArray:
    """Full ones, (n, K, K); deviations log-uniform from low to high, by dimension."""
    root = random.normal(size=(n, k, k))
    spread = root @ root.transpose(0, 2, 1) + 0.1 * np.eye(k)
    size = np.sqrt(np.diagonal(spread, axis1=1, axis2=2))
    scale = np.exp(random.uniform(np.log(low), np.log(high), (n, k))) / size
    made: FloatArray = scale[:, :, None] * spread * scale[:, None, :]
    return 0.5 * (made + made.transpose(0, 2, 1))


def seen(
    frame: int,
    mean: Iterable[Iterable[float]] | FloatArray,
    *,
    covariance: FloatArray | float = 0.01,
    k: int = 2,
    dt: float = 0.1,
    stamp_ns: int | None = None,
    kind: Iterable[int] | None = None,
    score: Iterable[float] | None = None,
    upstream: Iterable[int | None] | None = None,
    ego: EgoMotion | None = None,
) -> Sightings:
    """A frame: detection j of frame i has the number 1000 i + j + 1.

    covariance  (n, K, K), or the variance of every dimension
    k           dimensions of a frame without detections
    upstream    None for a detection without an id
    """
    rows = mean if isinstance(mean, np.ndarray) else [list(row) for row in mean]
    values = np.array(rows, float) if len(rows) else np.zeros((0, k))
    n, width = values.shape
    if isinstance(covariance, float):
        covariance = np.tile(covariance * np.eye(width), (n, 1, 1))
    ids = None
    if upstream is not None:
        listed = list(upstream)
        ids = (
            np.array([one or 0 for one in listed], np.uint64),
            np.array([one is not None for one in listed], bool),
        )
    return Sightings(
        stamp_ns=round(frame * dt * 1e9) if stamp_ns is None else stamp_ns,
        mean=values,
        covariance=covariance,
        class_index=np.zeros(n, np.int64) if kind is None else np.array(list(kind), np.int64),
        row=np.arange(n),
        number=np.arange(n, dtype=np.uint64) + np.uint64(1000 * frame + 1),
        score=None if score is None else np.array(list(score), float),
        upstream=ids,
        ego=ego,
    )


def model_of(space: Space, **choices: Any) -> TrackerModel:
    """The tracker of a space and three classes, with some choices of its own."""
    return tracker_model(space, 3, TrackerSettings(**choices))


def run(
    model: TrackerModel, frames: Iterable[Sightings], state: TrackerState | None = None
) -> list[Step]:
    """The step of each frame."""
    steps, now = list[Step](), state or new_tracker(model)
    for frame in frames:
        steps.append(advance(model, now, frame))
        now = steps[-1].state
    return steps


def is_sound(model: TrackerModel, step: Step) -> None:
    """What holds after every frame, whatever came: finite, positive definite, within the period."""
    tracks = step.state.tracks
    assert np.isfinite(tracks.state).all()
    assert len(set(tracks.id.tolist())) == tracks.n
    size = np.sqrt(np.diagonal(tracks.covariance, axis1=1, axis2=2))
    assert np.isfinite(size).all() and (size > 0).all()
    scaled = tracks.covariance / (size[:, :, None] * size[:, None, :])
    np.testing.assert_allclose(scaled, scaled.transpose(0, 2, 1), rtol=0, atol=1e-12)
    np.linalg.cholesky(scaled)
    for i, dimension in enumerate(model.motion.space.dimensions):
        if dimension.kind is not DimensionKind.LENGTH:
            half = np.pi if dimension.kind is DimensionKind.ANGLE else np.pi / 2
            assert (np.abs(tracks.state[:, i]) <= half).all()
