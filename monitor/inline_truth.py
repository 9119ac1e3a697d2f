"""What came with the detections of a frame themselves: ground truth, their class, or both.

Every detection that carries either is accounted for like one label.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from monitor.calibration.class_matched import Opinions
from monitor.calibration.detections import Examined, FrameBatch, ReceivedDetections
from monitor.calibration.space import BoolArray, IntArray
from monitor.counters import TruthAccount
from monitor.ledger import INLINE, LabelRecord, Outcome


@dataclass(frozen=True, slots=True)
class InlineTruth:
    """Of the n detections of a batch.

    resolved    (n,) whose fate is known by it
    rows        those that have ground truth
    class_rows  those that have class probabilities and a true class
    """

    account: TruthAccount
    resolved: BoolArray
    rows: IntArray
    class_rows: IntArray


def labels_sent(received: ReceivedDetections) -> int:
    """How many detections carry a label of any kind, usable or not."""
    return int(np.count_nonzero(_labelled(received)))


def inline_truth(
    received: ReceivedDetections, examined: Examined, opinions: Opinions | None
) -> InlineTruth | None:
    """As match_by_id has it for labels; None where no detection carries any.

    Ground truth that cannot be used refuses the class beside it too: a better label may come.
    A class that cannot be used leaves the ground truth beside it as it is.
    """
    labelled = _labelled(received)
    sent = int(np.count_nonzero(labelled))
    if sent == 0:
        return None
    batch = examined.batch
    has_truth = np.isfinite(batch.truth[:, 0])
    rows = np.flatnonzero(has_truth)
    class_rows, resolved, matched = rows[:0], has_truth, rows.size
    if opinions is not None and received.ground_truth_class is not None:
        told = np.flatnonzero((batch.true_class >= 0) & ~examined.truth_invalid[batch.rows])
        class_rows = told[opinions.of(told)]
        resolved = has_truth.copy()
        resolved[class_rows] = True
        matched = int(np.count_nonzero(resolved))
    bad_class = examined.true_class_invalid & (received.truth_length == 0)
    refused = int(np.count_nonzero(examined.truth_invalid | bad_class))
    account = TruthAccount(matched=matched, refused=refused, unusable=sent - refused - matched)
    return InlineTruth(account, resolved, rows, class_rows)


def inline_record(
    truth: InlineTruth,
    batch: FrameBatch,
    stamp_ns: int | None,
    clock_ns: int | None,
    generation: int,
) -> LabelRecord:
    """As the ledger has it.

    stamp_ns, clock_ns, generation  as of LabelRecord
    """
    settled = np.flatnonzero(truth.resolved)
    return LabelRecord(
        revision=INLINE,
        replaces=False,
        settled=settled,
        outcome=np.full(settled.size, Outcome.MATCHED, np.uint8),
        rows=truth.rows,
        truth=batch.truth[truth.rows],
        truth_covariance=None,
        objects=None,
        class_rows=truth.class_rows,
        true_class=batch.true_class[truth.class_rows],
        stamp_ns=stamp_ns,
        clock_ns=clock_ns,
        generation=generation,
        delay_ns=0,
        live=True,
        account=truth.account,
    )


def _labelled(received: ReceivedDetections) -> BoolArray:
    labelled: BoolArray = received.truth_length > 0
    if received.ground_truth_class is not None:
        labelled = labelled | received.ground_truth_class[1]
    return labelled
