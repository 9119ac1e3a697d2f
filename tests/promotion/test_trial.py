"""Candidates beside a champion on simulated tracks: which are proven, which never, and how soon."""

from dataclasses import replace

import numpy as np
import pytest

from monitor.frames.detections import Estimates, Limits
from monitor.frames.space import Dimension, DimensionKind, Space, plain_space
from monitor.promotion.betting import Bets, Clip
from monitor.promotion.records import TrialSettings, Verdict
from monitor.promotion.tracks import WholeTrack, rows_of
from monitor.promotion.trial import Trial, clip_of, mean_differences
from monitor.recalibration.adaptive_scaling import AdaptiveScaling
from monitor.recalibration.binned import HistogramBinning, IsotonicStd
from monitor.recalibration.recalibrator import Identity, Recalibrator
from monitor.recalibration.scaling import VarianceScaling
from tests.promotion.broken_tracks import outliers_broken_off
from tests.promotion.odd_recalibrators import ByRow, Moving, Raising, Spoiling
from tests.promotion.simulated_tracks import tracks

LIMITS, SETTINGS, IDENTITY = Limits(), TrialSettings(), Identity()
XYZ = plain_space(("x", "y", "z"), "m")
NAN = float("nan")


def scaled(*factors: float) -> VarianceScaling:
    return VarianceScaling(tuple(np.sqrt(factors).tolist()))


def clip_between(candidate: Recalibrator, champion: Recalibrator, track: WholeTrack) -> Clip:
    return clip_of(candidate, champion, rows_of([track]), SETTINGS.clip)


def begun(candidate, champion, track: WholeTrack, number=1) -> Trial:
    clip = clip_between(candidate, champion, track)
    return Trial("car", candidate, number, clip)


def decided(candidate, champion, some: list[WholeTrack]) -> tuple[Verdict, int]:
    """The first verdict that ends it, looking at every track, and after how many."""
    return ended(begun(candidate, champion, some[0]), champion, some)


def ended(trial: Trial, champion: Recalibrator, some: list[WholeTrack]) -> tuple[Verdict, int]:
    """The same, of a trial that runs."""
    rows = rows_of(some)
    differences = mean_differences(rows, trial.recalibrator, champion, LIMITS).value
    for i in range(len(some)):
        one = slice(i, i + 1)
        bets = trial.bets.taken(differences[one], rows.counts[one], trial.clip)
        trial = replace(trial, bets=bets)
        if trial.verdict(SETTINGS) is not Verdict.RUNNING:
            return trial.verdict(SETTINGS), i + 1
    return Verdict.RUNNING, len(some)


# ---- what counts


def test_a_short_track_has_its_share_of_a_say():
    some = tracks(0, 2, length=40)
    trial = begun(scaled(2, 2, 2), IDENTITY, some[0])
    assert trial.clip.rows == 40
    short = some[1].since(int(some[1].stamp_ns[29]))
    assert short is not None
    assert short.n == 10
    (difference,) = mean_differences(rows_of([short]), trial.recalibrator, IDENTITY, LIMITS).value
    assert trial.taken([short], IDENTITY, LIMITS).bets.total == pytest.approx(difference / 4)


def test_without_tracks_nothing_changes():
    trial = begun(scaled(2, 2, 2), IDENTITY, tracks(0, 1)[0])
    assert trial.taken([], IDENTITY, LIMITS) is trial


@pytest.mark.parametrize("cut", [0, 1, 7, 20])
def test_tracks_in_parts_say_what_they_say_together(cut):
    some = tracks(1, 20, scale=2.0)
    trial = begun(scaled(2, 2, 2), IDENTITY, some[0])
    whole = trial.taken(some, IDENTITY, LIMITS).bets
    parts = trial.taken(some[cut:], IDENTITY, LIMITS).taken(some[:cut], IDENTITY, LIMITS).bets
    assert parts.better == pytest.approx(whole.better, rel=1e-9)
    assert parts.worse == pytest.approx(whole.worse, rel=1e-9)
    assert parts.tracks == 20
    assert parts.gain == pytest.approx(whole.gain)


def test_evidence_says_what_the_verdict_rests_on():
    some = tracks(2, 30, scale=3.0)
    trial = begun(scaled(3, 3, 3), IDENTITY, some[0], number=2).taken(some, IDENTITY, LIMITS)
    evidence = trial.evidence(SETTINGS)
    differences = mean_differences(rows_of(some), trial.recalibrator, IDENTITY, LIMITS).value
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


@pytest.mark.parametrize(
    ("candidate", "words"),
    [
        (Raising(1.0), "fails: RuntimeError: broken"),
        (Spoiling(NAN, first=900, last=901), "makes covariances that are not finite, of 1 of"),
    ],
)
def test_a_candidate_that_fails_on_a_single_detection_is_unsound_for_good(candidate, words):
    some = tracks(3, 30, scale=5.0)
    trial = Trial("car", candidate, 1, Clip()).taken(some, IDENTITY, LIMITS)
    assert trial.verdict(SETTINGS) is Verdict.UNSOUND
    assert trial.unsound.startswith(words)
    assert trial.taken(some[:2], IDENTITY, LIMITS).verdict(SETTINGS) is Verdict.UNSOUND


