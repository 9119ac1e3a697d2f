"""The selection: which recalibrator serves which slice, as the value that is promoted.

It knows its own version: the method and a hash of everything that makes it up. Its document names
methods with their parameters; the parts that documents of class probabilities share are here too.
They are read in `monitor.store.documents`.

Every recalibrator is asked once for a frame: a Gaussian process costs by the call as much as by
the row, and slices that share one go through it together. Nothing that is imported needs an
optimiser: fits are reached through fitting.py alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Annotated

import numpy as np

from monitor.frames.detections import Estimates
from monitor.frames.slices import Chain, RangeBuckets, is_bare_chain
from monitor.frames.space import FloatArray, IntArray, Space
from monitor.recalibration.binned import HistogramBinning, IsotonicStd
from monitor.recalibration.class_probabilities import (
    ClassIdentity,
    ClassRecalibrator,
    ClasswiseIsotonic,
)
from monitor.recalibration.class_scaling import AuxiliaryScaling, Temperature, VectorScaling
from monitor.recalibration.estimated.covariates import EstimatedCovariance
from monitor.recalibration.estimated.regression import CovarianceRegression
from monitor.recalibration.estimated.residual import ResidualCovariance
from monitor.recalibration.mean_correction import MeanCorrection
from monitor.recalibration.processes.beta import GpBeta
from monitor.recalibration.processes.cauchy import GpCauchy
from monitor.recalibration.processes.normal import GpNormal, GpNormalMultivariate
from monitor.recalibration.quantiles import IsotonicQuantiles
from monitor.recalibration.recalibrator import (
    Basis,
    Document,
    Identity,
    Output,
    Recalibrator,
    RecalibratorForm,
    described,
)
from monitor.recalibration.rejection import Rejection
from monitor.recalibration.scaling import AdaptiveScaling, CovarianceScaling, VarianceScaling
from monitor.statistics.measures import Marginals

METHODS: Mapping[str, type[Recalibrator]] = {
    Identity.method: Identity,
    VarianceScaling.method: VarianceScaling,
    CovarianceScaling.method: CovarianceScaling,
    AdaptiveScaling.method: AdaptiveScaling,
    HistogramBinning.method: HistogramBinning,
    IsotonicStd.method: IsotonicStd,
    IsotonicQuantiles.method: IsotonicQuantiles,
    GpNormal.method: GpNormal,
    GpNormalMultivariate.method: GpNormalMultivariate,
    GpBeta.method: GpBeta,
    GpCauchy.method: GpCauchy,
    ResidualCovariance.method: ResidualCovariance,
    CovarianceRegression.method: CovarianceRegression,
}

# Methods that estimate covariances, and need none.
ESTIMATING = tuple(name for name, one in METHODS.items() if issubclass(one, EstimatedCovariance))

# What a document may hold: methods, and one of them behind a correction of the mean.
RECALIBRATORS: Mapping[str, type[Recalibrator]] = {
    **METHODS,
    MeanCorrection.method: MeanCorrection,
}


AnyRecalibrator = Annotated[Recalibrator, RecalibratorForm(RECALIBRATORS)]
FittedRecalibrator = Annotated[
    tuple[Recalibrator, Basis | None], RecalibratorForm(RECALIBRATORS, with_basis=True)
]
FORMAT = "calibration-monitor/recalibrator/1"
MOST_SELECTED = 4096

# One object, so that rows it serves are shared out together.
_IDENTITY = Identity()


@dataclass(frozen=True, slots=True)
class Shares:
    """Division of n rows among recalibrators, at least one and none of them twice.

    order   (n,) row numbers, those of one recalibrator side by side; None where one serves all
    shares  each recalibrator, with the part of that order that it serves
    """

    order: IntArray | None
    shares: tuple[tuple[Recalibrator, slice], ...]

    def divided(self, estimates: Estimates) -> list[tuple[Recalibrator, Estimates]]:
        """Returns each recalibrator with the estimates that it serves."""
        if self.order is None:
            return [(self.shares[0][0], estimates)]
        ordered = estimates.take(self.order)
        return [(recalibrator, ordered.take(part)) for recalibrator, part in self.shares]

    def recalibrated(self, estimates: Estimates) -> Estimates:
        """Recalibrates each estimate by what serves it; returns its argument if none changes any.

        Raises ValueError where a recalibrator gives back others than it got.
        """
        parts = self.divided(estimates)
        made = [recalibrator.apply(part) for recalibrator, part in parts]
        for (recalibrator, part), outcome in zip(parts, made, strict=True):
            if outcome.shapes != part.shapes:
                # Others would be given the estimates of rows that are not theirs, without a word.
                raise ValueError(
                    f"{recalibrator.method} made shapes {outcome.shapes} of {part.shapes}: "
                    "a recalibrator gives back as many estimates as it gets."
                )
        if self.order is None:
            return made[0]
        if all(outcome is part for outcome, (_, part) in zip(made, parts, strict=True)):
            return estimates
        back = np.empty_like(self.order)
        back[self.order] = np.arange(self.order.size)
        return Estimates.joined(made).take(back)

    def marginals(self, estimates: Estimates) -> Marginals:
        """Returns the distributions by several recalibrators, each for the rows that it serves."""
        found = [recalibrator.marginals(part) for recalibrator, part in self.divided(estimates)]
        if self.order is None:
            return found[0]
        parts = (part for _, part in self.shares)
        return _Shared(self.order, tuple(zip(parts, found, strict=True)))


@dataclass(frozen=True, slots=True)
class _Shared:
    """Distributions of different shapes side by side.

    order  (n,) row numbers, those of one recalibrator side by side
    parts  which of them, in that order, and their distributions
    """

    order: IntArray
    parts: tuple[tuple[slice, Marginals], ...]

    def log_density(self, value: FloatArray) -> FloatArray:
        return self._each("log_density", value)

    def cumulative(self, value: FloatArray) -> FloatArray:
        return self._each("cumulative", value)

    def crps(self, value: FloatArray) -> FloatArray:
        return self._each("crps", value)

    def quantiles(self, tau: FloatArray) -> FloatArray:
        found = [marginals.quantiles(tau) for _, marginals in self.parts]
        values = np.empty((tau.size, self.order.size, found[0].shape[2]))
        values[:, self.order] = np.concatenate(found, axis=1)
        return values

    def _each(self, question: str, value: FloatArray) -> FloatArray:
        ordered, found = value[self.order], np.empty_like(value)
        answers = [getattr(marginals, question)(ordered[part]) for part, marginals in self.parts]
        found[self.order] = np.concatenate(answers)
        return found


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


class Promoted:
    """A value that is promoted: its document, and the version that is a hash of it."""

    fitted_on: Document

    @property
    def method(self) -> str:
        """The method that it is named after."""
        raise NotImplementedError

    def content(self, *, whole: bool) -> Document:
        """Returns all that makes it up, as JSON values; None where it has no such part.

        whole  with what recalibrators rest on, which is not part of the version
        """
        raise NotImplementedError

    def _document(self, *, whole: bool) -> Document:
        # What a document may do without is part of the hash only where it is there: versions of
        # before stay as they are.
        content = self.content(whole=whole)
        return {name: part for name, part in content.items() if part is not None}

    @cached_property
    def version(self) -> str:
        """The method and the first 12 digits of the content's SHA-256."""
        text = json.dumps(self._document(whole=False), sort_keys=True, separators=(",", ":"))
        return f"{self.method}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    def to_json(self) -> str:
        """The document as text; floats keep every bit."""
        notes = {"fitted_on": self.fitted_on, "version": self.version}
        return json.dumps(self._document(whole=True) | notes, indent=1, sort_keys=True) + "\n"


