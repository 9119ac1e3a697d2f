"""Motion of the tracks of a stream: a Kalman filter over all of them, in axes that move too.

Units are those of the stream: m for a lidar, px for a camera. filterpy is imported here
alone; its functions give F and Q for one second, and a frame's own time step scales them.
Matrices are stacked, one call for all tracks.

Tracks move from the sensor's axes of one frame into those of the next. A detector that takes
the back of a car for its front reports a heading that is off by π; such a heading is read
modulo π, and each track keeps votes on which end is the front. Which detection updates which
track never lives here: see association.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache, cached_property
from types import MappingProxyType

import numpy as np

from monitor import native
from monitor.frames.frame import EgoMotion, Pose, Twist
from monitor.frames.space import (
    Dimension,
    DimensionKind,
    FloatArray,
    IntArray,
    Space,
    laid_out,
)
from monitor.frames.words import MeasurementNoise

# Share of a variance that rounding may take from it, after a few sums of products.
_ROUNDING = 1e-14
# ρ is drawn to 0 as if so many more values had shown no correlation: a few must not rule R.
_PRIOR_PAIRS = 200.0
# (1 + ρ) / (1 − ρ) is 19 here.
_LARGEST_CORRELATION = 0.9


class Association(StrEnum):
    """The way in which detections are given to tracks."""

    OWN = "own"  # our gates and assignment
    UPSTREAM = "upstream"  # the detection's upstream_track_id; without one, our gates


@dataclass(frozen=True, slots=True)
class DimensionNoise:
    """Settings of one dimension; None leaves the general setting."""

    density: float | None = None
    initial_speed: float | None = None
    missing_deviation: float | None = None


# What stands on the ground hardly moves up or down.
UPRIGHT: Mapping[str, DimensionNoise] = MappingProxyType(
    {"z": DimensionNoise(density=0.2, initial_speed=1.0)}
)


@dataclass(frozen=True, slots=True)
class TrackerSettings:
    """Every choice of a tracker.

    acceleration_density  unit²/s³, spectral density of the white acceleration that
                          drives dimensions with a velocity
    walk_density          unit²/s, of the random walk of all other lengths
    turn_density          rad²/s, of the random walk of angles
    initial_speed         unit/s, standard deviation of a velocity that is not yet known
    missing_deviation     unit or rad, standard deviation where a covariance is missing
    gate_level            probability that a true match lies in the gate, if S is right
    max_distance          unit; detections farther from a track in any of the first two
                          lengths are never its own, unless an upstream id says so
    birth_score           detections below it begin no track; those without a score do
    confirm_detections    how many confirm a track
    tentative_misses      frames without a detection that end a track before that
    coast_frames          frames without a detection that it outlives after that
    coast_seconds         s without a detection that any track outlives
    half_life_seconds     s of event time; how fast innovation statistics forget
    """

    velocity_dimensions: tuple[str, ...] = ("x", "y", "z")
    heading_dimension: str = "yaw"
    acceleration_density: float = 1.0
    walk_density: float = 0.01
    turn_density: float = 0.1
    initial_speed: float = 8.0
    missing_deviation: float = 1.0
    dimensions: Mapping[str, DimensionNoise] = field(default_factory=lambda: UPRIGHT)
    measurement_noise: MeasurementNoise = MeasurementNoise.DETECTION
    inflate_for_correlation: bool = False
    association: Association = Association.OWN
    gate_level: float = 0.999
    max_distance: float = 1e9
    birth_score: float = -1e9
    confirm_detections: int = 3
    tentative_misses: int = 1
    coast_frames: int = 5
    coast_seconds: float = 1.0
    max_tracks: int = 1000
    half_life_seconds: float = 60.0


@dataclass(frozen=True)
class MotionModel:
    """Constant velocity for some dimensions, random walk for the others.

    The state holds the K dimensions of the space, then the V velocities: H = [I 0].

    moving         (V,) positions in the space of the dimensions with a velocity
    transition     (S, S) F for one second
    diffusion      (S, S) Q for one second
    initial_speed  (V,) standard deviation of a velocity that is not yet known
    """

    space: Space
    moving: IntArray
    transition: FloatArray
    diffusion: FloatArray
    initial_speed: FloatArray

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
        """Lists the dimensions of the state: the space's, then `<name>_velocity` in unit/s."""
        measured = self.space.dimensions
        return measured + tuple(
            Dimension(f"{measured[i].name}_velocity", f"{measured[i].unit}/s")
            for i in self.moving.tolist()
        )

    @cached_property
    def moving_columns(self) -> IntArray | slice:
        """Says where the moving dimensions are; a slice, which is quicker, if side by side."""
        first = int(self.moving[0]) if self.moving.size else 0
        side_by_side = slice(first, first + self.moving.size)
        in_line = self.moving.tolist() == [*range(self.k)][side_by_side]
        return side_by_side if in_line else self.moving

    @cached_property
    def _powers(self) -> tuple[FloatArray, FloatArray]:
        """Powers of the time step by which the entries of F and of Q grow, (S, S) each."""
        velocity = np.zeros(self.size)
        velocity[self.k :] = 1.0
        # ẋ enters x with Δt; white acceleration enters (x, x), (x, ẋ), (ẋ, ẋ) with Δt³, Δt², Δt;
        # a random walk, which has no velocity, enters with Δt.
        order = np.zeros(self.size)
        order[self.moving] = 1.0
        return np.maximum(velocity[None, :] - velocity[:, None], 0.0), order[:, None] + order + 1.0

    def step(self, seconds: float) -> tuple[FloatArray, FloatArray]:
        """Computes F and Q, (S, S) each, for a time step ≥ 0 in seconds.

        A step of a + b gives what a step of a and then one of b give: a frame that is
        skipped changes nothing but the detections it would have brought.
        """
        return self.transition * seconds ** self._powers[0], self.diffusion_after(seconds)

    def diffusion_after(self, seconds: float) -> FloatArray:
        """Computes Q, (S, S), for a time step ≥ 0 in seconds."""
        return self.diffusion * seconds ** self._powers[1]


