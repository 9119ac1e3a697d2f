"""The choice of a recalibrator by slice, with a fallback: the value that is promoted.

It knows its own version: the method and a hash of everything that makes it up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from monitor.calibration.marginals import Marginals
from monitor.calibration.slices import RangeBuckets
from monitor.calibration.space import IntArray, Space
from monitor.recalibration.basis import Basis
from monitor.recalibration.document import names, part, range_buckets
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
from monitor.recalibration.versioned_document import (
    check_format,
    check_version,
    content_of,
    fitted_on,
    read_method,
    read_rejection,
    text_of,
    version_of,
)

FORMAT = "calibration-monitor/recalibrator/1"
MOST_SLICES = 4096

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
        return version_of(self.method, self._content({}, None))

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
        return text_of(self._content(self.bases, self.basis), self.fitted_on, self.version)

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
    return from_content(content_of(text))


def from_content(content: Document) -> Selection:
    """Of the parsed JSON. Raises InvalidRecalibrator for anything else."""
    check_format(content, FORMAT)
    dimensions = names(content, "dimensions")
    slices = part({"slices": {}, **content}, "slices")
    if len(slices) > MOST_SLICES:
        raise InvalidRecalibrator(
            f"'slices' has {len(slices)} names: at most {MOST_SLICES}, eight times what a sidecar "
            "can be told to keep apart."
        )
    for name in slices:
        if not name.isprintable():
            raise InvalidRecalibrator(f"'slices' has the name {name!r}: use printable characters.")
    k = len(dimensions)
    fallback, basis = _read_one(content.get("fallback"), "fallback", k)
    read = {name: _read_one(one, f"slices.{name}", k) for name, one in slices.items()}
    selection = Selection(
        dimensions,
        fallback,
        {name: recalibrator for name, (recalibrator, _) in read.items()},
        fitted_on(content),
        basis,
        {name: known for name, (_, known) in read.items() if known is not None},
        range_buckets(content, "ranges"),
        read_rejection(content, RejectedBy.DEVIATION),
    )
    check_version(content, selection.version)
    return selection


def _one(recalibrator: Recalibrator, basis: Basis | None) -> Document:
    content = {"method": recalibrator.method, "parameters": recalibrator.parameters()}
    return content if basis is None else {**content, "basis": basis.parameters()}


def _read_one(content: object, where: str, k: int) -> tuple[Recalibrator, Basis | None]:
    described = part({where: content}, where)
    recalibrator = read_method(described, where, METHODS)
    if recalibrator.k not in (None, k):
        raise InvalidRecalibrator(
            f"'{where}' has {recalibrator.k} dimensions but 'dimensions' names {k}."
        )
    return recalibrator, _read_basis(described, where)


def _read_basis(described: Document, where: str) -> Basis | None:
    if described.get("basis") is None:
        return None
    try:
        return Basis.from_parameters(part(described, "basis"))
    except InvalidRecalibrator as error:
        raise InvalidRecalibrator(f"in '{where}.basis': {error}") from None
