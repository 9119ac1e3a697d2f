"""Brings the labels of a file of their own to recorded detections.

They are matched frame by frame, by the sidecar's own matcher: an offline figure and a live one rest
on the same pairs. Which detection a label belongs to is decided in `matching`.
"""

from __future__ import annotations

import argparse
import contextlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from pydantic import ValidationError

from monitor.commands.labels_apart.remarks import (
    MANY_NEAR,
    OF_POINTS,
    bare,
    classless,
    differing,
    flat,
    other_objects,
    told,
)
from monitor.commands.output import working
from monitor.config import MatchingConfig
from monitor.frames.cholesky import factorise
from monitor.frames.detections import Estimates, Limits, Reason
from monitor.frames.frame import (
    Header,
    ReceivedObjects,
    ReceivedTruth,
    StoredFrame,
    stored_estimates,
)
from monitor.frames.space import BoolArray, DimensionKind, FloatArray, IntArray
from monitor.frames.words import DistanceKind
from monitor.matching.labels import match
from monitor.matching.objects import GateVerdict, LabelRecord
from monitor.store.column_names import meant, offered, some_of
from monitor.store.labels import LabelTable, offer_of, read_labels
from monitor.store.recordings import OBJECT, Recording, Source, read_columns
from monitor.store.tables import BOX, NO_TRACK, Columns, RecordingError, coded

# Share of the squared error that comes of matches near the gate, above which it decides.
_MOST_ERROR = 0.5

# s; between a label and the frame that it is of, where none is interpolated.
_SAME_TIME = 1e-3

# Outcomes of the labels of a frame: every label has one.
_OUTCOMES = ("matched", "missed", "ignored", "refused", "duplicate", "untimely")

# Stands for the path of labels where there is none.
IN_MEMORY = Path("labels")

# Columns of labels, besides dimensions, that need no remark; those of detections among them.
_KNOWN = ("seq", "frame", "t", "stamp_ns", "class", "gt_id", "track", "ignore", "score")


def label_columns(options: argparse.Namespace) -> Columns:
    """Reads the columns of the file of labels. Raises RecordingError."""
    with _of_the_labels():
        return read_columns(
            options.labels, options.label_map or {}, options.label_format, in_memory=IN_MEMORY
        )


