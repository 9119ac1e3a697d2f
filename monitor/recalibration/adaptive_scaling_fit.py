"""The fit of adaptive scaling: what it has become after having followed all tracks of some rows."""

from __future__ import annotations

from math import inf

import numpy as np

from monitor.calibration.space import FloatArray
from monitor.recalibration.adaptive_scaling import AdaptiveScaling, followed
from monitor.recalibration.fit_rows import FitRows
from monitor.recalibration.recalibrator import UnfitData
from monitor.recalibration.row_order import in_one_order
from monitor.recalibration.shrinkage import WIDE, Prior, Scaled

# Long against labels that come seconds late, and short against a drive.
TIME_CONSTANT_S = 60.0
# Tracks that "nothing is wrong" counts for where there is no other prior.
PRIOR_TRACKS = 3.0
# The share of labels that have come by the delay that a fit sees.
_DELAY_LEVEL = 0.95
# In σ: no error is larger, so that its square is finite.
_LARGEST_ERROR = 1e100


def fit(
    rows: FitRows,
    time_constant_s: float = TIME_CONSTANT_S,
    prior: Prior[Scaled] | None = None,
) -> AdaptiveScaling:
    """What there is after having followed all tracks of the rows.

    rows    with event times and delays of their truth; the delay seen is the 95 % quantile
    prior   what few tracks are drawn towards, its strength in tracks; None: factors of 1 that
            count for three
    raises  UnfitData without rows, times or delays, where a dimension has no error, or the prior
            has other dimensions; LabelsTooLate, which is one, unless the time constant exceeds
            the delay
    """
    rows.check()
    if not 0 < time_constant_s < inf:
        raise UnfitData(
            f"a time constant of {time_constant_s:g} s is none: give a positive, finite one."
        )
    time_s, delay_s = rows.time_s, rows.delay_s
    if time_s is None or not np.isfinite(time_s).all():
        raise UnfitData(
            "adaptive scaling weighs tracks by their age, and there are rows without a time: give "
            "every row its t or stamp_ns, or use variance-scaling."
        )
    if delay_s is None or not np.isfinite(delay_s).all():
        raise UnfitData(
            "adaptive scaling must be slower than labels are late, and there are rows of which "
            "nobody knows how late their truth came: give the delay, or use variance-scaling."
        )
    # A clock that is a little ahead makes no label early.
    delay = max(0.0, float(np.quantile(delay_s, _DELAY_LEVEL)))
    k = rows.space.k
    before = np.ones(k) if prior is None else WIDE.of(np.array(prior.previous.scale))
    if before.size != k:
        raise UnfitData(
            f"the prior has {before.size} dimensions and the rows have {k}: "
            "give a fit over the same ones."
        )
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
    """Mean z² of each track and dimension, (T, K), and when each ended, (T,), in s.

    A car that stands beside the road for minutes is one track: within it too, what is older than
    its end by a time constant counts for 1/e. A row without a track is one of its own.
    """
    rows = in_one_order(rows)
    rows = rows.take(np.argsort(np.asarray(rows.time_s), kind="stable"))
    time_s = np.asarray(rows.time_s)
    alone = rows.track < 0
    names, numbered = np.unique(rows.track[~alone], return_inverse=True)
    index = np.empty(rows.n, np.int64)
    index[~alone] = numbered
    index[alone] = names.size + np.arange(np.count_nonzero(alone))
    ended_s = np.full(rows.tracks, -inf)
    np.maximum.at(ended_s, index, time_s)
    weight = np.exp((time_s - ended_s[index]) / time_constant_s)
    z = np.clip(rows.error / rows.deviation, -_LARGEST_ERROR, _LARGEST_ERROR)
    sums = np.column_stack([np.bincount(index, weight * column) for column in np.square(z).T])
    return sums / np.bincount(index, weight)[:, None], ended_s