@dataclass(frozen=True)
class Selection(Promoted):
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

    def content(self, *, whole: bool) -> Document:
        """Returns all that makes it up; see Promoted."""
        bases = self.bases if whole else {}
        return {
            "format": FORMAT,
            "dimensions": self.dimensions,
            "fallback": described(self.fallback, self.basis if whole else None),
            "slices": {
                name: described(one, bases.get(name)) for name, one in self.by_slice.items()
            },
            "ranges": self.ranges and asdict(self.ranges),
            "rejection": self.rejection and self.rejection.parameters(),
        }

    def fits(self, space: Space) -> bool:
        """Tells whether it can be applied to estimates in this space."""
        return not self.dimensions or self.dimensions == space.names

    def of(self, chain: Chain) -> Recalibrator:
        """Finds the recalibrator that serves a slice: of the first name that has one.

        What is fitted on covariances that were sent, as the fallback is, serves none that are
        assumed.
        """
        served = (self.by_slice[name] for name in chain if name in self.by_slice)
        return next(served, _IDENTITY if is_bare_chain(chain) else self.fallback)

    def estimates(self, chain: Chain) -> bool:
        """Tells whether a slice whose detections come without a covariance gets one."""
        return self.of(chain).output is Output.ESTIMATED

    def applied_to(self, chain: Chain, names: tuple[str, ...]) -> Recalibrator:
        """Finds what is applied to a slice of these dimensions: the identity if it does not fit."""
        return self.of(chain) if self.dimensions in ((), names) else Identity()

    def shares(self, slices: IntArray, chains: Sequence[Chain]) -> Shares:
        """Divides n ≥ 1 rows among the recalibrators; slices (n,) index into chains."""
        return share_out(slices, lambda i: self.of(chains[i]))

    def apply(self, estimates: Estimates, slices: IntArray, chains: Sequence[Chain]) -> Estimates:
        """Recalibrates each estimate by the recalibrator of its slice, or else of a wider one.

        slices  (n,) index into chains
        """
        # The identity serves assumed covariances too.
        if slices.size == 0 or not (self.by_slice or self.changes_estimates):
            return estimates
        return self.shares(slices, chains).recalibrated(estimates)

    def marginals(
        self, estimates: Estimates, slices: IntArray, chains: Sequence[Chain]
    ) -> Marginals:
        """Returns the distributions of n ≥ 1 estimates by dimension, Gaussian or not."""
        return self.shares(slices, chains).marginals(estimates)

    @cached_property
    def outputs(self) -> frozenset[Output]:
        """Shapes of its recalibrators' distributions; most often there is one."""
        return frozenset(one.output for one in self.recalibrators)

    @cached_property
    def keeps_definite(self) -> bool:
        """Tells whether all recalibrators keep covariances positive definite by their form."""
        return all(one.keeps_definite for one in self.recalibrators)

    @cached_property
    def by_rows(self) -> bool:
        """Tells whether no bit of an outcome depends on the rows that are recalibrated with it."""
        return all(one.by_rows for one in self.recalibrators)

    @property
    def changes_estimates(self) -> bool:
        """Tells whether any of its recalibrators is more than the identity."""
        return any(one.method != Identity.method for one in self.recalibrators)

    @property
    def recalibrators(self) -> tuple[Recalibrator, ...]:
        """All recalibrators, the fallback first."""
        return self.fallback, *self.by_slice.values()


