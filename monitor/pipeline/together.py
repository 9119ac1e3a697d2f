"""Examines and recalibrates frames that wait together as one batch.

What comes out for a frame is, bit for bit, what the frame alone gives. Frames for which that is not
sure beforehand, or that are not sound throughout, are left to be looked at alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from monitor.frames.detections import Examined, Limits, Reason, examine_together
from monitor.frames.frame import ReceivedFrame
from monitor.frames.slices import SliceTable
from monitor.pipeline.recalibrators import Recalibrated
from monitor.pipeline.streams import Stream
from monitor.recalibration.recalibrator import sound_rows
from monitor.recalibration.selection import Selection

Frames = Sequence[tuple[Stream, ReceivedFrame]]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A frame, examined and recalibrated, before its answer is made."""

    examined: Examined
    recalibrated: Recalibrated


def prepared_together(
    frames: Frames, selection: Selection, slices: SliceTable, limits: Limits, why: Reason
) -> list[Prepared | None]:
    """Examines and recalibrates frames of different streams; None for one to be looked at alone.

    why  the reason that their detections carry
    """
    found: list[Prepared | None] = [None] * len(frames)
    if len(frames) < 2 or not selection.by_rows:
        return found
    alike: dict[object, list[int]] = {}
    for place, (stream, frame) in enumerate(frames):
        form = None if frame.class_logits is not None else frame.detections.form
        if form is not None:
            header = stream.header
            key = form, header.space.number, len(header.classes)
            alike.setdefault(key, []).append(place)
    for places in alike.values():
        chosen = [frames[place] for place in places]
        if len(chosen) > 1 and selection.fits(chosen[0][0].header.space):
            # A fault is told where it happens to a frame alone.
            with contextlib.suppress(Exception):
                ready = _prepared(chosen, selection, slices, limits, why)
                for place, one in zip(places, ready, strict=False):
                    found[place] = one
    return found


def _prepared(
    frames: Frames, selection: Selection, slices: SliceTable, limits: Limits, why: Reason
) -> list[Prepared]:
    """Examines and recalibrates frames of one form; none if any detection of them is not sound."""
    header = frames[0][0].header
    received = [frame.detections for _, frame in frames]
    batch = examine_together(received, header.space, len(header.classes), limits)
    if batch is None:
        return []
    ends = list(accumulate(one.n for one in received))
    parts = [slice(begin, end) for begin, end in zip([0, *ends], ends, strict=False)]
    batches = [batch.part(one, part) for one, part in zip(received, parts, strict=True)]
    index = [
        stream.slices.of(one.class_index, one.sent.mean)
        for (stream, _), one in zip(frames, batches, strict=True)
    ]
    sent, chains = batch.sent, slices.chains
    made = selection.apply(sent, np.concatenate(index), chains)
    if not sound_rows(sent, made, limits, definite=selection.keeps_definite).all():
        return []
    prepared = []
    for part, one, its_slices in zip(parts, batches, index, strict=True):
        its = one.sent if made is sent else made.take(part)
        sound = np.ones(its_slices.size, bool)
        recalibrated = Recalibrated(
            selection, one.sent, its_slices, chains, its, sound, whole=True, why=why
        )
        prepared.append(Prepared(Examined.of_clean(one), recalibrated))
    return prepared
