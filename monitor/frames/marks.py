"""Marks on the fields of dataclasses that say how their values are written in JSON documents.

Ranges of numbers are marks of `annotated_types`; the marks here are for what JSON cannot hold.
A codec (`monitor.store.documents`) reads them. A mark offers the schema of its field as a plain
mapping, in the form of pydantic's core schemas, so that nothing here needs pydantic.
"""

from __future__ import annotations

import base64
import binascii
import math
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Gt, Interval

Schema = dict[str, Any]
LARGEST_COUNT = 2**63 - 1

PLACED = np.dtype([("place", np.int64), ("count", np.int64)])

Count = Annotated[int, Interval(ge=0, le=LARGEST_COUNT)]
CountFrom1 = Annotated[int, Interval(ge=1, le=LARGEST_COUNT)]
Nanoseconds = Annotated[int, Interval(ge=-(2**63), le=LARGEST_COUNT)]
NotNegative = Annotated[float, Ge(0.0)]
Positive = Annotated[float, Gt(0.0)]
Share = Annotated[float, Interval(ge=0.0, le=1.0)]


def between(reader: Any, writer: Any, schema: Schema) -> Schema:
    """Makes a schema whose values pass a reader after `schema`, and a writer before they leave."""
    return {
        "type": "function-after",
        "function": {"type": "no-info", "function": reader},
        "schema": schema,
        "serialization": {"type": "function-plain", "function": writer},
    }


@dataclass(frozen=True, slots=True)
class NanAsNull:
    """A number that may be unknown: NaN in memory; null in the document, as infinities are."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Schema:
        return between(_nan_of_null, _null_of_nan, {"type": "nullable", "schema": handler(source)})


def _nan_of_null(value: float | None) -> float:
    return math.nan if value is None else value


def _null_of_nan(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


MaybeNan = Annotated[float, NanAsNull()]


@dataclass(frozen=True, slots=True)
class PrintableText:
    """A text of printable characters: a name that may stand in a log and a label."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Schema:
        function = {"type": "no-info", "function": _printable}
        return {"type": "function-after", "function": function, "schema": handler(source)}


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError(f"{text[:100]!r} holds what cannot be printed")
    return text


Printable = Annotated[str, PrintableText()]


@dataclass(frozen=True, slots=True)
class ArrayForm:
    """An array: base64 of its little-endian bytes, row by row; a list of numbers is read too.

    dtype   of the elements; a structured one for tables
    shape   its lengths; None: any, in the first place alone
    low     the least value, for numbers
    high    the largest one
    fields  of a table: names, each with the least value and the largest one
    listed  written as a list of numbers, for people
    """

    dtype: npt.DTypeLike
    shape: tuple[int | None, ...]
    low: float = -math.inf
    high: float = math.inf
    fields: tuple[tuple[str, float, float], ...] = ()
    listed: bool = False

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Schema:
        return between(self.read, self.write, {"type": "any"})

    def none(self) -> npt.NDArray[Any]:
        """Makes an array of zeros; of length 0 where any is possible."""
        return np.zeros([one or 0 for one in self.shape], self.dtype)

    def write(self, array: npt.NDArray[Any]) -> str | list[Any]:
        """Returns the text of an array, or the list of its numbers."""
        if self.listed:
            return array.ravel().tolist()
        portable = np.ascontiguousarray(array, self._portable)
        return base64.b64encode(portable.tobytes()).decode("ascii")

    def read(self, value: object) -> npt.NDArray[Any]:
        """Inverts `write`. Raises ValueError for other texts and for values out of range."""
        if isinstance(value, str):
            try:
                data = base64.b64decode(value, validate=True)
            except binascii.Error as error:
                raise ValueError(f"is no base64 text ({error})") from None
            if len(data) % self._portable.itemsize:
                raise ValueError(f"has {len(data)} bytes: no multiple of {self._portable.itemsize}")
            array = np.frombuffer(data, self._portable).astype(self.dtype)
        elif isinstance(value, list) and self._portable.names is None:
            array = self._of_list(value)
        else:
            raise ValueError("must be the base64 text of an array")
        return self._checked(array)

    @property
    def _portable(self) -> np.dtype[Any]:
        return np.dtype(self.dtype).newbyteorder("<")

    def _of_list(self, values: list[object]) -> npt.NDArray[Any]:
        whole = np.issubdtype(self.dtype, np.integer)
        kinds = (int,) if whole else (int, float)
        if not all(isinstance(one, kinds) and not isinstance(one, bool) for one in values):
            raise ValueError(f"must hold {'whole ' if whole else ''}numbers")
        try:
            return np.array(values, self.dtype)
        except OverflowError as error:
            raise ValueError(f"holds a number that is too large: {error}") from None

    def _checked(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        first, *rest = self.shape
        size = math.prod(one for one in rest if one is not None)
        rows = array.size // size if first is None else first
        if array.size != rows * size:
            expected = f"{'n' if first is None else first} × {size}" if rest else f"{first}"
            raise ValueError(f"has {array.size} elements, expected {expected}")
        if array.dtype.names is None:
            _check_range("", array, self.low, self.high)
        for name, low, high in self.fields:
            _check_range(f"'{name}' ", array[name], low, high)
        return array.reshape(rows, *rest)


def _check_range(name: str, values: npt.NDArray[Any], low: float, high: float) -> None:
    if not values.size:
        return
    least, largest = values.min(), values.max()
    # NaN is outside of every range.
    if not (low <= least and largest <= high) or np.isinf((least, largest)).any():
        raise ValueError(f"{name}holds {least} to {largest}: {low:g} to {high:g} is possible")


@dataclass(frozen=True, slots=True)
class SparseCounts:
    """Counts (size,), most of them 0: places that have any, and their counts from 1 on."""

    size: int

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Schema:
        return between(self.read, self.write, {"type": "any"})

    def write(self, counts: npt.NDArray[np.int64]) -> str | list[Any]:
        """Returns the text of a table."""
        place = np.flatnonzero(counts)
        return self._form.write(np.rec.fromarrays((place, counts[place]), PLACED))

    def read(self, value: object) -> npt.NDArray[np.int64]:
        """Inverts `write`. Raises ValueError for other texts and for places beyond the last."""
        counts = np.zeros(self.size, np.int64)
        table = self._form.read(value)
        counts[table["place"]] = table["count"]
        return counts

    @property
    def _form(self) -> ArrayForm:
        limits = ("place", 0, self.size - 1), ("count", 1, LARGEST_COUNT)
        return ArrayForm(PLACED, (None,), fields=limits)
