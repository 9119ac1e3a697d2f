"""The axes that tracks are given in: how they turn when the sensor moves or a heading flips.

Tracks move from the sensor's axes of one frame into those of the next. A detector that takes
the back of a car for its front reports a heading that is off by π; such a heading is read
modulo π, and each track keeps votes on which end is the front.
"""

from __future__ import annotations

import numpy as np

from monitor.frames.frame import EgoMotion, Pose, Twist
from monitor.frames.space import DimensionKind, FloatArray, Space
from monitor.tracking.kalman import MotionModel, regular

# Weight of a vote one detection later: about ten votes are remembered.
_MEMORY = 0.9
# Beyond these it is no vehicle: m, m/s, rad/s.
_FARTHEST, _FASTEST, _QUICKEST_TURN = 1e9, 1e3, 1e2
# Units of lengths that the motion of a sensor, which is in metres, can be taken from.
_METRES = ("m", "")


def flipping_dimension(space: Space, heading: str) -> int | None:
    """Finds the dimension that may be off by π: the named one, if it is an angle modulo 2π."""
    for i, dimension in enumerate(space.dimensions):
        if dimension.name == heading and dimension.kind is DimensionKind.ANGLE:
            return i
    return None


def fold(innovation: FloatArray, votes: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Reads innovations of the heading modulo π, and counts votes on which end is the front.

    innovation  (m,) wrapped into [−π, π)
    votes       (m,) how much more the front was seen as the front; 1 when a track is born
    returns     (m,) innovations within ±π/2; (m,) votes with those of this frame: below 0,
                the track's heading must be turned by π
    """
    opposite = np.abs(innovation) > np.pi / 2
    folded = np.where(opposite, innovation - np.copysign(np.pi, innovation), innovation)
    return folded, _MEMORY * votes + np.where(opposite, -1.0, 1.0)


class InvalidEgoMotion(ValueError):
    """The sensor motion of a frame cannot be used; names the field and the reason."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


def checked_motion(ego: EgoMotion) -> EgoMotion:
    """Checks a motion, and scales its quaternion to unit length. Raises InvalidEgoMotion."""
    pose, twist = ego.pose, ego.twist
    if pose is not None:
        _check("ego_pose.position", pose.position, 3, _FARTHEST)
        _check("ego_pose.orientation", pose.orientation, 4, 1e6)
        length = float(np.linalg.norm(pose.orientation))
        if length < 1e-6:
            raise InvalidEgoMotion(
                "ego_pose.orientation", "all zero; send a unit quaternion w, x, y, z."
            )
        pose = Pose(pose.position, pose.orientation / length)
    if twist is not None:
        _check("ego_twist.linear", twist.linear, 3, _FASTEST)
        _check("ego_twist.angular", twist.angular, 3, _QUICKEST_TURN)
    return EgoMotion(pose, twist)


def _check(field: str, values: FloatArray, wanted: int, largest: float) -> None:
    # NaN fails the comparison too.
    if values.size != wanted or not (np.abs(values) <= largest).all():
        shown = ", ".join(f"{value:g}" for value in values[:4].tolist())
        raise InvalidEgoMotion(
            field, f"[{shown}] ({values.size} values); send {wanted} within ±{largest:g}."
        )


def relative_motion(
    before: Pose | None, ego: EgoMotion, seconds: float
) -> tuple[FloatArray, FloatArray] | None:
    """Finds rotation (3, 3) and place (3,) of the sensor now, in its axes of the frame before.

    Two poses give the motion; without them the twist does, taken as constant over the
    seconds between. None where neither is known.
    """
    if before is not None and ego.pose is not None:
        turned = _rotation(before.orientation)
        shift = turned.T @ (ego.pose.position - before.position)
        return turned.T @ _rotation(ego.pose.orientation), shift
    return None if ego.twist is None else _integrated(ego.twist, seconds)


def move(
    state: FloatArray,
    covariance: FloatArray,
    model: MotionModel,
    motion: tuple[FloatArray, FloatArray],
    heading: str,
) -> tuple[FloatArray, FloatArray]:
    """Moves tracks into the axes of the sensor now: p ↦ Rᵀ (p − t), velocities turned likewise.

    In x, y, z the motion is used whole; in x, y alone, its part in the plane. This holds for
    velocities too. A space without an x and a y in metres, such as an image, stays as it is.

    state       (T, S)
    covariance  (T, S, S)
    motion      from relative_motion
    heading     name of the angle about z
    """
    names = model.space.names
    metric = {d.name for d in model.space.dimensions if d.unit in _METRES}
    if not {"x", "y"} <= metric:
        return state, covariance
    rotation, shift = motion
    yaw = float(np.arctan2(rotation[1, 0], rotation[0, 0]))
    places = [names.index(name) for name in "xyz" if name in metric]
    slots = {place: model.k + j for j, place in enumerate(model.moving.tolist())}
    # A velocity in x or y alone has nothing to turn into.
    turning = all(place in slots for place in places[:2])
    velocities = [slots[place] for place in places if place in slots] if turning else []
    change = np.eye(model.size)
    for axes in (places, velocities):
        if len(axes) == 3:
            change[np.ix_(axes, axes)] = rotation.T
        elif len(axes) == 2:
            cosine, sine = np.cos(yaw), np.sin(yaw)
            change[np.ix_(axes, axes)] = [[cosine, sine], [-sine, cosine]]
    moved = state.copy()
    moved[:, places] -= shift[: len(places)]
    moved = moved @ change.T
    for i, dimension in enumerate(model.space.dimensions):
        if dimension.name == heading and dimension.kind is not DimensionKind.LENGTH:
            moved[:, i] -= yaw
    model.space.wrap(moved)
    turned = change @ covariance @ change.T
    return moved, regular(0.5 * (turned + turned.transpose(0, 2, 1)))


def _rotation(quaternion: FloatArray) -> FloatArray:
    w, x, y, z = quaternion.tolist()
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )


def _integrated(twist: Twist, seconds: float) -> tuple[FloatArray, FloatArray]:
    """Integrates a constant twist: R = exp(W), t = (∫₀¹ exp(sW) ds) v Δt, W = [ω]× Δt."""
    x, y, z = (twist.angular * seconds).tolist()
    cross = np.array([[0.0, -z, y], [z, 0.0, -x], [-y, x, 0.0]])
    angle = float(np.sqrt(x * x + y * y + z * z))
    if angle < 1e-6:
        once, twice, thrice = 1.0, 0.5, 1.0 / 6.0
    else:
        once = np.sin(angle) / angle
        twice = (1.0 - np.cos(angle)) / angle**2
        thrice = (angle - np.sin(angle)) / angle**3
    rotation = np.eye(3) + once * cross + twice * cross @ cross
    along = np.eye(3) + twice * cross + thrice * cross @ cross
    return rotation, along @ twist.linear * seconds
