"""An alarm names the simplest cause that its bets speak for: by hand, and of simulated faults."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from monitor.drift.alarms import Alarm
from monitor.drift.bets import ABSOLUTE, CHARTS, CHARTS_OF, SCALE, Quantity, Stage
from monitor.drift.causes import Cause, cause_of
from monitor.drift.channels import BIASES, CORRELATIONS, JOINT, SCALES
from monitor.drift.evidence import (
    CHANNEL_OF,
    OF_TAIL,
    OF_TRACKS,
    SAID,
    SAID_ERROR,
    SAID_UU,
    SAID_Z,
    SAID_ZZ,
    UNKNOWN,
    WITH_TRACKS,
    DriftSettings,
    Evidence,
    Scale,
)
from monitor.drift.levels import FACTORS
from monitor.drift.usual import WatchedRows
from monitor.frames.space import FloatArray
from monitor.statistics.observations import finished
from tests.drift.drives import DIMENSIONS, PERIOD_NS, K, exact_reference, family_of

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


# Stated of the errors that are simulated; of drives.py.
DEVIATION = 0.2
STATED = DEVIATION**2 * np.array([[1.0, 0.6, 0.36], [0.6, 1.0, 0.6], [0.36, 0.6, 1.0]])
Fault = Callable[[FloatArray], FloatArray]


def watched(errors: FloatArray, begin: int) -> WatchedRows:
    """Errors (F, T, K) in m, of frames from this one on; each track lives four seconds."""
    frames, tracks, _ = errors.shape
    frame = np.repeat(np.arange(frames), tracks)
    flat = errors.reshape(-1, K).T
    z = np.stack([flat / DEVIATION] * 2)
    u = np.stack([np.linalg.solve(np.linalg.cholesky(STATED), flat)] * 2)
    generation = (begin + frame) // 40
    return WatchedRows(
        slices=np.zeros(frame.size, np.int64),
        nees=np.square(u).sum(axis=1),
        z=z,
        u=u,
        error=np.stack([flat] * 2),
        track=(generation * tracks + np.tile(np.arange(tracks), frames) + 1).astype(np.uint64),
        frame=frame,
        stamp_ns=(begin + np.arange(frames)) * PERIOD_NS,
        source=np.zeros(frames, np.int64),
        changed=np.zeros(frames, bool),
    )


def alarms_after(fault: Fault, seconds: int = 60, seed: int = 0) -> list[Alarm]:
    """Alarms within so many seconds of a fault that follows on ten healthy ones."""
    random = np.random.default_rng(seed)
    family = family_of(DriftSettings(), reference=exact_reference())
    errors = random.multivariate_normal(np.zeros(K), STATED, (100 + 10 * seconds, 8))
    errors[100:] = fault(errors[100:])
    for begin in range(0, len(errors), 10):
        changes, learning = family.take(K, watched(errors[begin : begin + 10], begin))
        finished(learning)
        if changes:
            return [one.alarm for one in changes]
    return []


def flipped(errors: FloatArray) -> FloatArray:
    """The second dimension has its correlation the wrong way round."""
    found: FloatArray = errors * np.array([-1.0, 1.0, 1.0])
    return found


def outliers(errors: FloatArray) -> FloatArray:
    """A tenth of the detections are three times as far off, with the tails of t2."""
    random, shape = np.random.default_rng(1), errors.shape[:2]
    factor = np.where(random.random(shape) < 0.1, 3 * np.sqrt(2 / random.chisquare(2, shape)), 1.0)
    found: FloatArray = factor[..., None] * errors
    return found


@pytest.mark.parametrize(
    ("fault", "named"),
    [
        (lambda e: e - (0.0, 0.4, 0.0), ("page", "y", Quantity.BIAS, -0.4, "m")),
        (lambda e: e * 2.5, ("page", "", Quantity.SCALE, 2.5, "")),
        (lambda e: e * 0.35, ("ticket", "", Quantity.SCALE, 0.35, "")),
        (lambda e: e * (1.0, 1.0, ROOT), ("page", "z", Quantity.SCALE, ROOT, "")),
        (flipped, ("page", "y", Quantity.CORRELATION, 1.5, "")),
        (outliers, ("page", "", Quantity.TAIL, 0.07, "")),
    ],
    ids=["bias", "too small", "too large", "one dimension", "correlation", "outliers"],
)
def test_a_simulated_fault_is_found_and_named_with_its_size(fault, named):
    alarm = alarms_after(fault)[0]
    severity, dimension, quantity, size, unit = named
    assert (alarm.severity, alarm.dimension, alarm.quantity) == (severity, dimension, quantity)
    assert alarm.size == pytest.approx(size, rel=0.25)
    assert alarm.unit == unit


def test_nothing_is_wrong_with_healthy_errors():
    assert alarms_after(lambda errors: errors) == []
