"""What the errors of a slice looked like while it was healthy: how alike they are, their quantiles,
how tracks differ, and the map to χ²_K; and how all of it is learned.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from monitor.drift.bets import Stage
from monitor.drift.correlation import LEAST, OPEN, FrameSums, TrackSums
from monitor.drift.evidence import DriftSettings
from monitor.drift.reference import (
    LONGEST,
    LevelSums,
    NeesHistogram,
    Origin,
    Reference,
    chi_square_knots,
    knot_levels,
)
from monitor.drift.track_seconds import TrackSeconds
from monitor.drift.usual import ReferenceLearner, SliceState, Usual
from monitor.statistics.clusters import ALONE
from tests.drift.drives import (
    Frame,
    K,
    both,
    drive,
    exact_reference,
    mapped,
    seeds,
    watched,
)


def some_rows(seed, n, tracks):
    random = np.random.default_rng(seed)
    return random.exponential(size=n), random.integers(0, tracks + 1, n).astype(np.uint64)


def along_tracks(x, track, cuts=()) -> TrackSums:
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


@given(seeds, st.integers(0, 200), st.integers(1, 12), st.lists(st.integers(0, 200), max_size=8))
@example(0, 4, 2, [])
@example(1, 40, 1, [])
def test_tempering_is_that_of_whole_tracks_however_rows_are_cut_into_frames(seed, n, tracks, cuts):
    x, track = some_rows(seed, n, tracks)
    expected = by_loops(x, track)
    found = along_tracks(x, track, cuts).tempering()
    assert (found is None) == (expected is None)
    if expected is not None:
        assert found == pytest.approx(expected, rel=1e-6)


def test_rows_of_no_track_say_nothing_and_errors_that_never_vary_are_not_alike():
    sums = along_tracks(np.ones(5), np.full(5, ALONE))
    assert (sums.tracks, sums.rows, sums.tempering()) == (0, 0, None)
    track = np.repeat([1, 2], 20).astype(np.uint64)
    assert along_tracks(np.full(40, 1.5), track).tempering() == 1.0
    assert along_tracks(np.zeros(40), track).tempering() == 1.0


@pytest.mark.parametrize("chunk", [1, 100, 3 * OPEN])
def test_the_tracks_that_may_go_on_are_bounded_and_the_longest_unseen_go_first(chunk):
    ids = np.arange(1, 3 * OPEN + 1).astype(np.uint64)[::-1]
    sums = TrackSums()
    for at in range(0, ids.size, chunk):
        sums.add(np.ones(ids[at : at + chunk].size), ids[at : at + chunk])
    assert sums.going_on["key"].tolist() == list(range(1, OPEN + 1))
    assert sums.tracks == 3 * OPEN


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


@given(seeds, st.integers(16, 1200), st.lists(st.integers(0, 1200), max_size=6))
def test_tempering_of_frames_is_that_of_the_series_of_their_means(seed, n, cuts):
    random = np.random.default_rng(seed)
    y = np.convolve(random.exponential(size=n + 4), np.ones(5) / 5, "valid")
    found = framed(y, sorted(cuts)).tempering()
    assert found == pytest.approx(frames_by_loops(y.tolist()), rel=1e-6)


def test_fewer_than_sixteen_frames_tell_nothing_and_frames_that_never_vary_are_not_alike():
    assert framed(np.arange(15.0)).tempering() is None
    assert framed(np.arange(16.0)).tempering() is not None
    assert framed(np.ones(600)).tempering() == 1.0


def quantiles(rows, k: int):
    histogram = NeesHistogram()
    histogram.add(np.asarray(rows, float))
    return histogram.quantiles(k)


@pytest.mark.parametrize("k", [1, 4])
@pytest.mark.parametrize("n", [300, 20_000])
def test_a_knot_is_off_by_less_than_half_a_percent(k, n):
    rows = np.random.default_rng(n).chisquare(k, n) * 2.3
    levels = knot_levels()
    known = (levels >= 1 / (n + 1)) & (levels <= n / (n + 1))
    # Between rows of ln e, the i-th of n at i/(n + 1).
    exact = np.exp(np.interp(levels * (n + 1), np.arange(1, n + 1), np.log(np.sort(rows))))
    found = quantiles(rows, k)
    assert np.abs(np.log(found[known] / exact[known])).max() < 0.005


def some_tracks(seed, number, longest=12):
    random = np.random.default_rng(seed)
    lengths = random.integers(1, longest + 1, number)
    return [0.4 + 0.5 * random.standard_normal() + 0.7 * random.standard_normal(n) for n in lengths]


def by_seconds(tracks, chunk=7) -> LevelSums:
    """Second after second of all tracks, in pieces."""
    rows = [
        (y[i], 10, i, y[:i].mean() if i else 0.0)
        for i in range(max(y.size for y in tracks))
        for y in tracks
        if i < y.size
    ]
    sums = LevelSums()
    for at in range(0, len(rows), chunk):
        level, count, before, mean = map(np.array, zip(*rows[at : at + chunk], strict=True))
        sums.add(level, count, before, mean)
    return sums


def textbook(tracks):
    """m0, τ and ω, from the tracks themselves."""
    total, seconds = len(tracks), sum(y.size for y in tracks)
    omega2 = sum(((y - y.mean()) ** 2).sum() for y in tracks) / (seconds - total)
    grand = sum(y.sum() for y in tracks) / seconds
    between = sum(y.size * (y.mean() - grand) ** 2 for y in tracks) / (total - 1)
    size = (seconds - sum(y.size**2 for y in tracks) / seconds) / (total - 1)
    tau2 = max(0.0, (between - omega2) / size)
    weights = [1 / (tau2 + omega2 / y.size) for y in tracks]
    mean = sum(w * y.mean() for w, y in zip(weights, tracks, strict=True)) / sum(weights)
    # Three tenths at least, as levels() has it.
    return mean, max(math.sqrt(tau2), 0.3), math.sqrt(omega2)


@given(seeds, st.integers(10, 60), st.integers(1, 40))
def test_levels_are_those_of_a_one_way_analysis_of_variance(seed, number, chunk):
    tracks = some_tracks(seed, number)
    found = by_seconds(tracks, chunk=chunk).levels(10)
    assert found is not None
    np.testing.assert_allclose(
        (found.mean, found.between, found.within), textbook(tracks), rtol=1e-9
    )
    assert (found.tracks, found.blocks) == (number, sum(y.size for y in tracks))
    assert found.length == 10


def test_seconds_beyond_the_longest_count_for_a_track_but_not_for_how_tracks_differ():
    tracks = some_tracks(3, 20, longest=LONGEST)
    longer = [np.append(y, np.full(LONGEST + 5 - y.size, y.mean())) for y in tracks]
    sums = by_seconds(longer)
    assert sums.tracks[LONGEST] == 20
    assert sums.blocks == 20 * (LONGEST + 5)
    np.testing.assert_allclose(
        sums.means[LONGEST], sum(y[:LONGEST].mean() for y in longer), rtol=1e-12
    )


def test_too_few_tracks_or_no_second_seconds_teach_nothing_and_equal_ones_leave_room():
    for tracks in (some_tracks(1, 9), [np.zeros(1)] * 50):
        assert by_seconds(tracks).levels(10) is None
    found = by_seconds([np.full(4, 0.1)] * 20).levels(10)
    assert found is not None
    assert (found.between, found.within) == pytest.approx((0.3, 0.01))


def of_law(k: int, quantiles, detections=10**6, tempering=1.0) -> Reference:
    return Reference(k, Origin.FILE, quantiles, detections, 1.0, tempering, 1.0, None)


@pytest.mark.parametrize("k", [1, 3, 7])
def test_a_factor_on_the_law_of_the_reference_is_a_factor_on_chi_square(k):
    reference = of_law(k, 3.7 * chi_square_knots(k))
    e = np.random.default_rng(k).chisquare(k, 1000)
    np.testing.assert_allclose(mapped(reference, 3.7 * e), e, rtol=1e-9)
    np.testing.assert_allclose(mapped(reference, 7.4 * e[e < 10]), 2 * e[e < 10], rtol=1e-9)


def taught(nees, tracks, k=4, frames_a_call=16) -> ReferenceLearner:
    """NEES and ids of (F, T), in pieces."""
    learner = ReferenceLearner(k)
    for at in range(0, len(nees), frames_a_call):
        e, ids = nees[at : at + frames_a_call], tracks[at : at + frames_a_call]
        learner.add(e.ravel(), ids.ravel(), np.repeat(np.arange(at, at + len(e)), e.shape[1]))
    return learner


def learned(learner: ReferenceLearner) -> Reference:
    return learner.learned(Origin.LEARNED, 10)


def test_an_outlier_counts_as_one_error():
    learner = ReferenceLearner(3)
    learner.add(np.array([3.0, 1e300]), np.zeros(2, np.uint64), np.zeros(2, np.int64))
    assert learned(learner).nees_ratio == pytest.approx((1 + 64) / 2)
    assert np.isfinite(learned(learner).quantiles).all()


WANTED = DriftSettings(reference_tracks=12, reference_detections=600, reference_seconds=0.0)


def usual_of(wanted: DriftSettings = WANTED, **given) -> Usual:
    usual = Usual(wanted, {name: both(one) for name, one in given.items()})
    usual.grow(SliceState.begun("car", K))
    return usual


def taught_to(usual: Usual, frames: list[Frame], stages=tuple(Stage), fed=(100.0, 100.0)):
    rows = watched(frames)
    seconds = TrackSeconds(usual.settings).take(rows)
    before, usual.slices[0].fed = fed
    return list(usual.learn(0, stages, rows, seconds, 0, before))


def test_what_was_given_is_usual_at_once_and_in_every_epoch():
    given = exact_reference()
    usual = usual_of(car=given)
    assert usual.slices[0].references == [given, given]
    assert not usual.learning
    usual.begin_anew(usual.slices[0], Stage.RECALIBRATED)
    assert usual.slices[0].references == [given, given]
    assert taught_to(usual, drive(20)) == []
    other = usual_of(car=exact_reference(K + 1))
    assert other.slices[0].reference(Stage.RAW).origin is Origin.SHIPPED
    assert other.learning


def test_a_reference_is_frozen_once_enough_is_known_of_it():
    usual = usual_of()
    assert taught_to(usual, drive(20)) == list(Stage)
    frozen = usual.slices[0].reference(Stage.RAW)
    assert (frozen.origin, frozen.detections) == (Origin.LEARNED, 1600)
    assert frozen.nees_ratio == pytest.approx(1, abs=0.1)
    assert taught_to(usual, drive(20, made=lambda _: 9.0)) == []
    assert usual.slices[0].reference(Stage.RAW) is frozen
    # An epoch of one stage leaves the other, and a stage may be learned alone.
    usual.begin_anew(usual.slices[0], Stage.RECALIBRATED)
    assert usual.slices[0].reference(Stage.RECALIBRATED).origin is Origin.SHIPPED
    assert usual.slices[0].reference(Stage.RAW) is frozen
    assert taught_to(usual, drive(20, 1), [Stage.RAW]) == []
    assert taught_to(usual, drive(20, 1), [Stage.RECALIBRATED]) == [Stage.RECALIBRATED]


def test_so_many_detections_and_tracks_are_enough():
    # Of 1,600 detections of 40 tracks; tracks that are too few are not waited for without end.
    enough = {(1600, 40): 1, (1601, 40): 0, (1600, 41): 0, (160, 41): 1, (161, 41): 0}
    for (detections, tracks), expected in enough.items():
        wanted = replace(WANTED, reference_detections=detections, reference_tracks=tracks)
        assert (taught_to(usual_of(wanted), drive(20)) == list(Stage)) == expected


def test_a_reference_is_learned_over_so_much_driving_at_least():
    usual = usual_of(replace(WANTED, reference_seconds=60.0))
    spans = ((500.0, 510.0), (510.0, 559.9), (559.9, 560.0))
    assert [taught_to(usual, drive(20), fed=fed) for fed in spans] == [[], [], list(Stage)]
