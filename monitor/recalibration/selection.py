"""The selection: which recalibrator serves which slice, as the value that is promoted.

It knows its own version: the method and a hash of everything that makes it up. Its document names
methods with their parameters; the parts that documents of class probabilities share are here too.

Every recalibrator is asked once for a frame: a Gaussian process costs by the call as much as by
the row, and slices that share one go through it together. Nothing that is imported needs an
optimiser: fits are reached through fitting.py alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, TypeVar

import numpy as np

from monitor.frames.detections import Estimates
from monitor.frames.forms import Schema, between
from monitor.frames.slices import RangeBuckets
from monitor.frames.space import IntArray, Space
from monitor.recalibration.adaptive_scaling import AdaptiveScaling
from monitor.recalibration.binned import HistogramBinning, IsotonicStd
from monitor.recalibration.documents import (
    Document,
    InvalidRecalibrator,
    check_depth,
    inside,
    names,
    part,
    range_buckets,
    shown,
    unlike,
)
from monitor.recalibration.processes.beta import GpBeta
from monitor.recalibration.processes.cauchy import GpCauchy
from monitor.recalibration.processes.multivariate import GpNormalMultivariate
from monitor.recalibration.processes.normal import GpNormal
from monitor.recalibration.quantiles import IsotonicQuantiles
from monitor.recalibration.recalibrator import (
    Basis,
    Identity,
    Output,
    Recalibrator,
    Shares,
    shared_marginals,
)
from monitor.recalibration.rejection import RejectedBy, Rejection
from monitor.recalibration.scaling import CovarianceScaling, VarianceScaling
from monitor.statistics.measures import Marginals

METHODS: Mapping[str, Callable[[Document], Recalibrator]] = {
    Identity.method: lambda parameters: Identity(),
    VarianceScaling.method: VarianceScaling.from_parameters,
    CovarianceScaling.method: CovarianceScaling.from_parameters,
    AdaptiveScaling.method: AdaptiveScaling.from_parameters,
    HistogramBinning.method: HistogramBinning.from_parameters,
    IsotonicStd.method: IsotonicStd.from_parameters,
    IsotonicQuantiles.method: IsotonicQuantiles.from_parameters,
    GpNormal.method: GpNormal.from_parameters,
    GpNormalMultivariate.method: GpNormalMultivariate.from_parameters,
    GpBeta.method: GpBeta.from_parameters,
    GpCauchy.method: GpCauchy.from_parameters,
}


@dataclass(frozen=True, slots=True)
class RecalibratorForm:
    """Marks a field that holds a recalibrator: {"method": …, "parameters": {…}}."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Schema:
        return between(_of_method, lambda one: _one(one, None), {"type": "dict"})


def _of_method(content: Document) -> Recalibrator:
    return read_method(content, "recalibrator", METHODS)


AnyRecalibrator = Annotated[Recalibrator, RecalibratorForm()]
Made = TypeVar("Made")
FORMAT = "calibration-monitor/recalibrator/1"
MOST_SLICES = 4096

# Names of the slice of a detection and of the wider ones it lies in, finest first.
Chain = tuple[str, ...]


def share_out(slices: IntArray, serving: Callable[[int], Recalibrator]) -> Shares:
    """Divides rows among recalibrators. Only slices that a row is in are asked for.

    slices   (n,) index of the slice of each row, n at least 1
    serving  the recalibrator of a slice, by index; the same object where it is the same
    """
    present = np.flatnonzero(np.bincount(slices))
    numbers: dict[int, int] = {}
    chosen: list[Recalibrator] = []
    number_of = np.zeros(int(present[-1]) + 1, np.int16)
    for i in present.tolist():
        recalibrator = serving(i)
        number = numbers.setdefault(id(recalibrator), len(chosen))
        if number == len(chosen):
            chosen.append(recalibrator)
        number_of[i] = number
    if len(chosen) == 1:
        return Shares(None, ((chosen[0], slice(0, slices.size)),))
    # Of 16 bits: sorted by counting, several times quicker.
    number_by_row = number_of[slices]
    ends = np.cumsum(np.bincount(number_by_row)).tolist()
    parts = map(slice, [0, *ends], ends)
    order = np.argsort(number_by_row, kind="stable")
    return Shares(order, tuple(zip(chosen, parts, strict=True)))


def recalibrated(estimates: Estimates, shares: Shares) -> Estimates:
    """Recalibrates each estimate by what serves it; returns its argument if none changes any.

    Raises ValueError where a recalibrator gives back others than it got.
    """
    parts = shares.divided(estimates)
    made = [_checked(*part) for part in parts]
    if shares.order is None:
        return made[0]
    if all(outcome is part for outcome, (_, part) in zip(made, parts, strict=True)):
        return estimates
    back = np.empty_like(shares.order)
    back[shares.order] = np.arange(shares.order.size)
    return Estimates(
        np.concatenate([outcome.mean for outcome in made])[back],
        np.concatenate([outcome.covariance for outcome in made])[back],
        np.concatenate([outcome.diagonal for outcome in made])[back],
    )


