"""What labels told of a frame, and what was counted for it, as bytes and back.

How many detections the frame has, and in how many dimensions, is known by the frame alone: what
is read is held against it by `of_frame`.
"""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
from google.protobuf.message import DecodeError

from monitor.calibration.limits import MOST_DIMENSIONS
from monitor.calibration.space import FloatArray, square_from_triangle, triangle_in_square
from monitor.counters import TruthAccount
from monitor.edges.kept_arrays import (
    bytes_in,
    check_below,
    corrupt,
    count_in,
    floats_in,
    floats_of,
    naturals_in,
    naturals_of,
    tracks_in,
    tracks_of,
)
from monitor.ledger import INLINE, GateVerdict, LabelRecord, Outcome
from monitor.stored_frame import StoredFrame
from monitor.v1 import ledger_pb2 as pb

_COUNTS = tuple(field.name for field in fields(TruthAccount))
_OUTCOMES = len(Outcome)
_GATES = len(GateVerdict)


def encode_labels(record: LabelRecord) -> bytes:
    """A record as bytes.

    raises  ValueError for one of revision INLINE: what came with a frame is written with it
    """
    if record.revision == INLINE:
        raise ValueError("revision: INLINE is written with its frame: use encode_frame.")
    message = labels_message(record)
    message.revision = record.revision
    return message.SerializeToString()


def labels_message(record: LabelRecord) -> pb.KeptLabels:
    """All but the revision."""
    covariance, gate = record.truth_covariance, record.gate
    return pb.KeptLabels(
        replaces=record.replaces,
        settled=naturals_of(record.settled),
        outcome=record.outcome.tobytes(),
        rows=naturals_of(record.rows),
        truth=floats_of(record.truth),
        truth_covariance=b"" if covariance is None else floats_of(_triangles(covariance)),
        objects=tracks_of(record.objects),
        class_rows=naturals_of(record.class_rows),
        true_class=naturals_of(record.true_class),
        counted_stamp_ns=record.stamp_ns,
        clock_ns=record.clock_ns,
        generation=record.generation,
        delay_ns=record.delay_ns,
        live=record.live,
        account=[getattr(record.account, name) for name in _COUNTS],
        objects_told=record.objects_told,
        gate=b"" if gate is None else gate.tobytes(),
    )


def decode_labels(data: bytes) -> LabelRecord:
    """The inverse of encode_labels, bit for bit; `of_frame` gives it to its frame.

    Without rows, what is there of each of them is not known: truth is (0, 0), and neither
    truth_covariance nor gate is there.

    Raises CorruptEntry.
    """
    try:
        message = pb.KeptLabels.FromString(data)
    except DecodeError:
        raise corrupt("labels", f"{len(data)} bytes", "a KeptLabels is expected") from None
    return labels_in(message, message.revision)


def labels_in(message: pb.KeptLabels, revision: int, where: str = "") -> LabelRecord:
    """The record of a message.

    where   before the name of each field
    raises  CorruptEntry
    """
    settled = naturals_in(message.settled, f"{where}settled")
    rows = naturals_in(message.rows, f"{where}rows")
    m = rows.size
    truth = _truth(message.truth, m, f"{where}truth")
    class_rows = naturals_in(message.class_rows, f"{where}class_rows")
    covariance = None
    if message.truth_covariance:
        field = f"{where}truth_covariance"
        covariance = _squares(message.truth_covariance, m, truth.shape[1], field)
    return LabelRecord(
        revision=revision,
        replaces=message.replaces,
        settled=settled,
        outcome=bytes_in(message.outcome, f"{where}outcome", settled.size, _OUTCOMES),
        rows=rows,
        truth=truth,
        truth_covariance=covariance,
        objects=(
            tracks_in(message.objects, f"{where}objects", m)
            if message.HasField("objects")
            else None
        ),
        class_rows=class_rows,
        true_class=naturals_in(message.true_class, f"{where}true_class", class_rows.size),
        stamp_ns=message.counted_stamp_ns if message.HasField("counted_stamp_ns") else None,
        clock_ns=message.clock_ns if message.HasField("clock_ns") else None,
        generation=message.generation,
        delay_ns=message.delay_ns,
        live=message.live,
        account=_account(message, f"{where}account"),
        objects_told=message.objects_told,
        gate=bytes_in(message.gate, f"{where}gate", m, _GATES) if message.gate else None,
    )


def of_frame(record: LabelRecord, frame: StoredFrame, where: str = "") -> LabelRecord:
    """The record, where it can be of this frame.

    where   before the name of each field
    raises  CorruptEntry
    """
    for name in ("settled", "rows", "class_rows"):
        check_below(getattr(record, name), frame.n, where + name)
    check_below(record.true_class, len(frame.header.classes), f"{where}true_class")
    m, width = record.truth.shape
    k = frame.header.space.k
    if m == 0:
        return replace(record, truth=np.zeros((0, k)))
    if width != k:
        raise corrupt(f"{where}truth", f"{width} dimensions", f"the frame has {k}")
    return record


def _account(message: pb.KeptLabels, field: str) -> TruthAccount:
    """Those that were not yet counted when it was written are 0."""
    if len(message.account) > len(_COUNTS):
        raise corrupt(field, f"{len(message.account)} counts", f"up to {len(_COUNTS)} are known")
    return TruthAccount(*message.account)


def _truth(data: bytes, m: int, field: str) -> FloatArray:
    """(m, K), K as wide as there are numbers for."""
    count = count_in(data, 8, field)
    k, rest = divmod(count, m) if m else (0, count)
    if rest or (m and not 1 <= k <= MOST_DIMENSIONS):
        raise corrupt(field, f"{count} numbers", f"{m} rows of 1 to {MOST_DIMENSIONS} are expected")
    return floats_in(data, field, m, k)


def _triangles(covariance: FloatArray) -> FloatArray:
    """Lower triangles of (m, K, K)."""
    m, k = covariance.shape[:2]
    return covariance.reshape(m, k * k)[:, triangle_in_square(k)]


def _squares(data: bytes, m: int, k: int, field: str) -> FloatArray:
    """(m, K, K), symmetric."""
    packed = floats_in(data, field, m, k * (k + 1) // 2)
    return packed[:, square_from_triangle(k)].reshape(m, k, k)
