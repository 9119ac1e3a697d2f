"""Rejection: the threshold against a slow search, and whether its target is met on fresh rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta, chi2, t

from monitor.frames.space import FloatArray
from monitor.recalibration.recalibrator import UnfitData
from monitor.recalibration.rejection import (
    FEWEST,
    RejectedBy,
    Rejection,
    fit_rejection,
    normalised_entropy,
)
from tests.recalibration.rows import drawn

ENTROPY, DEVIATION = RejectedBy.ENTROPY, RejectedBy.DEVIATION


def classified(seed: Any, n: int) -> tuple[FloatArray, FloatArray]:
    """Entropy and top-1 errors of a calibrated classifier."""
    random = np.random.default_rng(seed)
    z = random.normal(0.0, 2.5, (n, 10))
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    return normalised_entropy(p), (p.argmax(axis=1) != drawn(z, random)).astype(np.float64)


def located(seed: Any, n: int) -> tuple[FloatArray, FloatArray]:
    """σ_G and squared errors in three dimensions of calibrated Gaussians."""
    random = np.random.default_rng(seed)
    deviation = np.exp(random.normal(0.0, 0.7, n))
    return deviation, np.square(deviation[:, None] * random.normal(size=(n, 3))).sum(axis=1)


def test_the_entropy_is_that_of_the_paper():
    """−1/log C Σ p log p, Laves et al. 2019, eq. 3."""
    p = np.random.default_rng(1).dirichlet(np.full(6, 0.3), 50)
    p[0], p[1] = np.eye(6)[2], np.full(6, 1 / 6)
    found = normalised_entropy(p)
    for row, value in zip(p, found, strict=True):
        expected = -sum(one * np.log(one) for one in row if one > 0) / np.log(6)
        assert value == pytest.approx(expected, abs=1e-14)
    assert found[0] == 0.0
    assert found[1] == pytest.approx(1.0, abs=1e-14)
    assert found.max() <= 1.0


def slow_upper(loss, weight, by):
    """Upper end of the one-sided 95 % interval of a mean: Clopper & Pearson, or Student."""
    n = weight * loss.size
    if by is ENTROPY:
        hits = weight * loss.sum()
        return 1.0 if hits >= n else beta.ppf(0.95, hits + 1, n - hits)
    if n < FEWEST:
        return np.inf
    return loss.mean() + t.ppf(0.95, n - 1) * loss.std() / np.sqrt(n)


def slow_weight(loss, track):
    """1/D, D = Σ_c (Σ_{i∈c} (x_i − m))² / Σ_i (x_i − m)², x the loss in units of its size."""
    size = np.median(loss) / chi2.median(1) or np.mean(loss) or 1.0
    off = np.minimum(loss / size, 64.0)
    off = off - off.mean()
    clusters = [off[track == c].sum() ** 2 for c in set(track.tolist())]
    alone = sum(x * x for x in off)
    return 1 / max(1.0, sum(clusters) / alone) if alone > 0 else 1.0


@given(st.integers(0, 10**6), st.sampled_from(list(RejectedBy)), st.booleans())
def test_it_is_the_largest_that_meets_the_target(seed, by, tracked):
    random = np.random.default_rng(seed)
    n = int(random.integers(1, 250))
    score = np.round(random.uniform(size=n), 1)
    loss = random.uniform(size=n) < 0.4 * score if by is ENTROPY else random.exponential(score)
    loss = loss.astype(np.float64)
    track = np.arange(n) // 4 if tracked else None
    weight = slow_weight(loss, track) if tracked else 1.0
    target = float(random.uniform(0.05, 0.5))
    bound = target if by is ENTROPY else target**2
    meeting = [at for at in np.unique(score) if slow_upper(loss[score <= at], weight, by) <= bound]
    if not meeting:
        with pytest.raises(UnfitData, match=r"no threshold on|independent rows"):
            fit_rejection(score, loss, target, by, track)
        return
    found = fit_rejection(score, loss, target, by, track)
    kept = score <= max(meeting)
    mean = loss[kept].mean()
    assert found.threshold == max(meeting)
    assert found.error == pytest.approx(mean if by is ENTROPY else np.sqrt(mean))
    assert found.rejected_share == pytest.approx(1 - kept.mean())
    assert found.rows == n
    assert (found.by, found.target_error) == (by, target)
    assert np.array_equal(found.rejects(score), ~kept)


@pytest.mark.campaign
def test_a_target_on_the_error_rate_is_met_on_fresh_rows():
    """At 95 % of one threshold; of the largest of many, in a fit of 20 or so it is missed."""
    score, loss = classified(5, 400_000)
    missed = []
    for seed in range(60):
        found = fit_rejection(*classified([6, seed], 8000), 0.05, ENTROPY)
        kept = ~found.rejects(score)
        missed.append(loss[kept].mean() > 0.05)
        assert loss[kept].mean() < 0.06
    assert np.mean(missed) <= 0.15


def test_only_what_is_above_the_threshold_is_rejected_and_what_has_no_score_is_not():
    found = Rejection(ENTROPY, 0.5, 0.1, 0.08, 0.3, 100)
    score = np.array([0.1, 0.5, np.nextafter(0.5, 1), np.nan, 1.0])
    assert found.rejects(score).tolist() == [False, False, True, False, True]


def test_a_target_out_of_reach_is_refused_with_what_is_reached():
    with pytest.raises(UnfitData) as refusal:
        fit_rejection(*classified(12, 1000), 0.0005, ENTROPY)
    message = str(refusal.value)
    assert message.startswith("no threshold on entropy keeps the error within 0.0005: the lowest")
    assert message.endswith("(at 95%). Allow more, or give more rows.")
    with pytest.raises(UnfitData, match=f"fewer than {FEWEST} independent rows"):
        fit_rejection(*located(13, FEWEST - 1), 10.0, DEVIATION)


@pytest.mark.parametrize(
    ("score", "loss", "target", "by", "named"),
    [
        ([], [], 0.1, ENTROPY, "on 0 rows"),
        ([np.nan], [0.0], 0.1, ENTROPY, "must be finite"),
        ([0.1], [0.0], 1.0, ENTROPY, "the target error is 1.0"),
        ([0.1], [0.0], 0.0, DEVIATION, "the target error is 0.0"),
    ],
)
def test_rows_and_targets_that_make_no_sense_are_refused(score, loss, target, by, named):
    with pytest.raises(UnfitData, match=named):
        fit_rejection(np.array(score), np.array(loss), target, by)
