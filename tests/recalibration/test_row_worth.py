"""What rows are worth: against the definition, in any unit, with outliers, and dimension by
dimension."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from monitor.recalibration.fit_rows import effect_on_mean, effect_on_mean_square
from tests.recalibration.simulated_rows import rows_of

quick = settings(max_examples=30)
seeds = st.integers(0, 2**32 - 1)
TRACK = np.repeat(np.arange(60), 10)


def alike(seed, share):
    """Gaussian errors of 60 tracks; `share` is the correlation within one."""
    random = np.random.default_rng(seed)
    common, own = random.normal(size=60)[TRACK], random.normal(size=600)
    return np.sqrt(share) * common + np.sqrt(1 - share) * own


def slow_effect(x, track):
    """D = max(1, Σ_c (Σ_{i∈c} (x_i − m))² / Σ_i (x_i − m)²), Kish 1965."""
    off = x - x.mean()
    together = sum(off[track == c].sum() ** 2 for c in set(track.tolist()))
    return max(1.0, together / sum(value * value for value in off))


@quick
@given(seeds, st.floats(0.0, 0.9), st.floats(-4.0, 4.0))
def test_the_effects_are_those_of_the_definition_in_any_unit(seed, share, unit):
    z = alike(seed, share)
    size = np.median(z * z) / chi2.median(1)
    expected = slow_effect(np.minimum(z * z / size, 64.0), TRACK)
    signed = slow_effect(np.clip(z / np.sqrt(size), -8.0, 8.0), TRACK)
    scaled = 10.0**unit * z[:, None]
    assert effect_on_mean_square(scaled**2, TRACK) == pytest.approx([expected], rel=1e-9)
    assert effect_on_mean(scaled, TRACK) == pytest.approx([signed], rel=1e-9)


@pytest.mark.parametrize("unit", [1.0, 0.1, 0.01, 0.001])
def test_the_unit_of_sigma_changes_nothing_of_the_weights(unit):
    z = np.stack([alike(1, 0.6), alike(2, 0.0)], axis=1)
    expected, found = (rows_of(np.full(z.shape, u), z, TRACK) for u in (1.0, unit))
    assert found.size_weight == pytest.approx(expected.size_weight, rel=1e-9)
    assert found.location_weight == pytest.approx(expected.location_weight, rel=1e-9)
    assert found.weight == pytest.approx(expected.weight, rel=1e-9)


def test_each_dimension_has_a_weight_of_its_own():
    z = np.stack([alike(3, 0.8), alike(4, 0.0)], axis=1)
    rows = rows_of(np.ones(z.shape), z, TRACK)
    assert rows.size_weight[0] < 0.4 < 0.7 < rows.size_weight[1]
    assert rows.weight == rows.size_weight[0]
    for i in range(2):
        alone = rows_of(np.ones(600), z[:, i], TRACK)
        assert rows.size_weight[i] == pytest.approx(alone.weight, rel=1e-12)


def test_where_location_is_fitted_rows_of_an_object_are_worth_less():
    rows = rows_of(np.ones(600), alike(5, 0.3), TRACK)
    assert rows.location_weight[0] < 0.7 * rows.size_weight[0]


def test_an_outlier_does_not_hide_how_alike_the_others_are():
    z = alike(6, 0.7)
    spoilt = z.copy()
    spoilt[17] = 1e200
    found = rows_of(np.ones(600), spoilt, TRACK)
    assert found.weight < 0.6
    assert found.location_weight[0] < 0.4


@pytest.mark.parametrize("share", [0.6, 1.0])
def test_errors_of_which_most_are_nothing_have_a_worth(share):
    z = np.where(np.arange(600) % 5 < 5 * share, 0.0, alike(7, 0.5))
    rows = rows_of(np.ones(600), z, TRACK)
    assert 0 < rows.weight <= 1
    assert 0 < rows.location_weight[0] <= 1


def test_rows_without_tracks_are_worth_one_each():
    rows = rows_of(np.ones((600, 2)), np.stack([alike(8, 0.5)] * 2, axis=1))
    assert rows.size_weight.tolist() == rows.location_weight.tolist() == [1.0, 1.0]
    assert rows.take(np.arange(0)).weight == 1.0
