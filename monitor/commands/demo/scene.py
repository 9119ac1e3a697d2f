"""Simulates the detectors of a vehicle on a drive, with the ground truth beside it.

Never here: a clock, I/O, a global generator. The same settings and seed give the same drive.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt

from monitor.frames.space import BoolArray, Dimension, DimensionKind, FloatArray, IntArray, Space

UnsignedArray = npt.NDArray[np.uint64]

SPACE = Space(
    (
        *(Dimension(name, "m") for name in ("x", "y", "z", "l", "w", "h")),
        Dimension("yaw", "rad", DimensionKind.ANGLE),
    )
)

CLASSES = ("car", "pedestrian", "cyclist")
_X, _Y, _Z, _YAW = 0, 1, 2, 6
_SIZE = slice(3, 6)

# One row a class, in the order of CLASSES.
_CLASS_SHARE = np.array([0.6, 0.25, 0.15])
_TYPICAL_SIZE = np.array([[4.3, 1.8, 1.6], [0.7, 0.6, 1.75], [1.8, 0.6, 1.7]])  # m
_TYPICAL_SPEED = np.array([5.0, 1.3, 3.5])  # m/s
_POSITION_FACTOR = np.array([1.0, 0.5, 0.7])  # on σ of x, y, z: a small object is located better
_YAW_FACTOR = np.array([1.0, 3.0, 1.5])  # on σ of yaw: a round one is oriented worse
_NEAREST, _FARTHEST = 8.0, 80.0  # m, where an object is halfway through its life
_SHORTEST_LIFE = 1.0  # s
_SPEED_NOISE = 0.3  # m/s per √s
_TURN_NOISE = 0.05  # rad per √s
# With crowded traffic: metres between two that are side by side, and how many of them go opposite
# ways. A lane, a step, and what a cyclist keeps; oncoming traffic, and pedestrians who cross.
_BESIDE = np.array([3.5, 1.0, 1.5])
_OPPOSITE = np.array([0.3, 0.5, 0.3])
_BESIDE_SPEED = 0.1  # spread of the log of their speeds
_HOLD = 8.0  # how long an error's scale is held, in correlation times of the error
_IDS_PER_FRAME = 2**16


@dataclass(frozen=True, slots=True)
class DriveSettings:
    """The vehicle, its traffic and the quality of its detectors.

    All sensors run at one rate, staggered evenly within the period.
    """

    sensors: tuple[str, ...] = (
        "camera_front",
        "camera_front_left",
        "camera_back_left",
        "camera_back",
        "camera_back_right",
        "camera_front_right",
    )
    rate_hz: float = 10.0  # of every sensor
    objects_per_sensor: int = 30  # alive at any time
    mean_lifetime_s: float = 6.0  # s an object stays in view; at least 1 s each
    rho: float = 0.65  # lag-1 autocorrelation of an error at 10 Hz
    degrees_of_freedom: float = 5.0  # of the Student-t errors; inf is Gaussian
    miss_probability: float = 0.05  # of each object in each frame
    false_rate: float = 1.0  # mean number of false detections per frame
    crowded: bool = False  # objects come in twos, side by side, and hide what is behind them
    start_ns: int = 1_750_000_000_000_000_000  # capture time of the first frame
    around: str = ""  # the last sensor, if it sees all around, and twice as many objects


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedFrame:
    """All detections of one sensor at one capture time, best score first.

    mean, covariance and truth are in SPACE (x, y, z, l, w, h in m, yaw in rad within
    [-π, π)), in the vehicle's frame: x ahead, y to the left, z up. The covariance is that
    of the errors unless a fault has been put in; x and y are correlated, the rest is
    independent.
    """

    sensor: str
    frame_id: int  # counts up per sensor from 0
    stamp_ns: int  # capture time
    ids: UnsignedArray  # (N,) unique within the sensor's whole drive
    classes: IntArray  # (N,) position in CLASSES
    score: FloatArray  # (N,) in [0, 1]
    mean: FloatArray  # (N, 7)
    covariance: FloatArray  # (N, 7, 7) symmetric, positive definite
    truth: FloatArray  # (N, 7); NaN where the detection is false
    track: IntArray  # (N,) the true object, unique in the drive; -1 where the detection is false


def simulate(settings: DriveSettings, seed: int, duration_s: float) -> Iterator[SimulatedFrame]:
    """Yields the frames of all sensors in the order of their stamps.

    Errors: in each frame an object's error is √Σ · √w · z. z is a stationary Gaussian AR(1)
    per dimension. w is one scale for all seven dimensions of the object, ν − 2 over a χ²_ν
    (mean 1): √w·z is a Student-t with ν degrees of freedom and exactly unit variance. w is
    held and now and then drawn anew, with the same chance in every frame; drawing it in
    every frame would lower the autocorrelation of heavy-tailed errors. What the held w still
    costs is added to z: with redraw chance p and c = E[√w],

        corr(error_t, error_t+1) = ρ_z · (1 − p(1 − c²)) = ρ per frame, exactly.

    At ν = 5, ρ = 0.65 and 10 Hz: p = 0.044 (a mean hold of 2.3 s), c² = 0.85, ρ_z = 0.654.
    Objects are born with z and w drawn from their stationary law, and a missed object's
    error goes on unseen, so every detection has the reported covariance in expectation. The
    autocorrelation of an error along x is lower by what the bearing turns in a frame (< 0.1 %).

    Motion: constant velocity with a little noise on speed and heading, as seen from a
    standing vehicle. An object is in the middle of its sector halfway through its life, so
    that long-lived ones may enter or leave it. Objects do not avoid one another. In crowded traffic
    every second one is beside the one before it at that moment, a lane or a step apart, going the
    same way or the opposite one; an object whose middle is behind a nearer one is not detected.

    seed        of all randomness; each sensor draws from its own generator
    duration_s  s; frames with start_ns <= stamp < start_ns + duration; inf never ends
    """
    count = len(settings.sensors)
    seeds = np.random.SeedSequence(seed).spawn(count)
    sensors = [_Sensor(settings, i, np.random.default_rng(own)) for i, own in enumerate(seeds)]
    for tick in itertools.count():
        frame_id, i = divmod(tick, count)
        offset_ns = round(tick * 1e9 / (settings.rate_hz * count))
        if not offset_ns < duration_s * 1e9:
            return
        if frame_id > 0:
            sensors[i].advance(frame_id / settings.rate_hz)
        yield sensors[i].observe(frame_id, settings.start_ns + offset_ns)


def with_variance_factor(frame: SimulatedFrame, factor: float) -> SimulatedFrame:
    """Makes the fault: the detector reports factor times its covariance; its errors stay.

    Below 1 it is over-confident. Mean NEES becomes 1/factor of what it was.
    """
    return replace(frame, covariance=frame.covariance * factor)


def with_assumed_covariance(frame: SimulatedFrame, deviation: float) -> SimulatedFrame:
    """Puts in place of every covariance the one that is assumed where none is reported.

    deviation  standard deviation, m or rad, of every dimension
    """
    assumed = np.broadcast_to(deviation**2 * np.eye(SPACE.k), frame.covariance.shape)
    return replace(frame, covariance=assumed)


@dataclass(frozen=True, slots=True, eq=False)
class _Objects:
    """The objects a sensor may see now, and the state of the errors made on them."""

    track: IntArray  # (N,)
    classes: IntArray  # (N,)
    box: FloatArray  # (N, 7) true values in SPACE
    speed: FloatArray  # (N,) m/s along yaw
    expires_s: FloatArray  # (N,) s from the start of the drive
    gaussian: FloatArray  # (N, 7) z: unit variance; radial and lateral in place of x and y
    scale: FloatArray  # (N,) w: mean 1


class _Sensor:
    """Looks at a sector of its own, and at the objects that are in it or near it now."""

    def __init__(self, settings: DriveSettings, index: int, rng: np.random.Generator) -> None:
        self.settings, self.index, self.rng = settings, index, rng
        around = settings.sensors[index] == settings.around
        count = 1 if around else len(settings.sensors) - (settings.around in settings.sensors)
        self.axis, self.half_width = 2 * math.pi * index / count, math.pi / count  # rad
        self.born = 0
        self.objects = self._new_objects(settings.objects_per_sensor * (1 + around), 0.0)

    def _new_objects(self, n: int, now_s: float) -> _Objects:
        settings, rng = self.settings, self.rng
        track = (self.born + np.arange(n)) * len(settings.sensors) + self.index
        self.born += n
        classes = rng.choice(len(CLASSES), size=n, p=_CLASS_SHARE)
        box = self._boxes(classes)
        speed = _TYPICAL_SPEED[classes] * rng.uniform(0.2, 1.6, n)
        life = _SHORTEST_LIFE + rng.exponential(settings.mean_lifetime_s - _SHORTEST_LIFE, n)
        if settings.crowded:
            self._pair(classes, box, speed, life)
        # The box was drawn within the sector: that is where the object is at half its life.
        box[:, :2] -= _direction(box[:, _YAW]) * (speed * life / 2)[:, None]
        gaussian, scale = rng.standard_normal((n, SPACE.k)), self._scales(n)
        return _Objects(track, classes, box, speed, now_s + life, gaussian, scale)

    def _pair(
        self, classes: IntArray, box: FloatArray, speed: FloatArray, life: FloatArray
    ) -> None:
        """Puts every second object beside the one before it, for as long as that one lives."""
        one, other = slice(0, len(classes) // 2 * 2, 2), slice(1, None, 2)
        kind, heading = classes[one], box[one, _YAW]
        box[other, _SIZE] *= _TYPICAL_SIZE[kind] / _TYPICAL_SIZE[classes[other]]
        box[other, _Z] = box[other, 5] / 2
        box[other, :2] = box[one, :2] + _BESIDE[kind, None] * _direction(heading + np.pi / 2)
        opposite = self.rng.random(len(kind)) < _OPPOSITE[kind]
        box[other, _YAW] = _wrapped(heading + np.pi * opposite)
        speed[other] = speed[one] * np.exp(_BESIDE_SPEED * self.rng.standard_normal(len(kind)))
        classes[other], life[other] = kind, life[one]

    def _boxes(self, classes: IntArray) -> FloatArray:
        """Boxes uniform over the sector's ring, with plausible sizes; (N, 7)."""
        n, rng = len(classes), self.rng
        distance = np.sqrt(rng.uniform(_NEAREST**2, _FARTHEST**2, n))
        bearing = self.axis + rng.uniform(-self.half_width, self.half_width, n)
        box = np.empty((n, SPACE.k))
        box[:, :2] = distance[:, None] * _direction(bearing)
        box[:, _SIZE] = _TYPICAL_SIZE[classes] * np.exp(0.08 * rng.standard_normal((n, 3)))
        box[:, _Z] = box[:, 5] / 2 + 0.1 * rng.standard_normal(n)
        box[:, _YAW] = rng.uniform(-np.pi, np.pi, n)
        return box

    def _scales(self, n: int) -> FloatArray:
        """w = (ν−2)/χ²_ν: inverse gamma with mean 1; it makes a Gaussian a Student-t."""
        nu = self.settings.degrees_of_freedom
        if math.isinf(nu):
            return np.ones(n)
        scales: FloatArray = (nu - 2) / self.rng.chisquare(nu, n)
        return scales

    def advance(self, now_s: float) -> None:
        """Moves objects and errors on by a frame; fresh objects take the place of those gone."""
        settings, rng, objects = self.settings, self.rng, self.objects
        n, dt = len(objects.track), 1.0 / settings.rate_hz
        noise = rng.standard_normal((n, 2 + SPACE.k))
        speed = objects.speed + _SPEED_NOISE * math.sqrt(dt) * noise[:, 0]
        box = objects.box.copy()
        box[:, :2] += _direction(box[:, _YAW]) * (speed * dt)[:, None]
        box[:, _YAW] = _wrapped(box[:, _YAW] + _TURN_NOISE * math.sqrt(dt) * noise[:, 1])

        redraw, rho_z = _error_process(settings)
        redrawn = rng.random(n) < redraw
        scale = objects.scale.copy()
        scale[redrawn] = self._scales(int(redrawn.sum()))
        gaussian = rho_z * objects.gaussian + math.sqrt(1 - rho_z**2) * noise[:, 2:]
        self.objects = replace(objects, box=box, speed=speed, gaussian=gaussian, scale=scale)
        gone = np.flatnonzero(objects.expires_s <= now_s)
        if len(gone):
            fresh = self._new_objects(len(gone), now_s)
            self.objects = _replaced(self.objects, gone, fresh)

    def observe(self, frame_id: int, stamp_ns: int) -> SimulatedFrame:
        """Reports the objects, false detections mixed in."""
        settings, rng, objects = self.settings, self.rng, self.objects
        seen: BoolArray = rng.random(len(objects.track)) >= settings.miss_probability
        if settings.crowded:
            seen[_hidden(objects.box)] = False
        truth = objects.box[seen]
        n, n_false = len(truth), int(rng.poisson(settings.false_rate))
        false_classes = rng.integers(len(CLASSES), size=n_false)
        classes = np.concatenate([objects.classes[seen], false_classes])
        # A false detection reports the covariance that an object would have where it appears.
        boxes = np.concatenate([truth, self._boxes(false_classes)])
        sigma, radial, covariance = _uncertainty(boxes, classes)

        error = np.sqrt(objects.scale[seen])[:, None] * objects.gaussian[seen] * sigma[:n]
        # From (radial, lateral) to (x, y): the lateral direction is the radial one turned left.
        along, across = error[:, _X].copy(), error[:, _Y].copy()
        cosine, sine = radial[:n, 0], radial[:n, 1]
        error[:, _X] = cosine * along - sine * across
        error[:, _Y] = sine * along + cosine * across
        mean = boxes
        mean[:n] -= error
        mean[:, _YAW] = _wrapped(mean[:, _YAW])

        score = np.concatenate([rng.beta(12.0, 2.5, n), rng.beta(3.0, 5.0, n_false)])
        best_first = np.argsort(-score, kind="stable")
        return SimulatedFrame(
            sensor=settings.sensors[self.index],
            frame_id=frame_id,
            stamp_ns=stamp_ns,
            ids=np.arange(n + n_false, dtype=np.uint64) + np.uint64(frame_id * _IDS_PER_FRAME),
            classes=classes[best_first],
            score=score[best_first],
            mean=mean[best_first],
            covariance=covariance[best_first],
            truth=np.concatenate([truth, np.full((n_false, SPACE.k), np.nan)])[best_first],
            track=np.concatenate([objects.track[seen], np.full(n_false, -1)])[best_first],
        )


