"""The settings of how drift of calibration is watched."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, NonNegativeFloat, PositiveFloat

from monitor.calibration.drift.settings import DriftSettings, Unit
from monitor.config_section import Section

Tolerance = Annotated[float, Field(ge=1)]
Tracks = Annotated[int, Field(ge=2, le=100_000)]


class DriftConfig(Section):
    """How often a false alarm may come, and what counts as drift."""

    watch: bool = True  # False: nothing is watched, no alarm ever comes
    # h of driving between two false alarms, over all slices together
    hours_between_false_pages: PositiveFloat = 1000.0
    hours_between_false_tickets: PositiveFloat = 1000.0
    page_tolerance: Tolerance = 1.4142  # on σ; overconfidence by less is no drift
    ticket_tolerance: Tolerance = 1.4142  # on σ; underconfidence by less is no drift
    # What counts as one observation: track-second (where tracks are known, seconds of them; and
    # detections, tempered), detection (these alone), track (strict: whole tracks).
    unit: Unit = Unit.TRACK_SECOND
    reference_tracks: Tracks = 30  # of a slice, that what is usual is learned from, at least
    reference_detections: Annotated[int, Field(ge=100, le=10_000_000)] = 2000  # and detections
    # Path of a reference that `calibration-monitor reference` wrote; empty: learned in each epoch.
    reference: str = ""
    calm_hours: NonNegativeFloat = 0.5  # h of driving without a new alarm that end one; 0: stays
    refit_on_page: bool = False  # a page asks for a fit of its slice, and its trial
    open_tracks: Annotated[int, Field(ge=1, le=1_000_000)] = 16384  # at a time, over all slices
    track_idle_seconds: Annotated[float, Field(ge=0.05)] = 2.0  # s without truth that end a track
    # Evidence, references and alarms on disk; in the working directory; empty: none are kept.
    path: str = "calibration-monitor.drift"
    # s between two of them.
    every_seconds: Annotated[float, Field(ge=0.1)] = 10.0

    def settings(self) -> DriftSettings:
        """As the pure core takes them."""
        return DriftSettings(
            hours_between_false_pages=self.hours_between_false_pages,
            hours_between_false_tickets=self.hours_between_false_tickets,
            page_tolerance=self.page_tolerance,
            ticket_tolerance=self.ticket_tolerance,
            unit=self.unit,
            reference_tracks=self.reference_tracks,
            reference_detections=self.reference_detections,
            calm_hours=self.calm_hours,
            most_open=self.open_tracks,
            idle_seconds=self.track_idle_seconds,
        )
