"""Adaptive scaling: one factor on σ for each dimension that follows the detector.

It forgets exponentially in event time. What it remembers is part of its document, so that it can
go on; a fit is the value after it has followed all tracks of some rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import exp, inf
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Interval

from monitor.frames.marks import NotNegative, Positive
from monitor.frames.space import FloatArray
from monitor.recalibration.fit_rows import FitRows, in_one_order, numbered_objects
from monitor.recalibration.recalibrator import UnfitData, check_entries
from monitor.recalibration.scaling import WIDE, Prior, Scaled, WideFactor
from monitor.statistics.clusters import LARGEST

# In time constants: a track that ended so long before the newest, while labels come less than one
# late, is of a clock that was set back.
_SET_BACK = 10.0

# Limits of documents: sums beyond are no sums over tracks, and their quotients would overflow.
_MOST_TRACKS, _LARGEST_SUM = 1e15, 1e30

# Long against labels that come seconds late, and short against a drive.
TIME_CONSTANT_S = 60.0

# Tracks that "nothing is wrong" counts for where there is no other prior.
PRIOR_TRACKS = 3.0

# The share of labels that have come by the delay that a fit sees.
_DELAY_LEVEL = 0.95

# In σ: no error is larger, so that its square is finite.
_LARGEST_ERROR = 1e100


@dataclass(frozen=True, slots=True)
class AdaptiveScaling(Scaled):
    """Scaled, with the memory that the next tracks are added to.

    time_constant_s  τ, s of event time in which the weight of a track falls to 1/e
    delay_s          how late the labels came, s; below τ, else UnfitData
    ended_s          event time of the end of the newest track, s
    tracks           W = Σ exp(−age/τ): how many tracks are remembered
    nees             K sums Σ exp(−age/τ) × mean z² of a track, z = error/σ as sent
    prior_scale      K factors on σ that count for prior_tracks more, of any age
    """

    time_constant_s: Positive
    delay_s: NotNegative
    ended_s: float
    tracks: Annotated[float, Interval(ge=0.0, le=_MOST_TRACKS)]
    nees: tuple[Annotated[float, Interval(ge=0.0, le=_LARGEST_SUM)], ...]
    prior_scale: tuple[WideFactor, ...]
    prior_tracks: Annotated[float, Interval(ge=1e-100, le=1e100)]
    method: ClassVar[str] = "adaptive-scaling"

    def __post_init__(self) -> None:
        check_entries(self, ("nees", "prior_scale"), self.k, "scale")
        if not self.delay_s < self.time_constant_s:
            raise UnfitData(
                f"labels come {self.delay_s:g} s late, and the time constant is "
                f"{self.time_constant_s:g} s: what they say would be forgotten before it could "
                "serve. Choose a time constant that is long against the delay, bring labels "
                "earlier, or use variance-scaling."
            )


def followed(
    scaling: AdaptiveScaling,
    nees: FloatArray,
    ended_s: FloatArray,
    delay_s: float,
    votes: FloatArray | None = None,
) -> AdaptiveScaling:
    """Adds T new whole tracks to the scaling, taken in the order in which they ended.

    s² = (n₀ s₀² + Σ v x)/(n₀ + Σ v), v = exp(−age/τ), x the mean z² of a track: where much is
    remembered, the maximum of the likelihood (Levi et al. 2019, eq. 12) under exponential
    forgetting; where little is, the prior. x is cut at 64 s², or at 64 where s is below 1: a gross
    outlier is one track, and σ that are off by any factor are found within a few. A track that
    ended before the newest counts for its age, and takes nothing from the newer ones; one that
    ended more than ten time constants before says that the clock was set back: what is remembered
    is then as old as that track.

    nees     (T, K) mean of the squared normalised errors of each dimension, as sent; no NaN
    ended_s  (T,) event time of the last detection of each; finite
    delay_s  how late their labels came, at most; from 0 on
    votes    (T,) what each counts for, in [0, 1]; None: one each
    raises   UnfitData where the delay is not below the time constant
    """
    if ended_s.size == 0:
        return scaling
    time_constant_s, newest_s = scaling.time_constant_s, scaling.ended_s
    tracks, total = scaling.tracks, np.array(scaling.nees)
    prior, prior_tracks = np.square(scaling.prior_scale), scaling.prior_tracks

    def scale() -> FloatArray:
        return WIDE.of(np.sqrt((prior_tracks * prior + total) / (prior_tracks + tracks)))

    order = np.argsort(ended_s, kind="stable")
    shares = np.ones(ended_s.size) if votes is None else votes
    of_each = zip(nees[order], ended_s[order].tolist(), shares[order].tolist(), strict=True)
    for x, at_s, share in of_each:
        if newest_s - at_s > _SET_BACK * time_constant_s:
            newest_s = at_s
        later_s = at_s - newest_s
        fade = exp(-max(later_s, 0.0) / time_constant_s)
        vote = share * exp(min(later_s, 0.0) / time_constant_s)
        tracks, total = fade * tracks, fade * total
        cut = LARGEST * np.maximum(np.square(scale()), 1.0)
        tracks, total = tracks + vote, total + vote * np.minimum(x, cut)
        newest_s = max(newest_s, at_s)
    return replace(
        scaling,
        scale=tuple(scale().tolist()),
        delay_s=delay_s,
        ended_s=newest_s,
        tracks=tracks,
        nees=tuple(total.tolist()),
    )


def fit_adaptive_scaling(
    rows: FitRows,
    time_constant_s: float = TIME_CONSTANT_S,
    prior: Prior[Scaled] | None = None,
) -> AdaptiveScaling:
    """Returns the scaling after it has followed all tracks of the rows.

    rows    with event times and delays of their truth; the delay seen is the 95 % quantile
    prior   what few tracks are drawn towards, over the same dimensions, its strength in tracks;
            None: factors of 1 that count for three
    raises  UnfitData without rows or times, where a dimension has no error, and unless the time
            constant exceeds the delay
    """
    rows.check()
    time_s, delay_s = rows.time_s, rows.delay_s
    if time_s is None or not np.isfinite(time_s).all():
        raise UnfitData(
            "adaptive scaling weighs tracks by their age, and there are rows without a time: give "
            "every row its t or stamp_ns, or use variance-scaling."
        )
    assert delay_s is not None, "rows with times have delays"
    # A clock that is a little ahead makes no label early.
    delay = max(0.0, float(np.quantile(delay_s, _DELAY_LEVEL)))
    k = rows.space.k
    before = np.ones(k) if prior is None else WIDE.of(np.array(prior.previous.scale))
    nees, ended_s = track_means(rows, time_constant_s)
    prior_scale = tuple(before.tolist())
    start = AdaptiveScaling(
        scale=prior_scale,
        time_constant_s=time_constant_s,
        delay_s=delay,
        ended_s=float(ended_s.min()),
        tracks=0.0,
        nees=(0.0,) * k,
        prior_scale=prior_scale,
        prior_tracks=PRIOR_TRACKS if prior is None else prior.strength,
    )
    return followed(start, nees, ended_s, delay)


def track_means(rows: FitRows, time_constant_s: float) -> tuple[FloatArray, FloatArray]:
    """Averages z² of each track and dimension, (T, K), and tells when each ended, (T,), in s.

    A car that stands beside the road for minutes is one track: within it too, what is older than
    its end by a time constant counts for 1/e. A row without a track is one of its own.
    """
    rows = in_one_order(rows)
    rows = rows.take(np.argsort(np.asarray(rows.time_s), kind="stable"))
    time_s = np.asarray(rows.time_s)
    index, tracks = numbered_objects(rows.track)
    ended_s = np.full(tracks, -inf)
    np.maximum.at(ended_s, index, time_s)
    weight = np.exp((time_s - ended_s[index]) / time_constant_s)
    z = np.clip(rows.error / rows.deviation, -_LARGEST_ERROR, _LARGEST_ERROR)
    sums = np.column_stack([np.bincount(index, weight * column) for column in np.square(z).T])
    return sums / np.bincount(index, weight)[:, None], ended_s
