"""Messages of RecalibratorAdmin: recalibrators, trials and records."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass
from enum import StrEnum

from monitor.promotion.records import KnownRecalibrator, Record, TrialStanding
from monitor.recalibration.classes.class_selection import ClassSelection
from monitor.v1 import recalibration_record_pb2 as record_pb
from monitor.v1 import recalibrator_admin_pb2 as admin_pb
from monitor.wire.fields import message_of


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


def summary(known: KnownRecalibrator) -> admin_pb.RecalibratorSummary:
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
    known: Iterable[KnownRecalibrator],
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
        found.trials.append(message_of(admin_pb.Trial, standing))
        yield
    for one in records:
        found.records.append(message_of(record_pb.RecalibrationRecord, one))
        yield
    return found


def shown(
    known: KnownRecalibrator, document: str, records: Iterable[Record]
) -> Generator[None, None, admin_pb.GetResponse]:
    """Makes the answer of RecalibratorAdmin.Get, in a step for each record."""
    found = admin_pb.GetResponse(summary=summary(known), document=document)
    for one in records:
        found.records.append(message_of(record_pb.RecalibrationRecord, one))
        yield
    return found
