"""Tracks in pieces, as a tracker makes of them that loses its object where an error is large."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from monitor.frames.space import IntArray
from monitor.promotion.tracks import WholeTrack


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


def outliers_broken_off(some: Sequence[WholeTrack], gate: float = 3.0) -> list[WholeTrack]:
    """Every row with an error of more than so many deviations a track of its own, by their ends."""
    pieces = []
    for track in some:
        z = np.abs((track.truth - track.sent.mean) / track.sent.deviation).max(axis=1)
        pieces += [piece(track, np.array([row])) for row in np.flatnonzero(z > gate)]
        within = np.flatnonzero(z <= gate)
        if within.size:
            pieces.append(piece(track, within))
    return sorted(pieces, key=lambda track: track.ended_ns)
