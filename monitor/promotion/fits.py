"""Fits of candidates: each slice on its own whole tracks, drawn towards "nothing is wrong".

Where and when a fit runs is not known here: it has a process of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from monitor.frames.detections import Limits
from monitor.frames.space import Space
from monitor.promotion.records import FitSettings
from monitor.promotion.tracks import WholeTrack, rows_of
from monitor.recalibration.fit_rows import FitRows
from monitor.recalibration.fitting import FITTINGS, FitOptions, Fitting, prior_strength
from monitor.recalibration.recalibrator import Recalibrator, UnfitData, fault_of
from monitor.recalibration.scaling import CovarianceScaling, Prior, VarianceScaling

# Tracks that "all dimensions are off by one factor" counts for: what few tracks of one drive say
# of the differences between dimensions is peculiar to that drive.
_ALIKE_TRACKS = 20.0


@dataclass(frozen=True, slots=True)
class FitJob:
    """Slices of one space to fit, each on its own rows.

    slices  rows by slice name; rows of one track follow each other, tracks by age, oldest first
    limits  of the deviations that a recalibrator may make of the rows it was fitted on
    """

    settings: FitSettings
    slices: Mapping[str, FitRows]
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True, slots=True)
class FitOutcome:
    """Outcome of a fit by slice name; every slice of the job is in one of the two.

    fitted   recalibrators
    refused  why a slice could not be fitted
    """

    fitted: Mapping[str, Recalibrator]
    refused: Mapping[str, str]


class CannotFit(ValueError):
    """A fit that was asked for cannot begin; the message names the field, value and remedy."""


class NoTracksYet(LookupError):
    """A fit was asked for before there was anything to fit on."""


class FitFailed(RuntimeError):
    """A fit crashed, hung, or returned what cannot be used; the message says which."""


def fit_rows(tracks: Sequence[WholeTrack]) -> FitRows:
    """Joins the rows of T ≥ 1 tracks of one space, track after track, numbered from 0.

    time_s is event time, on the clock of all streams; delay_s is that of the track.
    """
    rows = rows_of(tracks)
    stamps = np.concatenate([track.stamp_ns for track in tracks])
    delays = np.array([track.delay_ns for track in tracks], np.int64)
    return FitRows(
        rows.space,
        rows.sent,
        rows.space.error(rows.truth, rows.sent.mean),
        np.repeat(np.arange(len(tracks)), rows.counts),
        time_s=stamps / 1e9,
        delay_s=np.repeat(delays, rows.counts) / 1e9,
    )


def fit_slices(job: FitJob) -> FitOutcome:
    """Fits a recalibrator for each slice, or says why there is none.

    A slice whose rows do not determine one, on which the method fails, or whose own rows it
    would make unusable, is refused; the others are fitted.
    """
    fitting = FITTINGS[job.settings.method]
    fitted: dict[str, Recalibrator] = {}
    refused: dict[str, str] = {}
    for name, rows in job.slices.items():
        try:
            fitted[name] = _fit(fitting, job.settings, rows, job.limits)
        except UnfitData as error:
            refused[name] = str(error)
        # Whatever is wrong with one slice, the others are fitted.
        except Exception as error:
            refused[name] = f"{job.settings.method} failed: {type(error).__name__}: {error}"
    return FitOutcome(fitted, refused)


def nothing_wrong(space: Space) -> CovarianceScaling:
    """Returns the scaling that changes nothing, towards which any scaling can be drawn."""
    unit = tuple(tuple(float(i == j) for j in range(space.k)) for i in range(space.k))
    return CovarianceScaling((1.0,) * space.k, unit, unit, space.order)


def _fit(fitting: Fitting, settings: FitSettings, rows: FitRows, limits: Limits) -> Recalibrator:
    """Fits one slice. Raises UnfitData, and whatever the method raises."""
    options = FitOptions(objective=settings.objective, time_constant=settings.time_constant_s)
    towards = None
    if fitting.borrows:
        towards = Prior(nothing_wrong(rows.space), prior_strength(rows, settings.prior_tracks))
    fitted = fitting.fit(rows, options, towards)
    if isinstance(fitted, VarianceScaling | CovarianceScaling):
        # All joint dimensions at the geometric mean of their scales; angles stay.
        scale, joint = np.array(fitted.scale), list(rows.space.joint)
        scale[joint] = np.exp(np.log(scale[joint]).mean())
        alike = replace(nothing_wrong(rows.space), scale=tuple(scale.tolist()))
        towards = Prior(alike, prior_strength(rows, _ALIKE_TRACKS))
        fitted = fitting.fit(rows, options, towards)
    fault = fault_of(rows.estimates, fitted.apply(rows.estimates), limits)
    if fault:
        raise UnfitData(
            f"of the rows it was fitted on, {settings.method} {fault}: choose another method, or "
            "check the ground truth."
        )
    return fitted
