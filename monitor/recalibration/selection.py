"""The choice of a recalibrator by slice, with a fallback: the value that is promoted.

It knows its own version: the method and a hash of everything that makes it up.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from monitor.calibration.space import IntArray, Space
from monitor.recalibration.covariance_scaling import CovarianceScaling
from monitor.recalibration.identity import Identity
from monitor.recalibration.recalibrator import (
    Document,
    Estimates,
    InvalidRecalibrator,
    Recalibrator,
)
from monitor.recalibration.variance_scaling import VarianceScaling

FORMAT = "calibration-monitor/recalibrator/1"

METHODS: Mapping[str, Callable[[Document], Recalibrator]] = {
    Identity.method: Identity.from_parameters,
    VarianceScaling.method: VarianceScaling.from_parameters,
    CovarianceScaling.method: CovarianceScaling.from_parameters,
}


@dataclass(frozen=True)
class Selection:
    """Which recalibrator serves which slice.

    dimensions  names it was fitted on; empty: any (only the identity is)
    by_slice    slice name → recalibrator
    fallback    for every other slice
    fitted_on   rows, source and the like, for people; not part of the version
    """

    dimensions: tuple[str, ...]
    fallback: Recalibrator
    by_slice: Mapping[str, Recalibrator] = field(default_factory=dict)
    fitted_on: Document = field(default_factory=dict)

    @property
    def method(self) -> str:
        """Of the first slice by name, or of the fallback if there are none."""
        return self.of(min(self.by_slice, default="")).method

    @cached_property
    def version(self) -> str:
        """The method and the first 12 digits of the content's SHA-256."""
        text = json.dumps(self._content(), sort_keys=True, separators=(",", ":"))
        return f"{self.method}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    def _content(self) -> Document:
        return {
            "format": FORMAT,
            "dimensions": list(self.dimensions),
            "fallback": _one(self.fallback),
            "slices": {name: _one(self.by_slice[name]) for name in sorted(self.by_slice)},
        }

    def to_json(self) -> str:
        """The document as text; floats keep every bit."""
        content = {**self._content(), "fitted_on": self.fitted_on, "version": self.version}
        return json.dumps(content, indent=1, sort_keys=True) + "\n"

    def fits(self, space: Space) -> bool:
        """Whether it can be applied to estimates in this space."""
        return not self.dimensions or self.dimensions == space.names

    def of(self, name: str) -> Recalibrator:
        """The recalibrator that serves a slice."""
        return self.by_slice.get(name, self.fallback)

    def apply(self, estimates: Estimates, slices: IntArray, names: tuple[str, ...]) -> Estimates:
        """Each estimate by the recalibrator of its slice.

        slices  (n,) index into names
        """
        if not self.by_slice:
            return self.fallback.apply(estimates)
        made = Estimates(
            estimates.mean.copy(), estimates.covariance.copy(), estimates.diagonal.copy()
        )
        unclaimed = np.ones(slices.size, bool)
        changed = False
        for i, name in enumerate(names):
            if name in self.by_slice:
                here = np.flatnonzero(slices == i)
                unclaimed[here] = False
                changed |= _apply_to(self.by_slice[name], estimates, here, made)
        changed |= _apply_to(self.fallback, estimates, np.flatnonzero(unclaimed), made)
        return made if changed else estimates

    @property
    def keeps_definite(self) -> bool:
        """Whether all of its recalibrators keep covariances positive definite by their form."""
        return all(one.keeps_definite for one in self._recalibrators)

    @property
    def changes_estimates(self) -> bool:
        """Whether any of its recalibrators is more than the identity."""
        return any(one.method != Identity.method for one in self._recalibrators)

    @property
    def _recalibrators(self) -> tuple[Recalibrator, ...]:
        return self.fallback, *self.by_slice.values()


def _apply_to(
    recalibrator: Recalibrator, estimates: Estimates, rows: IntArray, made: Estimates
) -> bool:
    """Write what a recalibrator makes of some rows into `made`; whether it changed any."""
    if rows.size == 0:
        return False
    part = Estimates(estimates.mean[rows], estimates.covariance[rows], estimates.diagonal[rows])
    outcome = recalibrator.apply(part)
    if outcome is part:
        return False
    if outcome.shapes != part.shapes:
        # One row would be written to all of them without a word.
        raise ValueError(
            f"{recalibrator.method} made shapes {outcome.shapes} of {part.shapes}: "
            "a recalibrator gives back as many estimates as it gets."
        )
    made.mean[rows], made.covariance[rows] = outcome.mean, outcome.covariance
    made.diagonal[rows] = outcome.diagonal
    return True


IDENTITY = Selection((), Identity())


def from_json(text: str | bytes) -> Selection:
    """The inverse of to_json. Raises InvalidRecalibrator for anything else."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRecalibrator(f"not a JSON document: {error}.") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        found = content.get("format") if isinstance(content, dict) else type(content).__name__
        raise InvalidRecalibrator(
            f"'format' is {found!r}, expected {FORMAT!r}: "
            "give a file that `calibration-monitor fit --output` wrote."
        )
    dimensions = content.get("dimensions")
    if not isinstance(dimensions, list) or not all(isinstance(d, str) for d in dimensions):
        raise InvalidRecalibrator(f"'dimensions' is {dimensions!r}: it must be a list of names.")
    slices = content.get("slices", {})
    if not isinstance(slices, dict):
        raise InvalidRecalibrator(f"'slices' is {slices!r}: it must be an object.")
    for name in (*dimensions, *slices):
        if not name.isprintable():
            raise InvalidRecalibrator(
                f"'{'dimensions' if name in dimensions else 'slices'}' has the name {name!r}: "
                "use printable characters."
            )
    fitted_on = content.get("fitted_on", {})
    selection = Selection(
        tuple(dimensions),
        _recalibrator(content.get("fallback"), "fallback", len(dimensions)),
        {
            name: _recalibrator(part, f"slices.{name}", len(dimensions))
            for name, part in slices.items()
        },
        fitted_on if isinstance(fitted_on, dict) else {},
    )
    claimed = content.get("version", "")
    if claimed and claimed != selection.version:
        raise InvalidRecalibrator(
            f"'version' is {claimed!r} but the content makes {selection.version!r}: "
            "the document was changed after it was fitted. Fit again, or remove 'version'."
        )
    return selection


def _one(recalibrator: Recalibrator) -> Document:
    return {"method": recalibrator.method, "parameters": recalibrator.parameters()}


def _recalibrator(content: object, where: str, k: int) -> Recalibrator:
    found = content.get("method") if isinstance(content, dict) else content
    if not isinstance(content, dict) or not isinstance(found, str) or found not in METHODS:
        raise InvalidRecalibrator(
            f"'{where}.method' is {found!r}: it must be one of {', '.join(METHODS)}."
        )
    parameters = content.get("parameters", {})
    if not isinstance(parameters, dict):
        raise InvalidRecalibrator(f"'{where}.parameters' must be an object.")
    try:
        recalibrator = METHODS[found](parameters)
    except InvalidRecalibrator as error:
        raise InvalidRecalibrator(f"in '{where}': {error}") from None
    except (TypeError, ValueError) as error:
        raise InvalidRecalibrator(f"in '{where}': {error}.") from None
    if recalibrator.k is not None and recalibrator.k != k:
        raise InvalidRecalibrator(
            f"'{where}' has {recalibrator.k} dimensions but 'dimensions' names {k}."
        )
    return recalibrator
