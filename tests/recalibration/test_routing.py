"""Who serves which rows: by the chain of a slice, every recalibrator asked once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.frames.detections import Estimates
from monitor.recalibration.recalibrator import Identity, Output
from monitor.recalibration.scaling import VarianceScaling
from monitor.recalibration.selection import Selection, recalibrated, share_out
from tests import laws


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


def test_only_slices_that_a_row_is_in_are_looked_at():
    asked: list[int] = []

    def serving(i: int) -> Identity:
        asked.append(i)
        return Identity()

    share_out(np.array([7, 2, 7, 2]), serving)
    assert asked == [2, 7]


def test_where_one_serves_all_nothing_is_sorted_or_copied():
    before = numbered(5)
    one = VarianceScaling((2.0,))
    shares = share_out(np.array([3, 1, 0, 1, 3]), lambda i: one)
    assert shares.order is None
    assert shares.divided(before)[0][1] is before


@settings(max_examples=60)
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


def test_rows_of_estimates_keep_all_that_belongs_to_them():
    part = numbered(6).take(np.array([4, 1]))
    laws.assert_same(
        part, Estimates(np.array([[4.0], [1.0]]), np.full((2, 1, 1), 1.0), np.ones(2, bool))
    )


def test_a_recalibrator_that_serves_all_and_gives_back_fewer_is_a_failure_too():
    class First(Identity):
        def apply(self, estimates: Estimates) -> Estimates:
            return estimates.take(slice(1))

    selection = Selection((), Identity(), {"Car": First()})
    with pytest.raises(ValueError, match="gives back as many estimates as it gets"):
        selection.apply(numbered(3), np.zeros(3, np.int64), CHAINS)
