"""Runs a family of slices as a whole on simulated tracks: does it find faults, and nothing else?

As in a sidecar, it learns what is usual by itself, and seconds of tracks and detections share the
budget. First run lengths and delays, in detections. Then levels that wander: weather, or the pose
of the vehicle, moves the errors of all objects alike, here along paths that stay within the band,
at the default settings and behind two healthy minutes. Exits with 1 where a bound is missed, or a
path raises an alarm.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from scipy.signal import lfilter

from benchmarks.drift import LIFE, THRESHOLD, Fault, K, row, run_words
from benchmarks.machine import machine
from monitor.drift.alarms import AlarmReason
from monitor.drift.charts import SEVERITIES, Severity, Stage
from monitor.drift.evidence import DriftSettings
from monitor.drift.family import Family
from monitor.drift.reference import Reference
from monitor.drift.usual import WatchedRows
from monitor.frames.detections import IdArray
from monitor.frames.space import FloatArray
from monitor.statistics.observations import finished
from tests.drift.drives import DIMENSIONS, correlated_errors

DETECTIONS, RATE = 8, 10  # of a frame; Hz
PERIOD_NS = 10**9 // RATE
HOURS = THRESHOLD / DETECTIONS / RATE / 3600  # of driving in which there are 10⁴ detections
CHUNK = 16  # frames at a time
LEARNT = 20_000  # detections that a reference for delays is learned from
BEFORE, HORIZON = 64, 304  # frames before a change, and after it
SLICE = "car"
Errors = tuple[float, float]  # ρ, and the bias of a track in σ
# Detections within which σ × 1.25 is to be found at a tolerance of 1.
WORLDS = {(0.0, 0.0): math.inf, (0.6, 0.0): 90.0, (0.9, 0.0): 300.0, (0.6, 0.5): math.inf}
FAULTS = {
    1.0: (Fault(1.25), Fault(1.5), Fault(0.8)),
    math.sqrt(2): (Fault(1.75), Fault(2.25), Fault(0.5)),
}
Given = Mapping[Stage, Reference]


@dataclass
class Drive:
    """Takes one stream through one family.

    most    evidence of all slices together, in hours, by severity
    alarms  frames at which they were raised
    """

    family: Family
    frames: int = 0
    most: FloatArray = field(default_factory=lambda: np.zeros(len(SEVERITIES)))
    alarms: dict[Severity, list[int]] = field(default_factory=lambda: {s: [] for s in SEVERITIES})

    def go(self, errors: FloatArray, track: IdArray) -> None:
        """Takes in errors (frames, K, tracks) in stated deviations, which are not correlated.

        Alarms are acknowledged, so that the next is heard.
        """
        for begin in range(0, len(errors), CHUNK):
            part = slice(begin, begin + CHUNK)
            count, _, tracks = errors[part].shape
            z = np.stack([errors[part].swapaxes(0, 1).reshape(K, -1)] * 2)
            rows = WatchedRows(
                slices=np.zeros(count * tracks, np.int64),
                nees=np.square(z).sum(axis=1),
                z=z,
                u=z,
                error=z,
                track=track[part].ravel(),
                frame=np.repeat(np.arange(count), tracks),
                stamp_ns=(self.frames + np.arange(count)) * PERIOD_NS,
                source=np.zeros(count, np.int64),
                changed=np.zeros(count, bool),
            )
            changes, learning = self.family.take(K, rows)
            finished(learning)
            self.frames += count
            np.maximum(self.most, self.family.peak, out=self.most)
            for change in changes:
                if change.why is AlarmReason.RAISED:
                    frame = change.alarm.event_ns // PERIOD_NS + 1
                    self.alarms[change.alarm.severity].append(frame)
            if changes:
                self.family.acknowledge((), "benchmark")


def drive(settings: DriftSettings, given: Given | None = None) -> Drive:
    """Makes a drive that is about to begin; what is usual at each stage is given, or learned."""
    family = Family(settings, {SLICE: given} if given else {})
    family.grow(SLICE, DIMENSIONS[:K])
    return Drive(family)


# ---- run lengths and delays


def tracks_drawn(
    seed: int, frames: int, correlation: float, bias: float = 0.0, life: int = LIFE
) -> tuple[FloatArray, IdArray]:
    """Draws errors (frames, K, tracks) and ids of as many tracks at a time as detections."""
    return correlated_errors(seed, K, correlation, frames, DETECTIONS, life, bias)


def asked(tolerance: float) -> DriftSettings:
    """Gives the defaults but for the budget, 10⁴ detections for each severity, and tolerance."""
    return DriftSettings(
        hours_between_false_pages=HOURS,
        hours_between_false_tickets=HOURS,
        page_tolerance=tolerance,
        ticket_tolerance=tolerance,
    )


def learnt(world: Errors, seed: int) -> Given:
    """Learns what is usual from a long drive without fault."""
    long = drive(DriftSettings(reference_detections=LEARNT))
    long.go(*tracks_drawn(seed, 2 * LEARNT // DETECTIONS, *world))
    return dict(zip(Stage, map(long.family.slices[0].reference, Stage), strict=True))


def delay(
    world: Errors, tolerance: float, fault: Fault, given: Sequence[Given], seeds: int
) -> float:
    """Returns the median detections to the first right alarm; ∞ where half heard none.

    given  what is usual, by turns
    """
    severity, found = SEVERITIES[fault.direction], []
    for seed in range(seeds):
        one = drive(asked(tolerance), given[seed % len(given)])
        errors, track = tracks_drawn(seed, BEFORE + HORIZON, *world)
        errors[BEFORE:] *= fault.factor
        one.go(errors, track)
        after = [frame - BEFORE for frame in one.alarms[severity] if frame > BEFORE]
        found.append(after[0] * DETECTIONS if after else math.inf)
    return float(np.median(found))


def run_table(quick: bool) -> bool:
    """Prints run lengths and delays; returns whether they are as promised."""
    seeds, frames, references = (60, 8_000, 3) if quick else (200, 50_000, 5)
    given = {world: [learnt(world, 1000 + i) for i in range(references)] for world in WORLDS}
    holds = True
    for tolerance, faults in FAULTS.items():
        print(f"\na family as a whole, {DETECTIONS} tracks at a time, tolerance {tolerance:.2f}")
        row("", "γ learned", "pages", "tickets", *map(str, faults))
        for world in WORLDS:
            long = drive(asked(tolerance))
            long.go(*tracks_drawn(5, frames, *world))
            gamma = long.family.slices[0].reference(Stage.RECALIBRATED).tempering
            alarms = [len(long.alarms[severity]) for severity in SEVERITIES]
            lengths = [frames * DETECTIONS / max(count, 1) for count in alarms]
            delays = [delay(world, tolerance, fault, given[world], seeds) for fault in faults]
            holds &= min(lengths) >= THRESHOLD
            holds &= tolerance > 1 or delays[0] <= WORLDS[world]
            runs = map(run_words, lengths, alarms)
            found = (f"{detections:,.0f}" for detections in delays)
            row("ρ {}, bias {}".format(*world), f"{gamma:.3f}", *runs, *found)
    return holds


# ---- common levels that wander: s since the reference is learned to ln of a factor on variances

FOLLOWED = 200  # frames a track lives, 20 s, as a car that is followed through a crossing
HEALTHY_SECONDS = 120
Path = Callable[[FloatArray, np.random.Generator], FloatArray]


def ramps(first: float, second: float, hold: float, seconds: float = 0.0) -> Path:
    """Moves between two factors, held for some seconds; each change is spread over others."""
    knots = np.cumsum([0.0, hold, seconds, hold, seconds])
    low, high = math.log(first), math.log(second)
    levels = [low, low, high, high, low]
    return lambda time, _: np.interp(time % (2 * (hold + seconds)), knots, levels)


def wave(most: float, period: float) -> Path:
    """Follows a sinusoid between 1 / most and most."""
    return lambda time, _: math.log(most) * np.sin(2 * math.pi * time / period)


def wandering(deviation: float, seconds: float) -> Path:
    """Follows an Ornstein-Uhlenbeck process of a correlation time, cut at the ends of the band."""

    def path(time: FloatArray, random: np.random.Generator) -> FloatArray:
        keeps = math.exp(-float(time[1] - time[0]) / seconds)
        drawn = deviation * random.standard_normal(time.size)
        drawn[1:] *= math.sqrt(1 - keeps * keeps)
        # Strictly inside the band.
        end = 0.999 * 2 * math.log(DriftSettings().page_tolerance)
        found: FloatArray = np.clip(lfilter([1.0], [1.0, -keeps], drawn), -end, end)
        return found

    return path


PATHS: dict[str, Path] = {
    **{f"× 0.6 ↔ 1.67 every {hold:g} s": ramps(0.6, 1.67, hold) for hold in (3.0, 10.0, 60.0)},
    "× 0.7 ↔ 1.4 every 10 s": ramps(0.7, 1.4, 10.0),
    "× 1 ↔ 1.7 every 10 s": ramps(1.0, 1.7, 10.0),
    **{f"× 0.6 ↔ 1.67, ramps of {s:g} s": ramps(0.6, 1.67, 10.0, s) for s in (2.0, 5.0)},
    **{f"sinusoid to 1.67, {s:g} s": wave(1.67, s) for s in (20.0, 60.0, 120.0)},
    **{
        f"OU of sd {deviation}, {seconds:g} s": wandering(deviation, seconds)
        for seconds in (60.0, 600.0)
        for deviation in (0.1, 0.2, 0.35)
    },
}


def follow(name: str, hours: float) -> Drive:
    """Drives along one path, behind what is healthy."""
    one, healthy = drive(DriftSettings()), HEALTHY_SECONDS * RATE
    time = np.arange(round(hours * 3600 * RATE)) / RATE
    errors, track = tracks_drawn(1, healthy + time.size, 0.0, life=FOLLOWED)
    # Of the variance.
    path = PATHS[name](time, np.random.default_rng(1))
    errors[healthy:] *= np.exp(path / 2)[:, None, None]
    one.go(errors, track)
    return one


def wander_table(hours: float) -> bool:
    """Prints alarms, s to the first and most evidence in h of each path; whether none alarmed."""
    print(f"\ncommon levels that wander within the band, {hours:g} h each, 8 tracks at a time")
    row("", *("pages", "first, s", "log10 h", "tickets", "first, s", "log10 h"))
    silent = True
    with multiprocessing.get_context("spawn").Pool() as pool:
        for name, one in zip(PATHS, pool.imap(partial(follow, hours=hours), PATHS), strict=True):
            cells: list[object] = []
            for frames, most in zip(one.alarms.values(), one.most, strict=True):
                first = f"{frames[0] / RATE - HEALTHY_SECONDS:.0f}" if frames else ""
                cells += [len(frames), first, f"{math.log10(max(most, 1e-99)):.1f}"]
            row(name, *cells)
            silent &= not any(one.alarms.values())
    return silent


def main() -> int:
    """Returns 0 where all bounds hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a sixth of it: for a look")
    parser.add_argument("--hours", type=float, default=1.0, help="along each path that wanders")
    options = parser.parse_args()
    # Processes of one thread each.
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    print(machine())
    holds = run_table(options.quick)
    silent = wander_table(options.hours)
    print("all bounds hold" if holds and silent else "a bound is missed")
    return 0 if holds and silent else 1


if __name__ == "__main__":
    sys.exit(main())
