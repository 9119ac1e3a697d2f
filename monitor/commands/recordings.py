"""Chooses the rows of a recorded file that a verb works on: by options, by soundness, by truth.

What is left out or looks wrong is said on standard error, once for each file. Reading and writing
of the file formats lives in `store`.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from monitor.commands.output import reading, to_standard_error
from monitor.commands.soundness import Oddities, angles_of
from monitor.frames.detections import Estimates
from monitor.frames.slices import NO_COVARIANCE, Chain, RangeBuckets, marked
from monitor.frames.space import BoolArray, FloatArray, IntArray, Space
from monitor.frames.words import SliceBy
from monitor.matching.distances import rotated_overlap, upright_overlap
from monitor.options.rows import (
    ANGLES,
    RANGE_DIMENSIONS,
    RANGE_EDGES,
    SURELY_ANGLES,
    Fault,
    check_labels,
)
from monitor.options.values import allow
from monitor.recalibration.parts import Parts
from monitor.statistics.clusters import numbered
from monitor.statistics.row_columns import portions
from monitor.store.class_recordings import ClassRecording
from monitor.store.recordings import (
    IN_MEMORY,
    Recording,
    RecordingReader,
    Source,
    check_readable,
    not_used,
    open_recording,
)
from monitor.store.tables import NO_TRACK, Columns, all_of_one

# Options that choose among Gaussians, by destination: they mean nothing to class probabilities.
_OF_GAUSSIANS = ("dimensions", "angles", "classes", "where", "fault")

# Upright boxes, by the names of their sides, or of their centre and size.
_SIDES = ("left", "top", "right", "bottom")
_CENTRE_AND_SIZE = ("cx", "cy", "w", "h")

# Pairs of boxes whose overlap is computed at a time: the corners of all would be many times these.
_PORTION = 65_536


def open_selected(
    path: Source,
    options: argparse.Namespace,
    beside: tuple[str, ...] = (),
    fitted: tuple[str, ...] = (),
    labels: Columns | None = None,
) -> RecordingReader:
    """Opens the chosen rows of a file, as they are in it.

    beside  further columns to keep
    fitted  dimensions of a recalibrator: those of a file without variances, if it has them
    labels  of another file, that are matched to the rows later
    raises  RecordingError
    """
    for other in (options.labels, vars(options).get("edges_from"), *vars(options).get("files", ())):
        check_readable(other)
    with reading("reading") as opened:
        return open_recording(
            path,
            # Labels are matched by where things are, whichever dimensions are asked for.
            dimensions=options.dimensions if options.labels is None else None,
            classes=options.classes or (),
            where=tuple(options.where or ()),
            rows=options.rows,
            angles=ANGLES if options.angles is None else options.angles,
            names_here=options.map,
            deviations=options.assume_std,
            measured=() if labels is None else labels.names,
            fitted=fitted,
            beside=beside,
            kind=options.format,
            opened=opened,
        )


def read_selected(
    path: Source,
    options: argparse.Namespace,
    beside: tuple[str, ...] = (),
    tell: Callable[[str], None] = to_standard_error,
    fitted: tuple[str, ...] = (),
) -> Recording:
    """Reads the chosen rows of a file at once, says what looks wrong, and applies the fault.

    tell    is told what looks wrong, a line each
    raises  RecordingError
    """
    check_labels(options)
    if path == "-" == options.labels:
        raise ValueError("--labels -: standard input has the detections. Give a file of labels.")
    for other in (options.labels, vars(options).get("edges_from"), *vars(options).get("files", ())):
        check_readable(other)
    columns = None
    if options.labels is not None:
        # The matcher of the sidecar, with its settings: without labels nobody waits for these.
        from monitor.commands.labels_apart import label_columns, with_dimensions, with_labels

        columns = label_columns(options)
    reader = open_selected(path, options, beside, fitted, columns)
    recording = reader.part(slice(0, reader.n))
    if columns is not None:
        recording = with_labels(recording, columns, options, tell)
        if options.dimensions is not None:
            recording = with_dimensions(recording, options.dimensions, options.labels)
    oddities = Oddities(recording.space)
    for rows in portions(recording.mean.shape[0]):
        oddities.add(recording.part(rows))
    say_oddities(path, recording, options, oddities, tell)
    fault: Fault | None = options.fault
    if fault is None:
        return recording
    factor: float | FloatArray = fault.variance
    if recording.time_s is not None:
        start_s = np.full(len(recording.sequences), np.inf)
        np.minimum.at(start_s, recording.sequence_index, recording.time_s)
        since = recording.time_s - start_s[recording.sequence_index]
        factor = np.where(since >= fault.since, fault.variance, 1.0)[:, None, None]
    elif fault.since > 0:
        raise ValueError(
            f"--fault …@t={fault.since:g}: {_named(path)} has no column t. Leave @t out, or add "
            "the column."
        )
    covariance = recording.covariance * factor
    covariance[recording.assumed] = recording.covariance[recording.assumed]
    return replace(recording, covariance=covariance)


def _named(path: Source) -> object:
    return IN_MEMORY if isinstance(path, Mapping) else path


def say_oddities(
    path: Source,
    recording: Recording,
    options: argparse.Namespace,
    oddities: Oddities,
    tell: Callable[[str], None],
) -> None:
    """Says what looks wrong of a recording, a line each.

    recording  without any Gaussians where each has a covariance
    oddities   has seen all of them
    """
    angles = oddities.degrees(), _taken(recording, options), oddities.turned()
    remarks = recording.converted, not_used(recording), *angles, _assumed(recording, options)
    for words in filter(None, remarks):
        tell(f"{_named(path)}: {words}")


def _assumed(recording: Recording, options: argparse.Namespace) -> str | None:
    """Says which rows have no covariance, and what is done instead; None if each has one."""
    rows, n = int(np.count_nonzero(recording.assumed)), recording.assumed.size
    if not rows:
        return None
    variance = recording.covariance[recording.assumed.argmax()].diagonal()
    by_sigma: dict[str, list[str]] = {}
    for name, value in zip(recording.space.names, variance.tolist(), strict=True):
        by_sigma.setdefault(f"{math.sqrt(value):g}", []).append(name)
    sigma = " and ".join(f"{value} in {', '.join(of)}" for value, of in by_sigma.items())
    words = f"{rows:,} of {n:,} rows have no covariance" if rows < n else "no row has a covariance"
    if options.assume_std is not None:
        return f"{words}: σ is taken to be {sigma} (--assume-std)"
    return (
        f"{words}: σ is assumed to be {sigma}, and not judged (--assume-std states another). "
        "evaluate measures the errors themselves, and fit estimates covariances from them"
    )


def as_stated(recording: Recording, options: argparse.Namespace) -> Recording:
    """Takes covariances that --assume-std states for those of the file."""
    if options.assume_std is None:
        return recording
    space = replace(recording.space, assumed=False)
    return replace(recording, space=space, assumed=np.zeros_like(recording.assumed))


def _taken(recording: Recording, options: argparse.Namespace) -> str | None:
    """Says which dimensions are taken as angles for a name that may mean something else."""
    angles = angles_of(recording.space)
    found = [name for name in angles if name not in SURELY_ANGLES]
    if options.angles is not None or not found:
        return None
    others = ",".join(name for name in angles if name not in found) or "''"
    return (
        f"taken as an angle in radians by its name, and left out of joint measures: "
        f"{', '.join(found)}. If it is none, give --angles {others}"
    )


def refuse_options_of_gaussians(
    options: argparse.Namespace, more: tuple[str, ...], instead: str
) -> None:
    """Raises ValueError where an option was given that means something to Gaussians only.

    more     such options of the verb, by destination, beside those that choose rows
    instead  what there is in place of Gaussians
    """
    why = f"for Gaussians, and {instead}. Leave it out; choose rows by --rows."
    allow(options, False, why, *_OF_GAUSSIANS, *more)


def estimates_of(recording: Recording) -> Estimates:
    """The Gaussians of a recording."""
    diagonal = recording.assumed | recording.diagonal
    return Estimates(recording.mean, recording.covariance, diagonal, recording.score)


def parts_of(recording: Recording, ranges: RangeBuckets | None) -> Parts:
    """Divides the rows of a recording; the stream of a row is its sequence.

    ranges  None: rows have no range
    """
    buckets: tuple[str, ...] = ("",)
    bucket = all_of_one(recording.class_index.size)
    if ranges is not None:
        buckets = ranges.labels(recording.space)
        bucket = ranges.of(recording.space, recording.mean)
    parts = (SliceBy.STREAM, SliceBy.CLASS, SliceBy.RANGE)
    names = (recording.sequences, recording.classes, buckets)
    number = (recording.sequence_index, recording.class_index, bucket)
    return Parts(dict(zip(parts, names, strict=True)), dict(zip(parts, number, strict=True)))


def chains_of(
    recording: Recording, ranges: RangeBuckets | None
) -> tuple[IntArray, tuple[Chain, ...]]:
    """Finds the finest slice of each row, (N,), and the chain of names of each slice.

    Rows without a covariance are in slices of their own.
    """
    slices, chains = parts_of(recording, ranges).chains()
    if not recording.assumed.any():
        return slices, chains
    without = tuple((*map(marked, chain), NO_COVARIANCE) for chain in chains)
    return slices + len(chains) * recording.assumed, (*chains, *without)


def ranges_of(space: Space, edges: tuple[float, ...] | None = None) -> RangeBuckets | None:
    """Makes the buckets of the range, by RANGE_EDGES unless others are given; None where the space
    has no position.
    """
    ranges = RangeBuckets(edges or RANGE_EDGES, RANGE_DIMENSIONS)
    return ranges if ranges.measures(space) else None


def ranges_by(space: Space, edges: tuple[float, ...] | None = None) -> RangeBuckets:
    """Makes the buckets of `--by range`. Raises ValueError where no dimension has a range."""
    ranges = ranges_of(space, edges)
    if ranges is None:
        raise ValueError(
            f"--by range: the range is the norm of {', '.join(RANGE_DIMENSIONS)}, and the file is "
            f"read with {', '.join(space.names)}. Leave range out of --by."
        )
    return ranges


def overlaps(recording: Recording, rows: BoolArray) -> FloatArray | None:
    """Computes intersection over union with the true boxes, (N,); None where rows are no boxes.

    Dimensions of a box seen from above come before left, top, right and bottom, and these before
    an upright centre and size cx, cy, w and h.

    rows  (N,) those with sound truth; the others are 0
    """
    names, chosen, found = list(recording.space.names), np.flatnonzero(rows), np.zeros(rows.size)
    for wanted in (recording.box, _SIDES, _CENTRE_AND_SIZE):
        if not set(wanted) <= set(names):
            continue
        columns = [names.index(name) for name in wanted]
        for start in range(0, chosen.size, _PORTION):
            part = chosen[start : start + _PORTION, None]
            a, b = recording.mean[part, columns], recording.truth[part, columns]
            if wanted is _CENTRE_AND_SIZE:
                a, b = _sides(a), _sides(b)
            overlap = rotated_overlap if wanted is recording.box else upright_overlap
            found[part[:, 0]] = overlap(a, b)
        return found
    return None


def _sides(box: FloatArray) -> FloatArray:
    """Turns centre and size of upright boxes into left, top, right and bottom, (n, 4)."""
    centre, half = box[:, :2], box[:, 2:] / 2
    return np.concatenate([centre - half, centre + half], axis=1)


def numbered_tracks(
    recording: Recording | ClassRecording, rows: IntArray | BoolArray | slice = slice(None)
) -> IntArray | None:
    """(n,) one number for each track of each sequence, −1 without; None if none is recorded.

    rows  to be numbered, n of them; by default all
    """
    track, sequence_index = recording.track, recording.sequence_index
    if track is None or sequence_index is None:
        return None
    number = numbered(track)
    if not isinstance(recording, Recording) or len(recording.sequences) > 1:
        number = numbered(sequence_index * (int(number.max()) + 1) + number)
    return np.where(track == NO_TRACK, -1, number)[rows]
