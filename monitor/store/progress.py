"""The position that a checkpoint has reached, as a protobuf message and back.

It holds what is not in the sums of the statistics, but takes part in what is counted next. With
it, and the entries of the ledger after it, a restarted sidecar goes on as if it had never stopped.
What is read is checked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from monitor.frames.frame import Header
from monitor.frames.space import Space
from monitor.frames.stored import SliceKey
from monitor.statistics.clusters import ALONE, ClusterState
from monitor.store.entries import (
    FLOATS,
    IDS,
    LONGS,
    CorruptEntry,
    decode_header,
    decode_slice_key,
    encode_header,
    encode_slice_key,
    written,
)
from monitor.store.state_definitions import (
    decode_space,
    encode_dimensions,
    invalid,
    read_values,
    values_of,
)
from monitor.v1 import ledger_pb2 as pb


@dataclass(frozen=True, eq=False, slots=True)
class KeptClusters:
    """The tracks of one space that may go on."""

    space: Space
    state: ClusterState


@dataclass(frozen=True, slots=True)
class KeptStream:
    """A stream that was known.

    header                   without what its connection asks for; angles_in_joint of its space
                             is a setting, and False here whatever it was
    number                   tells its tracks from those of others
    watermark_ns, latest_ns  as of EventTime
    """

    header: Header
    number: int
    watermark_ns: int | None = None
    latest_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Share:
    """Detections of one slice by what became of them: as many as came, those that labels told of,
    and the matches that a gate decided, and that lay near it.
    """

    space: Space
    key: SliceKey
    predicted: int = 0
    labelled: int = 0
    gated: int = 0
    near_gate: int = 0


@dataclass(frozen=True, eq=False, slots=True)
class Progress:
    """All of it.

    sequence            of the last entry of the ledger that is in the statistics; 0: of none
    now_ns, votes, other_ns, jumps
                        of the EventClock
    generation          how often event time had begun anew
    clusters            by space, each once
    streams             each once
    numbered            streams numbered so far
    detections, labels  counts by name
    shares              by space and slice, each once
    epoch               of the wall clock
    waiting             detections that waited for their fate
    """

    sequence: int = 0
    now_ns: int | None = None
    votes: int = 0
    other_ns: int = 0
    jumps: int = 0
    generation: int = 0
    clusters: tuple[KeptClusters, ...] = ()
    streams: tuple[KeptStream, ...] = ()
    numbered: int = 0
    detections: Mapping[str, int] = field(default_factory=dict)
    labels: Mapping[str, int] = field(default_factory=dict)
    shares: tuple[Share, ...] = ()
    epoch: int = 0
    waiting: int = 0


_LONGEST_NAME = 64

# What messages and dataclasses name alike.
_OF_CLOCK = ("now_ns", "votes", "other_ns", "jumps", "generation")
_COUNTED = ("sequence", *_OF_CLOCK, "numbered", "epoch", "waiting")
_OF_STREAM = ("number", "watermark_ns", "latest_ns")
_OF_SHARE = ("predicted", "labelled", "gated", "near_gate")


def encode_progress(progress: Progress) -> pb.KeptProgress:
    """The message of progress."""
    return pb.KeptProgress(
        **values_of(progress, (*_COUNTED, "detections", "labels")),
        clusters=[_clusters_message(kept) for kept in progress.clusters],
        streams=[
            pb.KeptStream(
                header=encode_header(stream.header),
                **values_of(stream, _OF_STREAM),
            )
            for stream in progress.streams
        ],
        shares=[
            pb.KeptShare(
                slice=encode_slice_key(share.key),
                dimensions=encode_dimensions(share.space),
                angles_in_joint=share.space.angles_in_joint,
                **values_of(share, _OF_SHARE),
            )
            for share in progress.shares
        ],
    )


def _clusters_message(kept: KeptClusters) -> pb.KeptClusters:
    state = kept.state
    return pb.KeptClusters(
        dimensions=encode_dimensions(kept.space),
        angles_in_joint=kept.space.angles_in_joint,
        **values_of(state, ("axes", "counted")),
        id=IDS.write(state.ids),
        **written(state, last=LONGS, rows=FLOATS, sums=FLOATS),
    )


def decode_progress(message: pb.KeptProgress) -> Progress:
    """The inverse of encode_progress, bit for bit. Raises InvalidState."""
    try:
        clusters = [
            _clusters(entry, f"progress.clusters[{i}]") for i, entry in enumerate(message.clusters)
        ]
    except CorruptEntry as error:
        # What it says to do is for those who hold an entry.
        raise invalid("progress.clusters", str(error).partition(". The entry")[0]) from None
    streams = [
        KeptStream(
            decode_header(entry.header, f"progress.streams[{i}].header"),
            **read_values(entry, _OF_STREAM),
        )
        for i, entry in enumerate(message.streams)
    ]
    shares = [_share(entry, f"progress.shares[{i}]") for i, entry in enumerate(message.shares)]
    _check_once([kept.space for kept in clusters], "progress.clusters")
    _check_once([stream.header.stream for stream in streams], "progress.streams")
    _check_once([(share.space, share.key) for share in shares], "progress.shares")
    return Progress(
        **read_values(message, _COUNTED),
        clusters=tuple(clusters),
        streams=tuple(streams),
        detections=_counts(message.detections, "progress.detections"),
        labels=_counts(message.labels, "progress.labels"),
        shares=tuple(shares),
    )


def _clusters(message: pb.KeptClusters, field: str) -> KeptClusters:
    """Raises InvalidState, CorruptEntry."""
    space = decode_space(message.dimensions, message.angles_in_joint, field)
    ids = IDS.read(message.id, f"{field}.id")
    n, axes = ids.size, 2 * (space.k + 1)
    if message.axes != axes:
        raise invalid(f"{field}.axes", f"{message.axes}, where {space.k} dimensions have {axes}")
    if (ids == ALONE).any() or (ids[1:] <= ids[:-1]).any():
        raise invalid(f"{field}.id", "not ascending above 0")
    last = LONGS.read(message.last, f"{field}.last", n)
    if message.counted < 0 or (n and not 0 <= last.min() <= last.max() < message.counted):
        raise invalid(f"{field}.last", f"not all within the {message.counted} rows counted")
    rows = FLOATS.read(message.rows, f"{field}.rows", n)
    sums = FLOATS.read(message.sums, f"{field}.sums", axes, n)
    if not (np.isfinite(rows).all() and (rows >= 0).all()):
        raise invalid(f"{field}.rows", "negative, or no finite numbers")
    # Below 0 where rows were taken back that came before their track was forgotten.
    if not np.isfinite(sums).all():
        raise invalid(f"{field}.sums", "no finite numbers")
    return KeptClusters(space, ClusterState(axes, message.counted, ids, last, rows, sums))


def _share(message: pb.KeptShare, field: str) -> Share:
    space = decode_space(message.dimensions, message.angles_in_joint, field)
    return Share(
        space,
        decode_slice_key(message.slice, f"{field}.slice"),
        **read_values(message, _OF_SHARE),
    )


def _counts(message: Mapping[str, int], field: str) -> dict[str, int]:
    for name in message:
        if not name or len(name) > _LONGEST_NAME or not name.isprintable():
            raise invalid(field, f"'{name[:80]}' is not 1 to {_LONGEST_NAME} printable characters")
    return dict(sorted(message.items()))


def _check_once(names: Sequence[object], field: str) -> None:
    """Two files joined as bytes would be of two sidecars."""
    if len(set(names)) < len(names):
        raise invalid(field, "the same one twice")
