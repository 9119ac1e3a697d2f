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

from monitor.drift.channels import MOST_NAMED
from monitor.drift.charts import Origin, Stage
from monitor.drift.correlation import (
    LEAST,
    OPEN,
    SPACINGS,
    FrameSums,
    TrackSums,
    tempering_by_spacing,
)
from monitor.drift.evidence import DriftSettings
from monitor.drift.level_sums import LONGEST, LevelSums, SecondLevels
from monitor.drift.reference import (
    NeesHistogram,
    Reference,
    chi_square_knots,
    is_thin,
    knot_levels,
    shipped,
    usual_arrays,
)
from monitor.drift.track_seconds import TrackSeconds
from monitor.drift.usual import ReferenceLearner, SliceState, Usual, watched_errors
from monitor.frames.space import Dimension, DimensionKind, FloatArray, Space
from monitor.statistics.clusters import ALONE
from monitor.statistics.observations import measure
from tests.drift.drives import (
    PERIOD_NS,
    Frame,
    K,
    both,
    correlated,
    drive,
    exact_levels,
    exact_reference,
    mapped,
    seeds,
    watched,
)


def some_rows(seed, n, tracks):
    random = np.random.default_rng(seed)
    return random.exponential(size=n), random.integers(0, tracks + 1, n).astype(np.uint64)


def along_tracks(x, track, cuts=(), stamps=None, spacing=0.0) -> TrackSums:
    sums, stamps = TrackSums(), np.arange(x.size) * PERIOD_NS if stamps is None else stamps
    for rows in np.split(np.arange(x.size), sorted(min(cut, x.size) for cut in cuts)):
        sums.add(x[rows], track[rows], stamps[rows], spacing)
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
        part = ids[at : at + chunk]
        sums.add(np.ones(part.size), part, np.zeros(part.size, np.int64))
    assert sums.going_on["key"].tolist() == list(range(1, OPEN + 1))
    assert sums.tracks == 3 * OPEN


