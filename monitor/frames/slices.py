"""Tables of slices, which find the slice of a detection or of a stream's class probabilities.

A table grows as slices are first seen, up to a limit; later ones fall into an overflow slice of
their space, or of their list of classes: statistics of different spaces or lists never meet.
Statistics themselves never live here.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import chain, count, pairwise
from typing import Annotated

import numpy as np
from annotated_types import Len

from monitor.frames.marks import Positive, Printable
from monitor.frames.space import BoolArray, FloatArray, IntArray, Space
from monitor.frames.words import SliceBy

OVERFLOW = "overflow"
TOTAL = "total"
# The name under which trials of class recalibrators are known, which serve all streams.
CLASS_PROBABILITIES = "class probabilities"
# The slice of a stream without position, where range alone tells slices apart.
ALL = "all"


# The properties that tell the slices of each level apart, from the finest level to the widest.
# Class and range say more of a detector's errors than the sensor does.
LEVELS = (
    (SliceBy.STREAM, SliceBy.CLASS, SliceBy.RANGE),
    (SliceBy.CLASS, SliceBy.RANGE),
    (SliceBy.STREAM, SliceBy.CLASS),
    (SliceBy.CLASS,),
    (SliceBy.STREAM, SliceBy.RANGE),
    (SliceBy.RANGE,),
    (SliceBy.STREAM,),
)


# Marks the names of slices whose detections come without a covariance, and is the name of the
# widest of them. No class may be called so.
NO_COVARIANCE = "no covariance"

# How `label` tells names apart that are taken.
_TOLD_APART = re.compile(r" \([\w.,-]+(; \d+)?\)$")


def slice_name(stream: str, class_name: str, bucket: str) -> str:
    """Joins the name of a slice; a part that does not tell it apart is empty."""
    return "/".join(part for part in (stream, class_name, bucket) if part)


def marked(name: str) -> str:
    """Names the slice of what comes without a covariance, beside the one of this name.

    A name that is marked stays as it is.
    """
    if is_bare(name):
        return name
    return f"{name}, {NO_COVARIANCE}" if name and name != ALL else NO_COVARIANCE


def unmarked(name: str) -> str:
    """Names the slice of what comes with a covariance, beside the one of this name."""
    return ALL if name == NO_COVARIANCE else name.removesuffix(f", {NO_COVARIANCE}")


def is_bare(name: str) -> bool:
    """Tells whether the detections of a slice come without a covariance, by its name or label."""
    plain = _TOLD_APART.sub("", name)
    return plain == NO_COVARIANCE or plain.endswith(f", {NO_COVARIANCE}")


def class_member(label: str) -> str:
    """Names the slice of drift of class probabilities by the label of their statistics' slice."""
    if label == TOTAL or label.startswith(f"{TOTAL} ("):
        return CLASS_PROBABILITIES + label.removeprefix(TOTAL)
    return f"{label}, {CLASS_PROBABILITIES}"


def is_of_classes(name: str) -> bool:
    """Tells whether a slice of drift is of class probabilities, by its name."""
    plain = _TOLD_APART.sub("", name)
    return plain == CLASS_PROBABILITIES or plain.endswith(f", {CLASS_PROBABILITIES}")


def is_bare_chain(chain: tuple[str, ...]) -> bool:
    """Tells whether the detections of a slice come without a covariance, by its chain."""
    return chain[-1:] == (NO_COVARIANCE,)


def is_total(name: str) -> bool:
    """Tells whether a slice is the sum of all slices of its space."""
    return name in (TOTAL, marked(TOTAL)) or name.startswith((f"{TOTAL} (", f"{marked(TOTAL)} ("))


# Names of the slice of a detection and of the wider ones it lies in, finest first.
Chain = tuple[str, ...]


def chain_of(stream: str, class_name: str, bucket: str, *, assumed: bool = False) -> Chain:
    """Names a slice and the wider ones that it lies in, in the order of LEVELS.

    For front, Car and <20: front/Car/<20, Car/<20, front/Car, Car, front/<20, <20, front.
    Names are made from the parts, since a part may hold a slash. A stream and a class of the
    same name share the recalibrator that is fitted under it.

    stream, class_name, bucket  empty where they do not tell slices apart
    assumed  of detections without a covariance: for Car these are "Car, no covariance" and, last,
             "no covariance". Nothing that is fitted on other detections serves them
    """
    parts = {SliceBy.STREAM: stream, SliceBy.CLASS: class_name, SliceBy.RANGE: bucket}
    names = tuple(
        slice_name(*(parts[by] if by in level else "" for by in parts))
        for level in LEVELS
        if all(parts[by] for by in level)
    )
    return (*map(marked, names), NO_COVARIANCE) if assumed else names


