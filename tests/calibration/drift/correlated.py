"""Errors of tracks that come and go, alike from frame to frame."""

from __future__ import annotations

import numpy as np


def correlated(seed, k, correlation, frames, open_tracks=8, life=40, bias=0.0):
    """(F, T) NEES and ids: AR(1) whitened errors, and a constant bias of each track, of which
    the second moment is 1 together; a track ends with 1/life in each frame.
    """
    random = np.random.default_rng(seed)
    ids = np.arange(1, open_tracks + 1)
    following = open_tracks + 1
    errors, biases = random.standard_normal((2, open_tracks, k))
    nees, tracks = np.empty((frames, open_tracks)), np.empty((frames, open_tracks), np.uint64)
    for frame in range(frames):
        whole = np.sqrt(1 - bias**2) * errors + bias * biases
        nees[frame], tracks[frame] = (whole**2).sum(axis=1), ids
        fresh = random.standard_normal((open_tracks, k))
        errors = correlation * errors + np.sqrt(1 - correlation**2) * fresh
        over = np.flatnonzero(random.random(open_tracks) < 1 / life)
        errors[over], biases[over] = random.standard_normal((2, over.size, k))
        ids[over] = np.arange(following, following + over.size)
        following += over.size
    return nees, tracks
