"""Does automatic promotion repair a detector, leave a calibrated one alone, and see through tails?

First drives of 100,000 detections of objects that live 40 frames at 10 Hz, with errors correlated
from frame to frame (ρ = 0.65): through the pipeline, with truth inline, with fits, trials and
promotions as in the sidecar; only the clock is missing. Then, with `--tails` instead, trials alone
where tails are heavy: how often a wrong shrinking step is proven or gone back to, how many tracks
a right step takes, and documents of every method beside a calibrated detector. With `--classes`,
drives of a detector that sends probabilities of five classes. Exits with 1 where a bound is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import math
import multiprocessing
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count, product

import numpy as np

from benchmarks.machine import machine
from monitor.config import Config
from monitor.frames.detections import Estimates, Limits, ReceivedDetections
from monitor.frames.frame import Header, ReceivedFrame, Refusal
from monitor.frames.space import FloatArray, IntArray, plain_space
from monitor.pipeline.frame_path import Pipeline
from monitor.pipeline.learning import job_of
from monitor.pipeline.promotions import SCHEDULE, Promotions
from monitor.promotion.fits import fit_slices
from monitor.promotion.records import SWAPS, TrialSettings
from monitor.promotion.scored import TrackRows, temperature_of
from monitor.promotion.trial import Clip, clip_of, log10_threshold
from monitor.recalibration.binned import HistogramBinning
from monitor.recalibration.fit_rows import FitRows
from monitor.recalibration.fitting import FITTINGS, FitOptions
from monitor.recalibration.recalibrator import Identity, UnfitData
from monitor.statistics.observations import finished
from monitor.store.journal import Journal
from tests.promotion.simulated_tracks import class_tracks, correlated, mixing

SPACE = plain_space(("x", "y", "z"), "m")
K = SPACE.k

# ---- drives

SEEDS = 50
FRAMES, OBJECTS, LIFE = 5000, 20, 40  # 100,000 detections of 2,500 objects
RHO, RATE_HZ = 0.65, 10
LEARN_FRAMES, FIT_FRAMES = 5, 300  # 0.5 s and 30 s of event time
MOST_FALSE, MOST_OFF = 1, 0.1  # what must hold
# Errors over what the detector says of σ, and degrees of freedom of Student-t of unit variance.
CALIBRATED, OVERCONFIDENT = (1.0, math.inf), (1.5, math.inf)
DRIVES = (CALIBRATED, OVERCONFIDENT, (1.0, 5.0), (1.5, 5.0))


def frames(factor: float, degrees: float, seed: int) -> Iterator[tuple[ReceivedFrame, FloatArray]]:
    """Yields frames with inline truth, and that truth (OBJECTS, K); objects begin staggered."""
    random, place = np.random.default_rng(seed), np.arange(OBJECTS)
    shape = (FRAMES // LIFE + 2) * OBJECTS, LIFE, K
    scale = mixing(random, *shape[:2], RHO, degrees, held=True)
    error = factor * np.sqrt(scale)[:, :, None] * correlated(random, shape, RHO)
    length, every = np.full(OBJECTS, K), np.ones(OBJECTS, bool)
    for i in range(FRAMES):
        life, age = divmod(i + 2 * place, LIFE)
        track = life * OBJECTS + place
        deviation = np.exp(random.uniform(-2.5, 0.5, (OBJECTS, 1)) * np.ones(K))
        mean = random.uniform(-50, 50, (OBJECTS, K))
        truth = mean + error[track, age] * deviation
        detections = ReceivedDetections(
            id=place.astype(np.uint64),
            has_id=every,
            class_index=np.zeros(OBJECTS, np.int64),
            mean=mean,
            mean_length=length,
            covariance=deviation**2,
            covariance_length=length,
            truth=truth,
            truth_length=length,
            uniform=True,
            upstream_track=(track.astype(np.uint64), every),
        )
        yield ReceivedFrame(i, i * 10**9 // RATE_HZ, detections), truth


def run(seed: int, factor: float, degrees: float) -> tuple[int, float]:
    """Drives once.

    returns  the track number of the first promotion, −1 without; NEES/K forwarded after it, or all
    """
    logging.disable(logging.INFO)
    config = Config.model_validate({"promotion": {"mode": "automatic"}})
    pipeline = Pipeline(config, Journal(None, config.pending, print))
    promotions = Promotions(pipeline, now_ns=lambda: 0)
    stream = pipeline.register(Header("lidar", SPACE, ("car",)))
    assert not isinstance(stream, Refusal)
    first, sums = -1, np.zeros(2)
    for i, (frame, truth) in enumerate(frames(factor, degrees, seed)):
        made = pipeline.process(stream, frame).forwarded
        mean, variance = frame.detections.mean, frame.detections.covariance
        if made is not None:
            mean, variance = made.mean, np.diagonal(made.covariance, axis1=1, axis2=2)
        sums += (np.square(truth - mean) / variance).sum(), OBJECTS * K
        if i % LEARN_FRAMES == 0:
            while tracks := finished(promotions.learning.whole()):
                promotions.carry_out(finished(promotions.learning.decide(tracks)))
        if i % FIT_FRAMES == 0:
            fit(promotions)
        if first < 0 and promotions.counters.swaps["promoted"]:
            first, sums = round(i * OBJECTS / LIFE), np.zeros(2)
    return first, float(sums[0] / sums[1])


def fit(promotions: Promotions) -> None:
    """Fits what is due, as the sidecar does in a process of its own."""
    if due := promotions.learning.due():
        settings = promotions.learning.settings
        job, entries = job_of(due, settings.fits, promotions.learning.limits, settings.policy)
        finished(promotions.begin(entries, fit_slices(job), SCHEDULE))


def drives(seeds: int) -> bool:
    """Prints what became of every kind of drive; returns whether bounds hold."""
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    holds = True
    with multiprocessing.get_context("spawn").Pool() as pool:
        for kind in DRIVES:
            one = partial(run, factor=kind[0], degrees=kind[1])
            found = pool.map(one, range(seeds), chunksize=1)
            first = [one for one, _ in found if one >= 0]
            after = np.array([ratio for one, ratio in found if one >= 0 or not first])
            print(f"errors of {kind[0]} σ, t of {kind[1]:g} degrees of freedom")
            print(f"  promoted in {len(first)} of {seeds} seeds")
            if first:
                print(f"  after {np.median(first):.0f} tracks in the median, {max(first)} at most")
            print(f"  NEES/K forwarded {'after that' if first else 'all along'}: ", end="")
            print(f"{after.min():.3f} … {after.max():.3f}", flush=True)
            if kind == CALIBRATED:
                holds &= len(first) <= MOST_FALSE
            elif kind == OVERCONFIDENT:
                holds &= len(first) == seeds and bool((np.abs(after - 1) <= MOST_OFF).all())
    return holds


# ---- drives of a softmax detector, whose objects live 10 to 40 frames

CLASS_TRACKS, FAULT_TRACKS, ECE_BINS = 1500, 500, 15
MOST_ECE = 0.04  # as forwarded after a promotion, while the fault lasts


@dataclass(frozen=True)
class ClassDrive:
    """Describes a kind of drive.

    times     by which logits are sent too large, for FAULT_TRACKS or to the end
    wrong     share of wrong labels
    clear     range of μ, as of class_tracks: two in three, or 95 in 100, are recognised
    lasts     to the end
    shrinking whether allow_shrinking is set
    """

    name: str
    times: float = 1.0
    wrong: float = 0.0
    clear: tuple[float, float] = (0.5, 2.5)
    lasts: bool = True
    shrinking: bool = False


HEALTHY = ClassDrive("calibrated")
SURE = ClassDrive("logits doubled, then calibrated", 2.0, lasts=False)
UNSURE = ClassDrive("logits halved", 0.5)
FREED = ClassDrive("logits halved, allow_shrinking", 0.5, shrinking=True)
WRONG_LABELS = ClassDrive("2 % wrong labels", wrong=0.02)
CLEAR, CLEAR_WRONG = (
    ClassDrive(
        f"a detector that is nearly always right, {100 * wrong:g} % wrong labels",
        1.0,
        wrong,
        (2.5, 4.5),
    )
    for wrong in (0.0, 0.02)
)
CLASS_DRIVES = (HEALTHY, SURE, UNSURE, FREED, WRONG_LABELS, CLEAR, CLEAR_WRONG)


@dataclass(frozen=True)
class ClassDriven:
    """Tells what became of one drive.

    when      the track number of the first record of each kind, and of the first proof
    end       of the first record in which the fault's recalibrator was replaced after the fault
    ece       as sent and as forwarded after the promotion, while the fault lasted
    active    temperature at the end
    """

    when: dict[str, int]
    end: int
    ece: tuple[float, float]
    active: float


def class_frames(drive: ClassDrive, seed: int) -> Iterator[tuple[ReceivedFrame, FloatArray, int]]:
    """Yields frames with true classes, the opinions in them, and how many tracks have ended."""
    some = class_tracks(2 * seed, CLASS_TRACKS, drive.times, wrong=drive.wrong, clear=drive.clear)
    if not drive.lasts:
        healthy = class_tracks(2 * seed + 1, CLASS_TRACKS - FAULT_TRACKS, wrong=drive.wrong)
        some = some[:FAULT_TRACKS] + healthy
    coming, place = iter(enumerate(some)), np.arange(OBJECTS)
    seen = [next(coming) for _ in range(OBJECTS)]
    age, length, every = np.zeros(OBJECTS, int), np.full(OBJECTS, K), np.ones(OBJECTS, bool)
    none = np.zeros(OBJECTS, np.int64)
    for i in count():
        opinions = np.stack(
            [track.probabilities[a, 0] for (_, track), a in zip(seen, age, strict=True)]
        )
        labels = np.array([track.label[a] for (_, track), a in zip(seen, age, strict=True)])
        detections = ReceivedDetections(
            id=place.astype(np.uint64),
            has_id=every,
            class_index=opinions.argmax(axis=1),
            mean=np.zeros((OBJECTS, K)),
            mean_length=length,
            covariance=np.ones((OBJECTS, K)),
            covariance_length=length,
            truth=np.zeros((OBJECTS, 0)),
            truth_length=none,
            uniform=True,
            upstream_track=(np.array([n for n, _ in seen], np.uint64), every),
            class_probabilities=(opinions, np.full(OBJECTS, opinions.shape[1])),
            ground_truth_class=(labels, every),
        )
        begun = max(n for n, _ in seen) + 1
        frame = ReceivedFrame(i, i * 10**9 // RATE_HZ, detections)
        yield frame, opinions, begun - OBJECTS
        age += 1
        for j in np.flatnonzero([a == track.n for (_, track), a in zip(seen, age, strict=True)]):
            entry = next(coming, None)
            if entry is None:
                return
            seen[j], age[j] = entry, 0


def class_run(seed: int, drive: ClassDrive) -> ClassDriven:
    """Drives once."""
    logging.disable(logging.INFO)
    section = {"mode": "automatic", "allow_shrinking": drive.shrinking}
    config = Config.model_validate({"promotion": section})
    pipeline = Pipeline(config, Journal(None, config.pending, print))
    promotions = Promotions(pipeline, now_ns=lambda: 0)
    names = class_tracks(0, 1)[0].kind.names
    stream = pipeline.register(Header("camera", SPACE, names))
    assert not isinstance(stream, Refusal)
    when: dict[str, int] = {}
    end, known = -1, 0
    rows: list[tuple[FloatArray, FloatArray, IntArray]] = []
    for i, (frame, opinions, ended) in enumerate(class_frames(drive, seed)):
        answer = pipeline.process(stream, frame)
        made = None if answer.extras is None else answer.extras.class_probabilities
        fault = drive.lasts or ended < FAULT_TRACKS - OBJECTS
        if made is not None and fault:
            truth = frame.detections.ground_truth_class
            assert truth is not None
            rows.append((opinions, made, truth[0]))
        if i % LEARN_FRAMES == 0:
            while tracks := finished(promotions.learning.whole()):
                promotions.carry_out(finished(promotions.learning.decide(tracks)))
        if i % FIT_FRAMES == 0:
            fit(promotions)
        for record in promotions.records(1000)[known:]:
            known += 1
            when.setdefault(str(record.what), ended)
            if end < 0 and record.what in SWAPS and not fault:
                end = ended - FAULT_TRACKS
    ece = -1.0, -1.0
    if rows:
        sent, made, label = (np.concatenate(part) for part in zip(*rows, strict=True))
        ece = ece_of(sent, label), ece_of(made, label)
    active = temperature_of(pipeline.recalibrators.class_selection.recalibrator)
    return ClassDriven(when, end, ece, active or -1.0)


def ece_of(probabilities: FloatArray, label: FloatArray) -> float:
    """Computes the expected calibration error of the most likely class (Guo et al. 2017, eq. 3)."""
    confidence, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == label
    bins = np.minimum((confidence * ECE_BINS).astype(int), ECE_BINS - 1)
    return float(np.abs(np.bincount(bins, confidence - right)).sum() / label.size)


def class_drives(seeds: int) -> bool:
    """Prints what became of every kind of drive; returns whether bounds hold."""
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    holds = True
    with multiprocessing.get_context("spawn").Pool() as pool:
        for drive in CLASS_DRIVES:
            found = pool.map(partial(class_run, drive=drive), range(seeds), chunksize=1)
            print(f"{drive.name}: {CLASS_TRACKS} tracks")
            for what in ("began", "proven", "promoted", "rolled_back", "discarded"):
                after = [one.when[what] for one in found if what in one.when]
                if after:
                    print(f"  {what} in {len(after)} of {seeds}, first after ", end="")
                    print(f"{np.median(after):.0f} tracks in the median, {max(after)} at most")
            ece = np.array([one.ece for one in found if one.ece[0] >= 0])
            if ece.size:
                (sent, made), worst = np.median(ece, axis=0), ece[:, 1].max()
                print(f"  ECE as sent {sent:.3f}, forwarded {made:.3f}, at most {worst:.3f}")
            ends = [one.end for one in found if one.end >= 0]
            if not drive.lasts:
                print(f"  after the fault replaced in {len(ends)}, after ", end="")
                print(f"{np.median(ends):.0f} tracks in the median, {max(ends)} at most")
            active = np.array([one.active for one in found])
            print(f"  temperature at the end {active.min():.2f} … {active.max():.2f}", flush=True)
            promoted = sum("promoted" in one.when for one in found)
            if drive in (HEALTHY, CLEAR):
                holds &= promoted <= MOST_FALSE
            elif drive is UNSURE:
                proven = sum("proven" in one.when for one in found)
                holds &= promoted == 0 and proven == seeds
            elif drive is FREED or drive is SURE:
                holds &= promoted == seeds and bool((ece[:, 1] <= MOST_ECE).all())
            if drive is SURE:
                holds &= len(ends) == seeds
    return holds


# ---- tails: Student-t with one scale for a whole track, correlated by ρ from one to the next

SETTINGS = TrialSettings()
ALPHA = 10.0 ** -log10_threshold(SETTINGS.alpha, 1)
DIMENSIONS = (1, 2, 3, 7)
SHAPES = ((1, 0.0), (10, 0.0), (10, 0.65), (40, 0.0), (40, 0.65))  # detections of a track, ρ
DEGREES = (3.0, 4.0, 5.0, math.inf)
WRONG = (1.5, 2.0, 4.0)  # by which variances are divided that are right
# Factors on variances, as the errors ask for, and tracks that the proof may take: heavy tails hide
# that variances are too small.
RIGHT = {1 / 2.25: 150.0, 1 / 5: 26.0, 2.25: math.inf, 5.0: math.inf}
RUNS, GUARDS, GUARDED, AT_ONCE, POWER = 2000, 400, 5000, 500, 400
RARE_RUNS, DOCUMENTS, DOCUMENT_RUNS = 500, 10, 100


def multiples(difference: FloatArray, clip: Clip) -> FloatArray:
    """Gives by what tracks of a full say multiply each wealth; (…,) in, (…, bettors) out."""
    shares = np.ones(difference.size)
    said = clip.said(difference.ravel(), shares)
    return clip.multiples(said, shares, clip.loss).reshape(*difference.shape, -1)


def gaussian(random: np.random.Generator, tracks: int, k: int, n: int, rho: float) -> FloatArray:
    """Draws NEES/K of Gaussian errors, its mean over the detections of each track; (tracks,)."""
    # Of n correlated numbers the sum of squares is one of independent ones, by eigenvalues.
    place = np.arange(n)
    sizes = np.linalg.eigvalsh(rho ** np.abs(place[:, None] - place)) if rho else np.ones(1)
    degrees = k if rho else k * n
    found = sum((size * random.chisquare(degrees, tracks) for size in sizes), np.zeros(tracks))
    return found / (k * n)


def heavy(random: np.random.Generator, nees: FloatArray, degrees: float) -> FloatArray:
    """Draws from such tracks, and gives each a scale of its own, of mean 1."""
    mixed = nees[random.integers(nees.size, size=nees.size)]
    return mixed * mixing(random, nees.size, 1, 0.0, degrees, held=True)[:, 0]


def differences(nees: FloatArray, factor: float) -> FloatArray:
    """Gives D of a step that multiplies variances by the factor, by NEES/K of the champion."""
    return -0.5 * math.log(factor) + 0.5 * (1 - 1 / factor) * nees


def proven_after(factors: FloatArray) -> FloatArray:
    """Counts the tracks to the proof of each run; (R,), infinite where there is none.

    factors  (R, T, bettors) by what wealth is multiplied
    """
    wealth = np.exp(np.cumsum(np.log(factors), axis=1)).mean(axis=2)
    won = wealth >= 1 / ALPHA
    return np.where(won.any(axis=1), won.argmax(axis=1) + 1.0, np.inf)


def share_proven(value: FloatArray, clip: Clip) -> float:
    """Counts the share of runs that prove a candidate, by the differences of their tracks."""
    runs = value.reshape(-1, SETTINGS.tracks)
    return float(np.isfinite(proven_after(multiples(runs, clip))).mean())


def gone_back(random: np.random.Generator, nees: FloatArray, degrees: float, f: float) -> float:
    """Simulates guards: the share that goes back to a step that divides variances by f."""
    statistic, back = np.zeros(1), np.zeros(1, bool)
    for _ in range(0, GUARDED, AT_ONCE):
        drawn = heavy(random, nees[: GUARDS * AT_ONCE], degrees).reshape(GUARDS, -1)
        factors = multiples(differences(drawn, 1 / f), Clip())
        for i in range(AT_ONCE):
            statistic = np.minimum((1 + statistic) * factors[:, i], 1e300)
            back = back | (statistic.mean(axis=1) >= SETTINGS.rollback_tracks)
    return float(back.mean())


def within(share: float, promised: float, runs: int) -> bool:
    """Allows for three standard errors of a share that is promised to be no larger."""
    return share <= promised + 3 * math.sqrt(promised * (1 - promised) / runs)


def wrong_steps(random: np.random.Generator) -> bool:
    """Prints how often wrong shrinking steps win; returns whether none wins too often."""
    promised, holds = GUARDED / SETTINGS.rollback_tracks, True
    print(f"Wrong shrinking steps, in %: proven within {SETTINGS.tracks} tracks, at most")
    print(f"{100 * ALPHA:.0f}; gone back to within {GUARDED} tracks, at most {100 * promised:.0f};")
    print(f"of {RUNS} and {GUARDS} runs; * does not act by itself")
    print(f" K  n    ρ    t | {' | '.join(f'variance / {f:g}' for f in WRONG)}")
    for k, (n, rho) in product(DIMENSIONS, SHAPES):
        pool = gaussian(random, RUNS * SETTINGS.tracks, k, n, rho)
        acts = Clip(rows=n).insured(k)
        for degrees in DEGREES:
            cells = []
            for factor in WRONG:
                proven = share_proven(differences(heavy(random, pool, degrees), 1 / factor), Clip())
                back = gone_back(random, pool, degrees, factor)
                rare = within(proven, ALPHA, RUNS) and within(back, promised, GUARDS)
                holds &= rare or not acts
                cells.append(f"{100 * proven:7.1f} {100 * back:5.1f}")
            mark = "" if acts else " *"
            print(f"{k:2} {n:2} {rho:4.2f} {degrees:4g} | {' | '.join(cells)}{mark}", flush=True)
    return holds


def right_steps(random: np.random.Generator) -> bool:
    """Prints the median of the tracks that right steps take; returns whether none are too many."""
    holds = True
    print("\nRight steps: median tracks to the proof")
    print(f" K  n    ρ    t | {' | '.join(f'variance * {f:.2f}' for f in RIGHT)}")
    for k, (n, rho) in product(DIMENSIONS, SHAPES):
        pool = gaussian(random, POWER * SETTINGS.tracks, k, n, rho)
        for degrees in DEGREES:
            medians = []
            for factor, most in RIGHT.items():
                said = differences(factor * heavy(random, pool, degrees), factor)
                # The losses of a step that inflates variances are bounded.
                clip = Clip(loss=0.5 * math.log(factor)) if factor > 1 else Clip()
                proven = proven_after(multiples(said.reshape(POWER, -1), clip))
                medians.append(float(np.median(proven)))
                holds &= medians[-1] <= most
            cells = " | ".join(f"{median:15.0f}" for median in medians)
            print(f"{k:2} {n:2} {rho:4.2f} {degrees:4g} | {cells}", flush=True)
    return holds


def tracks_of(random: np.random.Generator, size: FloatArray) -> TrackRows:
    """Draws tracks of two detections, NEES/K of the given mean; (count,)."""
    n, count = 2, size.size
    deviation = np.repeat(np.exp(random.normal(0.0, 1.0, (count, K))), n, axis=0)
    error = np.repeat(np.sqrt(size), n)[:, None] * random.standard_normal((count * n, K))
    covariance = np.square(deviation)[:, :, None] * np.eye(K)
    sent = Estimates(np.zeros((count * n, K)), covariance, np.ones(count * n, bool))
    return TrackRows(SPACE, sent, error * deviation, n * np.arange(count))


def rare_bin(random: np.random.Generator) -> bool:
    """Prints how often a histogram is proven that loses in a rare bin what it gains elsewhere."""
    tracks, edge = RARE_RUNS * SETTINGS.tracks, 1e3
    candidate = HistogramBinning(((edge,),) * 3, ((math.sqrt(1.3), 0.35),) * 3)
    rows = tracks_of(random, np.full(tracks, 1.3))
    far = np.where(np.repeat(random.random(tracks) < 0.02, 2), 1e5, 1.0)[:, None]
    sent = rows.sent.rescaled(far * np.ones(3))
    rows = TrackRows(rows.space, sent, rows.truth * far, rows.start)
    value, _ = rows.differences(candidate, Identity(), Limits(1e20, 0.0, 1e20))
    proven = share_proven(value, clip_of(candidate, Identity(), rows, SETTINGS.clip))
    print("\nA histogram of factors √1.3 and 0.35, the latter in 2 % of tracks: proven in ", end="")
    print(f"{100 * proven:.1f} % of {RARE_RUNS} runs")
    return within(proven, ALPHA, RARE_RUNS)


def documents(random: np.random.Generator) -> bool:
    """Prints how often documents fitted to faults are proven on a calibrated detector."""
    tracks, holds = DOCUMENT_RUNS * SETTINGS.tracks, True
    print(f"\n{DOCUMENTS} documents of each method, fitted where errors have other sizes by track:")
    print(f"proven beside a calibrated detector, in % of {DOCUMENT_RUNS} runs each, mean and most,")
    print("for Gaussian errors and Student-t of 3 degrees of freedom")
    sizes = np.ones(tracks), 1 / random.chisquare(3, tracks)
    healthy = [tracks_of(random, size) for size in sizes]
    track, times = np.repeat(np.arange(60), 2), np.arange(0.0, 12.0, 0.1)
    for method, fitting in FITTINGS.items():
        shares: list[list[float]] = []
        while len(shares) < DOCUMENTS:
            rows = tracks_of(random, np.exp(random.normal(random.normal(0.0, 0.3), 0.7, 60)))
            fit_rows = FitRows(SPACE, rows.sent, rows.truth, track, times, np.zeros(120))
            with contextlib.suppress(UnfitData):
                candidate = fitting.fit(fit_rows, FitOptions(), None)
                clip = clip_of(candidate, Identity(), rows, SETTINGS.clip)
                said = (one.differences(candidate, Identity(), Limits()) for one in healthy)
                shares.append([share_proven(value, clip) for value, _ in said])
        mean, most = np.mean(shares, axis=0), np.max(shares, axis=0)
        holds &= all(within(share, ALPHA, DOCUMENTS * DOCUMENT_RUNS) for share in mean.tolist())
        cells = (f"{100 * a:.2f} {100 * b:4.1f}" for a, b in zip(mean, most, strict=True))
        print(f"{method:24} {'   '.join(cells)}", flush=True)
    return holds


def main() -> int:
    """Returns 0 where all bounds hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS, help="drives of each kind")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--tails", action="store_true", help="trials under heavy tails instead")
    which.add_argument("--classes", action="store_true", help="drives of a softmax detector")
    options = parser.parse_args()
    print(machine())
    if options.tails:
        parts = (wrong_steps, right_steps, rare_bin, documents)
        held = [part(np.random.default_rng(0)) for part in parts]
        holds = all(held)
    else:
        holds = (class_drives if options.classes else drives)(options.seeds)
    print("all bounds hold" if holds else "a bound is missed")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
