"""A sample of labelled detections by slice, for fits that need rows: those of the smallest hashes.

Every detection has a hash of where it comes from, and a slice keeps the rows of its `most` smallest
ones. So whoever adds samples up, in any order and however often, keeps the same rows, and any
hashes below some limit are a fair draw of all detections. A label that is retracted leaves a row of
zeros in its place: without it, which rows are there would depend on who came first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from monitor.frames.frame import MatchedRows, Origin
from monitor.frames.slices import OVERFLOW
from monitor.frames.space import BoolArray, FloatArray, IntArray, Space, packed_covariances
from monitor.statistics.clusters import ALONE, ClusterArray, cluster_id

KeyArray = npt.NDArray[np.uint64]
_ALL = np.uint64(2**64 - 1)

# Of a slice, at most.
MOST_ROWS = 2**16


def width(k: int) -> int:
    """Numbers of a row of K dimensions: mean, lower triangle of the covariance, error."""
    return 2 * k + k * (k + 1) // 2


@dataclass(frozen=True, eq=False, slots=True)
class SampledRows:
    """The m ≤ most rows of the smallest hashes.

    key       (m,) hash of the detection, ascending strictly
    revision  (m,) how often it was counted or retracted: odd where its label is there
    values    (m, width) mean, lower triangle of the covariance, error, as sent; else 0
    track     (m,) hash of its track; 0 for none
    """

    most: int
    key: KeyArray
    revision: IntArray
    values: FloatArray
    track: ClusterArray

    @property
    def labelled(self) -> BoolArray:
        """(m,) rows whose label is there."""
        there: BoolArray = self.revision % 2 == 1
        return there

    @property
    def limit(self) -> np.uint64:
        """The largest hash up to which every detection is here."""
        return np.uint64(self.key[-1]) if self.key.size >= self.most else _ALL

    def take(self, rows: Any) -> SampledRows:
        """Picks rows, in their order."""
        picked = (column[rows] for column in (self.key, self.revision, self.values, self.track))
        return SampledRows(self.most, *picked)

    def merge(self, other: SampledRows) -> SampledRows:
        """Keeps the smallest hashes of both, each at its highest revision.

        With another `most`, the smaller one holds: beyond it one of both has not all rows.
        """
        pairs = ((self.key, other.key), (self.revision, other.revision))
        key, revision = map(np.concatenate, pairs)
        values = np.concatenate((self.values, other.values))
        track = np.concatenate((self.track, other.track))
        order = np.lexsort((revision, key))
        same = key[order][1:] == key[order][:-1]
        equal = np.flatnonzero(same & (revision[order][1:] == revision[order][:-1]))
        one, two = order[equal], order[equal + 1]
        if not (
            np.array_equal(values[one], values[two]) and np.array_equal(track[one], track[two])
        ):
            # Of no sidecar of ours; whichever is kept, all who add up must keep the same.
            order = np.lexsort((*values.T, track, revision, key))
        last = np.append(key[order][1:] != key[order][:-1], True)[: key.size]
        most = min(self.most, other.most)
        kept = order[last][:most]
        return SampledRows(most, key[kept], revision[kept], values[kept], track[kept])

    def cut(self, most: int) -> SampledRows:
        """Keeps so many rows at most, of all that may come."""
        return replace(self, most=min(most, self.most)).take(slice(0, most))

    def since(self, earlier: SampledRows) -> SampledRows:
        """Leaves out the rows that were there before: merged with those it is this again."""
        place = np.searchsorted(earlier.key, self.key)
        known = place < earlier.key.size
        known[known] = earlier.key[place[known]] == self.key[known]
        known[known] = earlier.revision[place[known]] == self.revision[known]
        return self.take(~known)

    def seen(
        self, key: KeyArray, values: FloatArray, track: ClusterArray, *, retracted: bool
    ) -> SampledRows:
        """Counts n detections, or retracts those that were counted before."""
        near = np.flatnonzero(key <= self.limit)
        if near.size == 0:
            return self
        near = near[np.argsort(key[near], kind="stable")]
        key, values, track = key[near], values[near], track[near]
        place = np.searchsorted(self.key, key)
        known = place < self.key.size
        known[known] = self.key[place[known]] == key[known]
        before = np.zeros(key.size, np.int64)
        before[known] = self.revision[place[known]]
        # The next number that says of itself whether the label is there.
        revision = before + 1 + (before % 2 != retracted)
        if retracted:
            values, track = np.zeros_like(values), np.full_like(track, ALONE)
        # A negative zero is no other value.
        return self.merge(SampledRows(self.most, key, revision, values + 0.0, track))


def no_rows(k: int, most: int) -> SampledRows:
    """The sample of no detections of K dimensions."""
    none = np.zeros(0, np.uint64)
    return SampledRows(most, none, none.astype(np.int64), np.zeros((0, width(k))), none)


@dataclass(frozen=True, slots=True)
class SampledSlice:
    """The sample of one slice; fields as in SliceState."""

    name: str
    space: Space
    overflow: bool
    rows: SampledRows

    @property
    def key(self) -> tuple[Space, bool, str]:
        """Identity of the slice, which entries of two states share."""
        return self.space, self.overflow, OVERFLOW if self.overflow else self.name


def united(entries: Iterable[SampledSlice]) -> tuple[SampledSlice, ...]:
    """Adds up the samples of equal slices."""
    found: dict[Any, SampledSlice] = {}
    for entry in entries:
        known = found.get(entry.key)
        rows = entry.rows if known is None else known.rows.merge(entry.rows)
        found[entry.key] = replace(entry if known is None else known, rows=rows)
    return tuple(found.values())


def gained(
    now: Iterable[SampledSlice], then: Iterable[SampledSlice]
) -> Generator[None, None, tuple[SampledSlice, ...]]:
    """Leaves out the rows that were there before, a slice a step."""
    before = {entry.key: entry.rows for entry in then}
    left = []
    for entry in now:
        known = before.get(entry.key)
        rows = entry.rows if known is None else entry.rows.since(known)
        if rows.key.size:
            left.append(replace(entry, rows=rows))
        yield
    return tuple(left)


def fair(samples: Sequence[SampledRows]) -> list[SampledRows]:
    """Leaves the rows of all samples that one limit leaves: a fair draw of all their detections.

    A slice with few detections has a larger share of them in its sample than one with many. Below
    the least of their limits, all have the same: no row needs a weight.
    """
    limit = min((one.limit for one in samples), default=_ALL)
    return [one.take(one.labelled & (one.key <= limit)) for one in samples]


# Slices by index: what was there, and what is there with the rows that came.
SampleChanges = dict[int, tuple[SampledRows | None, SampledRows]]


@dataclass(slots=True)
class Sampler:
    """Samples the matched rows of a sidecar.

    most     rows of a slice; 0: none at all
    vehicle  name that tells its detections from those of others
    held     by slice index; replaced, never changed
    """

    most: int
    vehicle: str = ""
    held: Mapping[int, SampledRows] = field(default_factory=dict)
    _streams: dict[str, int] = field(default_factory=dict)

    def changed(self, group: Sequence[MatchedRows], changes: SampleChanges) -> Iterator[None]:
        """Adds rows of one space, all counted or all retracted, to the changes, a slice a step."""
        frames = [(rows, rows.origin) for rows in group]
        told = [(rows, origin) for rows, origin in frames if origin is not None]
        if not (self.most and told):
            return
        k, retracted = told[0][0].space.k, told[0][0].retracts
        key, stream = self._keys(told)
        slices = np.concatenate([rows.slices for rows, _ in told])
        used, place = np.unique(slices, return_inverse=True)
        for index in used.tolist():
            if index not in changes:
                known = self.held.get(index)
                changes[index] = known, no_rows(k, self.most) if known is None else known
        limits = np.array([changes[index][1].limit for index in used.tolist()])
        near = np.flatnonzero(key <= limits[place])
        yield
        if near.size == 0:
            return
        values, track = _rows(told, near, stream[near])
        key, slices = key[near], slices[near]
        for index in np.unique(slices).tolist():
            yield
            chosen = slices == index
            before, after = changes[index]
            new = key[chosen], values[chosen], track[chosen]
            changes[index] = before, after.seen(*new, retracted=retracted)

    def take(self, changes: SampleChanges) -> None:
        """Applies changes, all at once, even where others have been applied meanwhile."""
        after = dict(self.held)
        for index, (before, rows) in changes.items():
            known = after.get(index)
            after[index] = rows if known is None or known is before else known.merge(rows)
        self.held = after

    def add(self, index: int, rows: SampledRows) -> None:
        """Adds the sample of another sidecar, or of an earlier run."""
        if self.most:
            known, rows = self.held.get(index), rows.cut(self.most)
            self.held = {**self.held, index: rows if known is None else known.merge(rows)}

    def _keys(self, told: Sequence[tuple[MatchedRows, Origin]]) -> tuple[KeyArray, KeyArray]:
        """Hashes of the detections of some frames, and of the streams that they are of."""
        n = [rows.n for rows, _ in told]
        stream = np.array([self._stream(origin.stream) for _, origin in told], np.uint64)
        number = np.array([origin.frame_id for _, origin in told])
        stamp = np.array([-1 if o.stamp_ns is None else o.stamp_ns for _, o in told], np.int64)
        frame = np.repeat(cluster_id((stream, number, stamp)), n)
        row = np.concatenate([origin.row for _, origin in told])
        return cluster_id((frame, row)), np.repeat(stream, n)

    def _stream(self, name: str) -> int:
        """Hashes the vehicle and a stream of it to 64 bits."""
        if name not in self._streams:
            text = f"{self.vehicle}\0{name}".encode()
            digest = hashlib.sha256(text).digest()
            self._streams[name] = int.from_bytes(digest[:8], "little")
        return self._streams[name]


def _rows(
    told: Sequence[tuple[MatchedRows, Origin]], chosen: IntArray, stream: KeyArray
) -> tuple[FloatArray, ClusterArray]:
    """Values of the chosen rows of all frames, and hashes of their tracks.

    chosen  (n,) ascending
    stream  (n,) hashes of the streams they are of
    """
    k = told[0][0].space.k
    starts = np.cumsum([0, *(rows.n for rows, _ in told)])
    ends = np.searchsorted(chosen, starts)
    values = np.empty((chosen.size, width(k)))
    parts = np.zeros((2, chosen.size), np.uint64)
    known = np.zeros(chosen.size, bool)
    for i in np.flatnonzero(np.diff(ends)).tolist():
        (rows, origin), part = told[i], slice(ends[i], ends[i + 1])
        near = chosen[part] - starts[i]
        packed = packed_covariances(rows.covariance[near], k * (k + 1) // 2)
        values[part] = np.concatenate((origin.mean[near], packed, rows.error[near]), axis=1)
        if rows.tracks is not None:
            parts[:, part] = rows.tracks.id[near], np.full(near.size, rows.source)
            known[part] = rows.tracks.known[near]
    return values, np.where(known, cluster_id((*parts, stream)), ALONE)
