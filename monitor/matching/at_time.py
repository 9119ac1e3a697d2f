"""Where the objects of a frame were at its time: samples of a labelled track, interpolated between
the two around it and never extrapolated.

Samples of one object id are one label. One without a stamp says where the object is at the
frame's time, and stands against all samples of its id that have one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from monitor.frames.detections import IdArray
from monitor.frames.space import BoolArray, FloatArray, IntArray, Space
from monitor.matching.distances import Placed


@dataclass(frozen=True, eq=False, slots=True)
class Samples:
    """m samples of a message: usable says which of them can be placed at all.

    id, has_id          (m,)
    stamp_ns, has_stamp (m,)
    usable              (m,)
    """

    id: IdArray
    has_id: BoolArray
    stamp_ns: IntArray
    has_stamp: BoolArray
    usable: BoolArray


@dataclass(frozen=True, eq=False, slots=True)
class ObjectsAtTime:
    """u labels of a message, and the o of them that are objects at the frame's time.

    told       u
    label      (o,) which of the labels, ascending
    sample     (o,) the sample that stands for the object; of two the nearer one
    other      (o,) the sample beyond the frame's time; the same one where there is none
    share      (o,) of the other: 0 where a sample is taken as it is, at most ½
    duplicate  labels that say again where an object is
    untimely   labels with usable samples, all of them too far from the frame's time
    first      the first sample of these; −1 where there are none
    """

    told: int
    label: IntArray
    sample: IntArray
    other: IntArray
    share: FloatArray
    duplicate: int
    untimely: int
    first: int


def labels_told(samples: Samples) -> tuple[int, IntArray]:
    """How many labels the samples are; and which of them each is, (m,), −1 for those with a
    stamp where another says that the object is there at the frame's time.
    """
    m = samples.id.size
    # Numbers below m are positions; the id stands for itself, found once.
    same = np.arange(m)
    named = np.flatnonzero(samples.has_id)
    _, first, inverse = np.unique(samples.id[named], return_index=True, return_inverse=True)
    same[named] = named[first[inverse]]
    at_frame = ~samples.has_stamp
    told_at_frame = np.zeros(m, bool)
    told_at_frame[same[at_frame]] = True
    own = np.where(at_frame, np.arange(m), same)
    passed = samples.has_stamp & told_at_frame[same]
    label = np.full(m, -1)
    kept = np.flatnonzero(~passed)
    numbers, label[kept] = np.unique(own[kept], return_inverse=True)
    return int(numbers.size), label


def objects_at_time(
    samples: Samples, stamp_ns: int | None, max_gap_ns: int, max_offset_ns: int
) -> ObjectsAtTime:
    """Find the samples that say where each object was.

    stamp_ns       of the frame; without one, only samples without a stamp say anything
    max_gap_ns     between two samples that are interpolated
    max_offset_ns  to the nearest sample, to be taken as it is where there are no two around
    """
    told, label = labels_told(samples)
    at_frame = np.flatnonzero(samples.usable & ~samples.has_stamp)
    repeated = np.zeros(at_frame.size, bool)
    named = np.flatnonzero(samples.has_id[at_frame])
    _, first = np.unique(samples.id[at_frame[named]], return_index=True)
    repeated[named] = True
    repeated[named[first]] = False
    standing = at_frame[~repeated]
    stamped = np.flatnonzero(samples.usable & samples.has_stamp & (label >= 0))
    if stamp_ns is None:
        nothing = np.zeros(0, np.int64)
        sample, other, share = nothing, nothing, np.zeros(0)
    else:
        sample, other, share = _around(samples, stamped, label, stamp_ns, max_gap_ns, max_offset_ns)
    found = np.concatenate([standing, sample])
    order = np.argsort(label[found], kind="stable")
    late = np.setdiff1d(label[stamped], label[sample])
    return ObjectsAtTime(
        told=told,
        label=label[found][order],
        sample=found[order],
        other=np.concatenate([standing, other])[order],
        share=np.concatenate([np.zeros(standing.size), share])[order],
        duplicate=int(np.count_nonzero(repeated)),
        untimely=int(late.size),
        first=int(stamped[np.isin(label[stamped], late)][0]) if late.size else -1,
    )


def _around(
    samples: Samples,
    stamped: IntArray,
    label: IntArray,
    stamp_ns: int,
    max_gap_ns: int,
    max_offset_ns: int,
) -> tuple[IntArray, IntArray, FloatArray]:
    """Of the labels of these samples that can be placed: sample, other and share."""
    order = stamped[np.lexsort((stamped, samples.stamp_ns[stamped], label[stamped]))]
    if order.size == 0:
        return order, order, np.zeros(0)
    stamp, of = samples.stamp_ns[order], label[order]
    begin = np.concatenate([[0], np.flatnonzero(np.diff(of)) + 1])
    # The last one at or before the frame, and the first one at or after it. Of several with one
    # stamp, both are the first that came.
    until = np.add.reduceat((stamp < stamp_ns).astype(np.int64), begin)
    exact = np.logical_or.reduceat(stamp == stamp_ns, begin)
    size = np.diff(begin, append=order.size)
    after = begin + np.minimum(until, size - 1)
    before = np.where(exact, after, begin + np.maximum(until - 1, 0))
    before = np.searchsorted(_ranks(of, stamp), _ranks(of, stamp)[before])
    ahead, behind = _apart_ns(stamp[before], stamp_ns), _apart_ns(stamp[after], stamp_ns)
    both = exact | ((until > 0) & (until < size))
    # As floats: the sum of two intervals may be beyond 64 bits.
    gap = ahead.astype(np.float64) + behind.astype(np.float64)
    between = both & (gap <= max_gap_ns)
    nearer = np.where(ahead <= behind, before, after)
    distance = np.minimum(ahead, behind).astype(np.float64)
    usable = between | (distance <= max_offset_ns)
    other = np.where(between, before + after - nearer, nearer)
    share = np.divide(distance, gap, out=np.zeros(gap.size), where=between & (gap > 0))
    return order[nearer[usable]], order[other[usable]], share[usable]


def _ranks(of: IntArray, stamp: IntArray) -> IntArray:
    """(n,) of sorted samples, equal where label and stamp are."""
    new = (np.diff(of, prepend=of[0]) != 0) | (np.diff(stamp, prepend=stamp[0]) != 0)
    ranks: IntArray = np.cumsum(new)
    return ranks


def _apart_ns(stamp: IntArray, stamp_ns: int) -> IdArray:
    """|stamp − stamp_ns|, which may be beyond 63 bits."""
    frame = np.int64(stamp_ns)
    with np.errstate(over="ignore"):
        later = (stamp - frame).view(np.uint64)
        earlier = (frame - stamp).view(np.uint64)
    return np.where(stamp >= frame, later, earlier)


def placed_at_time(placed: Placed, objects: ObjectsAtTime, space: Space) -> Placed:
    """The objects where they were: Σ of a weighted sum of two independent samples.

    placed  all samples of the message; angles go the shortest way
    """
    near, far = placed.take(objects.sample), placed.take(objects.other)
    share = objects.share
    mean = near.mean + share[:, None] * space.error(far.mean, near.mean)
    if near.covariance is None or far.covariance is None:
        return Placed(mean)
    weights = ((1 - share) ** 2)[:, None, None], (share**2)[:, None, None]
    return Placed(mean, weights[0] * near.covariance + weights[1] * far.covariance)
