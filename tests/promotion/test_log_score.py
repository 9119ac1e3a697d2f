"""Scores against scipy's densities, and what is compared where a recalibrator fails."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from monitor.frames.detections import Limits
from monitor.frames.space import Dimension, DimensionKind, FloatArray, Space, plain_space
from monitor.promotion.tracks import WholeTrack, rows_of
from monitor.promotion.trial import joint_log_score, mean_differences
from monitor.recalibration.recalibrator import Identity
from monitor.recalibration.scaling import VarianceScaling
from tests.promotion.odd_recalibrators import Raising, Spoiling
from tests.promotion.simulated_tracks import tracks

LIMITS = Limits()
XYZ = plain_space(("x", "y", "z"), "m")
WITH_YAW = Space(
    (Dimension("yaw", "rad", DimensionKind.ANGLE), Dimension("x", "m"), Dimension("y", "m"))
)


def gaussians(seed, n, k):
    random = np.random.default_rng(seed)
    root = random.normal(size=(n, k, k)) + np.eye(k)
    return random.normal(size=(n, k)), root @ root.transpose(0, 2, 1) + 0.1 * np.eye(k)


def scaled(*factors):
    return VarianceScaling(tuple(np.sqrt(factors).tolist()))


@pytest.mark.parametrize("k", [1, 2, 3, 6])
def test_the_score_is_the_log_density_by_dimension(k):
    error, covariance = gaussians(k, 50, k)
    expected = [
        multivariate_normal(cov=one).logpdf(row) / k
        for row, one in zip(error, covariance, strict=True)
    ]
    space = plain_space(tuple("abcdef"[:k]), "m")
    np.testing.assert_allclose(joint_log_score(space, error, covariance), expected, rtol=1e-10)


def test_angles_have_no_part_in_it():
    error, covariance = gaussians(3, 40, 3)
    expected = [
        multivariate_normal(cov=one[1:, 1:]).logpdf(row[1:]) / 2
        for row, one in zip(error, covariance, strict=True)
    ]
    np.testing.assert_allclose(joint_log_score(WITH_YAW, error, covariance), expected, rtol=1e-10)


def test_a_covariance_that_is_not_positive_definite_has_no_score_and_its_neighbours_have():
    error, covariance = gaussians(4, 3, 3)
    covariance[1] = np.diag([1.0, -1.0, 1.0])
    assert np.isnan(joint_log_score(XYZ, error, covariance)).tolist() == [False, True, False]


def test_differences_are_means_over_each_track_of_the_scores_of_what_is_forwarded():
    some = [replace_length(track, n) for track, n in zip(tracks(1, 3), (5, 1, 40), strict=True)]
    found = mean_differences(rows_of(some), scaled(2.0, 3.0, 0.5), scaled(1.0, 1.5, 1.0), LIMITS)
    expected = [
        np.mean(densities(track, [2.0, 3.0, 0.5]) - densities(track, [1.0, 1.5, 1.0]))
        for track in some
    ]
    assert not found.unsound
    np.testing.assert_allclose(found.value, expected, rtol=1e-10)


def densities(track: WholeTrack, factors: list[float]) -> FloatArray:
    """(n,) log density by dimension with variances times these factors."""
    error = track.truth - track.sent.mean
    return np.array(
        [
            multivariate_normal(cov=one * factors).logpdf(row) / len(factors)
            for row, one in zip(error, track.sent.covariance, strict=True)
        ]
    )


def replace_length(track: WholeTrack, n: int) -> WholeTrack:
    return replace(
        track,
        sent=track.sent.take(slice(0, n)),
        truth=track.truth[:n],
        stamp_ns=track.stamp_ns[:n],
    )


def test_exchanging_candidate_and_champion_turns_the_sign():
    rows = rows_of(tracks(2, 20))
    one = mean_differences(rows, scaled(2, 1, 1), scaled(1, 1, 0.3), LIMITS)
    other = mean_differences(rows, scaled(1, 1, 0.3), scaled(2, 1, 1), LIMITS)
    assert (one.value == -other.value).all()


def test_a_candidate_that_is_the_champion_differs_by_nothing():
    rows = rows_of(tracks(3, 5))
    assert not mean_differences(rows, Identity(), Identity(), LIMITS).value.any()


@pytest.mark.parametrize("keeps_definite", [True, False])
@pytest.mark.parametrize(
    ("value", "place"),
    [(np.nan, (0, 1)), (np.inf, (1, 1)), (-1.0, (1, 1)), (0.0, (2, 2)), (1e6, (1, 0))],
)
def test_a_candidate_that_spoils_a_single_row_is_not_sound_whatever_it_promises(
    value, place, keeps_definite
):
    rows = rows_of(tracks(4, 6))
    candidate = Spoiling(value, place, 100, 101, keeps_definite)
    found = mean_differences(rows, candidate, Identity(), LIMITS)
    assert found.unsound
    assert found.value.tolist() == [0.0] * 6
    assert found.unsound.endswith(", of 1 of 240 detections")


def test_a_candidate_that_raises_is_not_sound():
    found = mean_differences(rows_of(tracks(5, 2)), Raising(1.0), Identity(), LIMITS)
    assert found.unsound == "fails: RuntimeError: broken"


def test_a_candidate_of_implausible_size_is_not_sound():
    rows = rows_of(tracks(5, 2))
    found = mean_differences(rows, scaled(1e12, 1, 1), Identity(), LIMITS)
    assert "beyond [limits] largest_deviation = 100000" in found.unsound


def test_rows_on_which_the_champion_fails_count_as_sent():
    some = tracks(6, 2)
    rows, candidate = rows_of(some), scaled(1.3, 1.3, 1.3)
    champion = Spoiling(np.nan, last=some[0].n, keeps_definite=False)
    found = mean_differences(rows, candidate, champion, LIMITS).value
    as_sent = mean_differences(rows, candidate, Identity(), LIMITS).value
    doubled = mean_differences(rows, candidate, scaled(2, 2, 2), LIMITS).value
    np.testing.assert_allclose(found, [as_sent[0], doubled[1]], rtol=1e-12)


def test_a_champion_that_fails_everywhere_counts_as_what_was_sent():
    rows = rows_of(tracks(7, 3))
    expected = mean_differences(rows, scaled(2, 2, 2), Identity(), LIMITS).value
    everywhere = Spoiling(np.nan, keeps_definite=False)
    for champion in (Raising(1.0), everywhere):
        found = mean_differences(rows, scaled(2, 2, 2), champion, LIMITS)
        assert (found.value == expected).all()


def test_a_truth_beyond_all_bounds_leaves_differences_finite():
    track = tracks(8, 1)[0]
    far = replace(track, truth=track.truth + 1e200)
    found = mean_differences(rows_of([far, track]), scaled(2, 2, 2), Identity(), LIMITS)
    assert np.isfinite(found.value).all()