def with_labels(
    recording: Recording,
    columns: Columns,
    options: argparse.Namespace,
    tell: Callable[[str], None],
) -> Recording:
    """Gives detections the ground truth of the labels that match them, and says how many do.

    Ground truth that came with the detections is not used. Raises RecordingError, ValueError.
    """
    path = columns.path
    if not columns.count:
        raise RecordingError(
            f"{path}: there is only a header. Add a row for each labelled object and frame."
        )
    _check_classes(options, recording, tell)
    names = recording.space.names if options.dimensions is None else recording.names
    unused = _not_used(columns, names)
    if unused:
        tell(f"{path}: not used: {unused}")
    if "seq" not in recording.others and (sensor := meant(recording.names).get("seq")):
        tell(
            f"{path}: labels match across all values of {sensor}. If frames of several sensors or "
            f"drives are told apart by it, give --map seq={sensor}"
            + (f" and {offer}" if (offer := offer_of(columns, "seq")) else "")
        )
    recording = _of_labels(recording, columns, options.dimensions, tell)
    box = columns.box if recording.box == BOX else recording.box
    config = _matching(options, recording, box)
    with _of_the_labels():
        labels = read_labels(recording, columns, options.label_map or {})
    if labels.converted:
        tell(f"{path}: {labels.converted}")
    matcher = _Matcher(recording, labels, config)
    near = matcher.near()
    _check_shared(matcher, columns, near)
    _check_gates(options, matcher)
    remarks = (classless(recording, labels, config), bare(recording, labels))
    for words in filter(None, (*remarks, flat(recording, config, box))):
        tell(f"{path}: {words}")
    truth = np.full_like(recording.mean, np.nan)
    track = np.full(recording.mean.shape[0], NO_TRACK)
    between = np.full((track.size, 2), -1)
    near_gate = np.zeros(track.size, bool)
    counts = dict.fromkeys(("labels", *_OUTCOMES, "near_gate"), 0)
    empty = 0
    with working("matching labels", matcher.frames) as done:
        for rows, found, record in matcher.records():
            done(1)
            matched = rows[record.rows]
            truth[matched] = record.truth
            if record.samples is not None:
                between[matched] = found[record.samples]
            if record.objects is not None:
                known = record.objects.known
                track[matched[known]] = record.objects.id[known].astype(np.int64)
            account = record.account
            for name in ("matched", "missed", "ignored", "refused", "duplicate"):
                counts[name] += getattr(account, name)
            # The account holds them as refused, but an object that is not there has no fault.
            untimely = sum(one.count for one in record.notices if one.reason is Reason.TRUTH_STAMP)
            counts["untimely"] += untimely
            counts["refused"] -= untimely
            if record.gate is not None:
                near_gate[matched[record.gate == GateVerdict.NEAR]] = True
            if not rows.size:
                empty += account.missed
    counts["of_other_sequences"] = int(np.count_nonzero(labels.sequence < 0))
    # A frame of labels alone is matched, too; a time without a frame is not.
    by_time = labels.time_ns is not None
    counts["without_frame"] = int(np.count_nonzero(~near & (labels.sequence >= 0) & by_time))
    counts["labels"] = sum(counts.values())
    counts["detections_without_label"] = int(np.count_nonzero(np.isnan(truth[:, 0])))
    counts["near_gate"] = int(np.count_nonzero(near_gate))
    counts["rows"] = columns.count
    interpolated = between[:, 0] != between[:, 1]
    counts["interpolated"] = int(np.count_nonzero(interpolated))
    place = config.dimensions if config.distance in OF_POINTS else config.box
    there = [i for i, name in enumerate(recording.space.names) if name in place]
    measured = ", ".join(recording.space.names[i] for i in there)
    error = recording.space.error(truth, recording.mean)[:, there]
    narrow = _narrow(matcher, near_gate, np.square(error).sum(axis=1))
    tell(f"{path}: {told(counts, empty, config, narrow, by_time, measured)}")
    if not counts["matched"]:
        raise RecordingError(
            f"{path}: no label matches a detection. Check that frames, sequences, class names and "
            "coordinates of both files agree, or widen --gate."
        )
    if recording.ignore is not None:
        truth[recording.ignore] = np.nan
    tracks = track if bool((track != NO_TRACK).any()) else None
    recording = replace(recording, truth=truth, track=tracks, between=between)
    left_out = np.zeros(track.size, bool)
    for index, words in differing(recording, interpolated):
        if options.label_gap is None:
            left_out |= interpolated & (recording.class_index == index)
            words += "; they are left out (--label-gap 1 takes them in)"
        tell(f"{path}: {words}")
    counts["interpolated_left_out"] = int(np.count_nonzero(left_out))
    if others := other_objects(recording, config):
        tell(f"{path}: {others}")
    return replace(recording, truth=np.where(left_out[:, None], np.nan, truth), matched=counts)


def _narrow(matcher: _Matcher, near: BoolArray, square: FloatArray) -> str:
    """Names the gates that may decide the verdict, with their classes; '' for none.

    near    (N,) matches near the gate: many, or most of the squared error
    square  (N,) squared errors; NaN where nothing matched
    """
    matched = np.isfinite(square)
    index = matcher.recording.class_index
    if len(matcher.classes) == 1:
        index = np.zeros_like(index)
    found = []
    for i, name in enumerate(matcher.classes):
        rows = matched & (index == i)
        many = np.count_nonzero(near & rows) > MANY_NEAR * np.count_nonzero(rows)
        if many or square[near & rows].sum() > _MOST_ERROR * square[rows].sum():
            of = f" of {name}" if len(matcher.classes) > 1 else ""
            found.append(f"{matcher.config.gate_of(name):g}{of}")
    return some_of(found)


