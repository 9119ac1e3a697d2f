"""Candidates beside a champion on simulated tracks: how they are scored and bet on, which are
proven, which never, how soon; and that what served before comes back when a fault ends.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.optimize import minimize_scalar
from scipy.stats import chi2, f, multivariate_normal

from monitor.frames.detections import Estimates, Limits
from monitor.frames.space import Dimension, DimensionKind, Space, plain_space
from monitor.promotion.records import TrialSettings, Verdict
from monitor.promotion.scored import joint_log_score, rows_of
from monitor.promotion.tracks import WholeTrack
from monitor.promotion.trial import (
    FRACTIONS,
    LEFT,
    PREMIUMS,
    STAKES,
    Bets,
    Clip,
    Guard,
    Trial,
    Watch,
    clip_of,
    full_say,
    log10_threshold,
)
from monitor.recalibration.binned import HistogramBinning, IsotonicStd
from monitor.recalibration.recalibrator import Identity, Recalibrator
from tests.promotion.odd_recalibrators import Moving, Odd, Spoiling
from tests.promotion.owned_registers import scaled
from tests.promotion.simulated_tracks import tracks

LIMITS, SETTINGS, IDENTITY = Limits(), TrialSettings(), Identity()
XYZ = plain_space(("x", "y", "z"), "m")
NAN = float("nan")


def clip_between(candidate: Recalibrator, champion: Recalibrator, *some: WholeTrack) -> Clip:
    return clip_of(candidate, champion, rows_of(some), SETTINGS.clip)


def begun(candidate: Recalibrator, *some: WholeTrack, number=1) -> Trial:
    """Beside what is sent; with a clip of some tracks."""
    return Trial("car", candidate, number, clip_between(candidate, IDENTITY, *some))


def ended(trial: Trial, some: list[WholeTrack]) -> tuple[Verdict, int]:
    """The first verdict that ends it, looking at every track, and after how many."""
    rows = rows_of(some)
    differences, _ = rows.differences(trial.recalibrator, IDENTITY, LIMITS)
    for i in range(len(some)):
        one = slice(i, i + 1)
        bets = trial.bets.taken(differences[one], rows.counts[one], trial.clip)
        trial = replace(trial, bets=bets)
        if trial.verdict(SETTINGS) is not Verdict.RUNNING:
            return trial.verdict(SETTINGS), i + 1
    return Verdict.RUNNING, len(some)


@pytest.mark.parametrize("k", [1, 2, 3, 6])
def test_the_score_is_the_log_density_by_dimension_without_angles(k):
    random = np.random.default_rng(k)
    root, error = random.normal(size=(50, k, k)) + np.eye(k), random.normal(size=(50, k))
    covariance = root @ root.transpose(0, 2, 1) + 0.1 * np.eye(k)
    space, joint = plain_space(tuple("abcdef"[:k]), "m"), slice(None)
    if k == 3:
        yaw = Dimension("yaw", "rad", DimensionKind.ANGLE)
        space, joint = Space((yaw, Dimension("x", "m"), Dimension("y", "m"))), slice(1, None)
    expected = [
        multivariate_normal(cov=one[joint, joint]).logpdf(row[joint]) / len(row[joint])
        for row, one in zip(error, covariance, strict=True)
    ]
    np.testing.assert_allclose(joint_log_score(space, error, covariance), expected, rtol=1e-10)


def test_differences_are_means_over_each_track_of_the_scores_of_what_is_forwarded():
    def score(track: WholeTrack, factors: list[float]) -> float:
        pairs = zip(track.truth - track.sent.mean, track.sent.covariance, strict=True)
        laws = [multivariate_normal(cov=one * factors).logpdf(row) for row, one in pairs]
        return float(np.mean(laws)) / len(factors)

    lengths = zip(tracks(1, 3), (5, 1, 40), strict=True)
    some = [track.take(slice(0, n)) for track, n in lengths]
    candidate, champion = [2.0, 3.0, 0.5], [1.0, 1.5, 1.0]
    found, unsound = rows_of(some).differences(scaled(*candidate), scaled(*champion), LIMITS)
    expected = [score(track, candidate) - score(track, champion) for track in some]
    assert not unsound
    np.testing.assert_allclose(found, expected, rtol=1e-10)


@pytest.mark.parametrize("keeps_definite", [True, False])
@pytest.mark.parametrize(
    ("value", "place"), [(np.nan, (0, 1)), (np.inf, (1, 1)), (0.0, (2, 2)), (1e6, (1, 0))]
)
def test_a_candidate_that_spoils_a_single_row_is_not_sound_whatever_it_promises(
    value, place, keeps_definite
):
    rows = rows_of(tracks(4, 6))
    candidate = Spoiling(value, place, 100, 101, keeps_definite)
    found, unsound = rows.differences(candidate, Identity(), LIMITS)
    assert unsound.endswith(", of 1 of 240 detections")
    assert found.tolist() == [0.0] * 6


def test_a_candidate_that_raises_or_makes_implausible_sizes_is_not_sound():
    rows = rows_of(tracks(5, 2))
    assert rows.differences(Odd(), IDENTITY, LIMITS)[1] == "fails: RuntimeError: broken"
    _, unsound = rows.differences(scaled(1e12, 1, 1), IDENTITY, LIMITS)
    assert "beyond [limits] largest_deviation = 100000" in unsound


def test_evidence_says_what_the_verdict_rests_on():
    some = tracks(2, 30, scale=3.0)
    trial = begun(scaled(3), some[0], number=2).taken(some, IDENTITY, LIMITS)
    evidence = trial.evidence(SETTINGS)
    differences, _ = rows_of(some).differences(trial.recalibrator, IDENTITY, LIMITS)
    assert evidence.tracks == 30
    assert evidence.gain == pytest.approx(np.clip(differences, -1, 1).mean())
    assert evidence.log10_threshold == pytest.approx(np.log10(6 / 0.02))
    assert evidence.log10_better > evidence.log10_threshold > evidence.log10_worse
    assert trial.verdict(SETTINGS) is Verdict.BETTER


@pytest.mark.parametrize(
    ("better", "worse", "seen", "verdict"),
    [
        (0.0, 0.0, 399, Verdict.RUNNING),
        (0.0, 0.0, 400, Verdict.OVER),
        (9.0, -9.0, 5, Verdict.BETTER),
        (9.0, -9.0, 4000, Verdict.BETTER),
        (-9.0, 9.0, 400, Verdict.WORSE),
        (4.6, 0.0, 5, Verdict.RUNNING),
        (4.61, 0.0, 5, Verdict.BETTER),
    ],
)
def test_the_verdict_is_the_first_that_holds(better, worse, seen, verdict):
    bets = Bets(seen, 0.0, (better,) * 6, (worse,) * 6)
    assert Trial("car", IDENTITY, 1, Clip(), bets).verdict(SETTINGS) is verdict


def test_who_inflates_stakes_what_it_can_lose_and_no_truth_takes_more():
    candidate, some = scaled(2, 3, 1.5), tracks(4, 200, degrees=3.0)
    clip = clip_between(candidate, IDENTITY, some[0])
    assert clip.loss == pytest.approx(np.log(2 * 3 * 1.5) / 6)
    assert (clip.most, clip.gain) == (1.0, 1.0)
    differences, _ = rows_of(some).differences(candidate, IDENTITY, LIMITS)
    assert differences.min() >= -clip.loss
    perfect = [replace(track, truth=track.sent.mean) for track in some]
    exact, _ = rows_of(perfect).differences(candidate, IDENTITY, LIMITS)
    assert exact == pytest.approx(-clip.loss)


@pytest.mark.parametrize(
    "candidate",
    [
        HistogramBinning(((1.0,),) * 3, ((1.2, 1.5),) * 3),
        IsotonicStd(((1.0, 2.0),) * 3, ((1.2, 1.5),) * 3),
    ],
    ids=lambda candidate: candidate.method,
)
def test_where_factors_differ_by_input_the_largest_that_there_can_be_is_staked(candidate):
    track = tracks(5, 1)[0]
    assert clip_between(candidate, IDENTITY, track).loss == pytest.approx(np.log(1.5))
    assert clip_between(candidate, scaled(1.44, 1, 1), track).loss == pytest.approx(
        np.log(1.5) - np.log(1.2) / 3
    )
    # The smallest of the one is below the largest of the other, whatever the tracks show.
    assert clip_between(candidate, scaled(1.45, 1, 1), track).loss == 1.0
    assert clip_between(IDENTITY, candidate, track).gain == pytest.approx(np.log(1.5))


def test_a_scaling_of_correlated_dimensions_that_turns_their_ellipse_can_lose_all():
    covariance = np.array([[1.0, 0.97, 0.0], [0.97, 1.0, 0.0], [0.0, 0.0, 1.0]])[None]
    sent = Estimates(np.zeros((1, 3)), covariance, np.zeros(1, bool))
    track = WholeTrack(XYZ, 0, sent, np.zeros((1, 3)), np.zeros(1, np.int64), 0)
    candidate = scaled(4, 1.1, 1.1)
    # Larger variances, and yet smaller across the ellipse.
    made = candidate.apply(sent).covariance[0]
    assert np.linalg.eigvalsh(made - covariance[0]).min() < 0
    assert clip_between(candidate, IDENTITY, track).loss == 1.0
    for near in (scaled(2, 2, 2), scaled(2, 2.2, 2.4)):
        assert np.linalg.eigvalsh(near.apply(sent).covariance[0] - covariance[0]).min() > 0
        clip = clip_between(near, IDENTITY, track)
        assert clip.loss == pytest.approx(np.log(near.scale).mean())
        assert clip_between(IDENTITY, near, track).gain == pytest.approx(clip.loss)


def test_who_does_neither_alone_stakes_all_and_no_stake_is_nothing_or_more_than_the_most():
    track = tracks(6, 1)[0]
    for candidate in (scaled(2, 2, 0.5), Moving(1.0), Moving(1e-9)):
        assert clip_between(candidate, IDENTITY, track) == Clip(1.0, 1.0, 1.0, 40.0)
    for factor in (1.0, 1 + 1e-9, 1e30, 1e-30):
        clip = clip_between(scaled(factor), IDENTITY, track)
        assert 1e-3 <= clip.loss <= 1.0
        assert 1e-3 <= clip.gain <= 1.0


@pytest.mark.parametrize("degrees", [np.inf, 5.0])
@pytest.mark.parametrize("factor", [2.25, 5.0, 0.4])
def test_a_true_correction_is_proven_within_a_hundred_tracks(factor, degrees):
    for seed in range(4):
        some = tracks(seed, 150, scale=factor, degrees=degrees)
        verdict, count = ended(begun(scaled(factor), some[0]), some)
        assert (verdict, count < 120) == (Verdict.BETTER, True)


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("factor", [1 / 1.5, 1.15, 2])
def test_under_heavy_tails_no_step_away_from_a_calibrated_champion_is_proven(factor, held):
    some = [tracks(seed, 400, degrees=3.0, held=held) for seed in range(12)]
    verdicts = [ended(begun(scaled(factor), one[0]), one)[0] for one in some]
    # Variances of 3 degrees of freedom have none themselves: a rare track decides it.
    assert verdicts.count(Verdict.BETTER) <= 1


def fault_then_none(seed, factor, degrees=np.inf) -> tuple[list[WholeTrack], Guard]:
    """300 tracks of a fault and 300 of none, and a guard beside what corrects the fault."""
    scale = np.repeat([factor, 1.0], 300)[:, None] * np.ones(3)
    some = tracks(seed, 600, scale=scale, degrees=degrees)
    return some, Guard("car", IDENTITY, clip_between(IDENTITY, scaled(factor), some[0]))


@pytest.mark.parametrize("degrees", [np.inf, 5.0])
@pytest.mark.parametrize(("factor", "within"), [(5.0, 80), (2.25, 220), (0.3, 80)])
def test_it_wins_after_a_fault_ends_and_not_before(factor, within, degrees):
    for seed in range(2):
        (some, guard), champion = fault_then_none(seed, factor, degrees), scaled(factor)
        guard = guard.taken(some[:300], champion, LIMITS)
        assert not guard.won(SETTINGS)
        guard = guard.taken(some[300 : 300 + within], champion, LIMITS)
        assert guard.won(SETTINGS)
        # Those since the end of the fault, or since a track that the leading bettor lost much on.
        assert within / 2 < guard.watch.leading.tracks < within + 40


def test_its_evidence_is_of_the_tracks_since_it_is_better():
    some, guard = fault_then_none(2, 5.0)
    assert guard.evidence(SETTINGS).tracks == 0
    evidence = guard.taken(some[:340], scaled(5.0), LIMITS).evidence(SETTINGS)
    assert 35 <= evidence.tracks <= 45
    assert evidence.gain == pytest.approx((math.log(5) - 0.8) / 2, abs=0.1)
    assert evidence.log10_better > evidence.log10_threshold == 5
    assert evidence.log10_worse == 0


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


@given(st.lists(st.tuples(st.floats(-1e300, 1e300), st.integers(1, 80)), max_size=20))
def test_gains_are_clipped_by_the_piece_and_losses_are_not(some):
    values, counts = (np.array([one[i] for one in some]) for i in range(2))
    clip = Clip(0.5, 0.2, 0.3, rows=32.0)
    for said, value, count in zip(
        clip.said(values, clip.shares(counts)), values, counts, strict=True
    ):
        assert said == pytest.approx(min(1.0, count / 32) * min(0.5, value))


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
