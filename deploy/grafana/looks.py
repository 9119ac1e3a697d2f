"""Colours, thresholds and texts of values: what is healthy is told alike on all dashboards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from grafana_foundation_sdk.models import dashboard as model

RAW, RECALIBRATED = "orange", "blue"
GOOD, WARNING, BAD, CALM = "green", "orange", "red", "text"

# Each colour holds from its value on; the first one from below.
Steps = tuple[tuple[float | None, str], ...]
# Numbers that stand for words, and the colours of these.
Words = Mapping[int, tuple[str, str]]

NEUTRAL: Steps = ((None, CALM),)
NONE_IS_GOOD: Steps = ((None, GOOD), (1, BAD))
NONE_IS_CALM: Steps = ((None, CALM), (1, WARNING))
# Of NEES/K and of factors on the variance: what fits and alerts leave alone.
BAND: Steps = ((None, WARNING), (0.5, GOOD), (2, BAD))
# The same of σ, which is the root of a variance.
DEVIATION_BAND: Steps = ((None, WARNING), (0.7071, GOOD), (1.4142, BAD))
# Of ENCE over its noise floor: at 1 a calibrated detector would read the same.
ABOVE_FLOOR: Steps = ((None, GOOD), (1.5, WARNING), (3, BAD))
# What `calibration_drift_state` says.
STATES: Words = {
    0: ("nothing found", GOOD),
    1: ("evidence", "yellow"),
    2: ("ALARM", BAD),
    3: ("too few labels", "blue"),
}


def above(warning: float, bad: float | None = None) -> Steps:
    """Good below the first number."""
    return ((None, GOOD), (warning, WARNING), *(() if bad is None else ((bad, BAD),)))


def below(bad: float, warning: float | None = None) -> Steps:
    """Good above the last number."""
    middle: Steps = () if warning is None else ((bad, WARNING),)
    return ((None, BAD), *middle, (warning or bad, GOOD))


@dataclass(frozen=True, slots=True)
class Values:
    """How numbers are shown.

    unit      one of Grafana's: `none` is a plain number, `s` seconds, `bytes`, `percentunit` a
              share, `ops` a second, `suffix:…` a word of our own
    steps     from which value on which colour holds
    words     of numbers that stand for them
    least, most, decimals   of axes and bars; None: as it comes
    """

    unit: str = "none"
    steps: Steps = NEUTRAL
    words: Words | None = None
    least: float | None = None
    most: float | None = None
    decimals: float | None = None

    def thresholds(self) -> model.ThresholdsConfig:
        return model.ThresholdsConfig(
            mode=model.ThresholdsMode.ABSOLUTE,
            steps=[model.Threshold(value=value, color=color) for value, color in self.steps],
        )

    def mappings(self) -> list[model.ValueMapping]:
        nothing = model.SpecialValueMap(
            options=model.DashboardSpecialValueMapOptions(
                match=model.SpecialValueMatch.NULL_AND_NAN,
                result=model.ValueMappingResult(text="–", color=CALM),
            )
        )
        if self.words is None:
            return [nothing]
        options = {
            str(value): model.ValueMappingResult(text=text, color=color, index=index)
            for index, (value, (text, color)) in enumerate(self.words.items())
        }
        return [model.ValueMap(options=options), nothing]


DRIFT = Values(steps=((None, GOOD), (1, "yellow"), (2, BAD), (3, "blue")), words=STATES)