@contextlib.contextmanager
def _of_the_labels() -> Iterator[None]:
    """Names the options for labels in errors of reading them, in place of those for detections."""
    try:
        yield
    except RecordingError as error:
        raise RecordingError(re.sub(r"--(?=map |format )", "--label-", str(error))) from None


def _check_classes(
    options: argparse.Namespace, recording: Recording, tell: Callable[[str], None]
) -> None:
    """Raises ValueError where --class-map or --gate names a class that the detections do not have.

    After --class, or with several files, it may be a class of other detections: then it is told.
    """
    there = recording.classes
    several = len(getattr(options, "files", ())) > 1 or getattr(options, "edges_from", None)
    mapped: Mapping[str, str] = options.class_map or {}
    gates: Mapping[str, float] = options.gate or {}
    asked = [(f"--class-map {theirs}={ours}", ours) for theirs, ours in mapped.items()]
    asked += [(f"--gate {name}={gate:g}", name) for name, gate in gates.items() if name]
    for option, name in asked:
        if name in there:
            continue
        chosen = "chosen detections" if options.classes else "detections"
        words = (
            f"{option}: the {chosen} have no class {name!r}. Classes there are: {', '.join(there)}."
        )
        if not (options.classes or several):
            raise ValueError(f"{words} Name one of them, or leave it out.")
        tell(words)


def _not_used(columns: Columns, dimensions: Collection[str]) -> str:
    """Lists the columns that are not used, with what they may be meant for; '' without any."""
    unused = [name for name in columns.names if name not in (*_KNOWN, *dimensions)]
    guess = offered(columns.names, "--label-map")
    return ", ".join(unused) + (f". Perhaps {guess}" if unused and guess else "")


def _check_shared(matcher: _Matcher, columns: Columns, near: BoolArray) -> None:
    """Raises RecordingError where labels and detections share no sequence, frame or class.

    near  (m,) labels of the frame, or near the time, of a detection
    """
    recording, labels = matcher.recording, matcher.labels
    if bool((labels.sequence < 0).all()):
        words = _no_sequence(recording, columns)
    elif not near.any():
        words = _no_frame(matcher)
    elif matcher.classes != (OBJECT,) and {
        matcher.config.class_map.get(name, name) for name in labels.classes
    }.isdisjoint(recording.classes):
        words = (
            "no class of the labels is one of the detections. Labels have "
            f"{some_of(labels.classes)}; detections have {some_of(recording.classes)}. Give "
            f"--class-map {_same_class(labels.classes, recording.classes)}."
        )
    else:
        return
    raise RecordingError(f"{columns.path}: {words}")


def _no_sequence(recording: Recording, columns: Columns) -> str:
    remedy = (
        ". Give sequences the same names in column seq of both files."
        if "seq" in recording.others
        else ", after their file, since they have no column seq. Add it, or name it by --map "
        "seq=THEIRS."
    )
    return (
        "no sequence of the labels is one of the detections. Labels have "
        f"{some_of(coded(columns, 'seq', '')[0])}; detections have "
        f"{some_of(recording.sequences)}{remedy}"
    )


def _no_frame(matcher: _Matcher) -> str:
    """Says the ranges of frames or times of the first sequence that both files have."""
    recording, labels = matcher.recording, matcher.labels
    ours, theirs, reach = matcher.keys()
    at = int(labels.sequence[labels.sequence >= 0].min())
    name = "frame" if not reach else "t" if recording.stamp_ns is None else "stamp_ns"

    def ends(keys: IntArray) -> str:
        low, high = int(keys.min()), int(keys.max())
        return f"{low / 1e9:.13g} to {high / 1e9:.13g} s" if name == "t" else f"{low} to {high}"

    of = f" of sequence {recording.sequences[at]}" if len(recording.sequences) > 1 else ""
    where = f"within {reach / 1e9:g} s of a detection" if reach else "of a frame of the detections"
    remedy = "Take both times from one clock" if reach else "Number frames alike in both files"
    return (
        f"no label is {where}. Column {name}{of}: {ends(theirs[labels.sequence == at])} in the "
        f"labels, {ends(ours[recording.sequence_index == at])} in the detections. {remedy}"
        f"{', in seconds' if name == 't' else ''}, or name the right column by --label-map "
        f"{name}=THEIRS."
    )


