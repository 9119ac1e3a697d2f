"""A common level of all tracks that wanders within the band raises no alarm; one that leaves it
does, as soon as ever.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from monitor.drift.alarms import AlarmReason
from monitor.drift.bets import Severity
from monitor.drift.evidence import DriftSettings
from monitor.drift.family import Family
from monitor.drift.usual import WatchedRows
from monitor.statistics.observations import finished
from tests.calibration.drift.correlated import correlated

K, RATE, HEALTHY, SECONDS = 4, 10, 120, 120
TIME = np.arange(SECONDS * RATE) / RATE
SPREAD = math.log(1.67)


def wandering(deviation: float, seconds: float) -> np.ndarray:
    """An Ornstein-Uhlenbeck process, cut at the ends of the band."""
    random, keeps = np.random.default_rng(7), math.exp(-1 / RATE / seconds)
    found = np.empty(TIME.size)
    found[0] = deviation * random.standard_normal()
    for i in range(1, TIME.size):
        drawn = math.sqrt(1 - keeps**2) * deviation * random.standard_normal()
        found[i] = keeps * found[i - 1] + drawn
    return np.clip(found, -0.69, 0.69)


PATHS = {
    "steps": np.where(TIME // 10 % 2 == 0, -SPREAD, SPREAD),
    "steps upwards": np.where(TIME // 10 % 2 == 0, 0.0, math.log(1.7)),
    "ramps": SPREAD * np.interp(TIME % 24, [0, 10, 12, 22, 24], [-1, -1, 1, 1, -1]),
    "waves": SPREAD * np.sin(2 * math.pi * TIME / 20),
    "OU": wandering(0.35, 60.0),
}


def alarms_along(path: np.ndarray, *, tracks: int, correlation: float) -> list[tuple[str, float]]:
    """Severities, and seconds since the reference was learned, at the default settings."""
    frames = HEALTHY * RATE + path.size
    nees, track = correlated(3, K, correlation, frames, tracks, life=200)
    nees[HEALTHY * RATE :] *= np.exp(path)[:, None]
    family, found = Family(DriftSettings()), []
    family.grow("car", K)
    for begin in range(0, frames, RATE):
        rows = nees[begin : begin + RATE].ravel()
        taken = family.take(
            K,
            WatchedRows(
                slices=np.zeros(rows.size, np.int64),
                nees=np.stack([rows, rows]),
                track=track[begin : begin + RATE].ravel(),
                frame=np.repeat(np.arange(RATE), tracks),
                stamp_ns=(begin + np.arange(RATE)) * (10**9 // RATE),
                source=np.zeros(RATE, np.int64),
                changed=np.zeros(RATE, bool),
            ),
        )
        finished(family.learn(taken))
        for change in taken.changes:
            if change.why is AlarmReason.RAISED:
                found.append((change.alarm.severity.value, change.alarm.event_ns / 1e9 - HEALTHY))
    return found


@pytest.mark.parametrize("tracks, correlation", [(8, 0.0), (3, 0.6)])
@pytest.mark.parametrize("path", PATHS)
def test_a_common_level_that_wanders_within_the_band_raises_no_alarm(path, tracks, correlation):
    assert alarms_along(PATHS[path], tracks=tracks, correlation=correlation) == []


@pytest.mark.parametrize("path", [0.0, "OU"])
def test_a_common_level_that_leaves_the_band_is_found_in_seconds(path):
    level = (PATHS[path] if isinstance(path, str) else path) + np.where(TIME < 60, 0.0, 2.0)
    severity, seconds = alarms_along(level, tracks=8, correlation=0.6)[0]
    assert severity == Severity.PAGE
    assert 60 < seconds <= 63
