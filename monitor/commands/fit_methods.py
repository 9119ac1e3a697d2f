"""Fits the recalibrator that the options of `fit` ask for.

For Gaussians that is one recalibrator of all rows, with one for each slice asked for; for class
probabilities a single one. The methods themselves live in `recalibration`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from monitor.commands.models import check_dimensions, read_model
from monitor.commands.recalibrated import opinions_of, recalibrate_gaussians
from monitor.commands.recordings import (
    estimates_of,
    left_out,
    numbered_tracks,
    parts_of,
    read_selected,
    refuse_options_of_gaussians,
    usable_truth,
)
from monitor.frames.slices import RangeBuckets, SliceBy
from monitor.frames.space import IntArray
from monitor.recalibration.adaptive_scaling import AdaptiveScaling
from monitor.recalibration.binned import HistogramBinning, IsotonicStd
from monitor.recalibration.classes.class_selection import CLASS_FITS, ClassSelection
from monitor.recalibration.classes.probabilities import ClassRows
from monitor.recalibration.fit_rows import FitRows
from monitor.recalibration.fitting import (
    FITTINGS,
    WHOLE,
    FitOptions,
    FitSlice,
    SliceFit,
    fit_slices,
    prior_strength,
)
from monitor.recalibration.recalibrator import (
    Basis,
    Clock,
    Identity,
    InvalidRecalibrator,
    Period,
    Recalibrator,
    UnfitData,
)
from monitor.recalibration.rejection import RejectedBy, fit_rejection, normalised_entropy
from monitor.recalibration.scaling import WIDE, Clamp, CovarianceScaling, Prior, VarianceScaling
from monitor.recalibration.selection import Selection
from monitor.store.class_recordings import ClassRecording, read_class_recording, require_labels
from monitor.store.recordings import Recording

# Options of the verb that divide Gaussians or draw their fit, by destination.
_OF_GAUSSIANS = ("by", "range_edges", "fewest_tracks", "previous", "prior_strength")

# As the sidecar has them unless it is told otherwise: [statistics] range_edges, range_dimensions.
RANGE_EDGES = (20.0, 40.0, 60.0)
RANGE_DIMENSIONS = ("x", "y", "z")

# Independent rows that another fit counts for where a scaling is drawn towards it.
PRIOR_STRENGTH = 30.0

# Tracks, and independent rows, below which a slice does not stand on its own.
FEWEST_TRACKS = 30.0


def fit_gaussians(options: argparse.Namespace, wanted: FitOptions) -> tuple[Selection, list[str]]:
    """Fits Gaussians; returns the model, and remarks on slices that lean on others.

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
    periods = {entry.name: period_of(recording, kept[entry.rows]) for entry in slices}
    by_slice: dict[str, Recalibrator] = {}
    bases: dict[str, Basis] = {}
    for name, made in found.items():
        if made.recalibrator is None:
            continue
        by_slice[name] = made.recalibrator
        basis = basis_of(made.rows, periods[name], made.leans_on)
        if made.reason and previous is not None:
            basis = previous.bases.get(name)
        if basis is not None:
            bases[name] = basis
    selection = Selection(
        recording.space.names,
        whole,
        by_slice,
        {"file": Path(options.file).name, "rows": rows.n, "classes": list(recording.classes)},
        basis_of(rows, period_of(recording, kept), None if previous is None else previous.version),
        bases,
        _ranges(options),
    )
    if options.reject_above_error is not None:
        served = recalibrate_gaussians(selection, recording)
        error = recording.space.error(recording.truth[kept], served.recording.mean[kept])
        squared = np.square(error[:, np.array(recording.space.joint)]).sum(axis=1)
        # A threshold on σ_G of recalibrated covariances, for the RMSE of recalibrated means.
        deviation, target = served.deviation[kept], options.reject_above_error
        rejection = fit_rejection(deviation, squared, target, RejectedBy.DEVIATION, rows.track)
        selection = replace(selection, rejection=rejection)
    lines = [f"not fitted on: {left_out(labelled, usable)}"] if (labelled & ~usable).any() else []
    if late:
        lines.append(
            f"not fitted on: {late} rows of the last {options.label_delay:g} s, whose labels would "
            "not have come yet"
        )
    return selection, [*lines, *remarks(selection, found, wanted, previous)]


def _in_time(recording: Recording, kept: IntArray, delay_s: float) -> tuple[FitRows, IntArray, int]:
    """Keeps the rows whose labels would have come by the end of the file, with their times.

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


def fit_rows(recording: Recording, rows: IntArray) -> FitRows:
    """Takes some rows, all of them usable, to fit on."""
    tracks = numbered_tracks(recording.sequence_index, recording.track)
    return FitRows(
        recording.space,
        estimates_of(recording).take(rows),
        recording.space.error(recording.truth[rows], recording.mean[rows]),
        np.full(rows.size, -1) if tracks is None else tracks[rows],
    )


def period_of(recording: Recording | ClassRecording, rows: IntArray) -> Period:
    """Period from the first to the last of some rows; of None where they have no times."""
    if rows.size == 0:
        return None, None, None
    if recording.stamp_ns is not None:  # preferred: stamps of all files share one zero
        stamps = recording.stamp_ns[rows]
        return int(stamps.min()), int(stamps.max()), Clock.STAMP
    if recording.time_s is None or not np.isfinite(recording.time_s[rows]).all():
        return None, None, None
    seconds = recording.time_s[rows]
    return float(seconds.min()), float(seconds.max()), Clock.SECONDS


def basis_of(rows: FitRows, period: Period, borrows_from: str | None) -> Basis | None:
    """Basis of a fit on these rows; None without rows."""
    if rows.n == 0:
        return None
    first, last, clock = period
    return Basis(rows.n, rows.tracks, rows.n * rows.weight, first, last, clock, borrows_from)


def _previous(options: argparse.Namespace, recording: Recording) -> Selection | None:
    """Reads the selection of --previous. Raises InvalidRecalibrator where it is of another kind."""
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
    """Divides into the slices asked for; their rows are numbers among the usable ones.

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


