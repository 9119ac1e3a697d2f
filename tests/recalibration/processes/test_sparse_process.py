"""Served processes against textbook formulas; their documents, and those that are refused."""

import json

import numpy as np
import pytest

from monitor.recalibration.processes.sparse_process import SparseProcess
from monitor.store.codec import InvalidDocument
from tests.recalibration.processes.processes import random_points, random_process, textbook_at
from tests.recalibration.rows import as_read


def drawn(seed=1):
    return random_process(seed, outputs=3)


@pytest.mark.parametrize("seed", range(3))
def test_means_and_variances_are_those_of_the_textbook(seed):
    process = drawn(10 * seed)
    points = random_points(seed, 40)
    for found, expected in zip(process.at(points), textbook_at(process, points), strict=True):
        assert found == pytest.approx(expected, rel=1e-7, abs=1e-8)


@pytest.mark.parametrize("n", [1, 31, 32, 33, 100])
def test_a_point_has_the_same_bits_alone_and_among_others(n):
    process = drawn()
    points = random_points(2, n)
    mean, variance = process.at(points)
    assert mean.shape == variance.shape == (3, n)
    for i in range(n):
        alone = process.at(points[i : i + 1])
        assert np.array_equal(alone[0][:, 0], mean[:, i])
        assert np.array_equal(alone[1][:, 0], variance[:, i])


def test_at_no_point_there_is_nothing():
    mean, variance = drawn().at(np.zeros((0, 2)))
    assert mean.shape == variance.shape == (3, 0)


def test_far_from_all_inducing_points_it_is_the_prior():
    process = drawn()
    mean, variance = process.at(np.full((1, 2), 1e4))
    assert mean[:, 0] == pytest.approx(process.constant)
    assert variance[:, 0] == pytest.approx(np.diagonal(process.mixing) ** 2)


def test_a_process_without_latents_is_constant_whatever_the_points():
    process = SparseProcess((0.5, -1.0))
    mean, variance = process.at(np.zeros((4, 0)))
    assert np.array_equal(mean, [[0.5] * 4, [-1.0] * 4])
    assert not variance.any()
    assert as_read(SparseProcess, json.loads(json.dumps(process.parameters()))) == process


def test_a_round_trip_through_json_loses_nothing():
    process = drawn()
    again = as_read(SparseProcess, json.loads(json.dumps(process.parameters())))
    assert again == process
    points = random_points(3, 20)
    assert np.array_equal(again.at(points), process.at(points))


def changed(name, value):
    return {**drawn().parameters(), name: value}


ROWS = [[0.1] * 5] * 3
TRIANGLE = [[0.5] * (i + 1) for i in range(5)]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("form", "linear"),
        ("form", "paper"),
        ("form", None),
        ("constant", []),
        ("constant", [1.0, 2.0]),
        ("constant", [1.0, 2.0, "3"]),
        ("constant", [1.0, 2.0, float("nan")]),
        ("constant", [1.0, 2.0, 1e4]),
        ("constant", None),
        ("inducing", []),
        ("inducing", [[0.0, 1.0]] * 4),
        ("inducing", [[0.0, 1.0]] * 4 + [[0.0]]),
        ("inducing", [[0.0, 1.0]] * 4 + [[0.0, 1e9]]),
        ("inducing", [0.0] * 5),
        ("inducing", [[0.0, True]] * 5),
        ("scale", [[1.0, 1.0]] * 2),
        ("scale", [[1.0]] * 3),
        ("scale", [[1.0, 0.0]] * 3),
        ("scale", [[1.0, -1.0]] * 3),
        ("scale", [[1.0, 1e6]] * 3),
        ("mixing", [[1.0, 0.0, 0.0]] * 2),
        ("mixing", [[1.0, 0.0]] * 3),
        ("mixing", [[1.0, 0.0, 1e9]] * 3),
        ("mixing", [[1.0, 0.0, 0.0], [0.5, 1.0, 0.0], [0.0, 0.0, 1.0]]),
        ("location", [[0.1] * 4] * 3),
        ("location", []),
        ("location", [*ROWS[:2], [float("inf")] * 5]),
        ("location", [*ROWS[:2], [1e9] * 5]),
        ("spread", [TRIANGLE] * 2),
        ("spread", [TRIANGLE, TRIANGLE, TRIANGLE[:4]]),
        ("spread", [TRIANGLE, TRIANGLE, [*TRIANGLE[:4], [0.5, 0.5, 0.5, 0.5, 0.0]]]),
        ("spread", [TRIANGLE, TRIANGLE, [*TRIANGLE[:4], [1e9, 0.5, 0.5, 0.5, 0.5]]]),
        ("spread", [TRIANGLE, TRIANGLE, 3]),
        ("spread", None),
    ],
)
def test_a_document_that_is_no_process_is_refused_by_name(name, value):
    with pytest.raises(InvalidDocument, match=rf"\b{name}\b"):
        as_read(SparseProcess, changed(name, value))