IDENTITY = Selection((), Identity())


CLASS_FORMAT = "calibration-monitor/class-recalibrator/1"

CLASS_METHODS: Mapping[str, type[ClassRecalibrator]] = {
    ClassIdentity.method: ClassIdentity,
    Temperature.method: Temperature,
    VectorScaling.method: VectorScaling,
    AuxiliaryScaling.method: AuxiliaryScaling,
    ClasswiseIsotonic.method: ClasswiseIsotonic,
}

# Of estimates or of class probabilities: no two methods have one name.
AnyMethod = Recalibrator | ClassRecalibrator
FittedMethod = Annotated[AnyMethod, RecalibratorForm({**RECALIBRATORS, **CLASS_METHODS})]


@dataclass(frozen=True)
class ClassSelection(Promoted):
    """A class recalibrator, with the names of the classes it is for.

    classes    names in the order of the probabilities; empty: any, of as many as it was fitted on
    rejection  of detections whose entropy stays high after recalibration; None: none
    fitted_on  rows, source and the like, for people; not part of the version
    """

    classes: tuple[str, ...]
    recalibrator: ClassRecalibrator
    rejection: Rejection | None = None
    fitted_on: Document = field(default_factory=dict)

    @property
    def method(self) -> str:
        """Method of the recalibrator."""
        return self.recalibrator.method

    def content(self, *, whole: bool) -> Document:
        """Returns all that makes it up; see Promoted."""
        return {
            "format": CLASS_FORMAT,
            "classes": self.classes,
            "recalibrator": described(self.recalibrator),
            "rejection": self.rejection and self.rejection.parameters(),
        }

    def fits(self, class_names: tuple[str, ...]) -> bool:
        """Tells whether it can be applied to probabilities of these classes."""
        if self.classes:
            return self.classes == class_names
        return self.recalibrator.classes in (None, len(class_names))

    def of(self, chain: Chain) -> ClassRecalibrator:
        """Returns the recalibrator, the same for all slices."""
        return self.recalibrator

    def applied_to(self, chain: Chain, names: tuple[str, ...]) -> ClassRecalibrator:
        """Finds what is applied to these classes: the identity if it does not fit."""
        return self.of(chain) if self.fits(names) else ClassIdentity()

    def apply(self, log_probabilities: FloatArray) -> FloatArray:
        """Recalibrated probabilities of each opinion, (n, M, C); see ClassRecalibrator."""
        return self.recalibrator.apply(log_probabilities)

    @property
    def changes_probabilities(self) -> bool:
        """Tells whether it is more than the identity."""
        return self.method != ClassIdentity.method


CLASS_IDENTITY = ClassSelection((), ClassIdentity())

AnySelection = Selection | ClassSelection
