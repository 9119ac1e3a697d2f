"""Whole tracks of a simulated detector: correlated Gaussian or Student-t errors, many at once, or
class probabilities; and in pieces, as a tracker makes of them that loses its object at a large
error. No tests.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.special import softmax

from monitor.frames.detections import Estimates
from monitor.frames.space import FloatArray, IntArray, plain_space
from monitor.promotion.tracks import ClassKind, ClassTrack, WholeTrack

FRAME_NS = 100_000_000
# How long the scale of a Student-t error is held, in correlation times, as in the drive.
HOLD = 8.0


def tracks(
    seed: int,
    count: int,
    k: int = 3,
    length: int = 40,
    rho: float = 0.65,
    scale: float | FloatArray = 1.0,
    degrees: float = np.inf,
    *,
    begin_ns: int = 0,
    slice: int = 0,
    held: bool = False,
) -> list[WholeTrack]:
    """Tracks of `length` rows one after the other, a frame every 0.1 s, none at begin_ns itself.

    rho      correlation of successive errors
    scale    variance of the errors over the variance that is sent: one, (k,) or (count, k)
    degrees  of freedom of the errors, whose variance is as stated; infinite: Gaussian
    held     whether a Student-t error has one scale for the whole track: the heaviest tails that
             means over tracks can have
    """
    random = np.random.default_rng(seed)
    deviation = np.exp(random.normal(0.0, 0.5, (count, 1, k))) * np.ones((count, length, k))
    error = correlated(random, (count, length, k), rho)
    error *= np.sqrt(mixing(random, count, length, rho, degrees, held=held))[:, :, None]
    error *= np.sqrt(np.broadcast_to(scale, (count, k)))[:, None] * deviation
    truth = random.uniform(-50.0, 50.0, (count, length, k))
    covariance = np.square(deviation)[:, :, :, None] * np.eye(k)
    space, diagonal = plain_space(tuple("xyzlwhvuts"[:k]), "m"), np.ones(length, bool)
    stamps = begin_ns + FRAME_NS * np.arange(1, count * length + 1).reshape(count, length)
    return [
        WholeTrack(
            space,
            slice,
            Estimates(truth[i] - error[i], covariance[i], diagonal),
            truth[i],
            stamps[i],
            0,
        )
        for i in range(count)
    ]


def correlated(random: np.random.Generator, shape: tuple[int, int, int], rho: float) -> FloatArray:
    """Normal errors of variance 1, each ρ times the one before and something new."""
    error = random.normal(size=shape)
    for i in range(1, shape[1]):
        error[:, i] = rho * error[:, i - 1] + np.sqrt(1 - rho * rho) * error[:, i]
    return error


def mixing(
    random: np.random.Generator, count: int, length: int, rho: float, degrees: float, *, held: bool
) -> FloatArray:
    """(count, length) inverse gamma with mean 1: times a Gaussian's variance, a Student-t."""
    if np.isinf(degrees):
        return np.ones((count, length))
    drawn = (degrees - 2) / random.chisquare(degrees, (count, length))
    redrawn = random.random((count, length)) < (0.0 if held else (1 - rho) / HOLD)
    last = np.maximum.accumulate(np.where(redrawn, np.arange(length), 0), axis=1)
    found: FloatArray = np.take_along_axis(drawn, last, axis=1)
    return found


def class_tracks(
    seed: int,
    count: int,
    times: float = 1.0,
    *,
    classes: int = 5,
    opinions: int = 1,
    wrong: float = 0.0,
    clear: tuple[float, float] = (0.5, 2.5),
    begin_ns: int = 0,
    slice: int = -1,
) -> list[ClassTrack]:
    """Tracks of 10 to 40 rows of a softmax detector, each of one true class.

    Each frame shows x = μ e_y + ε with correlated ε ~ N(0, I) (ρ = 0.65) and a μ by track, so that
    softmax(μ x) is the very probability of each class: logits that are sent `times` as large are of
    temperature `times`.

    wrong  share of the rows whose label is another class, drawn anew for each row
    clear  least and largest μ
    """
    random = np.random.default_rng(seed)
    kind = ClassKind(tuple("abcdefghij"[:classes]), opinions)
    lengths, found = random.integers(10, 41, count), []
    for i, n in enumerate(lengths.tolist()):
        true, mu = int(random.integers(classes)), random.uniform(*clear)
        x = correlated(random, (1, n, classes), 0.65)[0] + mu * np.eye(classes)[true]
        logits = times * mu * x
        # Opinions whose mean is as before, but for the curvature of the softmax.
        spread = 0.3 * random.normal(size=(n, opinions, classes)) if opinions > 1 else 0.0
        opinion = softmax(logits[:, None] + spread, axis=2)
        label = np.full(n, true)
        other = random.random(n) < wrong
        label[other] = (true + random.integers(1, classes, n))[other] % classes
        begin = begin_ns + FRAME_NS * 40 * i
        stamps = begin + FRAME_NS * np.arange(1, n + 1)
        found.append(ClassTrack(kind, slice, opinion, label, stamps, 0))
    return found


def piece(track: WholeTrack, rows: IntArray) -> WholeTrack:
    """Some of its rows, in order."""
    return replace(
        track, sent=track.sent.take(rows), truth=track.truth[rows], stamp_ns=track.stamp_ns[rows]
    )


def broken(random: np.random.Generator, track: WholeTrack, longest: int) -> list[WholeTrack]:
    """In pieces at random, which take turns; none has more rows than that."""
    pieces, left = [], np.arange(track.n)
    while left.size:
        chosen = random.random(left.size) < random.random() ** 2 * longest / left.size
        chosen[random.integers(left.size)] = True
        rows = left[chosen][:longest]
        pieces.append(piece(track, rows))
        left = np.setdiff1d(left, rows)
    return pieces
