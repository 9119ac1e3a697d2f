"""Wealth against slow products, its laws, and what it promises: false wins are rare."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.optimize import minimize_scalar
from scipy.stats import chi2, f

from monitor.promotion.betting import (
    FRACTIONS,
    LEFT,
    PREMIUMS,
    STAKES,
    Bets,
    Clip,
    Watch,
    full_say,
    log10_threshold,
)

differences = st.lists(st.floats(-1, 1), max_size=40)
bounds = st.floats(0.01, 1.0)


def clip_from(loss, gain):
    """1.0: no bound is known."""
    return Clip(1.0, loss, gain)


# Where a track can lose a nat, as much as it can gain, and that is known.
KNOWN = Clip(2.0, 1.0, 1.0)


def taken(bets, values, clip):
    """With tracks of a full say."""
    return bets.taken(np.array(values), np.ones(len(values)), clip)


def oracle_multiple(value, bound, bettor):
    if bound < 1:
        return max(1e-300, 1 + FRACTIONS[bettor] * value / bound)
    return max(LEFT, 1 + STAKES[bettor] * value) / PREMIUMS[bettor]


def oracle_log10(values, clip, *, better):
    """Mean of products, one factor after the other."""
    wealth = []
    for bettor in range(6):
        product = Fraction(1)
        for value in values:
            bound = clip.loss if better else clip.gain
            product *= Fraction(oracle_multiple(value if better else -value, bound, bettor))
        wealth.append(product)
    mean = sum(wealth, Fraction(0)) / 6
    return math.log10(mean.numerator) - math.log10(mean.denominator)


# ---- how much a track says


def oracle_full_say(counts):
    """Of all detections, each known by how long its track is: nine in ten are in no longer ones."""
    lengths = sorted(length for length in counts for _ in range(length))
    for length in lengths:
        if 10 * sum(other <= length for other in lengths) >= 9 * len(lengths):
            return length
    raise AssertionError


@given(st.lists(st.integers(1, 40), min_size=1, max_size=12))
@example([32] * 10 + [1] * 200)
@example([1] * 90 + [10])
def test_the_full_say_is_of_the_length_that_nine_in_ten_detections_do_not_exceed(counts):
    assert full_say(np.array(counts)) == oracle_full_say(counts)


# ---- bets


@given(st.lists(st.floats(-1, 1), max_size=30), bounds, bounds)
def test_wealth_is_the_mean_of_products(values, loss, gain):
    clip = clip_from(loss, gain)
    bets = taken(Bets(), values, clip)
    assert bets.log10_better == pytest.approx(oracle_log10(values, clip, better=True), abs=1e-9)
    assert bets.log10_worse == pytest.approx(oracle_log10(values, clip, better=False), abs=1e-9)


@given(differences, bounds, bounds, st.randoms(use_true_random=False), st.integers(0, 40))
def test_the_order_of_tracks_and_the_parts_they_come_in_make_no_difference(
    values, loss, gain, random, cut
):
    clip, shuffled = clip_from(loss, gain), list(values)
    random.shuffle(shuffled)
    whole = taken(Bets(), values, clip)
    parts = taken(taken(Bets(), shuffled[:cut], clip), shuffled[cut:], clip)
    assert (parts.tracks, parts.total) == (whole.tracks, pytest.approx(whole.total, abs=1e-9))
    assert parts.better == pytest.approx(whole.better, rel=1e-9, abs=1e-9)
    assert parts.worse == pytest.approx(whole.worse, rel=1e-9, abs=1e-9)
    if not values:
        assert whole == Bets()
        assert (whole.gain, whole.log10_better, whole.log10_worse) == (0.0, 0.0, 0.0)


def test_the_gain_is_the_mean_of_what_tracks_said_where_none_is_shown_to_lose_more_than_most():
    bets = taken(Bets(), [1.0, -1e18, 0.25], Clip())
    assert bets.gain == pytest.approx(0.25 / 3)


def test_the_threshold_is_what_is_left_of_alpha_and_all_trials_together_spend_no_more():
    spent = [10 ** -log10_threshold(0.02, number) for number in range(1, 10_000)]
    assert spent[:3] == pytest.approx([0.01, 0.02 / 6, 0.02 / 12])
    assert 0.0199 < sum(spent) < 0.02


# ---- where no bound of the losses is known


def mean_multiple(stake, factor, dimensions, degrees):
    """E max(1 + s(½ ln f − ½(f − 1)v), 0.1), v NEES/K of one detection, of mean 1."""
    slope = 0.5 * stake * (factor - 1)
    most = (1 - LEFT + 0.5 * stake * math.log(factor)) / slope
    if math.isinf(degrees):
        below = chi2(dimensions, scale=1 / dimensions).cdf
    else:
        below = f(dimensions, degrees, scale=(degrees - 2) / degrees).cdf
    # E (a − v)⁺ is the integral of P(v ≤ x) from 0 to a.
    return LEFT + slope * quad(below, 0, most, limit=200)[0]


@pytest.mark.parametrize(("stake", "premium"), list(zip(STAKES, PREMIUMS, strict=True)))
def test_a_premium_is_the_largest_mean_that_a_wrong_shrinking_step_has(stake, premium):
    largest = minimize_scalar(
        lambda log: -mean_multiple(stake, math.exp(log), 3, 3.0), bounds=(0.02, 3), method="bounded"
    )
    assert premium - 2e-4 < -largest.fun <= premium


def test_short_tracks_and_one_dimension_are_insured_only_by_a_known_bound():
    def insured(dimensions: int, rows: float) -> bool:
        return Clip(1.0, 1.0, 1.0, rows).insured(dimensions)

    assert [insured(k, 1.0) for k in (1, 2, 3)] == [False, False, True]
    assert [insured(k, 5.0) for k in (1, 2)] == [False, True]
    assert Clip(1.0, 0.4, 1.0).insured(1)


# ---- the e-detector


def watched(values):
    return taken(Watch(), values, KNOWN)


def oracle_statistic(values, fraction):
    """Σ over beginnings of the product from there on."""
    return sum(
        math.prod(1 + fraction * value for value in values[begin:]) for begin in range(len(values))
    )


@given(st.lists(st.floats(-1, 1), max_size=25))
def test_the_statistic_is_the_sum_of_bets_begun_at_every_track(values):
    watch = watched(values)
    expected = [oracle_statistic(values, fraction) for fraction in FRACTIONS]
    assert [run.statistic for run in watch.runs] == pytest.approx(expected, rel=1e-9)
    mean = sum(expected) / len(expected)
    assert watch.log10_better == pytest.approx(math.log10(mean) if mean > 1 else 0.0, abs=1e-9)


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=25))
def test_the_change_is_where_the_best_bet_began(values):
    for fraction, run in zip(FRACTIONS, watched(values).runs, strict=True):
        products = [
            math.prod(1 + fraction * value for value in values[begin:])
            for begin in range(len(values))
        ]
        assert run.cumulative == pytest.approx(max(products), rel=1e-9)
        later = values[len(values) - run.tracks :]
        assert run.total == pytest.approx(sum(later), abs=1e-9)


def test_an_alarm_comes_soon_after_a_change_and_knows_the_tracks_since():
    watch = watched([-0.3] * 3000 + [0.5] * 30)
    assert watch.log10_better > 5
    assert watch.leading.tracks == 30
    assert watch.leading.total == pytest.approx(15.0)
