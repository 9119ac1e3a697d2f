"""NEES through what is usual of a slice, against quantiles drawn at random and laws."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2, kstest

from monitor.drift.reference import (
    KNOTS,
    Origin,
    Reference,
    chi_square_knots,
    knot_levels,
    reference_map,
    shipped,
)
from tests.calibration.drift.drives import mapped

quick = settings(max_examples=60)
seeds = st.integers(0, 2**32 - 1)
anything = st.lists(st.floats(0, 1e300), min_size=1, max_size=40)


def of_law(k: int, quantiles, detections=10**6, tempering=1.0) -> Reference:
    return Reference(
        k=k,
        origin=Origin.FILE,
        quantiles=np.asarray(quantiles, float),
        detections=detections,
        nees_ratio=1.0,
        tempering=tempering,
        frame_tempering=1.0,
        levels=None,
    )


def random_reference(seed: int) -> Reference:
    random = np.random.default_rng(seed)
    ln = np.cumsum(random.exponential(random.uniform(0.01, 0.5), KNOTS)) - 8
    return of_law(
        int(random.integers(1, 8)),
        np.exp(ln),
        int(random.integers(1, 10**6)),
        random.uniform(0.02, 1),
    )


@quick
@given(seeds, anything)
def test_what_is_larger_is_mapped_to_what_is_no_smaller(seed, nees):
    found = mapped(random_reference(seed), np.sort(nees))
    assert (found > 0).all()
    assert np.isfinite(found).all()
    assert (np.diff(found) >= 0).all()


@quick
@given(seeds, st.integers(1, 9), anything)
def test_rows_of_many_slices_at_once_are_mapped_as_those_of_one(seed, slices, nees):
    random = np.random.default_rng(seed)
    references = [random_reference(seed + i) for i in range(slices)]
    references[random.integers(slices)] = shipped(3)
    rows, of = np.array(nees), random.integers(0, slices, len(nees))
    together = reference_map(references).mapped(rows, of)
    for e, slice, value in zip(rows, of, together, strict=True):
        alone = mapped(references[slice], np.array([e]))
        np.testing.assert_allclose(value, alone[0], rtol=1e-10)


@pytest.mark.parametrize("k", range(1, 8))
def test_a_factor_on_the_law_of_the_reference_is_a_factor_on_chi_square(k):
    reference = of_law(k, 3.7 * chi_square_knots(k))
    e = np.random.default_rng(k).chisquare(k, 1000)
    np.testing.assert_allclose(mapped(reference, 3.7 * e), e, rtol=1e-9)
    np.testing.assert_allclose(mapped(reference, 7.4 * e[e < 10]), 2 * e[e < 10], rtol=1e-9)


def test_knots_lie_where_their_levels_say():
    np.testing.assert_allclose(chi_square_knots(4), chi2.ppf(knot_levels(), 4))


@pytest.mark.parametrize(("k", "detections", "tempering"), [(1, 50, 1.0), (4, 2000, 0.25)])
def test_nothing_is_mapped_beyond_what_so_many_independent_rows_can_know(k, detections, tempering):
    reference = of_law(k, chi_square_knots(k), detections, tempering)
    worth = detections * tempering
    lowest, highest = mapped(reference, np.array([0.0, 1e300]))
    assert lowest == pytest.approx(chi2.ppf(1 / (2 * worth), k))
    assert highest == pytest.approx(chi2.isf(1 / (2 * worth), k))


def test_where_no_quantiles_are_known_nees_stay_what_they_are():
    e = np.array([1e-6, 0.3, 5.0, 1e4])
    np.testing.assert_allclose(mapped(shipped(3), e), e, rtol=1e-12)


def test_no_slices_have_an_empty_map():
    none = np.zeros(0)
    assert reference_map(()).mapped(none, none.astype(np.int64)).size == 0


@pytest.mark.parametrize("k", [1, 3, 4])
def test_rows_of_any_law_are_chi_square_through_its_quantiles(k):
    random = np.random.default_rng(5)
    law = np.quantile(random.pareto(3, 10**6) + 0.1, knot_levels())
    found = mapped(of_law(k, law), random.pareto(3, 20_000) + 0.1)
    assert kstest(found, chi2(k).cdf).pvalue > 1e-3
