"""Detectors of drift that are compared: ours, a CUSUM of NEES, and those of River where it is
installed. Each watches many streams at a time and begins anew after an alarm.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np

from benchmarks.drift_streams import LIFE, Effort, K
from monitor.drift.bets import CHARTS_OF, Aim, DetectionCells, Direction, Stage, log_likelihoods
from monitor.drift.evidence import WITHOUT_TRACKS, Evidence, Shares, bounded_likelihood, by_severity
from monitor.frames.space import BoolArray, FloatArray

THRESHOLD = 1e4  # detections between two false alarms
_CHARTS = CHARTS_OF[Stage.RECALIBRATED]
_DIRECTIONS = (Direction.OVER, Direction.UNDER)


class Watcher(Protocol):
    """Of S streams."""

    def watch(self, nees: FloatArray) -> BoolArray:
        """(F, S, 2) alarms of over- and underconfidence; nees (F, S, detections of a frame)."""


@dataclass
class Ours:
    """The evidence of a sidecar, with a detection for its unit of time.

    A Family is one family; this is many side by side, which is the faster by far. Its charts are of
    the forwarded stage alone, so that a page is overconfidence and a ticket underconfidence.

    family     streams that share one budget, side by side
    tempering  γ
    shares     of the detectors
    """

    streams: int
    tolerance: float = 1.0
    tempering: float = 1.0
    shares: Shares = WITHOUT_TRACKS
    family: int = 1
    evidence: Evidence = field(default_factory=Evidence)

    def __post_init__(self) -> None:
        self.evidence.grow(self.streams)
        for stream in range(self.streams):
            self.evidence.set_shares(stream, _CHARTS, self.shares)

    def watch(self, nees: FloatArray) -> BoolArray:
        """As Watcher has it."""
        frames, streams, detections = nees.shape
        likelihood = self._likelihood(nees)
        given = np.full(streams, float(detections))
        weights = self.evidence.weights
        alarms = np.zeros((frames, streams, 2), bool)
        for frame in range(frames):
            self.evidence.add_detections(_CHARTS, given, likelihood[frame])
            found = by_severity(self.evidence.by_chart(weights))
            total = found.reshape(-1, self.family, 2).sum(axis=1)
            raised = np.repeat(total >= THRESHOLD, self.family, axis=0)
            # Where no stream has enough alone, the alarm is of all; where one has, it is its own.
            alone = found >= THRESHOLD
            any_alone = alone.reshape(-1, self.family, 2).any(axis=1)
            alarms[frame] = np.where(np.repeat(any_alone, self.family, axis=0), alone, raised)
            for stream in np.flatnonzero(alarms[frame].any(axis=1)).tolist():
                begins = np.zeros(4, bool)
                begins[_CHARTS] = alarms[frame, stream]
                self.evidence.begin_anew(stream, begins)
        return alarms

    def _likelihood(self, nees: FloatArray) -> FloatArray:
        frames, streams, detections = nees.shape
        count = frames * streams
        cells = DetectionCells(
            k=K,
            nees=nees.ravel(),
            mapped=nees.ravel(),
            cell=np.repeat(np.arange(count), detections),
            tracked=np.ones(nees.size, bool),
            count=count,
            tempering=np.full(count, self.tempering),
            frame_tempering=np.ones(count),
            anchors=[np.ones(count)] * 2,
        )
        aims = [Aim(direction, self.tolerance) for direction in _DIRECTIONS]
        found = bounded_likelihood(log_likelihoods(cells, aims))
        return found.reshape(frames, streams, len(aims), -1)


@dataclass
class Cusum:
    """Page's, of the likelihood ratio of χ²_K at 1.25 σ and at 0.8 σ.

    thresholds  (2,) of each direction
    """

    streams: int
    thresholds: FloatArray
    _sums: FloatArray = field(init=False)

    def __post_init__(self) -> None:
        self._sums = np.zeros((self.streams, 2))

    def watch(self, nees: FloatArray) -> BoolArray:
        """As Watcher has it."""
        said = cusum_increments(nees)
        alarms = np.zeros((*nees.shape[:2], 2), bool)
        for frame in range(nees.shape[0]):
            for detection in range(nees.shape[2]):
                self._sums = np.maximum(self._sums, 0.0) + said[frame, :, detection]
                raised = self._sums >= self.thresholds
                self._sums[raised] = 0.0
                alarms[frame] |= raised
        return alarms


def cusum_increments(nees: FloatArray) -> FloatArray:
    """(…, 2) ln of the likelihood ratio, by direction."""
    factors = np.array([1.25, 0.8])
    found: FloatArray = -K * np.log(factors) + nees[..., None] / 2 * (1 - factors**-2)
    return found


def calibrated_thresholds(nees: FloatArray, wanted: FloatArray) -> FloatArray:
    """(2,) at which a CUSUM raises one alarm in so many detections; nees (F, S) without fault."""
    levels = np.arange(5.0, 10.01, 0.25)
    said = cusum_increments(nees)
    sums, counts = np.zeros((nees.shape[1], 2, levels.size)), np.zeros((2, levels.size))
    for frame in range(nees.shape[0]):
        sums = np.maximum(sums, 0.0) + said[frame, :, :, None]
        raised = sums >= levels
        counts += raised.sum(axis=0)
        sums[raised] = 0.0
    lengths = np.log(nees.size / np.maximum(counts, 1))
    return np.array(
        [np.interp(np.log(wanted[i]), lengths[i], levels) for i in range(len(_DIRECTIONS))]
    )


@dataclass
class River:
    """A detector of River for each stream, fed with NEES; it tells no direction."""

    streams: int
    make: Callable[[], Any]
    _detectors: list[Any] = field(init=False)

    def __post_init__(self) -> None:
        self._detectors = [self.make() for _ in range(self.streams)]

    def watch(self, nees: FloatArray) -> BoolArray:
        """As Watcher has it."""
        alarms = np.zeros((*nees.shape[:2], 2), bool)
        for stream in range(nees.shape[1]):
            detector = self._detectors[stream]
            for frame, values in enumerate(nees[:, stream].tolist()):
                for value in values:
                    detector.update(value)
                    if detector.drift_detected:
                        alarms[frame, stream] = True
                        detector = self._detectors[stream] = self.make()
        return alarms


# Of River, at their own settings, but for a seed. What is slow in Python gets less.
RIVER: dict[str, tuple[dict[str, int], Effort]] = {
    "ADWIN": ({}, Effort(40, 5000, 100)),
    "PageHinkley": ({}, Effort(20, 2000, 100)),
    "KSWIN": ({"seed": 1}, Effort(5, 2000, 12)),
}


def river_is_here() -> bool:
    """Whether River is installed."""
    return importlib.util.find_spec("river") is not None


def river(name: str) -> Callable[[int], River]:
    """A watcher of so many streams, by one of RIVER."""
    settings, _ = RIVER[name]
    make = partial(getattr(importlib.import_module("river.drift"), name), **settings)
    return lambda streams: River(streams, make)


def tempering(correlation: float, bias: float = 0.0) -> float:
    """γ of AR(1) tracks with a constant bias: one over the design effect of squared errors.

    Those of Gaussian errors are correlated by the square of what errors are. Over a track without
    an end, that is (1 − ρ²)/(1 + ρ²) where there is no bias.
    """
    if bias == 0:
        return (1 - correlation**2) / (1 + correlation**2)
    from_to = np.arange(1, 400)
    alike = (1 - bias**2) * correlation**from_to + bias**2
    both_live = (1 - 1 / LIFE) ** from_to
    return 1 / (1 + 2 * math.fsum(np.square(alike) * both_live))