@given(seeds, st.integers(0, 200), st.lists(st.integers(0, 200), max_size=8))
def test_labels_at_a_spacing_are_those_of_a_stream_that_is_thinned_to_it(seed, n, cuts):
    """The first row of each track in each span of time, all rows in their order."""
    x, track = some_rows(seed, n, 5)
    stamps = np.cumsum(np.random.default_rng(seed).integers(0, 4, n)) * PERIOD_NS
    for spacing in (0.2, 0.5, 1.0):
        spans = list(zip(track.tolist(), (stamps // round(spacing * 1e9)).tolist(), strict=True))
        chosen = [span not in spans[:place] for place, span in enumerate(spans)]
        thinned = np.flatnonzero(np.array(chosen, bool) & (track != ALONE))
        found = along_tracks(x, track, cuts, stamps, spacing)
        expected = along_tracks(x[thinned], track[thinned], (), stamps[thinned])
        assert (found.rows, found.tracks) == (expected.rows, expected.tracks)
        worths = [-1.0 if one.tempering() is None else one.tempering() for one in (found, expected)]
        assert worths[0] == pytest.approx(worths[1], rel=1e-6)
        assert found.spacing == pytest.approx(expected.spacing, nan_ok=True)


def spaced(rho: float, *, every: int = 1, seed: int = 1) -> list[TrackSums]:
    """Sums at all spacings, of AR(1) errors at ten labels a second, or one of so many of them."""
    nees, tracks = correlated(seed, K, rho, 6000, life=80)
    frames = np.arange(0, len(nees), every)
    shape = (frames.size, nees.shape[1])
    stamps = np.broadcast_to(frames[:, None] * PERIOD_NS, shape).ravel()
    x, ids = (one[frames].ravel() for one in (nees / K, tracks))
    return [along_tracks(x, ids, (), stamps, spacing) for spacing in SPACINGS]


@pytest.mark.parametrize("rho", [0.65, 0.9])
def test_one_reference_knows_what_labels_are_worth_at_any_rate(rho):
    found = tempering_by_spacing(spaced(rho))
    assert found is not None
    spacings, temperings = found
    # A track may begin within a span of time.
    assert (spacings <= [0.1001, 0.2, 0.5, 1.0, 2.0, 5.0]).all()
    assert (spacings >= [0.0999, 0.19, 0.47, 0.9, 1.7, 3.5]).all()
    # Squares of Gaussian errors of correlation ρ are correlated by ρ².
    alike = rho ** (2 * spacings / 0.1)
    exact = (1 - alike) / (1 + alike)
    assert (temperings <= exact * 1.05).all() and (temperings >= exact * 0.7).all()
    for every, place in ((2, 1), (5, 2), (10, 3)):
        same_rate = spaced(rho, every=every)[0].tempering()
        assert temperings[place] == pytest.approx(same_rate, rel=0.1)


@given(st.lists(st.tuples(st.floats(0.02, 1), st.floats(0.01, 9)), min_size=6, max_size=6))
def test_worth_never_falls_with_the_time_between_labels_and_the_last_that_is_known_goes_on(known):
    class Known(TrackSums):
        """Sums of a stated γ and spacing; of none at all where it is beyond 8 s."""

        def __init__(self, gamma: float, seconds: float) -> None:
            super().__init__()
            self.told = None if seconds > 8 else gamma, seconds

        def tempering(self) -> float | None:
            return self.told[0]

        @property
        def spacing(self) -> float:
            return self.told[1]

    found = tempering_by_spacing([Known(*one) for one in known])
    if known[0][1] > 8:
        assert found is None
        return
    assert found is not None
    spacings, temperings = found
    assert spacings.size == temperings.size == 6
    assert (np.diff(spacings) >= 0).all() and (np.diff(temperings) >= 0).all()
    assert set(spacings.tolist()) <= {seconds for _, seconds in known if seconds <= 8}
    assert (spacings[0], temperings[0]) == known[0][::-1]


@st.composite
def known_worths(draw) -> tuple[list[float], ...]:
    """Spacings and γ, neither of which falls; the last ones may be the same."""
    many = draw(st.integers(1, 6))
    spacings = sorted(draw(st.lists(st.floats(0.02, 9), min_size=many, max_size=many, unique=True)))
    worths = sorted(draw(st.lists(st.floats(0.02, 1), min_size=many, max_size=many)))
    return tuple([*one, *[one[-1]] * (6 - many)] for one in (spacings, worths))


def worth_by_loops(spacings: list[float], worths: list[float], apart: float) -> float:
    """γ of one label."""
    if math.isnan(apart):
        apart = spacings[0]
    if apart < spacings[0]:
        nearness = 2 * math.atanh(min(worths[0], 1 - 1e-9)) / spacings[0]
        return max(0.02, math.tanh(nearness * apart / 2))
    later = next((i for i, one in enumerate(spacings) if one > apart), None)
    if later is None:
        return worths[-1]
    (x, y), (a, b) = spacings[later - 1 : later + 1], worths[later - 1 : later + 1]
    part = math.log(apart / x) / math.log(y / x)
    return math.exp(math.log(a) + part * math.log(b / a))


@given(
    st.lists(known_worths(), min_size=1, max_size=3),
    st.lists(st.one_of(st.floats(1e-3, 20), st.just(math.nan)), min_size=1, max_size=20),
    seeds,
)
def test_worth_is_known_at_spacings_between_them_nearer_and_farther(known, apart, seed):
    references = [
        replace(exact_reference(), spacings=np.array(spacings), temperings=np.array(worths))
        for spacings, worths in known
    ]
    arrays = usual_arrays(references)
    slices = np.random.default_rng(seed).integers(0, len(known), len(apart))
    found = arrays.tempering(slices, np.array(apart))
    expected = [
        worth_by_loops(known[g][0], known[g][1], one) for g, one in zip(slices, apart, strict=True)
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    for g, (spacings, worths) in enumerate(known):
        at = np.full(6, g)
        np.testing.assert_allclose(arrays.tempering(at, np.array(spacings)), worths, rtol=1e-6)
        times = np.geomspace(1e-3, 50, 200)
        assert (np.diff(arrays.tempering(np.full(200, g), times)) >= -1e-12).all()


def test_of_few_tracks_labels_are_worth_at_least_what_is_shipped():
    few = replace(exact_levels(), tracks=29)
    low = replace(exact_reference(tempering=0.05), levels=few)
    known, assumed = (usual_arrays([one]) for one in (low, shipped(K)))
    apart, at = np.geomspace(0.1, 9, 30), np.zeros(30, np.int64)
    assert is_thin(low)
    assert (known.tempering(at, apart) >= assumed.tempering(at, apart) - 1e-9).all()
    enough = replace(low, levels=replace(few, tracks=30))
    assert not is_thin(enough)
    np.testing.assert_allclose(usual_arrays([enough]).tempering(at, apart), 0.05)
    assert not is_thin(shipped(K))


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


Track = list[tuple[FloatArray, FloatArray]]  # level (C,) and the values (C, n) of each second
C = 3
BETWEEN, WITHIN, WHITE = np.array([0.5, 1.0, 0.8]), np.array([0.7, 0.3, 0.5]), 0.9
USUAL = np.array([0.4, -1.0, 0.0])


def some_tracks(seed: int, number: int, longest: int = 12, counts=(10, 10)) -> list[Track]:
    """Tracks of C channels: level + a + w + what each detection shows of it alone."""
    random = np.random.default_rng(seed)
    found = []
    for seconds in random.integers(1, longest + 1, number).tolist():
        a = USUAL + BETWEEN * random.standard_normal(C)
        track = []
        for n in random.integers(counts[0], counts[1] + 1, seconds).tolist():
            w = WITHIN * random.standard_normal(C)
            v = (a + w)[:, None] + WHITE * random.standard_normal((C, n))
            track.append((v.mean(axis=1), v))
        found.append(track)
    return found


def by_seconds(tracks: list[Track], chunk: int = 7, outside=lambda *_: 0) -> LevelSums:
    """Second after second of all tracks, in pieces; outside: by track and second."""
    rows = []
    for i in range(max(map(len, tracks))):
        for number, track in enumerate(tracks):
            if i < len(track):
                level, values = track[i]
                counts = np.array([v.shape[1] for _, v in track[:i]])
                total = sum((v.sum(axis=1) for _, v in track[:i]), np.zeros(C))
                rows.append(
                    (
                        level,
                        np.square(values - level[:, None]).sum(axis=1),
                        values.shape[1],
                        i,
                        int(counts.sum()),
                        int(np.square(counts).sum()),
                        total / max(1, counts.sum()),
                        outside(number, i),
                        i == 0 or not outside(number, i - 1),
                    )
                )
    sums = LevelSums(C)
    for at in range(0, len(rows), chunk):
        columns = map(np.array, zip(*rows[at : at + chunk], strict=True))
        sums.add(SecondLevels(*columns))
    return sums


def textbook(tracks: list[Track]):
    """m0, τ, ω and S of the first channel, from the tracks themselves; seconds of equal size."""
    levels = [np.array([level[0] for level, _ in track]) for track in tracks]
    total, seconds = len(levels), sum(y.size for y in levels)
    omega2 = sum(((y - y.mean()) ** 2).sum() for y in levels) / (seconds - total)
    grand = sum(y.sum() for y in levels) / seconds
    between = sum(y.size * (y.mean() - grand) ** 2 for y in levels) / (total - 1)
    size = (seconds - sum(y.size**2 for y in levels) / seconds) / (total - 1)
    tau2 = max(0.0, (between - omega2) / size)
    weights = [1 / (tau2 + omega2 / y.size) for y in levels]
    mean = sum(w * y.mean() for w, y in zip(weights, levels, strict=True)) / sum(weights)
    values = [v[0] for track in tracks for _, v in track]
    spread = sum(((v - v.mean()) ** 2).sum() for v in values) / sum(v.size - 1 for v in values)
    # Three tenths at least, as levels() has it.
    return mean, max(math.sqrt(tau2), 0.3), math.sqrt(omega2), math.sqrt(spread)


@given(seeds, st.integers(10, 40), st.integers(1, 40))
def test_levels_are_those_of_a_one_way_analysis_of_variance(seed, number, chunk):
    tracks = some_tracks(seed, number)
    found = by_seconds(tracks, chunk=chunk).levels(10)
    assert found is not None
    np.testing.assert_allclose(
        (found.mean[0], found.between[0], found.within[0], found.spread[0]),
        textbook(tracks),
        rtol=1e-9,
    )
    assert (found.tracks, found.blocks) == (number, sum(map(len, tracks)))
    assert found.length == 10


@pytest.mark.parametrize("counts", [(1, 1), (10, 10), (1, 12), (1, 3)])
def test_levels_of_simulated_tracks_are_recovered_however_many_detections_a_second_has(counts):
    sums = by_seconds(some_tracks(1, 1500, counts=counts), chunk=10_000)
    found = sums.levels(10)
    assert found is not None
    many = np.arange(counts[0], counts[1] + 1)
    assert found.length == pytest.approx((many**2).mean() / many.mean(), rel=0.03)
    np.testing.assert_allclose(found.mean, USUAL, atol=0.07)
    np.testing.assert_allclose(found.between, BETWEEN, rtol=0.07)
    # Of a second of as many detections as most of them see.
    one = WHITE**2 / found.length
    np.testing.assert_allclose(found.within, np.sqrt(WITHIN**2 + one), rtol=0.07)
    if counts != (1, 1):
        np.testing.assert_allclose(found.spread, WHITE, rtol=0.05)


@given(seeds, st.lists(st.integers(1, 60), min_size=1, max_size=4))
def test_seconds_may_come_in_any_pieces(seed, chunks):
    tracks = some_tracks(seed, 12, counts=(1, 9))
    whole = by_seconds(tracks, 10_000, outside=lambda track, second: (track + second) % 5 == 0)
    for chunk in chunks:
        found = by_seconds(tracks, chunk, outside=lambda track, second: (track + second) % 5 == 0)
        for name in LevelSums.__dataclass_fields__:
            np.testing.assert_allclose(getattr(found, name), getattr(whole, name), atol=1e-9)


def test_shares_of_what_is_outside_count_an_odd_object_once():
    tracks = some_tracks(2, 20, longest=6)
    # The first five tracks are odd from their second second on.
    sums = by_seconds(tracks, outside=lambda track, second: 3 * (track < 5 and second > 0))
    onsets = sum(len(track) > 1 for track in tracks[:5])
    later = sum(max(0, len(track) - 2) for track in tracks[:5])
    assert (sums.onsets, sums.trials) == (onsets, sums.blocks - later)
    assert sums.outside == 3 * (onsets + later)
    found = sums.levels(10)
    assert found is not None
    assert found.onsets == pytest.approx((onsets + 1) / (sums.trials + 1))
    assert found.outside == pytest.approx((sums.outside + 1) / (sums.rows + 1))


def test_seconds_beyond_the_longest_count_for_a_track_but_not_for_how_tracks_differ():
    tracks = some_tracks(3, 20, longest=LONGEST)
    longer = [[*track, *[track[-1]] * (LONGEST + 5 - len(track))] for track in tracks]
    sums = by_seconds(longer)
    assert sums.tracks[LONGEST] == 20
    assert sums.blocks == 20 * (LONGEST + 5)
    means = sum(np.mean([level for level, _ in track[:LONGEST]], axis=0) for track in longer)
    np.testing.assert_allclose(sums.means.reshape(LONGEST + 1, C)[LONGEST], means, rtol=1e-12)


def alike(number: int, seconds: int, value: float) -> list[Track]:
    """Tracks that all say the same."""
    return [[(np.full(C, value), np.full((C, 10), value))] * seconds for _ in range(number)]


def test_too_few_tracks_or_no_second_seconds_teach_nothing_and_equal_ones_leave_room():
    for tracks in (some_tracks(1, 9), alike(50, 1, 0.0)):
        assert by_seconds(tracks).levels(10) is None
    found = by_seconds(alike(20, 4, 0.1)).levels(10)
    assert found is not None
    np.testing.assert_allclose((found.between[0], found.within[0]), (0.3, 0.01))


SPACE = Space(
    (
        Dimension("x", "m"),
        Dimension("yaw", "rad", DimensionKind.ANGLE),
        *(Dimension(name, "m") for name in "yzlwhabcd"),
    )
)


def test_errors_that_are_watched_are_those_of_the_first_named_dimensions_of_the_joint_block():
    random, n, k = np.random.default_rng(0), 30, SPACE.k
    mean, truth = random.standard_normal((2, n, k))
    roots = random.standard_normal((2, n, k, k))
    covariances = roots @ roots.transpose(0, 1, 3, 2) + np.eye(k)
    measured = [measure(SPACE, [(truth - mean, one)]) for one in covariances]
    kept = np.array([3, 3, 28, 0])
    nees, z, u, error = watched_errors(SPACE, measured, kept)
    # All but the angle; of ten the first eight have names.
    joint = [i for i in range(k) if i != 1]
    named = joint[:MOST_NAMED]
    for stage, covariance in enumerate(covariances):
        for row, at in enumerate(kept.tolist()):
            r, sigma = (truth - mean)[at], covariance[at]
            block = sigma[np.ix_(joint, joint)]
            assert nees[stage, row] == pytest.approx(r[joint] @ np.linalg.solve(block, r[joint]))
            np.testing.assert_allclose(error[stage, :, row], r[named])
            np.testing.assert_allclose(z[stage, :, row], r[named] / np.sqrt(np.diag(sigma)[named]))
            white = np.linalg.solve(np.linalg.cholesky(block), r[joint])
            np.testing.assert_allclose(u[stage, :, row], white[:MOST_NAMED])


def of_law(k: int, quantiles) -> Reference:
    return replace(exact_reference(k, tracks=False), quantiles=quantiles)


@pytest.mark.parametrize("k", [1, 3, 7])
def test_a_factor_on_the_law_of_the_reference_is_a_factor_on_chi_square(k):
    reference = of_law(k, 3.7 * chi_square_knots(k))
    e = np.random.default_rng(k).chisquare(k, 1000)
    np.testing.assert_allclose(mapped(reference, 3.7 * e), e, rtol=1e-9)
    np.testing.assert_allclose(mapped(reference, 7.4 * e[e < 10]), 2 * e[e < 10], rtol=1e-9)


def learned(learner: ReferenceLearner) -> Reference:
    return learner.learned(Origin.LEARNED, 10)


def test_an_outlier_counts_as_one_error():
    learner = ReferenceLearner(3)
    zeros = np.zeros(2, np.int64)
    learner.add(np.array([3.0, 1e300]), zeros.astype(np.uint64), zeros, zeros)
    assert learned(learner).nees_ratio == pytest.approx((1 + 64) / 2)
    assert np.isfinite(learned(learner).quantiles).all()


WANTED = DriftSettings(reference_tracks=12, reference_detections=600, reference_seconds=0.0)


def usual_of(wanted: DriftSettings = WANTED, **given) -> Usual:
    usual = Usual(wanted, {name: both(one) for name, one in given.items()})
    usual.grow(SliceState.begun("car", K))
    return usual


def taught_to(usual: Usual, frames: list[Frame], stages=tuple(Stage), fed=(100.0, 100.0)):
    rows = watched(frames)
    seconds, _ = TrackSeconds(usual.settings).take(K, rows)
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
