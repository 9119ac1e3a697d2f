"""Does automatic promotion leave a calibrated detector alone, and repair one that is not?

Every seed is a drive of 100,000 detections of objects that live 40 frames at 10 Hz, with errors
that are correlated from frame to frame (ρ = 0.65): through the pipeline, with truth inline, with
fits, trials and promotions as in the sidecar. Only the clock is missing: fits are due by event
time, and run in this process. Exits with 1 where a bound is missed.
"""

from __future__ import annotations

import argparse
import logging
import math
import multiprocessing
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from benchmarks.machine import machine
from monitor.config import Config
from monitor.frames.detections import ReceivedDetections
from monitor.frames.frame import Header, ReceivedFrame, Refusal
from monitor.frames.space import BoolArray, FloatArray, plain_space
from monitor.pipeline.frame_path import Pipeline
from monitor.pipeline.learning import job_of
from monitor.pipeline.promotions import SCHEDULE, Promotions
from monitor.promotion.fits import fit_slices
from monitor.promotion.records import SWAPS
from monitor.statistics.observations import finished
from monitor.store.journal import Journal

SEEDS = 50
FRAMES, OBJECTS, LIFE = 5000, 20, 40  # 100,000 detections of 2,500 objects
K, RHO, RATE_HZ = 3, 0.65, 10
LEARN_FRAMES, FIT_FRAMES = 5, 300  # 0.5 s and 30 s of event time
MOST_FALSE, MOST_OFF = 1, 0.1  # what must hold


@dataclass(frozen=True)
class Drive:
    """What is wrong with a detector.

    factor   on σ by which its errors are larger than it says
    degrees  of freedom of the errors, Student-t of unit variance; inf: Gaussian
    """

    factor: float
    degrees: float = math.inf


@dataclass(frozen=True)
class Outcome:
    """Of one seed.

    first    track number of the first promotion, −1 without
    swaps    changes of what is in force
    after    NEES/K of what was forwarded after the first promotion; over all, without
    """

    first: int
    swaps: int
    after: float


def errors(drive: Drive, random: np.random.Generator) -> FloatArray:
    """(FRAMES, OBJECTS, K) in σ: AR(1) along the life of each object; objects begin staggered."""
    noise = random.standard_normal((FRAMES, OBJECTS, K))
    scale = np.ones((FRAMES, OBJECTS, 1))
    begins = _begins()
    found = np.empty_like(noise)
    for i in range(FRAMES):
        new = begins[i]
        going_on = RHO * found[i - 1] + math.sqrt(1 - RHO**2) * noise[i]
        found[i] = np.where(new[:, None], noise[i], going_on)
        if math.isfinite(drive.degrees):
            drawn = (drive.degrees - 2) / random.chisquare(drive.degrees, (OBJECTS, 1))
            scale[i] = np.where(new[:, None], drawn, scale[i - 1])
    return drive.factor * np.sqrt(scale) * found


def _begins() -> BoolArray:
    """(FRAMES, OBJECTS) whether an object is in its first frame."""
    frame, place = np.arange(FRAMES)[:, None], np.arange(OBJECTS)
    begins: BoolArray = (frame + 2 * place) % LIFE == 0
    begins[0] = True
    return begins


