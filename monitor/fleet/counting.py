"""Counts logged frames as a sidecar would, and adds up states: values in, bytes out.

An engine carries these bytes and nothing else: which one, and how many machines it has, does not
change a bit of the sums. Files are read in logs.py.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, fields
from itertools import chain
from typing import Any, TypeVar

import numpy as np

from monitor.config import Config
from monitor.frames.detections import (
    Examined,
    Limits,
    Reason,
    ReceivedDetections,
    examine,
)
from monitor.frames.frame import (
    Header,
    MatchedClasses,
    MatchedRows,
    Opinions,
    PredictedRows,
    ReceivedObjects,
    ReceivedTruth,
    StoredFrame,
    TrackIds,
    opinions_of,
    stored_estimates,
)
from monitor.frames.slices import ClassSliceTable, SliceTable, StreamSlices
from monitor.frames.space import (
    MOST_SLICES,
    BoolArray,
    Dimension,
    DimensionKind,
    FloatArray,
    IntArray,
    Space,
)
from monitor.frames.words import SliceBy
from monitor.matching.labels import match
from monitor.matching.objects import LabelRecord
from monitor.statistics.bins import ExportEdges
from monitor.statistics.clusters import ClusterArray, cluster_id
from monitor.statistics.folding import (
    ClassAccumulator,
    PredictedAccumulator,
    SliceAccumulator,
    counted_state,
)
from monitor.statistics.state import StatisticsState
from monitor.store.state_files import beginning_in
from monitor.store.statistics_state import StoredState, parsed, serialised

# The id of no object.
NOBODY = 0


@dataclass(frozen=True, eq=False, slots=True)
class Detections:
    """n detections of one frame in K dimensions, and the truth that came along.

    vehicle, stream  tell frames of equal number apart
    frame_id         None where frames have no number, and labels find them by their stamp
    stamp_ns         None where unknown: such frames are in no window
    angles           names of the dimensions that are angles
    classes          (C,) names
    mean             (n, K)
    covariance       (n, K) variances, or (n, K (K + 1) / 2) lower triangles
    class_index      (n,)
    truth            (n, K) NaN where there is none; None: none came
    object           (n,) the true object; NOBODY where unknown
    true_class       (n,) −1 where unknown; None: none came
    probabilities    (n, M C), M opinions one after the other; NaN where there are none
    """

    vehicle: str
    stream: str
    frame_id: int | None
    stamp_ns: int | None
    dimensions: tuple[str, ...]
    angles: tuple[str, ...]
    classes: tuple[str, ...]
    mean: FloatArray
    covariance: FloatArray
    class_index: IntArray
    truth: FloatArray | None = None
    object: ClusterArray | None = None
    true_class: IntArray | None = None
    probabilities: FloatArray | None = None


@dataclass(frozen=True, eq=False, slots=True)
class Objects:
    """m labelled objects of one frame; fields as in Detections.

    dimensions  all that the labeller knows, in any order
    position    (m, dimensions) NaN where unknown
    object      (m,) NOBODY where unknown
    ignore      (m,) neither right nor wrong
    """

    vehicle: str
    stream: str
    frame_id: int | None
    stamp_ns: int | None
    dimensions: tuple[str, ...]
    classes: tuple[str, ...]
    position: FloatArray
    class_index: IntArray
    object: ClusterArray
    ignore: BoolArray


F = TypeVar("F", Detections, Objects)


def packed(frame: Detections | Objects) -> bytes:
    """Returns a frame as bytes."""
    facts: dict[str, Any] = {}
    arrays: dict[str, Any] = {}
    blocks: list[bytes] = []
    for one in fields(frame):
        value = getattr(frame, one.name)
        if isinstance(value, np.ndarray):
            arrays[one.name] = value.dtype.str, value.shape
            blocks.append(value.tobytes())
        else:
            facts[one.name] = value
    head = json.dumps([facts, arrays], separators=(",", ":")).encode()
    return b"".join((len(head).to_bytes(4, "little"), head, *blocks))


def unpacked(kind: type[F], data: bytes) -> F:
    """Inverts `packed`."""
    end = 4 + int.from_bytes(data[:4], "little")
    facts, arrays = json.loads(data[4:end])
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in facts.items()
    }
    for name, (code, shape) in arrays.items():
        size = int(np.prod(shape, dtype=np.int64))
        values[name] = np.frombuffer(data, code, size, end).reshape(shape)
        end += values[name].nbytes
    return kind(**values)


def frame_key(frame: Detections | Objects) -> bytes:
    """Tells a frame from all others: by its number, or by its stamp where it has none."""
    at = ["stamp", frame.stamp_ns] if frame.frame_id is None else ["frame", frame.frame_id]
    return json.dumps([frame.vehicle, frame.stream, *at]).encode()


def piece_key(frame: Detections, config: Config) -> bytes:
    """Names the piece of a log that a frame is counted in: one stream for one shortest window.

    Pairs of rows of a track count within a pane, as in a sidecar. A piece is made of whole panes,
    so that none is lost between two of them. Of a stream without stamps all is one piece.
    """
    length_ns = config.statistics.window_lengths().lengths_ns[0]
    number = None if frame.stamp_ns is None else frame.stamp_ns // length_ns
    return json.dumps([frame.vehicle, frame.stream, number]).encode()


# Detections of a frame, and its labels if any came: as `packed` makes them.
Joined = tuple[bytes, bytes | None]
Account = Counter[str]


def joined(detections: Iterable[bytes], labels: Iterable[bytes]) -> tuple[Joined | None, Account]:
    """Chooses one of each, of the frames and labels under one key; the order does not matter.

    returns  also how many further ones were left out, and labels without a frame
    """
    frames, told, account = sorted(detections), sorted(labels), Account()
    account["frames_repeated"] = max(0, len(frames) - 1)
    account["label_frames_repeated"] = max(0, len(told) - 1)
    if not frames:
        account["labels_orphan"] = unpacked(Objects, told[0]).ignore.size
        return None, account
    account["frames_without_labels"] = int(not told)
    return (frames[0], told[0] if told else None), account


def counted(
    frames: Iterable[Joined], config: Config, latest_ns: int | None = None
) -> tuple[bytes, Account]:
    """Counts the frames of one piece, or of many, and returns them as a serialised state.

    latest_ns  a stamp beyond it is not believed: such a frame is in no window
    returns    also what became of detections and labels
    """
    counting = Counting(config, latest_ns)
    read = [
        (unpacked(Detections, frame), labels and unpacked(Objects, labels))
        for frame, labels in frames
    ]
    # Rows of a track count in the order of time, whatever the order in which frames come.
    read.sort(
        key=lambda one: (one[0].vehicle, one[0].stream, one[0].stamp_ns or 0, one[0].frame_id or 0)
    )
    for frame, labels in read:
        counting.add(frame, labels or None)
    return as_bytes(StoredState(counting.state())), counting.account


def as_bytes(stored: StoredState) -> bytes:
    """Serialises a state; equal statistics are equal bytes."""
    return b"".join(serialised(StoredState(stored.state.in_order(), stored.unknown)))


def merged(states: Iterable[bytes]) -> bytes:
    """Adds up serialised states, at least one; in any order and grouping to the same bytes.

    Raises IncompatibleStatistics, InvalidState; AlreadyHeld where an upload comes twice.
    """
    loaded = map(parsed, states)
    total = next(loaded)
    for more in loaded:
        total = total.merge(more)
    return as_bytes(total)


def identity(state: bytes) -> bytes:
    """Names the uploads that a serialised state holds: of two with the same name, one is enough.

    A state that holds none has itself for a name.
    """
    beginning = beginning_in(state, whole=True)
    spans = {} if beginning is None else beginning.holds.spans
    return json.dumps(sorted(spans.items())).encode() if spans else state


class Counting:
    """Counts frames of any vehicles and streams.

    Slices have no limit but that of a state: which of them overflow would depend on the order.

    account  detections and labels, by what became of them
    """

    def __init__(self, config: Config, latest_ns: int | None = None) -> None:
        settings, limits = config.statistics, config.limits
        self.account = Account()
        self._config, self._latest_ns = config, latest_ns
        self._clock_ns: int | None = None
        self._limits = Limits(
            limits.largest_mean, limits.smallest_deviation, limits.largest_deviation
        )
        binning, windows = settings.binning(), settings.window_lengths()
        edges = ExportEdges(config.metrics.export_edges, binning)
        self._slices = SliceTable(frozenset(settings.slice_by), MOST_SLICES, settings.ranges())
        self._class_slices = ClassSliceTable(SliceBy.STREAM in settings.slice_by, MOST_SLICES)
        self._matched = SliceAccumulator(binning, windows, edges, settings.fold_rows)
        self._classes = ClassAccumulator(windows, settings.fold_rows)
        self._predicted = PredictedAccumulator(
            windows, settings.fold_rows, settings.range_dimensions
        )
        self._streams: dict[tuple[Any, ...], tuple[int, Header, StreamSlices]] = {}

    def add(self, frame: Detections, labels: Objects | None = None) -> None:
        """Counts a frame, with labels of its own or with the truth that came along."""
        account, n = self.account, frame.class_index.size
        account["frames"] += 1
        account["detections"] += n
        number, header, slices = self._stream(frame)
        examined = examine(_received(frame), header.space, len(header.classes), self._limits)
        for reason in examined.reason[examined.reason != Reason.NONE].tolist():
            account[f"refused_{Reason(reason).label}"] += 1
        batch, stamp_ns = examined.batch, self._believed(frame.stamp_ns)
        index = slices.of(batch.class_index, batch.sent.mean)
        several = len(header.classes) > 1
        opinions = None
        if batch.rows.size:
            values = batch.probabilities if several else None
            opinions = None if values is None else opinions_of(values, None)
            rows = batch.space, index, batch.sent.mean, batch.roots, values, stamp_ns
            self._predicted.add(PredictedRows(*rows))
        record = self._told(frame, labels, header, examined, opinions)
        if record is not None:
            self._count(record, header, examined, index, stamp_ns, number)
            self._count_classes(record, header, opinions, stamp_ns)
        for one in (self._predicted, self._matched, self._classes):
            while one.busy:
                one.step()

    def state(self) -> StatisticsState:
        """Returns all that was counted."""
        accumulators = self._matched, self._classes, self._predicted
        for one in accumulators:
            for _ in chain(one.steps(), one.move_on(self._clock_ns)):
                pass
        return counted_state((self._slices, self._class_slices), accumulators)

    def _stream(self, frame: Detections) -> tuple[int, Header, StreamSlices]:
        key = frame.vehicle, frame.stream, frame.dimensions, frame.angles, frame.classes
        if key not in self._streams:
            dimensions = (
                Dimension(name, "rad", DimensionKind.ANGLE)
                if name in frame.angles
                else Dimension(name)
                for name in frame.dimensions
            )
            space = Space(tuple(dimensions), self._config.statistics.angles_in_joint)
            header = Header(frame.stream, space, frame.classes)
            slices = StreamSlices(self._slices, space, frame.stream, frame.classes)
            # Objects of equal id are one object in the same stream of a vehicle alone.
            names = list(dict.fromkeys(known[:2] for known in (*self._streams, key)))
            self._streams[key] = names.index(key[:2]), header, slices
        return self._streams[key]

    def _believed(self, stamp_ns: int | None) -> int | None:
        if stamp_ns is None:
            return None
        if self._latest_ns is not None and stamp_ns > self._latest_ns:
            # One such frame would empty the windows of the whole fleet.
            self.account["frames_later_than_now"] += 1
            return None
        self._clock_ns = stamp_ns if self._clock_ns is None else max(stamp_ns, self._clock_ns)
        return stamp_ns

    def _told(
        self,
        frame: Detections,
        labels: Objects | None,
        header: Header,
        examined: Examined,
        opinions: Opinions | None,
    ) -> LabelRecord | None:
        """Matches labels as the sidecar does; None where there are none."""
        told = _by_id(frame) if labels is None else _by_place(labels, header)
        if told is None:
            return None
        batch = examined.batch
        stored = StoredFrame(
            header=header,
            frame_id=-1 if frame.frame_id is None else frame.frame_id,
            stamp_ns=frame.stamp_ns,
            received=examined.reason.size,
            id=batch.id,
            class_index=batch.class_index,
            slices=(),
            slice=np.zeros(batch.rows.size, np.uint16),
            sent=stored_estimates(batch.sent),
            made=None,
            version=None,
            unusable=np.delete(np.arange(examined.reason.size, dtype=np.uint64), batch.rows),
            opinions=opinions,
        )
        free = np.ones(batch.rows.size, bool)
        record = match(told, stored, free, self._config.matching, self._limits)
        for name in record.account.__dataclass_fields__:
            self.account[f"labels_{name}"] += getattr(record.account, name)
        return record

    def _count(
        self,
        record: LabelRecord,
        header: Header,
        examined: Examined,
        index: IntArray,
        stamp_ns: int | None,
        number: int,
    ) -> None:
        rows, batch, objects = record.rows, examined.batch, record.objects
        if not rows.size:
            return
        error = header.space.error(record.truth, batch.sent.mean[rows])
        covariance = batch.sent.covariance[rows]
        tracks = None
        if objects is not None:
            tracks = TrackIds(cluster_id((objects.id, 1)), objects.known)
        self._matched.add(
            MatchedRows(
                space=header.space,
                slices=index[rows],
                error=error,
                covariance=covariance,
                recalibrated_error=error,
                recalibrated_covariance=covariance,
                stamp_ns=stamp_ns,
                live=False,  # no counters here
                tracks=tracks,
                source=number,
            )
        )

    def _count_classes(
        self, record: LabelRecord, header: Header, opinions: Opinions | None, stamp_ns: int | None
    ) -> None:
        if opinions is None:
            return
        index = self._class_slices.index(header.stream, header.classes)
        if index is None or not record.class_rows.size:
            return
        values = opinions.values[np.searchsorted(opinions.rows, record.class_rows)]
        self._classes.add(MatchedClasses(index, values, record.true_class, stamp_ns))


def _received(frame: Detections) -> ReceivedDetections:
    """Makes the message in which a detector would send these."""
    n, k = frame.mean.shape
    values = frame.probabilities
    lengths = None
    if values is not None:
        lengths = np.where(np.isnan(values).all(axis=1), 0, values.shape[1])
    return ReceivedDetections(
        id=np.arange(n, dtype=np.uint64),
        has_id=np.ones(n, bool),
        class_index=frame.class_index,
        mean=frame.mean,
        mean_length=np.full(n, k),
        covariance=frame.covariance,
        covariance_length=np.full(n, frame.covariance.shape[1]),
        truth=np.full((n, 0), np.nan),
        truth_length=np.zeros(n, np.int64),
        uniform=n > 0,
        class_probabilities=None if values is None or lengths is None else (values, lengths),
    )


def _by_id(frame: Detections) -> ReceivedTruth | None:
    """Makes the message that tells the truth of each detection; None where none is known."""
    n, k = frame.mean.shape
    truth = np.full((n, k), np.nan) if frame.truth is None else frame.truth
    true_class = np.full(n, -1) if frame.true_class is None else frame.true_class
    has_truth: BoolArray = np.asarray(np.isfinite(truth).all(axis=1))
    told = np.flatnonzero(has_truth | (true_class >= 0))
    if not told.size:
        return None
    objects = None
    if frame.object is not None:
        objects = TrackIds(frame.object[told], frame.object[told] != NOBODY)
    return ReceivedTruth(
        stream=frame.stream,
        frame_id=frame.frame_id,
        complete=False,
        id=told.astype(np.uint64),
        has_id=np.ones(told.size, bool),
        truth=truth[told],
        truth_length=np.where(has_truth[told], k, 0),
        ignore=np.zeros(told.size, bool),
        class_index=true_class[told],
        objects=objects,
    )


def _by_place(labels: Objects, header: Header) -> ReceivedTruth:
    """Makes the message in which a labeller would send these."""
    m, names = labels.ignore.size, header.space.names
    column = {name: i for i, name in enumerate(labels.dimensions)}
    truth = np.full((m, len(names)), np.nan)
    for i, name in enumerate(names):
        if name in column:
            truth[:, i] = labels.position[:, column[name]]
    none = np.zeros(0, np.int64)
    nothing = np.zeros(0, bool)
    foreign = ReceivedObjects(
        id=labels.object,
        has_id=labels.object != NOBODY,
        class_index=labels.class_index,
        truth=truth,
        truth_length=np.full(m, len(names)),
        covariance=np.zeros((m, 0)),
        covariance_length=np.zeros(m, np.int64),
        ignore=labels.ignore,
        stamp_ns=np.zeros(m, np.int64),
        has_stamp=np.zeros(m, bool),
    )
    return ReceivedTruth(
        stream=header.stream,
        frame_id=labels.frame_id,
        complete=True,
        id=none.astype(np.uint64),
        has_id=nothing,
        truth=np.zeros((0, 0)),
        truth_length=none,
        ignore=nothing,
        class_index=none,
        class_names=labels.classes,
        foreign=foreign,
    )
