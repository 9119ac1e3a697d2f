"""An alarm names the simplest cause that its bets speak for."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from monitor.drift.bets import ABSOLUTE, SCALE
from monitor.drift.causes import Cause, cause_of
from monitor.drift.channels import BIASES, CORRELATIONS, JOINT, SCALES
from monitor.drift.charts import CHARTS, CHARTS_OF, UNKNOWN, Quantity, Scale, Stage
from monitor.drift.evidence import (
    CHANNEL_OF,
    OF_TAIL,
    OF_TRACKS,
    SAID,
    SAID_ERROR,
    SAID_UU,
    SAID_Z,
    SAID_ZZ,
    WITH_TRACKS,
    Evidence,
)
from monitor.drift.levels import FACTORS
from monitor.frames.space import FloatArray
from tests.drift.drives import DIMENSIONS, K

OVER, UNDER = range(*CHARTS_OF[Stage.RECALIBRATED].indices(len(CHARTS)))
ROOT = math.sqrt(10)


def board(chart: int = OVER, /, **nats: float) -> Evidence:
    """Evidence of one slice: so many nats of one bet of each kind, over what it is given."""
    found = Evidence()
    found.grow(1)
    found.degrees[:], found.fresh[:] = K, 1e-3
    found.set_shares(0, chart, WITH_TRACKS)
    for name, said in nats.items():
        kind, _, number = name.partition("_")
        channels = {"joint": JOINT, "scale": SCALES, "bias": BIASES, "correlation": CORRELATIONS}
        if kind == "tail":
            place = OF_TAIL.start
        elif kind == "detections":
            place = 0
        elif kind == "student":
            place = ABSOLUTE + SCALE
        else:
            # Of a bias that is below, the bet on the other end.
            ends = np.flatnonzero(channels[kind] + int(number or 0) == CHANNEL_OF)
            place = OF_TRACKS.start + int(ends[-1]) * len(FACTORS) + 1
        found.sums[0, chart, place] = 1e-3 * math.exp(said)
    return found


def run_of(
    n: int = 100,
    *,
    zz: tuple[float, ...] = (1.0, 1.0, 1.0),
    z: tuple[float, ...] = (0.0, 0.0, 0.0),
    uu: tuple[float, ...] = (1.0, 1.0, 1.0),
    error: tuple[float, ...] = (0.0, 0.0, 0.0),
    outside: float = 0.0,
) -> FloatArray:
    """What is said of n detections, by their means."""
    run = np.zeros(SAID)
    run[0], run[3] = n, n * outside
    for place, means in ((SAID_ERROR, error), (SAID_Z, z), (SAID_ZZ, zz), (SAID_UU, uu)):
        run[place][: len(means)] = n * np.array(means)
    return run


def found(evidence: Evidence, run: FloatArray, chart: int = OVER) -> Cause:
    evidence.run[0, chart] = run
    return cause_of(evidence, 0, chart)


def test_a_mean_that_makes_enough_of_the_errors_is_the_cause_before_all_others():
    evidence = board(bias_1=20.0, scale_1=40.0, joint=50.0, correlation_1=30.0, tail=40.0)
    biased = run_of(z=(0.0, -1.5, 0.0), zz=(1.0, 3.0, 1.0))
    assert found(evidence, biased) == Cause(Quantity.BIAS, (1,))
    # Here it makes a tenth of them.
    wide = run_of(z=(0.0, -0.5, 0.0), zz=(1.0, 2.5, 1.0))
    assert found(evidence, wide).quantity is Quantity.SCALE
    # And here a third of the nats are more than what speaks for it.
    assert found(board(bias_1=20.0, joint=70.0), biased) == Cause(Quantity.SCALE)


def test_dimensions_that_are_off_by_half_as_much_are_meant_as_well_and_all_are_none_by_name():
    evidence = board(scale_0=30.0, joint=40.0)
    assert found(evidence, run_of(zz=(9.0, 1.0, 1.2))) == Cause(Quantity.SCALE, (0,))
    assert found(evidence, run_of(zz=(9.0, 1.0, 4.0))) == Cause(Quantity.SCALE, (0, 2))
    assert found(evidence, run_of(zz=(9.0, 8.0, 4.0))) == Cause(Quantity.SCALE)
    # Errors that are too small.
    evidence = board(UNDER, scale_0=30.0, joint=40.0)
    assert found(evidence, run_of(zz=(0.1, 1.0, 0.9)), UNDER) == Cause(Quantity.SCALE, (0,))


def test_a_correlation_is_the_cause_where_no_scale_is_and_a_tail_where_the_scale_says_less():
    evidence = board(correlation_2=20.0, joint=30.0)
    assert found(evidence, run_of()) == Cause(Quantity.CORRELATION, (2,))
    # Unless it is a mean that makes the errors hang together so, of enough detections.
    means: Any = {"z": (0.9, 0.0, 0.0), "zz": (1.8, 1.0, 1.0)}
    assert found(evidence, run_of(**means)) == Cause(Quantity.BIAS, (0,))
    assert found(evidence, run_of(63, **means)) == Cause(Quantity.CORRELATION, (2,))
    evidence = board(correlation_1=20.0, joint=30.0)
    after = run_of(z=(0.0, 0.0, 0.9), zz=(1.0, 1.0, 1.8))
    assert found(evidence, after) == Cause(Quantity.CORRELATION, (1,))
    for name in ("tail", "student"):
        assert found(board(**{name: 20.0, "joint": 19.0}), run_of()) == Cause(Quantity.TAIL)
        assert found(board(**{name: 20.0, "joint": 21.0}), run_of()) == Cause(Quantity.SCALE)
        assert found(board(**{name: 20.0, "detections": 21.0}), run_of()) == Cause(Quantity.SCALE)
    assert found(board(detections=20.0), run_of()) == Cause(Quantity.SCALE)
    assert found(board(), run_of(0)) == Cause(Quantity.SCALE)


def test_sizes_are_those_of_all_detections_since_the_change():
    scale = Scale(3.0, 2.0, 4.0)
    run = run_of(zz=(9.0, 4.0, 1.0), uu=(1.0, 16.0, 1.0), error=(0.0, -0.31, 0.0), outside=0.08)
    expected: dict[Cause, float] = {
        Cause(Quantity.SCALE, (0,)): 3.0,
        Cause(Quantity.SCALE, (0, 1)): math.sqrt(6.5),
        Cause(Quantity.SCALE): 3.0,
        Cause(Quantity.BIAS, (1,)): -0.31,
        Cause(Quantity.CORRELATION, (1,)): 2.0,
        Cause(Quantity.TAIL): 0.08,
    }
    for cause, size in expected.items():
        assert cause.size(run, scale) == pytest.approx(size)
        assert math.isnan(cause.size(run_of(0), UNKNOWN))
    assert Cause(Quantity.SCALE, (0, 1)).names(DIMENSIONS[:K]) == "x, y"
    assert Cause(Quantity.SCALE).names(DIMENSIONS[:K]) == ""
    assert Cause(Quantity.BIAS, (1,)).unit(DIMENSIONS[:K]) == "m"
    assert Cause(Quantity.TAIL).unit(DIMENSIONS[:K]) == ""
