"""What a sidecar is asked to watch for, and how it learns what is usual."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from monitor.calibration.drift.charts import Severity


class Unit(StrEnum):
    """What counts as one observation."""

    TRACK_SECOND = "track-second"  # seconds of tracks, and detections tempered by correlation
    DETECTION = "detection"  # detections alone, tempered by correlation
    TRACK = "track"  # strict: whole tracks, whatever their detections have in common


@dataclass(frozen=True, slots=True)
class DriftSettings:
    """Of all slices.

    hours_between_false_pages, hours_between_false_tickets
                        T, in hours of driving, over all slices together
    page_tolerance, ticket_tolerance
                        on σ; what is off by less is no drift
    unit                what counts as one observation
    reference_tracks    that a reference is learned from, at least; after ten times as many
                        detections as are asked for, tracks are waited for no longer
    reference_detections
                        that a reference is learned from, at least
    reference_seconds   of driving with truth of a slice that it is learned over, at least
    shortest_reference  fewer tracks teach nothing of how tracks differ: then detections count; a
                        constant, which no configuration names
    fewest_tracks       that say so, before there is an alarm where tracks are known
    calm_hours          of driving without a further alarm that end one; 0: it stays
    most_open           tracks that are followed at a time, over all slices
    idle_seconds        of event time without truth that end a track
    """

    hours_between_false_pages: float = 1000.0
    hours_between_false_tickets: float = 1000.0
    page_tolerance: float = 2.0**0.5
    ticket_tolerance: float = 2.0**0.5
    unit: Unit = Unit.TRACK_SECOND
    reference_tracks: int = 30
    reference_detections: int = 2000
    reference_seconds: float = 60.0
    shortest_reference: int = 10
    fewest_tracks: int = 2
    calm_hours: float = 0.5
    most_open: int = 16384
    idle_seconds: float = 2.0

    def hours(self, severity: Severity) -> float:
        """T of a severity."""
        pages = severity is Severity.PAGE
        return self.hours_between_false_pages if pages else self.hours_between_false_tickets

    def tolerance(self, severity: Severity) -> float:
        """s0 of a severity, on σ."""
        return self.page_tolerance if severity is Severity.PAGE else self.ticket_tolerance
