"""Brings the labels of a file of their own to recorded detections.

They are matched frame by frame, by the sidecar's own matcher: an offline figure and a live one rest
on the same pairs. Which detection a label belongs to is decided in `matching`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from pydantic import ValidationError

from monitor.commands.options import add_value, allow, checked, names_of, working
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
from monitor.matching.distances import DistanceKind
from monitor.matching.labels import match
from monitor.matching.objects import GateVerdict, LabelRecord
from monitor.store.column_names import meant, offered
from monitor.store.formats import Format
from monitor.store.recordings import NO_TRACK, OBJECT, Recording, read_columns, tracks_of
from monitor.store.tables import Columns, RecordingError, coded

_SETTINGS = ("gate", "distance", "class_map", "label_map", "label_format")

# Share of matches near the gate above which the gate is likely to cut off errors.
_MANY_NEAR = 0.05

# Outcomes of the labels of a frame: every label has one.
_OUTCOMES = ("matched", "missed", "ignored", "refused", "duplicate", "untimely")

# Names that are listed in a message.
_FIRST = 5

# Columns of labels, besides dimensions, that need no remark; those of detections among them.
_KNOWN = ("seq", "frame", "t", "stamp_ns", "class", "gt_id", "track", "ignore", "score")


def add_labels(parser: argparse.ArgumentParser) -> None:
    """Adds the options of verbs that may find ground truth in another file."""
    group = parser.add_argument_group("labels in a file of their own")
    text = "a row for each labelled object and frame: seq, frame or t, class, gt_id, dimensions"
    add_value(group, "--labels", "FILE", text)
    text = (
        "how far a detection may be off its label, for all classes or by class: in the unit of the "
        "first two dimensions; of bev-iou and image-iou 1 - overlap (default 2 for x and y)"
    )
    add_value(group, "--gate", "G|C=G,C=G", text, _gates)
    text = "how the distance to a label is measured (default centre)"
    kinds = tuple(DistanceKind)
    group.add_argument("--distance", choices=kinds, type=DistanceKind, help=text)
    text = "class names of the labels for those of the detections, such as person=Pedestrian"
    add_value(group, "--class-map", "LABEL=OURS,…", text, names_of)
    text = "as --format, for the labels"
    group.add_argument("--label-format", choices=tuple(Format), type=Format, help=text)
    text = "as --map, for the labels"
    add_value(group, "--label-map", "OURS=THEIRS,…", text, names_of)


@dataclass(frozen=True, slots=True)
class LabelTable:
    """Labelled objects of a file, m rows.

    sequence  (m,) of which sequence of the detections; −1 for none of them
    frame     (m,) frame number; None where objects are found by their time
    time_ns   (m,) None where objects are found by their frame
    classes   the labeller's names
    class_index, id  (m,) the id is NO_TRACK where there is none
    position  (m, K)
    ignore    (m,) neither right nor wrong
    """

    sequence: IntArray
    frame: IntArray | None
    time_ns: IntArray | None
    classes: tuple[str, ...]
    class_index: IntArray
    id: IntArray
    position: FloatArray
    ignore: BoolArray


def with_labels(
    recording: Recording, options: argparse.Namespace, tell: Callable[[str], None]
) -> Recording:
    """Gives detections the ground truth of the labels that match them, and says how many do.

    Ground truth that came with the detections is not used. Raises RecordingError, ValueError.
    """
    columns = read_columns(options.labels, options.label_map or {}, options.label_format)
    path = columns.path
    if not columns.count:
        raise RecordingError(
            f"{path}: there is only a header. Add a row for each labelled object and frame."
        )
    _check_classes(options, recording, tell)
    unused = _not_used(columns, recording.space.names)
    if unused:
        tell(f"{path}: not used: {unused}")
    recording = _of_labels(recording, columns, options.dimensions, tell)
    config = _matching(options, recording)
    labels = _table(recording, columns)
    matcher = _Matcher(recording, labels, config)
    near = matcher.near()
    _check_shared(matcher, columns, near)
    for words in filter(None, (_classless(recording, labels, config), _bare(recording, labels))):
        tell(f"{path}: {words}")
    truth = np.full_like(recording.mean, np.nan)
    track = np.full(recording.mean.shape[0], NO_TRACK)
    counts = dict.fromkeys(("labels", *_OUTCOMES, "near_gate"), 0)
    empty = 0
    with working("matching labels", matcher.frames) as done:
        for rows, record in matcher.records():
            done(1)
            matched = rows[record.rows]
            truth[matched] = record.truth
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
                counts["near_gate"] += int(np.count_nonzero(record.gate == GateVerdict.NEAR))
            if not rows.size:
                empty += account.missed
    counts["of_other_sequences"] = int(np.count_nonzero(labels.sequence < 0))
    # A frame of labels alone is matched, too; a time without a frame is not.
    by_time = labels.time_ns is not None
    without = ~near & (labels.sequence >= 0) & by_time
    counts["without_frame"] = int(np.count_nonzero(without))
    counts["labels"] = sum(
        counts[name] for name in (*_OUTCOMES, "of_other_sequences", "without_frame")
    )
    counts["detections_without_label"] = int(np.count_nonzero(np.isnan(truth[:, 0])))
    tell(f"{path}: {_told(counts, empty, config, by_time)}")
    if not counts["matched"]:
        raise RecordingError(
            f"{path}: no label matches a detection. Check that frames, sequences, class names and "
            "coordinates of both files agree, or widen --gate."
        )
    tracks = track if bool((track != NO_TRACK).any()) else None
    return replace(recording, truth=truth, track=tracks, matched=counts)


def _told(counts: Mapping[str, int], empty: int, config: MatchingConfig, by_time: bool) -> str:
    """Says how many labels had which outcome, each in one count, and what that may mean.

    empty    missed labels in frames without detections
    by_time  whether labels are found by their time, once for each frame near it
    """
    why = {
        "missed": "no detection within the gate"
        + (f", {empty:,} of them in frames without detections" if empty else ""),
        "ignored": "of classes that the detections do not have, or marked ignore",
        "refused": "without a usable number in each dimension",
        "duplicate": "an object's id again in the same frame",
        "untimely": f"an object without two samples around the frame, at most "
        f"{config.max_gap_seconds:g} s apart, or one within {config.max_offset_seconds:g} s",
        "of_other_sequences": "the detections do not have them",
        "without_frame": f"none within {config.max_gap_seconds:g} s",
    }
    parts = [f"{counts['matched']:,} of {counts['labels']:,} labels matched"]
    for name, reason in why.items():
        if counts[name]:
            parts.append(f"{counts[name]:,} {name.replace('_', ' ')} ({reason})")
        elif name in ("missed", "ignored", "refused"):
            parts.append(f"0 {name}")
    if by_time:
        parts.append("a label counts once for each frame near its time")
    words = (
        f"{', '.join(parts)}; {counts['near_gate']:,} matches near the gate (beyond "
        f"{100 * config.near_gate:g} % of it); {counts['detections_without_label']:,} detections "
        "without a label"
    )
    if counts["missed"] > counts["matched"]:
        words += (
            ". More labels are missed than matched: do frames, coordinates and units of both files "
            "agree?"
        )
    elif counts["near_gate"] > _MANY_NEAR * counts["matched"]:
        words += (
            f". The gate of {config.gate:g} may cut off large errors: see whether a wider --gate "
            "changes the verdict"
        )
    return words


def _listed(names: Collection[str]) -> str:
    """Names the first few."""
    more = len(names) - _FIRST
    return ", ".join([*names][:_FIRST]) + (f" and {more:,} more" if more > 0 else "")


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


def _offer(columns: Columns, *wanted: str) -> str:
    """Offers --label-map for the first column that may be one of those wanted; '' without any."""
    guesses = meant(columns.names).items()
    return next((f"--label-map {ours}={name}" for ours, name in guesses if ours in wanted), "")


def _classless(recording: Recording, labels: LabelTable, config: MatchingConfig) -> str | None:
    """Says that labels name no class though the detections do."""
    if labels.classes != (OBJECT,) or recording.classes == (OBJECT,):
        return None
    words = "labels have no class, so they match detections of any class"
    return words + (f" within the gate of {config.gate:g}" if config.gates else "")


def _bare(recording: Recording, labels: LabelTable) -> str | None:
    """Names the sequences of detections that have no label at all."""
    detections = np.bincount(recording.sequence_index, minlength=len(recording.sequences))
    known = np.unique(labels.sequence[labels.sequence >= 0])
    bare = np.setdiff1d(np.arange(len(recording.sequences)), known).tolist()
    if not bare:
        return None
    named = [f"{recording.sequences[i]} ({detections[i]:,} detections)" for i in bare]
    return f"no label for sequence{'s' if len(named) > 1 else ''} {_listed(named)}"


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
            f"{_listed(labels.classes)}; detections have {_listed(recording.classes)}. Give "
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
        f"{_listed(coded(columns, 'seq', '')[0])}; detections have "
        f"{_listed(recording.sequences)}{remedy}"
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
    return with_dimensions(recording, tuple(names[i] for i in kept))


def with_dimensions(recording: Recording, names: tuple[str, ...]) -> Recording:
    """Keeps some dimensions, in this order. Raises RecordingError where one is not there."""
    there = recording.space.names
    unknown = [name for name in names if name not in there]
    if unknown:
        raise RecordingError(
            f"there is no dimension {unknown[0]!r} with a variance and a label. Dimensions there "
            f"are: {', '.join(there)}."
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


def _matching(options: argparse.Namespace, recording: Recording) -> MatchingConfig:
    """Makes the settings of [matching] from options. Raises ValueError."""
    space = recording.space
    lengths = [one.name for one in space.dimensions if one.kind is DimensionKind.LENGTH]
    place = [name for name in ("x", "y") if name in lengths] or lengths[:2]
    given: dict[str, object] = {"dimensions": place}
    if options.distance is not None:
        given["distance"] = options.distance
        if options.distance is DistanceKind.IMAGE_IOU:
            given["box"] = ("left", "top", "right", "bottom")
        if options.distance in (DistanceKind.BEV_IOU, DistanceKind.IMAGE_IOU):
            given["gate"] = 0.5
    gates: dict[str, float] = options.gate or {}
    if not gates and options.distance is None and not {"x", "y"} & set(lengths):
        raise ValueError(
            f"--labels: give --gate, how far a detection may be off its label in {', '.join(place)}"
            ", in their unit: 20 for boxes in pixels, say."
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


def _table(recording: Recording, columns: Columns) -> LabelTable:
    """Reads labels for the sequences and dimensions of a recording. Raises RecordingError."""
    m, rows = columns.count, np.arange(columns.count)
    sequence = np.zeros(m, np.int64)
    if "seq" in columns.names:
        names, index = coded(columns, "seq", "")
        place = {name: i for i, name in enumerate(recording.sequences)}
        sequence = np.array([place.get(name, -1) for name in names], np.int64)[index]
    elif len(recording.sequences) > 1:
        offer = _offer(columns, "seq")
        raise RecordingError(
            f"{columns.path}: there is no column 'seq', but the detections are of "
            f"{len(recording.sequences)} sequences. {f'Give {offer}, or add' if offer else 'Add'} "
            f"it, with the names {_listed(recording.sequences)}."
        )
    by_frame = "frame" in columns.names and recording.frame is not None
    time_ns = None
    if not by_frame:
        time_ns = _times(recording, columns, rows)
    classes, class_index = coded(columns, "class", OBJECT)
    id = tracks_of(columns, rows)
    names = recording.space.names
    return LabelTable(
        sequence=sequence,
        frame=columns.integers("frame", rows) if by_frame else None,
        time_ns=time_ns,
        classes=classes,
        class_index=class_index,
        id=np.full(m, NO_TRACK) if id is None else id,
        position=np.stack([columns.floats(name, rows, np.nan) for name in names], axis=1),
        ignore=columns.flags("ignore", rows) if "ignore" in columns.names else np.zeros(m, bool),
    )


def _times(recording: Recording, columns: Columns, rows: IntArray) -> IntArray:
    """(m,) ns on the clock of the detections. Raises RecordingError without a common clock."""
    if recording.stamp_ns is not None and "stamp_ns" in columns.names:
        return columns.integers("stamp_ns", rows)
    if recording.time_s is not None and recording.stamp_ns is None and "t" in columns.names:
        return np.rint(columns.floats("t", rows) * 1e9).astype(np.int64)
    wanted = ["frame"] if recording.frame is not None else []
    wanted += ["t"] if recording.time_s is not None and recording.stamp_ns is None else []
    offer = _offer(columns, *wanted) or "--label-map"
    raise RecordingError(
        f"{columns.path}: labels and detections share no column of frame, t and stamp_ns, so no "
        f"label finds its frame. Add one to both files, or name it by --map and {offer}."
    )


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
        return stamps, labels.time_ns, round(self.config.max_gap_seconds * 1e9)

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

    def records(self) -> Iterator[tuple[IntArray, LabelRecord]]:
        """Yields, frame by frame, the rows of its detections and what labels told of them."""
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
                yield rows, match(told, frame, np.ones(n, bool), self.config, limits)

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


def check_labels(options: argparse.Namespace) -> None:
    """Raises ValueError where options of matching have no labels to act on."""
    why = "there are no labels to match. Give --labels FILE as well, or leave it out."
    allow(options, options.labels is not None, why, *_SETTINGS)


def _gates(text: str) -> dict[str, float]:
    expected = "a distance above 0, such as 2, or one by class, such as Car=3,Pedestrian=1.5"

    def read(text: str) -> dict[str, float]:
        if "=" not in text:
            return {"": float(text)}
        return {name: float(gate) for name, gate in names_of(text).items()}

    return checked(
        text, read, expected, lambda gates: all(0 < gate < np.inf for gate in gates.values())
    )
