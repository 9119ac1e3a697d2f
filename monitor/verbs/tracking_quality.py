"""How well the tracks of a replay follow the labels, as values and as a table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from monitor.calibration.space import FloatArray
from monitor.edges.mot import HOW_TO_INSTALL, Matched, NoMotmetrics, match, scores
from monitor.tracking.quality import (
    Moving,
    TrackErrors,
    mean,
    moving,
    pooled,
    rmse,
    rmse_by_dimension,
    scenes,
    state_nees_over_k,
    track_errors,
)
from monitor.verbs.track_record import Records, TrackRecord
from monitor.verbs.tracking_options import Yardstick

# What needs the matches, and is None without them.
_OF_MATCHES = (
    *("mota", "idf1", "id_switches", "false_positives", "misses", "matches"),
    *("position_rmse", "velocity_rmse"),
    *("position_rmse_by_dimension", "velocity_rmse_by_dimension", "state_nees_over_k"),
)
_COLUMNS = (
    *("mota", "idf1", "id_switches", "false_positives", "misses"),
    *("position_rmse", "velocity_rmse", "nis_over_k", "state_nees_over_k"),
)
_HEADS = (
    *("tracks", "class", "MOTA", "IDF1", "switches", "false", "missed"),
    *("pos. RMSE", "vel. RMSE", "NIS/K", "NEES/K"),
)


@dataclass(frozen=True, slots=True)
class _Part:
    """A class in a sequence.

    labels   in the frames that were played
    nis      (u,) of all updates of confirmed tracks, matched or not
    matched  and errors: None where nobody can match
    """

    axes: Moving
    frames: int
    labels: int
    nis: FloatArray
    matched: Matched | None = None
    errors: TrackErrors | None = None


def compare(
    recalibrated: Records, raw: Records | None, yardstick: Yardstick, address: str | None
) -> dict[str, Any]:
    """`tracking` of replay --json: raw, recalibrated, and the reason why anything is None.

    recalibrated  tracks of what the sidecar forwarded
    raw           tracks of the same without its recalibrator; None where that is the same
    address       of a sidecar that was not started here, and was played to only once
    """
    if not any(record.dimensions for record in recalibrated.values()):
        reason = f"[tracker] kind = none on the sidecar at {address}"
        return {"raw": None, "recalibrated": None, "reason": reason}
    stages: dict[str, Any] = {"raw": None}
    stages["recalibrated"] = measured(list(recalibrated.values()), yardstick)
    reasons = []
    if address is not None:
        reasons.append(
            f"raw needs a second sidecar: the one at {address} has been played to only as it is. "
            "Leave --address out."
        )
    elif raw is None:
        stages["raw"] = stages["recalibrated"]
    else:
        stages["raw"] = measured(list(raw.values()), yardstick)
    if stages["recalibrated"]["matches"] is None:
        reasons.append(HOW_TO_INSTALL)
    return {**stages, "reason": " ".join(reasons) or None}


def measured(records: Sequence[TrackRecord], yardstick: Yardstick) -> dict[str, Any]:
    """The measures of a stage: of all classes together, and of each under `classes`.

    Errors are in the unit of the stream and in unit/s; MOTA and IDF1 are shares of 1.
    None in place of what is not finite, and of what needs matches where motmetrics is missing.
    """
    parts: dict[str, list[_Part]] = {}
    for record in records:
        for index, name in enumerate(record.sequence.header.classes):
            parts.setdefault(name, []).append(_part(record, index, name, yardstick))
    # The sidecar, too, leaves angles out of the NIS.
    k = len(records[0].sequence.header.space.joint)
    together = _together([part for of_class in parts.values() for part in of_class], k)
    together["frames"] = sum(len(record.frames) for record in records)
    by_class = {name: _together(of_class, k) for name, of_class in sorted(parts.items())}
    return {**together, "classes": by_class}


def _part(record: TrackRecord, index: int, name: str, yardstick: Yardstick) -> _Part:
    axes = moving(record.dimensions)
    labels = yardstick.labels[record.sequence.header.stream][name]
    tracks = [there.of(there.class_index == index) for there in record.frames]
    found = scenes(labels, tracks, axes, yardstick.match_distance[name])
    count = sum(scene.objects.size for scene in found)
    nis = np.concatenate([there.nis for there in tracks])
    try:
        matched = match(found)
    except NoMotmetrics:
        return _Part(axes, len(tracks), count, nis)
    errors = track_errors(labels, tracks, axes, matched.pairs)
    return _Part(axes, len(tracks), count, nis, matched, errors)


def _together(parts: Sequence[_Part], k: int) -> dict[str, Any]:
    """Measures of several parts as one. k: dimensions of the NIS."""
    found: dict[str, Any] = {
        "frames": sum(part.frames for part in parts),
        "labels": sum(part.labels for part in parts),
        **dict.fromkeys(_OF_MATCHES),
        "nis_over_k": _number(mean(np.concatenate([part.nis for part in parts])) / k),
    }
    matched = [part.matched for part in parts if part.matched is not None]
    if not matched:
        return found
    score = scores(matched)
    errors = pooled([part.errors for part in parts if part.errors is not None])
    names = parts[0].axes.names
    return found | {
        "matches": sum(one.pairs.frame.size for one in matched),
        "mota": _number(score.mota),
        "idf1": _number(score.idf1),
        "id_switches": score.id_switches,
        "false_positives": score.false_positives,
        "misses": score.misses,
        "position_rmse": _number(rmse(errors.position)),
        "velocity_rmse": _number(rmse(errors.velocity)),
        "position_rmse_by_dimension": _by_name(names, rmse_by_dimension(errors.position)),
        "velocity_rmse_by_dimension": _by_name(names, rmse_by_dimension(errors.velocity)),
        "state_nees_over_k": _number(state_nees_over_k(errors)),
    }


def _by_name(names: tuple[str, ...], values: Sequence[float]) -> dict[str, float | None]:
    return {name: _number(value) for name, value in zip(names, values, strict=True)}


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


# ---- the report


def tracking_table(tracking: dict[str, Any]) -> str:
    """A line for each stage and class, one for all classes where there are several."""
    lines = [_line(_HEADS)]
    for stage in ("raw", "recalibrated"):
        found = tracking[stage]
        if found is None:
            continue
        rows = dict(found["classes"])
        if len(rows) > 1:
            rows["all"] = found
        lines += [
            _line((stage, name, *(_shown(column, row[column]) for column in _COLUMNS)))
            for name, row in rows.items()
        ]
    shown = lines if len(lines) > 1 else []
    return "\n".join([*shown, *([tracking["reason"]] if tracking["reason"] else [])])


def _shown(column: str, value: float | int | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, int):
        return str(value)
    return f"{100 * value:.1f} %" if column in ("mota", "idf1") else f"{value:.3f}"


def _line(cells: tuple[str, ...]) -> str:
    stage, name, *numbers = cells
    return f"{stage:<13}{name:<14}" + "".join(f"{cell:>10}" for cell in numbers)