def _hidden(box: FloatArray) -> BoolArray:
    """Tells (N,) whose middle is behind a nearer object, as wide as its mean side."""
    distance, bearing = np.hypot(box[:, _X], box[:, _Y]), np.arctan2(box[:, _Y], box[:, _X])
    half_width = (box[:, 3] + box[:, 4]) / 4 / np.maximum(distance, 1.0)
    covers = np.abs(_wrapped(bearing[:, None] - bearing)) < half_width
    nearer = distance + 1.0 < distance[:, None]
    return np.asarray((covers & nearer).any(axis=1))


def _replaced(objects: _Objects, gone: npt.NDArray[np.intp], fresh: _Objects) -> _Objects:
    """Puts fresh objects where others have gone."""
    values = {}
    for field in fields(_Objects):
        values[field.name] = getattr(objects, field.name).copy()
        values[field.name][gone] = getattr(fresh, field.name)
    return _Objects(**values)


def _error_process(settings: DriveSettings) -> tuple[float, float]:
    """Chance p per frame that w is redrawn, and ρ_z; see simulate."""
    # ρ is stated for frames 0.1 s apart.
    rho, nu = math.pow(settings.rho, 10.0 / settings.rate_hz), settings.degrees_of_freedom
    redraw = (1 - rho) / _HOLD
    # E[√w]² = (ν−2)/2 · (Γ((ν−1)/2) / Γ(ν/2))². ρ_z < 1 since p(1 − c²) < 1 − ρ.
    c_squared = 1.0
    if nu < 1e6:  # beyond it lgamma has lost the difference, and w is 1
        c_squared = (nu - 2) / 2 * math.exp(2 * (math.lgamma((nu - 1) / 2) - math.lgamma(nu / 2)))
    return redraw, rho / (1 - redraw * (1 - c_squared))


