"""Readings of streams and recalibrators that metrics are written from; nothing here writes text.

A value that its owner has at hand is read by the family that shows it, in `metrics`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from monitor.pipeline.forwarding import Recalibrated
from monitor.pipeline.frame_path import Pipeline
from monitor.pipeline.streams import Stream
from monitor.promotion.records import Factor
from monitor.promotion.trial import factors_made

# ns after which a silent stream says nothing of clocks any more.
_RECENT_NS = 60 * 10**9


def stamp_lag(streams: Iterable[Stream], wall_ns: int, monotonic_ns: int) -> dict[str, float]:
    """Returns the least and the most lag of the streams of the last minute, in s; empty without.

    A lag is the wall clock at arrival minus the capture stamp: the time that a frame travels plus
    the difference of the two clocks. Both clocks are given as they are now, in ns.
    """
    lags = [
        (wall_ns - (monotonic_ns - seen.stamped_ns) - seen.stamp_ns) / 1e9
        for seen in (stream.seen for stream in streams)
        if seen.stamp_ns is not None and monotonic_ns - seen.stamped_ns < _RECENT_NS
    ]
    return {"least": min(lags), "most": max(lags)} if lags else {}


@dataclass(slots=True)
class FactorReader:
    """Reads what recalibration makes of variances; remembers slices that fell silent."""

    pipeline: Pipeline
    # The version whose factors are remembered: the factors of another version are unknown.
    _version: str = ""
    _known: dict[str, tuple[Factor, ...]] = field(default_factory=dict)

    def read(self) -> Generator[None, None, Mapping[str, tuple[Factor, ...]]]:
        """Reads the factors of now by slice, one a dimension, in steps of one stream each.

        A factor is the variance as last forwarded over the variance as sent.
        """
        pipeline, version = self.pipeline, self.pipeline.recalibrators.selection.version
        if version != self._version:
            self._version, self._known = version, {}
        for recalibrated in list(pipeline.latest.values()):
            # A stream that has ended was served by the version that was active then.
            if recalibrated.selection.version == version:
                self._known |= self._forwarded(recalibrated)
            yield
        return dict(self._known)

    def _forwarded(self, recalibrated: Recalibrated) -> dict[str, tuple[Factor, ...]]:
        """Returns the factors of one frame, by slice."""
        slices, forwarded = self.pipeline.slices.slices, recalibrated.forwarded
        found = {}
        for slice in np.unique(recalibrated.slices).tolist():
            rows = np.flatnonzero(recalibrated.slices == slice)
            names = slices[slice].space.names
            made, sent = forwarded.take(rows), recalibrated.sent.take(rows)
            found[slices[slice].name] = factors_made(made, sent, names)
        return found
