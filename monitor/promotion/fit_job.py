"""What a fit is asked for, and what comes of it. How it is done is in fit_slices.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from monitor.calibration.detections import Limits
from monitor.promotion.settings import FitSettings
from monitor.recalibration.fit_rows import FitRows
from monitor.recalibration.recalibrator import Recalibrator


@dataclass(frozen=True, slots=True)
class FitJob:
    """Slices of one space to fit, each on its own rows.

    slices  rows by slice name; rows of one track follow each other, tracks by age, oldest first
    limits  of the deviations that a recalibrator may make of the rows it was fitted on
    """

    settings: FitSettings
    slices: Mapping[str, FitRows]
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True, slots=True)
class FitOutcome:
    """What came of it, by slice name; every slice of the job is in one of the two.

    fitted   recalibrators
    refused  why a slice could not be fitted
    """

    fitted: Mapping[str, Recalibrator]
    refused: Mapping[str, str]


class CannotFit(ValueError):
    """A fit was asked for that cannot be begun; the message names the field, value and remedy."""


class NoTracksYet(LookupError):
    """A fit was asked for before there was anything to fit on."""


class FitFailed(RuntimeError):
    """A fit crashed, hung, or returned what cannot be used; the message says which."""
