"""Sums over seconds of tracks, of bounded size, from which levels of a reference are estimated."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from annotated_types import Interval

from monitor.drift.channels import CHANNELS
from monitor.drift.correlation import LARGEST_NUMBER, Sum
from monitor.drift.reference import Levels
from monitor.frames.marks import ArrayForm, Count
from monitor.frames.space import BoolArray, FloatArray, IntArray

# A track counts by its first seconds for how tracks differ; more of them tell no more.
LONGEST = 64

# Of a variance: deviations below a hundredth are those of a stream that repeats itself.
_LEAST = 1e-4

# τ² of real detectors is 0.17 and more; of thirty tracks it may seem to be none, and then every
# second of an odd object would be news.
_LEAST_BETWEEN = 0.3**2
_HALF = 0.5  # tracks are whole


_TRACKS = ArrayForm(np.float64, (LONGEST + 1,), 0.0, LARGEST_NUMBER)
_SUMS = ArrayForm(np.float64, (None,), -LARGEST_NUMBER, LARGEST_NUMBER)


@dataclass(slots=True)
class LevelSums:
    """Sums of y, the level of a second of a track, in C channels. Tracks come from their first on.

    tracks          (LONGEST + 1,) by how many seconds n they have had: Σ 1
    means, squares  ((LONGEST + 1) · C,) the same: Σ ȳ, Σ ȳ²
    within          (C,) Σ (y − ȳ_track)² over all seconds, each weighted by its detections
    weight          Σ of these weights: Σ (y − ȳ)² is worth so many ω²
    spread          (C,) Σ (v − y)² over what the detections v of each second show
    again           seconds that were not the first of their track
    blocks          seconds
    rows, rows2     Σ of their detections, and of the squares of these
    outside         detections that were far outside
    trials, onsets  seconds after one of the track without any, and those with one
    """

    channels: Annotated[int, Interval(ge=1, le=CHANNELS)]
    tracks: Annotated[FloatArray, _TRACKS] = field(default_factory=_TRACKS.none)
    means: Annotated[FloatArray, _SUMS] = field(default_factory=_SUMS.none)
    squares: Annotated[FloatArray, _SUMS] = field(default_factory=_SUMS.none)
    within: Annotated[FloatArray, _SUMS] = field(default_factory=_SUMS.none)
    spread: Annotated[FloatArray, _SUMS] = field(default_factory=_SUMS.none)
    weight: Sum = 0.0
    again: Count = 0
    blocks: Count = 0
    rows: Count = 0
    rows2: Count = 0
    outside: Count = 0
    trials: Count = 0
    onsets: Count = 0

    def __post_init__(self) -> None:
        for name, size in (
            ("means", (LONGEST + 1) * self.channels),
            ("squares", (LONGEST + 1) * self.channels),
            ("within", self.channels),
            ("spread", self.channels),
        ):
            if not getattr(self, name).size:
                setattr(self, name, np.zeros(size))
            if getattr(self, name).size != size:
                raise ValueError(f"'{name}' must have {size} numbers")
        tracks = self.tracks
        if tracks[0] or (tracks % 1).any() or tracks.sum() > self.blocks:
            raise ValueError(f"'tracks' must be numbers of tracks, of {self.blocks} seconds")
        if not self.again <= self.blocks <= self.rows <= self.rows2:
            raise ValueError("'again', 'blocks', 'rows' and 'rows2' must not fall in this order")
        if not (self.onsets <= self.trials <= self.blocks and self.outside <= self.rows):
            raise ValueError("'onsets' must be at most 'trials', and that at most 'blocks'")

    def add(self, seconds: SecondLevels) -> None:
        """Adds m seconds.

        source  Welford 1962: Σ n (y − ȳ)² grows by nR/(R + n) (y − ȳ)², with n detections after R
        """
        level, before, mean = seconds.level, seconds.before, seconds.mean
        count, rows = seconds.count.astype(np.float64), seconds.rows.astype(np.float64)
        weight = count * rows / (count + rows)
        self.within += weight @ (level - mean) ** 2
        # The variance of ȳ is that of so many seconds.
        self.weight += float((weight * (1 + seconds.rows2 / np.maximum(rows, 1.0) ** 2)).sum())
        self.spread += seconds.spread.sum(axis=0)
        again = before > 0
        self.again += int(np.count_nonzero(again))
        self.blocks += int(before.size)
        self.rows += int(seconds.count.sum())
        self.rows2 += int((seconds.count**2).sum())
        self.outside += int(seconds.outside.sum())
        self.trials += int(np.count_nonzero(seconds.trial))
        self.onsets += int(np.count_nonzero(seconds.trial & (seconds.outside > 0)))

        short = before < LONGEST
        now = (rows[:, None] * mean + count[:, None] * level) / (rows + count)[:, None]
        old, now = mean[short], now[short]
        grown = before[short]
        had = grown > 0
        shape = (LONGEST + 1, self.channels)
        for sums, left, joined in (
            (self.tracks, np.ones(had.size), np.ones(had.size)),
            (self.means.reshape(shape), old, now),
            (self.squares.reshape(shape), old * old, now * now),
        ):
            np.subtract.at(sums, grown[had], left[had])
            np.add.at(sums, grown + 1, joined)
        # Rounding is not kept; nor is a track that was not seen from its first second on.
        for sums in (self.squares.reshape(shape), self.means.reshape(shape), self.tracks):
            sums[self.tracks < _HALF] = 0.0

    def levels(self, shortest: int) -> Levels | None:
        """m0, τ, ω and S, as they are estimated.

        y_ij = m0 + a_i + w_ij with n_i seconds of track i, N of them of T tracks: with Ω² the mean
        square of y_ij − ȳ_i, B = Σ n_i (ȳ_i − ȳ)² / (T − 1) and
        n0 = (N − Σ n_i²/N) / (T − 1): τ² = (B − Ω²) / n0. m0 is the mean of ȳ_i weighted with
        1 / (τ² + Ω²/n_i). S² is the mean square of what detections show about their second, and ω²
        is Ω² less what seconds of fewer detections than usual add to it, S² (1/n − 1/length). τ is
        0.3 at least, and else without a margin: what a reference is off by is for the tolerance.
        At its edge, with references of thirty tracks, run lengths were simulated to hold; in the
        middle of the band there is no alarm at all.

        shortest  so many tracks, and as many seconds beyond the first of a track, at least
        returns   None where there are fewer
        source    Searle, Casella, McCulloch 1992, section 3.6
        """
        there = np.flatnonzero(self.tracks)
        number, n = self.tracks[there], there.astype(np.float64)
        total = float(number.sum())
        if total < max(2, shortest) or self.again < max(1, shortest):
            return None
        shape = (LONGEST + 1, self.channels)
        means, squares = (one.reshape(shape)[there] for one in (self.means, self.squares))
        seconds = float((number * n).sum())
        mean = n @ means / seconds
        square = n @ squares - seconds * mean * mean
        between = np.maximum(0.0, square) / (total - 1)
        size = (seconds - float((number * n * n).sum()) / seconds) / (total - 1)
        omega2 = np.maximum(self.within / self.weight, _LEAST)
        tau2 = np.maximum(0.0, (between - omega2) / size)

        weight = 1 / (tau2 + omega2 / n[:, None])
        mean = (weight * means).sum(axis=0) / (weight * number[:, None]).sum(axis=0)
        # As most detections see it.
        length = self.rows2 / self.rows
        spread2 = self.spread / max(1, self.rows - self.blocks)
        fewer = max(0.0, self.again / self.weight - 1 / length)
        return Levels(
            mean=mean,
            between=np.sqrt(np.maximum(tau2, _LEAST_BETWEEN)),
            within=np.sqrt(np.maximum(omega2 - spread2 * fewer, 0.25 * omega2)),
            spread=np.sqrt(spread2),
            length=length,
            outside=(self.outside + 1) / (self.rows + 1),
            onsets=min(1.0, (self.onsets + 1) / (self.trials + 1)),
            tracks=int(total),
            blocks=self.blocks,
        )


@dataclass(frozen=True, eq=False, slots=True)
class SecondLevels:
    """m seconds of tracks at one stage, in C channels.

    level    (m, C) y
    spread   (m, C) Σ (v − y)² over what its detections v show
    count    (m,) detections
    before   (m,) seconds of the track before it
    rows     (m,) Σ of their detections
    rows2    (m,) Σ of the squares
    mean     (m, C) of their levels, each weighted by its detections; 0 without any
    outside  (m,) detections that are far outside
    trial    (m,) whether the second of the track before, if any, had none outside
    """

    level: FloatArray
    spread: FloatArray
    count: IntArray
    before: IntArray
    rows: IntArray
    rows2: IntArray
    mean: FloatArray
    outside: IntArray
    trial: BoolArray
