"""The contract of every recalibrator: a frozen value that maps estimates to estimates, and whose
document is made of its fields; a hash of the document is its version.

A class that is `Documented` says in its annotations what may stand in each field, and in
`__post_init__` what its fields must be to each other: a recalibrator that exists is valid.
Documents are read elsewhere (`monitor.store.documents`).

Beside the contract stand what a fit rests on, the distributions that a recalibrator gives, the form
of a field that holds one, and the check that its results can be sent to a tracker. The methods
themselves have files of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal, Protocol

import numpy as np
from annotated_types import Interval, Len

from monitor.frames.cholesky import factorise, positive_definite
from monitor.frames.detections import Estimates, Limits
from monitor.frames.marks import CountFrom1, Nanoseconds, Positive, Printable, Schema, between
from monitor.frames.space import BoolArray, FloatArray
from monitor.statistics.measures import Marginals, NormalMarginals

# JSON objects: what json.loads gives.
Document = dict[str, Any]

# Lists of numbers; of a matrix they are equally long, of curves one a dimension.
Matrix = tuple[tuple[float, ...], ...]
Curves = tuple[tuple[float, ...], ...]

# Factors on σ beyond these are of a wrong unit, and would overflow when squared twice.
LEAST_FACTOR, LARGEST_FACTOR = 1e-12, 1e12
FactorOnDeviation = Annotated[float, Interval(ge=LEAST_FACTOR, le=LARGEST_FACTOR)]
Factors = Annotated[tuple[FactorOnDeviation, ...], Len(1)]

# Of squares of factors at most.
_Moment = Annotated[float, Interval(ge=-(LARGEST_FACTOR**2), le=LARGEST_FACTOR**2)]
Moments = tuple[tuple[_Moment, ...], ...]

# Least eigenvalue of a matrix whose diagonal is made 1.
_NEAREST_SINGULAR = 1e-14


class InvalidRecalibrator(ValueError):
    """A document or values that do not describe a usable recalibrator."""


class UnfitData(ValueError):
    """The data do not determine the recalibrator that was asked for."""


class Documented:
    """A frozen dataclass whose document holds its fields, with checks of these.

    The checks raise InvalidRecalibrator; `other` is the field that says how long, for the message.
    """

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Any]]

    def parameters(self) -> Document:
        """Returns all fields but those that are None, as JSON values; exact."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return {name: _as_json(value) for name, value in values.items() if value is not None}

    @staticmethod
    def check_lengths(
        name: str, rows: Sequence[Sequence[Any]], expected: Sequence[int], other: str
    ) -> None:
        """Checks that there are as many rows as expected, each so long."""
        lengths = [len(row) for row in rows]
        if lengths != list(expected):
            raise InvalidRecalibrator(
                f"'{name}' has {_sizes(lengths)}: with '{other}' it must have {_sizes(expected)}"
            )

    def check_entries(self, names: Sequence[str], expected: int, other: str) -> None:
        """Checks that each of these fields has as many entries as expected."""
        for name in names:
            found = len(getattr(self, name))
            if found != expected:
                raise InvalidRecalibrator(
                    f"'{name}' has {found} entries: with '{other}' it must have {expected}"
                )

    def check_ascending(self, name: str) -> None:
        """Checks that the numbers of every dimension rise strictly."""
        for curve in getattr(self, name):
            for before, after in pairwise(curve):
                if not before < after:
                    raise InvalidRecalibrator(
                        f"'{name}' holds {after!r} after {before!r}: entries must rise strictly"
                    )

    def check_positive_definite(self, name: str, k: int, other: str) -> None:
        """Checks that a field is a symmetric positive definite k × k matrix.

        So much so that rounding leaves it definite, however different the units of its rows are.
        """
        matrix = getattr(self, name)
        self.check_lengths(name, matrix, [k] * k, other)
        array = np.array(matrix)
        size = np.sqrt(np.maximum(np.diagonal(array), 0.0))
        if not np.allclose(array, array.T, rtol=1e-9, atol=1e-12):
            raise InvalidRecalibrator(f"'{name}' is not symmetric: {array.tolist()}")
        if (
            not size.min() >= LEAST_FACTOR
            or not np.linalg.eigvalsh(array / (size[:, None] * size))[0] > _NEAREST_SINGULAR
        ):
            raise InvalidRecalibrator(f"'{name}' is not positive definite: {array.tolist()}")

    def complete_order(self, order: tuple[int, ...], k: int) -> None:
        """Checks that the field `order` holds each of k dimensions once; ascending where empty."""
        if order and sorted(order) != list(range(k)):
            raise InvalidRecalibrator(
                f"'order' is {list(order)}: it must hold 0 to {k - 1}, each once"
            )
        object.__setattr__(self, "order", order or tuple(range(k)))


