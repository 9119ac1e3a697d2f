"""The space that Gaussians are expressed in: K dimensions with names, units and bounds.

Two batches can share statistics only if their spaces are equal.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cache, cached_property, lru_cache
from typing import Annotated, Any, ClassVar, Final, Self, TypeVar

import numpy as np
import numpy.typing as npt
from annotated_types import Len

from monitor.frames.marks import Printable

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
Number = TypeVar("Number", bound=np.generic)

# The most that statistics may be asked to hold. A state is loaded whole before it is merged, and
# a configuration may have a digit too many: both need bounds, whoever wrote them.

MOST_WINDOWS: Final = 8
"""Windows at once: a slice is kept once more in the panes of each."""

MOST_SLICES: Final = 512
"""Slices beside `overflow`: each has series of every metric, and up to some MB of statistics."""

MOST_LEVELS: Final = 64
"""Quantile levels τ: each is a column of every micro-bin."""

MOST_CLASSES: Final = 4096
"""Classes of one stream: every row of probabilities adds to a micro-bin of each."""

MOST_DIMENSIONS: Final = 32
"""Dimensions of one Gaussian: covariances and sums of products grow with their square."""


def read_only(array: npt.NDArray[Number]) -> npt.NDArray[Number]:
    """Marks an array that many share, so that none of them can write into it."""
    array.setflags(write=False)
    return array


def alone(array: npt.NDArray[Number]) -> npt.NDArray[Number]:
    """Returns an array that keeps no larger one in memory: a copy if it is a part of one."""
    base = array.base
    whole = base is None or (isinstance(base, np.ndarray) and base.nbytes <= array.nbytes)
    return array if whole else array.copy()


def laid_out(array: npt.NDArray[Number]) -> npt.NDArray[Number]:
    """Returns an array as kernels take it, row by row and aligned: itself, or a copy."""
    flags = array.flags
    return array if flags.c_contiguous and flags.aligned else np.array(array, order="C")


class Columns:
    """Arrays of equal length in the fields of a dataclass: a row of all is one thing.

    `take` reaches into fields that hold columns; what is neither stays, for it is said of all rows.
    """

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Any]]

    def take(self, rows: IntArray | BoolArray | slice) -> Self:
        """Picks rows; a slice gives views."""

        def picked(value: Any) -> Any:
            if isinstance(value, np.ndarray):
                return value[rows]
            return value.take(rows) if isinstance(value, Columns) else value

        return type(self)(*(picked(getattr(self, name)) for name in self.__dataclass_fields__))

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Joins the rows of at least one part, in order.

        A field that is None in any part is None in the outcome.
        """

        def together(column: list[Any]) -> Any:
            if any(one is None for one in column):
                return None
            first = column[0]
            return first.joined(column) if isinstance(first, Columns) else np.concatenate(column)

        names = cls.__dataclass_fields__
        return cls(*(together([getattr(part, name) for part in parts]) for name in names))


@cache
def triangle(k: int) -> tuple[IntArray, IntArray]:
    """Lists rows and columns of the lower triangle of a k × k matrix, row by row."""
    rows, columns = np.tril_indices(k)
    return rows, columns


@cache
def square_from_triangle(k: int) -> IntArray:
    """Finds each entry of a symmetric k × k matrix, row by row, in its lower triangle; (k²,)."""
    position = np.zeros((k, k), np.int64)
    rows, columns = triangle(k)
    position[rows, columns] = np.arange(rows.size)
    position[columns, rows] = np.arange(rows.size)
    return position.ravel()


@cache
def triangle_in_square(k: int) -> IntArray:
    """Finds each entry of a lower triangle in the flat k × k matrix; (k (k + 1) / 2,)."""
    rows, columns = triangle(k)
    return rows * k + columns


@cache
def diagonal_in_triangle(k: int) -> IntArray:
    """Finds the diagonal of a k × k matrix in its lower triangle; (k,)."""
    step = np.arange(1, k + 1)
    return step * (step + 1) // 2 - 1


@cache
def above_diagonal(k: int) -> tuple[IntArray, IntArray]:
    """Lists rows and columns of what is above the diagonal of a k × k matrix."""
    rows, columns = np.triu_indices(k, 1)
    return rows, columns


def packed_covariances(covariance: FloatArray, form: int) -> FloatArray:
    """Packs symmetric (n, K, K) into (n, form): the diagonal, the lower triangle or all of it."""
    k = covariance.shape[1]
    if form == k:
        step = np.arange(k)
        return covariance[:, step, step]
    flat = covariance.reshape(-1, k * k)
    return flat if form == k * k else flat.take(triangle_in_square(k), axis=1)