def remarks(
    selection: Selection,
    found: Mapping[str, SliceFit],
    wanted: FitOptions,
    previous: Selection | None,
) -> Iterator[str]:
    """Remarks on slices that lean on others or are left to them, and on factors that were stopped.

    found     what came of each slice
    previous  the selection that the fit was drawn towards
    """
    for name, fit in found.items():
        if fit.recalibrator is None:
            to = "the fallback" if fit.leans_on == WHOLE else fit.leans_on
            yield f"slice {name} is left to {to}: {fit.reason}"
        elif fit.reason:
            yield f"slice {name} stays as in {fit.leans_on}: {fit.reason}"
        else:
            yield f"slice {name}: {selection.bases[name]}"
    # A factor that was stopped is more often a mistake in the file than of the detector.
    clamp = wanted.clamp or WIDE
    where = "--clamp" if wanted.clamp else f"{WIDE.lowest:g}:{WIDE.highest:g}, and no further"
    for name, one in {"all rows": selection.fallback, **selection.by_slice}.items():
        stopped = [selection.dimensions[i] for i in _stopped(one, clamp)]
        if stopped:
            yield (
                f"{name}: the factor on σ of {', '.join(stopped)} is at an end of {where}: "
                "are units, matches and rows right?"
            )
    for name in sorted(() if previous is None else previous.by_slice):
        if name not in selection.by_slice:
            yield f"slice {name} of --previous has no rows here, and is in the new model no more"


def _stopped(one: Recalibrator, clamp: Clamp) -> list[int]:
    """Positions of the dimensions with a factor on σ at an end of its range."""
    match one:
        case VarianceScaling() | CovarianceScaling() | AdaptiveScaling():
            ends = clamp.reached(one)
        case HistogramBinning(factors=curves) | IsotonicStd(factor=curves):
            inside = [all(clamp.lowest < f < clamp.highest for f in curve) for curve in curves]
            ends = tuple(not whole for whole in inside)
        case _:
            ends = ()
    return [i for i, at_an_end in enumerate(ends) if at_an_end]


def fit_class_probabilities(
    options: argparse.Namespace,
) -> tuple[ClassSelection, Basis, list[str]]:
    """Fits class probabilities; returns the model, what it rests on, and remarks to print.

    Raises RecordingError, UnfitData, ValueError.
    """
    refuse_options_of_gaussians(
        options, _OF_GAUSSIANS, f"{options.method} is fitted to class probabilities"
    )
    recording = read_class_recording(options.file, options.rows)
    if recording is None:
        raise UnfitData(
            f"{options.file} has no class probabilities, which {options.method} is fitted to. "
            "Give an .npz file with prob or logits, and label."
        )
    require_labels(options.file, recording)
    rows, kept = _rows(recording)
    if rows.n == 0:
        raise UnfitData(
            f"cannot fit on 0 detections with a true class: of {recording.label.size} rows, "
            f"{np.count_nonzero(recording.label < 0)} have none, and the others no usable "
            "probabilities. Widen the selection of rows."
        )
    fitted = CLASS_FITS[options.method](rows)
    basis = Basis(rows.n, rows.tracks, rows.n * rows.weight, *period_of(recording, kept))
    rejection = None
    if options.reject_above_error is not None:
        made = fitted.apply(rows.log_probabilities).mean(axis=1)
        wrong = (made.argmax(axis=1) != rows.label).astype(np.float64)
        entropy, target = normalised_entropy(made), options.reject_above_error
        rejection = fit_rejection(entropy, wrong, target, RejectedBy.ENTROPY, rows.track)
    fitted_on = {"file": Path(options.file).name, "rows": rows.n, "basis": basis.parameters()}
    selection = ClassSelection(recording.class_names, fitted, rejection, fitted_on)
    if selection.classes or fitted.classes is None:
        return selection, basis, []
    unchecked = (
        f"{options.file} has no class_names: {selection.method} tells classes apart by their "
        "position, and whether\na detector has them in the same order is not checked when it is "
        "served"
    )
    return selection, basis, [unchecked]


def _rows(recording: ClassRecording) -> tuple[ClassRows, IntArray]:
    """Finds the rows that can be fitted on, and their numbers in the recording."""
    log_probabilities, usable = opinions_of(recording)
    classes = log_probabilities.shape[2]
    kept = np.flatnonzero(usable & (recording.label >= 0) & (recording.label < classes))
    tracks = numbered_tracks(recording.sequence_index, recording.track)
    track = None if tracks is None else tracks[kept]
    return ClassRows(log_probabilities[kept], recording.label[kept], track), kept