# ---- how much a track can say


def test_what_a_full_say_is_comes_from_the_tracks_whatever_is_tried_on_them():
    counts = {1: 3, 20: 20, 40: 1}
    some = [track for length, count in counts.items() for track in tracks(1, count, length=length)]
    for candidate in (scaled(2, 2, 2), scaled(0.5, 0.5, 0.5), Moving(1.0)):
        assert clip_of(candidate, IDENTITY, rows_of(some), 1.0).rows == 20


def test_who_inflates_stakes_what_it_can_lose_and_no_truth_takes_more():
    candidate, some = scaled(2, 3, 1.5), tracks(4, 200, degrees=3.0)
    clip = clip_between(candidate, IDENTITY, some[0])
    assert clip.loss == pytest.approx(np.log(2 * 3 * 1.5) / 6)
    assert (clip.most, clip.gain) == (1.0, 1.0)
    differences = mean_differences(rows_of(some), candidate, IDENTITY, LIMITS).value
    assert differences.min() >= -clip.loss
    perfect = [replace(track, truth=track.sent.mean) for track in some]
    exact = mean_differences(rows_of(perfect), candidate, IDENTITY, LIMITS).value
    assert exact == pytest.approx(-clip.loss)


def test_who_shrinks_can_lose_all_and_gain_as_little_as_the_inverse_can_lose():
    track = tracks(5, 1)[0]
    clip = clip_between(scaled(0.5, 0.5, 0.5), IDENTITY, track)
    assert (clip.most, clip.loss) == (1.0, 1.0)
    assert clip.gain == pytest.approx(np.log(2) / 2)
    back = clip_between(IDENTITY, scaled(2, 2, 2), track)
    assert back.loss == 1.0
    assert back.gain == pytest.approx(clip.gain)


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


def test_who_may_get_other_factors_stakes_nothing_on_those_it_has():
    candidate, track = ByRow(np.full(40, 2.0)), tracks(5, 1)[0]
    following = AdaptiveScaling((1.5,) * 3, 60.0, 0.0, 0.0, 9.0, (20.0,) * 3, (1.0,) * 3, 3.0)
    # One of other dimensions fails, and what was sent goes on.
    for one in (candidate, following, scaled(2, 2)):
        assert clip_between(one, IDENTITY, track) == Clip(1.0, 1.0, 1.0, 40.0)
        assert clip_between(IDENTITY, one, track) == Clip(1.0, 1.0, 1.0, 40.0)


@pytest.mark.parametrize(
    "candidate", [scaled(2, 2, 0.5), Moving(1.0), Moving(1e-9)], ids=["both ways", "far", "near"]
)
def test_who_does_neither_alone_can_lose_and_gain_all(candidate):
    assert clip_between(candidate, IDENTITY, tracks(6, 1)[0]) == Clip(1.0, 1.0, 1.0, 40.0)


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


def test_what_the_joint_measures_leave_out_has_no_part_in_it():
    space = Space((Dimension("yaw", "rad", DimensionKind.ANGLE), Dimension("x", "m")))
    track = replace(tracks(7, 1, k=2)[0], space=space)
    clip = clip_between(scaled(0.1, 2), IDENTITY, track)
    assert clip.loss == pytest.approx(np.log(2) / 2)
    assert clip.gain == 1.0


@pytest.mark.parametrize("factor", [1.0, 1 + 1e-9, 1e30, 1e-30])
def test_the_stakes_are_neither_nothing_nor_more_than_the_most(factor):
    clip = clip_between(scaled(*(factor,) * 3), IDENTITY, tracks(8, 1)[0])
    assert 1e-3 <= clip.loss <= 1.0
    assert 1e-3 <= clip.gain <= 1.0


# ---- who is proven


@pytest.mark.parametrize("degrees", [np.inf, 5.0])
@pytest.mark.parametrize("factor", [2.25, 5.0, 0.4])
def test_a_true_correction_is_proven_within_a_hundred_tracks(factor, degrees):
    for seed in range(10):
        some = tracks(seed, 150, scale=factor, degrees=degrees)
        verdict, after = decided(scaled(*(factor,) * 3), IDENTITY, some)
        assert (verdict, after < 120) == (Verdict.BETTER, True)


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("factor", [1 / 2, 1 / 1.5, 1 / 1.15, 1.15, 1.5, 2])
def test_under_heavy_tails_no_step_away_from_a_calibrated_champion_is_proven(factor, held):
    candidate = scaled(*(factor,) * 3)
    verdicts = [
        decided(candidate, IDENTITY, tracks(seed, 400, degrees=3.0, held=held))[0]
        for seed in range(25)
    ]
    # Variances of 3 degrees of freedom have none themselves: a rare track decides it.
    assert verdicts.count(Verdict.BETTER) <= 1


