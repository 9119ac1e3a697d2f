"""Which outcomes of a recalibrator can be given to a tracker: judged row by row."""

from dataclasses import replace

import numpy as np
import pytest

from monitor.frames.detections import Estimates, Limits
from monitor.recalibration.recalibrator import fault_of, sent_where_unsound, sound_rows

NAN, INF = float("nan"), float("inf")
LIMITS = Limits()
pytestmark = pytest.mark.filterwarnings("error")


def some(n=4, k=3) -> Estimates:
    random = np.random.default_rng(n)
    root = random.normal(size=(n, k, k)) + 2 * np.eye(k)
    return Estimates(random.normal(size=(n, k)), root @ root.transpose(0, 2, 1), np.zeros(n, bool))


def doubled(sent: Estimates) -> Estimates:
    return Estimates(sent.mean.copy(), 4.0 * sent.covariance, sent.diagonal.copy())


@pytest.mark.parametrize("definite", [True, False])
@pytest.mark.parametrize("n", [0, 1, 4])
def test_usable_outcomes_are_sound(n, definite):
    sent = some(n)
    assert sound_rows(sent, doubled(sent), LIMITS, definite=definite).tolist() == [True] * n


def test_what_was_sent_is_not_judged_again():
    sent = some()
    sent.covariance[1] = NAN
    assert sound_rows(sent, sent, LIMITS, definite=False).all()


@pytest.mark.parametrize("definite", [True, False])
@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("place", [(0, 1), (1, 0), (1, 2), (0, 0), (2, 2)])
def test_a_covariance_that_is_not_finite_anywhere_fails_its_row_alone(place, value, definite):
    sent = some()
    made = doubled(sent)
    made.covariance[(2, *place)] = value
    assert sound_rows(sent, made, LIMITS, definite=definite).tolist() == [True, True, False, True]


@pytest.mark.parametrize("definite", [True, False])
@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_a_mean_that_is_not_finite_fails_its_row_alone(value, definite):
    sent = some()
    made = doubled(sent)
    made.mean[0, 1] = value
    assert sound_rows(sent, made, LIMITS, definite=definite).tolist() == [False, True, True, True]


@pytest.mark.parametrize("definite", [True, False])
@pytest.mark.parametrize("value", [0.0, -1.0, -1e-300])
def test_a_variance_that_is_not_positive_fails_its_row_alone(value, definite):
    sent = some()
    made = doubled(sent)
    made.covariance[3, 1, 1] = value
    assert sound_rows(sent, made, LIMITS, definite=definite).tolist() == [True, True, True, False]


def test_an_indefinite_covariance_of_positive_variances_fails_unless_the_method_rules_it_out():
    sent = some()
    made = doubled(sent)
    made.covariance[1] = [[1.0, 2.0, 0.0], [2.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    assert sound_rows(sent, made, LIMITS, definite=False).tolist() == [True, False, True, True]
    # Not factorised again: the method is taken at its word.
    assert sound_rows(sent, made, LIMITS, definite=True).all()


@pytest.mark.parametrize("definite", [True, False])
def test_values_whose_sum_alone_overflows_are_sound(definite):
    sent = some(4, 1)
    made = Estimates(np.full((4, 1), 1e308), np.full((4, 1, 1), 1e308), sent.diagonal)
    limits = Limits(largest_deviation=1e154)
    assert sound_rows(sent, made, limits, definite=definite).all()


@pytest.mark.parametrize("definite", [True, False])
@pytest.mark.parametrize(
    ("deviation", "fine"), [(1e-6, True), (9e-7, False), (1e5, True), (2e5, False)]
)
def test_a_deviation_that_would_be_refused_if_it_were_sent_fails_its_row_alone(
    deviation, fine, definite
):
    sent = some()
    made = doubled(sent)
    made.covariance[2] = np.diag([1.0, deviation**2, 1.0])
    found = sound_rows(sent, made, LIMITS, definite=definite)
    assert found.tolist() == [True, True, fine, True]


@pytest.mark.parametrize("part", ["mean", "covariance", "diagonal"])
@pytest.mark.parametrize("change", ["fewer", "more", "flat"])
@pytest.mark.parametrize("definite", [True, False])
def test_outcomes_of_another_shape_are_all_failures(part, change, definite):
    sent = some()
    made = doubled(sent)
    array = getattr(made, part)
    wrong = {
        "fewer": array[:1],
        "more": np.concatenate([array, array]),
        "flat": array[..., None],
    }[change]
    parts = {"mean": made.mean, "covariance": made.covariance, "diagonal": made.diagonal}
    found = sound_rows(sent, Estimates(**{**parts, part: wrong}), LIMITS, definite=definite)
    assert found.tolist() == [False] * 4


# ---- in words


@pytest.mark.parametrize("n", [0, 1, 4])
def test_nothing_is_wrong_with_what_is_sound(n):
    sent = some(n)
    assert fault_of(sent, doubled(sent), LIMITS) == fault_of(sent, sent, LIMITS) == ""


@pytest.mark.parametrize(
    ("part", "value", "words"),
    [
        ("mean", NAN, "means that are not finite"),
        ("covariance", INF, "covariances that are not finite"),
        ("covariance", -1.0, "covariances that are not positive definite"),
        ("covariance", 0.0, "covariances that are not positive definite"),
        ("covariance", 1e11, "deviations beyond [limits] largest_deviation = 100000"),
        ("covariance", 1e-13, "deviations below [limits] smallest_deviation = 1e-06"),
    ],
)
def test_a_fault_is_told_with_the_limit_and_the_number_of_detections(part, value, words):
    sent = some()
    made = doubled(sent)
    getattr(made, part)[1:3, 0] = value
    assert fault_of(sent, made, LIMITS) == f"makes {words}, of 2 of 4 detections"


def test_the_gravest_fault_is_told():
    sent = some()
    made = doubled(sent)
    made.covariance[0] *= 1e12
    made.covariance[1, 2, 1] = NAN
    words = "makes covariances that are not finite, of 1 of 4 detections"
    assert fault_of(sent, made, LIMITS) == words


def test_outcomes_of_another_shape_are_a_fault():
    sent = some()
    made = doubled(sent).take(slice(0, 2))
    assert fault_of(sent, made, LIMITS).startswith("makes arrays of the shapes ((2, 3), ")


# ---- as sent instead


@pytest.mark.parametrize("sound", [(1, 1, 1, 1), (0, 0, 0, 0), (1, 0, 1, 0), (0, 1, 1, 1)])
def test_rows_that_are_not_sound_are_as_sent_and_their_neighbours_as_made(sound):
    sent = some()
    made = replace(doubled(sent), mean=sent.mean + 1, diagonal=~sent.diagonal)
    before = made.covariance.copy()
    found = sent_where_unsound(sent, made, np.array(sound, bool))
    for i, row in enumerate(sound):
        expected = made if row else sent
        np.testing.assert_array_equal(found.mean[i], expected.mean[i])
        np.testing.assert_array_equal(found.covariance[i], expected.covariance[i])
        assert found.diagonal[i] == expected.diagonal[i]
    np.testing.assert_array_equal(made.covariance, before)
