"""How the levels of tracks vary, from their seconds: a random-effect model by sums."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from monitor.calibration.drift.reference import Levels
from monitor.calibration.space import FloatArray, IntArray

# A track counts by its first seconds for how tracks differ; more of them tell no more.
LONGEST = 64
# Of a variance: deviations below a hundredth are those of a stream that repeats itself.
_LEAST = 1e-4
# τ² of real detectors is 0.17 and more; of thirty tracks it may seem to be none, and then every
# second of an odd object would be news.
_LEAST_BETWEEN = 0.3**2
_HALF = 0.5  # tracks are whole


def _nothing() -> FloatArray:
    return np.zeros(LONGEST + 1)


@dataclass(slots=True)
class LevelSums:
    """Sums of y, the mean ln NEES of a second of a track. Tracks come from their first second on.

    tracks, means, squares  (LONGEST + 1,) by how many seconds n they have had: Σ 1, Σ ȳ, Σ ȳ²
    within                  Σ (y − ȳ_track)² over all seconds
    again                   seconds that were not the first of their track
    blocks                  seconds
    rows                    Σ of their detections
    """

    tracks: FloatArray = field(default_factory=_nothing)
    means: FloatArray = field(default_factory=_nothing)
    squares: FloatArray = field(default_factory=_nothing)
    within: float = 0.0
    again: int = 0
    blocks: int = 0
    rows: int = 0

    def add(self, level: FloatArray, count: IntArray, before: IntArray, mean: FloatArray) -> None:
        """m seconds; see Blocks: level (m,), count (m,), before (m,), and mean (m,) of before.

        source  Welford 1962: Σ (y − ȳ)² grows by n/(n + 1) (y − ȳ)²
        """
        n = before.astype(np.float64)
        self.within += float((n / (n + 1) * (level - mean) ** 2).sum())
        self.again += int(np.count_nonzero(before))
        self.blocks += int(before.size)
        self.rows += int(count.sum())

        short = before < LONGEST
        old, now = mean[short], (n * mean + level)[short] / (n[short] + 1)
        grown = before[short]
        had = grown > 0
        for sums, left, joined in (
            (self.tracks, np.ones(old.size), np.ones(old.size)),
            (self.means, old, now),
            (self.squares, old * old, now * now),
        ):
            np.subtract.at(sums, grown[had], left[had])
            np.add.at(sums, grown + 1, joined)
        # Rounding is not kept; nor is a track that was not seen from its first second on.
        for sums in (self.means, self.squares, self.tracks):
            sums[self.tracks < _HALF] = 0.0

    def levels(self, shortest: int) -> Levels | None:
        """m0, τ and ω, as they are estimated.

        y_ij = m0 + a_i + w_ij with n_i seconds of track i, N of them of T tracks:
        ω² = Σ (y_ij − ȳ_i)² / (N − T), and with B = Σ n_i (ȳ_i − ȳ)² / (T − 1),
        n0 = (N − Σ n_i²/N) / (T − 1): τ² = (B − ω²) / n0. m0 is the mean of ȳ_i weighted with
        1 / (τ² + ω²/n_i). τ is 0.3 at least, and else without a margin: what a reference is off by
        is for the tolerance. At its edge, with references of thirty tracks, run lengths were
        simulated to hold; in the middle of the band there is no alarm at all.

        shortest  so many tracks, and as many seconds beyond the first of a track, at least
        returns   None where there are fewer
        source    Searle, Casella, McCulloch 1992, section 3.6
        """
        there = np.flatnonzero(self.tracks)
        number, n = self.tracks[there], there.astype(np.float64)
        total = float(number.sum())
        if total < max(2, shortest) or self.again < max(1, shortest):
            return None
        seconds = float((number * n).sum())
        mean = float((n * self.means[there]).sum()) / seconds
        square = float((n * self.squares[there]).sum()) - seconds * mean * mean
        between = max(0.0, square) / (total - 1)
        size = (seconds - float((number * n * n).sum()) / seconds) / (total - 1)
        omega2 = max(self.within / self.again, _LEAST)
        tau2 = max(0.0, (between - omega2) / size)

        weight = 1 / (tau2 + omega2 / n)
        mean = float((weight * self.means[there]).sum() / (weight * number).sum())
        return Levels(
            mean=mean,
            between=math.sqrt(max(tau2, _LEAST_BETWEEN)),
            within=math.sqrt(omega2),
            length=self.rows / self.blocks,
            tracks=int(total),
            blocks=self.blocks,
        )