def _sizes(lengths: Sequence[int]) -> str:
    return f"{len(lengths)} rows of {' or '.join(map(str, sorted(set(lengths)))) or 'no'} entries"


def as_matrix(array: FloatArray) -> Matrix:
    """Returns a hashable copy."""
    return tuple(tuple(row) for row in array.tolist())


def _as_json(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_as_json(entry) for entry in value]
    if isinstance(value, Documented):
        return value.parameters()
    return str(value) if isinstance(value, StrEnum) else value


class Output(StrEnum):
    """Shape of a method's distributions: what the Gaussian that is forwarded stands for.

    The order of the members says how little it tells of the detector's own.
    """

    GAUSSIAN = "gaussian"  # a Gaussian, and that is forwarded
    ESTIMATED = (
        "estimated"  # a Gaussian whose covariance is estimated from errors of like detections
    )
    MOMENTS = "moments"  # another shape; forwarded are its mean and its variance about that mean
    SURROGATE = "surrogate"  # a shape without a variance; forwarded: a Gaussian of equal quantile


def weakest(outputs: Collection[Output]) -> Output:
    """Returns the least that is true of all of them; Gaussian if there are none."""
    return max(outputs, key=list(Output).index, default=Output.GAUSSIAN)


class Recalibrator(Documented):
    """One fitted method. Immutable, so that it may be swapped between two frames.

    method   the name on the command line
    by_rows  whether no bit of an outcome depends on the rows that it is made with: operations on
             each entry alone, no product of matrices
    output   shape of its own distributions; what apply returns is Gaussian with every method
    """

    __slots__ = ()
    method: ClassVar[str]
    by_rows: ClassVar[bool] = False

    @property
    def output(self) -> Output:
        """Shape of its distributions."""
        return Output.GAUSSIAN

    @property
    def k(self) -> int | None:
        """The number of dimensions it was fitted on; None if any will do."""
        return None

    @property
    def keeps_definite(self) -> bool:
        """Tells whether positive definite covariances stay so by the form of the method alone."""
        return True

    def apply(self, estimates: Estimates) -> Estimates:
        """Returns the recalibrated estimates; never writes into its argument."""
        raise NotImplementedError

    def marginals(self, estimates: Estimates) -> Marginals:
        """Returns the distribution of each detection and dimension, of which apply forwards a
        Gaussian."""
        made = self.apply(estimates)
        return NormalMarginals(made.mean, made.deviation)


class PerDimension(Recalibrator):
    """A recalibrator whose first field has an entry for each dimension."""

    __slots__ = ()

    @property
    def k(self) -> int:
        """Number of dimensions."""
        return len(getattr(self, fields(self)[0].name))


@dataclass(frozen=True, slots=True)
class Identity(Recalibrator):
    """Changes nothing: the detector's own estimates go on to the tracker."""

    method: ClassVar[str] = "identity"
    by_rows: ClassVar[bool] = True

    def apply(self, estimates: Estimates) -> Estimates:
        """Returns its argument."""
        return estimates


class Clock(StrEnum):
    """The column that times are of."""

    SECONDS = "t"  # s, of whatever zero the recording has
    STAMP = "stamp_ns"  # ns, as the detector stamps its frames


# The first and the last event time that were fitted on, and their clock; or three times None.
Period = tuple[float, float, Clock] | tuple[None, None, None]
NO_PERIOD: Period = (None, None, None)


@dataclass(frozen=True, slots=True)
class Basis(Documented):
    """Evidence that one fitted value rests on.

    rows            detections with truth, at least 1
    tracks          objects they are of; a detection without a track is one of its own
    effective_rows  how many independent detections they are worth, errors of one object
                    being alike
    first, last     event times that were fitted on, in the unit of the clock
    clock           all three are None where the recording has no times
    borrows_from    the slice, the fallback or the earlier version whose fit this one leans
                    on because its own rows are few; None where they are enough
    """

    rows: CountFrom1
    tracks: CountFrom1
    effective_rows: Positive
    first: Nanoseconds | float | None = None
    last: Nanoseconds | float | None = None
    clock: Clock | None = None
    borrows_from: Printable | None = None

    def __post_init__(self) -> None:
        if not self.effective_rows <= self.rows:
            raise InvalidRecalibrator(
                f"'effective_rows' is {self.effective_rows}: it must be at most 'rows', {self.rows}"
            )
        first, last, clock = self.first, self.last, self.clock
        known = first is not None and last is not None and clock is not None and first <= last
        if not (known or {first, last, clock} == {None}):
            raise InvalidRecalibrator(
                f"'first' and 'last' are {self.first} and {self.last}, 'clock' is {self.clock}: "
                "they must be the two ends of a period and its clock, or all be left out"
            )

    def __str__(self) -> str:
        text = f"{self.rows} rows of {self.tracks} tracks, worth {self.effective_rows:.0f}"
        if self.clock is not None:
            unit = " s" if self.clock is Clock.SECONDS else ""
            text += f", {self.clock} {self.first} to {self.last}{unit}"
        return text + ("" if self.borrows_from is None else f", borrows from {self.borrows_from}")


