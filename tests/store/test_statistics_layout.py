"""The order and the units of the sums on the wire, against formulas written with plain loops: who
reads a state with statistics_state.proto in hand finds what it says."""

from __future__ import annotations

import math

import numpy as np
import pytest

from monitor.frames.space import Dimension, DimensionKind, Space
from monitor.statistics.bins import Binning, LogBins
from monitor.statistics.class_statistics import observe_classes
from monitor.statistics.state import (
    ClassSliceState,
    SliceState,
    Stages,
    StatisticsState,
    observe,
)
from monitor.store.statistics_state import StoredState
from monitor.v1 import statistics_state_pb2 as pb
from tests.states import WINDOWS, joined
from tests.statistics import oracle

BINNING = Binning(LogBins(2.0**-4, 4, 8), LogBins(2.0**-6, 4, 12), (0.5, 0.9))
QUANTILES = (0.0, 1.2815515655446004)  # of the standard normal distribution
# The angle lies between the lengths, and takes no part in joint measures.
SPACE = Space(
    (Dimension("x", "m"), Dimension("yaw", "rad", DimensionKind.ANGLE), Dimension("y", "m"))
)
ERRORS = ((0.5, 0.125, -1.0), (2.0, -0.0625, 0.75))
COVARIANCES = (
    ((4.0, 0.5, 1.0), (0.5, 0.25, 0.125), (1.0, 0.125, 1.0)),
    ((1.0, 0.0625, -0.25), (0.0625, 0.0625, 0.0), (-0.25, 0.0, 0.5)),
)


def sent(state: StatisticsState) -> pb.StatisticsState:
    return pb.StatisticsState.FromString(joined(StoredState(state)))


def values(sums: pb.ExactSums, exponent: int) -> list[float]:
    pairs = zip(sums.low, sums.high, strict=True)
    return [(low + high * 2**40) * 2.0**exponent for low, high in pairs]


def cholesky(matrix: list[list[float]]) -> list[list[float]]:
    size = len(matrix)
    lower = [[0.0] * size for _ in range(size)]
    for i in range(size):
        for j in range(i + 1):
            rest = matrix[i][j] - sum(lower[i][m] * lower[j][m] for m in range(j))
            lower[i][j] = math.sqrt(rest) if i == j else rest / lower[j][j]
    return lower


def whitened(error: list[float], lower: list[list[float]]) -> list[float]:
    found: list[float] = []
    for i, row in enumerate(lower):
        rest = error[i] - sum(row[m] * found[m] for m in range(i))
        found.append(rest / row[i])
    return found


def documented() -> list[float]:
    """The sums over both detections, in the order of the proto."""
    k = 3
    sigma, error = ([[0.0] * 3 for _ in range(k)] for _ in range(2))
    log_sigma, log_determinant = [0.0] * k, 0.0
    normalised, white = ([[0.0] * k for _ in range(k)] for _ in range(2))
    x = []
    for r, covariance in zip(ERRORS, COVARIANCES, strict=True):
        s = [math.sqrt(covariance[i][i]) for i in range(k)]
        z = [r[i] / s[i] for i in range(k)]
        lengths_first = (0, 2, 1)
        lower = cholesky([[covariance[i][j] for j in lengths_first] for i in lengths_first])
        u = whitened([r[i] for i in lengths_first], lower)
        log_determinant += 2 * (math.log(lower[0][0]) + math.log(lower[1][1]))
        for i in range(k):
            rank = sum(quantile < z[i] for quantile in QUANTILES)
            sigma[i][rank] += s[i]
            error[i][rank] += r[i]
            log_sigma[i] += math.log(s[i])
            for j in range(k):
                normalised[i][j] += z[i] * z[j]
                white[i][j] += u[i] * u[j]
        per_degree = [*(z[i] ** 2 for i in range(k)), (u[0] ** 2 + u[1] ** 2) / 2]
        x.append([min(one, 64.0) for one in per_degree])
    triangle = [(i, j) for i in range(k) for j in range(i + 1)]
    return [
        *(sigma[i][rank] for i in range(k) for rank in range(3)),
        *(error[i][rank] for i in range(k) for rank in range(3)),
        *log_sigma,
        log_determinant,
        *(normalised[i][j] for i, j in triangle),
        *(white[i][j] for i, j in triangle),
        1.0,
        *(one * two for one, two in zip(*x, strict=True)),
        *(one + two for one, two in zip(*x, strict=True)),
    ]


