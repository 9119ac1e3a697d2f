"""How alike successive errors are: sums against plain loops over whole tracks and frames."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.drift.correlation import LEAST, OPEN, FrameSums, TrackSums
from monitor.statistics.clusters import ALONE
from tests.calibration.drift.correlated import correlated

quick = settings(max_examples=60)
seeds = st.integers(0, 2**32 - 1)


def some_rows(seed, n, tracks):
    random = np.random.default_rng(seed)
    return random.exponential(size=n), random.integers(0, tracks + 1, n).astype(np.uint64)


def summed(x, track, cuts=()) -> TrackSums:
    sums = TrackSums()
    for rows in np.split(np.arange(x.size), sorted(min(cut, x.size) for cut in cuts)):
        sums.add(x[rows], track[rows])
    return sums


def worth(r: float, effect: float) -> float:
    r = min(max(r, 0.0), 1.0)
    return min(1.0, max(LEAST, min((1 - r) / (1 + r), 1 / max(effect, 1))))


def by_loops(x, track) -> float | None:
    """γ with a list for each track."""
    tracks: dict[int, list[float]] = {}
    for value, key in zip(x.tolist(), track.tolist(), strict=True):
        if key:
            tracks.setdefault(key, []).append(value)
    rows = [value for values in tracks.values() for value in values]
    n, pairs = len(rows), sum(len(values) - 1 for values in tracks.values())
    if len(tracks) < 2 or pairs < 2:
        return None
    m = sum(rows) / n
    spread = sum((value - m) ** 2 for value in rows)
    if spread == 0:
        return 1.0
    alike = {
        key: sum((a - m) * (b - m) for a, b in pairwise(values)) for key, values in tracks.items()
    }
    scaled = spread * pairs / n
    r = sum(alike.values()) / scaled
    beyond = [
        alike[key] - r * pairs / n * sum((value - m) ** 2 for value in values)
        for key, values in tracks.items()
    ]
    error = math.sqrt(sum(value**2 for value in beyond)) / scaled
    effect = sum(sum(value - m for value in values) ** 2 for values in tracks.values()) / spread
    return worth(r + error, effect)


@quick
@given(seeds, st.integers(0, 200), st.integers(1, 12), st.lists(st.integers(0, 200), max_size=8))
def test_tempering_is_that_of_whole_tracks_however_rows_are_cut_into_frames(seed, n, tracks, cuts):
    x, track = some_rows(seed, n, tracks)
    expected = by_loops(x, track)
    found = summed(x, track, cuts).tempering()
    assert (found is None) == (expected is None)
    if expected is not None:
        assert found == pytest.approx(expected, rel=1e-6)


@quick
@given(seeds)
def test_the_order_of_tracks_does_not_matter_beyond_rounding(seed):
    x, track = some_rows(seed, 100, 6)
    by_track = np.argsort(track, kind="stable")
    one, other = summed(x, track), summed(x[by_track], track[by_track])
    assert one.tracks == other.tracks
    assert one.tempering() == pytest.approx(other.tempering(), rel=1e-6)


@pytest.mark.parametrize("correlation", [0.6, 0.9])
@pytest.mark.parametrize("seed", range(3))
def test_the_worth_of_a_detection_is_that_of_its_correlation_and_not_far_below(correlation, seed):
    nees, tracks = correlated(seed, 4, correlation, 500)
    found = summed(nees.ravel() / 4, tracks.ravel()).tempering()
    true = (1 - correlation**2) / (1 + correlation**2)
    assert found is not None
    assert 0.45 * true < found < 1.1 * true


def test_independent_detections_are_worth_almost_one_each():
    nees, tracks = correlated(0, 4, 0.0, 1500)
    found = summed(nees.ravel() / 4, tracks.ravel()).tempering()
    assert found is not None
    assert found > 0.7


def test_a_constant_bias_of_each_object_is_seen_though_successive_rows_are_little_alike():
    nees, tracks = correlated(1, 4, 0.0, 1500, bias=0.5)
    found = summed(nees.ravel() / 4, tracks.ravel()).tempering()
    assert found is not None
    # r is some 0.1 at every distance: by (1 − r)/(1 + r) alone it were 0.8.
    assert found < 0.45


def test_rows_of_no_track_say_nothing():
    sums = summed(np.ones(5), np.full(5, ALONE))
    assert (sums.tracks, sums.rows, sums.tempering()) == (0, 0, None)


@pytest.mark.parametrize("chunk", [1, 100, 3 * OPEN])
def test_the_tracks_that_may_go_on_are_bounded_and_the_longest_unseen_go_first(chunk):
    ids = np.arange(1, 3 * OPEN + 1).astype(np.uint64)[::-1]
    sums = TrackSums()
    for at in range(0, ids.size, chunk):
        sums.add(np.ones(ids[at : at + chunk].size), ids[at : at + chunk])
    assert sums.going_on["key"].tolist() == list(range(1, OPEN + 1))
    assert sums.tracks == 3 * OPEN


def test_errors_that_never_vary_are_not_alike():
    track = np.repeat([1, 2], 20).astype(np.uint64)
    assert summed(np.full(40, 1.5), track).tempering() == 1.0


# ---- frames


def framed(means, cuts=()) -> FrameSums:
    sums = FrameSums()
    for part in np.split(np.asarray(means, float), cuts):
        sums.add(np.repeat(part, 2), np.repeat(np.arange(part.size), 2))
    return sums


def frames_by_loops(y):
    n, m = len(y), sum(y) / len(y)
    pairs = list(pairwise(y))
    spread = sum((a - m) ** 2 for a, _ in pairs)
    r = min(1, sum((a - m) * (b - m) for a, b in pairs) / spread)
    r += 2 * math.sqrt(max(0, 1 - r * r) / len(pairs))
    effect, size = 1.0, 2
    while size <= 256 and n // size >= 8:
        batches = [sum(y[i * size : (i + 1) * size]) / size for i in range(n // size)]
        ratio = size * np.var(batches, ddof=1) / np.var(y, ddof=1)
        effect = max(effect, ratio * (1 + math.sqrt(2 / (len(batches) - 1))))
        size *= 2
    return worth(r, effect)


@quick
@given(seeds, st.integers(16, 1200), st.lists(st.integers(0, 1200), max_size=6))
def test_tempering_of_frames_is_that_of_the_series_of_their_means(seed, n, cuts):
    random = np.random.default_rng(seed)
    y = np.convolve(random.exponential(size=n + 4), np.ones(5) / 5, "valid")
    found = framed(y, sorted(cuts)).tempering()
    assert found == pytest.approx(frames_by_loops(y.tolist()), rel=1e-6)


@pytest.mark.parametrize("correlation", [0.6, 0.9])
@pytest.mark.parametrize("seed", range(3))
def test_the_worth_of_a_frame_is_that_of_the_tracks_in_it_though_none_are_known(correlation, seed):
    nees, _ = correlated(seed, 4, correlation, 800)
    found = framed(nees.mean(axis=1) / 4).tempering()
    true = (1 - correlation**2) / (1 + correlation**2)
    assert found is not None
    assert 0.35 * true < found < 1.2 * true


def test_two_sources_whose_frames_take_turns_hide_nothing():
    nees = np.stack([correlated(seed, 4, 0.9, 1500)[0].mean(axis=1) for seed in (1, 2)], axis=1)
    found = framed(nees.ravel() / 4).tempering()
    assert found is not None
    assert found < 0.15


def test_too_few_frames_tell_nothing():
    assert framed(np.arange(15.0)).tempering() is None
    assert FrameSums().tempering() is None


def test_frames_that_never_vary_are_not_alike():
    assert framed(np.ones(600)).tempering() == 1.0