@cache
def one_second() -> tuple[FloatArray, FloatArray]:
    """Computes F and Q, (2, 2) each, of one dimension with constant velocity and unit density."""
    # filterpy takes half a second to import, which a sidecar without a tracker need not spend.
    from filterpy.common import Q_continuous_white_noise, kinematic_state_transition

    return kinematic_state_transition(1, 1.0), Q_continuous_white_noise(2, 1.0, 1.0)


def motion_model(space: Space, settings: TrackerSettings) -> MotionModel:
    """Makes the motion model of a space.

    Dimensions with a velocity are the lengths named in the settings; if the space has none
    of these, all lengths: the edges of an image box all move.
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
    )


def missing_variances(space: Space, settings: TrackerSettings) -> FloatArray:
    """Returns the variances of a detection that comes without a covariance, (K,)."""
    own = (settings.dimensions.get(name, DimensionNoise()) for name in space.names)
    return np.array(
        [_chosen(noise.missing_deviation, settings.missing_deviation) ** 2 for noise in own]
    )


def _chosen(own: float | None, general: float) -> float:
    return general if own is None else own


def predict(
    state: FloatArray,
    covariance: FloatArray,
    model: MotionModel,
    seconds: float,
    kernels: native.Kernels | None = native.kernels,
) -> tuple[FloatArray, FloatArray]:
    """Predicts F x and F P Fᵀ + Q a time step ≥ 0 later; into new arrays.

    F is the identity but for Δt between a dimension and its velocity: rows, then columns, of P
    get Δt times those of the velocities.

    state       (T, S)
    covariance  (T, S, S)
    """
    state, covariance = state.copy(), covariance.copy()
    diffusion = model.diffusion_after(seconds)
    if kernels is not None:
        kernels.predict(state, covariance, model.moving, diffusion, seconds, 1.0 + _ROUNDING)
        return state, covariance
    k, moving = model.k, model.moving_columns
    state[:, moving] += seconds * state[:, k:]
    covariance[:, moving] += seconds * covariance[:, k:]
    covariance[:, :, moving] += seconds * covariance[:, :, k:]
    covariance += diffusion
    return state, regular(covariance)


def update(
    state: FloatArray,
    covariance: FloatArray,
    pairs: tuple[IntArray, IntArray],
    innovation: FloatArray,
    noise: FloatArray,
    kernels: native.Kernels | None = native.kernels,
) -> None:
    """Updates to x + K ν and Joseph's covariance (I − KH) P (I − KH)ᵀ + K R Kᵀ; in place.

    Joseph's form is a sum of two covariances, so that rounding in the gain cannot make
    it indefinite. H = [I 0]: the first K states are measured. Each sum is added up in one
    order, one track beside the other, so that a track has the same bits alone and among others.

    state       (T, S)
    covariance  (T, S, S)
    pairs       (M,) tracks, each once, and (M,) detections
    innovation  ν = z − H x, (M, K) of the pairs, angles wrapped
    noise       R of all detections, (N, K, K)
    """
    track, detection = pairs
    grown = 1.0 + _ROUNDING
    if kernels is not None:
        innovation, noise = laid_out(innovation), laid_out(noise)
        kernels.update(state, covariance, track, detection, innovation, noise, grown)
        return
    size, k = covariance.shape[1], innovation.shape[1]
    p, r = _by_entry(covariance[track]), _by_entry(noise[detection])
    spread = p[:k, :k] + r
    step = np.arange(size)
    spread[step[:k], step[:k]] *= grown
    gain = _product(p[:, :k], _inverse(spread))
    # I − KH is made before P is multiplied: P − K H P would lose what is left of a large P.
    # Its columns from K on are those of the identity.
    rest = -gain
    rest[step[:k], step[:k]] += 1.0
    half = _product(rest, p[:k])
    half[k:] += p[k:]
    joseph = _product(half[:, :k], rest.swapaxes(0, 1))
    joseph[:, k:] += half[:, k:]
    joseph = _product(_product(gain, r), gain.swapaxes(0, 1), joseph)
    joseph[step, step] *= grown
    # Symmetric but for rounding, which would grow from frame to frame: the lower triangle counts.
    mirrored = joseph.reshape(size * size, -1)[lower_of_square(size)]
    covariance[track] = mirrored.T.reshape(-1, size, size)
    state[track] += _product(gain, innovation.T[:, None])[:, 0].T


def regular(covariance: FloatArray) -> FloatArray:
    """Makes covariances (T, S, S) definite that are so but for rounding; in place.

    A sensor that knows a micrometre along and a kilometre across, turned by 45°, is
    singular in doubles: with a little more on the diagonal, no correlation reaches ±1.
    """
    variance = np.einsum("tii->ti", covariance)  # a view
    variance *= 1.0 + _ROUNDING
    return covariance


@cache
def lower_of_square(size: int) -> IntArray:
    """Finds each entry of a symmetric matrix, row by row, on or below the diagonal; (size²,)."""
    row, column = np.divmod(np.arange(size * size), size)
    return np.maximum(row, column) * size + np.minimum(row, column)


def _by_entry(matrices: FloatArray) -> FloatArray:
    """Lays (T, …, …) out as (…, …, T): an entry of all tracks side by side."""
    return np.ascontiguousarray(matrices.transpose(1, 2, 0))


def _product(left: FloatArray, right: FloatArray, onto: FloatArray | None = None) -> FloatArray:
    """Multiplies (I, J, T) by (J, K, T), each sum over J in order; adds to `onto`, in place."""
    term = np.empty((left.shape[0], *right.shape[1:]))
    total = np.zeros_like(term) if onto is None else onto
    for j in range(left.shape[1]):
        total += np.multiply(left[:, j, None], right[j], out=term)
    return total


def _inverse(covariance: FloatArray) -> FloatArray:
    """Inverts matrices (K, K, T), symmetric positive definite, by the sweep operator; in place.

    One pivot after the other for all matrices at once: a third of the time of a LAPACK call
    for each, indifferent to units, and a matrix without an inverse spoils no other.
    source  Goodnight 1979, A tutorial on the SWEEP operator
    """
    swept = covariance
    for j in range(swept.shape[0]):
        pivot = swept[j, j].copy()
        row = swept[j] / pivot
        swept -= swept[:, j][:, None] * row
        swept[j] = swept[:, j] = row
        swept[j, j] = -1.0 / pivot
    return np.negative(swept, out=swept)


# Sums over updates of confirmed tracks: the rows of InnovationSums.
SUMS = (
    "updates",  # number of updates
    "values",  # number of their values: J joint dimensions each
    "nis",  # νᵀ S⁻¹ ν
    "product",  # ũₜ · ũₜ₋₁ of the whitened innovations of consecutive frames
    "square",  # ũₜ · ũₜ of these frames
    "square_before",  # ũₜ₋₁ · ũₜ₋₁ of these frames
    "pairs",  # number of consecutive values
    "rejected",  # confirmed tracks that got no detection though one lay near, outside the gate
)


@dataclass(frozen=True, slots=True)
class InnovationSums:
    """Sums over updates of confirmed tracks by class; no ground truth needed.

    Older updates weigh less.

    table  (8, C), in the order of SUMS
    """

    table: FloatArray

    def of(self, name: str) -> FloatArray:
        """Returns one of SUMS, (C,)."""
        row: FloatArray = self.table[SUMS.index(name)]
        return row

    def fade(self, factor: float) -> InnovationSums:
        """Multiplies all sums by a factor below 1."""
        return InnovationSums(self.table * factor)

    def __add__(self, other: InnovationSums) -> InnovationSums:
        return InnovationSums(self.table + other.table)

    def by_group(self, group: IntArray, groups: int) -> InnovationSums:
        """Adds classes up to groups: group (C,) of each class, −1 for none."""
        kept = np.flatnonzero(group >= 0)
        rows = [np.bincount(group[kept], row[kept], groups) for row in self.table]
        return InnovationSums(np.array(rows, np.float64))

    @property
    def nis_ratio(self) -> FloatArray:
        """Mean NIS/J; NaN without updates. 1 if R and the model are right and errors white."""
        return _ratio(self.of("nis"), self.of("values"))

    @property
    def correlation(self) -> FloatArray:
        """Lag-1 correlation of the whitened innovation; NaN without pairs."""
        return _ratio(self.of("product"), np.sqrt(self.of("square") * self.of("square_before")))

    @property
    def reject_ratio(self) -> FloatArray:
        """Share of the confirmed tracks with a detection near whose gate let none in."""
        return _ratio(self.of("rejected"), self.of("rejected") + self.of("updates"))

    @property
    def inflation(self) -> FloatArray:
        """Factor (1 + ρ) / (1 − ρ) by which R is too small if errors are taken as independent.

        n values with lag-1 correlation ρ tell of their mean as much as n (1 − ρ) / (1 + ρ)
        independent ones. Never below 1.
        """
        pairs = self.of("pairs")
        believed = np.nan_to_num(self.correlation) * pairs / (pairs + _PRIOR_PAIRS)
        rho = np.clip(believed, 0.0, _LARGEST_CORRELATION)
        return (1.0 + rho) / (1.0 - rho)


def no_innovations(classes: int) -> InnovationSums:
    """Makes sums over no updates."""
    return InnovationSums(np.zeros((len(SUMS), classes)))


def innovation_sums(
    classes: int,
    class_index: IntArray,
    whitened: FloatArray,
    before: FloatArray,
    rejected: IntArray,
) -> InnovationSums:
    """Sums the innovations of one frame.

    class_index  (m,) of the updated tracks
    whitened     (m, J) their L⁻¹ν
    before       (m, J) L⁻¹ν of the frame before, NaN where there was no update
    rejected     (r,) class of each rejected track
    """
    j, nis = whitened.shape[1], np.einsum("mj,mj->m", whitened, whitened)
    again, square, repeated = np.isfinite(before[:, 0]), nis, class_index
    if not again.all():
        whitened, before, repeated = whitened[again], before[again], class_index[again]
        square = nis[again]
    updates = np.bincount(class_index, minlength=classes)
    table = np.empty((len(SUMS), classes))
    table[0], table[1] = updates, j * updates
    table[2] = np.bincount(class_index, nis, classes)
    table[3] = np.bincount(repeated, np.einsum("mj,mj->m", whitened, before), classes)
    table[4] = np.bincount(repeated, square, classes)
    table[5] = np.bincount(repeated, np.einsum("mj,mj->m", before, before), classes)
    table[6] = j * np.bincount(repeated, minlength=classes)
    table[7] = np.bincount(rejected, minlength=classes)
    return InnovationSums(table)


def _ratio(numerator: FloatArray, denominator: FloatArray) -> FloatArray:
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio: FloatArray = np.where(denominator > 0, numerator / denominator, np.nan)
    return ratio


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
