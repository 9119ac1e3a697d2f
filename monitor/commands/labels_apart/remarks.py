"""Says what became of labels of a file of their own, and what in them looks wrong.

Words only: nothing here changes which label a detection has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from monitor.config import MatchingConfig
from monitor.frames.space import BoolArray, DimensionKind
from monitor.frames.words import DistanceKind
from monitor.statistics.verdicts import MATTERS
from monitor.store.column_names import some_of
from monitor.store.labels import LabelTable
from monitor.store.recordings import OBJECT, Recording

# Labelled truths of a class below which interpolated ones are not compared with them.
_FEWEST_TO_COMPARE = 30

# Share of matches near the gate above which the gate is likely to cut off errors.
MANY_NEAR = 0.05

# Deviations beyond which an error hardly is one of the same object.
_FAR = 5.0

# Distances that are taken in some dimensions, not over boxes.
OF_POINTS = (DistanceKind.CENTRE, DistanceKind.MAHALANOBIS)


def flat(recording: Recording, config: MatchingConfig, box: tuple[str, ...]) -> str | None:
    """Says which axis of the ground takes no part in the matching though the file has it."""
    names = set(recording.names) - {*config.dimensions}
    missing = [name for name in box[:2] if name in names]
    if config.distance not in OF_POINTS or not missing:
        return None
    return (
        f"matched without {', '.join(missing)}, which has no variance or no label: other objects "
        f"may match. Give --assume-std {missing[0]}=…, or labels with it"
    )


def other_objects(recording: Recording, config: MatchingConfig) -> str | None:
    """Says in which dimension many matches are so far off that they are of other objects, since it
    takes no part in the matching; None: in none of them.
    """
    if config.distance not in OF_POINTS:
        return None
    error = np.abs(recording.space.error(recording.truth, recording.mean))
    sigma = np.sqrt(np.abs(np.diagonal(recording.covariance, axis1=1, axis2=2)))
    gate = max((config.gate, *config.gates.values()))
    unit = sigma if config.distance is DistanceKind.MAHALANOBIS else 1.0
    far = np.mean((error > gate * unit) & (error > _FAR * sigma), axis=0, where=error == error)
    found = [
        f"{one.name} ({share:.0%} of matches)"
        for one, share in zip(recording.space.dimensions, far.tolist(), strict=True)
        if one.kind is DimensionKind.LENGTH and one.name not in config.dimensions
        if share > MANY_NEAR
    ]
    if not found:
        return None
    return (
        f"errors are beyond the gate and {_FAR:g} σ in {', '.join(found)}, but labels are matched "
        f"in {', '.join(config.dimensions)} only: are these other objects? If that is not the "
        "plane of the ground, name its axes x and y in both files, such as by --map "
        "y=z,z=y,var_y=var_z,var_z=var_y and --label-map y=z,z=y"
    )


def differing(recording: Recording, interpolated: BoolArray) -> Iterator[tuple[int, str]]:
    """Yields classes whose verdict interpolated truths (N,) would change, by number, and the words.

    Interpolation cuts the curves of an object's path, and what it cuts off looks like an error.
    """
    variance = np.diagonal(recording.covariance, axis1=1, axis2=2)
    error = recording.space.error(recording.truth, recording.mean)
    squares = np.full(error.shape, np.nan)
    np.divide(error * error, variance, out=squares, where=variance > 0)
    usable = np.isfinite(squares).all(axis=1)
    for i, name in enumerate(recording.classes):
        rows = usable & (recording.class_index == i)
        own, between = squares[rows & ~interpolated], squares[rows & interpolated]
        if min(len(own), len(between)) < _FEWEST_TO_COMPARE:
            continue
        factors = zip(
            recording.space.names,
            np.sqrt(own.mean(axis=0)).tolist(),
            np.sqrt(between.mean(axis=0)).tolist(),
            strict=True,
        )
        apart = [
            f"{dimension}: {at:.2f} times σ at a label, {off:.2f} between two"
            for dimension, at, off in factors
            if not at / MATTERS <= off <= at * MATTERS
        ]
        if apart:
            yield (
                i,
                f"{name}: errors against the {len(between):,} interpolated truths are not those "
                f"against the {len(own):,} labelled ones ({', '.join(apart)}), as where objects "
                "curve between labels",
            )


def told(
    counts: Mapping[str, int],
    empty: int,
    config: MatchingConfig,
    narrow: str,
    by_time: bool,
    place: str,
) -> str:
    """Says how many labels had which outcome, each in one count, and what that may mean.

    empty    missed labels in frames without detections
    narrow   gates that many matches lie near
    by_time  whether labels are found by their time, in each frame near it
    place    dimensions that distances are measured in
    """
    why = {
        "missed": "no detection within the gate"
        + (f", {empty:,} of them in frames without detections" if empty else ""),
        "ignored": "of classes that the detections do not have, or marked ignore",
        "refused": "without a usable number in each dimension",
        "duplicate": "an object's id again in the same frame",
        "untimely": f"an object without two samples around the frame, at most "
        f"{config.max_gap_seconds:g} s apart, or one within {config.max_offset_seconds:g} s",
        "of_other_sequences": "the detections do not have them",
        "without_frame": f"none within {config.max_gap_seconds:g} s",
    }
    labelled = counts["matched"] - counts["interpolated"]
    parts = [f"{counts['matched']:,} of {counts['labels']:,} labels matched (in {place})"]
    if by_time:
        parts = [
            f"{counts['rows']:,} labels are {counts['labels']:,} objects in frames near their "
            f"time: {counts['matched']:,} matched in {place} ({labelled:,} truths labelled, "
            f"{counts['interpolated']:,} interpolated between two labels)"
        ]
    for name, reason in why.items():
        if counts[name]:
            parts.append(f"{counts[name]:,} {name.replace('_', ' ')} ({reason})")
        elif name in ("missed", "ignored", "refused"):
            parts.append(f"0 {name}")
    words = (
        f"{', '.join(parts)}; {counts['near_gate']:,} matches near the gate (beyond "
        f"{100 * config.near_gate:g} % of it); {counts['detections_without_label']:,} detections "
        "without a label"
    )
    if labelled < _FEWEST_TO_COMPARE <= counts["interpolated"]:
        words += (
            f". Only {labelled:,} truths are labelled, too few to see whether the interpolated "
            "ones agree: see whether a smaller --label-gap changes the verdict"
        )
    if counts["missed"] > counts["matched"]:
        words += (
            ". More labels are missed than matched: do frames, coordinates and units of both files "
            "agree?"
        )
    elif narrow:
        words += (
            f". The gate of {narrow} may cut off large errors, or matches near it may be of other "
            "objects: see whether half and twice the --gate change the verdict"
        )
    return words


def classless(recording: Recording, labels: LabelTable, config: MatchingConfig) -> str | None:
    """Says that labels name no class though the detections do."""
    if labels.classes != (OBJECT,) or recording.classes == (OBJECT,):
        return None
    words = "labels have no class, so they match detections of any class"
    return words + (f" within the gate of {config.gate:g}" if config.gates else "")


def bare(recording: Recording, labels: LabelTable) -> str | None:
    """Names the sequences of detections that have no label at all."""
    detections = np.bincount(recording.sequence_index, minlength=len(recording.sequences))
    known = np.unique(labels.sequence[labels.sequence >= 0])
    bare = np.setdiff1d(np.arange(len(recording.sequences)), known).tolist()
    if not bare:
        return None
    named = [f"{recording.sequences[i]} ({detections[i]:,} detections)" for i in bare]
    return f"no label for sequence{'s' if len(named) > 1 else ''} {some_of(named)}"
