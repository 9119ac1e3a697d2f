"""The choice of a recalibrator by slice, with a fallback: the value that is promoted.

It knows its own version: the method and a hash of everything that makes it up.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from monitor.calibration.marginals import Marginals
from monitor.calibration.slices import RangeBuckets
from monitor.calibration.space import IntArray, Space
from monitor.recalibration.basis import Basis
from monitor.recalibration.document import range_buckets
from monitor.recalibration.identity import Identity
from monitor.recalibration.methods import METHODS
from monitor.recalibration.recalibrator import (
    Document,
    Estimates,
    InvalidRecalibrator,
    Output,
    Recalibrator,
)
from monitor.recalibration.rejection import RejectedBy, Rejection
from monitor.recalibration.routing import Shares, recalibrated, share_out
from monitor.recalibration.shapes import shared_marginals

FORMAT = "calibration-monitor/recalibrator/1"

# Names of the slice of a detection and of the wider ones it lies in, finest first.
Chain = tuple[str, ...]


@dataclass(frozen=True)
class Selection:
    """Which recalibrator serves which slice.

    dimensions  names it was fitted on; empty: any (only the identity is)
    by_slice    slice name → recalibrator
    fallback    for every other slice
    fitted_on   rows, source and the like, for people; not part of the version
    basis       what the fallback rests on, None where that is not known; not part of the version
    bases       the same by slice name, of those of which it is known
    ranges      the buckets that slices by range are named after; None without such slices
    rejection   by deviation: which recalibrated detections are too uncertain; None: none are
    """

    dimensions: tuple[str, ...]
    fallback: Recalibrator
    by_slice: Mapping[str, Recalibrator] = field(default_factory=dict)
    fitted_on: Document = field(default_factory=dict)
    basis: Basis | None = None
    bases: Mapping[str, Basis] = field(default_factory=dict)
    ranges: RangeBuckets | None = None
    rejection: Rejection | None = None

    @property
    def method(self) -> str:
        """Of the first slice by name, or of the fallback if there are none."""
        first = min(self.by_slice, default=None)
        return (self.fallback if first is None else self.by_slice[first]).method

    @cached_property
    def version(self) -> str:
        """The method and the first 12 digits of the content's SHA-256."""
        text = json.dumps(self._content({}, None), sort_keys=True, separators=(",", ":"))
        return f"{self.method}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    def _content(self, bases: Mapping[str, Basis], basis: Basis | None) -> Document:
        content: Document = {
            "format": FORMAT,
            "dimensions": list(self.dimensions),
            "fallback": _one(self.fallback, basis),
            "slices": {
                name: _one(self.by_slice[name], bases.get(name)) for name in sorted(self.by_slice)
            },
        }
        # What a document may do without is part of the hash only where it is there: versions of
        # before stay as they are.
        if self.ranges is not None:
            content["ranges"] = {
                "edges": list(self.ranges.edges),
                "dimensions": list(self.ranges.dimensions),
            }
        if self.rejection is not None:
            content["rejection"] = self.rejection.parameters()
        return content

    def to_json(self) -> str:
        """The document as text; floats keep every bit."""
        content = {
            **self._content(self.bases, self.basis),
            "fitted_on": self.fitted_on,
            "version": self.version,
        }
        return json.dumps(content, indent=1, sort_keys=True) + "\n"

    def fits(self, space: Space) -> bool:
        """Whether it can be applied to estimates in this space."""
        return not self.dimensions or self.dimensions == space.names

    def of(self, chain: Chain) -> Recalibrator:
        """The recalibrator that serves a slice: of the first name that has one."""
        for name in chain:
            found = self.by_slice.get(name)
            if found is not None:
                return found
        return self.fallback

    def shares(self, slices: IntArray, chains: Sequence[Chain]) -> Shares:
        """Which recalibrator serves which of n ≥ 1 rows; slices (n,) index into chains."""
        return share_out(slices, lambda i: self.of(chains[i]))

    def apply(self, estimates: Estimates, slices: IntArray, chains: Sequence[Chain]) -> Estimates:
        """Each estimate by the recalibrator of its slice, or else of a wider one.

        slices  (n,) index into chains
        """
        if not self.by_slice:
            return self.fallback.apply(estimates)
        if slices.size == 0:
            return estimates
        return recalibrated(estimates, self.shares(slices, chains))

    def marginals(
        self, estimates: Estimates, slices: IntArray, chains: Sequence[Chain]
    ) -> Marginals:
        """What the recalibrators say of each dimension of n ≥ 1 estimates, Gaussian or not."""
        return shared_marginals(estimates, self.shares(slices, chains))

    @cached_property
    def outputs(self) -> frozenset[Output]:
        """What its recalibrators say of a detection; most often there is one."""
        return frozenset(one.output for one in self.recalibrators)

    @cached_property
    def keeps_definite(self) -> bool:
        """Whether all of its recalibrators keep covariances positive definite by their form."""
        return all(one.keeps_definite for one in self.recalibrators)

    @property
    def changes_estimates(self) -> bool:
        """Whether any of its recalibrators is more than the identity."""
        return any(one.method != Identity.method for one in self.recalibrators)

    @property
    def recalibrators(self) -> tuple[Recalibrator, ...]:
        """All of them, the fallback first."""
        return self.fallback, *self.by_slice.values()


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
    k = len(dimensions)
    fallback, basis = _read_one(content.get("fallback"), "fallback", k)
    read = {name: _read_one(part, f"slices.{name}", k) for name, part in slices.items()}
    selection = Selection(
        tuple(dimensions),
        fallback,
        {name: recalibrator for name, (recalibrator, _) in read.items()},
        fitted_on if isinstance(fitted_on, dict) else {},
        basis,
        {name: known for name, (_, known) in read.items() if known is not None},
        range_buckets(content, "ranges"),
        _read_rejection(content.get("rejection")),
    )
    claimed = content.get("version", "")
    if claimed and claimed != selection.version:
        raise InvalidRecalibrator(
            f"'version' is {claimed!r} but the content makes {selection.version!r}: "
            "the document was changed after it was fitted. Fit again, or remove 'version'."
        )
    return selection


def _one(recalibrator: Recalibrator, basis: Basis | None) -> Document:
    content = {"method": recalibrator.method, "parameters": recalibrator.parameters()}
    return content if basis is None else {**content, "basis": basis.parameters()}


def _read_one(content: object, where: str, k: int) -> tuple[Recalibrator, Basis | None]:
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
    return recalibrator, _read_basis(content.get("basis"), where)


def _read_basis(content: object, where: str) -> Basis | None:
    if content is None:
        return None
    if not isinstance(content, dict):
        raise InvalidRecalibrator(f"'{where}.basis' is {content!r}: it must be an object.")
    try:
        return Basis.from_parameters(content)
    except InvalidRecalibrator as error:
        raise InvalidRecalibrator(f"in '{where}.basis': {error}") from None


def _read_rejection(content: object) -> Rejection | None:
    if content is None:
        return None
    if not isinstance(content, dict):
        raise InvalidRecalibrator(f"'rejection' is {content!r}: it must be an object.")
    try:
        rejection = Rejection.from_parameters(content)
    except InvalidRecalibrator as error:
        raise InvalidRecalibrator(f"in 'rejection': {error}") from None
    if rejection.by is not RejectedBy.DEVIATION:
        raise InvalidRecalibrator(
            f"'rejection.by' is '{rejection.by}': of Gaussians it must be {RejectedBy.DEVIATION}."
        )
    return rejection
