"""Messages of RecalibratorAdmin: recalibrators, trials and records, both directions."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import TypeVar

from google.protobuf.timestamp_pb2 import Timestamp

from monitor.promotion.records import (
    Evidence,
    Factor,
    Happened,
    Known,
    Record,
    SliceFitted,
    TrialStanding,
    TrialState,
)
from monitor.recalibration.classes.class_selection import ClassSelection
from monitor.v1 import recalibration_record_pb2 as record_pb
from monitor.v1 import recalibrator_admin_pb2 as admin_pb


class Kind(StrEnum):
    """Kinds of what a recalibrator recalibrates."""

    ESTIMATES = "estimates"  # mean and covariance
    CLASS_PROBABILITIES = "class_probabilities"


@dataclass(frozen=True, slots=True)
class Summary:
    """A recalibrator in a few words.

    in_force     it is active
    dimensions   it was fitted on; empty where any will do, and of class probabilities
    slices       with parameters of their own
    class_names  it was fitted on; empty where any will do, and of estimates
    """

    version: str
    method: str
    kind: Kind
    in_force: bool
    dimensions: tuple[str, ...] = ()
    slices: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Listing:
    """All that RecalibratorAdmin.List tells.

    records    the latest, in order
    promotion  the mode: manual, advise or automatic
    """

    recalibrators: tuple[Summary, ...]
    trials: tuple[TrialStanding, ...]
    records: tuple[Record, ...]
    pinned: bool
    promotion: str


class UnknownWord(ValueError):
    """A sidecar uses a word that came into the contract after this program was written."""


# ---- to messages


def summary(known: Known) -> admin_pb.RecalibratorSummary:
    """Makes one line of RecalibratorAdmin.List."""
    selection = known.selection
    found = admin_pb.RecalibratorSummary(
        version=selection.version,
        method=selection.method,
        promoted=known.promoted,
        kind=admin_pb.RECALIBRATOR_KIND_ESTIMATES,
    )
    if isinstance(selection, ClassSelection):
        found.kind = admin_pb.RECALIBRATOR_KIND_CLASS_PROBABILITIES
        found.class_names.extend(selection.classes)
    else:
        found.dimensions.extend(selection.dimensions)
        found.slices.extend(sorted(selection.by_slice))
    return found


def listing(
    known: Iterable[Known],
    trials: Iterable[TrialStanding],
    records: Iterable[Record],
    promotion: str,
    *,
    pinned: bool,
) -> Generator[None, None, admin_pb.ListResponse]:
    """Makes the answer of RecalibratorAdmin.List, in a step for each entry."""
    found = admin_pb.ListResponse(pinned=pinned, promotion=promotion)
    for entry in known:
        found.recalibrators.append(summary(entry))
        yield
    for standing in trials:
        found.trials.append(_trial(standing))
        yield
    for one in records:
        found.records.append(record(one))
        yield
    return found


def shown(
    known: Known, document: str, records: Iterable[Record]
) -> Generator[None, None, admin_pb.GetResponse]:
    """Makes the answer of RecalibratorAdmin.Get, in a step for each record."""
    found = admin_pb.GetResponse(summary=summary(known), document=document)
    for one in records:
        found.records.append(record(one))
        yield
    return found


def slice_fit(fitted: SliceFitted) -> admin_pb.SliceFit:
    """Makes one line of RecalibratorAdmin.Fit."""
    return admin_pb.SliceFit(
        slice=fitted.slice,
        version=fitted.version,
        reason=fitted.reason,
        tracks=fitted.tracks,
        detections=fitted.detections,
        factors=map(_factor, fitted.factors),
    )


def record(record: Record) -> record_pb.RecalibrationRecord:
    """Makes the message of one entry of the audit log."""
    time = Timestamp()
    time.FromNanoseconds(record.time_ns)
    return record_pb.RecalibrationRecord(
        sequence=record.sequence,
        time=time,
        what=f"HAPPENED_{record.what.name}",
        slice=record.slice,
        version=record.version,
        before=record.before,
        after=record.after,
        actor=record.actor,
        reason=record.reason,
        event_ns=record.event_ns,
        evidence=None if record.evidence is None else _evidence(record.evidence),
        factors=map(_factor, record.factors),
    )


def _trial(standing: TrialStanding) -> admin_pb.Trial:
    return admin_pb.Trial(
        slice=standing.slice,
        version=standing.version,
        state=f"TRIAL_STATE_{standing.state.name}",
        evidence=_evidence(standing.evidence),
        factors=map(_factor, standing.factors),
    )


def _evidence(evidence: Evidence) -> record_pb.Evidence:
    return record_pb.Evidence(
        tracks=evidence.tracks,
        gain=evidence.gain,
        log10_better=evidence.log10_better,
        log10_worse=evidence.log10_worse,
        log10_threshold=evidence.log10_threshold,
    )


def _factor(factor: Factor) -> record_pb.VarianceFactor:
    return record_pb.VarianceFactor(
        dimension=factor.dimension,
        lowest=factor.lowest,
        typical=factor.typical,
        highest=factor.highest,
    )


# ---- from messages


def read_listing(message: admin_pb.ListResponse) -> Listing:
    """Reads the answer of RecalibratorAdmin.List. Raises UnknownWord."""
    return Listing(
        tuple(map(read_summary, message.recalibrators)),
        tuple(map(_read_trial, message.trials)),
        tuple(map(read_record, message.records)),
        message.pinned,
        message.promotion,
    )


def read_summary(message: admin_pb.RecalibratorSummary) -> Summary:
    """Reads one line of RecalibratorAdmin.List. Raises UnknownWord."""
    return Summary(
        message.version,
        message.method,
        word_of(admin_pb.RecalibratorKind.items(), message.kind, Kind, "kind"),
        message.promoted,
        tuple(message.dimensions),
        tuple(message.slices),
        tuple(message.class_names),
    )


def read_slice_fit(message: admin_pb.SliceFit) -> SliceFitted:
    """Reads one line of RecalibratorAdmin.Fit."""
    return SliceFitted(
        message.slice,
        message.version,
        message.reason,
        message.tracks,
        message.detections,
        tuple(map(_read_factor, message.factors)),
    )


def read_record(message: record_pb.RecalibrationRecord) -> Record:
    """Reads one entry of the audit log. Raises UnknownWord."""
    return Record(
        sequence=message.sequence,
        time_ns=message.time.ToNanoseconds(),
        what=word_of(record_pb.Happened.items(), message.what, Happened, "what"),
        slice=message.slice,
        version=message.version,
        before=message.before,
        after=message.after,
        actor=message.actor,
        reason=message.reason,
        event_ns=message.event_ns if message.HasField("event_ns") else None,
        evidence=_read_evidence(message.evidence) if message.HasField("evidence") else None,
        factors=tuple(map(_read_factor, message.factors)),
    )


def _read_trial(message: admin_pb.Trial) -> TrialStanding:
    return TrialStanding(
        message.slice,
        message.version,
        word_of(admin_pb.TrialState.items(), message.state, TrialState, "state"),
        _read_evidence(message.evidence),
        tuple(map(_read_factor, message.factors)),
    )


def _read_evidence(message: record_pb.Evidence) -> Evidence:
    return Evidence(
        message.tracks,
        message.gain,
        message.log10_better,
        message.log10_worse,
        message.log10_threshold,
    )


def _read_factor(message: record_pb.VarianceFactor) -> Factor:
    return Factor(message.dimension, message.lowest, message.typical, message.highest)


Word = TypeVar("Word", bound=Enum)


def word_of(values: Iterable[tuple[str, int]], number: int, words: type[Word], field: str) -> Word:
    """Finds the word whose name ends the name of an enum's value. Raises UnknownWord."""
    name = next((name for name, value in values if value == number), "")
    for word in words:
        if name.endswith(f"_{word.name}"):
            return word
    raise UnknownWord(
        f"the sidecar answers with '{field}' {number}, which is unknown here: use the program of "
        "the sidecar's own version."
    )