def _uncertainty(box: FloatArray, classes: IntArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Computes how well objects can be measured where they are.

    The deviation along the line of sight grows with range three times as fast as the one
    across it, so x and y are correlated wherever the line of sight is oblique.

    returns  (N, 7) deviations, radial and lateral in place of x and y;
             (N, 2) unit vectors of the line of sight; (N, 7, 7) covariances in SPACE
    """
    distance = np.hypot(box[:, _X], box[:, _Y])
    bearing = np.arctan2(box[:, _Y], box[:, _X])
    position = _POSITION_FACTOR[classes]
    sigma = np.empty_like(box)
    sigma[:, _X] = position * (0.10 + 0.009 * distance)
    sigma[:, _Y] = position * (0.08 + 0.003 * distance)
    sigma[:, _Z] = position * (0.05 + 0.002 * distance)
    sigma[:, _SIZE] = _TYPICAL_SIZE[classes] * (0.03 + 0.0004 * distance)[:, None]
    sigma[:, _YAW] = _YAW_FACTOR[classes] * (0.03 + 0.001 * distance)

    radial = _direction(bearing)
    cosine, sine = radial[:, 0], radial[:, 1]
    variance = sigma**2
    along, across = variance[:, _X], variance[:, _Y]
    covariance = np.zeros((len(box), SPACE.k, SPACE.k))
    diagonal = np.arange(_Z, SPACE.k)
    covariance[:, diagonal, diagonal] = variance[:, _Z:]
    # R diag(σ_r², σ_l²) Rᵀ
    covariance[:, _X, _X] = cosine**2 * along + sine**2 * across
    covariance[:, _Y, _Y] = sine**2 * along + cosine**2 * across
    covariance[:, _X, _Y] = covariance[:, _Y, _X] = cosine * sine * (along - across)
    return sigma, radial, covariance


def _direction(angle: FloatArray) -> FloatArray:
    """Unit vectors (N, 2)."""
    return np.stack([np.cos(angle), np.sin(angle)], axis=1)


def _wrapped(angle: FloatArray) -> FloatArray:
    """Angles within [-π, π)."""
    wrapped: FloatArray = (angle + np.pi) % (2 * np.pi) - np.pi
    # A hair below -π the remainder rounds up to 2π.
    return np.where(wrapped < np.pi, wrapped, -np.pi)
