"""Does a detector without covariances get them by itself, and does a calibrated one keep its own?

Drives of the detector of `estimated`: its errors grow with range, fall with the score, are longer
along the heading, and hang together along tracks. They go through the pipeline with truth inline,
with fits, trials, promotions and the watch over drift as in the sidecar; only the clock is missing.
Exits with 1 where a bound is missed.
"""

from __future__ import annotations

import argparse
import logging
import math
import multiprocessing
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from benchmarks import estimated
from benchmarks.machine import machine
from benchmarks.promotion import fit
from monitor.config import Config
from monitor.drift.alarms import AlarmChange, AlarmReason
from monitor.frames.detections import ReceivedDetections
from monitor.frames.frame import Header, ReceivedFrame, Refusal
from monitor.frames.space import FloatArray, IntArray, Space, plain_space
from monitor.pipeline.frame_path import Pipeline
from monitor.pipeline.promotions import Promotions
from monitor.pipeline.streams import Stream
from monitor.promotion.records import SWAPS, Happened, Record
from monitor.statistics.observations import finished
from monitor.store.journal import Journal

SEEDS, TRACKS = 50, 1000
OBJECTS, RATE_HZ = 8, 10  # at a time: some 2.4 tracks a second
LEARN_FRAMES, FIT_FRAMES = 5, 100  # 0.5 s and 10 s of event time
SLICE = "car, no covariance"

# What must hold: NEES/K of what is forwarded, mean over drives with Gaussian errors; promotions of
# a steady detector; share of drives with an alarm though nothing has changed.
MOST_OFF, MOST_PROMOTIONS, MOST_ALARMED = 0.1, 2.0, 0.04


@dataclass(frozen=True)
class Drive:
    """Describes a kind of drive.

    places   of the dimensions of estimated.SPACE that are sent
    tail     degrees of freedom of Student-t errors
    bare     share of the detections that come without a covariance; the others have the true one
    size     by which all errors are larger than those of `estimated`
    grown    by which they are larger still from track number `fault` on
    mode     of [promotion]
    tracks   of a drive
    method   [promotion] missing_method; None: its default
    ids, scores
             whether tracks have ids, and detections scores
    box      whether four dimensions are sent as those of a box in an image
    """

    name: str
    places: tuple[int, ...] = tuple(range(7))
    tail: float = math.inf
    bare: float = 1.0
    size: float = 1.0
    grown: float = 1.0
    fault: int = TRACKS
    mode: str = "automatic"
    tracks: int = TRACKS
    method: str | None = None
    ids: bool = True
    scores: bool = True
    box: bool = False

    @property
    def section(self) -> dict[str, str]:
        """Returns [promotion]."""
        method = {} if self.method is None else {"missing_method": self.method}
        return {"mode": self.mode, **method}

    @property
    def steady(self) -> bool:
        """Tells whether errors stay as they are."""
        return self.grown == 1.0

    @property
    def space(self) -> Space:
        """Returns the space of what is sent."""
        if self.box:
            return plain_space(("u1", "v1", "u2", "v2"), "px")
        return Space(tuple(estimated.SPACE.dimensions[i] for i in self.places))

    @property
    def header(self) -> Header:
        """Returns the header of the stream; no detection is of the second class."""
        return Header("lidar", self.space, ("car", "bus"))


@dataclass(frozen=True, eq=False)
class Sent:
    """Holds the detections of a frame, all (n, …).

    truth       in the space of the drive
    covariance  true one
    track       number of the track, in the order in which they begin
    ended       tracks that are over by now
    """

    received: ReceivedFrame
    truth: FloatArray
    covariance: FloatArray
    track: IntArray
    ended: int