def _same_class(theirs: Collection[str], ours: Collection[str]) -> str:
    """Spells the map of the classes that differ in capitals alone; without any, a pattern."""
    names = {name.lower(): name for name in ours}
    pairs = [f"{name}={names[name.lower()]}" for name in theirs if name.lower() in names]
    return ",".join(pairs) or "THEIRS=OURS,… with these names"


def _of_labels(
    recording: Recording,
    columns: Columns,
    wanted: tuple[str, ...] | None,
    tell: Callable[[str], None],
) -> Recording:
    """Keeps the dimensions that the labels have. Raises RecordingError if they have none."""
    names = recording.space.names
    kept = [i for i, name in enumerate(names) if name in columns.names]
    if not kept:
        raise RecordingError(
            f"{columns.path}: there is none of the columns {', '.join(names)}. Name them as the "
            f"detections do, or give --label-map. Columns there are: {', '.join(columns.names)}."
        )
    if len(kept) == len(names):
        return recording
    missing = [name for name in names if name not in columns.names]
    if wanted is None or set(missing) & set(wanted):
        tell(f"{columns.path}: labels have no {', '.join(missing)}, which is left out")
    return with_dimensions(recording, tuple(names[i] for i in kept), columns.path)


def with_dimensions(recording: Recording, names: tuple[str, ...], labels: Source) -> Recording:
    """Keeps some dimensions, in this order. Raises RecordingError where one is not there."""
    there = recording.space.names
    unknown = [name for name in names if name not in there]
    if unknown:
        raise RecordingError(
            f"{IN_MEMORY if isinstance(labels, Mapping) else labels}: there is no dimension "
            f"{unknown[0]!r} with a variance and a label. Dimensions there are: "
            f"{', '.join(there)}."
        )
    step = np.array([there.index(name) for name in names])
    dimensions = tuple(recording.space.dimensions[i] for i in step.tolist())
    return replace(
        recording,
        space=replace(recording.space, dimensions=dimensions),
        mean=recording.mean[:, step],
        covariance=recording.covariance[:, step[:, None], step],
        truth=recording.truth[:, step],
    )


def _matching(
    options: argparse.Namespace, recording: Recording, box: tuple[str, ...]
) -> MatchingConfig:
    """Makes the settings of [matching] from options. Raises ValueError.

    box  names of a box seen from above, whose centre is in the plane of the ground
    """
    space = recording.space
    lengths = [one.name for one in space.dimensions if one.kind is DimensionKind.LENGTH]
    place = [name for name in dict.fromkeys((*box[:2], *"xyz")) if name in lengths] or lengths
    given: dict[str, object] = {"dimensions": place[:2], "box": box}
    if options.distance is not None:
        given["distance"] = options.distance
        if options.distance is DistanceKind.IMAGE_IOU:
            given["box"] = ("left", "top", "right", "bottom")
        if options.distance in (DistanceKind.BEV_IOU, DistanceKind.IMAGE_IOU):
            given["gate"] = 0.5
    if options.label_gap is not None:
        given["max_gap_seconds"] = max(options.label_gap, 1e-9)
        if options.label_gap == 0:
            given["max_offset_seconds"] = _SAME_TIME
    gates: dict[str, float] = options.gate or {}
    if not gates and options.distance is None and not {"x", "y"} & set(lengths):
        raise ValueError(
            "--labels: give --gate, how far a detection may be off its label in "
            f"{', '.join(place[:2])}, in their unit: 20 for boxes in pixels, say."
        )
    if "" in gates:
        given["gate"] = gates[""]
    given["gates"] = {name: gate for name, gate in gates.items() if name}
    given["class_map"] = options.class_map or {}
    try:
        config = MatchingConfig.model_validate(given)
    except ValidationError as error:
        raise ValueError(f"--labels: {error.errors()[0]['msg']}") from None
    lacking = [name for name in config.box if name not in space.names]
    if lacking and config.distance in (DistanceKind.BEV_IOU, DistanceKind.IMAGE_IOU):
        raise ValueError(
            f"--distance {config.distance}: the files share no dimension {', '.join(lacking)}, but "
            f"{', '.join(space.names)}. Add it to both, or take another distance."
        )
    return config


