"""The choice by slice: who serves which rows, distributions side by side, and which outcomes can
be given to a tracker."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.frames.detections import Estimates, Limits
from monitor.frames.space import Dimension, FloatArray, Space, plain_space
from monitor.recalibration.recalibrator import (
    Identity,
    Output,
    Recalibrator,
    fault_of,
    marginals_of,
    sent_where_unsound,
    sound_rows,
)
from monitor.recalibration.scaling import CovarianceScaling, VarianceScaling
from monitor.recalibration.selection import IDENTITY, Selection, recalibrated, share_out

XY = plain_space(("x", "y"), "m")

DOUBLE, TRIPLE = VarianceScaling((2.0, 2.0)), VarianceScaling((3.0, 3.0))


FULL = CovarianceScaling(
    (0.1 + 0.2, 1 / 3), ((1.0, 0.3), (0.3, 1.0)), ((1.5, -0.25), (-0.25, 0.1)), (1, 0)
)

BY_SLICE = Selection(("x", "y"), DOUBLE, {"car": TRIPLE, "bus": FULL}, {"rows": 12, "file": "a"})


def estimates(n, seed=0, diagonal=False) -> Estimates:
    random = np.random.default_rng(seed)
    root = random.normal(size=(n, 2, 2)) + 2 * np.eye(2)
    covariance = root @ root.transpose(0, 2, 1)
    return Estimates(random.normal(size=(n, 2)), covariance, np.full(n, diagonal))


@dataclass(frozen=True)
class Counted:
    """Scales by a factor, and notes how many rows each call brings."""

    factor: float
    calls: list[int] = field(default_factory=list)
    method: ClassVar[str] = "counted"
    output: ClassVar[Output] = Output.GAUSSIAN
    keeps_definite: ClassVar[bool] = True
    k: ClassVar[None] = None

    def apply(self, estimates: Estimates) -> Estimates:
        self.calls.append(estimates.mean.shape[0])
        return Estimates(estimates.mean, self.factor * estimates.covariance, estimates.diagonal)

    def parameters(self) -> dict[str, Any]:
        return {}


def numbered(n: int) -> Estimates:
    """Estimates that are told apart by their mean."""
    return Estimates(np.arange(n, dtype=float)[:, None], np.full((n, 1, 1), 1.0), np.ones(n, bool))


CHAINS = [
    ("front/Car/<20", "Car/<20", "front/Car", "Car", "front/<20", "<20", "front"),
    ("rear/Car/<20", "Car/<20", "rear/Car", "Car", "rear/<20", "<20", "rear"),
    ("front/Bus", "Bus", "front"),
    ("rear/Van", "Van", "rear"),
    (),
]


# ---- who serves which rows


@pytest.mark.parametrize(
    ("names", "served"),
    [
        ((), ["fallback"] * 5),
        (("Car",), ["Car", "Car", "fallback", "fallback", "fallback"]),
        (("Car/<20", "Car"), ["Car/<20", "Car/<20", "fallback", "fallback", "fallback"]),
        (("front", "Car"), ["Car", "Car", "front", "fallback", "fallback"]),
        (("front", "front/Car", "Bus"), ["front/Car", "fallback", "Bus", "fallback", "fallback"]),
        (("rear", "<20"), ["<20", "<20", "fallback", "rear", "fallback"]),
        (("rear/Car/<20", "Car/<20"), ["Car/<20", "rear/Car/<20", *["fallback"] * 3]),
    ],
)
def test_a_slice_is_served_by_the_first_name_of_its_chain_that_has_a_recalibrator(names, served):
    models = {name: Counted(2.0 + i) for i, name in enumerate(names)}
    fallback = Counted(1.0)
    selection = Selection((), fallback, models)
    slices = np.array([4, 0, 1, 2, 3, 0, 2])
    made = selection.apply(numbered(7), slices, CHAINS)
    models["fallback"] = fallback
    expected = [models[served[i]].factor for i in slices.tolist()]
    assert made.covariance[:, 0, 0].tolist() == expected
    assert made.mean[:, 0].tolist() == list(range(7))


def test_slices_that_share_a_recalibrator_go_through_it_in_one_call():
    car, fallback = Counted(2.0), Counted(3.0)
    selection = Selection((), fallback, {"Car": car})
    selection.apply(numbered(8), np.array([0, 1, 2, 3, 4, 1, 0, 2]), CHAINS)
    assert car.calls == [4]
    assert fallback.calls == [4]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.integers(1, 10))
def test_every_row_is_served_once_and_stays_in_its_place(slices, models):
    scalings = [VarianceScaling((float(1 + i),)) for i in range(models)]
    index = np.array(slices)
    shares = share_out(index, lambda i: scalings[i % models])
    rows = np.arange(index.size) if shares.order is None else shares.order
    served = np.concatenate([rows[part] for _, part in shares.shares])
    assert sorted(served.tolist()) == list(range(index.size))
    before = numbered(index.size)
    made = recalibrated(before, shares)
    assert made.mean.tolist() == before.mean.tolist()
    assert made.covariance[:, 0, 0].tolist() == [float(1 + i % models) ** 2 for i in slices]


def test_a_recalibrator_that_serves_all_and_gives_back_fewer_is_a_failure_too():
    class First(Identity):
        def apply(self, estimates: Estimates) -> Estimates:
            return estimates.take(slice(1))

    selection = Selection((), Identity(), {"Car": First()})
    with pytest.raises(ValueError, match="gives back as many estimates as it gets"):
        selection.apply(numbered(3), np.zeros(3, np.int64), CHAINS)


def chains(*names: str) -> list[tuple[str, ...]]:
    """Of slices that lie in no wider one."""
    return [(name,) for name in names]


def test_rows_that_the_identity_serves_keep_their_bits():
    before = estimates(5)
    before.covariance[1, 0, 1] = np.nextafter(before.covariance[1, 1, 0], 9)
    before.mean[1, 0] = -0.0
    claims: tuple[dict[str, Recalibrator], ...] = (
        {"car": Identity(), "bus": DOUBLE},
        {"bus": DOUBLE},
    )
    for by_slice in claims:
        made = Selection(("x", "y"), Identity(), by_slice).apply(
            before, np.array([1, 0, 1, 0, 0]), chains("car", "bus")
        )
        kept = np.array([1, 3, 4])
        assert made.mean[kept].tobytes() == before.mean[kept].tobytes()
        assert made.covariance[kept].tobytes() == before.covariance[kept].tobytes()
        assert (made.covariance[[0, 2]] == 4.0 * before.covariance[[0, 2]]).all()


@pytest.mark.parametrize("slices", [[0, 0, 0], [0, 1, 1], [1, 1, 1], []])
def test_where_only_the_identity_acts_the_very_same_estimates_come_back(slices):
    before = estimates(len(slices))
    selection = Selection(("x", "y"), Identity(), {"car": Identity(), "bus": DOUBLE})
    apart = chains("car", "tram", "bus")
    assert selection.apply(before, np.array(slices, np.int64), apart) is before


def test_a_selection_keeps_covariances_definite_if_all_of_its_recalibrators_do():
    class Unsure(Identity):
        keeps_definite = False

    assert BY_SLICE.keeps_definite
    assert IDENTITY.keeps_definite
    assert not Selection(("x", "y"), Unsure(), {"car": DOUBLE}).keeps_definite
    assert not Selection(("x", "y"), DOUBLE, {"car": DOUBLE, "bus": Unsure()}).keeps_definite


def test_a_selection_changes_estimates_if_any_of_its_recalibrators_does():
    assert not IDENTITY.changes_estimates
    assert not Selection(("x", "y"), Identity(), {"car": Identity()}).changes_estimates
    assert Selection(("x", "y"), DOUBLE, {"car": Identity()}).changes_estimates
    assert Selection(("x", "y"), Identity(), {"car": DOUBLE}).changes_estimates


def test_a_selection_fits_spaces_of_its_dimension_names_and_the_identity_fits_all():
    assert BY_SLICE.fits(XY)
    assert BY_SLICE.fits(Space((Dimension("x", "px"), Dimension("y", "px"))))
    assert not BY_SLICE.fits(plain_space(("y", "x")))
    assert not BY_SLICE.fits(plain_space(("x", "y", "z")))
    assert IDENTITY.fits(XY)
    assert IDENTITY.fits(plain_space(("u",)))


def test_a_selection_is_called_after_the_method_of_its_slices():
    assert Selection(("x", "y"), Identity(), {"car": DOUBLE}).method == "variance-scaling"
    assert Selection(("x", "y"), FULL).method == "covariance-scaling"
    assert IDENTITY.version.startswith("identity-")


# ---- the distributions

TAU = np.array([0.1, 0.5, 0.8])


@dataclass(frozen=True)
class Uniform:
    """Says that the truth lies within a σ of the mean, anywhere."""

    mean: FloatArray
    deviation: FloatArray

    def log_density(self, value: FloatArray) -> FloatArray:
        inside = np.abs(value - self.mean) <= self.deviation
        density: FloatArray = np.where(inside, -np.log(2 * self.deviation), -np.inf)
        return density

    def cumulative(self, value: FloatArray) -> FloatArray:
        share: FloatArray = np.clip((value - self.mean) / (2 * self.deviation) + 0.5, 0, 1)
        return share

    def quantiles(self, tau: FloatArray) -> FloatArray:
        found: FloatArray = self.mean + self.deviation * (2 * tau[:, None, None] - 1)
        return found


@dataclass(frozen=True)
class Flat:
    """A method whose own distribution is uniform."""

    method: ClassVar[str] = "flat"
    output: ClassVar[Output] = Output.MOMENTS
    keeps_definite: ClassVar[bool] = True
    k: ClassVar[None] = None

    def apply(self, estimates: Estimates) -> Estimates:
        return Estimates(estimates.mean, estimates.covariance / 3, estimates.diagonal)

    def marginals(self, estimates: Estimates) -> Uniform:
        return Uniform(estimates.mean, deviations(estimates))

    def parameters(self) -> dict[str, Any]:
        return {}


def deviations(estimates: Estimates) -> FloatArray:
    return np.sqrt(np.diagonal(estimates.covariance, axis1=1, axis2=2))


@pytest.mark.parametrize("slices", [[0, 1, 0, 2, 1, 2, 0], [1, 1], [2], [0, 0, 2]])
def test_side_by_side_every_row_has_the_one_of_its_own_recalibrator(slices):
    models: dict[str, Recalibrator] = {"car": Flat(), "bus": VarianceScaling((3.0, 3.0))}
    selection = Selection(("x", "y"), VarianceScaling((2.0, 1.0)), models)
    chains = [("car",), ("bus",), ("tram",)]
    index = np.array(slices)
    sent = estimates(index.size)
    value = sent.mean + 0.3
    found = selection.marginals(sent, index, chains)
    assert found.quantiles(TAU).shape == (3, index.size, 2)
    for row, i in enumerate(slices):
        part = slice(row, row + 1)
        alone = marginals_of(selection.of(chains[i]), sent.take(part))
        assert np.array_equal(found.log_density(value)[part], alone.log_density(value[part]))
        assert np.array_equal(found.cumulative(value)[part], alone.cumulative(value[part]))
        assert np.array_equal(found.quantiles(TAU)[:, part], alone.quantiles(TAU))


def test_a_selection_says_which_outputs_it_may_have():
    scaling = VarianceScaling((2.0, 2.0))
    assert Selection(("x", "y"), scaling).outputs == {Output.GAUSSIAN}
    assert Selection(("x", "y"), Flat(), {"car": Flat()}).outputs == {Output.MOMENTS}
    both = Selection(("x", "y"), scaling, {"car": Flat()})
    assert both.outputs == {Output.GAUSSIAN, Output.MOMENTS}


# ---- outcomes that can be sent

NAN, INF = float("nan"), float("inf")


LIMITS = Limits()


def some(n=4, k=3) -> Estimates:
    random = np.random.default_rng(n)
    root = random.normal(size=(n, k, k)) + 2 * np.eye(k)
    return Estimates(random.normal(size=(n, k)), root @ root.transpose(0, 2, 1), np.zeros(n, bool))


def doubled(sent: Estimates) -> Estimates:
    return Estimates(sent.mean.copy(), 4.0 * sent.covariance, sent.diagonal.copy())


def test_what_was_sent_is_not_judged_again():
    sent = some()
    sent.covariance[1] = NAN
    assert sound_rows(sent, sent, LIMITS, definite=False).all()


def test_an_indefinite_covariance_of_positive_variances_fails_unless_the_method_rules_it_out():
    sent = some()
    made = doubled(sent)
    made.covariance[1] = [[1.0, 2.0, 0.0], [2.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    assert sound_rows(sent, made, LIMITS, definite=False).tolist() == [True, False, True, True]
    # Not factorised again: the method is taken at its word.
    assert sound_rows(sent, made, LIMITS, definite=True).all()


@pytest.mark.parametrize("definite", [True, False])
def test_values_whose_sum_alone_overflows_are_sound(definite):
    sent = some(4, 1)
    made = Estimates(np.full((4, 1), 1e308), np.full((4, 1, 1), 1e308), sent.diagonal)
    limits = Limits(largest_deviation=1e154)
    assert sound_rows(sent, made, limits, definite=definite).all()


@pytest.mark.parametrize("part", ["mean", "covariance", "diagonal"])
@pytest.mark.parametrize("change", ["fewer", "more", "flat"])
@pytest.mark.parametrize("definite", [True, False])
def test_outcomes_of_another_shape_are_all_failures(part, change, definite):
    sent = some()
    made = doubled(sent)
    array = getattr(made, part)
    wrong = {
        "fewer": array[:1],
        "more": np.concatenate([array, array]),
        "flat": array[..., None],
    }[change]
    parts = {"mean": made.mean, "covariance": made.covariance, "diagonal": made.diagonal}
    found = sound_rows(sent, Estimates(**{**parts, part: wrong}), LIMITS, definite=definite)
    assert found.tolist() == [False] * 4


@pytest.mark.parametrize(
    ("part", "value", "words"),
    [
        ("mean", NAN, "means that are not finite"),
        ("covariance", INF, "covariances that are not finite"),
        ("covariance", -1.0, "covariances that are not positive definite"),
        ("covariance", 0.0, "covariances that are not positive definite"),
        ("covariance", 1e11, "deviations beyond [limits] largest_deviation = 100000"),
        ("covariance", 1e-13, "deviations below [limits] smallest_deviation = 1e-06"),
    ],
)
def test_a_fault_is_told_with_the_limit_and_the_number_of_detections(part, value, words):
    sent = some()
    made = doubled(sent)
    getattr(made, part)[1:3, 0] = value
    assert fault_of(sent, made, LIMITS) == f"makes {words}, of 2 of 4 detections"


def test_the_gravest_fault_is_told():
    sent = some()
    made = doubled(sent)
    made.covariance[0] *= 1e12
    made.covariance[1, 2, 1] = NAN
    words = "makes covariances that are not finite, of 1 of 4 detections"
    assert fault_of(sent, made, LIMITS) == words


@pytest.mark.parametrize("sound", [(1, 1, 1, 1), (0, 0, 0, 0), (1, 0, 1, 0), (0, 1, 1, 1)])
def test_rows_that_are_not_sound_are_as_sent_and_their_neighbours_as_made(sound):
    sent = some()
    made = replace(doubled(sent), mean=sent.mean + 1, diagonal=~sent.diagonal)
    before = made.covariance.copy()
    found = sent_where_unsound(sent, made, np.array(sound, bool))
    for i, row in enumerate(sound):
        expected = made if row else sent
        np.testing.assert_array_equal(found.mean[i], expected.mean[i])
        np.testing.assert_array_equal(found.covariance[i], expected.covariance[i])
        assert found.diagonal[i] == expected.diagonal[i]
    np.testing.assert_array_equal(made.covariance, before)


@pytest.mark.parametrize("definite", [True, False])
@pytest.mark.parametrize(
    ("part", "place", "value", "fine"),
    [
        *(("mean", (1,), value, False) for value in (NAN, INF, -INF)),
        *(("covariance", at, NAN, False) for at in ((0, 1), (1, 0), (1, 2), (0, 0), (2, 2))),
        *(("covariance", (0, 1), value, False) for value in (INF, -INF)),
        *(("covariance", (1, 1), value, False) for value in (0.0, -1.0, -1e-300)),
        # Deviations at and beyond their limits.
        ("covariance", (1, 1), 1e-6**2, True),
        ("covariance", (1, 1), 9e-7**2, False),
        ("covariance", (1, 1), 1e5**2, True),
        ("covariance", (1, 1), 1.01e5**2, False),
    ],
)
def test_what_cannot_be_sent_fails_its_row_alone(part, place, value, fine, definite):
    sent = some()
    made = doubled(sent)
    made.covariance[2] = np.eye(3)
    getattr(made, part)[(2, *place)] = value
    found = sound_rows(sent, made, LIMITS, definite=definite)
    assert found.tolist() == [True, True, fine, True]
    assert (fault_of(sent, made, LIMITS) == "") == fine