def frames(drive: Drive, seed: int) -> Iterator[Sent]:
    """Yields frames with inline truth; tracks follow each other in OBJECTS places."""
    random = np.random.default_rng(seed)
    tracks = drive.tracks
    rows, true = estimated.drive(random, tracks, drive.tail)
    here, k = np.array(drive.places), len(drive.places)
    first = np.flatnonzero(np.diff(rows.track, prepend=-1))
    length = np.diff(first, append=rows.n)
    # A track begins where one ends.
    free, begins = np.zeros(OBJECTS, np.int64), np.zeros(tracks, np.int64)
    for i in range(tracks):
        place = int(free.argmin())
        begins[i] = free[place]
        free[place] += length[i]
    at = begins[rows.track] + np.arange(rows.n) - first[rows.track]
    ends = np.sort(begins + length)
    mean = rows.estimates.mean[:, here]
    covariance = true[:, here[:, None], here]
    times = drive.size * np.where(rows.track >= drive.fault, drive.grown, 1.0)
    truth = mean + times[:, None] * rows.error[:, here]
    covariance = covariance * np.square(times)[:, None, None]
    bare = random.random(rows.n) < drive.bare
    flat = np.where(bare[:, None], np.nan, covariance.reshape(rows.n, k * k))
    form, score = np.where(bare, 0, k * k), rows.estimates.score
    assert score is not None
    order = np.argsort(at, kind="stable")
    edges = np.searchsorted(at[order], np.arange(at.max() + 2))
    for i in range(at.max() + 1):
        chosen = order[edges[i] : edges[i + 1]]
        n = chosen.size
        every, lengths = np.ones(n, bool), np.full(n, k)
        detections = ReceivedDetections(
            id=np.arange(n, dtype=np.uint64),
            has_id=every,
            class_index=np.zeros(n, np.int64),
            mean=mean[chosen],
            mean_length=lengths,
            covariance=flat[chosen],
            covariance_length=form[chosen],
            truth=truth[chosen],
            truth_length=lengths,
            uniform=bool(bare[chosen].all() or not bare[chosen].any()),
            score=score[chosen] if drive.scores else None,
            upstream_track=(rows.track[chosen].astype(np.uint64), every) if drive.ids else None,
        )
        ended = int(np.searchsorted(ends, i, side="right"))
        received = ReceivedFrame(i, i * 10**9 // RATE_HZ, detections)
        yield Sent(received, truth[chosen], covariance[chosen], rows.track[chosen], ended)


@dataclass(frozen=True)
class Driven:
    """Tells what became of a drive.

    records  what happened to recalibrators, each with the number of tracks that were over
    alarms   severities of those that were raised, likewise
    nees     (n,) NEES/K of what was forwarded for detections without a covariance
    track    (n,) their tracks
    served   (n,) promotions of their slice before them
    lost     (n,) nats a dimension by which what was forwarded is worse than the true covariance
    """

    records: list[tuple[int, Record]]
    alarms: list[tuple[int, str]]
    nees: FloatArray
    track: IntArray
    served: IntArray
    lost: FloatArray

    def when(self, *kinds: Happened, slice: str = SLICE, since: int = 0) -> list[int]:
        """Lists the tracks that were over at records of some kinds, from a track on."""
        found = ((n, one) for n, one in self.records if one.slice == slice and n >= since)
        return [n for n, one in found if one.what in kinds]

    def level(self, first: int) -> float:
        """Averages NEES/K of what was forwarded by an estimate, from a track on; NaN: none."""
        some = (self.served > 0) & (self.track >= first)
        return float(self.nees[some].mean()) if some.any() else math.nan


def begun(drive: Drive) -> tuple[Promotions, Stream]:
    """Begins a sidecar without edges, and opens the stream of a drive."""
    logging.disable(logging.INFO)
    config = Config.model_validate({"promotion": drive.section})
    promotions = Promotions(Pipeline(config, Journal(None, config.pending, print)), lambda: 0)
    stream = promotions.pipeline.register(drive.header)
    assert not isinstance(stream, Refusal)
    return promotions, stream


def step(promotions: Promotions, stream: Stream, sent: Sent) -> FloatArray:
    """Answers a frame, and does what is due by then; returns the covariances that go out.

    Those are assumed, 1, where the answer has none.
    """
    pipeline, i = promotions.pipeline, sent.received.frame_id or 0
    answer = pipeline.process(stream, sent.received)
    forwarded = np.broadcast_to(np.eye(stream.header.space.k), sent.covariance.shape).copy()
    if answer.forwarded is not None:
        forwarded[answer.rows] = answer.forwarded.covariance
    if i % LEARN_FRAMES == 0:
        finished(pipeline.drift.catch_up())
        while whole := finished(promotions.learning.whole()):
            while whole:
                promotions.carry_out(finished(promotions.learning.decide(whole)))
    if i % FIT_FRAMES == 0:
        fit(promotions)
    return forwarded


def run(seed: int, drive: Drive) -> Driven:
    """Drives once."""
    promotions, stream = begun(drive)
    records: list[tuple[int, Record]] = []
    alarms: list[tuple[int, str]] = []
    columns: list[tuple[FloatArray, IntArray, IntArray, FloatArray]] = []
    ended = served = 0
    promotions.pipeline.events.listen(Record, lambda record: records.append((ended, record)))

    def alarmed(change: AlarmChange) -> None:
        if change.why is AlarmReason.RAISED:
            alarms.append((ended, str(change.alarm.severity)))

    promotions.pipeline.events.listen(AlarmChange, alarmed)
    for sent in frames(drive, seed):
        ended = sent.ended
        forwarded = step(promotions, stream, sent)
        bare = sent.received.detections.covariance_length == 0
        columns.append(scored(drive, sent, forwarded, bare, served))
        served = sum(record.what is Happened.PROMOTED for _, record in records)
    nees, track, after, lost = (np.concatenate(one) for one in zip(*columns, strict=True))
    return Driven(records, alarms, nees, track, after, lost)


def scored(
    drive: Drive, sent: Sent, forwarded: FloatArray, bare: np.ndarray[Any, Any], served: int
) -> tuple[FloatArray, IntArray, IntArray, FloatArray]:
    """Scores what goes out for the detections of a frame that came without a covariance."""
    k = drive.space.k
    error = drive.space.error(sent.truth, sent.received.detections.mean)[bare]
    made, true = forwarded[bare], sent.covariance[bare]
    white = np.linalg.solve(made, error[:, :, None])[:, :, 0]
    apart = np.linalg.slogdet(made)[1] - np.linalg.slogdet(true)[1]
    trace = np.trace(np.linalg.solve(made, true), axis1=1, axis2=2)
    lost = 0.5 * (apart + trace - k) / k
    track = sent.track[bare]
    return (error * white).sum(axis=1) / k, track, np.full(track.size, served), lost


BARE = tuple(
    Drive(
        f"no covariances, K = {k}, {'Gaussian errors' if math.isinf(tail) else 't5'}", places, tail
    )
    for k, places in ((3, (0, 1, 2)), (7, tuple(range(7))))
    for tail in (math.inf, estimated.TAIL)
)
CALIBRATED = Drive("calibrated covariances, K = 7, t5", tail=estimated.TAIL, bare=0.0)
SOME = replace(
    CALIBRATED, name="one covariance in ten is missing, the others are calibrated", bare=0.1
)
ADVISED = replace(BARE[-1], name=f"{BARE[-1].name}, mode = advise", mode="advise", tracks=200)
FAULT = 500
GROWN = tuple(
    replace(
        BARE[-1],
        name=f"t5, K = 7, errors of {size:g} times the size, × {times:g} from track {FAULT} on",
        size=size,
        grown=times,
        fault=FAULT,
    )
    for size, times in ((1.0, 2.5), (1.0, 3.0), (0.1, 2.5))
)
DRIVES = (*BARE, CALIBRATED, SOME, ADVISED, *GROWN)


def told(drive: Drive, found: Sequence[Driven]) -> bool:
    """Prints what became of one kind of drive; returns whether bounds hold."""
    seeds, holds = len(found), True
    promoted = [one.when(Happened.PROMOTED) for one in found]
    first = [some[0] for some in promoted if some]
    print(f"{drive.name}: {seeds} drives of {drive.tracks} tracks")
    others = sum(len(one.when(*SWAPS, slice="car")) for one in found)
    if drive.bare < 1:
        print(f"  covariances that were sent are replaced in {others} drives")
        holds &= others == 0
    if drive.mode == "advise":
        proven = [one.when(Happened.PROVEN) for one in found]
        waits = [some[0] for some in proven if some]
        print(f"  proven in {len(waits)}, first after {quartiles(waits)} tracks; ", end="")
        print(f"promoted in {len(first)}")
        return holds and len(waits) == seeds and not first
    if drive.bare == 0:
        return holds
    print(f"  promoted in {len(first)}, first after {quartiles(first)} tracks")
    print(f"  promotions {np.mean([len(some) for some in promoted]):.2f} a drive, ", end="")
    back = [len(one.when(Happened.ROLLED_BACK)) for one in found]
    print(f"{np.mean(back):.2f} rolled back")
    holds &= len(first) == seeds
    if drive.steady:
        level = np.array([one.level(0) for one in found])
        late = [one.lost[one.track >= TRACKS // 2].mean() for one in found]
        print(
            f"  NEES/K forwarded after it: mean {level.mean():.3f}, {quartiles(level, 3)}; ", end=""
        )
        print(f"within 0.9 … 1.1 in {np.count_nonzero(np.abs(level - 1) <= MOST_OFF)}")
        print(f"  nats a dimension above the true covariance, later half: {np.mean(late):.3f}")
        alarmed = sum(bool(one.alarms) for one in found)
        print(f"  alarms in {alarmed}")
        holds &= sum(map(len, promoted)) <= MOST_PROMOTIONS * seeds
        holds &= alarmed <= MOST_ALARMED * seeds
        if math.isinf(drive.tail):
            holds &= abs(float(level.mean()) - 1) <= MOST_OFF
        return bool(holds)
    raised = [[n for n, kind in one.alarms if kind == "page" and n >= drive.fault] for one in found]
    before = sum(any(n < drive.fault for n, _ in one.alarms) for one in found)
    after = [some[0] - drive.fault for some in raised if some]
    anew = [one.when(Happened.PROMOTED, since=drive.fault) for one in found]
    again = [some[0] - drive.fault for some in anew if some]
    level = np.array([one.level(drive.fault + 200) for one in found])
    print(
        f"  alarms before it in {before}; a page in {len(after)}, {quartiles(after)} tracks after"
    )
    print(f"  learned anew in {len(again)}, promoted {quartiles(again)} tracks after it; ", end="")
    print(
        f"NEES/K from 200 tracks after it on: mean {np.nanmean(level):.3f}, {quartiles(level, 3)}"
    )
    return bool(holds and len(after) == seeds and len(again) == seeds)


def quartiles(values: Sequence[float] | FloatArray, digits: int = 0) -> str:
    """Writes the least of some values, their quartiles and the largest."""
    if not len(values):
        return "–"
    cut = np.nanquantile(values, (0, 0.25, 0.5, 0.75, 1))
    return " / ".join(f"{one:.{digits}f}" for one in cut)


def main() -> int:
    """Returns 0 where all bounds hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS, help="drives of each kind")
    parser.add_argument("--method", help="[promotion] missing_method, in place of its default")
    options = parser.parse_args()
    print(machine())
    print("least / lower quartile / median / upper quartile / largest of all drives")
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    holds = True
    with multiprocessing.get_context("spawn").Pool() as pool:
        for kind in DRIVES:
            drive = replace(kind, method=options.method)
            found = pool.map(partial(run, drive=drive), range(options.seeds), chunksize=1)
            holds &= told(drive, found)
            sys.stdout.flush()
    print("all bounds hold" if holds else "a bound is missed")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
