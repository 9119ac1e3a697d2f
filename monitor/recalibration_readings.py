"""How recalibrators fare, read off a running sidecar."""

from __future__ import annotations

import copy
from collections.abc import Generator
from dataclasses import dataclass, field

import numpy as np

from monitor.forwarding import Recalibrated
from monitor.promotion.factors import factors_made
from monitor.promotions import Promotions
from monitor.recalibration_reading import RecalibrationReading, SliceFactors


@dataclass(slots=True)
class RecalibrationReadings:
    """Of one sidecar; it remembers what was forwarded in slices of which nothing came since."""

    promotions: Promotions
    # What is remembered is of this version: of another, nobody knows what it would make.
    _version: str = ""
    _known: dict[str, SliceFactors] = field(default_factory=dict)

    def read(self, store_failures: int) -> Generator[None, None, RecalibrationReading]:
        """As of now, in steps of one stream each."""
        promotions = self.promotions
        pipeline, version = promotions.pipeline, promotions.recalibrators.selection.version
        if version != self._version:
            self._version, self._known = version, {}
        for recalibrated in list(pipeline.latest.values()):
            # A stream that has ended was served by whatever was in force then.
            if recalibrated.selection.version == version:
                self._known |= {entry.slice: entry for entry in self._forwarded(recalibrated)}
            yield
        return RecalibrationReading(
            counters=copy.deepcopy(promotions.counters),
            factors=tuple(self._known.values()),
            trials=promotions.trials(),
            pinned=promotions.pinned,
            store_failures=store_failures,
            left_out=promotions.learning.left_out,
        )

    def _forwarded(self, recalibrated: Recalibrated) -> list[SliceFactors]:
        """What went on of a frame, by slice."""
        slices, forwarded = self.promotions.pipeline.slices.slices, recalibrated.forwarded
        found = []
        for slice in np.unique(recalibrated.slices).tolist():
            rows = np.flatnonzero(recalibrated.slices == slice)
            names = slices[slice].space.names
            made, sent = forwarded.take(rows), recalibrated.sent.take(rows)
            found.append(SliceFactors(slices[slice].name, factors_made(made, sent, names)))
        return found
