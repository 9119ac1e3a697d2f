"""The choice by slice: who serves which rows, distributions side by side, and which outcomes can
be given to a tracker."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.frames.detections import Estimates, Limits
from monitor.frames.space import Dimension, Space, packed_covariances, plain_space
from monitor.recalibration.quantiles import IsotonicQuantiles
from monitor.recalibration.recalibrator import (
    Identity,
    Output,
    fault_of,
    sent_where_unsound,
    sound_rows,
    weakest,
)
from monitor.recalibration.scaling import VarianceScaling
from monitor.recalibration.selection import IDENTITY, Selection, share_out
from tests import laws

NAN, INF = float("nan"), float("inf")
LIMITS = Limits()
DOUBLE, TRIPLE = VarianceScaling((2.0, 2.0)), VarianceScaling((3.0, 3.0))
# The truth lies at mean + σ Q(ζ), which is no Gaussian.
BENT = IsotonicQuantiles(2 * ((-1.0, 1.0),), 2 * ((-2.0, 1.0),), (1.0, 1.0), (2.0, 2.0))
pytestmark = pytest.mark.filterwarnings("error")


def estimates(n: int, k: int = 2) -> Estimates:
    random = np.random.default_rng(n)
    root = random.normal(size=(n, k, k)) + 2 * np.eye(k)
    covariance = root @ root.transpose(0, 2, 1)
    return Estimates(random.normal(size=(n, k)), covariance, np.zeros(n, bool))


def chains(*names: str) -> list[tuple[str, ...]]:
    """Of slices that lie in no wider one."""
    return [(name,) for name in names]


class Counted:
    """Scales variances by a factor, and notes how many rows each call brings."""

    method, output, k, rescales_by = "counted", Output.GAUSSIAN, None, None

    def __init__(self, factor: float, keeps_definite: bool = True) -> None:
        self.factor, self.keeps_definite = factor, keeps_definite
        self.calls: list[int] = []

    def apply(self, estimates: Estimates) -> Estimates:
        self.calls.append(estimates.mean.shape[0])
        return Estimates(estimates.mean, self.factor * estimates.covariance, estimates.diagonal)


# ---- who serves which rows

CHAINS = [
    ("front/Car/<20", "Car/<20", "front/Car", "Car", "front/<20", "<20", "front"),
    ("rear/Car/<20", "Car/<20", "rear/Car", "Car", "rear/<20", "<20", "rear"),
    ("front/Bus", "Bus", "front"),
    ("rear/Van", "Van", "rear"),
    (),
]


@pytest.mark.parametrize(
    ("names", "served"),
    [
        ((), ["fallback"] * 5),
        (("front", "Car"), ["Car", "Car", "front", "fallback", "fallback"]),
        (("front", "front/Car", "Bus"), ["front/Car", "fallback", "Bus", "fallback", "fallback"]),
        (("rear", "<20"), ["<20", "<20", "fallback", "rear", "fallback"]),
        (("rear/Car/<20", "Car/<20"), ["Car/<20", "rear/Car/<20", *["fallback"] * 3]),
    ],
)
def test_a_slice_is_served_by_the_first_name_of_its_chain_in_one_call_for_all_its_rows(
    names, served
):
    models: Any = {name: Counted(2.0 + i) for i, name in enumerate(names)}
    every = models | {"fallback": Counted(1.0)}
    selection = Selection((), every["fallback"], models)
    slices = np.array([4, 0, 1, 2, 3, 0, 2])
    sent = estimates(7, 1)
    made = selection.apply(sent, slices, CHAINS)
    expected = [every[served[i]].factor for i in slices.tolist()]
    assert made.covariance[:, 0, 0] == pytest.approx(expected * sent.covariance[:, 0, 0])
    assert np.array_equal(made.mean, sent.mean)
    for name, model in every.items():
        rows = sum(served[i] == name for i in slices.tolist())
        assert model.calls == ([rows] if rows else [])


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.integers(1, 10))
def test_every_row_is_served_once_and_stays_in_its_place(slices, models):
    scalings = [VarianceScaling((float(1 + i),)) for i in range(models)]
    asked = []

    def serving(i):
        asked.append(i)
        return scalings[i % models]

    shares = share_out(np.array(slices), serving)
    assert asked == sorted(set(slices))
    n = len(slices)
    rows = np.arange(n) if shares.order is None else shares.order
    served = np.concatenate([rows[part] for _, part in shares.shares])
    assert sorted(served.tolist()) == list(range(n))
    sent = Estimates(np.arange(n, dtype=float)[:, None], np.ones((n, 1, 1)), np.ones(n, bool))
    made = shares.recalibrated(sent)
    assert made.mean.tolist() == sent.mean.tolist()
    assert made.covariance[:, 0, 0].tolist() == [float(1 + i % models) ** 2 for i in slices]


@pytest.mark.parametrize("by_slice", [{"car": Identity(), "bus": DOUBLE}, {"bus": DOUBLE}])
def test_rows_that_the_identity_serves_keep_their_bits(by_slice):
    sent = estimates(5)
    sent.covariance[1, 0, 1] = np.nextafter(sent.covariance[1, 1, 0], 9)
    sent.mean[1, 0] = -0.0
    selection = Selection(("x", "y"), Identity(), by_slice)
    made = selection.apply(sent, np.array([1, 0, 1, 0, 0]), chains("car", "bus"))
    for kept in (1, 3, 4):
        assert made.mean[kept].tobytes() == sent.mean[kept].tobytes()
        assert made.covariance[kept].tobytes() == sent.covariance[kept].tobytes()
    assert (made.covariance[[0, 2]] == 4.0 * sent.covariance[[0, 2]]).all()


@pytest.mark.parametrize("slices", [[0, 1, 1], []])
def test_where_only_the_identity_acts_the_very_same_estimates_come_back(slices):
    sent = estimates(len(slices))
    apart = Selection(("x", "y"), Identity(), {"car": Identity(), "bus": DOUBLE})
    for selection in (IDENTITY, apart):
        made = selection.apply(sent, np.array(slices, np.int64), chains("car", "tram", "bus"))
        assert made is sent


def test_a_selection_says_what_all_of_its_recalibrators_do():
    unsure: Any = Counted(1.0, keeps_definite=False)

    def of(fallback: Any, **by_slice: Any) -> Selection:
        return Selection(("x", "y"), fallback, by_slice)

    assert of(DOUBLE, car=TRIPLE).keeps_definite
    assert not of(DOUBLE, car=DOUBLE, bus=unsure).keeps_definite
    assert not IDENTITY.changes_estimates
    assert not of(Identity(), car=Identity()).changes_estimates
    assert of(Identity(), car=DOUBLE).changes_estimates
    assert of(Identity(), car=DOUBLE).method == "variance-scaling"
    assert of(BENT, car=DOUBLE).outputs == {Output.GAUSSIAN, Output.MOMENTS}
    # What is true of all of them is what is true of the least.
    assert weakest(of(BENT, car=DOUBLE).outputs) is Output.MOMENTS
    assert weakest(list(Output)) is Output.SURROGATE


def test_a_selection_fits_spaces_of_its_dimension_names_and_the_identity_fits_all():
    selection = Selection(("x", "y"), DOUBLE)
    assert selection.fits(plain_space(("x", "y"), "m"))
    assert selection.fits(Space((Dimension("x", "px"), Dimension("y", "px"))))
    assert not selection.fits(plain_space(("y", "x")))
    assert not selection.fits(plain_space(("x", "y", "z")))
    assert IDENTITY.fits(plain_space(("u",)))


@pytest.mark.parametrize("slices", [[0, 1, 0, 2, 1, 2, 0], [1, 1]])
def test_side_by_side_every_row_has_the_distribution_of_its_own_recalibrator(slices):
    selection = Selection(("x", "y"), VarianceScaling((2.0, 1.0)), {"car": BENT, "bus": TRIPLE})
    names, index, tau = chains("car", "bus", "tram"), np.array(slices), np.array([0.1, 0.5, 0.8])
    sent = estimates(index.size)
    value = sent.mean + 0.3
    found = selection.marginals(sent, index, names)
    assert found.quantiles(tau).shape == (3, index.size, 2)
    for row, i in enumerate(slices):
        part = slice(row, row + 1)
        alone = selection.of(names[i]).marginals(sent.take(part))
        laws.assert_same(found.log_density(value)[part], alone.log_density(value[part]))
        laws.assert_same(found.cumulative(value)[part], alone.cumulative(value[part]))
        assert np.array_equal(found.quantiles(tau)[:, part], alone.quantiles(tau))


# ---- outcomes that can be sent


def doubled(sent: Estimates) -> Estimates:
    return Estimates(sent.mean.copy(), 4.0 * sent.covariance, sent.diagonal.copy())


whether_definite = pytest.mark.parametrize("definite", [True, False])


@whether_definite
@pytest.mark.parametrize(
    ("part", "place", "value", "fine"),
    [
        *(("mean", (1,), value, False) for value in (NAN, -INF)),
        *(("covariance", at, NAN, False) for at in ((0, 1), (1, 0), (2, 2))),
        ("covariance", (0, 1), INF, False),
        ("covariance", (1, 1), 0.0, False),
        # Deviations at and beyond their limits.
        ("covariance", (1, 1), 1e-6**2, True),
        ("covariance", (1, 1), 9e-7**2, False),
        ("covariance", (1, 1), 1e5**2, True),
        ("covariance", (1, 1), 1.01e5**2, False),
    ],
)
def test_what_cannot_be_sent_fails_its_row_alone(part, place, value, fine, definite):
    sent = estimates(4, 3)
    made = doubled(sent)
    made.covariance[2] = np.eye(3)
    getattr(made, part)[(2, *place)] = value
    found = sound_rows(sent, made, LIMITS, definite=definite)
    assert found.tolist() == [True, True, fine, True]
    assert (fault_of(sent, made, LIMITS) == "") == fine


def test_an_indefinite_covariance_of_positive_variances_fails_unless_the_method_rules_it_out():
    sent = estimates(4, 3)
    made = doubled(sent)
    made.covariance[1] = [[1.0, 2.0, 0.0], [2.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    assert sound_rows(sent, made, LIMITS, definite=False).tolist() == [True, False, True, True]
    # Not factorised again: the method is taken at its word.
    assert sound_rows(sent, made, LIMITS, definite=True).all()
    # Nor is what was sent judged again.
    assert sound_rows(made, made, LIMITS, definite=False).all()


@whether_definite
@pytest.mark.parametrize("part", ["mean", "covariance", "diagonal"])
def test_outcomes_of_another_shape_are_all_failures(part, definite):
    sent = estimates(4, 3)
    array = getattr(sent, part)
    for wrong in (array[:1], np.concatenate([array, array]), array[..., None]):
        made = laws.changed(doubled(sent), **{part: wrong})
        assert sound_rows(sent, made, LIMITS, definite=definite).tolist() == [False] * 4
        assert fault_of(sent, made, LIMITS).startswith("makes arrays of the shapes ((")


@pytest.mark.parametrize(
    ("part", "value", "words"),
    [
        ("mean", NAN, "means that are not finite"),
        ("covariance", INF, "covariances that are not finite"),
        ("covariance", -1.0, "covariances that are not positive definite"),
        ("covariance", 1e11, "deviations beyond [limits] largest_deviation = 100000"),
        ("covariance", 1e-13, "deviations below [limits] smallest_deviation = 1e-06"),
    ],
)
def test_the_gravest_fault_is_told_with_the_limit_and_the_number_of_detections(part, value, words):
    sent = estimates(4, 3)
    made = doubled(sent)
    getattr(made, part)[1:3, 0] = value
    assert fault_of(sent, made, LIMITS) == f"makes {words}, of 2 of 4 detections"
    made.mean[0, 0] = NAN
    assert fault_of(sent, made, LIMITS).startswith("makes means that are not finite, of ")


@pytest.mark.parametrize("sound", [(1, 1, 1, 1), (0, 0, 0, 0), (1, 0, 1, 0)])
def test_rows_that_are_not_sound_are_as_sent_and_their_neighbours_as_made(sound):
    sent = estimates(4, 3)
    made = laws.changed(doubled(sent), mean=sent.mean + 1, diagonal=~sent.diagonal)
    before = made.covariance.copy()
    found = sent_where_unsound(sent, made, np.array(sound, bool))
    for i, row in enumerate(sound):
        laws.assert_same(found.take(slice(i, i + 1)), (made if row else sent).take(slice(i, i + 1)))
    assert np.array_equal(made.covariance, before)


@pytest.mark.parametrize("form", ["variances", "triangles", "whole"])
@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.integers(0, 2**32))
def test_scalings_of_several_slices_are_applied_as_each_by_itself(form, slices, seed):
    random = np.random.default_rng(seed)
    n, k = len(slices), 3
    covariance = np.array([np.cov(random.normal(size=(k, 9))) for _ in slices])
    width = {"variances": k, "triangles": k * (k + 1) // 2}.get(form)
    sent = Estimates(
        random.normal(size=(n, k)),
        covariance if width is None else packed_covariances(covariance, width),
        np.full(n, form == "variances"),
    )
    scalings = [VarianceScaling(tuple(random.uniform(0.5, 2, k))) for _ in range(4)]
    made = share_out(np.array(slices), lambda i: scalings[i]).recalibrated(sent)
    assert made.shapes == sent.shapes
    for row, i in enumerate(slices):
        alone = scalings[i].apply(sent.take(np.array([row])))
        assert made.covariance[row].tobytes() == alone.covariance.tobytes()
        assert made.mean[row].tobytes() == alone.mean.tobytes()
