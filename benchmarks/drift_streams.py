"""Squared errors of simulated detections, many streams side by side: independent or of tracks,
Gaussian or with heavy tails; calibrated in the mean until a fault sets in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from scipy.special import digamma

from monitor.frames.space import BoolArray, FloatArray, IntArray

K = 4
LIFE = 40  # frames a track lives on average, geometrically


@dataclass(frozen=True)
class Effort:
    """How much is simulated.

    streams     for run lengths
    detections  of each of them
    delays      streams for delays
    """

    streams: int
    detections: int
    delays: int


@dataclass(frozen=True)
class World:
    """How errors are while nothing is wrong: of unit variance in each of K dimensions.

    detections   of a frame, each of another track
    correlation  ρ of successive errors of a track, AR(1)
    bias         deviation of the constant error of a track, a part of the unit variance
    degrees      of freedom of Student-t, drawn for each detection; inf: Gaussian
    life         frames a track lives on average
    """

    detections: int = 1
    correlation: float = 0.0
    bias: float = 0.0
    degrees: float = math.inf
    life: float = LIFE


@dataclass(frozen=True)
class Fault:
    """What becomes of errors: a factor on σ, or tails of Student-t at the same variance."""

    factor: float = 1.0
    degrees: float = math.inf

    @property
    def information(self) -> float:
        """KL per independent detection of this fault from none, nats.

        Of tails: E ln of the ratio of their density, Γ((ν+K)/2) / (Γ(ν/2) (π(ν−2))^(K/2)) ·
        (1 + e/(ν−2))^(−(ν+K)/2), to the Gaussian one, by E ln(1 + e/(ν−2)) = ψ((ν+K)/2) − ψ(ν/2).
        """
        if math.isfinite(self.degrees):
            half, whole = self.degrees / 2, (self.degrees + K) / 2
            constant = math.lgamma(whole) - math.lgamma(half) - K / 2 * math.log(half - 1)
            return float(constant - whole * (digamma(whole) - digamma(half)) + K / 2)
        return K / 2 * (self.factor**2 - 1 - 2 * math.log(self.factor))


HEALTHY = Fault()


@dataclass
class Streams:
    """S streams of one world."""

    world: World
    streams: int
    random: np.random.Generator
    _error: FloatArray = field(init=False)
    _bias: FloatArray = field(init=False)
    _track: IntArray = field(init=False)

    def __post_init__(self) -> None:
        cells = self.streams, self.world.detections
        self._error = np.zeros((*cells, K))
        self._bias = np.zeros((*cells, K))
        self._track = np.zeros(cells, np.int64)
        self._renew(np.ones(cells, bool))
        self._track[:] = np.arange(self.world.detections)

    def take(self, frames: int, fault: Fault = HEALTHY) -> tuple[FloatArray, IntArray]:
        """NEES (frames, S, detections) of the next frames, and the track that each is of."""
        world = self.world
        shape = frames, self.streams, world.detections
        if world.detections == 1 and world.correlation == 0 and world.bias == 0:
            # Each is of a track of its own: nothing goes on.
            nees = self.random.chisquare(K, shape)
            track = np.zeros(shape, np.int64)
        else:
            nees, track = np.empty(shape), np.empty(shape, np.int64)
            for i in range(frames):
                nees[i], track[i] = self._next(), self._track
        for degrees in (world.degrees, fault.degrees):
            if math.isfinite(degrees):
                nees *= (degrees - 2) / self.random.chisquare(degrees, shape)
        return nees * fault.factor**2, track

    def _next(self) -> FloatArray:
        rho, bias = self.world.correlation, self.world.bias
        self._error *= rho
        self._error += math.sqrt(1 - rho**2) * self.random.standard_normal(self._error.shape)
        self._renew(self.random.random(self._track.shape) < 1 / self.world.life)
        error = math.sqrt(1 - bias**2) * self._error + self._bias
        nees: FloatArray = np.square(error).sum(axis=2)
        return nees

    def _renew(self, ended: BoolArray) -> None:
        """Another object takes the place of each that is gone."""
        count = int(ended.sum())
        self._error[ended] = self.random.standard_normal((count, K))
        self._bias[ended] = self.world.bias * self.random.standard_normal((count, K))
        self._track[ended] += self.world.detections
