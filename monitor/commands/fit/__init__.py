"""calibration-monitor fit: fits a recalibrator to a recorded file.

For Gaussians that is one recalibrator of all rows, with one for each slice asked for; for class
probabilities a single one. The methods themselves live in `recalibration`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields, replace
from pathlib import Path

import numpy as np

from monitor.commands.apply import (
    check_dimensions,
    document_of,
    read_model,
    recalibrate_gaussians,
)
from monitor.commands.fit.class_models import Fitted, fit_class_probabilities, period_of
from monitor.commands.fit.filling import (
    compared_to_assumed,
    filling,
    plainly_named,
    without_covariances,
)
from monitor.commands.fit.r_tables import r_table
from monitor.commands.fit.slice_remarks import remarks
from monitor.commands.held_out import PARTS, HeldOut, dealt, told
from monitor.commands.output import tell, to_standard_error, working, write_output
from monitor.commands.recordings import (
    as_stated,
    estimates_of,
    numbered_tracks,
    parts_of,
    ranges_by,
    read_selected,
)
from monitor.commands.soundness import usable_truth
from monitor.frames.slices import RangeBuckets
from monitor.frames.space import IntArray, Space
from monitor.frames.words import SliceBy
from monitor.options.recorded import FEWEST_TO_STAND_ALONE, PRIOR_STRENGTH
from monitor.options.values import allow
from monitor.recalibration.estimated.regression import CovarianceRegression
from monitor.recalibration.fit_rows import FitRows
from monitor.recalibration.fitting import FITTINGS, WHOLE, FitOptions, SliceFit, fit_selection
from monitor.recalibration.mean_correction import method_after_offset, refuses
from monitor.recalibration.methods import USUAL_OF_CLASSES
from monitor.recalibration.parts import FitSlice
from monitor.recalibration.recalibrator import (
    NO_PERIOD,
    Identity,
    InvalidRecalibrator,
    Output,
    UnfitData,
)
from monitor.recalibration.rejection import RejectedBy, Rejection, fit_rejection
from monitor.recalibration.scaling import Clamp, CovarianceScaling
from monitor.recalibration.selection import CLASS_METHODS, AnySelection, ClassSelection, Selection
from monitor.store.class_recordings import read_class_recording
from monitor.store.files import is_state
from monitor.store.formats import is_global
from monitor.store.recordings import IN_MEMORY, RECALIBRATED, Recording, Source
from monitor.store.tables import BOX


def read_to_fit(
    options: argparse.Namespace, tell: Callable[[str], None] = to_standard_error
) -> Recording:
    """Reads the rows to fit on, and chooses the method by them where none is asked for.

    tell    is told what looks wrong, a line each
    raises  RecordingError, ValueError
    """
    recording = read_selected(options.file, options, tell=tell)
    if options.method is None:
        bare = as_stated(recording, options).bare
        options.method = CovarianceRegression.method if bare else CovarianceScaling.method
    return recording


def fit_gaussians(
    options: argparse.Namespace,
    recording: Recording,
    tell: Callable[[str], None] = to_standard_error,
) -> Fitted:
    """Fits Gaussians; remarks are on slices that lean on others.

    Where the method estimates covariances, it is fitted on the errors of all rows, and judged on
    rows as if they had none; but with --replace on rows as they are.

    recording  as read_to_fit reads it
    tell       is told what looks wrong, a line each
    raises     RecordingError, UnfitData, InvalidRecalibrator, ValueError
    """
    wanted = _wanted(options)
    fitting = FITTINGS[options.method]
    if RECALIBRATED in recording.others:
        tell(
            f"the file was recalibrated before (it has the column '{RECALIBRATED}'): what is "
            "fitted corrects what it says now, not what the detector reports"
        )
    previous = _previous(options, recording.space)
    sent = judged_on = as_stated(recording, options)
    if fitting.estimates:
        sent, recording = recording, without_covariances(recording, options.assume_std)
        judged_on = sent if options.replace else recording
    usable = usable_truth(judged_on)
    bare = usable.rows & (judged_on.assumed & (not fitting.estimates))
    kept = np.flatnonzero(usable.rows & ~bare)
    if kept.size == 0 and bare.any() and _changes(options):
        raise UnfitData(
            f"no row with ground truth has a covariance, which {options.method} corrects. Give "
            f"--method {CovarianceRegression.method}, which estimates one, or state one by "
            "--assume-std."
        )
    if kept.size == 0 and _changes(options):
        raise UnfitData(
            f"cannot fit on 0 detections with ground truth: {usable.told()}. "
            f"{usable.remedy(recording)}"
        )
    rows, kept, late = _in_time(recording, kept, options.label_delay or 0.0)
    slices: dict[str, IntArray] = {}
    parts, total = 0, kept.size
    if _changes(options) and not options.no_held_out:
        # A slow fit is judged on one part.
        parts = 1 if options.method.startswith("gp-") else PARTS
        slices = {entry.name: kept[entry.rows] for entry in _slices(options, recording, kept)}
        judging = kept.size + sum(each.size for each in slices.values())
        # Each part is left out of a fit, and judged before and after.
        total += parts * (kept.size * (PARTS - 1) + 2 * judging) // PARTS
    judged: tuple[HeldOut, ...] = ()
    left: list[str] = []
    unseen = None
    with working("fitting", total) as done:

        def fit_some(some: IntArray) -> Selection:
            taken = rows.take(np.searchsorted(kept, some))
            # With fewer tracks a slice must not lean on others that stands alone in the whole.
            share = some.size / kept.size
            made, _ = _fitted(options, wanted, recording, previous, taken, some, share)
            done(some.size)
            return _served(options, made)

        selection, found = _fitted(options, wanted, recording, previous, rows, kept)
        done(kept.size)
        unseen = dealt(judged_on, kept, fit_some, parts=parts) if parts else None
        judged = () if unseen is None else unseen.judged(slices, done=done)
        if options.proven_only:
            worth_it = {one.slice for one in judged if one.worth_it}
            left = [name for name in ("all", *selection.by_slice) if name not in worth_it]
            selection = _proven(selection, worth_it)
            if unseen is not None:
                served = recalibrate_gaussians(_served(options, selection), judged_on)
                judged = unseen.without(served.untouched).judged(slices, judged)
    if options.reject_above_error is not None:
        served = recalibrate_gaussians(_served(options, selection), judged_on)
        error = recording.space.error(recording.truth[kept], served.recording.mean[kept])
        squared = np.square(error[:, np.array(recording.space.joint)]).sum(axis=1)
        # A threshold on σ_G of recalibrated covariances, for the RMSE of recalibrated means.
        deviation, target = served.deviation[kept], options.reject_above_error
        rejection = fit_rejection(deviation, squared, target, RejectedBy.DEVIATION, rows.track)
        selection = replace(selection, rejection=rejection)
    lines = [f"not fitted on: {usable.told()}"] if usable.refused else []
    if recording.track is None:
        lines.append(
            "no row names its track (gt_id): rows are taken as independent, and those held out "
            "may be of tracks that were fitted on"
        )
    if late:
        lines.append(
            f"not fitted on: {late} rows of the last {options.label_delay:g} s, whose labels would "
            "not have come yet"
        )
    if bare.any():
        lines.append(
            f"not fitted on: {np.count_nonzero(bare):,} rows without a covariance; --method "
            f"{CovarianceRegression.method} estimates one for these"
        )
    if fitting.estimates and unseen is not None:
        there = unseen.cluster >= 0
        lines.append(compared_to_assumed(sent, recording, usable_truth(sent).rows & there, options))
    if fitting.estimates and recording.box[:2] != BOX[:2]:
        lines.append(
            f"the ground of the file is {' and '.join(recording.box[:2])}, and range and axes are "
            "taken in x and y: give --map x=z,y=x,z=y, and --label-map likewise"
        )
    if fitting.estimates and is_global(options.file, options.format):
        lines.append(
            "places of nuScenes are those of a map, so that range and bearing are taken from its "
            "origin: give x, y and yaw as the vehicle sees them"
        )
    lines += remarks(selection, found, wanted, previous)
    if left:
        lines.append(f"left as the detector reports them (--proven-only): {', '.join(left)}")
    return _served(options, selection), selection.basis, lines, judged


def _wanted(options: argparse.Namespace) -> FitOptions:
    given = {name: getattr(options, name) for name in _OF_METHODS}
    return FitOptions(**given | {"clamp": options.clamp and Clamp(*options.clamp)})


def _served(options: argparse.Namespace, made: Selection) -> Selection:
    """Names the fit after what it serves: where it estimates, rows without a covariance."""
    if not FITTINGS[options.method].estimates:
        return made
    return filling(made, replaces=bool(options.replace))


def fit_state(options: argparse.Namespace) -> Fitted:
    """Fits the sums of a state; remarks are on what it is of, and on slices that lean on others.

    Raises UnusableFile, InvalidState, IncompatibleStatistics, UnfitData, ValueError.
    """
    # A state is read with protobuf, which rows do without.
    from monitor.commands.fit.from_state import evidence_of, fitted_on, told_of

    wanted = _wanted(options)
    evidence = evidence_of(options)
    previous = _previous(options, evidence.space)
    by = tuple(options.by or ())
    slices = evidence.divided(by)
    with working("fitting"):
        selection, found = fit_selection(
            options.method,
            wanted,
            evidence.space.names,
            evidence.taken(options.method),
            [(entry, evidence.taken(options.method, entry.rows)) for entry in slices],
            strength=options.prior_strength or PRIOR_STRENGTH,
            fewest=fewest_tracks(options),
            periods=dict.fromkeys((WHOLE, *(entry.name for entry in slices)), NO_PERIOD),
            fitted_on={"file": _name(options.file), **fitted_on(evidence)},
            ranges=evidence.ranges if SliceBy.RANGE in by else None,
            previous=previous,
        )
    what = _what(options.method, selection)
    lines = [
        f"{_name(options.file)}: {told_of(evidence)}, fitted on {what}; not judged on tracks that "
        "it has not seen: use evaluate --model on drives that are not in it"
    ]
    lines += remarks(selection, found, wanted, previous)
    return _served(options, selection), selection.basis, lines, ()


def _what(method: str, selection: Selection) -> str:
    if FITTINGS[method].sums or selection.basis is None:
        return "their sums"
    return f"a sample of {selection.basis.rows:,} of them"


def _changes(options: argparse.Namespace) -> bool:
    """Tells whether what is fitted changes anything."""
    return options.method != Identity.method or bool(options.correct_mean)


def _proven(selection: Selection, worth: Collection[str]) -> Selection:
    """Leaves rows as they are, by slice and those of no slice, unless the fit is worth it there."""
    return replace(
        selection,
        fallback=selection.fallback if "all" in worth else Identity(),
        by_slice={
            name: one if name in worth else Identity() for name, one in selection.by_slice.items()
        },
    )


def _fitted(
    options: argparse.Namespace,
    wanted: FitOptions,
    recording: Recording,
    previous: Selection | None,
    rows: FitRows,
    kept: IntArray,
    share: float = 1.0,
) -> tuple[Selection, Mapping[str, SliceFit]]:
    """Fits all rows, and the slices asked for; returns also what came of each slice.

    kept   (n,) numbers of the rows in the recording
    share  of all usable rows that these are
    """
    slices = _slices(options, recording, kept)
    periods = {entry.name: period_of(recording, kept[entry.rows]) for entry in slices}
    return fit_selection(
        options.method,
        wanted,
        recording.space.names,
        rows,
        [(entry, rows.take(entry.rows)) for entry in slices],
        strength=options.prior_strength or PRIOR_STRENGTH,
        fewest=share * fewest_tracks(options),
        periods={WHOLE: period_of(recording, kept), **periods},
        fitted_on={"file": _name(options.file), "rows": rows.n, "classes": list(recording.classes)},
        ranges=_ranges(options, recording.space),
        previous=previous,
    )


def fewest_tracks(options: argparse.Namespace) -> float:
    """Tracks, and independent rows, up to which a slice leans on the wider one."""
    return FEWEST_TO_STAND_ALONE if options.fewest_tracks is None else options.fewest_tracks


def _name(file: Source) -> str:
    return IN_MEMORY.name if isinstance(file, Mapping) else Path(file).name


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
    tracks = numbered_tracks(recording, kept)
    rows = FitRows(
        recording.space,
        estimates_of(recording).take(kept),
        recording.space.error(recording.truth[kept], recording.mean[kept]),
        np.full(kept.size, -1) if tracks is None else tracks,
    )
    if time_s is None:
        return rows, kept, late
    return replace(rows, time_s=time_s[kept], delay_s=np.full(kept.size, delay_s)), kept, late


def _previous(options: argparse.Namespace, space: Space) -> Selection | None:
    """Reads the selection of --previous. Raises InvalidRecalibrator where it is of another kind."""
    if options.previous is None:
        return None
    previous = plainly_named(read_model(options.previous))
    check_dimensions(previous, space)
    others = {method_after_offset(one) for one in previous.recalibrators} - {options.method}
    if others:
        raise InvalidRecalibrator(
            f"--previous {options.previous}: it was fitted by {', '.join(sorted(others))}, and "
            f"{options.method} is drawn towards its own kind only. Give such a model, or leave "
            "--previous out."
        )
    return previous


def _ranges(options: argparse.Namespace, space: Space) -> RangeBuckets | None:
    if SliceBy.RANGE not in (options.by or ()):
        return None
    return ranges_by(space, options.range_edges)


def _slices(
    options: argparse.Namespace, recording: Recording, kept: IntArray
) -> tuple[FitSlice, ...]:
    """Divides into the slices asked for; their rows are numbers among the usable ones.

    Raises ValueError where the file has no position to measure a range by.
    """
    if not options.by:
        return ()
    ranges = _ranges(options, recording.space)
    place = np.full(recording.mean.shape[0], -1)
    place[kept] = np.arange(kept.size)
    return tuple(
        FitSlice(entry.name, usable[usable >= 0], entry.wider)
        for entry in parts_of(recording, ranges).slices(options.by)
        for usable in [place[entry.rows]]
    )


# Options of single methods.
_OF_METHODS = tuple(field.name for field in fields(FitOptions))


def run(options: argparse.Namespace) -> int:
    """0 when the model was written.

    Raises RecordingError, UnfitData, InvalidRecalibrator, CannotWrite, ValueError.
    """
    state = is_state(options.file)
    if options.method is None and state:
        options.method = CovarianceScaling.method
    recording = None
    if options.method is None:
        classes = read_class_recording(options.file, options.rows, options.map)
        alone = classes is not None and not classes.gaussians
        recording = None if alone else read_to_fit(options)
        options.method = options.method or USUAL_OF_CLASSES
    check(options)
    if state:
        fitted = fit_state(options)
    elif options.method in CLASS_METHODS:
        fitted = fit_class_probabilities(options)
    else:
        recording = recording or read_to_fit(options)
        fitted = fit_gaussians(options, recording)
    model, basis, lines, judged = fitted
    write_output(options.output, document_of(model))
    rows = "no rows" if basis is None else str(basis)
    if model.rejection is not None:
        lines.append(_said_of(model.rejection))
    document = {
        "version": model.version,
        "method": options.method,
        "output": options.output,
        "fitted_on": None if basis is None else basis.parameters(),
        "remarks": lines.copy(),
        "held_out": [one.as_json() for one in judged],
    }
    written = f"{model.version}{_made_of(model)} fitted on {rows}, written to {options.output}"
    if isinstance(model, Selection) and Output.ESTIMATED in model.outputs:
        document["replaces"] = replaces = model.fallback.method != Identity.method
        what = (
            "and replaces those that were sent" if replaces else "and leaves those that were sent"
        )
        written += f"\noutput: estimated. It gives covariances to detections without one, {what}."
    judgeable = not isinstance(model, ClassSelection) and _changes(options)
    if judgeable and not (options.no_held_out or state):
        lines.append(told(judged) + "\n")
    text = "\n".join([*lines, written])
    if options.export_r is not None and isinstance(model, Selection) and recording is not None:
        print(r_table(model, recording, options), end="")
        print(text, file=sys.stderr)
        return 0
    tell(options, document, text)
    return 0


def _made_of(model: AnySelection) -> str:
    """Says which slices are left as they are, where others are not."""
    if isinstance(model, ClassSelection) or not model.by_slice:
        return ""
    made = {name: one.method for name, one in model.by_slice.items()}
    if Identity.method not in made.values():
        return ""
    words = (
        f"{name} as reported" if method == Identity.method else f"{method} for {name}"
        for name, method in made.items()
    )
    return f" ({', '.join(words)})"


def _said_of(rejection: Rejection) -> str:
    by_entropy = rejection.by is RejectedBy.ENTROPY
    what = "entropy" if by_entropy else "σ_G"
    error = "error rate" if by_entropy else "RMSE"
    return (
        f"{rejection.rejected_share:.1%} of the rows are rejected, {what} above "
        f"{rejection.threshold:.4g}; {error} of the others {rejection.error:.4g}, "
        f"asked for {rejection.target_error:g}"
    )


def check(options: argparse.Namespace) -> None:
    """Refuses what was given and would change nothing. Raises ValueError."""
    if options.proven_only and options.no_held_out:
        raise ValueError(
            "--proven-only needs the judgement that --no-held-out leaves out. Give one of them."
        )
    fitting = FITTINGS.get(options.method)
    estimates = fitting is not None and fitting.estimates
    estimators = ", ".join(method for method, other in FITTINGS.items() if other.estimates)
    if (options.replace or options.export_r) and not estimates:
        named = "--replace" if options.replace else "--export-r"
        raise ValueError(
            f"{named}: {options.method} estimates no covariances; {estimators} do. Leave it out."
        )
    if options.export_r and (options.json or options.output == "-" or is_state(options.file)):
        raise ValueError(
            "--export-r: the table goes to standard output alone, and is made of rows. Leave "
            "--json out, name a file by --output, and give recorded detections."
        )
    uses, borrows = (fitting.uses, fitting.borrows) if fitting else ((), False)
    no_use = f"{options.method} has no use for it; it is for"
    by = options.by or ()
    why = refuses(options.method) if fitting else f"{options.method} has no mean. Leave it out"
    allow(options, not why, f"{why}.", "correct_mean")
    for name in set(_OF_METHODS) - {"correct_mean"}:
        users = ", ".join(method for method, other in FITTINGS.items() if name in other.uses)
        allow(options, name in uses, f"{no_use} {users}. Leave it out.", name)
    borrowers = ", ".join(method for method, other in FITTINGS.items() if other.borrows)
    why = f"{options.method} is not drawn towards an earlier fit; {borrowers} are. Leave it out."
    allow(options, borrows, why, "previous")
    why = f"it is for {borrowers} with --previous or --by. Leave it out."
    allow(options, borrows and (options.previous or by), why, "prior_strength")
    why = f"{no_use} adaptive-scaling. Leave it out."
    allow(options, "time_constant" in uses, why, "label_delay")
    why = "it is for --by range; leave it out, or add range to --by."
    allow(options, SliceBy.RANGE in by, why, "range_edges")
    allow(options, by, "it is for --by; leave it out, or add --by.", "fewest_tracks")
