"""Tells what of a recording is sound: which rows are usable, and what looks wrong about all.

Rows are looked at in portions, so that all that is known of a portion stays in the cache.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from monitor.frames.cholesky import factorise
from monitor.frames.detections import Limits
from monitor.frames.space import BoolArray, DimensionKind, IntArray, Space
from monitor.statistics.row_columns import portions
from monitor.store.column_names import offered, some_of
from monitor.store.recordings import Recording

_LARGEST = Limits().largest_mean
_SMALLEST_DEVIATION = Limits().smallest_deviation
_LARGEST_DEVIATION = Limits().largest_deviation

# Refused rows that a message lists for each reason.
_FIRST_ROWS = 5


def sound_rows(recording: Recording) -> BoolArray:
    """(N,) rows with a finite mean and a positive definite covariance."""
    factor = factorise(recording.covariance)
    sound: BoolArray = np.isfinite(factor[-1, -1]) & np.isfinite(recording.mean).all(axis=1)
    return sound


@dataclass(frozen=True, slots=True)
class Usable:
    """Tells which of N rows have ground truth and can be fitted to and measured.

    labelled  (N,) have ground truth
    rows      (N,) are usable among them
    refused   reason → numbers of the rows in the file that are refused, each row once
    """

    labelled: BoolArray
    rows: BoolArray
    refused: Mapping[str, IntArray]

    @property
    def n_refused(self) -> int:
        """Counts the refused rows."""
        return sum(rows.size for rows in self.refused.values())

    @property
    def share_refused(self) -> float:
        """Gives the share of refused rows among those with ground truth."""
        return self.n_refused / max(int(np.count_nonzero(self.labelled)), 1)

    def told(self) -> str:
        """Says how many rows are left out, and why, with the first rows of each reason."""
        text = f"of {self.labelled.size} rows, {np.count_nonzero(~self.labelled)} have no truth"
        if not self.refused:
            return text
        return f"{text} and {self.n_refused} are refused: {self.reasons()}"

    def reasons(self) -> str:
        """Says how many rows are refused for which reason, and which are the first of them."""
        reasons = (
            f"{rows.size} because {reason}: row {some_of(list(map(str, rows)), _FIRST_ROWS)}"
            for reason, rows in self.refused.items()
        )
        return f"{'; '.join(reasons)} (rows count from 0)"

    def remedy(self, recording: Recording) -> str:
        """Says what to do where no row is usable."""
        if self.labelled.any():
            return "Correct these rows."
        guess = offered(recording.names)
        return (
            f"Give {guess}."
            if "gt_" in guess
            else "Add columns gt_<dimension> (arrays: gt), or give the labels of another file by "
            "--labels."
        )

    def as_json(self) -> dict[str, object]:
        """Builds reason → count and first rows, for JSON."""
        return {
            reason: {"rows": rows.size, "first": rows[:_FIRST_ROWS].tolist()}
            for reason, rows in self.refused.items()
        }


class Soundness:
    """Finds the usable rows of a recording, portion by portion."""

    def __init__(self, names: tuple[str, ...], n: int) -> None:
        """Takes the names of the dimensions, and how many rows will come."""
        self._names = names
        self._labelled, self._rows = np.zeros((2, n), bool)
        self._refused = dict[str, tuple[list[IntArray], BoolArray]]()
        self._seen = 0

    def add(self, part: Recording) -> BoolArray:
        """Takes the next rows; returns which of them are usable, (m,)."""
        place = slice(self._seen, self._seen + part.mean.shape[0])
        self._seen = place.stop
        labelled = np.isfinite(part.truth).all(axis=1)
        self._labelled[place] = labelled
        definite = np.isfinite(factorise(part.covariance)[-1, -1])
        usable: BoolArray = np.array(labelled)
        if not (definite.all() and _unsuspicious(part)):
            for reason, fault in _faults(part, definite):
                found = np.flatnonzero(usable & fault.any(axis=1))
                if not found.size:
                    continue
                usable[found] = False
                rows, at = self._refused.setdefault(reason, ([], np.zeros(fault.shape[1], bool)))
                rows.append(part.row[found])
                np.logical_or(at, fault[found].any(axis=0), out=at)
        self._rows[place] = usable
        return usable

    def found(self) -> Usable:
        """Tells what was found of all rows."""
        order = {reason: i for i, reason in enumerate(_REASONS)}
        refused = {}
        for reason, (rows, at) in sorted(self._refused.items(), key=lambda one: order[one[0]]):
            words = reason
            if at.size > 1:
                words += f" ({', '.join(self._names[i] for i in np.flatnonzero(at))})"
            refused[words] = np.concatenate(rows)
        return Usable(self._labelled, self._rows, refused)


def usable_truth(recording: Recording) -> Usable:
    """Finds the rows with truth, those among them that are usable, and why others are not."""
    n = recording.mean.shape[0]
    soundness = Soundness(recording.space.names, n)
    for rows in portions(n):
        soundness.add(recording.part(rows))
    return soundness.found()


def _unsuspicious(part: Recording) -> bool:
    """Tells if no value of any row can be a fault: quickly, and rarely wrongly no."""
    variance = np.diagonal(part.covariance, axis1=1, axis2=2)
    # NaN passes no comparison, but in truth it stands for none.
    return bool(
        part.mean.size
        and np.abs(part.mean).max() <= _LARGEST
        and not np.fmax.reduce(np.abs(part.truth), axis=None) > _LARGEST
        and variance.min() >= _SMALLEST_DEVIATION**2
        and variance.max() <= _LARGEST_DEVIATION**2
        and np.abs(part.covariance).max() < np.inf
    )


_REASONS = (
    "a mean is not finite",
    f"a mean is beyond ±{_LARGEST:g}",
    f"a truth is beyond ±{_LARGEST:g}",
    f"a deviation is below {_SMALLEST_DEVIATION:g} or above {_LARGEST_DEVIATION:g}",
    "a variance or covariance is not finite",
    "a variance is zero",
    "a variance is negative",
    "the covariance is not positive definite",
)


def _faults(part: Recording, definite: BoolArray) -> Iterator[tuple[str, BoolArray]]:
    """Yields reasons with (m, K) where they are found, or (m, 1) of the row as a whole.

    definite  (m,) whether the covariance is positive definite
    """
    variance = np.diagonal(part.covariance, axis1=1, axis2=2)
    with np.errstate(invalid="ignore"):
        found = (
            ~np.isfinite(part.mean),
            np.abs(part.mean) > _LARGEST,
            np.abs(part.truth) > _LARGEST,
            ((variance > 0) & (variance < _SMALLEST_DEVIATION**2))
            | ((variance > _LARGEST_DEVIATION**2) & np.isfinite(variance)),
            ~np.isfinite(part.covariance).all(axis=2),
            variance == 0,
            variance < 0,
            ~(definite & np.isfinite(part.mean).all(axis=1))[:, None],
        )
    yield from zip(_REASONS, found, strict=True)


def angles_of(space: Space) -> list[str]:
    """Names the angles in radians that wrap."""
    return [one.name for one in space.dimensions if one.kind is DimensionKind.ANGLE]


# Share of rows with an error of a whole turn from which on an angle is suspected.
_TURNED = 0.005

# Whole turns, as they are written and as numbers.
_TURNS = (("2π", 2 * math.pi), ("360", 360.0))


class Oddities:
    """Finds angles that are no radians, or are not taken for angles, portion by portion."""

    def __init__(self, space: Space) -> None:
        k = space.k
        self._space = space
        self._beyond = np.zeros(k, np.int64)
        self._rows = np.zeros(k, np.int64)
        # Errors near a whole turn, and a bit smaller, of each kind of turn.
        self._near, self._gap = np.zeros((2, len(_TURNS), k), np.int64)
        self._least, self._most = np.full(k, np.inf), np.full(k, -np.inf)

    def add(self, part: Recording) -> None:
        """Looks at further rows."""
        for i, dimension in enumerate(self._space.dimensions):
            mean, truth = part.mean[:, i], part.truth[:, i]
            if dimension.kind is DimensionKind.ANGLE:
                for values in (mean, truth):
                    far = (np.abs(values) > 2 * math.pi) & np.isfinite(values)
                    self._beyond[i] += np.count_nonzero(far)
                continue
            size = np.abs(truth - mean)
            known = np.isfinite(size)
            if dimension.kind is not DimensionKind.LENGTH or not known.any():
                continue
            if not known.all():
                mean, truth, size = mean[known], truth[known], size[known]
            self._rows[i] += size.size
            self._least[i] = min(self._least[i], mean.min(), truth.min())
            self._most[i] = max(self._most[i], mean.max(), truth.max())
            for turn, (_, period) in enumerate(_TURNS):
                far = size[size > 0.625 * period]
                near = np.count_nonzero(far > 0.75 * period)
                self._near[turn, i] += near
                self._gap[turn, i] += far.size - near

    def degrees(self) -> str | None:
        """Says which angles cannot be radians; None if all may be."""
        beyond = zip(self._space.names, self._beyond.tolist(), strict=True)
        found = [f"{name} ({count} values)" for name, count in beyond if count]
        if not found:
            return None
        return (
            f"beyond ±2π, so hardly radians: {', '.join(found)}. Are they degrees? Multiply angles "
            "by π/180, and variances of angles by its square."
        )

    def turned(self) -> str | None:
        """Says in which dimensions errors of a whole turn betray an angle not named as one.

        Values stay within a turn, some errors are near a whole turn, and hardly any a bit smaller.
        """
        found = []
        for i, name in enumerate(self._space.names):
            for turn, (words, period) in enumerate(_TURNS):
                near, gap = int(self._near[turn, i]), int(self._gap[turn, i])
                enough = near >= max(2, _TURNED * self._rows[i]) and gap <= 0.05 * near
                if enough and self._most[i] - self._least[i] <= 1.25 * period:
                    found.append((name, f"{name}: {near:,} errors lie near ±{words}", words))
        if not found:
            return None
        angles = ",".join([*angles_of(self._space), *(name for name, _, _ in found)])
        degrees = any(turn == "360" for _, _, turn in found)
        remedy = " and its variance by the square, and" if degrees else ""
        return (
            f"{'; '.join(words for _, words, _ in found)}: an angle? "
            + (f"Multiply degrees by π/180{remedy} give" if degrees else "Give")
            + f" --angles {angles}"
        )