def frames(drive: Drive, seed: int) -> Iterator[tuple[ReceivedFrame, FloatArray]]:
    """Frames with inline truth, and that truth (OBJECTS, K)."""
    random = np.random.default_rng(seed)
    error, begins = errors(drive, random), _begins()
    track = np.cumsum(begins, axis=0) * OBJECTS + np.arange(OBJECTS)
    deviation = np.exp(random.uniform(-2.5, 0.5, (FRAMES, OBJECTS, 1)) * np.ones(K))
    count = np.full(OBJECTS, K)
    for i in range(FRAMES):
        mean = random.uniform(-50, 50, (OBJECTS, K))
        truth = mean + error[i] * deviation[i]
        detections = ReceivedDetections(
            id=np.arange(OBJECTS, dtype=np.uint64),
            has_id=np.ones(OBJECTS, bool),
            class_index=np.zeros(OBJECTS, np.int64),
            mean=mean,
            mean_length=count,
            covariance=deviation[i] ** 2,
            covariance_length=count,
            truth=truth,
            truth_length=count,
            uniform=True,
            upstream_track=(track[i].astype(np.uint64), np.ones(OBJECTS, bool)),
        )
        yield ReceivedFrame(i, i * 10**9 // RATE_HZ, detections), truth


def run(drive: Drive, seed: int) -> Outcome:
    """One drive."""
    logging.disable(logging.INFO)
    config = Config.model_validate({"promotion": {"mode": "automatic"}})
    pipeline = Pipeline(config, Journal(None, config.pending, print))
    promotions = Promotions(pipeline, now_ns=lambda: 0)
    stream = pipeline.register(Header("lidar", plain_space(("x", "y", "z"), "m"), ("car",)))
    assert not isinstance(stream, Refusal)
    first, sums = -1, np.zeros(2)
    for i, (frame, truth) in enumerate(frames(drive, seed)):
        made = pipeline.process(stream, frame).forwarded
        mean = frame.detections.mean if made is None else made.mean
        variance = frame.detections.covariance
        if made is not None:
            variance = np.diagonal(made.covariance, axis1=1, axis2=2)
        sums += (np.square(truth - mean) / variance).sum(), OBJECTS * K
        if i % LEARN_FRAMES == 0:
            learn(promotions)
        if i % FIT_FRAMES == 0:
            fit(promotions)
        if first < 0 and promotions.counters.swaps["promoted"]:
            first, sums = round(i * OBJECTS / LIFE), np.zeros(2)
    swaps = sum(record.what in SWAPS for record in promotions.records(1000))
    return Outcome(first, swaps, float(sums[0] / sums[1]))


def learn(promotions: Promotions) -> None:
    """As the sidecar does between frames."""
    tracks = finished(promotions.learning.whole())
    while tracks:
        promotions.carry_out(finished(promotions.learning.decide(tracks)))


def fit(promotions: Promotions) -> None:
    """As the sidecar does in a process of its own."""
    due = promotions.learning.due()
    if due:
        settings = promotions.learning.settings
        limits = promotions.learning.limits
        job, entries = job_of(due, settings.fits, limits, settings.policy.band)
        finished(promotions.begin(entries, fit_slices(job), SCHEDULE))


def _one(job: tuple[Drive, int]) -> Outcome:
    return run(*job)


def report(title: str, found: list[Outcome]) -> None:
    """A few lines of it."""
    promoted = [outcome for outcome in found if outcome.first >= 0]
    after = np.array([outcome.after for outcome in promoted or found])
    print(f"{title}")
    print(f"  promoted in {len(promoted)} of {len(found)} seeds")
    if promoted:
        first = np.quantile([outcome.first for outcome in promoted], (0.5, 1.0))
        print(f"  after {first[0]:.0f} tracks in the median, {first[1]:.0f} at most")
        print(f"  changes of what is in force: {max(o.swaps for o in promoted)} at most")
    print(f"  NEES/K forwarded {'after that' if promoted else 'all along'}: ", end="")
    print(f"{after.min():.3f} … {after.max():.3f}, mean {after.mean():.3f}")


def main() -> int:
    """0 where all bounds hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    seeds = parser.parse_args().seeds
    print(machine())
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    drives = {
        "calibrated": Drive(1.0),
        "overconfident by 1.5 in σ": Drive(1.5),
        "calibrated, Student-t of 5 degrees of freedom": Drive(1.0, 5.0),
        "overconfident by 1.5 in σ, Student-t of 5 degrees of freedom": Drive(1.5, 5.0),
    }
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        found = {
            title: pool.map(_one, [(drive, seed) for seed in range(seeds)], chunksize=1)
            for title, drive in drives.items()
        }
    for title, outcomes in found.items():
        report(title, outcomes)
    healthy, ill = found["calibrated"], found["overconfident by 1.5 in σ"]
    holds = sum(outcome.first >= 0 for outcome in healthy) <= MOST_FALSE
    holds &= all(outcome.first >= 0 and abs(outcome.after - 1) <= MOST_OFF for outcome in ill)
    print("all bounds hold" if holds else "a bound is missed")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
