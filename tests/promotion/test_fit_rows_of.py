"""Tracks as rows of a fit, against a loop over single rows."""

from __future__ import annotations

import numpy as np
import pytest

from monitor.frames.detections import Estimates
from monitor.frames.space import Dimension, DimensionKind, Space
from monitor.promotion.fits import fit_rows
from monitor.promotion.tracks import WholeTrack
from monitor.recalibration.fitting import FITTINGS, FitOptions

SPACE = Space((Dimension("x", "m"), Dimension("yaw", "rad", DimensionKind.ANGLE)))
# As of a clock that counts from 1970: as a float it would be known to 256 ns.
TODAY = 1_770_000_000_000_000_001


def drawn(seed: int, lengths: list[int]) -> list[WholeTrack]:
    random = np.random.default_rng(seed)
    found = []
    for i, n in enumerate(lengths):
        root = random.normal(size=(n, 2, 2))
        sent = Estimates(
            random.uniform(-3, 3, (n, 2)),
            root @ root.transpose(0, 2, 1) + np.eye(2),
            random.random(n) < 0.5,
        )
        stamps = TODAY + 10**9 * (5 - i) + np.sort(random.integers(0, 10**9, n))
        delay = int(random.integers(0, 10**10))
        found.append(WholeTrack(SPACE, 4, sent, random.uniform(-3, 3, (n, 2)), stamps, delay))
    return found


def test_every_row_of_every_track_is_there_in_order():
    tracks = drawn(1, [3, 1, 7])
    rows = fit_rows(tracks)
    assert (rows.n, rows.tracks, rows.space) == (11, 3, SPACE)
    assert rows.time_s is not None
    assert rows.delay_s is not None
    row = 0
    for number, track in enumerate(tracks):
        for i in range(track.n):
            x, yaw = track.truth[i] - track.sent.mean[i]
            assert rows.error[row, 0] == x
            # The same angle, and the short way round.
            assert np.exp(1j * rows.error[row, 1]) == pytest.approx(np.exp(1j * yaw))
            assert abs(rows.error[row, 1]) <= np.pi
            assert np.array_equal(rows.estimates.mean[row], track.sent.mean[i])
            assert np.array_equal(rows.estimates.covariance[row], track.sent.covariance[i])
            assert rows.estimates.diagonal[row] == track.sent.diagonal[i]
            assert rows.track[row] == number
            assert rows.time_s[row] == track.stamp_ns[i] / 1e9
            assert rows.delay_s[row] == track.delay_ns / 1e9
            row += 1


def test_methods_can_be_fitted_on_them():
    rows = fit_rows(drawn(2, [20] * 30))
    fitted = FITTINGS["variance-scaling"].fit(rows, FitOptions(), None)
    assert fitted.k == 2
