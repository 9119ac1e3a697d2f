"""Rows a class recalibrator is fitted on: their order, worth and parts; and the loss."""

import numpy as np
import pytest

from monitor.recalibration.classes.probabilities import ClassRows, averaged_loss
from tests.recalibration.classes.class_sets import of_several_opinions

ROWS = of_several_opinions(1, 200, opinions=3)


def test_the_loss_is_that_of_loops_over_the_averaged_opinions():
    """−log 1/M Σ_m exp(s_my) / Σ_c exp(s_mc), Laves et al. 2019, eq. 25."""
    random = np.random.default_rng(2)
    scores = random.normal(0.0, 3.0, (4, 200 * 3))
    found, _ = averaged_loss(scores, ROWS.label)
    for i in range(200):
        p = 0.0
        for m in range(3):
            s = scores[:, 3 * i + m]
            p += np.exp(s[ROWS.label[i]]) / sum(np.exp(one) for one in s) / 3
        assert found[i] == pytest.approx(-np.log(p), rel=1e-12, abs=1e-14)


@pytest.mark.parametrize("opinions", [1, 3])
def test_its_derivatives_are_those_of_small_steps(opinions):
    random = np.random.default_rng(3)
    scores, label = random.normal(0.0, 2.0, (4, 5 * opinions)), random.integers(0, 4, 5)
    found = averaged_loss(scores, label)[1]
    for c in range(4):
        for j in range(5 * opinions):
            step = np.zeros_like(scores)
            step[c, j] = 1e-6
            up, down = (averaged_loss(scores + sign * step, label)[0].sum() for sign in (1, -1))
            assert found[c, j] == pytest.approx((up - down) / 2e-6, abs=1e-8)


def test_scores_of_any_size_have_a_finite_loss():
    scores = np.array([[0.0, 1e5, -1e5], [0.0, -1e5, 1e5]])
    loss, by_score = averaged_loss(scores, np.array([0, 0, 0]))
    assert np.isfinite(loss).all()
    assert np.isfinite(by_score).all()


def test_the_order_is_that_of_the_values_alone():
    random = np.random.default_rng(4)
    rows = ClassRows(ROWS.log_probabilities, ROWS.label, random.integers(-1, 20, 200))
    first = rows.ordered()
    second = rows.take(random.permutation(200)).ordered()
    assert first.track is not None
    assert second.track is not None
    assert np.array_equal(first.log_probabilities, second.log_probabilities)
    assert np.array_equal(first.label, second.label)
    assert np.array_equal(first.track, second.track)


def test_rows_of_a_track_are_in_one_part_and_parts_are_about_equal():
    track = np.repeat(np.arange(50), 4)
    track[:20] = -1
    fold = ClassRows(ROWS.log_probabilities, ROWS.label, track).fold(5)
    for one in range(5, 50):
        assert np.unique(fold[track == one]).size == 1
    assert np.bincount(fold, minlength=5).min() >= 20
    alone = ROWS.fold(5)
    assert np.array_equal(np.bincount(alone), np.full(5, 40))


def test_parts_do_not_share_the_class_frequencies_of_the_whole():
    """Stratified parts would: a bias that is chance then looks as if it were confirmed."""
    rows = of_several_opinions(5, 2000, opinions=1).ordered()
    fold = rows.fold(5)
    counts = [np.bincount(rows.label[fold == part], minlength=4) for part in range(5)]
    assert np.std(counts, axis=0).max() > 5


def test_alike_rows_of_one_object_are_worth_less():
    single = of_several_opinions(6, 300, opinions=1)
    five = np.repeat(np.arange(300), 5)
    tracked = ClassRows(single.log_probabilities[five], single.label[five], five)
    assert tracked.weight == pytest.approx(0.2, rel=0.02)
    assert single.weight == 1.0
    assert ClassRows(single.log_probabilities, single.label, np.full(300, -1)).weight == 1.0
