"""The answer of GetCalibration as plain values, for programs and for people."""

from __future__ import annotations

import math
from typing import Any

from monitor.calibration.slices import TOTAL
from monitor.v1 import calibration_pb2
from monitor.v1.perception_monitor_pb2 import GetCalibrationResponse

_STAGES = {
    calibration_pb2.STAGE_RAW: "raw",
    calibration_pb2.STAGE_RECALIBRATED: "recalibrated",
}


def as_json(calibration: GetCalibrationResponse) -> dict[str, Any]:
    """tau, slices and total as `replay --json` prints them; None in place of NaN.

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
    joint = stage.joint
    dimensions = {dimension.name: dimension for dimension in stage.dimensions}
    return {
        "n": stage.n,
        "k": joint.k,
        "nees_over_k": _number(joint.nees_over_k),
        "nees_median_ratio": _number(joint.nees_median_ratio),
        "nll": _number(joint.nll),
        "ence": {name: _number(found.ence) for name, found in dimensions.items()},
        "ence_noise_floor": {
            name: _number(found.ence_noise_floor) for name, found in dimensions.items()
        },
        "uce": {name: _number(found.uce) for name, found in dimensions.items()},
        "qce": {name: _number(found.qce) for name, found in dimensions.items()}
        | {"joint": _number(joint.qce)},
        "qce_by_tau": {name: list(found.qce_by_tau) for name, found in dimensions.items()}
        | {"joint": list(joint.qce_by_tau)},
        "bins": {name: _bins(found.bins) for name, found in dimensions.items()}
        | {"joint": _bins(joint.bins)},
    }


def _bins(bins: Any) -> list[dict[str, Any]]:
    return [
        {
            "lower": bin.lower,
            "upper": _number(bin.upper),
            "n": bin.n,
            "variance": bin.variance,
            "squared_error": bin.squared_error,
            "nees": bin.nees,
            "within": list(bin.within),
        }
        for bin in bins
    ]


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def table(calibration: GetCalibrationResponse) -> str:
    """A line for each slice and stage."""
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
