"""Verdicts: whether a group of rows is overconfident in a dimension, by how much, how surely.

A verdict rests on the factor by which errors are larger than σ says, and on an interval for it.
Rows of one track are alike, so the interval comes from tracks: each is left out in turn. What is
said of a verdict in words is here, too, so that every reader says it alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import expit, stdtrit

from monitor.frames.space import FloatArray, IntArray, Space
from monitor.frames.words import Finding
from monitor.statistics.clusters import Clusters, effect_by_clusters
from monitor.statistics.measures import Evaluation, chi_square_quantiles

# Tracks below which the interval does not hold what it promises. In simulated drives with errors of
# t5 that are correlated by 0.9 from row to row, and 30 to 90 % of whose variance is a bias of their
# track, it covers 92 to 97 % from 10 tracks of about equal length on (without any bias 91 %); where
# a few of 10 to 15 tracks hold most rows it is too wide (tests/statistics/test_verdicts.py).
FEWEST_TO_JUDGE = 10

# A factor on σ this near to 1 is no finding.
CLOSE = 1.1

# Below a factor of 2 in variance, trackers hardly differ.
MATTERS = math.sqrt(2)

# A mean error is told that is surely beyond this share of the root mean squared error.
_BIASED = 0.1

# How much larger the factor of all rows is than that of a typical row, where outliers make it.
_OUTLIERS = 1.5

# σ is said to hardly rank the errors where the 20 % of rows of the highest σ surely hold less than
# the first share of the squared error, though by σ it would be more than the second. In simulated
# drives with errors of t5, correlated as above, that is said of σ that is right in none of 300, and
# of σ that says nothing in 4 to 14 % with 10 tracks, 42 to 58 % with 30 and 68 to 97 % with 100.
_HARDLY, _SPREAD = 0.25, 0.3
_REJECTED = 0.2


@dataclass(frozen=True, slots=True)
class Verdict:
    """Judges σ of a group of rows in one dimension.

    group       name of the group; empty for all rows
    unit        of the dimension; empty where unknown
    rows        with ground truth
    tracks      None where no row names its track: rows are then taken as independent
    worth       independent rows that the rows are worth (clusters.py)
    factor      root of the mean of error²/σ²: by which factor errors are larger than σ says
    interval    of the factor, 95 %; NaN where there are too few tracks
    typical     the same of a typical row: root of the median of error²/σ² over that of χ²_1
    bias        mean error, truth less mean, in the unit
    bias_interval  of the bias, 95 %; NaN where there are too few tracks
    rmse        root of the mean squared error, in the unit
    removed     share of the squared error that is in the 20 % of rows of the highest σ
    removed_interval  of this share, 95 %
    removed_stated    the same share by σ itself: of Σσ²
    sums        rests on sums alone: tracks are not known then, but what their rows are worth is
    """

    group: str
    dimension: str
    unit: str
    rows: int
    tracks: int | None
    worth: float
    factor: float
    interval: tuple[float, float]
    typical: float
    bias: float
    bias_interval: tuple[float, float]
    rmse: float
    removed: float
    removed_interval: tuple[float, float]
    removed_stated: float
    sums: bool = False

    @property
    def finding(self) -> Finding:
        """Decides by the interval: a finding is one that holds at both of its ends."""
        lower, upper = self.interval
        if self.enough and lower > CLOSE:
            return Finding.OVERCONFIDENT
        if self.enough and upper < 1 / CLOSE:
            return Finding.UNDERCONFIDENT
        close = self.enough and lower >= 1 / MATTERS and upper <= MATTERS
        return Finding.CALIBRATED if close else Finding.UNKNOWN

    @property
    def enough(self) -> bool:
        """Tells if there are enough tracks, or rows where there are no tracks."""
        if self.sums:
            return self.worth >= FEWEST_TO_JUDGE
        return _enough(self.rows, self.tracks)

    @property
    def matters(self) -> bool:
        """Tells if a tracker feels the finding: a factor of 2 in variance or more."""
        off = self.finding in (Finding.OVERCONFIDENT, Finding.UNDERCONFIDENT)
        return off and not 1 / MATTERS < self.factor < MATTERS

    @property
    def biased(self) -> bool:
        """Tells if the mean error is surely not 0, and more than a tenth of the RMSE."""
        lower, upper = self.bias_interval
        beyond = _BIASED * self.rmse
        return self.enough and (lower > beyond or upper < -beyond)

    @property
    def unranked(self) -> bool:
        """Tells if a large σ surely says little of a large error, though σ varies."""
        _, upper = self.removed_interval
        return self.enough and upper < _HARDLY and self.removed_stated >= _SPREAD

    @property
    def sentence(self) -> str:
        """Says the verdict in words, with its interval and what it rests on."""
        where = ", ".join(filter(None, (self.group, self.dimension)))
        return f"{where}: {self._found()} ({self._basis()}){self._also()}."

    def _found(self) -> str:
        times, slightly = in_figures(self.factor), "" if self.matters else "slightly "
        match self.finding:
            case Finding.OVERCONFIDENT:
                return f"{slightly}overconfident, σ is {times} times too small"
            case Finding.UNDERCONFIDENT:
                return (
                    f"{slightly}underconfident, σ is {in_figures(1 / self.factor)} times too large"
                )
            case Finding.CALIBRATED:
                lower, upper = self.interval
                within = "" if lower <= 1 <= upper else f" within the tolerance of {MATTERS:.2f}"
                return f"calibrated{within}, errors are {times} times what σ says"
        if self.factor == 0:
            return "all errors are 0: is the ground truth a copy of the mean?"
        if self.enough:
            return f"too little data to say, errors are {times} times what σ says"
        few = "independent rows" if self.sums else "rows" if self.tracks is None else "tracks"
        return f"too little data to say, at least {FEWEST_TO_JUDGE} {few} are needed"

    def _basis(self) -> str:
        rows = f"{self.rows:,} row{'s' * (self.rows != 1)}"
        if self.sums:
            basis = f"{rows} {'is' if self.rows == 1 else 'are'} worth {self.worth:,.0f}"
        elif self.tracks is None:
            basis = f"{rows}, taken as independent since no row names its track"
        else:
            tracks = f"{self.tracks:,} track{'s' * (self.tracks != 1)}"
            basis = f"{rows} of {tracks} are worth {self.worth:,.0f}"
        if not self.enough or self.factor == 0:
            return basis
        lower, upper = self.interval
        if self.finding is Finding.UNDERCONFIDENT:
            lower, upper = 1 / upper, 1 / lower
        return f"95 %: {in_figures(lower)} to {in_figures(upper)}; {basis}"

    @property
    def offset(self) -> str:
        """Says the mean error with its sign, unit and interval."""
        unit, (lower, upper) = f" {self.unit}" if self.unit else "", self.bias_interval
        return f"{self.bias:+.3g}{unit} ({lower:+.3g} to {upper:+.3g}, truth less {self.dimension})"

    def _also(self) -> str:
        also = ""
        if self.enough and self.factor > _OUTLIERS * self.typical:
            also += (
                f"; the tails are heavy, a typical error is {in_figures(self.typical)} times σ's"
            )
        if self.biased:
            also += f"; {self.dimension} is off by {self.offset}, which no σ mends"
        if self.unranked:
            also += (
                f"; σ hardly ranks the errors, leaving out the {_REJECTED:.0%} most uncertain rows "
                f"removes {self.removed:.0%} of the squared error, not {self.removed_stated:.0%}"
            )
        return also

    def as_json(self) -> dict[str, object]:
        """Builds the verdict for JSON; None in place of what is not known."""
        return {
            "group": self.group,
            "dimension": self.dimension,
            "finding": str(self.finding),
            "matters": self.matters,
            "sigma_factor": _number(self.factor),
            "sigma_factor_interval": [_number(end) for end in self.interval],
            "sigma_factor_typical": _number(self.typical),
            "bias": _number(self.bias),
            "bias_interval": [_number(end) for end in self.bias_interval],
            "squared_error_removed": _number(self.removed),
            "squared_error_removed_interval": [_number(end) for end in self.removed_interval],
            "squared_error_removed_stated": _number(self.removed_stated),
            "rows": self.rows,
            "tracks": self.tracks,
            "n_eff": _number(self.worth),
            "sentence": self.sentence,
        }


_GRAVITY = (Finding.OVERCONFIDENT, Finding.UNDERCONFIDENT, Finding.CALIBRATED, Finding.UNKNOWN)


def gravest_first(found: Iterable[Verdict]) -> tuple[Verdict, ...]:
    """Sorts verdicts: those that matter first, by finding, then by the size of the factor."""

    def gravity(verdict: Verdict) -> tuple[bool, int, float]:
        size = abs(math.log(verdict.factor)) if 0 < verdict.factor < math.inf else 0.0
        return not verdict.matters, _GRAVITY.index(verdict.finding), -size

    return tuple(sorted(found, key=gravity))


# Points of confidence this near to the accuracy are no finding; beyond the second they matter.
_CLOSE_SHARE, _MATTERS_SHARE = 0.02, 0.05


@dataclass(frozen=True, slots=True)
class ClassVerdict:
    """Judges class probabilities: how sure the detector is, against how often it is right.

    accuracy    share of rows whose most probable class is the true one
    confidence  mean of the highest probability
    interval    of confidence − accuracy, 95 %, by tracks
    """

    rows: int
    tracks: int | None
    accuracy: float
    confidence: float
    interval: tuple[float, float]

    @property
    def finding(self) -> Finding:
        """Decides by the interval, as Verdict does."""
        lower, upper = self.interval
        enough = _enough(self.rows, self.tracks)
        if enough and lower > _CLOSE_SHARE:
            return Finding.OVERCONFIDENT
        if enough and upper < -_CLOSE_SHARE:
            return Finding.UNDERCONFIDENT
        close = enough and lower >= -_MATTERS_SHARE and upper <= _MATTERS_SHARE
        return Finding.CALIBRATED if close else Finding.UNKNOWN

    @property
    def sentence(self) -> str:
        """Says the verdict in words."""
        told = "too little data to say" if self.finding is Finding.UNKNOWN else str(self.finding)
        lower, upper = self.interval
        tracks = "" if self.tracks is None else f" of {self.tracks:,} tracks"
        return (
            f"classes: {told}, {self.confidence:.1%} sure and right in {self.accuracy:.1%} of "
            f"{self.rows:,} rows{tracks} (difference, 95 %: {lower:+.1%} to {upper:+.1%})."
        )

    def as_json(self) -> dict[str, object]:
        """Builds the verdict for JSON."""
        return {
            "finding": str(self.finding),
            "accuracy": self.accuracy,
            "confidence": self.confidence,
            "confidence_minus_accuracy_interval": [_number(end) for end in self.interval],
            "rows": self.rows,
            "tracks": self.tracks,
            "sentence": self.sentence,
        }


def class_verdict(
    probabilities: FloatArray, label: IntArray, track: IntArray | None
) -> ClassVerdict:
    """Judges n rows with a true class, at least one.

    probabilities  (n, C)
    label          (n,) true class
    track          as in verdicts
    """
    confidence = probabilities.max(axis=1)
    right = (probabilities.argmax(axis=1) == label).astype(np.float64)
    cluster, tracks = numbered_tracks(label.size, track)
    return ClassVerdict(
        rows=label.size,
        tracks=tracks,
        accuracy=float(right.mean()),
        confidence=float(confidence.mean()),
        interval=mean_interval(confidence - right, cluster),
    )


def numbered_tracks(rows: int, track: IntArray | None) -> tuple[IntArray, int | None]:
    """Numbers the clusters of rows (n,), and counts the tracks; None if no row names its track."""
    clusters = Clusters.of(rows, track)
    if clusters.number is None:
        return np.arange(rows), None
    return clusters.number, clusters.rows.size


def _enough(rows: int, tracks: int | None) -> bool:
    return (rows if tracks is None else tracks) >= FEWEST_TO_JUDGE


def in_figures(factor: float) -> str:
    """Writes a factor, such as 1.80, for "times too small"."""
    return f"{factor:.2f}" if factor < 9.95 else f"{factor:,.0f}"


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def verdicts(
    names: Sequence[str],
    units: Sequence[str],
    error: FloatArray,
    variance: FloatArray,
    track: IntArray | None,
    group: str = "",
    label: IntArray | None = None,
) -> tuple[Verdict, ...]:
    """Judges a group of rows, dimension by dimension.

    names, units     (K,) of the dimensions
    error, variance  (n, K) truth − mean, wrapped where it is an angle, and σ²; n at least 1
    track            (n,) number of the track, −1 where unknown; None where none is known
    label            (n,) number of the label that the truth is from: all rows of a label are worth
                     one at most; None: each has its own
    """
    clusters, most = Clusters.of(error.shape[0], track), labels_of(error.shape[0], label)
    found = []
    for i, name in enumerate(names):
        nees = np.square(error[:, i]) / variance[:, i]
        effect = effect_by_clusters(nees, clusters)
        found.append(
            verdict(
                (group, name, units[i]),
                error[:, i],
                variance[:, i],
                clusters,
                worth=min(error.shape[0] / effect, most),
                typical=median_ratio(nees, 1),
                bias_interval=mean_interval(error[:, i], clusters),
            )
        )
    return tuple(found)


def labels_of(rows: int, label: IntArray | None) -> int:
    """Counts the labels of some rows, which are worth no more; as many as rows if none is named."""
    return rows if label is None else int(np.unique(label).size)


def median_ratio(nees: FloatArray, k: int) -> float:
    """Divides the median of NEES by that of χ²_k. The values are put in another order."""
    # Half of the time of a median goes into a copy.
    median = np.median(nees, overwrite_input=True)
    return float(median / chi_square_quantiles(np.array([0.5]), k)[0])


def verdict(
    named: tuple[str, str, str],
    error: FloatArray,
    variance: FloatArray,
    clusters: Clusters,
    *,
    worth: float,
    typical: float,
    bias_interval: tuple[float, float],
) -> Verdict:
    """Judges a group of rows in one dimension.

    named            group, dimension, unit
    error, variance  (n,)
    worth            independent rows that the rows are worth
    typical          median_ratio
    bias_interval    mean_interval
    """
    group, dimension, unit = named
    square = np.square(error)
    nees = square / variance
    (lower, upper), factor = ratio_interval(nees, clusters), math.sqrt(nees.mean())
    del nees
    rejected = most_uncertain(variance)
    known = square.any()
    return Verdict(
        group=group,
        dimension=dimension,
        unit=unit,
        rows=error.size,
        tracks=None if clusters.number is None else clusters.rows.size,
        worth=worth,
        factor=factor,
        interval=(math.sqrt(lower), math.sqrt(upper)),
        typical=math.sqrt(typical),
        bias=float(error.mean()),
        bias_interval=bias_interval,
        rmse=math.sqrt(square.mean()),
        removed=float(rejected @ square / square.sum()) if known else math.nan,
        removed_interval=share_interval(square, rejected, clusters),
        removed_stated=float(rejected @ variance / variance.sum()),
    )


def verdicts_of_sums(space: Space, found: Evaluation, group: str = "") -> Iterator[Verdict]:
    """Judges a group of rows whose sums are known, dimension by dimension; at least one row.

    The squares of normalised errors vary by (κ − 1) of their squared mean, and their mean by this
    over the independent rows that they are worth: which gives an interval on the scale of the
    logarithm, of Student's distribution as in ratio_interval. It covers 92 to 95 % of simulated
    drives with normal errors, correlated by 0.9, and 84 to 87 % where whole tracks have errors of
    t5, where that by tracks covers 90 %. Sums do not tell whether σ ranks the errors: that is NaN.
    """
    unknown = math.nan, math.nan
    for (name, one), dimension in zip(found.dimensions.items(), space.dimensions, strict=True):
        worth, spread = one.n_eff, max(one.kurtosis - 1.0, 0.0)
        reach = 0.5 * math.sqrt(spread / worth) * float(stdtrit(max((worth - 1) / 2, 1.0), 0.975))
        factor = one.std_scaling
        yield Verdict(
            group=group,
            dimension=name,
            unit=dimension.unit,
            rows=found.rows,
            tracks=None,
            worth=worth,
            factor=factor,
            interval=(factor * math.exp(-reach), factor * math.exp(min(reach, 700.0))),
            typical=math.sqrt(one.nees_median_ratio),
            bias=one.bias,
            bias_interval=one.bias_interval,
            rmse=one.rmse,
            removed=math.nan,
            removed_interval=unknown,
            removed_stated=math.nan,
            sums=True,
        )


def ratio_interval(values: FloatArray, cluster: IntArray | Clusters) -> tuple[float, float]:
    """Estimates the 95 % interval of the mean of positive values, by clusters.

    The logarithm of the mean is taken with each cluster left out in turn (the jackknife), since
    means of squares are skewed; its deviations give a Student interval. The degrees of freedom are
    half of those of clusters of equal size that would share the rows as evenly, (Σn)² / Σn² − 1:
    the spread of squares is itself less well known than that of normal values.

    values   (n,) ≥ 0
    cluster  (n,) numbers from 0 on, without a gap
    returns  lower and upper end; NaN with fewer than two clusters, or where all is 0
    source   Efron & Tibshirani 1993, eq. 11.5, on the scale of the logarithm
    """
    clusters = _clusters(cluster)
    n, total = clusters.rows, clusters.sums(values)
    whole = total.sum()
    if n.size < 2 or not 0 < total.max() < whole:
        return math.nan, math.nan
    left = np.log((whole - total) / (n.sum() - n))
    reach = _reach(left, n)
    centre = math.log(whole / n.sum())
    return math.exp(centre - reach), math.exp(min(centre + reach, 700.0))


def _clusters(cluster: IntArray | Clusters) -> Clusters:
    if isinstance(cluster, Clusters):
        return cluster
    return Clusters(cluster, np.bincount(cluster).astype(np.float64))


def most_uncertain(variance: FloatArray) -> FloatArray:
    """(n,) how much of each row belongs to the 20 % of the highest σ; ties share what is left."""
    wanted = _REJECTED * variance.size
    place = variance.size - min(math.ceil(wanted), variance.size)
    edge = np.partition(variance, place)[place]
    above, tied = variance > edge, variance == edge
    share = (wanted - np.count_nonzero(above)) / np.count_nonzero(tied)
    weight: FloatArray = above + share * tied
    return weight


def share_interval(
    values: FloatArray, weight: FloatArray, cluster: IntArray | Clusters
) -> tuple[float, float]:
    """Estimates the 95 % interval of Σ weight · value / Σ value, by clusters.

    As ratio_interval, of the logarithm of the odds.

    values, weight  (n,) ≥ 0; weights at most 1
    cluster         (n,) numbers from 0 on, without a gap
    returns         lower and upper end; NaN with fewer than two clusters, or where one holds all
    """
    clusters = _clusters(cluster)
    part = clusters.sums(weight * values)
    rest = clusters.sums((1.0 - weight) * values)
    chosen, others = part.sum(), rest.sum()
    if part.size < 2 or not (0 < part.max() < chosen and 0 < rest.max() < others):
        return math.nan, math.nan
    reach = _reach(np.log((chosen - part) / (others - rest)), clusters.rows)
    centre = math.log(chosen / others)
    lower, upper = (float(expit(centre + off)) for off in (-reach, reach))
    return lower, upper


def mean_interval(values: FloatArray, cluster: IntArray | Clusters) -> tuple[float, float]:
    """Estimates the 95 % interval of the mean of values, by clusters, as ratio_interval does."""
    clusters = _clusters(cluster)
    n, total = clusters.rows, clusters.sums(values)
    if n.size < 2:
        return math.nan, math.nan
    reach = _reach((total.sum() - total) / (n.sum() - n), n)
    mean = float(values.mean())
    return mean - reach, mean + reach


def mean_interval_of_sums(
    n: int, mean: float, mean_square: float, effect: float, pairs: float
) -> tuple[float, float]:
    """Estimates the 95 % interval of a mean error from sums over rows; it is rather too wide.

    The variance of the mean is s²/n · D, D = 1 + 2/n Σ ρ over the P pairs of rows in one track, ρ
    the correlation of two errors. What is known is the design effect of their squares, which
    correlate by ρ² if the errors are Gaussian. (Σ ρ)² ≤ P Σ ρ², hence

        D ≤ 1 + sqrt(2 P/n · (D_squares − 1)),

    with equality where all pairs are alike, and D ≤ 1 + 2 P/n whatever the errors. Degrees of
    freedom are as in mean_interval, of tracks of equal length that would share as many pairs. In
    200 simulated drives of 10 to 100 tracks, correlated and with tails as at FEWEST_TO_JUDGE, it
    covers 91 to 100 %, and is 0.84 to 2.2 times as wide as that by tracks.

    mean, mean_square  of the errors
    effect             design effect of the squares, ≥ 1; infinite where it is not known
    pairs              P
    returns            NaN where the rows are worth fewer than two tracks
    """
    together = max(2.0 * pairs, 0.0)
    even = n * n / (n + together) if n else 0.0
    if not even >= 2:
        return math.nan, math.nan
    most = together / n
    likely = most if math.isinf(effect) else math.sqrt(most * (effect - 1.0))
    worst = 1.0 + min(likely, most)
    variance = max(mean_square - mean * mean, 0.0) / (n - 1) * worst
    reach = float(stdtrit(max((even - 1) / 2, 1.0), 0.975)) * math.sqrt(variance)
    return mean - reach, mean + reach


def _reach(left_out: FloatArray, n: FloatArray) -> float:
    """Half of a Student interval, from estimates (T,) with one of T clusters of n rows left out."""
    tracks = n.size
    deviation = math.sqrt((tracks - 1) / tracks * np.square(left_out - left_out.mean()).sum())
    even = float(n.sum()) ** 2 / float(n @ n)
    return float(stdtrit(max((even - 1) / 2, 1.0), 0.975)) * deviation
