"""The JSON form of references: plain values that are read back bit for bit, and checked."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from monitor.drift.bets import Stage
from monitor.drift.correlation import LEAST
from monitor.drift.reference import KNOTS, Levels, Origin, Reference
from monitor.frames.space import MOST_DIMENSIONS, MOST_SLICES, FloatArray

# No sum of a slice comes near; products of two stay finite.
LARGEST_NUMBER = 1e24
LARGEST_COUNT = 2**53


class NotAReference(ValueError):
    """A document does not describe what is usual of slices."""


def shown(value: object) -> str:
    """For an error: never more than a line."""
    text = repr(value) if isinstance(value, str | int | float | None) else type(value).__name__
    return text if len(text) <= 60 else f"{text[:57]}..."


@dataclass(frozen=True, slots=True)
class Refusal:
    """The error that a wrong document raises, and the remedy that its text names."""

    error: type[ValueError]
    remedy: str

    def wrong(self, where: str, value: object, expected: str) -> ValueError:
        """That a value is not what it must be."""
        if isinstance(value, list):
            value = f"list of {len(value)}"
        return self.error(f"'{where}' is {shown(value)}, expected {expected}: {self.remedy}")


OF_REFERENCE = Refusal(NotAReference, "learn the reference again.")


@dataclass(frozen=True, slots=True)
class Fields:
    """One JSON object; `where` it stands in its document. Every reader raises as `refusal` says."""

    content: dict[str, object]
    where: str
    refusal: Refusal

    @classmethod
    def of(cls, value: object, where: str, names: Sequence[str], refusal: Refusal) -> Fields:
        """An object with exactly these members."""
        if not isinstance(value, dict):
            raise refusal.wrong(where, value, f"an object with {', '.join(names)}")
        for name in names:
            if name not in value:
                raise refusal.error(f"'{where}' has no '{name}': {refusal.remedy}")
        for name in value:
            if name not in names:
                raise refusal.error(
                    f"'{where}' has {shown(name)}, which is unknown; expected "
                    f"{', '.join(names)}: {refusal.remedy}"
                )
        return cls(value, where, refusal)

    def inner(self, value: object, name: str, names: Sequence[str]) -> Fields:
        """An object in it, with exactly these members.

        name  of the member, or of its place in a list
        """
        return Fields.of(value, self.path(name), names, self.refusal)

    def wrong(self, name: str, value: object, expected: str) -> ValueError:
        """That a member, or what it holds, is not what it must be."""
        return self.refusal.wrong(self.path(name), value, expected)

    def path(self, name: str) -> str:
        """Where a member stands."""
        return f"{self.where}.{name}"

    def number(
        self, name: str, low: float = -LARGEST_NUMBER, high: float = LARGEST_NUMBER
    ) -> float:
        """Finite, from low to high."""
        return self._number(name, self.content[name], low, high)

    def flag(self, name: str) -> bool:
        """A member that is true or false."""
        value = self.content[name]
        if not isinstance(value, bool):
            raise self.wrong(name, value, "true or false")
        return value

    def whole(self, name: str, low: int = 0, high: int = LARGEST_COUNT) -> int:
        """A whole number from low to high."""
        return self._whole(name, self.content[name], low, high)

    def listed(self, name: str, least: int, most: int) -> list[object]:
        """A list of so many."""
        value = self.content[name]
        if not isinstance(value, list) or not least <= len(value) <= most:
            number = f"{least}" if least == most else f"{least} to {most}"
            raise self.wrong(name, value, f"a list of {number}")
        return value

    def numbers(
        self,
        name: str,
        shape: tuple[int, ...],
        low: float = -LARGEST_NUMBER,
        high: float = LARGEST_NUMBER,
    ) -> FloatArray:
        """Numbers of this shape, row by row in one list; finite, from low to high."""
        size = math.prod(shape)
        found = [
            self._number(f"{name}[{i}]", value, low, high)
            for i, value in enumerate(self.listed(name, size, size))
        ]
        return np.array(found, np.float64).reshape(shape)

    def wholes(self, name: str, least: int, most: int, low: int, high: int) -> list[int]:
        """So many whole numbers from low to high."""
        return [
            self._whole(f"{name}[{i}]", value, low, high)
            for i, value in enumerate(self.listed(name, least, most))
        ]

    def _number(self, name: str, value: object, low: float, high: float) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(name, value, "a number")
        if not low <= value <= high:
            raise self.wrong(name, value, f"a number from {low:g} to {high:g}")
        return float(value)

    def _whole(self, name: str, value: object, low: int, high: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.wrong(name, value, f"a whole number from {low} to {high}")
        return value


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