def _checked(recalibrator: Recalibrator, part: Estimates) -> Estimates:
    outcome = recalibrator.apply(part)
    if outcome.shapes != part.shapes:
        # Others would be given the estimates of rows that are not theirs, without a word.
        raise ValueError(
            f"{recalibrator.method} made shapes {outcome.shapes} of {part.shapes}: "
            "a recalibrator gives back as many estimates as it gets."
        )
    return outcome


def version_of(method: str, content: Document) -> str:
    """The method and the first 12 digits of the content's SHA-256."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return f"{method}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def text_of(content: Document, fitted_on: Document, version: str) -> str:
    """The document; floats keep every bit."""
    whole = {**content, "fitted_on": fitted_on, "version": version}
    return json.dumps(whole, indent=1, sort_keys=True) + "\n"


def content_of(text: str | bytes) -> Document:
    """The JSON object of a text. Raises InvalidRecalibrator where it is none."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRecalibrator(f"not a JSON document: {error}.") from None
    if not isinstance(content, dict):
        raise InvalidRecalibrator(
            f"the document is {shown(content)}: it must be an object that "
            "`calibration-monitor fit --output` wrote."
        )
    check_depth(content)
    return content


def check_format(content: Document, expected: str) -> None:
    """Raises InvalidRecalibrator for the documents of anything else."""
    if content.get("format") != expected:
        raise InvalidRecalibrator(
            f"'format' is {shown(content.get('format'))}, expected {expected!r}: give a file that "
            "`calibration-monitor fit --output` wrote, of this version and for this purpose."
        )


def check_version(content: Document, version: str) -> None:
    """Raises InvalidRecalibrator where a document claims to be of another content."""
    claimed = content.get("version", "")
    if claimed not in ("", version):
        raise InvalidRecalibrator(
            f"'version' is {shown(claimed)} but the content makes {version!r}: "
            "the document was changed after it was fitted. Fit again, or remove 'version'."
        )


def fitted_on(content: Document) -> Document:
    """Notes for people; whatever else is there is none."""
    notes = content.get("fitted_on")
    return notes if isinstance(notes, dict) else {}


def read_method(
    content: Document, where: str, methods: Mapping[str, Callable[[Document], Made]]
) -> Made:
    """{"method": …, "parameters": {…}} as one of the methods. Raises InvalidRecalibrator."""
    found = content.get("method")
    if not isinstance(found, str) or found not in methods:
        raise unlike(f"{where}.method", found, f"one of {', '.join(methods)}")
    parameters = inside(f"'{where}'", part, {"parameters": {}, **content}, "parameters")
    return inside(f"'{where}'", methods[found], parameters)


def _optional(
    content: Document, name: str, read: Callable[[Document], Made], place: str
) -> Made | None:
    """Reads an object inside the content; None where it is absent."""
    if content.get(name) is None:
        return None
    return inside(f"'{place}'", lambda: read(part(content, name)))


def read_rejection(content: Document, by: RejectedBy) -> Rejection | None:
    """Reads a rejection; None without one. Raises InvalidRecalibrator for another kind of score."""
    rejection = _optional(content, "rejection", Rejection.from_parameters, "rejection")
    if rejection is not None and rejection.by is not by:
        raise InvalidRecalibrator(
            f"'rejection.by' is '{rejection.by}': with this 'format' it must be '{by}'."
        )
    return rejection


@dataclass(frozen=True)
class Selection:
    """The choice of a recalibrator for each slice.

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
        """Method of the first slice by name, or of the fallback if there are none."""
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
        """Tells whether it can be applied to estimates in this space."""
        return not self.dimensions or self.dimensions == space.names

    def of(self, chain: Chain) -> Recalibrator:
        """Finds the recalibrator that serves a slice: of the first name that has one."""
        for name in chain:
            found = self.by_slice.get(name)
            if found is not None:
                return found
        return self.fallback

    def shares(self, slices: IntArray, chains: Sequence[Chain]) -> Shares:
        """Divides n ≥ 1 rows among the recalibrators; slices (n,) index into chains."""
        return share_out(slices, lambda i: self.of(chains[i]))

    def apply(self, estimates: Estimates, slices: IntArray, chains: Sequence[Chain]) -> Estimates:
        """Recalibrates each estimate by the recalibrator of its slice, or else of a wider one.

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
        """Returns the distributions of n ≥ 1 estimates by dimension, Gaussian or not."""
        return shared_marginals(estimates, self.shares(slices, chains))

    @cached_property
    def outputs(self) -> frozenset[Output]:
        """Shapes of its recalibrators' distributions; most often there is one."""
        return frozenset(one.output for one in self.recalibrators)

    @cached_property
    def keeps_definite(self) -> bool:
        """Tells whether all recalibrators keep covariances positive definite by their form."""
        return all(one.keeps_definite for one in self.recalibrators)

    @property
    def changes_estimates(self) -> bool:
        """Tells whether any of its recalibrators is more than the identity."""
        return any(one.method != Identity.method for one in self.recalibrators)

    @property
    def recalibrators(self) -> tuple[Recalibrator, ...]:
        """All recalibrators, the fallback first."""
        return self.fallback, *self.by_slice.values()


IDENTITY = Selection((), Identity())


def from_content(content: Document) -> Selection:
    """Reads the parsed JSON. Raises InvalidRecalibrator for anything else."""
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
    basis = _optional(described, "basis", Basis.from_parameters, f"{where}.basis")
    return recalibrator, basis
