"""Bets on levels of seconds of tracks are ratios of densities of a random-effect model, and keep
their promise: a mean of at most 1 along the paths within the band.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.special import digamma, gammaln, polygamma

from monitor.drift import levels
from monitor.drift.levels import (
    FACTORS,
    STATES,
    Beyond,
    Past,
    Residuals,
    UsualLevels,
    far_outside,
    may_be_bounded,
    may_exceed,
    not_too_low,
    of_factors,
    steepest,
    tail_log_ratios,
    unexplained,
)
from monitor.frames.space import FloatArray
from tests.drift.drives import seeds
from tests.drift.family_oracle import moved

TAU, OMEGA, SPREAD, LENGTH, USUAL = 0.5, 0.6, 0.9, 10.0, 0.7
LOW, HIGH = np.array([-0.7]), np.array([0.5])
NOTHING = np.zeros((1, STATES))
EVERY = np.array([math.inf])


Known = tuple[float, float, float, float, float]
KNOWN: Known = (USUAL, TAU**2, OMEGA**2, SPREAD**2, LENGTH)


def left(
    level: float, counts: list[int], mean: float = 0.0, common: float = 0.0, usual: Known = KNOWN
) -> Residuals:
    """What is left of the level of the last of some seconds, whose detections these are."""
    *before, now = counts
    past = Past(*(np.array([one]) for one in (now, sum(before), sum(n * n for n in before))))
    known = UsualLevels(*(np.array([[one]]) for one in usual))
    y, own, shared = (np.array([[one]]) for one in (level, mean, common))
    return unexplained(y, past, own, known).residuals(shared, LOW, HIGH).flat()


some_counts = st.lists(st.integers(1, int(LENGTH)), min_size=1, max_size=12)


@given(st.floats(-2, 2), st.floats(-2, 2), st.floats(-0.5, 0.5), some_counts)
def test_residuals_have_the_law_of_a_second_given_the_mean_of_the_earlier_ones(
    level, mean, common, counts
):
    n = np.array(counts)
    covariance = TAU**2 + np.diag(OMEGA**2 + SPREAD**2 * (1 / n - 1 / LENGTH))
    # Each second by its detections.
    weight = n[:-1] / max(1, n[:-1].sum())
    known = weight @ covariance[:-1, :-1] @ weight
    slope = weight @ covariance[:-1, -1] / known if known else 0.0
    found = left(level, counts, mean, common)
    expected = USUAL + slope * (mean - USUAL - common)
    assert found.v[0] == pytest.approx(covariance[-1, -1] - slope**2 * known)
    assert found.r[0] == pytest.approx(min(max(level - expected, LOW[0] - 4), HIGH[0] + 4))
    # What each earlier second at another level adds to what is expected.
    seconds = n[:-1].sum() ** 2 / max(1, np.square(n[:-1]).sum())
    assert found.learning[0] * seconds == pytest.approx(slope)


def test_a_second_of_fewer_detections_tells_less_and_one_of_many_hardly_more_than_usual():
    for counts in ([10, 10, 0], [0, 0, 10]):
        v = [left(1.0, [one or count for one in counts]).v[0] for count in (1, 5, 10, 12, 1000)]
        assert v[0] > v[1] > v[2] > v[3] == v[4] > 0.9 * v[2]


positive = st.floats(1e-3, 1e3)


@given(some_counts, positive, positive, st.floats(0, 1e3), st.floats(1, 50))
def test_what_is_left_is_a_variance_whatever_a_reference_knows(counts, tau, omega, spread, length):
    found = left(0.0, counts, usual=(USUAL, tau**2, omega**2, spread**2, length))
    assert found.v[0] > 0.8 * omega**2
    assert found.learning[0] * max(1, len(counts) - 1) > 0
    assert found.learning[0] <= tau**2 / omega**2 * 2


def residuals_of(r, v=0.09) -> Residuals:
    """Tracks of which nothing was known before."""
    r = np.array(r, np.float64)
    return Residuals(r, np.full(r.size, v), np.zeros(r.size))


def log_ratios(found: Residuals, sign: int, edge, since, most) -> FloatArray:
    """ln of what each second wins against the end of the band, (m, 4)."""
    dulled = np.broadcast_to(1 - since * found.learning, found.r.shape)
    return Beyond(sign * (found.r - edge), found.v, dulled).log_ratios(most)


def common_level(chain, found: Residuals, at, low, high):
    """The chains of slices of which each has some of the seconds."""
    precision: FloatArray = np.bincount(at, 1 / found.v, low.size).astype(np.float64)
    weighted: FloatArray = np.bincount(at, found.r / found.v, low.size).astype(np.float64)
    return levels.common_level(chain, precision, weighted, low, high)


def after(*seconds: list[float]) -> FloatArray:
    """The chain after seconds, each of some residuals."""
    chain: FloatArray = NOTHING
    for r in seconds:
        chain = common_level(chain, residuals_of(r), np.zeros(len(r), np.int64), LOW, HIGH)[0]
    return chain


@given(seeds, st.integers(0, 6), st.integers(1, 5))
def test_the_common_level_is_that_of_the_forward_algorithm(seed, past, tracks):
    random = np.random.default_rng(seed)
    levels, slow = np.linspace(LOW[0], HIGH[0], STATES), list[float]()
    chain: FloatArray = NOTHING
    for _ in range(past + 1):
        r, v = random.normal(0, 1, tracks), random.uniform(0.05, 1, tracks)
        before = np.array(moved(slow))
        likelihood = stats.norm(levels[:, None], np.sqrt(v)).pdf(r).prod(axis=1)
        slow = (before * likelihood / (before @ likelihood)).tolist()
        chain, mean, edges = common_level(
            chain, Residuals(r, v, np.zeros(tracks)), np.zeros(tracks, np.int64), LOW, HIGH
        )
        np.testing.assert_allclose(chain[0], slow, rtol=1e-9, atol=1e-300)
        assert mean[0] == pytest.approx(np.dot(slow, levels), abs=1e-12)
        expected = np.log(likelihood[[0, -1]] / (before @ likelihood))
        assert edges[:, 0] == pytest.approx(expected)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("past", [(), ([0.1, 0.0],), ([-0.6] * 5, [-0.6] * 5)])
@pytest.mark.parametrize("most", [math.inf, 1.2])
def test_bets_have_a_mean_of_at_most_one_over_the_paths_within_the_band(sign, past, most):
    # Of a chain that goes on as it is thought to, and tracks that know something of themselves.
    random, runs, tracks = np.random.default_rng(1), 60_000, 3
    before = after(*past)
    states = random.choice(STATES, runs, p=moved(before[0].tolist() if past else []))
    levels = np.linspace(LOW[0], HIGH[0], STATES)[states]
    r = levels[:, None] + random.normal(0, 0.5, (runs, tracks))
    found = Residuals(r.ravel(), np.full(r.size, 0.25), np.full(r.size, 0.05))
    at = np.repeat(np.arange(runs), tracks)
    low, high = np.full(runs, LOW[0]), np.full(runs, HIGH[0])
    *_, of_edges = common_level(np.repeat(before, runs, axis=0), found, at, low, high)
    edge, of_edge = (high, of_edges[1]) if sign > 0 else (low, of_edges[0])
    said = log_ratios(found, sign, edge[at], np.full(r.size, 4), np.full(r.size, most))
    ratio = np.exp(said.reshape(runs, tracks, -1).sum(axis=1) + of_edge[:, None])
    error = ratio.std(axis=0) / math.sqrt(runs)
    assert (ratio.mean(axis=0) < 1 + 4 * error).all()
    if not past and math.isinf(most):
        # No bet wins more than e⁴ a track, which the largest ones would now and then.
        assert (ratio.mean(axis=0)[:2] > 1 - 4 * error[:2] - 0.02).all()


@pytest.mark.parametrize("sign", [1, -1])
def test_a_bet_is_a_ratio_of_normal_densities_beyond_the_edge(sign):
    edge = (HIGH if sign > 0 else LOW)[0]
    for r, since, learning in ((0.9, 0, 0.1), (-1.0, 3, 0.1), (0.2, 5, 0.15)):
        found = Residuals(np.array([r]), np.array([0.4]), np.array([learning]))
        said = log_ratios(found, sign, np.array([edge]), np.array([since]), EVERY)[0]
        for factor, one in zip(FACTORS, said, strict=True):
            beyond = edge + sign * math.log(factor) * (1 - since * learning)
            here, there = (stats.norm(mean, math.sqrt(0.4)).logpdf(r) for mean in (edge, beyond))
            assert one == pytest.approx(min(there - here, 4.0))


@given(seeds, st.integers(1, 60))
def test_bets_of_many_seconds_are_two_sums_unless_they_are_cut_or_bounded(seed, tracks):
    random = np.random.default_rng(seed)
    v, dulled = random.uniform(0.01, 2, tracks), random.uniform(0.1, 1, tracks)
    seen, most = Beyond(random.normal(0, 1.5, tracks), v, dulled), random.uniform(0.1, 9, tracks)
    won = seen.log_ratios(np.full(tracks, math.inf))
    plain = ~may_exceed(seen.r, v, 4.0)
    np.testing.assert_allclose(
        of_factors(seen.terms[:, plain].sum(axis=1)), won[plain].sum(axis=0), rtol=1e-9, atol=1e-9
    )
    assert not (won[~may_exceed(seen.r, v, 1.0)] > 1 + 1e-9).any()
    free = ~may_be_bounded(most, v)
    np.testing.assert_array_equal(seen.log_ratios(most)[free], won[free])


@given(st.floats(0.05, 3), st.floats(0.01, 2), st.sampled_from([1, -1]))
def test_no_bet_is_steeper_than_it_may_be_nor_better_than_without_the_bound(v, most, sign):
    r, zero = np.linspace(-1, 1, 9), np.zeros(9)
    found = Residuals(r, np.full(9, v), np.zeros(9))
    bound = log_ratios(found, sign, np.zeros(9), zero, np.full(9, most))
    slope = sign * np.diff(bound, axis=0) / np.diff(r)[:, None]
    assert (slope >= -1e-9).all() and (slope <= most * (1 + 1e-9)).all()
    # E exp((d r − d²/2)/v') of r ~ N(0, v): at most 1 where v' ≥ v.
    d = np.log(FACTORS)
    wide = np.maximum(v, d / most)
    assert (np.exp(d * d * v / (2 * wide**2) - d * d / (2 * wide)) <= 1 + 1e-12).all()


@pytest.mark.parametrize("k", range(1, 9))
def test_the_steepest_bet_on_too_small_errors_wins_a_little_more_than_on_normal_levels(k):
    count, degrees = np.array([1, 10]), np.full(2, float(k))
    assert np.isinf(steepest(1, degrees, count)).all()
    assert np.isinf(steepest(-1, np.zeros(2), count)).all()
    theta = steepest(-1, degrees, count) / count
    half = k / 2
    # E exp(−θ ln χ²_K) over that of a Gaussian of the same mean and variance.
    found = gammaln(half - theta) - gammaln(half) + theta * digamma(half)
    excess = np.exp(found - theta**2 / 2 * polygamma(1, half))
    assert (excess > 1).all() and (excess < 1.08).all()


@pytest.mark.parametrize("k", [1, 3, 6])
@pytest.mark.parametrize("count", [1, 3, 10])
@pytest.mark.parametrize("sign", [1, -1])
def test_bets_on_mean_logarithms_of_few_detections_win_hardly_more_than_on_normal_levels(
    k, count, sign
):
    random, runs = np.random.default_rng(1), 40_000
    one = polygamma(1, k / 2)
    mean = digamma(k / 2) + math.log(2)
    usual = [mean, TAU**2, one / LENGTH, one, LENGTH]
    known = UsualLevels(*(np.full((runs, 1), value) for value in usual))
    low, high = np.full(runs, LOW[0]), np.full(runs, HIGH[0])
    common = np.linspace(LOW[0], HIGH[0], STATES)[random.choice(STATES, runs, p=moved([]))]
    logs = np.log(random.chisquare(k, (count, runs))).mean(axis=0)
    level = (common + TAU * random.standard_normal(runs) + logs)[:, None]
    counts = np.full(runs, count)
    seen = not_too_low(level, counts, known)
    lowest = mean - 2 * np.cbrt(count) * math.sqrt(one / count + TAU**2)
    np.testing.assert_allclose(seen, np.maximum(level, lowest))
    nothing = np.zeros(runs, np.int64)
    past, zeros = Past(counts, nothing, nothing), np.zeros((runs, 1))
    nothing_common = unexplained(seen, past, zeros, known)
    found = nothing_common.residuals(zeros, low[:, None], high[:, None]).flat()
    *_, edges = common_level(np.zeros((runs, STATES)), found, np.arange(runs), low, high)
    edge, of_edge = (high, edges[1]) if sign > 0 else (low, edges[0])
    most = steepest(sign, np.full(runs, float(k)), counts)
    ratio = np.exp(log_ratios(found, sign, edge, zeros[:, 0], most) + of_edge[:, None])
    # All have the same share. In one dimension they may win a little.
    assert ratio.mean() < (1.25 if k == 1 else 1.05)


counted = st.integers(0, 40), st.integers(1, 40)


@given(*counted, st.floats(1e-6, 1.0), st.floats(1e-6, 1.0))
def test_bets_on_tails_have_a_mean_of_at_most_one_for_any_chance_up_to_the_most_that_is_usual(
    outside, more, share, onsets
):
    count = np.array([outside + more])
    said = [
        tail_log_ratios(np.array([n]), count, np.array([share]), np.array([onsets]))[0]
        for n in (0, outside, outside + 1)
    ]
    assert np.array_equal(said[1], said[0] if outside == 0 else said[2])
    without, some = np.exp(said[0]), np.exp(said[2])
    most = min(count[0] * max(2 * share, 0.01), max(2 * onsets, 0.05), 0.9)
    for chance in (0.0, 0.5 * most, most):
        mean = (1 - chance) * without + chance * some
        assert (mean <= 1 + 1e-9).all()
    assert mean == pytest.approx(1)
    assert (some >= 1 - 1e-12).all() and (np.diff(some) >= -1e-12).all()


@pytest.mark.parametrize("k", [1, 3, 8])
def test_far_outside_is_one_in_a_hundred_at_the_edge_of_the_band(k):
    for tolerance in (1.0, 1.4, 3.0):
        far = far_outside(k, tolerance)
        assert stats.chi2.sf(far / tolerance**2, k) == pytest.approx(0.01)