@pytest.mark.parametrize("degrees", [np.inf, 5.0])
def test_what_was_fitted_to_the_noise_of_ten_tracks_is_not_proven(degrees):
    for seed in range(25):
        some = tracks(seed, 410, degrees=degrees)
        rows = rows_of(some[:10])
        square = np.square((rows.truth - rows.sent.mean) / rows.sent.deviation)
        verdict, _ = decided(scaled(*square.mean(axis=0).tolist()), IDENTITY, some[10:])
        assert verdict is not Verdict.BETTER


@pytest.mark.parametrize("factor", [1.5, 2.0])
def test_outliers_broken_off_into_tracks_of_their_own_prove_no_inflation_of_a_healthy_detector(
    factor,
):
    candidate, by_length, by_head = scaled(*(factor,) * 3), [], []
    for seed in range(10):
        some = tracks(seed, 210, degrees=5.0)
        fitted_on, later = outliers_broken_off(some[:10]), outliers_broken_off(some[10:])
        clip = clip_of(candidate, IDENTITY, rows_of(fitted_on), SETTINGS.clip)
        trial = Trial("car", candidate, 1, clip)
        by_length.append(ended(trial, IDENTITY, later)[0])
        # Where a single row has a full say, as the whole track has that it was broken from.
        alone = replace(trial, clip=replace(clip, rows=1.0))
        by_head.append(ended(alone, IDENTITY, later)[0])
    assert Verdict.BETTER not in by_length
    assert set(by_head) == {Verdict.BETTER}


@pytest.mark.parametrize("factor", [1 / 2, 1 / 1.5, 1.5])
def test_nor_do_the_heaviest_tails_prove_a_step_where_what_speaks_against_it_is_broken_off(factor):
    candidate, verdicts = scaled(*(factor,) * 3), []
    for seed in range(20):
        some = outliers_broken_off(tracks(seed, 210, degrees=3.0))
        clip = clip_of(candidate, IDENTITY, rows_of(some[:20]), SETTINGS.clip)
        verdicts.append(ended(Trial("car", candidate, 1, clip), IDENTITY, some[20:])[0])
    assert verdicts.count(Verdict.BETTER) <= 1


@pytest.mark.parametrize("factor", [2.25, 5.0, 0.4])
def test_a_true_correction_is_proven_as_surely_where_outliers_are_broken_off(factor):
    candidate = scaled(*(factor,) * 3)
    for seed in range(5):
        some = outliers_broken_off(tracks(seed, 300, scale=factor, degrees=5.0), gate=4.0)
        clip = clip_of(candidate, IDENTITY, rows_of(some[:20]), SETTINGS.clip)
        assert ended(Trial("car", candidate, 1, clip), IDENTITY, some[20:])[0] is Verdict.BETTER


@pytest.mark.parametrize("factor", [1.5, 2.0])
def test_no_wrong_shrinking_is_proven_under_the_heaviest_tails_that_are_insured(factor):
    some = tracks(11, 12_000, k=3, length=1, degrees=3.0, held=True)
    rows, candidate = rows_of(some), scaled(*(1 / factor,) * 3)
    clip = clip_between(candidate, IDENTITY, some[0])
    assert clip.insured(3)
    differences = mean_differences(rows, candidate, IDENTITY, LIMITS).value
    multiples = clip.multiples(differences, clip.shares(rows.counts), clip.loss)
    wealth = np.cumsum(np.log(multiples).reshape(30, 400, 6), axis=1)
    won = (np.exp(wealth).mean(axis=2) >= 100).any(axis=1)
    assert won.sum() <= 1


def test_a_histogram_whose_rare_bin_loses_what_the_others_gain_is_not_proven():
    # x averages 0: a gain of 0.02 nats in 98 of 100 tracks, and a loss of 1 in two.
    candidate, won = HistogramBinning(((10.0,),) * 3, ((np.sqrt(1.3), 0.35),) * 3), 0
    for seed in range(20):
        random = np.random.default_rng(seed)
        some = tracks(seed, 400, length=10, scale=1.3)
        for i in np.flatnonzero(random.random(400) < 0.02).tolist():
            far = replace(some[i].sent, covariance=400 * some[i].sent.covariance)
            some[i] = replace(some[i], sent=far, truth=20 * some[i].truth - 19 * far.mean)
        clip = clip_between(candidate, IDENTITY, some[0])
        assert clip.loss == 1.0
        won += ended(Trial("car", candidate, 1, clip), IDENTITY, some)[0] is Verdict.BETTER
    assert won <= 1


def test_a_wrong_correction_is_proven_worse():
    for factor in (0.3, 3.0):
        verdict, after = decided(scaled(*(factor,) * 3), IDENTITY, tracks(9, 400))
        assert (verdict, after < 60) == (Verdict.WORSE, True)