class Method(Protocol):
    """A method, of estimates or of class probabilities, as documents name it."""

    method: ClassVar[str]

    def parameters(self) -> Document:
        """Returns its fields as JSON values."""
        ...


def described(recalibrator: Method, basis: Basis | None = None) -> Document:
    """Returns the part of a document that holds a recalibrator, and what it rests on if known."""
    content = {"method": recalibrator.method, "parameters": recalibrator.parameters()}
    return content if basis is None else {**content, "basis": basis.parameters()}


@dataclass(frozen=True, eq=False, slots=True)
class RecalibratorForm:
    """Marks a field that holds a recalibrator: {"method": …, "parameters": {…}}.

    methods     that may stand there; they differ in their parameters
    with_basis  whether the field holds a pair, of a recalibrator and what it rests on if known
    """

    methods: Mapping[str, type]
    with_basis: bool = False

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Schema:
        def entry(kind: Any, *, required: bool = False) -> Schema:
            schema = handler.generate_schema(kind)
            return {"type": "typed-dict-field", "schema": schema, "required": required}

        choices = {
            method: {
                "type": "typed-dict",
                "fields": {
                    "method": entry(Literal[method], required=True),
                    "parameters": entry(kind, required=bool(fields(kind))),
                    **({"basis": entry(Basis | None)} if self.with_basis else {}),
                },
                "extra_behavior": "forbid",
            }
            for method, kind in self.methods.items()
        }
        union = {"type": "tagged-union", "discriminator": "method", "choices": choices}
        writer = (lambda pair: described(*pair)) if self.with_basis else described
        return between(self._read, writer, union)

    def _read(self, content: Mapping[str, Any]) -> Any:
        # One without fields needs no parameters.
        found = (
            content["parameters"] if "parameters" in content else self.methods[content["method"]]()
        )
        return (found, content.get("basis")) if self.with_basis else found


def sound_rows(sent: Estimates, made: Estimates, limits: Limits, *, definite: bool) -> BoolArray:
    """Finds outcomes that can be sent, (n,): finite, positive definite, of plausible deviations.

    None if they are not as many as were sent.

    limits    of the deviations; the mean may be anywhere
    definite  the recalibrator cannot but keep covariances positive definite, so that
              they need not be factorised again
    """
    n = sent.mean.shape[0]
    if made is sent:
        return np.ones(n, bool)
    if made.shapes != sent.shapes:
        return np.zeros(n, bool)
    if definite and made.plausible(limits.variances):
        return np.ones(n, bool)
    sound: BoolArray = ~np.logical_or.reduce([rows for rows, _ in _faults(made, limits)])
    return sound


def _faults(made: Estimates, limits: Limits) -> tuple[tuple[BoolArray, str], ...]:
    """Finds rows with each fault, (n,), and names it."""
    variance = made.variance
    least, most = limits.smallest_deviation, limits.largest_deviation
    below, any_in = (variance > 0) & (variance < least**2), np.logical_or.reduce
    return (
        (any_in(~np.isfinite(made.mean), axis=1), "means that are not finite"),
        # The factor is of the lower triangle: it does not see what is above.
        (any_in(~np.isfinite(made.covariance), axis=(1, 2)), "covariances that are not finite"),
        (
            any_in(variance > most**2, axis=1),
            f"deviations beyond [limits] largest_deviation = {most:g}",
        ),
        (any_in(below, axis=1), f"deviations below [limits] smallest_deviation = {least:g}"),
        (
            ~positive_definite(factorise(made.covariance)),
            "covariances that are not positive definite",
        ),
    )


def sent_where_unsound(sent: Estimates, made: Estimates, sound: BoolArray) -> Estimates:
    """Returns what was made, with what was sent in the rows that are not sound, (n,)."""
    if sound.all():
        return made
    if not sound.any():
        return sent
    rows = np.arange(sound.size)
    return Estimates.joined([made, sent]).take(np.where(sound, rows, rows + sound.size))


def fault_of(sent: Estimates, made: Estimates, limits: Limits) -> str:
    """Describes the first fault of what was made, to be read after a method's name; '' without one.

    No method is taken at its word: all covariances are factorised.
    """
    sound = sound_rows(sent, made, limits, definite=False)
    if sound.all():
        return ""
    if made.shapes != sent.shapes:
        return f"makes arrays of the shapes {made.shapes}, and {sent.shapes} were sent"
    rows, what = next(fault for fault in _faults(made, limits) if fault[0].any())
    return f"makes {what}, of {np.count_nonzero(rows)} of {sound.size} detections"
