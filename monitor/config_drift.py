"""The settings of how drift of calibration is watched."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, NonNegativeFloat, PositiveFloat

from monitor.calibration.drift.settings import DriftSettings, Unit
from monitor.config_section import Section

Tolerance = Annotated[float, Field(ge=1)]
Tracks = Annotated[int, Field(ge=2, le=100_000)]
# The defaults of what the pure core takes are its own.
_CORE = DriftSettings()


class DriftConfig(Section):
    """How often a false alarm may come, and what counts as drift."""

    watch: bool = True  # False: nothing is watched, no alarm ever comes
    # h of driving between two false alarms, over all slices together
    hours_between_false_pages: PositiveFloat = _CORE.hours_between_false_pages
    hours_between_false_tickets: PositiveFloat = _CORE.hours_between_false_tickets
    # On σ; overconfidence (underconfidence) by less is no drift.
    page_tolerance: Tolerance = _CORE.page_tolerance
    ticket_tolerance: Tolerance = _CORE.ticket_tolerance
    # What counts as one observation: track-second (where tracks are known, seconds of them; and
    # detections, tempered), detection (these alone), track (strict: whole tracks).
    unit: Unit = _CORE.unit
    # Tracks and detections of a slice that what is usual is learned from, at least; after ten times
    # as many detections tracks are waited for no longer.
    reference_tracks: Tracks = _CORE.reference_tracks
    reference_detections: Annotated[int, Field(ge=100, le=10_000_000)] = _CORE.reference_detections
    # s of driving with truth of a slice that it is learned over, at least.
    reference_seconds: NonNegativeFloat = _CORE.reference_seconds
    # Path of a reference that `calibration-monitor reference` wrote; empty: learned in each epoch.
    reference: str = ""
    # h of driving without a new alarm that end one; 0: it stays
    calm_hours: NonNegativeFloat = _CORE.calm_hours
    # That say so before there is an alarm, where tracks are known: one odd object is no drift.
    fewest_tracks: Annotated[int, Field(ge=1, le=1000)] = _CORE.fewest_tracks
    refit_on_page: bool = False  # a page asks for a fit of its slice, and its trial
    # Followed at a time, over all slices.
    open_tracks: Annotated[int, Field(ge=1, le=1_000_000)] = _CORE.most_open
    # s without truth that end a track.
    track_idle_seconds: Annotated[float, Field(ge=0.05)] = _CORE.idle_seconds
    # Evidence, references and alarms on disk; in the working directory; empty: none are kept.
    path: str = "calibration-monitor.drift"
    # s between two writes.
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
            reference_seconds=self.reference_seconds,
            fewest_tracks=self.fewest_tracks,
            calm_hours=self.calm_hours,
            most_open=self.open_tracks,
            idle_seconds=self.track_idle_seconds,
        )
