"""What looks healthy is left alone by a fit too."""

import numpy as np
import pytest

from monitor.promotion.fits import FitJob, fit_slices
from monitor.promotion.records import FitSettings
from monitor.promotion.reservoir import looks_healthy
from monitor.recalibration.scaling import Objective
from tests.promotion.fit_jobs import rows_of

BAND = (0.5, 2.0)


@pytest.mark.parametrize("method", ["variance-scaling", "covariance-scaling"])
@pytest.mark.parametrize("seed", range(20))
def test_a_fit_of_what_looks_healthy_lies_within_the_band(method, seed):
    factor = float(np.random.default_rng(seed).uniform(0.5, 1.6))
    rows, settings = rows_of(seed, tracks=15, factor=factor), FitSettings(method)
    fitted = fit_slices(FitJob(settings, {"car": rows})).fitted["car"]
    squared = np.square(fitted.parameters()["scale"])
    if looks_healthy(rows, settings, BAND):
        assert ((squared >= BAND[0]) & (squared <= BAND[1])).all()


def test_it_tells_a_fault_from_health():
    settings = FitSettings("variance-scaling")
    assert looks_healthy(rows_of(1, tracks=100, factor=1.1), settings, BAND)
    assert not looks_healthy(rows_of(1, tracks=100, factor=2.0), settings, BAND)
    assert not looks_healthy(rows_of(1, tracks=100, factor=0.5), settings, BAND)


def test_of_methods_whose_factors_are_not_the_mean_nothing_is_sure():
    rows = rows_of(1, tracks=100, factor=1.0)
    assert not looks_healthy(rows, FitSettings("gp-normal"), BAND)
    assert not looks_healthy(rows, FitSettings("adaptive-scaling"), BAND)
    quantile = FitSettings("variance-scaling", Objective.QUANTILE)
    assert not looks_healthy(rows, quantile, BAND)
