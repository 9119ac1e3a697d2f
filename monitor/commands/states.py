"""Statistics of a sidecar as a file, as JSON, as a table."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from monitor.commands.options import finite, output_file
from monitor.frames.slices import TOTAL
from monitor.statistics.bins import IncompatibleStatistics
from monitor.store.snapshot import read_body, write_body
from monitor.store.state_definitions import InvalidState
from monitor.store.statistics_state import StoredState, parsed, serialised
from monitor.v1 import calibration_pb2
from monitor.v1.perception_monitor_pb2 import GetCalibrationResponse

_STAGES = {
    calibration_pb2.STAGE_RAW: "raw",
    calibration_pb2.STAGE_RECALIBRATED: "recalibrated",
}


def as_json(calibration: GetCalibrationResponse) -> dict[str, Any]:
    """Builds tau, slices and total as `replay --json` prints them; None in place of NaN.

    variance, squared_error and nees of a bin are sums over its n detections.
    """
    by_name = {entry.slice: _stages(entry) for entry in _ordered(calibration)}
    total = by_name.pop(TOTAL, None)
    return {"tau": list(calibration.tau), "slices": by_name, "total": total}


def _ordered(calibration: GetCalibrationResponse) -> list[calibration_pb2.SliceCalibration]:
    """Slices by name, the total last; they come in the order in which they were first seen."""
    return sorted(calibration.slices, key=lambda entry: (entry.slice == TOTAL, entry.slice))


def _stages(entry: calibration_pb2.SliceCalibration) -> dict[str, Any]:
    return {_STAGES[stage.stage]: _measures(stage) for stage in entry.stages}


def _measures(stage: calibration_pb2.StageCalibration) -> dict[str, Any]:
    def by_dimension(measure: str) -> dict[str, float | None]:
        return {name: finite(getattr(found, measure)) for name, found in dimensions.items()}

    joint = stage.joint
    dimensions = {dimension.name: dimension for dimension in stage.dimensions}
    return {
        "n": stage.n,
        "k": joint.k,
        "nees_over_k": finite(joint.nees_over_k),
        "nees_median_ratio": finite(joint.nees_median_ratio),
        "nll": finite(joint.nll),
        "ence": by_dimension("ence"),
        "ence_noise_floor": by_dimension("ence_noise_floor"),
        "uce": by_dimension("uce"),
        "qce": by_dimension("qce") | {"joint": finite(joint.qce)},
        "qce_by_tau": {name: list(found.qce_by_tau) for name, found in dimensions.items()}
        | {"joint": list(joint.qce_by_tau)},
        "bins": {name: _bins(found.bins) for name, found in dimensions.items()}
        | {"joint": _bins(joint.bins)},
    }


def _bins(bins: Any) -> list[dict[str, Any]]:
    return [
        {
            "lower": bin.lower,
            "upper": finite(bin.upper),
            "n": bin.n,
            "variance": bin.variance,
            "squared_error": bin.squared_error,
            "nees": bin.nees,
            "within": list(bin.within),
        }
        for bin in bins
    ]


def table(calibration: GetCalibrationResponse) -> str:
    """Writes a line for each slice and stage."""
    heads = ("slice", "stage", "n", "NEES/K", "median", "QCE", "NLL", "ENCE by dimension")
    lines = [_line(heads)]
    for entry in _ordered(calibration):
        for stage in entry.stages:
            joint = stage.joint
            ence = " ".join(f"{found.name} {found.ence:.3f}" for found in stage.dimensions)
            values = (joint.nees_over_k, joint.nees_median_ratio, joint.qce, joint.nll)
            numbers = (f"{value:.4f}" for value in values)
            lines.append(_line((entry.slice, _STAGES[stage.stage], str(stage.n), *numbers, ence)))
    return "\n".join(lines)


def _line(cells: tuple[str, ...]) -> str:
    slice_name, stage, *numbers, last = cells
    return (
        f"{slice_name:<20} {stage:<12} " + "".join(f"{cell:>9}" for cell in numbers) + f"  {last}"
    )


def read_state(path: Path) -> StoredState:
    """Reads statistics; their position in the ledger means nothing outside the sidecar's own file.

    raises  CorruptFile, InvalidState, IncompatibleStatistics, OSError; all name the file
    """
    body = read_body(path)
    try:
        return replace(parsed(body), progress=None)
    except (InvalidState, IncompatibleStatistics) as error:
        raise type(error)(f"{path}: {error}") from None


def write_state(path: Path, stored: StoredState) -> None:
    """Replaces a file by these statistics. Raises CannotWrite."""
    with output_file(path) as temporary, temporary.open("wb") as file:
        write_body(file, serialised(stored))


def contents(stored: StoredState) -> dict[str, Any]:
    """Describes a state for --json."""
    state = stored.state
    return {
        "bins": state.binning.describe(),
        "clock_ns": state.clock_ns,
        "detections": sum(entry.n for entry in state.slices),
        "slices": [
            {
                "name": entry.name,
                "dimensions": list(entry.space.names),
                "overflow": entry.overflow,
                "n": entry.n,
            }
            for entry in state.slices
        ],
        "class_slices": [
            {"name": entry.name, "classes": len(entry.class_names), "n": entry.n}
            for entry in state.class_slices
        ],
    }


def show(stored: StoredState, output: str, *, as_json: bool) -> None:
    """Prints what was written."""
    found = contents(stored)
    if as_json:
        print(json.dumps(found | {"output": output}))
        return
    rows = [
        *((entry["name"], ",".join(entry["dimensions"]), entry["n"]) for entry in found["slices"]),
        *(
            (entry["name"], f"{entry['classes']} classes", entry["n"])
            for entry in found["class_slices"]
        ),
    ]
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(2)]
    for name, dimensions, n in rows:
        print(f"{name:<{widths[0]}}  {dimensions:<{widths[1]}}  {n:>12,}")
    print(f"{len(found['slices'])} slices, {found['detections']:,} detections, written to {output}")
