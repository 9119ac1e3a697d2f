"""A family as a whole on simulated tracks, as a sidecar has it: it learns what is usual by itself,
and seconds of tracks and detections share the budget. Run lengths and delays, in detections.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.drift_detectors import THRESHOLD
from benchmarks.drift_streams import HEALTHY, Fault, K, Streams, World
from monitor.drift.alarms import AlarmChange, AlarmReason
from monitor.drift.bets import SEVERITIES, Severity, Stage
from monitor.drift.evidence import DriftSettings
from monitor.drift.family import Family
from monitor.drift.reference import Reference
from monitor.drift.usual import WatchedRows
from monitor.frames.space import FloatArray
from monitor.statistics.observations import finished

DETECTIONS = 8  # of a frame
PERIOD_NS = 100_000_000
# Hours of driving in which there are 10⁴ detections.
HOURS = THRESHOLD / DETECTIONS * PERIOD_NS * 1e-9 / 3600
CHUNK = 16  # frames at a time
LEARNT = 20_000  # detections that a reference for delays is learned from
SLICE = "car"
# Detections within which σ × 1.25 is to be found at a tolerance of 1, by ρ.
MOST = {0.6: 90, 0.9: 300}
Given = Mapping[str, Mapping[Stage, Reference]]


@dataclass
class Drive:
    """One stream through one family of slices.

    most  evidence of all slices together, in hours, by severity
    """

    family: Family
    streams: Streams
    frames: int = 0
    most: FloatArray = field(default_factory=lambda: np.zeros(len(SEVERITIES)))
    alarms: dict[Severity, list[int]] = field(
        default_factory=lambda: {severity: [] for severity in SEVERITIES}
    )

    def go(self, frames: int, fault: Fault = HEALTHY, level: FloatArray | None = None) -> None:
        """Drive on; alarms are acknowledged, so that the next is heard.

        level  (frames,) ln of a factor on all variances; None: 0
        """
        for begin in range(0, frames, CHUNK):
            count = min(CHUNK, frames - begin)
            nees, track = self.streams.take(count, fault)
            if level is not None:
                nees *= np.exp(level[begin : begin + count, None, None])
            stamps = (self.frames + np.arange(count)) * PERIOD_NS
            rows = WatchedRows(
                slices=np.zeros(nees.size, np.int64),
                nees=np.stack([nees.ravel()] * 2),
                track=track.ravel().astype(np.uint64) + np.uint64(1),
                frame=np.repeat(np.arange(count), DETECTIONS),
                stamp_ns=stamps,
                source=np.zeros(count, np.int64),
                changed=np.zeros(count, bool),
            )
            taken = self.family.take(K, rows)
            finished(self.family.learn(taken))
            self.frames += count
            np.maximum(self.most, self.family.peak, out=self.most)
            self._hear(taken.changes)

    def _hear(self, changes: list[AlarmChange]) -> None:
        for change in changes:
            if change.why is AlarmReason.RAISED:
                frame = change.alarm.event_ns // PERIOD_NS + 1
                self.alarms[change.alarm.severity].append(frame)
        if changes:
            self.family.acknowledge((), "benchmark")


def asked(tolerance: float) -> DriftSettings:
    """The defaults but for the budget, 10⁴ detections for each severity, and the tolerance."""
    return DriftSettings(
        hours_between_false_pages=HOURS,
        hours_between_false_tickets=HOURS,
        page_tolerance=tolerance,
        ticket_tolerance=tolerance,
    )


def drive(world: World, settings: DriftSettings, seed: int, given: Given | None = None) -> Drive:
    """About to begin."""
    family = Family(settings, given or {})
    family.grow(SLICE, K)
    return Drive(family, Streams(world, 1, np.random.default_rng(seed)))


def learnt(world: World, seed: int) -> Given:
    """What is usual of a long drive without fault."""
    long = drive(world, DriftSettings(reference_detections=LEARNT), seed)
    long.go(2 * LEARNT // DETECTIONS)
    return {SLICE: dict(zip(Stage, long.family.usual.references[0], strict=True))}


def delay(
    world: World, tolerance: float, fault: Fault, given: Sequence[Given], seeds: int
) -> float:
    """Median detections to the first alarm of the right kind; ∞ where half heard none.

    given  what is usual, by turns
    """
    severity = Severity.PAGE if fault.factor > 1 else Severity.TICKET
    healthy, horizon, found = 64, 304, []
    for seed in range(seeds):
        one = drive(world, asked(tolerance), seed, given[seed % len(given)])
        one.go(healthy)
        after: list[int] = []
        while not after and one.frames < healthy + horizon:
            one.go(CHUNK, fault)
            after = [frame - healthy for frame in one.alarms[severity] if frame > healthy]
        found.append(after[0] * DETECTIONS if after else math.inf)
    return float(np.median(found))


def family_tables(quick: bool) -> bool:
    """The tables; whether run lengths and delays are as promised."""
    seeds, frames, references = (60, 8_000, 3) if quick else (200, 50_000, 5)
    worlds = [World(DETECTIONS, *error) for error in ((0, 0), (0.6, 0), (0.9, 0), (0.6, 0.5))]
    given = {world: [learnt(world, 1000 + i) for i in range(references)] for world in worlds}
    holds = True
    for tolerance, faults in (
        (1.0, (Fault(1.25), Fault(1.5), Fault(0.8))),
        (math.sqrt(2), (Fault(1.75), Fault(2.25), Fault(0.5))),
    ):
        print(f"\na family as a whole, {DETECTIONS} tracks at a time, tolerance {tolerance:.2f}")
        heads = [f"σ × {fault.factor}" for fault in faults]
        print("".join(f"{cell:>16}" for cell in ("", "γ learned", "pages", "tickets", *heads)))
        for world in worlds:
            long = drive(world, asked(tolerance), seed=5)
            long.go(frames)
            gamma = long.family.usual.references[0][Stage.RECALIBRATED].tempering
            lengths = []
            for severity in SEVERITIES:
                alarms = len(long.alarms[severity])
                length = frames * DETECTIONS / max(alarms, 1)
                holds &= length >= THRESHOLD
                lengths.append(f"{'>' if alarms == 0 else ''}{length:,.0f} ({alarms})")
            delays = [delay(world, tolerance, fault, given[world], seeds) for fault in faults]
            if tolerance == 1 and world.bias == 0:
                holds &= delays[0] <= MOST.get(world.correlation, math.inf)
            numbers = [f"{found:,.0f}" for found in delays]
            head = f"ρ {world.correlation}, bias {world.bias}"
            cells = (head, f"{gamma:.3f}", *lengths, *numbers)
            print("".join(f"{cell:>16}" for cell in cells), flush=True)
    return holds
