"""Errors without a covariance: measures by hand, intervals that cover, words that fit."""

from __future__ import annotations

import math

import numpy as np
import pytest

from monitor.statistics.residuals import errors_of

DIMENSIONS, UNITS = ("x", "yaw"), ("m", "rad")
ONES = np.ones(2)


def drive(seed, tracks=40, rows=15, *, sigma=(0.3, 0.1), correlation=0.5, bias=0.0, tail=None):
    """Errors that are alike along tracks, (n, 2), and their tracks."""
    random = np.random.default_rng(seed)
    root = np.linalg.cholesky(np.array([[1.0, correlation], [correlation, 1.0]]))
    own, shared = (random.normal(size=(n, 2)) @ root.T for n in (tracks * rows, tracks))
    track = np.repeat(np.arange(tracks), rows)
    error = np.sqrt(0.5) * (own + shared[track]) * sigma
    if tail is not None:
        error *= np.sqrt((tail - 2) / random.chisquare(tail, (tracks * rows, 1)))
    error[:, 0] += bias
    return error, track


def measured(error, track=None, assumed=ONES, group=""):
    return errors_of(DIMENSIONS, UNITS, error, assumed, track, group)


def test_measures_are_those_of_the_formulas():
    error = np.array([[1.0, 0.5], [-1.0, 0.5], [3.0, -0.5], [1.0, -0.5]] * 5)
    found = measured(error)
    x, yaw = found.dimensions
    assert (x.bias, x.rmse, yaw.bias) == pytest.approx((1.0, math.sqrt(3), 0.0))
    assert x.beyond == (0.0, 0.0)
    assert x.quantile == pytest.approx(math.sqrt(3))
    assert x.kurtosis == pytest.approx((1 + 1 + 81 + 1) / 4 / 9)
    assert found.covariance == pytest.approx(error.T @ error / 20)
    assert found.correlation[0, 1] == pytest.approx(-0.5 / (math.sqrt(3) * 0.5))
    assert (found.rows, found.tracks) == (20, None)


def test_intervals_cover_what_they_promise():
    """Of 200 drives with tracks that are alike, 95 % intervals hold the truth in about 95 %."""
    held = np.zeros(3)
    for seed in range(200):
        error, track = drive(seed, bias=0.05)
        x, found = (one := measured(error, track)).dimensions[0], one.correlation_interval[0, 1]
        truth = math.hypot(0.3, 0.05), 0.05, 0.5 * 0.3 / math.hypot(0.3, 0.05)
        ends = x.rmse_interval, x.bias_interval, tuple(found)
        held += [low <= value <= high for (low, high), value in zip(ends, truth, strict=True)]
    assert (held >= 0.91 * 200).all()


@pytest.mark.parametrize(
    ("assumed", "words"),
    [
        (1.0, "A tracker that assumes 1 m is 3.33 times too wide."),
        (0.1, "A tracker that assumes 0.1 m is 3.00 times too narrow."),
        (0.3, "A tracker that assumes 0.3 m is about right."),
        (0.4, "A tracker that assumes 0.4 m may be about right."),
    ],
)
def test_the_sentence_says_how_the_assumed_deviation_compares(assumed, words):
    error, track = drive(1)
    (sentence, _) = measured(error, track, np.array([assumed, 1.0]), "Car").sentences
    assert sentence.startswith("Car, x: 0.3")
    assert sentence.endswith(words)
    assert " m RMSE (0.2" in sentence
    assert "heavy tails" not in sentence


def test_heavy_tails_and_sure_correlations_are_told():
    error, track = drive(2, tracks=80, tail=3)
    found = measured(error, track)
    assert "heavy tails (1 % beyond 3." in found.sentences[0]
    assert found.correlated.startswith("x·yaw +0.")
    plain, track = drive(2, correlation=0.0)
    assert measured(plain, track).correlated == ""


def test_few_tracks_tell_no_interval_and_zero_errors_are_suspicious():
    error, track = drive(3, tracks=9)
    found = measured(error, track)
    assert math.isnan(found.dimensions[0].rmse_interval[0])
    assert "10 tracks are needed" in found.sentences[0]
    assert found.as_json()["correlation_interval"] == [[[None, None]] * 2] * 2
    assert "all errors are 0" in measured(np.zeros((30, 2))).sentences[0]


def test_a_row_without_a_track_is_one_of_its_own():
    error, track = drive(4)
    found = measured(error, np.where(track < 20, -1, track))
    assert found.tracks == 20 * 15 + 20
    assert measured(error, np.full(track.size, -1)).tracks is None
