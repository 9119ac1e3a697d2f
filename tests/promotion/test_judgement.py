"""What becomes of a fit before any trial: tried, sent home, or nothing new."""

import numpy as np
import pytest

from monitor.frames.detections import Limits
from monitor.promotion.records import PolicySettings
from monitor.promotion.register import judge, shrinks
from monitor.promotion.trial import in_words, ratios
from monitor.recalibration.recalibrator import Identity
from monitor.recalibration.scaling import VarianceScaling
from tests.promotion.odd_recalibrators import Counting, Raising, Spoiling
from tests.promotion.simulated_tracks import tracks

POLICY, IDENTITY = PolicySettings(), Identity()
SENT = tracks(0, 1)[0].sent
NAMES = ("x", "y", "z")


def scaled(*factors: float) -> VarianceScaling:
    return VarianceScaling(tuple(np.sqrt(factors).tolist()))


def judged(fitted, champion=IDENTITY):
    return judge(fitted, champion, SENT, NAMES, POLICY)


def test_a_fault_is_to_be_corrected_by_what_was_fitted():
    judgement = judged(scaled(3.0, 1.2, 0.9))
    assert judgement.candidate == scaled(3.0, 1.2, 0.9)
    assert judgement.reason == "factors on the variance: x 3, y 1.2, z 0.9"
    assert [factor.typical for factor in judgement.factors] == pytest.approx([3.0, 1.2, 0.9])


@pytest.mark.parametrize("factors", [(1.1, 0.9, 1.0), (1.99, 0.51, 1.5)])
def test_a_healthy_detector_is_left_alone(factors):
    judgement = judged(scaled(*factors))
    assert judgement.candidate is None
    assert judgement.reason.startswith("every factor on the variance lies within 0.5 … 2: x ")
    assert judgement.reason.endswith("; nothing to correct")
    assert len(judgement.factors) == 3


@pytest.mark.parametrize("factors", [(2.01, 1.0, 1.0), (1.0, 1.0, 0.49)])
def test_a_single_factor_beyond_the_band_is_reason_enough(factors):
    assert judged(scaled(*factors)).candidate == scaled(*factors)


def test_a_detector_that_is_healthy_again_goes_home_whatever_serves_it_now():
    judgement = judged(scaled(1.1, 0.9, 1.3), scaled(4.0, 4.0, 4.0))
    assert judgement.candidate == IDENTITY
    assert judgement.reason.endswith("x 1.1, y 0.9, z 1.3; back to what is sent")
    assert judgement.shrinks


@pytest.mark.parametrize(
    ("factors", "candidate"), [((3.2, 3.0, 2.8), None), ((3.4, 3.0, 3.0), scaled(3.4, 3.0, 3.0))]
)
def test_a_step_that_changes_next_to_nothing_is_none(factors, candidate):
    judgement = judged(scaled(*factors), scaled(3.0, 3.0, 3.0))
    assert judgement.candidate == candidate
    assert ("none changes by more than 1.1" in judgement.reason) == (candidate is None)


@pytest.mark.parametrize(
    ("fitted", "words"),
    [
        (Raising(1.0), "spoiling fails: RuntimeError: broken: look at"),
        (Spoiling(float("nan")), "makes covariances that are not finite, of 40 of 40 detections"),
        (Spoiling(-1.0), "makes covariances that are not positive definite, of 40 of 40"),
        (scaled(1e9, 1, 1), "deviations beyond [limits] largest_deviation = 1000, of 40 of 40"),
        (scaled(1, 1e-9, 1), "deviations below [limits] smallest_deviation = 0.001, of 40 of 40"),
    ],
)
def test_what_cannot_be_forwarded_is_not_tried_and_it_is_said_why(fitted, words):
    judgement = judge(fitted, IDENTITY, SENT, NAMES, POLICY, Limits(1e8, 1e-3, 1e3))
    assert judgement.candidate is None
    assert words in judgement.reason
    assert judgement.factors == ()


def test_what_an_exception_says_is_cut_to_one_line_that_can_be_recorded():
    assert in_words(ValueError("a\n b\x00\ud800c")) == "ValueError: a b c"
    assert len(in_words(ValueError("x" * 10**6))) < 250
    assert in_words(KeyError()) == "KeyError"


def test_each_recalibrator_is_applied_once():
    fitted, champion = Counting(3.0), Counting(5.0)
    judged(fitted, champion)
    assert (fitted.times, champion.times) == (1, 1)


def test_a_champion_that_fails_is_judged_as_what_is_sent():
    assert judged(scaled(3.0, 3.0, 3.0), Raising(1.0)).candidate == scaled(3.0, 3.0, 3.0)


@pytest.mark.parametrize(
    ("candidate", "champion", "expected"),
    [
        (scaled(3, 3, 3), IDENTITY, False),
        (scaled(3, 3, 0.95), IDENTITY, False),
        (scaled(3, 3, 0.85), IDENTITY, True),
        (scaled(3, 3, 3), scaled(3, 3, 5), True),
        (IDENTITY, scaled(3, 3, 3), True),
        (IDENTITY, scaled(0.3, 0.3, 0.3), False),
    ],
)
def test_it_shrinks_where_any_variance_becomes_smaller_by_more_than_the_hysteresis(
    candidate, champion, expected
):
    assert shrinks(ratios(candidate, champion, SENT), POLICY.hysteresis) is expected
    judgement = judged(candidate, champion)
    assert judgement.shrinks is expected
