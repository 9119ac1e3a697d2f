"""Processes served together are those served one by one; their range and their documents."""

import json
from dataclasses import replace

import numpy as np
import pytest

from monitor.frames.detections import Estimates
from monitor.recalibration.processes.inputs import candidate_inputs
from monitor.recalibration.processes.sparse_process import (
    LARGEST,
    LatentStack,
    SparseProcess,
    stack_of,
)
from monitor.store.codec import InvalidDocument
from tests.recalibration.gp_sets import sizes
from tests.recalibration.processes.processes import random_process
from tests.recalibration.rows import as_read, wild_estimates

ROWS = sizes(1, n=300, k=3)
CANDIDATES = candidate_inputs(ROWS).features


def looking(process, *places):
    return replace(process, inputs=tuple(CANDIDATES[i] for i in places))


CONSTANT = SparseProcess((0.3, -0.2))
MIXED = (
    looking(random_process(1, outputs=1), 0, 3),
    CONSTANT,
    looking(random_process(2, outputs=3, size=7, width=1), 3),
    looking(random_process(3, outputs=2, size=3), 5, 0),
)
STACKS = {"mixed": MIXED, "constant": (CONSTANT,), "one": MIXED[:1]}


def stack(name):
    return stack_of(STACKS[name], ROWS.estimates, 0.5)


@pytest.mark.parametrize("name", STACKS)
def test_together_they_say_what_each_says_alone(name):
    mean, variance = stack(name).at(ROWS.estimates)
    parts = [process.of(ROWS.estimates) for process in STACKS[name]]
    assert mean == pytest.approx(np.concatenate([part[0] for part in parts]), abs=1e-9)
    assert variance == pytest.approx(np.concatenate([part[1] for part in parts]), abs=1e-9)


@pytest.mark.parametrize("n", [0, 1, 31, 32, 100])
def test_an_estimate_has_the_same_bits_alone_and_among_others(n):
    served, estimates = stack("mixed"), wild_estimates(n, n, 3)
    whole = served.log_expectations(estimates)
    assert whole.shape == (8, n)
    for i in range(n):
        one = slice(i, i + 1)
        alone = Estimates(estimates.mean[one], estimates.covariance[one], estimates.diagonal[one])
        assert np.array_equal(served.log_expectations(alone)[:, 0], whole[:, i])


def test_what_is_served_is_the_mean_or_the_log_of_the_expectation_within_the_range():
    served, estimates = stack("mixed"), wild_estimates(3, 50, 3)
    low, high = np.array(served.low)[:, None], np.array(served.high)[:, None]
    mean, variance = served.at(estimates)
    assert np.array_equal(served.means(estimates), np.clip(mean, low, high))
    expected = np.clip(mean + 0.5 * variance, low, high)
    assert served.log_expectations(estimates) == pytest.approx(expected, abs=1e-12)


def test_the_range_is_that_of_the_fit_and_a_margin():
    mean, variance = stack("mixed").at(ROWS.estimates)
    for expectations, served in ((False, mean), (True, mean + 0.5 * variance)):
        found = stack_of(MIXED, ROWS.estimates, 0.5, expectations=expectations)
        assert found.low == pytest.approx(served.min(axis=1) - 0.5)
        assert found.high == pytest.approx(served.max(axis=1) + 0.5)


def test_a_range_beyond_every_unit_is_cut():
    far = SparseProcess((400.0, -400.0))
    served = stack_of([far], ROWS.estimates, 0.5)
    assert served.low == (LARGEST, -LARGEST)
    assert served.high == (LARGEST, -LARGEST)


@pytest.mark.parametrize("name", STACKS)
def test_a_round_trip_through_json_loses_nothing(name):
    served = stack(name)
    again = as_read(LatentStack, json.loads(json.dumps(served.parameters())))
    assert again == served
    assert np.array_equal(again.at(ROWS.estimates), served.at(ROWS.estimates))


def process_with(**changes):
    return {**MIXED[0].parameters(), **changes}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"processes": []}, "'parameters.processes' "),
        ({"processes": None}, "'parameters.processes' "),
        ({"processes": [3]}, r"'parameters.processes\[0\]' is 3"),
        (
            {"processes": [process_with(constant="x")]},
            r"'parameters.processes\[0\].constant' is 'x'",
        ),
        (
            {"processes": [process_with(inputs=[])]},
            r"'processes\[0\]' has 0 features in 'inputs' and points of 2",
        ),
        (
            {"processes": [process_with(inputs=2 * [CANDIDATES[0].parameters()])]},
            "'inputs' hold a feature twice",
        ),
        ({"processes": [process_with(inputs=None)]}, r"'parameters.processes\[0\].inputs' is None"),
        ({"low": [0.0]}, "'low' has 1 entries: with 'processes' it must have 8"),
        ({"high": [0.0] * 9}, "'high' has 9 entries: with 'processes' it must have 8"),
        ({"high": None}, "'parameters.high' is None"),
        ({"low": [9.0] * 8, "high": [0.0] * 8}, "'low' 9.0 and 'high' 0.0: they must be in order"),
        ({"high": [101.0] * 8}, r"'parameters.high\[0\]' is 101.0"),
        ({"low": [-101.0] * 8}, r"'parameters.low\[0\]' is -101.0"),
    ],
)
def test_a_document_that_is_no_stack_is_refused(changes, message):
    parameters = {**stack("mixed").parameters(), **changes}
    with pytest.raises(InvalidDocument, match=message):
        as_read(LatentStack, parameters)