def unpacked_covariances(packed: FloatArray, k: int) -> FloatArray:
    """Inverts `packed_covariances`, (n, K, K): the width says which form it is."""
    if packed.shape[1] == k:
        step, covariance = np.arange(k), np.zeros((packed.shape[0], k, k))
        covariance[:, step, step] = packed
        return covariance
    full = packed if packed.shape[1] == k * k else packed[:, square_from_triangle(k)]
    return full.reshape(-1, k, k)


@lru_cache(maxsize=256)
def no_truth(n: int, k: int) -> FloatArray:
    """Returns (n, k) of NaN, read-only and shared: most frames come without ground truth."""
    return read_only(np.full((n, k), np.nan))


class DimensionKind(IntEnum):
    """Ways to take the difference of two values; values as on the wire."""

    LENGTH = 1  # plain difference: metres, pixels, metres per second
    ANGLE = 2  # radians, wrapped into [-π, π)
    ANGLE_MODULO_PI = 3  # radians of a direction without a sign, wrapped into [-π/2, π/2)


@dataclass(frozen=True)
class Dimension:
    """One coordinate of mean, covariance and ground truth."""

    name: Printable
    unit: str = ""
    kind: DimensionKind = DimensionKind.LENGTH


@dataclass(frozen=True)
class Space:
    """The K dimensions of a stream, in the order of its arrays.

    angles_in_joint  whether angles take part in joint measures. False by
                     default: headings flip by π in a few per cent of real
                     matches, and a single flip outweighs thousands of boxes.
    assumed          whether the detector sends no covariance, so that those of its raw
                     estimates are assumed: they never meet covariances that were sent.
    """

    dimensions: Annotated[tuple[Dimension, ...], Len(1, MOST_DIMENSIONS)]
    angles_in_joint: bool = False
    assumed: bool = False

    @cached_property
    def k(self) -> int:
        """Counts the dimensions."""
        return len(self.dimensions)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Lists the names of the dimensions."""
        return tuple(dimension.name for dimension in self.dimensions)

    @cached_property
    def with_assumed(self) -> Space:
        """Returns the space of the same dimensions whose raw covariances are assumed."""
        return self if self.assumed else replace(self, assumed=True)

    @cached_property
    def with_sent(self) -> Space:
        """Returns the space of the same dimensions whose covariances are sent."""
        return replace(self, assumed=False) if self.assumed else self

    @cached_property
    def number(self) -> int:
        """Returns 64 bits that tell spaces apart, equal in every process, unlike hash()."""
        digest = hashlib.sha256(b"joint" if self.angles_in_joint else b"plain")
        if self.assumed:
            digest.update(b"assumed")
        for dimension in self.dimensions:
            for text in (dimension.name, dimension.unit, str(int(dimension.kind))):
                data = text.encode("utf-8", "surrogatepass")
                digest.update(len(data).to_bytes(8, "little") + data)
        return int.from_bytes(digest.digest()[:8], "little")

    @cached_property
    def joint(self) -> tuple[int, ...]:
        """Lists the positions of the dimensions of the joint block; all if all are angles."""
        plain = tuple(
            i
            for i, dimension in enumerate(self.dimensions)
            if self.angles_in_joint or dimension.kind is DimensionKind.LENGTH
        )
        return plain or tuple(range(self.k))

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Lists all positions, the joint block first: the order in which errors are whitened.

        The leading block of a Cholesky factor is the factor of the leading block, so that
        one factorisation in this order serves the joint measures and the rest.
        """
        return self.joint + tuple(i for i in range(self.k) if i not in self.joint)

    @cached_property
    def periods(self) -> tuple[tuple[int, float], ...]:
        """Lists the angles: index and period, in rad."""
        period = {DimensionKind.ANGLE: 2 * np.pi, DimensionKind.ANGLE_MODULO_PI: np.pi}
        return tuple(
            (i, period[dimension.kind])
            for i, dimension in enumerate(self.dimensions)
            if dimension.kind in period
        )

    def error(self, truth: FloatArray, mean: FloatArray) -> FloatArray:
        """Returns truth − mean, angles wrapped; all (N, K)."""
        difference: FloatArray = truth - mean
        self.wrap(difference)
        return difference

    def wrap(self, values: FloatArray) -> None:
        """Brings angles back into their period around 0, in place; (N, ≥K)."""
        for i, period in self.periods:
            half = period / 2
            values[:, i] = (values[:, i] + half) % period - half


def plain_space(names: tuple[str, ...], unit: str = "") -> Space:
    """Makes a space of lengths."""
    return Space(tuple(Dimension(name, unit) for name in names))
