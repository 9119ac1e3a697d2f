"""Laws of the methods that are fitted to rows dimension by dimension: histogram-binning,
isotonic-std, isotonic-quantiles."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.recalibration import binned, quantiles
from monitor.recalibration.binned import HistogramBinning, IsotonicStd
from monitor.recalibration.quantiles import IsotonicQuantiles
from monitor.recalibration.recalibrator import Output, UnfitData
from tests import laws
from tests.recalibration.rows import as_read, nll, wild_estimates
from tests.recalibration.simulated_rows import rows_of, splits, wrong_by_size

FITS = {
    "histogram": binned.fit_histogram_binning,
    "isotonic": binned.fit_isotonic_std,
    "quantiles": quantiles.fit_isotonic_quantiles,
}
every_fit = pytest.mark.parametrize("fit", FITS.values(), ids=FITS)
quick = settings(max_examples=15)
seeds = st.integers(0, 2**32 - 1)
TYPES = {one.method: one for one in (HistogramBinning, IsotonicStd, IsotonicQuantiles)}


@every_fit
@quick
@given(seeds, st.integers(-8, 9), st.integers(-8, 9))
def test_laws_hold_whatever_the_units_of_the_rows(fit, seed, unit, error_unit):
    rows = wrong_by_size(seed, 400, 2)
    model = fit(rows_of(rows.deviation * 10.0**unit, rows.error * 10.0**error_unit))
    sent = wild_estimates(seed, 40, 2)
    laws.recalibrated_covariances_are_positive_definite(model, sent)
    laws.each_detection_is_recalibrated_by_itself(model, sent)
    assert as_read(type(model), json.loads(json.dumps(model.parameters()))) == model


@every_fit
def test_correlations_stay_as_they_were_sent(fit):
    model = fit(wrong_by_size(3, 2000, 3))
    sent = wild_estimates(4, 20, 3)
    made = model.apply(sent)

    def correlation(estimates):
        size = estimates.deviation
        return estimates.covariance / (size[:, :, None] * size[:, None, :])

    assert correlation(made) == pytest.approx(correlation(sent), rel=1e-12)
    assert (made.deviation != sent.deviation).any()


@every_fit
def test_each_dimension_is_fitted_by_itself(fit):
    rows = wrong_by_size(5, 900, 3)
    whole = fit(rows).parameters()
    for i in range(3):
        alone = fit(rows_of(rows.deviation[:, i], rows.error[:, i])).parameters()
        for name, value in alone.items():
            assert whole[name][i] == value[0]


@every_fit
@pytest.mark.parametrize("n", [1, 7, 49])
def test_few_rows_make_variance_scaling(fit, n):
    rows = wrong_by_size(6, n, 2)
    made = fit(rows).apply(rows.estimates).deviation
    scale = np.sqrt(np.mean((rows.error / rows.deviation) ** 2, axis=0))
    assert made == pytest.approx(rows.deviation * scale)


@every_fit
def test_a_constant_sigma_gets_the_root_mean_square_of_its_errors(fit):
    error = np.random.default_rng(7).normal(size=3000)
    rows = rows_of(np.full(3000, 0.2), error)
    made = fit(rows).apply(rows.estimates).deviation
    assert made == pytest.approx(np.full((3000, 1), np.sqrt(np.mean(error**2))), rel=0.02)


@every_fit
def test_each_dimension_is_fitted_by_itself_however_alike_the_errors_of_others_are(fit):
    rows = wrong_by_size(5, 900, 3)
    track = np.arange(900) // 30
    error = rows.error.copy()
    # Of the other dimensions all rows of a track have one error in σ.
    error[:, 1:] = (error / rows.deviation)[30 * track, 1:] * rows.deviation[:, 1:]
    whole = fit(rows_of(rows.deviation, error, track)).parameters()
    for i in range(3):
        alone = fit(rows_of(rows.deviation[:, i], error[:, i], track)).parameters()
        for name, value in alone.items():
            assert whole[name][i] == pytest.approx(value[0], rel=1e-9)


@every_fit
@pytest.mark.parametrize("unit", [1.0, 0.1, 0.01, 0.001])
def test_rows_of_a_track_that_repeat_each_other_add_nothing(fit, unit):
    rows = wrong_by_size(8, 300, 2)
    rows = rows_of(unit * rows.deviation, rows.error)
    twice = np.repeat(np.arange(300), 20)
    repeated = rows_of(rows.deviation[twice], rows.error[twice], twice)
    alone, made = (sum(map(len, _first(fit(r)))) for r in (rows, repeated))
    independent = sum(map(len, _first(fit(rows_of(rows.deviation[twice], rows.error[twice])))))
    assert made <= alone < independent


def _first(model):
    """The lists of numbers that grow as the rows tell more."""
    return next(iter(model.parameters().values()))


@every_fit
def test_nothing_can_be_fitted_on_no_rows(fit):
    with pytest.raises(UnfitData, match="cannot fit on 0 detections with ground truth: widen"):
        fit(wrong_by_size(1, 0, 2))


@every_fit
def test_a_dimension_without_errors_is_named(fit):
    rows = wrong_by_size(1, 300, 3)
    rows.error[:, 1] = 0.0
    with pytest.raises(UnfitData, match=r"dimension 'd1' has no error in 300 rows.*Leave the dim"):
        fit(rows)


@every_fit
def test_a_type_says_what_it_makes_of_a_detection(fit):
    model = fit(wrong_by_size(1, 100, 2))
    moments = isinstance(model, IsotonicQuantiles)
    assert model.output is (Output.MOMENTS if moments else Output.GAUSSIAN)
    assert TYPES[model.method] is type(model)
    assert model.keeps_definite
    assert model.k == 2


# ---- of σ alone

of_deviation = pytest.mark.parametrize(
    "fit", [binned.fit_histogram_binning, binned.fit_isotonic_std]
)


def loss_of_scaling(fitted, evaluated):
    scale = np.sqrt(np.mean((fitted.error / fitted.deviation) ** 2, axis=0))
    return nll(evaluated.deviation * scale, evaluated.error)


@of_deviation
def test_levi_overconfident_is_recalibrated_as_well_as_by_scaling(fit):
    loss = []
    for fitted, evaluated in splits("levi_overconfident", 25_000):
        made = fit(fitted).apply(evaluated.estimates).deviation
        loss.append(nll(made, evaluated.error) - loss_of_scaling(fitted, evaluated))
    assert loss[0] < 0.001
    assert np.mean(loss[1:]) < 0.001
    assert max(loss) < 0.002


@of_deviation
def test_an_error_that_is_not_in_proportion_to_sigma_is_found(fit):
    fitted, evaluated = wrong_by_size(3, 4000), wrong_by_size(4, 4000)
    made = fit(fitted).apply(evaluated.estimates).deviation
    best = nll(np.sqrt(evaluated.deviation), evaluated.error)
    assert nll(made, evaluated.error) < best + 0.01
    assert loss_of_scaling(fitted, evaluated) > best + 0.1
