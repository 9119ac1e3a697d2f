"""Divides the rows of a recording into the groups that verdicts and measures are given for."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from monitor.commands.output import shown
from monitor.commands.recordings import parts_of, ranges_by, ranges_of
from monitor.frames.slices import marked
from monitor.frames.space import BoolArray
from monitor.frames.words import SliceBy
from monitor.options.rows import RANGE_EDGES
from monitor.store.recordings import OBJECT, Recording
from monitor.store.stored_arrays import values_and_places

# Groups that a column may divide the rows into.
_MOST_GROUPS = 100


def divided(
    by: tuple[str, ...], recording: Recording, usable: BoolArray
) -> Iterator[tuple[str, BoolArray]]:
    """Divides all rows (N,) as --by asks; groups without usable rows (N,) are left out."""
    names, group = [""], np.zeros(usable.size, np.int64)
    for part in by or (SliceBy.CLASS,):
        if part in recording.beside:
            found, index = values_and_places(recording.beside[part])
            values = tuple(found.tolist())
        else:
            ranges = ranges_by(recording.space) if part == SliceBy.RANGE else None
            parts = parts_of(recording, ranges)
            values, index = parts.names[SliceBy(part)], parts.index[SliceBy(part)]
        if not by and values == (OBJECT,):
            break
        there, group = values_and_places(group * len(values) + index)
        if there.size > _MOST_GROUPS:
            raise ValueError(
                f"--by {','.join(by)}: there are {there.size} groups, and at most {_MOST_GROUPS} "
                "are told apart. Name columns with fewer values."
            )
        names = [
            ", ".join(filter(None, (names[one // len(values)], values[one % len(values)])))
            for one in there.tolist()
        ]
    for i, name in enumerate(names):
        rows = group == i
        if (rows & usable).any():
            yield shown(name), rows


def apart_from_filled(
    by: tuple[str, ...], recording: Recording, usable: BoolArray, filled: BoolArray
) -> Iterator[tuple[str, BoolArray]]:
    """Divides rows likewise; those that were given a covariance (N,) never meet those that had one.

    Where all were, or none, groups have their plain names.
    """
    sent = usable & ~filled
    if not (filled.any() and sent.any()):
        yield from divided(by, recording, usable)
        return
    for name, rows in divided(by, recording, sent):
        yield name, rows & ~filled
    for name, rows in divided(by, recording, filled):
        yield marked(name), rows & filled


def finer_parts(recording: Recording) -> tuple[SliceBy, ...]:
    """Divides errors by class and range, where rows have them and groups are not too many."""
    by = () if recording.classes == (OBJECT,) else (SliceBy.CLASS,)
    few = len(recording.classes) * (len(RANGE_EDGES) + 1) <= _MOST_GROUPS
    return (*by, SliceBy.RANGE) if few and ranges_of(recording.space) else by
