"""The tracking part of `replay`: how well tracks follow labels, as values or as a table.

The measures themselves are computed in `tracking.quality`.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from monitor.commands.output import finite, to_standard_error
from monitor.commands.sending import RecordedSequence, TrackRecord
from monitor.frames.space import DimensionKind, FloatArray
from monitor.options.values import allow
from monitor.store.labels import (
    HOW_TO_INSTALL,
    Matched,
    NoMotmetrics,
    labels_of,
    match,
    motmetrics,
    read_label_table,
    scores,
)
from monitor.tracking.quality import (
    Labels,
    Moving,
    TrackErrors,
    finite_mean,
    moving,
    rmse,
    rmse_by_dimension,
    scenes,
    state_nees_over_k,
    track_errors,
)

# Which classes are small, by how a word of their name begins, and how far off a match of
# them may be.
_SMALL = re.compile(r"\b(ped|person|cycl)", re.IGNORECASE)
_SMALL_DISTANCE, _DISTANCE = 1.0, 2.0  # m
_decimal = "{:.3f}".format

# Options that are keys of [tracker], too; by destination.
OF_TRACKER = ("measurement_noise", "birth_score")


@dataclass(frozen=True, slots=True)
class TrackLabels:
    """Labels that tracks are compared with.

    labels          by stream, then by class
    match_distance  by class, in the unit of the stream: no match is farther off
    """

    labels: Mapping[str, Mapping[str, Labels]]
    match_distance: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class _Part:
    """A class in a sequence.

    labels   in the frames that were played
    nis      (u,) of all updates of confirmed tracks, matched or not
    matched  with the errors of the matches; None where nothing can match
    """

    axes: Moving
    frames: int
    labels: int
    nis: FloatArray
    matched: tuple[Matched, TrackErrors] | None = None


def check_tracking(options: argparse.Namespace) -> None:
    """Raises ValueError where options of the tracker have nothing to act on.

    Says before the work if the package that scores tracks is missing.
    """
    why = (
        f"it would be a setting of the tracker of the sidecar at {options.address}. Leave it out, "
        "or leave --address out."
    )
    allow(options, not options.address, why, *OF_TRACKER)
    why = "there is nothing to hold tracks against. Give --ground-truth LABELS as well."
    allow(options, options.ground_truth is not None, why, *OF_TRACKER, "match_distance")
    if options.ground_truth is not None:
        try:
            motmetrics()
        except NoMotmetrics as error:
            words = "Without it tracks are played, and neither matched nor scored."
            to_standard_error(f"calibration-monitor replay: {error} {words}")


def read_track_labels(
    options: argparse.Namespace, files: list[list[RecordedSequence]]
) -> TrackLabels:
    """Labels for all that is played.

    files   sequences of each file
    raises  RecordingError, ValueError
    """
    spaces = {sequence.header.space for found in files for sequence in found}
    if len(spaces) > 1:
        names = " and ".join(sorted(",".join(space.names) for space in spaces))
        raise ValueError(
            f"--ground-truth: the files have dimensions {names}. "
            "Give --dimensions that all have, or replay them one by one."
        )
    if not any(d.kind is DimensionKind.LENGTH for space in spaces for d in space.dimensions):
        raise ValueError(
            "--ground-truth: without a length among the dimensions no track has a place. "
            "Give --dimensions that say where an object is."
        )
    table = read_label_table(options.ground_truth)
    labels: dict[str, Mapping[str, Labels]] = {}
    for found in files:
        recording = found[0].recording
        if recording.frame is None:
            raise ValueError(
                "--ground-truth: the recording has no column frame, so no frame has labels. "
                "Add it, with the numbers that the labels use."
            )
        by_sequence = labels_of(
            table,
            sequences=recording.sequences,
            classes=recording.classes,
            dimensions=recording.space.names,
        )
        for sequence in found:
            labels[sequence.header.stream] = by_sequence[sequence.name]
    classes = tuple(dict.fromkeys(name for found in files for name in found[0].recording.classes))
    return TrackLabels(labels, _match_distances(options.match_distance, classes))


def _match_distances(
    asked: float | dict[str, float] | None, classes: tuple[str, ...]
) -> dict[str, float]:
    if isinstance(asked, float):
        return dict.fromkeys(classes, asked)
    by_class = asked or {}
    unknown = [name for name in by_class if name not in classes]
    if unknown:
        raise ValueError(
            f"--match-distance: there is no class {unknown[0]!r}. "
            f"Classes there are: {', '.join(classes)}."
        )
    usual = {
        name: _SMALL_DISTANCE if _SMALL.search(name.replace("_", " ")) else _DISTANCE
        for name in classes
    }
    return usual | by_class


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"


# Key of each measure in JSON → head of its column and how it is written; None: it has no column.
_MEASURES: dict[str, tuple[str, Callable[[float], str]] | None] = {
    "frames": None,
    "labels": None,
    "matches": None,
    "mota": ("MOTA", _share),
    "idf1": ("IDF1", _share),
    "id_switches": ("switches", str),
    "false_positives": ("false", str),
    "misses": ("missed", str),
    "position_rmse": ("pos. RMSE", _decimal),
    "velocity_rmse": ("vel. RMSE", _decimal),
    "position_rmse_by_dimension": None,
    "velocity_rmse_by_dimension": None,
    "nis_over_k": ("NIS/K", _decimal),
    "state_nees_over_k": ("NEES/K", _decimal),
}


def compare(
    recalibrated: Sequence[TrackRecord],
    raw: Sequence[TrackRecord] | None,
    yardstick: TrackLabels,
    address: str | None,
) -> dict[str, Any]:
    """Builds `tracking` of replay --json: raw, recalibrated, and the reason why anything is None.

    recalibrated  tracks of what the sidecar forwarded
    raw           tracks of the same without its recalibrator: `recalibrated` itself where that
                  changes nothing, None where it was not played
    address       of a sidecar that was not started here, and was played to only once
    """
    if not any(record.dimensions for record in recalibrated):
        reason = (
            f"[tracker] kind = none on the sidecar at {address}: "
            'start it with [tracker] kind = "embedded".'
        )
        return {"raw": None, "recalibrated": None, "reason": reason}
    found = measured(recalibrated, yardstick)
    of_raw: dict[str, Any] | None = found
    reasons = []
    if raw is None:
        of_raw = None
        reasons.append(
            f"raw needs a second sidecar: the one at {address} has been played to only as it is. "
            "Leave --address out."
        )
    elif raw is not recalibrated:
        of_raw = measured(raw, yardstick)
    if found["matches"] is None:
        reasons.append(HOW_TO_INSTALL)
    return {"raw": of_raw, "recalibrated": found, "reason": " ".join(reasons) or None}


def measured(records: Sequence[TrackRecord], yardstick: TrackLabels) -> dict[str, Any]:
    """Measures a stage: all classes together, and each of them under `classes`.

    Errors are in the unit of the stream and in unit/s; MOTA and IDF1 are shares of 1.
    None in place of what is not finite, and of what needs matches where motmetrics is missing.
    """
    parts: dict[str, list[_Part]] = {}
    for record in records:
        for index, name in enumerate(record.sequence.header.classes):
            parts.setdefault(name, []).append(_part(record, index, name, yardstick))
    # The sidecar, too, leaves angles out of the NIS.
    k = len(records[0].sequence.header.space.joint)
    frames = sum(len(record.frames) for record in records)
    together = _together([part for of_class in parts.values() for part in of_class], frames, k)
    by_class = {
        name: _together(of_class, sum(part.frames for part in of_class), k)
        for name, of_class in sorted(parts.items())
    }
    return {**together, "classes": by_class}


def _part(record: TrackRecord, index: int, name: str, yardstick: TrackLabels) -> _Part:
    axes = moving(record.dimensions)
    labels = yardstick.labels[record.sequence.header.stream][name]
    tracks = [there.take(there.class_index == index) for there in record.frames]
    found = scenes(labels, tracks, axes, yardstick.match_distance[name])
    count = sum(scene.objects.size for scene in found)
    nis = np.concatenate([there.nis for there in tracks])
    try:
        matched = match(found)
    except NoMotmetrics:
        return _Part(axes, len(tracks), count, nis)
    errors = track_errors(labels, tracks, axes, matched.pairs)
    return _Part(axes, len(tracks), count, nis, (matched, errors))


def _together(parts: Sequence[_Part], frames: int, k: int) -> dict[str, Any]:
    """Measures of several parts as one. k: dimensions of the NIS."""
    found: dict[str, Any] = dict.fromkeys(_MEASURES) | {
        "frames": frames,
        "labels": sum(part.labels for part in parts),
        "nis_over_k": finite(finite_mean(np.concatenate([part.nis for part in parts])) / k),
    }
    of_parts = [part.matched for part in parts if part.matched is not None]
    if not of_parts:
        return found
    matched = [one for one, _ in of_parts]
    errors = TrackErrors.joined([of_part for _, of_part in of_parts])
    for name, error in (("position", errors.position), ("velocity", errors.velocity)):
        by_dimension = map(finite, rmse_by_dimension(error))
        found[f"{name}_rmse"] = finite(rmse(error))
        found[f"{name}_rmse_by_dimension"] = dict(
            zip(parts[0].axes.names, by_dimension, strict=True)
        )
    return found | {
        "matches": sum(one.pairs.frame.size for one in matched),
        **{name: finite(value) for name, value in asdict(scores(matched)).items()},
        "state_nees_over_k": finite(state_nees_over_k(errors)),
    }


def tracking_table(tracking: dict[str, Any]) -> str:
    """Writes a line for each stage and class, one for all classes where there are several."""
    columns = {key: column for key, column in _MEASURES.items() if column is not None}
    lines = [_line("tracks", "class", [head for head, _ in columns.values()])]
    for stage in ("raw", "recalibrated"):
        found = tracking[stage]
        if found is None:
            continue
        rows = dict(found["classes"])
        if len(rows) > 1:
            rows["all"] = found
        for name, row in rows.items():
            cells = [
                "-" if row[key] is None else written(row[key])
                for key, (_, written) in columns.items()
            ]
            lines.append(_line(stage, name, cells))
    shown = lines if len(lines) > 1 else []
    return "\n".join([*shown, *([tracking["reason"]] if tracking["reason"] else [])])


def _line(stage: str, name: str, cells: Sequence[str]) -> str:
    return f"{stage:<13}{name:<14}" + "".join(f"{cell:>10}" for cell in cells)
