"""How recalibrators fare, read off a running sidecar."""

from __future__ import annotations

import copy

import numpy as np

from monitor.forwarding import Recalibrated
from monitor.promotion.factors import factors_made
from monitor.promotions import Promotions
from monitor.recalibration_reading import RecalibrationReading, SliceFactors


def reading(
    promotions: Promotions, store_failures: int, known: tuple[SliceFactors, ...]
) -> RecalibrationReading:
    """As of now.

    known  what was applied before, in slices of which nothing was forwarded since
    """
    factors = {entry.slice: entry for entry in known}
    for recalibrated in promotions.pipeline.latest.values():
        factors |= {entry.slice: entry for entry in _applied(recalibrated, promotions)}
    return RecalibrationReading(
        copy.deepcopy(promotions.counters),
        tuple(factors.values()),
        promotions.trials(),
        promotions.pinned,
        store_failures,
    )


def _applied(recalibrated: Recalibrated, promotions: Promotions) -> list[SliceFactors]:
    """What was made of a frame, by slice."""
    slices = promotions.pipeline.slices.slices
    found = []
    for slice in np.unique(recalibrated.slices).tolist():
        rows = np.flatnonzero(recalibrated.slices == slice)
        names = slices[slice].space.names
        made, sent = recalibrated.made.take(rows), recalibrated.sent.take(rows)
        found.append(SliceFactors(slices[slice].name, factors_made(made, sent, names)))
    return found
