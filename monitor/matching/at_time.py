"""Places labelled objects at the time of a frame.

An object is interpolated between the two samples of its track around the frame, and never
extrapolated. Samples of one object id are one label. A sample without a stamp says where the
object is at the time of the frame, and takes precedence over all stamped samples of its id.
Detections never appear here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from monitor.frames.detections import IdArray
from monitor.frames.frame import ReceivedObjects
from monitor.frames.space import BoolArray, FloatArray, IntArray, Space
from monitor.matching.distances import Placed


@dataclass(frozen=True, eq=False, slots=True)
class ObjectsAtTime:
    """Lists the o objects, of the u labels of a message, that can be placed at the frame's time.

    told       u
    label      (o,) number of the object's label, ascending
    sample     (o,) the sample that is used; of two the nearer one
    other      (o,) the sample on the other side of the frame's time; `sample` again without one
    share      (o,) weight of `other`: at most ½, 0 where one sample is used as it is
    duplicate  labels that repeat the position of an object
    untimely   labels with usable samples, all of them too far from the frame's time
    first      the first sample of the untimely labels; −1 without any
    """

    told: int
    label: IntArray
    sample: IntArray
    other: IntArray
    share: FloatArray
    duplicate: int
    untimely: int
    first: int


def samples_told(samples: ReceivedObjects) -> tuple[int, IntArray]:
    """Counts the labels that the samples make up, and numbers the label of each sample.

    returns  u; and (m,) in 0 … u − 1, −1 for a stamped sample of an object that also has a
             sample without a stamp
    """
    m = samples.id.size
    # The position of the first sample with the same id; its own for a sample without an id.
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
    samples: ReceivedObjects,
    usable: BoolArray,
    stamp_ns: int | None,
    max_gap_ns: int,
    max_offset_ns: int,
) -> ObjectsAtTime:
    """Finds the samples that place each object at the time of the frame.

    usable         (m,) samples that can be placed at all
    stamp_ns       of the frame; without it, only samples without a stamp can be used
    max_gap_ns     most between two samples that are interpolated
    max_offset_ns  most to the nearest sample, for it to be used as it is where there are no two
                   around the frame
    """
    told, label = samples_told(samples)
    at_frame = np.flatnonzero(usable & ~samples.has_stamp)
    repeated = np.zeros(at_frame.size, bool)
    named = np.flatnonzero(samples.has_id[at_frame])
    _, first = np.unique(samples.id[at_frame[named]], return_index=True)
    repeated[named] = True
    repeated[named[first]] = False
    standing = at_frame[~repeated]
    stamped = np.flatnonzero(usable & samples.has_stamp & (label >= 0))
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
    samples: ReceivedObjects,
    stamped: IntArray,
    label: IntArray,
    stamp_ns: int,
    max_gap_ns: int,
    max_offset_ns: int,
) -> tuple[IntArray, IntArray, FloatArray]:
    """Returns sample, other and share of the labels of stamped samples that can be placed."""
    order = stamped[np.lexsort((stamped, samples.stamp_ns[stamped], label[stamped]))]
    if order.size == 0:
        return order, order, np.zeros(0)
    stamp, of = samples.stamp_ns[order], label[order]
    begin = np.concatenate([[0], np.flatnonzero(np.diff(of)) + 1])
    # `before` is the last sample at or before the frame, `after` the first one at or after it.
    # Among samples with equal stamps, the first that came is used.
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
    """Numbers sorted samples, (n,); samples of equal label and stamp share a number."""
    new = (np.diff(of, prepend=of[0]) != 0) | (np.diff(stamp, prepend=stamp[0]) != 0)
    ranks: IntArray = np.cumsum(new)
    return ranks


def _apart_ns(stamp: IntArray, stamp_ns: int) -> IdArray:
    """Computes |stamp − stamp_ns|, which may need 64 bits without a sign."""
    frame = np.int64(stamp_ns)
    with np.errstate(over="ignore"):
        later = (stamp - frame).view(np.uint64)
        earlier = (frame - stamp).view(np.uint64)
    return np.where(stamp >= frame, later, earlier)


def placed_at_time(placed: Placed, objects: ObjectsAtTime, space: Space) -> Placed:
    """Interpolates each object to the time of the frame; angles go the shortest way.

    Σ is that of a weighted sum of two independent samples: (1 − s)² Σ_sample + s² Σ_other.

    placed  all samples of the message
    """
    near, far = placed.take(objects.sample), placed.take(objects.other)
    share = objects.share
    mean = near.mean + share[:, None] * space.error(far.mean, near.mean)
    if near.covariance is None or far.covariance is None:
        return Placed(mean)
    weights = ((1 - share) ** 2)[:, None, None], (share**2)[:, None, None]
    return Placed(mean, weights[0] * near.covariance + weights[1] * far.covariance)