def test_companions_of_a_slice_are_what_the_proto_says_in_that_order():
    stage = observe(
        SPACE, BINNING, np.array(ERRORS), np.array(COVARIANCES), np.array([7, 7], np.uint64)
    )
    panes = {(WINDOWS.older, 0): Stages(stage, stage)}
    message = sent(StatisticsState(BINNING, WINDOWS, 0, (SliceState("car", SPACE, False, panes),)))
    raw = message.slices[0].panes[0].raw
    found = values(raw.companions, message.bins.exponent)
    assert found == pytest.approx(documented(), abs=2e-4)
    crps, squares = [0.0] * 3, []
    for r, covariance in zip(ERRORS, COVARIANCES, strict=True):
        for i in range(3):
            crps[i] += oracle.crps(math.sqrt(covariance[i][i]), r[i])
        # Of the joint axis over x and y alone.
        squares += [(axis, one**2) for axis, one in enumerate(r)] + [(3, r[0] ** 2 + r[2] ** 2)]
    assert values(raw.crps, message.bins.exponent) == pytest.approx(crps, abs=2e-4)
    keys = sorted(axis * 1026 + 1 + 8 * 64 + oracle.eighth(square) for axis, square in squares)
    assert np.cumsum(raw.squares.key_steps).tolist() == keys
    assert raw.squares.values == [1] * len(keys)


def test_tables_and_companions_of_classes_are_what_the_proto_says_in_that_order():
    opinions = np.array([[[0.75, 0.125, 0.125], [0.25, 0.5, 0.25]]])
    mean = opinions.mean(axis=1)
    label = 1
    held = observe_classes(mean, np.array([label]), opinions)
    panes = {(WINDOWS.older, 0): Stages(held, held)}
    entry = ClassSliceState("lidar", ("car", "bus", "person"), panes)
    message = sent(StatisticsState(BINNING, WINDOWS, 0, (), (entry,)))
    (pane,) = message.class_slices[0].panes

    def entropy(p: list[float]) -> float:
        return -sum(one * math.log(one) for one in p) / math.log(3)

    p = mean[0].tolist()
    doubt = 1 - max(p)
    aleatoric = sum(entropy(one) for one in opinions[0].tolist()) / 2
    brier = sum((one - (c == label)) ** 2 for c, one in enumerate(p))
    expected = {
        "doubt": doubt,
        "doubt squared": doubt**2,
        "doubt where right": 0.0,
        "entropy": entropy(p),
        "cross-entropy": -math.log(p[label]),
        "Brier score": brier,
        "with opinions": 1.0,
        "aleatoric": aleatoric,
        "epistemic": entropy(p) - aleatoric,
        "doubt cubed": doubt**3,
        "entropy squared": entropy(p) ** 2,
        "entropy cubed": entropy(p) ** 3,
        "with moments": 1.0,
    }
    sums = values(pane.companions, -60) + values(pane.moments, -60)
    found = dict(zip(expected, sums, strict=True))
    assert found == pytest.approx(expected, abs=1e-12)

    all_rows, by_class, one_vs_rest = pane.tables
    for table in (all_rows, by_class):
        cells = np.array(table.values).reshape(4, 4) * [1, 1, 2.0**-40, 2.0**-40]
        # Confidence and entropy have their sum, the other axes none.
        assert cells == pytest.approx(
            np.array([[1, 0, of_axis, brier] for of_axis in (max(p), entropy(p), 0, 0)]), abs=1e-9
        )
    keys = np.cumsum(one_vs_rest.key_steps).tolist()
    assert [key // 60 for key in keys] == [0, 1, 2]
    cells = np.array(one_vs_rest.values).reshape(3, 3) * [1, 1, 2.0**-40]
    assert cells == pytest.approx(
        np.array([[1, c == label, one] for c, one in enumerate(p)]), abs=1e-9
    )
