"""Inputs that say something are found, those that do not are left out, and tails are no signal."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.recalibration.processes.process_fit import choose_inputs, evidence_share
from monitor.recalibration.processes.sparse_process import Expected
from tests.recalibration.gp_sets import normal_likelihood, nothing_to_find, sizes
from tests.recalibration.rows import rows_from


def chosen(rows, dimension=0):
    likelihood = normal_likelihood(rows, dimension)
    weight = float(rows.size_weight[dimension])
    process = choose_inputs(likelihood, rows, weight)
    return [(str(f.kind), f.dimension) for f in process.inputs], process


@pytest.mark.parametrize("dimension", [0, 1, 2])
def test_the_one_input_that_matters_is_found_for_every_dimension(dimension):
    assert chosen(sizes(1, n=2000, k=3), dimension)[0] == [("log-mean", 0)]


def test_two_inputs_that_matter_are_both_found():
    random = np.random.default_rng(2)
    mean = random.normal(size=(3000, 4))
    sigma = np.exp(random.normal(0, 0.5, (3000, 4)))
    log_factor = 1.2 * np.tanh(2 * mean[:, 2:3]) + 1.5 * np.log(sigma[:, 1:2])
    error = sigma * np.exp(0.5 * log_factor) * random.normal(size=(3000, 4))
    found, process = chosen(rows_from(mean, sigma**2, error))
    assert sorted(found) == [("log-deviation", 1), ("mean", 2)]
    assert process.width == 2


@pytest.mark.parametrize("seed", range(3))
def test_where_nothing_matters_the_process_is_variance_scaling(seed):
    rows = sizes(seed, n=1000, k=3, factor=nothing_to_find)
    found, process = chosen(rows)
    assert found == []
    nees = np.mean((rows.error / rows.deviation)[:, 0] ** 2)
    assert process.constant == pytest.approx([np.log(nees)], rel=1e-9)


@pytest.mark.parametrize("tail", [1, 2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_outliers_are_not_taken_for_a_dependence(tail, seed):
    rows = sizes(seed, n=1000, k=2, factor=nothing_to_find, tail=tail)
    assert chosen(rows)[0] == []


def test_a_dependence_is_found_under_heavy_tails_too():
    assert chosen(sizes(3, n=4000, k=2, tail=4))[0] == [("log-mean", 0)]


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_a_few_rows_say_nothing_of_inputs(n):
    assert chosen(sizes(4, n=n, k=2))[0] == []


@pytest.mark.parametrize("unit", [1.0, 0.1, 0.01, 0.001])
def test_rows_of_tracks_are_worth_less_than_as_many_objects(unit):
    alone = sizes(5, n=150, k=1, factor=lambda mean: 0.5 * np.tanh(np.log(mean) - 4))
    copies = np.repeat(np.arange(150), 20)
    tracked = rows_from(
        alone.estimates.mean[copies],
        (unit * alone.deviation[copies]) ** 2,
        alone.error[copies],
        track=copies,
    )
    untracked = rows_from(
        alone.estimates.mean[copies], alone.deviation[copies] ** 2, alone.error[copies]
    )
    assert chosen(alone)[0] == chosen(tracked)[0] == []
    assert chosen(untracked)[0] != []


def test_the_evidence_of_gaussian_scores_counts_in_full():
    rows = sizes(6, n=20_000, k=1, factor=nothing_to_find)
    likelihood = normal_likelihood(rows)
    mean = np.repeat(likelihood.start[:, None], rows.n, axis=1)
    share = evidence_share(likelihood.expected(mean, np.zeros_like(mean)))
    assert share == pytest.approx(1.0, abs=0.05)


@settings(max_examples=20)
@given(st.integers(0, 2**32 - 1))
def test_the_share_of_the_evidence_is_two_over_the_kurtosis_less_one(seed):
    rows = sizes(seed, n=500, k=1, factor=nothing_to_find, tail=3)
    likelihood = normal_likelihood(rows)
    mean = np.repeat(likelihood.start[:, None], rows.n, axis=1)
    z = (rows.error / rows.deviation)[:, 0]
    kurtosis = np.mean(z**4) / np.mean(z**2) ** 2
    share = evidence_share(likelihood.expected(mean, np.zeros_like(mean)))
    assert share == pytest.approx(min(1.0, 2 / (kurtosis - 1)), rel=1e-9)


def test_scores_that_are_all_zero_count_in_full():
    nothing = np.zeros((2, 3))
    assert evidence_share(Expected(nothing[0], nothing, nothing)) == 1.0
