"""The part of `fit` for Gaussians: a recalibrator of all rows, and of the slices asked for."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from monitor.calibration.slices import RangeBuckets, SliceBy
from monitor.calibration.space import IntArray
from monitor.edges.files import Recording
from monitor.recalibration.basis import Basis, Period
from monitor.recalibration.fit_rows import FitRows
from monitor.recalibration.fitting import FITTINGS, FitOptions
from monitor.recalibration.hierarchy import FitSlice, SliceFit, fit_slices, prior_strength
from monitor.recalibration.identity import Identity
from monitor.recalibration.recalibrator import InvalidRecalibrator, Recalibrator, UnfitData
from monitor.recalibration.rejection import RejectedBy, Rejection, fit_rejection
from monitor.recalibration.selection import Selection
from monitor.recalibration.shrinkage import Prior
from monitor.verbs.fit_remarks import remarks
from monitor.verbs.models import check_dimensions, read_model
from monitor.verbs.recalibrated import parts_of, recalibrate_gaussians
from monitor.verbs.recorded import read_selected
from monitor.verbs.truth import Times, basis_of, fit_rows, left_out, usable_truth

# As the sidecar has them unless it is told otherwise: [statistics] range_edges, range_dimensions.
RANGE_EDGES = (20.0, 40.0, 60.0)
RANGE_DIMENSIONS = ("x", "y", "z")
# Independent rows that another fit counts for where a scaling is drawn towards it.
PRIOR_STRENGTH = 30.0
# Tracks, and independent rows, below which a slice does not stand on its own.
FEWEST_TRACKS = 30.0


def fit_gaussians(options: argparse.Namespace, wanted: FitOptions) -> tuple[Selection, list[str]]:
    """What the options ask for; and lines on the slices that lean on others, or are left to them.

    Raises RecordingError, UnfitData, InvalidRecalibrator, ValueError.
    """
    fitting = FITTINGS[options.method]
    recording = read_selected(options.file, options)
    previous = _previous(options, recording)
    labelled, usable = usable_truth(recording)
    kept = np.flatnonzero(usable)
    if kept.size == 0 and options.method != Identity.method:
        raise UnfitData(
            f"cannot fit on 0 detections with ground truth: {left_out(labelled, usable)}. Widen "
            "the selection of rows."
        )
    rows, kept, late = _in_time(recording, kept, options.label_delay or 0.0)
    strength = options.prior_strength or PRIOR_STRENGTH

    def fit(part: FitRows, towards: Recalibrator | None) -> Recalibrator:
        prior: Prior[Any] | None = None
        if towards is not None:
            prior = Prior(towards, prior_strength(part, strength))
        return fitting.fit(part, wanted, prior)

    whole = fit(rows, None if previous is None else previous.fallback)
    slices = _slices(options, recording, kept)
    found = fit_slices(
        [(entry, rows.take(entry.rows)) for entry in slices],
        fit,
        whole,
        borrows=fitting.borrows,
        fewest=FEWEST_TRACKS if options.fewest_tracks is None else options.fewest_tracks,
        previous=previous,
    )
    times = Times(recording.stamp_ns, recording.time_s)
    by_slice = {
        name: made.recalibrator for name, made in found.items() if made.recalibrator is not None
    }
    periods = {entry.name: times.period(kept[entry.rows]) for entry in slices}
    selection = Selection(
        recording.space.names,
        whole,
        by_slice,
        {"file": Path(options.file).name, "rows": rows.n, "classes": list(recording.classes)},
        basis_of(rows, times.period(kept), None if previous is None else previous.version),
        _bases({name: found[name] for name in by_slice}, periods, previous),
        _ranges(options),
    )
    if options.reject_above_error is not None:
        rejection = _rejection(selection, recording, kept, rows, options.reject_above_error)
        selection = replace(selection, rejection=rejection)
    lines = [f"not fitted on: {left_out(labelled, usable)}"] if (labelled & ~usable).any() else []
    if late:
        lines.append(
            f"not fitted on: {late} rows of the last {options.label_delay:g} s, whose labels would "
            "not have come yet"
        )
    return selection, [*lines, *remarks(selection, found, wanted, previous)]


def _in_time(recording: Recording, kept: IntArray, delay_s: float) -> tuple[FitRows, IntArray, int]:
    """The rows whose labels would have come by the end of the file, with their times.

    kept     (n,) row numbers of usable rows
    returns  the rows, their numbers, and how many have been left out
    raises   UnfitData where that leaves none
    """
    stamp_ns = recording.stamp_ns
    # A stamp is of the clock of the stream that the recalibrator may go on with.
    time_s = recording.time_s if stamp_ns is None else stamp_ns / 1e9
    late = 0
    if delay_s > 0 and kept.size and time_s is not None:
        end_s = float(np.max(time_s, initial=-np.inf, where=np.isfinite(time_s)))
        # A row without a time stays, so that the method says what it lacks.
        there = kept[~(time_s[kept] > end_s - delay_s)]
        if there.size == 0:
            raise UnfitData(
                f"--label-delay {delay_s:g}: the file has truth for its last "
                f"{end_s - time_s[kept].min():g} s alone, and by its end none would have come. "
                "Give a longer recording, or a smaller delay."
            )
        kept, late = there, kept.size - there.size
    rows = fit_rows(recording, kept)
    if time_s is None:
        return rows, kept, late
    return replace(rows, time_s=time_s[kept], delay_s=np.full(kept.size, delay_s)), kept, late


def _bases(
    served: Mapping[str, SliceFit], periods: Mapping[str, Period | None], previous: Selection | None
) -> dict[str, Basis]:
    """What the slices with a recalibrator rest on, where that is known."""
    found = {}
    for name, made in served.items():
        basis = basis_of(made.rows, periods[name], made.leans_on)
        if made.reason and previous is not None:
            basis = previous.bases.get(name)
        if basis is not None:
            found[name] = basis
    return found


def _rejection(
    selection: Selection, recording: Recording, kept: IntArray, rows: FitRows, target: float
) -> Rejection:
    """By σ_G of the recalibrated covariances, for the RMSE of the recalibrated means.

    kept  (n,) row numbers in the recording of the rows fitted on
    """
    made = recalibrate_gaussians(selection, recording)
    error = recording.space.error(recording.truth[kept], made.recording.mean[kept])
    return fit_rejection(
        made.deviation[kept],
        np.square(error[:, np.array(recording.space.joint)]).sum(axis=1),
        target,
        RejectedBy.DEVIATION,
        rows.track,
    )


def _previous(options: argparse.Namespace, recording: Recording) -> Selection | None:
    """The selection of --previous. Raises InvalidRecalibrator where it is of another kind."""
    if options.previous is None:
        return None
    previous = read_model(options.previous)
    check_dimensions(previous, recording.space)
    others = {one.method for one in previous.recalibrators} - {options.method}
    if others:
        raise InvalidRecalibrator(
            f"--previous {options.previous}: it was fitted by {', '.join(sorted(others))}, and "
            f"{options.method} is drawn towards its own kind only. Give such a model, or leave "
            "--previous out."
        )
    return previous


def _ranges(options: argparse.Namespace) -> RangeBuckets | None:
    if SliceBy.RANGE not in (options.by or ()):
        return None
    return RangeBuckets(options.range_edges or RANGE_EDGES, RANGE_DIMENSIONS)


def _slices(
    options: argparse.Namespace, recording: Recording, kept: IntArray
) -> tuple[FitSlice, ...]:
    """The slices asked for; their rows are numbers among the usable ones.

    Raises ValueError where the file has no position to measure a range by.
    """
    if not options.by:
        return ()
    ranges = _ranges(options)
    if ranges is not None and ranges.labels(recording.space) == ("",):
        raise ValueError(
            f"--by range: the range is the norm of {', '.join(RANGE_DIMENSIONS)}, and the file is "
            f"read with {', '.join(recording.space.names)}. Leave range out of --by."
        )
    place = np.full(recording.mean.shape[0], -1)
    place[kept] = np.arange(kept.size)
    found = parts_of(recording, ranges).slices(options.by)
    rows = [place[entry.rows] for entry in found]
    return tuple(
        FitSlice(entry.name, usable[usable >= 0], entry.wider)
        for entry, usable in zip(found, rows, strict=True)
    )
