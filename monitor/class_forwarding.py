"""What the promoted recalibrator makes of the class probabilities of a frame."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np

from monitor.calibration.cholesky import add_up
from monitor.calibration.detections import FrameBatch, Reason
from monitor.calibration.notices import Notice
from monitor.calibration.space import FloatArray, IntArray
from monitor.counters import Counters
from monitor.frames import Header
from monitor.recalibration.classes.class_recalibrator import from_probabilities
from monitor.recalibration.classes.class_selection import ClassSelection
from monitor.recalibrators import in_use

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RecalibratedClasses:
    """What became of the class probabilities of n usable detections.

    probabilities  (n, C), NaN of those that have none; None where that is so for all
    version        of what made them, empty without any
    """

    probabilities: FloatArray | None = None
    version: str = ""
    notices: tuple[Notice, ...] = ()


def recalibrate_classes(
    classes: ClassSelection, header: Header, batch: FrameBatch, counters: Counters
) -> RecalibratedClasses:
    """The recalibrated class probabilities of the detections that have some.

    Every one of these is counted as recalibrated, as of other classes, or as failed.
    """
    opinions = batch.probabilities
    # Of a single class nothing can be said wrong.
    if opinions is None or opinions.shape[2] < 2 or not in_use(classes):
        return RecalibratedClasses()
    rows = np.flatnonzero(~np.isnan(opinions[:, 0, 0]))
    account = counters.class_recalibrations
    if not classes.fits(header.classes):
        account.mismatch += rows.size
        return RecalibratedClasses(notices=(_other_classes(header.classes, batch.rows[rows]),))
    mean = _mean_or_nan(classes, header, opinions[rows], counters)
    finite = np.isfinite(mean).all(axis=1)
    made, failed = rows[finite], batch.rows[rows[~finite]]
    account.recalibrated += made.size
    account.failed += failed.size
    notices = (failed_notice("class_probabilities", failed),) if failed.size else ()
    if made.size == 0:
        return RecalibratedClasses(notices=notices)
    probabilities = np.full((opinions.shape[0], opinions.shape[2]), np.nan)
    probabilities[made] = mean[finite]
    return RecalibratedClasses(probabilities, classes.version, notices)


def _mean_or_nan(
    classes: ClassSelection, header: Header, opinions: FloatArray, counters: Counters
) -> FloatArray:
    try:
        return mean_probabilities(classes, opinions)
    except Exception:
        log.exception(
            "recalibrator %s failed on a frame of stream %s", classes.version, header.stream
        )
        counters.internal_errors += 1
        return np.full((opinions.shape[0], opinions.shape[2]), np.nan)


def mean_probabilities(classes: ClassSelection, opinions: FloatArray) -> FloatArray:
    """(n, C) mean of what each of the opinions (n, M, C) is recalibrated to.

    source  Laves et al. 2019, eq. 25
    """
    made = classes.apply(from_probabilities(opinions))
    if made.shape != opinions.shape:
        raise ValueError(f"{classes.version} made {made.shape} of {opinions.shape}")
    mean: FloatArray = add_up(made.transpose(1, 0, 2)) / opinions.shape[1]
    return mean


def failed_notice(field: str, rows: IntArray) -> Notice:
    """A field that the promoted recalibrator could not make of rows of a frame (n ≥ 1,)."""
    return Notice(
        Reason.RECALIBRATOR_FAILED,
        field,
        "the promoted recalibrator gave none that are finite: absent; promote another.",
        rows.size,
        int(rows[0]),
    )


def _other_classes(names: tuple[str, ...], rows: IntArray) -> Notice:
    shown = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
    return Notice(
        Reason.RECALIBRATOR_MISMATCH,
        "class_names",
        f"{shown}: the promoted recalibrator of class probabilities was fitted on others; "
        "promote one that was fitted on these.",
        rows.size,
        int(rows[0]),
    )
