"""Fits of candidates: which tracks a fit is made of, and the fit of each slice on its own.

Where and when a fit runs is not known here: it has a process of its own.

A few frames a second of every source are learned from; their whole tracks are kept by slice, the
newest ones; a fit takes those that are of one regime, so that it does not average a fault with the
time before it. Slices that look healthy are not fitted: beside a healthy detector no process runs.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from monitor.frames.detections import Limits
from monitor.frames.space import FloatArray, Space
from monitor.frames.words import Objective
from monitor.promotion.records import FitSettings, PolicySettings, TrackSettings
from monitor.promotion.scored import ClassTrackRows, TrackRows, rows_of
from monitor.promotion.tracks import AnyTrack
from monitor.recalibration.class_probabilities import (
    ClassRecalibrator,
    ClassRows,
    as_columns,
    averaged_loss,
    opinions_of,
)
from monitor.recalibration.class_scaling import Temperature
from monitor.recalibration.estimated.covariates import EstimatedCovariance
from monitor.recalibration.fit_rows import FitRows
from monitor.recalibration.fitting import (
    CLASS_FITS,
    FITTINGS,
    FitOptions,
    prior_strength,
)
from monitor.recalibration.mean_correction import fit_offset, less_offset, refuses, with_offset
from monitor.recalibration.recalibrator import Recalibrator, UnfitData, fault_of
from monitor.recalibration.scaling import CovarianceScaling, Prior, VarianceScaling
from monitor.recalibration.selection import AnyMethod
from monitor.statistics.observations import measure

# Intervals that are remembered: labels of an object may come after those of another, of the same
# frames.
_MOST = 65536

# Standard errors by which tracks must differ to be of another regime. There are some twenty looks:
# with 3.0, five in a hundred sets of one regime are cut, with 3.25 two.
_DIFFERS = 3.25

# NEES/K below which errors are none: its logarithm alone must not spread all the others.
_LEAST = 1e-4

# Parts of the tracks that an estimate is held against; with so many tracks it is as good for others
# as for its own; and factor on the variance by which it is widened at most.
_TENTHS, _ENOUGH, _MOST_BEYOND = 10, 200, 2.0

# Tracks looked at together: their rows stay in the cache.
_CHUNK = 64

# Means of equal numbers differ by as much.
_ROUNDING = 1e-9


@dataclass(slots=True)
class FrameSample:
    """The first frame of a source in each interval of event time, with all labels of it."""

    interval_ns: int
    # By source and number of the interval: the stamp of that frame; oldest first.
    _first: OrderedDict[tuple[int, int], int] = field(default_factory=OrderedDict)

    def takes(self, source: int, stamp_ns: int) -> bool:
        """Tells whether labels of a frame are to be learned from."""
        first = self._first.setdefault((source, stamp_ns // self.interval_ns), stamp_ns)
        if len(self._first) > _MOST:
            self._first.popitem(last=False)
        return first == stamp_ns


# What a fit is made of.
AnyFitRows = FitRows | ClassRows


def looks_healthy(rows: AnyFitRows, settings: FitSettings, policy: PolicySettings) -> bool:
    """Tells whether a fit of rows as sent is sure to lie within the band, so that none is needed.

    A scaling does where the mean squared normalised error of every dimension does: that is its
    factor on the variance, before it is drawn towards 1. A temperature does where the loss falls
    towards the band from both of its ends: with one opinion it is convex in 1/T. Of other methods
    nothing is sure.
    """
    if isinstance(rows, ClassRows):
        low, high = policy.class_band
        known = settings.class_method == Temperature.method and rows.opinions == 1
        return known and _falls_with(rows, high) > 0 > _falls_with(rows, low)
    scales = method_of(settings, rows) in (VarianceScaling.method, CovarianceScaling.method)
    if not scales or settings.objective not in (None, Objective.MEAN):
        return False
    factor = np.square(rows.error / rows.deviation).mean(axis=0)
    low, high = policy.band
    healthy = bool(((low <= factor) & (factor <= high)).all())
    return healthy and not (settings.correct_mean and fit_offset(rows).any())


def _falls_with(rows: ClassRows, temperature: float) -> float:
    """Returns how fast the loss falls with log 1/T at a temperature, over all rows."""
    scores = rows.columns / temperature
    _, by_score = averaged_loss(scores, rows.label)
    return -float((by_score * scores).sum())


def latest_alike(tracks: Sequence[AnyTrack], fewest: int) -> int:
    """Counts the newest tracks that are of one regime.

    x = log of a track's mean NEES/K, raw, joint block; of class probabilities the mean of the
    highest probability, less 1 where that class is the true one. The window doubles from
    2 × fewest as long as no newest part of it, of m = fewest, 2 fewest, … tracks, has a mean x more
    than 3.25 standard errors from that of the rest: |x̄ₘ − x̄ᵣ| > 3.25 s sqrt(1/m + 1/r), s² pooled
    over both. Where one has, the window is cut where two means fit it best, in least squares.
    (Against the rest, and not only against the m before: a change that one test misses is seen by a
    later one.)

    It sees changes of the mean of x alone: not those that leave it as it is.

    tracks   oldest first, of one kind
    fewest   ≥ 1; so many are kept whatever they say, or all that there are
    returns  all, where nothing differs: of 400 tracks of one regime in about 98 of 100 cases
    source   windows that grow until they contradict themselves: Lepski 1991; the cut: Hinkley
             1970; NEES: Bar-Shalom et al. 2001, section 5.4.2
    cost     the whitening of all rows: about 5 ms for 500 tracks of 32 rows, K = 7
    """
    count = len(tracks)
    if count <= fewest:
        return count
    levels = [_levels(tracks[start : start + _CHUNK]) for start in range(0, count, _CHUNK)]
    newest_first = np.concatenate(levels)[::-1]
    parts: list[int] = []
    part = fewest
    while part < count:
        parts.append(part)
        window = newest_first[: 2 * part]
        if any(_differ(window[:m], window[m:]) for m in parts):
            return _best_cut(window, fewest)
        part *= 2
    return count


def _levels(tracks: Sequence[AnyTrack]) -> FloatArray:
    """Returns x of each track, (T,)."""
    rows = rows_of(tracks)
    return _class_levels(rows) if isinstance(rows, ClassTrackRows) else _nees_levels(rows)


def _class_levels(rows: ClassTrackRows) -> FloatArray:
    scores = as_columns(rows.log_probabilities)
    mean = opinions_of(scores, rows.log_probabilities.shape).mean(axis=1)
    right = mean.argmax(axis=1) == rows.label
    return rows.means(mean.max(axis=1) - right)


def _nees_levels(rows: TrackRows) -> FloatArray:
    error = rows.space.error(rows.truth, rows.sent.mean)
    # By a rounding, a covariance may not be positive definite.
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        found = measure(rows.space, [(error, rows.sent.covariance)])
    total = rows.means(np.where(found.regular, found.nees[-1] / found.joint, 0.0))
    share = rows.means(found.regular.astype(np.float64))
    mean = np.divide(total, share, out=np.ones_like(total), where=share > 0)
    level: FloatArray = np.log(np.maximum(mean, _LEAST))
    return level


def _differ(newer: FloatArray, older: FloatArray) -> bool:
    within = np.square(newer - newer.mean()).sum() + np.square(older - older.mean()).sum()
    pooled = within / max(newer.size + older.size - 2, 1)
    error = np.sqrt(pooled * (1 / newer.size + 1 / older.size))
    return bool(abs(newer.mean() - older.mean()) > _DIFFERS * error + _ROUNDING)


def _best_cut(window: FloatArray, fewest: int) -> int:
    """Counts the tracks before the cut that leaves least variance within both parts."""
    size = np.arange(1, window.size)
    beyond = np.cumsum(window - window.mean())[:-1]
    between = np.square(beyond) / (size * (window.size - size))
    return fewest + int(np.argmax(between[fewest - 1 :]))


@dataclass(slots=True)
class Reservoir:
    """Holds the newest tracks of each slice, at most most_tracks."""

    settings: TrackSettings
    # By slice, in the order in which they came; and how many came since the last fit.
    _kept: defaultdict[int, deque[AnyTrack]] = field(default_factory=lambda: defaultdict(deque))
    _came: Counter[int] = field(default_factory=Counter)

    def add(self, tracks: Sequence[AnyTrack]) -> None:
        """Adds tracks; in each slice the oldest make room."""
        for track in tracks:
            self._kept[track.slice].append(track)
        for slice, count in Counter([track.slice for track in tracks]).items():
            self._came[slice] += count
            self.keep_newest(slice, self.settings.most_tracks)

    def slices(self) -> tuple[int, ...]:
        """Lists the indices of slices with tracks, ascending."""
        return tuple(sorted(index for index, kept in self._kept.items() if kept))

    def tracks(self, slice: int) -> tuple[AnyTrack, ...]:
        """Returns the tracks of a slice, in the order in which they came."""
        return tuple(self._kept[slice])

    def new(self, slice: int) -> int:
        """Counts the tracks of a slice that came since taken(), and are kept."""
        return min(self._came[slice], len(self._kept[slice]))

    def taken(self, slice: int) -> None:
        """Marks the tracks of a slice as fitted on: none of them is new any more."""
        self._came[slice] = 0

    def keep_newest(self, slice: int, count: int) -> None:
        """Forgets all tracks of a slice but the newest: the others are of another time."""
        kept = self._kept[slice]
        while len(kept) > count:
            kept.popleft()


# Tracks that "all dimensions are off by one factor" counts for: what few tracks of one drive say
# of the differences between dimensions is peculiar to that drive.
_ALIKE_TRACKS = 20.0


@dataclass(frozen=True, slots=True)
class FitJob:
    """Slices to fit, each on its own rows.

    slices  rows by slice name; rows of one track follow each other, tracks by age, oldest first
    limits  of the deviations that a recalibrator may make of the rows it was fitted on
    """

    settings: FitSettings
    slices: Mapping[str, AnyFitRows]
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True, slots=True)
class FitOutcome:
    """Outcome of a fit by slice name; every slice of the job is in one of the two.

    fitted   recalibrators
    refused  why a slice could not be fitted
    """

    fitted: Mapping[str, AnyMethod]
    refused: Mapping[str, str]


class CannotFit(ValueError):
    """A fit that was asked for cannot begin; the message names the field, value and remedy."""


class NoTracksYet(LookupError):
    """A fit was asked for before there was anything to fit on."""


class FitFailed(RuntimeError):
    """A fit crashed, hung, or returned what cannot be used; the message says which."""


def fit_rows(tracks: Sequence[AnyTrack]) -> AnyFitRows:
    """Joins the rows of T ≥ 1 tracks of one kind, track after track, numbered from 0.

    time_s is event time, on the clock of all streams; delay_s is that of the track.
    """
    rows = rows_of(tracks)
    number = np.repeat(np.arange(len(tracks)), rows.counts)
    if isinstance(rows, ClassTrackRows):
        return ClassRows(rows.log_probabilities, rows.label, number)
    stamps = np.concatenate([track.stamp_ns for track in tracks])
    delays = np.array([track.delay_ns for track in tracks], np.int64)
    return FitRows(
        rows.space,
        rows.sent,
        rows.space.error(rows.truth, rows.sent.mean),
        number,
        time_s=stamps / 1e9,
        delay_s=np.repeat(delays, rows.counts) / 1e9,
    )


def method_of(settings: FitSettings, rows: AnyFitRows) -> str:
    """Names the method by which rows of their kind are fitted."""
    if isinstance(rows, ClassRows):
        return settings.class_method
    return settings.missing_method if rows.space.assumed else settings.method


def fit_slices(job: FitJob) -> FitOutcome:
    """Fits a recalibrator for each slice, or says why there is none.

    A slice whose rows do not determine one, on which the method fails, or whose own rows it
    would make unusable, is refused; the others are fitted.
    """
    fitted: dict[str, AnyMethod] = {}
    refused: dict[str, str] = {}
    for name, rows in job.slices.items():
        try:
            if isinstance(rows, ClassRows):
                fitted[name] = _fit_classes(job.settings, rows)
            else:
                fitted[name] = _fit(job.settings, rows, job.limits)
        except UnfitData as error:
            refused[name] = str(error)
        # Whatever is wrong with one slice, the others are fitted.
        except Exception as error:
            method = method_of(job.settings, rows)
            refused[name] = f"{method} failed: {type(error).__name__}: {error}"
    return FitOutcome(fitted, refused)


def _fit_classes(settings: FitSettings, rows: ClassRows) -> ClassRecalibrator:
    """Fits class probabilities. Raises UnfitData, and whatever the method raises.

    A temperature is drawn towards 1: of T tracks, log T has the weight T, and 0 that of the prior.
    """
    fitted = CLASS_FITS[settings.class_method](rows)
    if isinstance(fitted, Temperature):
        share = rows.tracks / (rows.tracks + settings.prior_tracks)
        fitted = Temperature(fitted.temperature**share)
    return fitted


def nothing_wrong(space: Space) -> CovarianceScaling:
    """Returns the scaling that changes nothing, towards which any scaling can be drawn."""
    unit = tuple(tuple(float(i == j) for j in range(space.k)) for i in range(space.k))
    return CovarianceScaling((1.0,) * space.k, unit, unit, space.order)


def _fit(settings: FitSettings, rows: FitRows, limits: Limits) -> Recalibrator:
    """Fits one slice. Raises UnfitData, and whatever the method raises."""
    method = method_of(settings, rows)
    fitting = FITTINGS[method]
    options = FitOptions(objective=settings.objective, time_constant=settings.time_constant_s)
    sent, towards = rows.estimates, None
    # A method that was asked for may move the mean itself.
    corrects = settings.correct_mean and not refuses(method)
    offset = fit_offset(rows) if corrects else np.zeros(rows.space.k)
    rows = less_offset(rows, offset)
    if fitting.borrows and not fitting.estimates:
        towards = Prior(nothing_wrong(rows.space), prior_strength(rows, settings.prior_tracks))
    fitted = fitting.fit(rows, options, towards)
    if isinstance(fitted, VarianceScaling | CovarianceScaling):
        # All joint dimensions at the geometric mean of their scales; angles stay.
        scale, joint = np.array(fitted.scale), list(rows.space.joint)
        scale[joint] = np.exp(np.log(scale[joint]).mean())
        alike = replace(nothing_wrong(rows.space), scale=tuple(scale.tolist()))
        towards = Prior(alike, prior_strength(rows, _ALIKE_TRACKS))
        fitted = fitting.fit(rows, options, towards)
    if isinstance(fitted, EstimatedCovariance):
        fitted = fitted.widened(_beyond(rows, lambda some: fitting.fit(some, options, None)))
    fitted = with_offset(offset, fitted)
    fault = fault_of(sent, fitted.apply(sent), limits)
    if fault:
        raise UnfitData(
            f"of the rows it was fitted on, {method} {fault}: choose another method, or "
            "check the ground truth."
        )
    return fitted


def _beyond(rows: FitRows, fit: Callable[[FitRows], Recalibrator]) -> float:
    """Returns by how much errors of other tracks are larger than those of a fit, on the variance.

    An estimate of few tracks suits these better than those to come. So each tenth of the tracks is
    held against the estimate of the others: the mean of their NEES/K, from 1 to 2; 1 where there
    are tracks enough, and where the others determine no estimate.

    source  cross-validation: Stone 1974
    """
    tenth = rows.track % _TENTHS
    if not _TENTHS < rows.tracks < _ENOUGH:
        return 1.0
    total = 0.0
    for part in range(_TENTHS):
        rest, out = rows.take(tenth != part), rows.take(tenth == part)
        try:
            made = fit(rest).apply(out.estimates)
        except UnfitData:
            return 1.0
        found = measure(rows.space, [(out.error, made.covariance)])
        total += float(np.where(found.regular, found.nees[-1] / found.joint, 0.0).sum())
    return min(max(total / rows.n, 1.0), _MOST_BEYOND)