@dataclass(frozen=True, slots=True)
class RangeBuckets:
    """Buckets of the distance from the sensor, the norm of the position.

    edges       ascending inner edges, in the unit of the stream; bucket 0 lies below the first
    dimensions  names that make up the position; a space may have some of them
    """

    edges: Annotated[tuple[Positive, ...], Len(1)]
    dimensions: tuple[Printable, ...]

    def __post_init__(self) -> None:
        if not all(low < high for low, high in pairwise(self.edges)):
            raise ValueError(f"'edges' are {list(self.edges)}: they must rise strictly")

    def labels(self, space: Space) -> tuple[str, ...]:
        """Labels all buckets; a single empty label if the space has no position."""
        if not self.measures(space):
            return ("",)
        ends = [f"{edge:.15g}" for edge in self.edges]
        inner = [f"{low}-{high}" for low, high in pairwise(ends)]
        return (f"<{ends[0]}", *inner, f">={ends[-1]}")

    def of(self, space: Space, mean: FloatArray) -> IntArray:
        """Finds the bucket of each mean (n, K), (n,)."""
        columns = self._columns(space)
        if not columns:
            return np.zeros(mean.shape[0], np.int64)
        distance = np.sqrt(np.square(mean[:, columns]).sum(axis=1))
        bucket: IntArray = np.searchsorted(np.array(self.edges), distance, side="right")
        return bucket

    def measures(self, space: Space) -> bool:
        """Tells whether the space has a position."""
        return bool(self._columns(space))

    def _columns(self, space: Space) -> list[int]:
        return [i for i, name in enumerate(space.names) if name in self.dimensions]


@dataclass(frozen=True, slots=True)
class Slice:
    """One slice of the Gaussian statistics.

    name   unique in the table
    space  the space of its detections
    key    unique among the slices of its space
    """

    name: str
    space: Space
    overflow: bool = False
    key: str = ""


def label(name: str, space: Space, taken: Collection[str]) -> str:
    """Names a slice so that no two have one name.

    It is marked where covariances are assumed; the dimensions follow if that is taken, and a
    number if that is taken too.
    A camera and a lidar see the same class: sums of px² and m² must not meet.
    """
    name = marked(name) if space.assumed else name
    dimensions = ",".join(space.names)
    numbered = (f"{name} ({dimensions}; {number})" for number in count(2))
    candidates = chain((name, f"{name} ({dimensions})"), numbered)
    return next(candidate for candidate in candidates if candidate not in taken)


@dataclass(slots=True)
class SliceTable:
    """All slices seen so far, in order of their first appearance.

    by       properties that tell slices apart
    limit    slices before overflow begins, the overflow slices not counted
    ranges   the buckets, if range tells slices apart
    chains   chain_of each slice, by index; empty for an overflow slice, and for one of which no
             detection has been seen here
    """

    by: frozenset[SliceBy]
    limit: int
    ranges: RangeBuckets | None = None
    slices: list[Slice] = field(default_factory=list)
    chains: list[tuple[str, ...]] = field(default_factory=list)
    _index: dict[tuple[Space, bool, str], int] = field(default_factory=dict)
    _whole: SliceTable | None = field(default=None, repr=False)

    @property
    def whole(self) -> SliceTable:
        """Returns the table over all ranges, for tracks, which move from bucket to bucket.

        This table itself, unless range tells slices apart.
        """
        if SliceBy.RANGE not in self.by:
            return self
        if self._whole is None:
            self._whole = SliceTable(self.by - {SliceBy.RANGE}, self.limit)
        return self._whole

    @property
    def overflowing(self) -> list[int]:
        """Lists the indices of the overflow slices."""
        return [i for i, entry in enumerate(self.slices) if entry.overflow]

    @property
    def names(self) -> tuple[str, ...]:
        """Lists the names, by index."""
        return tuple(entry.name for entry in self.slices)

    def index(self, space: Space, stream: str, class_name: str, bucket: str = "") -> int:
        """Finds or makes the slice of a class of a stream; without room, the overflow slice."""
        parts = (
            stream if SliceBy.STREAM in self.by else "",
            class_name if SliceBy.CLASS in self.by else "",
            bucket,
        )
        key = slice_name(*parts) or ALL
        found = self.place(space, marked(key) if space.assumed else key)
        if not self.chains[found]:
            if not self.slices[found].overflow:
                self.chains[found] = chain_of(*parts, assumed=space.assumed)
            elif space.assumed:
                self.chains[found] = (NO_COVARIANCE,)
        return found

    def place(self, space: Space, key: str, *, overflow: bool = False) -> int:
        """Finds or makes the slice of a space with this key; without room, the overflow slice."""
        key = OVERFLOW if overflow else key
        known = self._index.get((space, overflow, key))
        if known is not None:
            return known
        if not overflow and sum(not entry.overflow for entry in self.slices) >= self.limit:
            return self.place(space, OVERFLOW, overflow=True)
        self._index[space, overflow, key] = index = len(self.slices)
        name = label(key, space, {TOTAL, CLASS_PROBABILITIES, *self.names})
        self.slices.append(Slice(name, space, overflow, key))
        self.chains.append(())
        return index


