"""References as plain values of a JSON document, and back, bit for bit."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from monitor.calibration.drift.charts import Stage
from monitor.calibration.drift.reference import KNOTS, Levels, Origin, Reference
from monitor.calibration.drift.reference_correlation import LEAST
from monitor.calibration.drift.reference_fields import (
    OF_REFERENCE,
    Fields,
    NotAReference,
    Refusal,
    shown,
)
from monitor.calibration.limits import MOST_DIMENSIONS, MOST_SLICES

KIND = "calibration-monitor drift reference"
VERSION = 1
_MOST_NAME = 256
_REFERENCE = (
    *("k", "origin", "quantiles", "detections", "nees_ratio"),
    *("tempering", "frame_tempering", "levels"),
)
_LEVELS = ("mean", "between", "within", "length", "tracks", "blocks")
# Of NEES: wide enough for whatever is learned.
_LEAST_QUANTILE, _LARGEST_QUANTILE = 1e-30, 1e30
# Of deviations of ln NEES; below, evidence would overflow.
_LEAST_DEVIATION, _LARGEST_LEVEL = 1e-3, 1e3


def references_to_json(references: Mapping[str, Mapping[Stage, Reference]]) -> dict[str, object]:
    """The document of what is usual, by name of the slice and stage."""
    return {
        "kind": KIND,
        "version": VERSION,
        "slices": {
            name: {stage.label: reference_to_json(one) for stage, one in by_stage.items()}
            for name, by_stage in references.items()
        },
    }


def references_from_json(document: object) -> dict[str, dict[Stage, Reference]]:
    """The inverse of references_to_json. Raises NotAReference for anything else."""
    if not isinstance(document, dict) or document.get("kind") != KIND:
        kind = document.get("kind") if isinstance(document, dict) else document
        raise NotAReference(
            f"'kind' is {shown(kind)}, expected {KIND!r}: give a file that "
            "`calibration-monitor reference --output` wrote."
        )
    whole = Fields.of(document, "reference", ("kind", "version", "slices"), OF_REFERENCE)
    version = whole.whole("version")
    if version != VERSION:
        raise NotAReference(
            f"'version' is {version}, and only {VERSION} is known here: "
            "learn the reference again with this version."
        )
    slices = document["slices"]
    if not isinstance(slices, dict) or len(slices) > MOST_SLICES + 1:
        size = len(slices) if isinstance(slices, dict) else slices
        raise OF_REFERENCE.wrong("slices", size, f"an object of at most {MOST_SLICES + 1} slices")
    return {_name(name): _stages(value, f"slices.{name}") for name, value in slices.items()}


def reference_to_json(reference: Reference) -> dict[str, object]:
    """One reference."""
    levels = reference.levels
    return {
        "k": reference.k,
        "origin": reference.origin.value,
        "quantiles": reference.quantiles.tolist(),
        "detections": reference.detections,
        "nees_ratio": reference.nees_ratio,
        "tempering": reference.tempering,
        "frame_tempering": reference.frame_tempering,
        "levels": None if levels is None else {name: getattr(levels, name) for name in _LEVELS},
    }


def reference_from_json(
    value: object, where: str = "reference", refusal: Refusal = OF_REFERENCE
) -> Reference:
    """The inverse of reference_to_json. Raises as `refusal` says for anything else."""
    fields = Fields.of(value, where, _REFERENCE, refusal)
    origin = fields.content["origin"]
    if not isinstance(origin, str) or origin not in tuple(Origin):
        raise fields.wrong("origin", origin, f"one of {', '.join(Origin)}")
    size = KNOTS if fields.listed("quantiles", 0, KNOTS) else 0
    quantiles = fields.numbers("quantiles", (size,), _LEAST_QUANTILE, _LARGEST_QUANTILE)
    falls = np.flatnonzero(np.diff(quantiles) < 0)
    if falls.size:
        at = int(falls[0]) + 1
        raise fields.wrong(f"quantiles[{at}]", float(quantiles[at]), "no less than the one before")
    return Reference(
        k=fields.whole("k", 1, MOST_DIMENSIONS),
        origin=Origin(origin),
        quantiles=quantiles,
        detections=fields.whole("detections"),
        nees_ratio=fields.number("nees_ratio", 0.0),
        tempering=fields.number("tempering", LEAST, 1.0),
        frame_tempering=fields.number("frame_tempering", LEAST, 1.0),
        levels=_levels(fields),
    )


def _levels(reference: Fields) -> Levels | None:
    value = reference.content["levels"]
    if value is None:
        return None
    fields = reference.inner(value, "levels", _LEVELS)
    return Levels(
        mean=fields.number("mean", -_LARGEST_LEVEL, _LARGEST_LEVEL),
        between=fields.number("between", _LEAST_DEVIATION, _LARGEST_LEVEL),
        within=fields.number("within", _LEAST_DEVIATION, _LARGEST_LEVEL),
        length=fields.number("length", 1.0),
        tracks=fields.whole("tracks"),
        blocks=fields.whole("blocks"),
    )


def _name(name: object) -> str:
    if not isinstance(name, str) or not 0 < len(name) <= _MOST_NAME:
        raise OF_REFERENCE.wrong("slices", name, f"names of 1 to {_MOST_NAME} characters")
    return name


def _stages(value: object, where: str) -> dict[Stage, Reference]:
    known = {stage.label: stage for stage in Stage}
    if not isinstance(value, dict) or not value or not value.keys() <= known.keys():
        raise OF_REFERENCE.wrong(where, value, f"an object with {' or '.join(known)}")
    return {known[name]: reference_from_json(one, f"{where}.{name}") for name, one in value.items()}
