"""Errors of detections that come without a covariance: their size, offset, tails, correlations.

A covariance is not judged here, since none was sent: what is measured is what it would have to be.
Rows of one track are alike, so that intervals come from tracks, as those of verdicts do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from monitor.frames.space import FloatArray, IntArray, Space
from monitor.statistics.clusters import design_effect_of_rows
from monitor.statistics.measures import Evaluation, plain
from monitor.statistics.verdicts import (
    FEWEST_TO_JUDGE,
    MATTERS,
    in_figures,
    mean_interval,
    numbered_tracks,
    ratio_interval,
    verdicts_of_sums,
)

# Shares of Gaussian errors beyond 2 and 3 RMSE, and the 99 % quantile of their size over it.
GAUSSIAN_BEYOND, GAUSSIAN_QUANTILE = (0.0455, 0.0027), 2.576

# From this 99 % quantile on, in RMSE, the tails are told: of t5 it is 3.1, of Gaussians 2.58.
_HEAVY = 2.9

# Correlations smaller than this hardly turn the ellipse of a Gaussian.
_SLIGHT = 0.2

# Correlations that a line lists.
_MOST_TOLD = 6

_LEVEL = 0.99

_UNKNOWN = math.nan, math.nan


@dataclass(frozen=True, slots=True)
class Errors:
    """Measures the errors truth − mean of a group of rows in one dimension, in its unit.

    assumed        σ that is assumed in place of one that is sent
    bias           mean error, with its 95 % interval
    rmse           root of the mean squared error, with its 95 % interval
    beyond         shares of |error| beyond 2 and 3 RMSE; of Gaussians GAUSSIAN_BEYOND
    quantile       99 % quantile of |error| over the RMSE; of Gaussians GAUSSIAN_QUANTILE
    kurtosis       mean of error⁴ over the squared mean of error²; 3 is Gaussian
    """

    dimension: str
    unit: str
    assumed: float
    bias: float
    bias_interval: tuple[float, float]
    rmse: float
    rmse_interval: tuple[float, float]
    beyond: tuple[float, float]
    quantile: float
    kurtosis: float

    @property
    def known(self) -> bool:
        """Tells if there are enough tracks, or rows where there are no tracks, for intervals."""
        return all(map(math.isfinite, self.rmse_interval))

    @property
    def sentence(self) -> str:
        """Says the errors in words, and how the σ that is assumed compares; intervals if known."""
        if self.rmse == 0:
            return f"{self.dimension}: all errors are 0. Is the ground truth a copy of the mean?"
        unit = f" {self.unit}" if self.unit else ""
        words = f"{self.dimension}: {self.rmse:.3g}{unit} RMSE{_within(self.rmse_interval, '.2g')}"
        words += f", off by {self.bias:+.2g}{unit}{_within(self.bias_interval, '+.2g')}"
        if self.quantile > _HEAVY:
            words += f", heavy tails (1 % beyond {self.quantile:.1f} RMSE)"
        return f"{words}. {self._of_assumed(unit)}"

    def _of_assumed(self, unit: str) -> str:
        tracker = f"A tracker that assumes {self.assumed:g}{unit}"
        lower, upper = self.rmse_interval
        if not self.known:
            return f"Too little data to say how sure this is: {FEWEST_TO_JUDGE} tracks are needed."
        if upper < self.assumed / MATTERS:
            return f"{tracker} is {in_figures(self.assumed / self.rmse)} times too wide."
        if lower > self.assumed * MATTERS:
            return f"{tracker} is {in_figures(self.rmse / self.assumed)} times too narrow."
        close = lower * MATTERS >= self.assumed >= upper / MATTERS
        return f"{tracker} {'is' if close else 'may be'} about right."

    def as_json(self) -> dict[str, object]:
        """Builds the measures for JSON; None in place of what is not known."""
        found = {name: plain(getattr(self, name)) for name in self.__slots__}
        beyond = dict(zip(("beyond_2_rmse", "beyond_3_rmse"), self.beyond, strict=True))
        del found["beyond"], found["dimension"], found["quantile"], found["assumed"]
        quantile = {"quantile_99_over_rmse": plain(self.quantile)}
        rest = {"assumed_deviation": self.assumed, "known": self.known}
        return found | beyond | quantile | rest


@dataclass(frozen=True, slots=True)
class GroupErrors:
    """Measures the errors of a group of rows, K dimensions.

    group        name; empty for all rows
    tracks       None where no row names its track: rows are then taken as independent
    worth        independent rows that these are worth, in the dimension where these are fewest
    covariance   (K, K) mean of error · errorᵀ, about 0: a bias is in it, as in the RMSE
    correlation  (K, K) of it, with the ends of their 95 % intervals (K, K, 2); NaN with too few
                 tracks, and on the diagonal
    """

    group: str
    rows: int
    tracks: int | None
    worth: float
    dimensions: tuple[Errors, ...]
    covariance: FloatArray
    correlation: FloatArray
    correlation_interval: FloatArray

    @property
    def sentences(self) -> tuple[str, ...]:
        """Says the errors of each dimension in words."""
        head = f"{self.group}, " if self.group else ""
        return tuple(f"{head}{one.sentence}" for one in self.dimensions)

    @property
    def correlated(self) -> str:
        """Lists the correlations that are surely not slight, the largest first; '' without any."""
        names = [one.dimension for one in self.dimensions]
        found = []
        for i, j in zip(*np.tril_indices(len(names), -1), strict=True):
            lower, upper = self.correlation_interval[i, j].tolist()
            value = float(self.correlation[i, j])
            if abs(value) >= _SLIGHT and lower * upper > 0:
                told = f"{names[j]}·{names[i]} {value:+.2f} ({lower:+.2f} to {upper:+.2f})"
                found.append((abs(value), told))
        found.sort(reverse=True)
        more = len(found) - _MOST_TOLD
        words = [told for _, told in found[:_MOST_TOLD]] + ([f"{more} more"] if more > 0 else [])
        return ", ".join(words)

    def as_json(self) -> dict[str, object]:
        """Builds the measures for JSON; None in place of what is not known."""
        return {
            "group": self.group,
            "rows": self.rows,
            "tracks": self.tracks,
            "n_eff": plain(self.worth),
            "dimensions": {one.dimension: one.as_json() for one in self.dimensions},
            "covariance": plain(self.covariance),
            "correlation": plain(self.correlation),
            "correlation_interval": plain(self.correlation_interval),
            "sentences": list(self.sentences),
        }


def errors_of(
    names: Sequence[str],
    units: Sequence[str],
    error: FloatArray,
    assumed: FloatArray,
    track: IntArray | None,
    group: str = "",
) -> GroupErrors:
    """Measures a group of rows.

    names, units  (K,) of the dimensions
    error         (n, K) truth − mean, wrapped where it is an angle; n at least 1
    assumed       (K,) σ that is assumed in place of one that is sent
    track         (n,) number of the track, −1 where unknown; None where none is known
    """
    n, k = error.shape
    cluster, tracks = numbered_tracks(n, track)
    square = np.square(error)
    mean_square = square.mean(axis=0)
    effect = np.ones(k)
    if tracks is not None:
        unit = np.where(mean_square > 0, mean_square, 1.0)
        effect = design_effect_of_rows(square / unit, np.ones(k), cluster)
    enough = (n if tracks is None else tracks) >= FEWEST_TO_JUDGE
    found = []
    for i, name in enumerate(names):
        rmse, size = math.sqrt(mean_square[i]), np.abs(error[:, i])
        lower, upper = ratio_interval(square[:, i], cluster) if enough else _UNKNOWN
        none = rmse == 0
        found.append(
            Errors(
                dimension=name,
                unit=units[i],
                assumed=float(assumed[i]),
                bias=float(error[:, i].mean()),
                bias_interval=mean_interval(error[:, i], cluster) if enough else _UNKNOWN,
                rmse=rmse,
                rmse_interval=(math.sqrt(lower), math.sqrt(upper)),
                beyond=(float((size > 2 * rmse).mean()), float((size > 3 * rmse).mean())),
                quantile=math.nan if none else float(np.quantile(size, _LEVEL)) / rmse,
                kurtosis=math.nan if none else float(np.square(square[:, i] / rmse**2).mean()),
            )
        )
    covariance = error.T @ error / n
    correlation, interval = _correlations(error, covariance, cluster, enough=enough)
    worth = n / float(effect.max())
    return GroupErrors(group, n, tracks, worth, tuple(found), covariance, correlation, interval)


def errors_of_sums(space: Space, found: Evaluation) -> tuple[Errors, ...]:
    """Measures a group of rows whose sums are known, at least one; their tails are not: NaN.

    Its rows share one assumed σ, so that the RMSE is as sure as its ratio to that, of verdicts.
    """
    return tuple(
        Errors(
            dimension=verdict.dimension,
            unit=verdict.unit,
            assumed=one.rmv,
            bias=verdict.bias,
            bias_interval=verdict.bias_interval if verdict.enough else _UNKNOWN,
            rmse=verdict.rmse,
            rmse_interval=(one.rmv * lower, one.rmv * upper) if verdict.enough else _UNKNOWN,
            beyond=_UNKNOWN,
            quantile=math.nan,
            kurtosis=one.kurtosis,
        )
        for verdict, one in zip(
            verdicts_of_sums(space, found), found.dimensions.values(), strict=True
        )
        for lower, upper in [verdict.interval]
    )


def _correlations(
    error: FloatArray, covariance: FloatArray, cluster: IntArray, *, enough: bool
) -> tuple[FloatArray, FloatArray]:
    """Correlations about 0, (K, K), and the ends of their 95 % intervals, (K, K, 2).

    By how much a row moves a correlation r = Σxy / √(Σx² Σy²) is known in closed form: with x and y
    over their RMSE, xy − r (x² + y²)/2. On Fisher's scale, artanh r, it moves by that over 1 − r²;
    the interval of the mean of these, by clusters, is that of artanh r.

    source  Efron 1982, section 6.3 (influence function); Fisher 1921
    """
    k = error.shape[1]
    rmse = np.sqrt(covariance.diagonal())
    unit = error / np.where(rmse > 0, rmse, 1.0)
    correlation = np.clip(unit.T @ unit / error.shape[0], -1.0, 1.0)
    interval = np.full((k, k, 2), np.nan)
    for i, j in zip(*np.tril_indices(k, -1), strict=True):
        r = float(correlation[i, j])
        if not enough or not abs(r) < 1 or not rmse[i] * rmse[j] > 0:
            continue
        x, y = unit[:, i], unit[:, j]
        moved = (x * y - 0.5 * r * (x * x + y * y)) / (1 - r * r)
        reach = np.array(mean_interval(moved, cluster))
        interval[i, j] = interval[j, i] = np.tanh(math.atanh(r) + reach)
    return correlation, interval


def _within(interval: tuple[float, float], form: str) -> str:
    """Writes an interval in brackets; '' where it is not known."""
    lower, upper = interval
    if not (math.isfinite(lower) and math.isfinite(upper)):
        return ""
    return f" ({format(lower, form)} to {format(upper, form)})"
