"""Measures drift alarms by how many frames have labels: what is found, how soon, and what is named.

Simulates tracks in three dimensions at 10 Hz, whose errors are AR(1) with heavy tails. Labels come
on every frame down to one frame in thirty, while the reference is learned from a drive with labels
on every frame. Prints delays of large and of subtle faults, of a detector that is wrong from its
first frame, and alarms and highest evidence of hours without a fault. Exits with 1 where a bound is
missed.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.signal import lfilter

from benchmarks.drift import row
from benchmarks.machine import machine
from monitor.commands.reference import References, learn_references
from monitor.drift.alarms import Alarm, AlarmReason
from monitor.drift.charts import SEVERITIES, Severity
from monitor.drift.evidence import DriftSettings
from monitor.drift.family import Family
from monitor.drift.usual import BLOCK_NS, WatchedRows, watched_errors
from monitor.frames.space import Columns, Dimension, DimensionKind, FloatArray, IntArray, Space
from monitor.statistics.clusters import ClusterArray, cluster_id
from monitor.statistics.observations import finished, measure
from monitor.store.recordings import Recording

RATE = 10  # Hz
PERIOD_NS = BLOCK_NS // RATE
SLICE = "Car"
SPACE = Space(tuple(Dimension(name, "m", DimensionKind.LENGTH) for name in "xyz"))
X, Y = 0, 1

# ---- labelled detections, and a watch over them


@dataclass(frozen=True, eq=False, slots=True)
class Labelled(Columns):
    """Holds n detections with truth of one source, by frame.

    frame       (n,) number, ascending
    track       (n,)
    error       (n, K) truth − mean
    covariance  (n, K, K)
    """

    frame: IntArray
    track: ClusterArray
    error: FloatArray
    covariance: FloatArray

    @property
    def n(self) -> int:
        """Counts the detections."""
        return int(self.frame.size)

    def thinned(self, every: int) -> Labelled:
        """Keeps the labels of one frame in so many."""
        return self.take(self.frame % every == 0)


def rows_of(space: Space, part: Labelled, source: int = 0) -> WatchedRows:
    """Measures detections as the watch of a sidecar does; both stages are the same."""
    measured = measure(space, [(part.error, part.covariance)])
    kept = np.flatnonzero(measured.regular)
    nees, z, u, error = watched_errors(space, [measured] * 2, kept)
    there, frame = np.unique(part.frame[kept], return_inverse=True)
    return WatchedRows(
        slices=np.zeros(kept.size, np.int64),
        nees=nees,
        z=z,
        u=u,
        error=error,
        track=part.track[kept],
        frame=frame,
        stamp_ns=there * PERIOD_NS,
        source=np.full(there.size, source),
        changed=np.zeros(there.size, bool),
    )


@dataclass(slots=True)
class Heard:
    """Tells what became of one drive.

    early   alarms before the fault
    alarms  after it; each is acknowledged, so that the next is heard
    most    (2,) highest M/T before the fault, by severity
    """

    early: list[Alarm] = field(default_factory=list)
    alarms: list[Alarm] = field(default_factory=list)
    most: FloatArray = field(default_factory=lambda: np.zeros(len(SEVERITIES)))

    def first(self, *severities: Severity) -> Alarm | None:
        """Returns the first alarm of these severities after the fault; of any, without names."""
        wanted = severities or SEVERITIES
        return next((one for one in self.alarms if one.severity in wanted), None)

    @property
    def highest(self) -> float:
        """Returns log10 of the highest M/T before the fault."""
        return math.log10(max(float(self.most.max()), 1e-99))


def watched(
    family: Family, space: Space, labelled: Labelled, begins: float = math.inf, source: int = 0
) -> Heard:
    """Drives through a family by portions, the frames of one second each.

    begins  frame from which there is a fault
    """
    heard, k = Heard(), len(space.joint)
    if not family.slices:
        family.grow(SLICE, space.dimensions)
    second = labelled.frame // RATE
    edges = [0, *(np.flatnonzero(np.diff(second)) + 1).tolist(), labelled.n]
    for begin, end in pairwise(edges):
        rows = rows_of(space, labelled.take(slice(begin, end)), source)
        if rows.n == 0:
            continue
        changes, learning = family.take(k, rows)
        finished(learning)
        faulty = labelled.frame[begin] >= begins
        if not faulty:
            np.maximum(heard.most, family.peak / family.thresholds, out=heard.most)
        raised = [one.alarm for one in changes if one.why is AlarmReason.RAISED]
        (heard.alarms if faulty else heard.early).extend(raised)
        if raised:
            family.acknowledge((), "benchmark")
    return heard


def named(alarm: Alarm) -> str:
    """Says what an alarm names: severity, detector, direction, and more where it is known."""
    words = [str(alarm.severity), str(alarm.detector), str(alarm.direction)]
    quantity, dimension = getattr(alarm, "quantity", ""), getattr(alarm, "dimension", "")
    return " ".join([*words, *([dimension or "all", quantity] if quantity else [])])


def sizes(alarms: Sequence[Alarm]) -> str:
    """Says the median size that alarms of one name tell, in its unit; '' where they tell none."""
    told = [float(getattr(one, "size", math.nan)) for one in alarms]
    if not np.isfinite(told).any():
        return ""
    return f" {np.nanmedian(told):.2g} {getattr(alarms[0], 'unit', '')}".rstrip()


def names_of(alarms: Sequence[Alarm]) -> str:
    """Counts what alarms name, the most frequent first."""
    found = dict[str, list[Alarm]]()
    for one in alarms:
        found.setdefault(named(one), []).append(one)
    ranked = sorted(found.items(), key=lambda item: -len(item[1]))
    return "; ".join(f"{len(of)} {name}{sizes(of)}" for name, of in ranked)


def delay(alarm: Alarm | None, begins: int) -> float:
    """Returns the s from a fault to its alarm; ∞ without one."""
    return math.inf if alarm is None else (alarm.event_ns / PERIOD_NS - begins + 1) / RATE


def reference_of(
    space: Space, drives: Sequence[Labelled], settings: DriftSettings | None = None
) -> References:
    """Learns what is usual from all of some recorded drives, as `reference` does.

    settings  that say how much is enough
    raises    TooLittleToLearn
    """
    number = np.repeat(np.arange(len(drives)), [one.n for one in drives])
    frame = np.concatenate([one.frame for one in drives])
    error = np.concatenate([one.error for one in drives])
    names = tuple(f"drive {i:04}" for i in range(len(drives)))
    tracks = np.unique(np.concatenate([one.track for one in drives]), return_inverse=True)[1]
    recording = Recording(
        space=space,
        mean=np.zeros_like(error),
        covariance=np.concatenate([one.covariance for one in drives]),
        diagonal=False,
        truth=error,
        classes=(SLICE,),
        class_index=np.zeros(frame.size, np.int64),
        sequences=names,
        sequence_index=number,
        frame=frame,
        time_s=frame / RATE,
        score=None,
        track=tracks,
        ignore=None,
        last_frame={name: int(one.frame[-1]) for name, one in zip(names, drives, strict=True)},
        row=np.arange(frame.size),
        assumed=np.zeros(frame.size, bool),
    )
    asked = settings or DriftSettings(reference_tracks=10, reference_detections=1000)
    return learn_references("benchmark", [recording], None, asked)


# ---- faults

Fault = Callable[[Labelled], Labelled]


def scaled(factor: float) -> Fault:
    """Makes all covariances so many times as large."""
    return lambda one: replace(one, covariance=one.covariance * factor)


def one_scaled(dimension: int, factor: float) -> Fault:
    """Makes the variance of one dimension so many times as large; correlations stay."""

    def fault(one: Labelled) -> Labelled:
        scale = np.ones(one.error.shape[1])
        scale[dimension] = math.sqrt(factor)
        return replace(one, covariance=one.covariance * np.outer(scale, scale))

    return fault


def biased(dimension: int, metres: float) -> Fault:
    """Moves the mean of one dimension."""

    def fault(one: Labelled) -> Labelled:
        return replace(one, error=one.error - metres * np.eye(one.error.shape[1])[dimension])

    return fault


def flipped(one: Labelled) -> Labelled:
    """Turns the sign of the correlation of x and y in the covariances."""
    sign = np.ones(one.covariance.shape[1:])
    sign[X, Y] = sign[Y, X] = -1.0
    return replace(one, covariance=one.covariance * sign)


def with_outliers(one: Labelled) -> Labelled:
    """Adds to each tenth error, by chance, 3 L t: t of 2 degrees, L Lᵀ the covariance."""
    random = np.random.default_rng(28)
    n, k = one.error.shape
    t = random.standard_normal((n, k)) / np.sqrt(random.chisquare(2, n) / 2)[:, None]
    gross = 3 * np.einsum("nij,nj->ni", np.linalg.cholesky(one.covariance), t)
    return replace(one, error=one.error + np.where(random.random((n, 1)) < 0.1, gross, 0.0))


LARGE: dict[str, Fault] = {"σ² ÷ 5": scaled(0.2), "σ² × 5": scaled(5.0)}
FAULTS: dict[str, Fault] = {
    **LARGE,
    "σ² ÷ 2.5": scaled(0.4),
    "σ² of y ÷ 10": one_scaled(Y, 0.1),
    "x off by 0.3 m": biased(X, 0.3),
    "correlation x, y flipped": flipped,
    "10 % outliers": with_outliers,
}
RATES = (1, 2, 5, 10, 30)  # labels on one frame in so many


def befallen(labelled: Labelled, fault: Fault, begins: int) -> Labelled:
    """Lets a fault begin at a frame."""
    at = int(np.searchsorted(labelled.frame, begins))
    return Labelled.joined([labelled.take(slice(at)), fault(labelled.take(slice(at, None)))])


# ---- simulated tracks

OBJECTS = 8  # at a time
SHORTEST, LONGEST = 10 * RATE, 20 * RATE  # frames that an object lives
CORRELATION = 0.65  # AR(1) of successive errors
HOLDS, WANDERS = 0.5, 20.0  # s, correlation times: of the scale of tails, of what objects share
SHAPE = np.array([1.0, 0.8, 0.6])  # σ of x, y, z in σ of the range
MOST_CORRELATED = 0.6  # x and y, in covariances and errors alike


@dataclass(frozen=True)
class World:
    """Says how errors are while nothing is wrong: in σ, of unit variance but for what wanders.

    degrees  of freedom of Student-t tails: a factor on σ of all dimensions, which goes on for a
             while, as that of an object half hidden does; 0: Gaussian
    bias     deviation of the constant error of an object in each dimension, a part of the variance
    moves    deviation of an error of each dimension that all objects share, and that wanders
    breathes the same of ln of the variance of each dimension
    """

    degrees: int = 0
    bias: float = 0.0
    moves: float = 0.0
    breathes: float = 0.0

    def drawn(self, seed: int, seconds: float) -> Labelled:
        """Draws a drive with labels on every frame."""
        random, frames = np.random.default_rng([28, seed]), round(seconds * RATE)
        start, life = _lives(random, frames)
        lives, k = life.size, SPACE.k
        errors = _going_on(random.standard_normal((lives, LONGEST, k)), CORRELATION, axis=1)
        if self.degrees:
            # χ² of so many degrees, which goes on.
            parts = random.standard_normal((lives, LONGEST, self.degrees))
            tails = (_going_on(parts, math.exp(-1 / RATE / HOLDS), axis=1) ** 2).sum(axis=2)
            errors *= np.sqrt((self.degrees - 2) / tails)[..., None]
        errors *= math.sqrt(1 - self.bias**2)
        errors += self.bias * random.standard_normal((lives, 1, k))
        age = np.arange(LONGEST)
        frame = start[:, None] + age
        there = (age < life[:, None]) & (frame >= 0) & (frame < frames)
        shared = frame[there]
        if self.breathes:
            errors[there] *= np.exp(0.5 * _wandering(random, frames, self.breathes)[shared])
        if self.moves:
            errors[there] += _wandering(random, frames, self.moves)[shared]
        # By range: objects come nearer or go away.
        ends = random.uniform(0.1, 0.4, (2, lives, 1))
        sigma = (ends[0] + (ends[1] - ends[0]) * age / LONGEST)[..., None] * SHAPE
        rho = random.uniform(-MOST_CORRELATED, MOST_CORRELATED, (lives, 1))
        errors[..., Y] = rho * errors[..., X] + np.sqrt(1 - rho**2) * errors[..., Y]
        matrix = np.zeros((lives, 1, k, k)) + np.eye(k)
        matrix[..., X, Y] = matrix[..., Y, X] = rho
        covariance = matrix * sigma[..., :, None] * sigma[..., None, :]
        order = np.argsort(shared, kind="stable")
        number = np.broadcast_to(np.arange(lives)[:, None], there.shape)[there][order]
        return Labelled(
            frame=shared[order],
            track=cluster_id((number, 0)),
            error=(errors * sigma)[there][order],
            covariance=covariance[there][order],
        )


def _lives(random: np.random.Generator, frames: int) -> tuple[IntArray, IntArray]:
    """Draws first frames and lengths of lives: one ends, the next begins, of OBJECTS at a time."""
    most = frames // SHORTEST + 2
    life = random.integers(SHORTEST, LONGEST + 1, (OBJECTS, most))
    # Those of the first frame began before it.
    began = random.integers(0, SHORTEST, (OBJECTS, 1))
    start = np.cumsum(life, axis=1) - life - began
    there = start < frames
    return start[there], life[there]


def _going_on(fresh: FloatArray, keeps: float, axis: int) -> FloatArray:
    """Makes white noise an AR(1) process of the same variance, from its first value on."""
    fresh = np.moveaxis(fresh, axis, 0)
    fresh[1:] *= math.sqrt(1 - keeps * keeps)
    found: FloatArray = np.moveaxis(lfilter([1.0], [1.0, -keeps], fresh, axis=0), 0, axis)
    return found


def _wandering(random: np.random.Generator, frames: int, deviation: float) -> FloatArray:
    """Follows an Ornstein-Uhlenbeck process in each dimension, (frames, K)."""
    fresh = deviation * random.standard_normal((frames, SPACE.k))
    return _going_on(fresh, math.exp(-1 / RATE / WANDERS), axis=0)


WORLDS: dict[str, World] = {
    "AR(1) of 0.65": World(),
    "… and t5": World(5),
    "… and bias of objects 0.5 σ": (whole := World(5, 0.5)),
    **{f"… and shared bias {sd} σ": replace(whole, moves=sd) for sd in (0.1, 0.2)},
    **{f"… and shared ln σ² {sd}": replace(whole, breathes=sd) for sd in (0.1, 0.2)},
}
TEACHES = 1200.0  # s of a drive that a reference is learned from
BEGINS = 10 * RATE  # frame of a fault
HORIZON = 60.0  # s
DRIVE = 0.5  # h of a drive without fault
THIN = {
    "some 8 tracks": 5.0,
    "some 13 tracks": 12.0,
    "some 22 tracks": 30.0,
}  # s of a drive that a reference is from

# ---- tables


def say(name: str, text: str) -> None:
    """Prints a line of words under a table."""
    print(f"{name:>34}  {text}", flush=True)


@dataclass(frozen=True)
class Task:
    """Describes one drive."""

    world: World
    seed: int
    seconds: float
    every: int
    fault: str = ""
    begins: float = math.inf
    given: References | None = None


def driven(task: Task) -> Heard:
    """Takes a drive of its own through a family of its own."""
    labelled = task.world.drawn(task.seed, task.seconds)
    if task.fault:
        labelled = befallen(labelled, FAULTS[task.fault], int(task.begins))
    family = Family(DriftSettings(), task.given or {})
    return watched(family, SPACE, labelled.thinned(task.every), task.begins)


def taught(world: World, every: int = 1, seconds: float = TEACHES, seed: int = 1000) -> References:
    """Learns a reference from a drive with labels on one frame in so many."""
    asked = DriftSettings(reference_tracks=5, reference_detections=100)
    return reference_of(SPACE, [world.drawn(seed, seconds).thinned(every)], asked)


def known_words(given: References) -> str:
    """Says what is known of how errors hang together."""
    one = next(iter(given[SLICE].values()))
    said = f"{one.detections} detections, NEES/K {one.nees_ratio:.2f}, γ {one.tempering:.3f}"
    if one.levels is None:
        return f"{said}, no levels"
    level = one.levels
    return (
        f"{said}; {level.tracks} tracks, m0 {level.mean[0]:.2f}, τ {level.between[0]:.2f}, "
        f"ω {level.within[0]:.2f}, {level.length:.1f} a second"
    )


@dataclass(frozen=True)
class Bench:
    """Runs drives, and prints what came of them.

    pool   of processes
    seeds  drives of each kind
    """

    pool: Any
    seeds: int

    def heard(self, tasks: Sequence[Task]) -> list[list[Heard]]:
        """Drives each task once for every seed."""
        every = [replace(one, seed=seed) for one in tasks for seed in range(self.seeds)]
        found = self.pool.map(driven, every, chunksize=max(1, len(every) // 64))
        return [found[i : i + self.seeds] for i in range(0, len(found), self.seeds)]

    def delays(self, heads: Sequence[str], rows: Mapping[str, Sequence[Task]]) -> list[list[float]]:
        """Prints how many drives alarm, and the median s to it; returns medians of all drives."""
        row("", *heads)
        told, medians, highest = list[tuple[str, str]](), [], np.full(len(heads), -99.0)
        for name, tasks in rows.items():
            cells, found = [], []
            for i, (task, heard) in enumerate(zip(tasks, self.heard(tasks), strict=True)):
                waited = [delay(one.first(), int(task.begins)) for one in heard]
                there = [one for one in waited if math.isfinite(one)]
                middle = f", {np.median(there):.1f} s" if there else ""
                early = sum(len(one.early) for one in heard)
                false = f" ({early} false)" if early else ""
                cells.append(f"{len(there)}/{len(heard)}{middle}{false}")
                found.append(float(np.median(waited)))
                highest[i] = max(highest[i], *(one.highest for one in heard))
                first = [alarm for one in heard if (alarm := one.first()) is not None]
                told.append((f"{name}, {heads[i]}", names_of(first)))
            row(name, *cells)
            medians.append(found)
        if highest.max() > -99.0:
            row("log10 M/T before the fault", *(f"{one:.1f}" for one in highest))
        print("\nwhat the first alarm of a drive names")
        for name, said in told:
            if said:
                say(name, said)
        return medians


def fault_tables(bench: Bench, usual: World) -> bool:
    """Prints delays by rate; returns whether one reference does as well as one of each rate."""
    full = taught(usual)
    own = {every: taught(usual, every) for every in RATES}
    print(f"\nreferences by rate; t{usual.degrees}, bias of objects {usual.bias} σ")
    for every, given in own.items():
        say(f"1/{every}", known_words(given))
    task = Task(usual, 0, BEGINS / RATE + HORIZON, 1, begins=BEGINS, given=full)
    heads = [f"1/{every}" for every in RATES]
    print(
        f"\nfault after {BEGINS / RATE:g} s, one reference of all frames; first alarm of any kind"
    )
    one = bench.delays(
        heads,
        {name: [replace(task, fault=name, every=every) for every in RATES] for name in FAULTS},
    )
    print("\nthe same, a reference of the same rate")
    of_each = {
        name: [replace(task, fault=name, every=every, given=own[every]) for every in RATES]
        for name in LARGE
    }
    each = bench.delays(heads, of_each)
    print("\nσ² ÷ 5 from the first frame")
    known: dict[str, References | None] = {"no reference": None}
    known |= {name: taught(usual, seconds=seconds) for name, seconds in THIN.items()}
    known |= {"20 minutes": full}
    for name, one_of in known.items():
        if one_of is not None:
            say(name, known_words(one_of))
    first = replace(task, fault="σ² ÷ 5", begins=0)
    from_first = {
        name: [replace(first, every=every, given=one_of) for every in RATES]
        for name, one_of in known.items()
    }
    bench.delays(heads, from_first)
    tenth = RATES.index(10)
    return all(a[tenth] <= b[tenth] for a, b in zip(one, each, strict=False))


def healthy_table(bench: Bench, hours: float) -> bool:
    """Prints alarms and highest evidence of hours without fault; returns whether none alarmed.

    hours  over all worlds; they are driven at each rate, with a given reference and without
    """
    drives = max(1, round(hours / len(WORLDS) / DRIVE))
    print(f"\nno fault, {drives} drives of {DRIVE:g} h in each world, each with every reference")
    row("", "labels", "reference", "pages", "tickets", "log10 M/T")
    silent, bench = True, replace(bench, seeds=drives)
    for name, world in WORLDS.items():
        given = taught(world)
        tasks = [
            Task(world, 0, DRIVE * 3600, every, given=known)
            for every in (1, 10)
            for known in (given, None)
        ]
        for task, heard in zip(tasks, bench.heard(tasks), strict=True):
            alarms = Counter(alarm.severity for one in heard for alarm in one.early)
            usual = "own" if task.given is None else "all frames"
            most = max(one.highest for one in heard)
            cells = (alarms[severity] for severity in SEVERITIES)
            row(name, f"1/{task.every}", usual, *cells, f"{most:.1f}")
            if alarms:
                say("", names_of([alarm for one in heard for alarm in one.early]))
                silent = False
    return silent


def main() -> int:
    """Returns 0 where all bounds hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a fifth of it: for a look")
    parser.add_argument("--only", choices=("faults", "healthy"), help="one half of it")
    parser.add_argument("--hours", type=float, help="without a fault, over all worlds")
    parser.add_argument("--seeds", type=int, help="drives of each fault")
    parser.add_argument("--bias", type=float, default=0.3, help="of objects, in σ, beside faults")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    options = parser.parse_args()
    hours = options.hours or (7.0 if options.quick else 30.0)
    seeds = options.seeds or (8 if options.quick else 30)
    # Processes of one thread each.
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    print(machine())
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        bench = Bench(pool, seeds)
        holds = options.only == "healthy" or fault_tables(bench, World(5, options.bias))
        silent = options.only == "faults" or healthy_table(bench, hours)
    print("all bounds hold" if holds and silent else "a bound is missed")
    return 0 if holds and silent else 1


if __name__ == "__main__":
    sys.exit(main())
