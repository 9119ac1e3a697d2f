"""Class recalibrators on trial: how rows are scored, what no truth takes, what chance proves, and
what becomes of a detector that is too sure, not sure enough, or well again.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from monitor.frames.detections import Limits
from monitor.pipeline.learning import CLASS_CHAIN
from monitor.promotion.records import PolicySettings
from monitor.promotion.register import judge
from monitor.promotion.scored import ClassTrackRows, most_lost, rows_of
from monitor.promotion.tracks import ClassKind, ClassTrack
from monitor.promotion.trial import LEFT, STAKES, Clip, clip_of
from monitor.recalibration.class_probabilities import (
    ClassIdentity,
    ClassRecalibrator,
    from_probabilities,
)
from monitor.recalibration.class_scaling import Temperature, VectorScaling
from tests.promotion.simulated_tracks import class_tracks

LIMITS, HOME = Limits(), ClassIdentity()
NAMED = {"recalibrator": "", "class_recalibrator": ""}
NAME = CLASS_CHAIN[0]


def clip_between(candidate: ClassRecalibrator, champion: ClassRecalibrator) -> Clip:
    return clip_of(candidate, champion, rows_of(class_tracks(0, 5)), 1.0)


# ---- scores and their bounds


def test_differences_are_means_over_each_track_of_the_log_of_the_true_class():
    def score(track: ClassTrack, temperature: float) -> float:
        found = []
        for opinions, label in zip(track.probabilities, track.label, strict=True):
            powers = [[p ** (1 / temperature) for p in opinion] for opinion in opinions.tolist()]
            found.append(np.mean([opinion[label] / sum(opinion) for opinion in powers]))
        return float(np.mean(np.log(found)))

    some = class_tracks(1, 4, 1.7, opinions=3, wrong=0.1)
    rows = rows_of(some)
    found, unsound = rows.differences(Temperature(2.5), Temperature(0.8), LIMITS)
    expected = [score(track, 2.5) - score(track, 0.8) for track in some]
    assert not unsound
    np.testing.assert_allclose(found, expected, rtol=1e-9)


simplex = st.integers(2, 6).flatmap(
    lambda classes: arrays(np.float64, (1, 3, classes), elements=st.floats(1e-12, 1))
)


@given(simplex, st.floats(1, 50), st.floats(0.1, 10))
def test_no_truth_takes_more_of_a_softening_step_than_its_bound(raw, t, champion):
    p = raw / raw.sum(axis=2, keepdims=True)
    classes = p.shape[2]
    bound = most_lost(t, classes)
    assert bound <= (1 - 1 / t) * math.log(classes) + 1e-9
    kind = ClassKind(tuple("abcdef"[:classes]), 3)
    for label in range(classes):
        rows = ClassTrackRows(kind, from_probabilities(p), np.array([label]), np.zeros(1, np.int64))
        (lost,), _ = rows.differences(Temperature(champion), Temperature(t * champion), LIMITS)
        assert lost <= bound + 1e-9


@given(st.integers(2, 50), st.floats(1.01, 20))
def test_the_bound_is_reached_where_the_other_classes_are_equal(classes, t):
    true = np.linspace(1e-6, 1 - 1e-6, 20_001)
    other = (1 - true) / (classes - 1)
    tempered = true ** (1 / t) / (true ** (1 / t) + (classes - 1) * other ** (1 / t))
    assert np.log(true / tempered).max() == pytest.approx(most_lost(t, classes), rel=1e-5)


def test_a_step_is_bounded_by_its_temperatures_and_without_them_by_nothing():
    most = math.log(5)
    softer, sharper = clip_between(Temperature(3.0), Temperature(1.5)), most_lost(2.0, 5)
    assert (softer.loss, softer.gain, softer.most) == (sharper, most, most)
    back = clip_between(Temperature(1.0), Temperature(2.0))
    assert (back.loss, back.gain) == (most, sharper)
    vector = clip_between(VectorScaling((1.0,) * 5, (0.0,) * 5), HOME)
    assert (vector.loss, vector.gain) == (most, most)
    assert all(clip.insured(0) for clip in (softer, back, vector))


@given(
    st.integers(2, 6).flatmap(
        lambda classes: arrays(np.float64, (2, 2, classes), elements=st.floats(1e-9, 1))
    ),
    st.floats(0.01, 1),
)
def test_beside_a_calibrated_champion_no_stake_gains_whatever_the_candidate(raw, share):
    """Of a row, and of two rows that have the same true class always: the most alike there are."""
    p, q = raw / raw.sum(axis=2, keepdims=True)
    clip, shares = Clip(1.6, 1.6, 1.6, tails=False), np.full(p.shape[1], share)
    one = np.log(q / p)
    said = clip.said(one[0], shares)
    assert np.all(p[0] @ clip.multiples(said, shares, clip.loss) <= 1 + 1e-12)
    # Rows with other probabilities, of which each is right by itself.
    calibrated = np.repeat(p[:1], 2, axis=0)
    both = np.log(q / calibrated).mean(axis=0)
    found = calibrated[0] @ clip.multiples(clip.said(both, shares), shares, clip.loss)
    assert np.all(found <= 1 + 1e-12)
    assert max(STAKES) <= 1 - LEFT


class Spoilt(ClassRecalibrator):
    """Doubles the temperature, and makes no probabilities of row 3."""

    method = "spoilt"

    def apply(self, log_probabilities):
        made = Temperature(2.0).apply(log_probabilities)
        made[3, :, 1] = np.nan
        return made


def test_a_candidate_that_spoils_a_row_is_not_sound_and_of_a_champion_that_row_counts_as_sent():
    rows = rows_of(class_tracks(2, 3))
    found, unsound = rows.differences(Spoilt(), HOME, LIMITS)
    assert unsound == f"made what are no probabilities, of 1 of {rows.n} detections"
    assert found.tolist() == [0.0] * 3
    found, unsound = rows.differences(HOME, Spoilt(), LIMITS)
    sent, label = np.exp(rows.log_probabilities), (np.arange(rows.n), rows.label)
    served = Temperature(2.0).apply(rows.log_probabilities).mean(axis=1)
    served[3] = sent.mean(axis=1)[3]
    gain = np.log(sent.mean(axis=1)[label] / served[label])
    np.testing.assert_allclose(found, rows.means(gain), rtol=1e-9)
    assert unsound == "" and np.all(found != 0)


@pytest.mark.parametrize(
    ("fitted", "champion", "candidate", "shrinks", "words"),
    [
        (2.0, 1.0, 2.0, False, "temperature: 2"),
        (0.5, 1.0, 0.5, True, "temperature: 0.5"),
        (1.24, 1.0, None, False, "the temperature 1.24 lies within 0.8 … 1.25; nothing to correct"),
        (0.9, 2.0, 1.0, True, "the temperature 0.9 lies within 0.8 … 1.25; back to what is sent"),
        (2.1, 2.0, None, False, "none changes by more than 1.1"),
        (1.5, 2.0, 1.5, True, "temperature: 1.5"),
    ],
)
def test_what_is_tried_of_a_temperature(fitted, champion, candidate, shrinks, words):
    rows = rows_of(class_tracks(3, 2))
    serving = HOME if champion == 1.0 else Temperature(champion)
    found = judge(Temperature(fitted), serving, rows, PolicySettings())
    expected = None if candidate is None else HOME if candidate == 1.0 else Temperature(candidate)
    assert (found.candidate, found.shrinks) == (expected, shrinks)
    assert words in found.reason
    assert [factor.typical for factor in found.factors] == [fitted]