def _check_gates(options: argparse.Namespace, matcher: _Matcher) -> None:
    """Raises ValueError where a class has no gate, and the default one is for metres."""
    gates: Mapping[str, float] = options.gate or {"": 0.0}
    centres = options.distance in (None, DistanceKind.CENTRE)
    if "" in gates or not centres or {"x", "y"} & {*matcher.config.dimensions}:
        return
    labelled = {matcher.config.class_map.get(name, name) for name in matcher.labels.classes}
    there = [matcher.recording.classes[i] for i in np.unique(matcher.recording.class_index)]
    names = [OBJECT] if matcher.classes == (OBJECT,) else [one for one in there if one in labelled]
    lacking = [name for name in names if name not in gates]
    if not lacking:
        return
    given = ",".join(f"{name}={gate:g}" for name, gate in gates.items())
    why = f"detections of {some_of(lacking)} have none, and the default of 2 is for x and y"
    remedy = f"Give --gate {given},{','.join(f'{name}=…' for name in lacking)}"
    if matcher.classes == (OBJECT,) != matcher.recording.classes:
        why, remedy = "the labels have no class", "Give one gate for all, such as --gate 20"
    raise ValueError(f"--gate {given}: {why}. {remedy}.")


@dataclass(frozen=True, slots=True)
class _Matcher:
    """Matches the labels of each frame of a recording."""

    recording: Recording
    labels: LabelTable
    config: MatchingConfig

    @property
    def frames(self) -> int:
        """Counts frames with detections, roughly those that are matched."""
        recording = self.recording
        key, _, _ = self.keys()
        return len(set(zip(recording.sequence_index.tolist(), key.tolist(), strict=True)))

    def keys(self) -> tuple[IntArray, IntArray, int]:
        """Finds what brings labels to detections: frame numbers, or times in ns.

        returns  (N,) of detections; (m,) of labels; how far these may be apart
        """
        recording, labels = self.recording, self.labels
        if labels.frame is not None:
            assert recording.frame is not None
            return recording.frame, labels.frame, 0
        assert labels.time_ns is not None
        stamps = recording.stamp_ns
        if stamps is None:
            assert recording.time_s is not None
            stamps = np.rint(recording.time_s * 1e9).astype(np.int64)
        reach = max(self.config.max_gap_seconds, self.config.max_offset_seconds)
        return stamps, labels.time_ns, round(reach * 1e9)

    def near(self) -> BoolArray:
        """(m,) labels of the frame of a detection, or within the gap of its time."""
        ours, theirs, reach = self.keys()
        near = np.zeros(theirs.size, bool)
        for sequence in range(len(self.recording.sequences)):
            keys = np.sort(ours[self.recording.sequence_index == sequence])
            rows = np.flatnonzero(self.labels.sequence == sequence)
            low, high = theirs[rows] - reach, theirs[rows] + reach
            near[rows] = np.searchsorted(keys, low) < np.searchsorted(keys, high, "right")
        return near

    def records(self) -> Iterator[tuple[IntArray, IntArray, LabelRecord]]:
        """Yields, frame by frame, the rows of its detections and labels, and what these told."""
        recording, labels = self.recording, self.labels
        estimates = self._estimates()
        # Where either file names no classes, labels match detections of any.
        classes = self.classes
        limits = Limits()
        for sequence, name in enumerate(recording.sequences):
            header = Header(name, recording.space, classes)
            for key, rows, found in self._frames(sequence):
                n = rows.size
                frame = StoredFrame(
                    header=header,
                    frame_id=key if labels.frame is not None else 0,
                    stamp_ns=None if labels.time_ns is None else key,
                    received=n,
                    id=np.arange(n, dtype=np.uint64),
                    class_index=(
                        recording.class_index[rows]
                        if classes is recording.classes
                        else np.zeros(n, np.int64)
                    ),
                    slices=(),
                    slice=np.zeros(n, np.uint16),
                    sent=stored_estimates(estimates.take(rows)),
                    made=None,
                    version=None,
                    unusable=np.zeros(0, np.uint64),
                )
                told = self._message(name, found)
                yield rows, found, match(told, frame, np.ones(n, bool), self.config, limits)

    def _estimates(self) -> Estimates:
        """The Gaussians, with a covariance for those that have no usable one: these are matched,
        and refused later.
        """
        recording = self.recording
        k = recording.space.k
        sound = np.isfinite(factorise(recording.covariance)[-1, -1])
        covariance = np.where(sound[:, None, None], recording.covariance, np.eye(k))
        diagonal = np.full(sound.size, recording.diagonal)
        return Estimates(np.nan_to_num(recording.mean, nan=1e12), covariance, diagonal)

    def _frames(self, sequence: int) -> Iterator[tuple[int, IntArray, IntArray]]:
        """Yields frame number or ns, rows of detections and rows of labels of a sequence."""
        of_ours, of_theirs, reach = self.keys()
        ours = np.flatnonzero(self.recording.sequence_index == sequence)
        theirs = np.flatnonzero(self.labels.sequence == sequence)
        of_ours, of_theirs = of_ours[ours], of_theirs[theirs]
        order = np.argsort(of_theirs, kind="stable")
        theirs, of_theirs = theirs[order], of_theirs[order]
        keys = np.unique(np.append(of_ours, of_theirs) if reach == 0 else of_ours)
        by_key = np.argsort(of_ours, kind="stable")
        ours, of_ours = ours[by_key], of_ours[by_key]
        starts, ends = np.searchsorted(of_ours, keys), np.searchsorted(of_ours, keys, "right")
        firsts = np.searchsorted(of_theirs, keys - reach)
        lasts = np.searchsorted(of_theirs, keys + reach, "right")
        for key, start, end, first, last in zip(
            keys.tolist(), starts, ends, firsts, lasts, strict=True
        ):
            yield key, ours[start:end], theirs[first:last]

    @property
    def classes(self) -> tuple[str, ...]:
        """Names the classes within which labels are matched."""
        either = (OBJECT,) in (self.labels.classes, self.recording.classes)
        return (OBJECT,) if either else self.recording.classes

    def _message(self, stream: str, rows: IntArray) -> ReceivedTruth:
        """Makes the message that a labeller would send for a frame."""
        labels, m = self.labels, rows.size
        time_ns = np.zeros(m, np.int64) if labels.time_ns is None else labels.time_ns[rows]
        id = labels.id[rows]
        none = np.zeros(0, np.int64)
        return ReceivedTruth(
            stream=stream,
            frame_id=None,
            complete=True,
            id=none.astype(np.uint64),
            has_id=none.astype(bool),
            truth=np.zeros((0, 0)),
            truth_length=none,
            ignore=none.astype(bool),
            class_index=none,
            class_names=labels.classes if self.classes != (OBJECT,) else (OBJECT,),
            foreign=ReceivedObjects(
                id=np.where(id == NO_TRACK, 0, id).astype(np.uint64),
                has_id=id != NO_TRACK,
                class_index=(
                    labels.class_index[rows] if self.classes != (OBJECT,) else np.zeros(m, np.int64)
                ),
                truth=labels.position[rows],
                truth_length=np.full(m, labels.position.shape[1]),
                covariance=np.zeros((m, 0)),
                covariance_length=np.zeros(m, np.int64),
                ignore=labels.ignore[rows],
                stamp_ns=time_ns,
                has_stamp=np.full(m, labels.time_ns is not None),
            ),
        )
