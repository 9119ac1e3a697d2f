"""A simulated classifier, whose tracks vote and whose votes a family takes in; no tests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np
from scipy.special import softmax

from monitor.drift.alarms import AlarmChange
from monitor.drift.class_bets import ClassLabels, TrackVotes, judged
from monitor.drift.evidence import DriftSettings
from monitor.drift.family import Family
from monitor.frames.slices import CLASS_PROBABILITIES
from monitor.frames.space import Dimension, FloatArray, IntArray
from monitor.statistics.observations import finished

FRAME_NS = 100_000_000
CLASSES = 5
CONFIDENCE = Dimension("confidence")
WANTED = DriftSettings(calm_hours=0.0)


@dataclass(frozen=True)
class Seen:
    """A labelled frame: n tracks, what is said of each (n, CLASSES), and its true class as told."""

    stamp_ns: int
    track: IntArray
    said: FloatArray
    told: IntArray


def seen(
    seed: int,
    seconds: float,
    *,
    sharper: float = 1.0,
    held: float = 0.5,
    rho: float = 0.9,
    every: int = 1,
    tracks: int = 8,
    life: int = 40,
    strength: float = 2.5,
    wrong_labels: float = 0.0,
) -> Iterator[Seen]:
    """Frames, ten a second, of a classifier that is always calibrated.

    It sees its class and noise of variance 1, and says what Bayes says.

    sharper       factor on its logits: above 1 it is overconfident
    held          share of the noise that stays for the whole track; the rest is AR(1) with ρ
    every         of so many frames one is labelled
    life          frames that a track lasts on average
    wrong_labels  share of tracks with another label
    """
    random = np.random.default_rng(seed)

    def new(n: int) -> tuple[Any, ...]:
        true = random.integers(CLASSES, size=n)
        other = (true + random.integers(1, CLASSES, n)) % CLASSES
        told = np.where(random.random(n) < wrong_labels, other, true)
        return true, told, *random.standard_normal((2, n, CLASSES))

    true, told, constant, noise = new(tracks)
    ids, following = np.arange(1, tracks + 1), tracks + 1
    for number in range(round(seconds * 10)):
        if number % every == 0:
            found = np.sqrt(held) * constant + np.sqrt(1 - held) * noise
            found += strength * (true[:, None] == np.arange(CLASSES))
            said = softmax(sharper * strength * found, axis=1)
            yield Seen(number * FRAME_NS, ids.copy(), said, told.copy())
        noise = rho * noise + np.sqrt(1 - rho**2) * random.standard_normal(noise.shape)
        over = np.flatnonzero(random.random(tracks) < 1 / life)
        true[over], told[over], constant[over], noise[over] = new(over.size)
        ids[over] = np.arange(following, following + over.size)
        following += over.size


def classified(
    seed: int, seconds: float, *, tracked: bool = True, **other: Any
) -> Iterator[ClassLabels]:
    """Labels of frames that are seen, second by second; those of `tracked` with their tracks."""
    for _, frames in groupby(seen(seed, seconds, **other), lambda one: one.stamp_ns // 10**9):
        yield joined([_labels(frame, tracked=tracked) for frame in frames])


def _labels(frame: Seen, *, tracked: bool) -> ClassLabels:
    zeros = np.zeros(frame.told.size, np.int64)
    return ClassLabels(
        zeros,
        *judged(frame.said[:, None], None, frame.told),
        (frame.track if tracked else zeros).astype(np.uint64),
        zeros,
        zeros + frame.stamp_ns,
        zeros > 0,
    )


def joined(parts: list[ClassLabels]) -> ClassLabels:
    """All labels of some, in order."""
    return ClassLabels(
        *(
            np.concatenate([getattr(part, name) for part in parts], axis=-1)
            for name in ClassLabels.__dataclass_fields__
        )
    )


def votes_of(wanted: DriftSettings = WANTED) -> TrackVotes:
    return TrackVotes(wanted.class_tolerance, wanted.idle_ns, wanted.most_open)


def family_of(wanted: DriftSettings = WANTED) -> Family:
    family = Family(wanted)
    family.grow(CLASS_PROBABILITIES, [CONFIDENCE])
    return family


def fed(
    family: Family, labels: Iterator[ClassLabels], *, until_alarm: bool = True
) -> list[AlarmChange]:
    """Have a family take in the votes on labels; what became of alarms, up to the first of them."""
    votes, changes = votes_of(family.settings), []
    for some in labels:
        rows = votes.take(some)
        if rows is None:
            continue
        found, learning = family.take(1, rows)
        finished(learning)
        changes += found
        if found and until_alarm:
            break
    return changes


def slices_of(labels: ClassLabels, slice: int) -> ClassLabels:
    """The same labels in another slice."""
    return replace(labels, slices=np.full(labels.slices.size, slice))