@dataclass(slots=True)
class StreamSlices:
    """Slices of one stream by class and range bucket, looked up when first seen.

    space     as sent; detections without a covariance lie in slices of space.with_assumed
    of_class  (C,) index of each class in table.whole; −1: not seen yet
    """

    table: SliceTable
    space: Space
    stream: str
    classes: tuple[str, ...]
    _buckets: tuple[str, ...] = field(init=False)
    _of: IntArray = field(init=False)
    of_class: IntArray = field(init=False)

    def __post_init__(self) -> None:
        ranges = self.table.ranges
        self._buckets = ("",) if ranges is None else ranges.labels(self.space)
        self._of = np.full((2, len(self.classes), len(self._buckets)), -1, np.int64)
        self.of_class = np.full(len(self.classes), -1, np.int64)

    def of(
        self, class_index: IntArray, mean: FloatArray, assumed: BoolArray | None = None
    ) -> IntArray:
        """Finds the slice index of each detection, (n,).

        mean     (n, K)
        assumed  (n,) whether it came without a covariance; None: all came with one
        """
        if class_index.size == 0 or self.table.ranges is None:
            bucket = np.zeros(class_index.size, np.int64)
        else:
            bucket = self.table.ranges.of(self.space, mean)
        kind: IntArray | int = 0 if assumed is None else assumed.astype(np.int64)
        slices = self._of[kind, class_index, bucket]
        if slices.size and slices.min() < 0:
            kinds = np.broadcast_to(kind, bucket.shape)
            places = np.stack([kinds, class_index, bucket])[:, slices < 0]
            for a, c, b in np.unique(places, axis=1).T.tolist():
                name, space = self.classes[c], self.space.with_assumed if a else self.space
                self._of[a, c, b] = self.table.index(space, self.stream, name, self._buckets[b])
                # Where both kinds come, tracks lie in the slice of what was sent.
                if not a or self.of_class[c] < 0:
                    self.of_class[c] = self.table.whole.index(space, self.stream, name)
            slices = self._of[kind, class_index, bucket]
        found: IntArray = slices
        return found


@dataclass(frozen=True, slots=True)
class ClassSlice:
    """One slice of the class statistics.

    label        unique in the table
    name         unique among the slices of its classes: TOTAL or the name of a stream
    class_names  the C classes
    overflow     whether it holds streams without a slice of their own
    """

    label: str
    name: str
    class_names: tuple[str, ...]
    overflow: bool = False


@dataclass(slots=True)
class ClassSliceTable:
    """All class slices seen so far, in order of their first appearance.

    by_stream  whether streams have slices of their own
    limit      slices before overflow begins, the overflow slices not counted
    """

    by_stream: bool
    limit: int
    slices: list[ClassSlice] = field(default_factory=list)
    _index: dict[tuple[tuple[str, ...], bool, str], int] = field(default_factory=dict)

    def index(self, stream: str, class_names: tuple[str, ...]) -> int | None:
        """Finds or makes the slice of a stream; without room, the overflow slice of its classes.

        returns  None if the classes have no slice at all: lists of classes can be sent
                 without end, and an overflow slice for each would be no limit
        """
        name = stream if self.by_stream else TOTAL
        has_place = (class_names, False, name) in self._index or self._has_room
        if has_place or any(entry.class_names == class_names for entry in self.slices):
            return self.place(class_names, name)
        return None

    def place(self, class_names: tuple[str, ...], name: str, *, overflow: bool = False) -> int:
        """Finds or makes the slice of a name; without room, the overflow slice of its classes."""
        name = OVERFLOW if overflow else name
        key = (class_names, overflow, name)
        known = self._index.get(key)
        if known is not None:
            return known
        if not overflow and not self._has_room:
            return self.place(class_names, OVERFLOW, overflow=True)
        taken = {entry.label for entry in self.slices}
        candidates = chain((name,), (f"{name} ({number})" for number in count(2)))
        label = next(candidate for candidate in candidates if candidate not in taken)
        self._index[key] = index = len(self.slices)
        self.slices.append(ClassSlice(label, name, class_names, overflow))
        return index

    @property
    def _has_room(self) -> bool:
        return sum(not entry.overflow for entry in self.slices) < self.limit
