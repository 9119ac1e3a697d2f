"""Which detections are of the present epoch of their slice."""

from __future__ import annotations

import numpy as np

from monitor.frames.slices import Slice, SliceBy, SliceTable
from monitor.frames.space import plain_space
from monitor.pipeline import recalibrators
from monitor.pipeline.recalibrators import DriftEpochs, served_otherwise
from monitor.recalibration.recalibrator import Identity
from monitor.recalibration.selection import IDENTITY, Selection
from tests.promotion.random_states import scaled

SLICES = np.array([0, 1, 2], np.int64)


def current(epochs: DriftEpochs, version: str | None) -> list[bool]:
    return [bool(one) for one in epochs.current(SLICES, version)]


def test_before_any_recalibrator_everything_is_current():
    assert current(DriftEpochs(), "a") == [True] * 3
    assert current(DriftEpochs(), None) == [True] * 3


def test_what_an_earlier_version_made_is_of_no_epoch_in_slices_that_it_served_otherwise():
    epochs = DriftEpochs()
    epochs.begin("a", [])
    epochs.begin("b", [1])
    assert current(epochs, "a") == [True, False, True]
    assert current(epochs, "b") == [True] * 3
    epochs.begin("c", [0])
    assert current(epochs, "a") == [False, False, True]
    assert current(epochs, "b") == [False, True, True]
    assert current(epochs, "c") == [True] * 3


def test_a_version_that_comes_again_is_current_again_and_the_one_between_is_not():
    epochs = DriftEpochs()
    for version in ("a", "b", "a"):
        epochs.begin(version, [0, 1, 2])
    assert current(epochs, "a") == [True] * 3
    assert current(epochs, "b") == [False] * 3


def test_an_unknown_version_is_current_only_where_no_epoch_ever_began():
    epochs = DriftEpochs()
    epochs.begin("a", [1])
    assert current(epochs, "who") == [True, False, True]


def test_where_no_recalibrator_could_be_applied_everything_is_current():
    epochs = DriftEpochs()
    epochs.begin("a", [0, 1, 2])
    assert current(epochs, None) == [True] * 3


def test_versions_that_are_long_gone_are_forgotten(monkeypatch):
    monkeypatch.setattr(recalibrators, "_MOST_VERSIONS", 3)
    epochs = DriftEpochs()
    for number in range(10):
        epochs.begin(str(number), [0])
    assert current(epochs, "5") == [False, True, True]
    assert current(epochs, "9") == [True] * 3
    assert len(epochs._number) == 3


def test_slices_that_another_recalibrator_serves_are_those_whose_own_one_differs():
    space = plain_space(("x", "y"), "m")
    table = SliceTable(frozenset({SliceBy.CLASS}), 10)
    for name in ("car", "van"):
        table.slices.append(Slice(name, space))
        table.chains.append((name,))
    some = scaled(1)
    other = Selection(some.dimensions, Identity(), {"car": some.fallback})
    assert served_otherwise(table, IDENTITY, IDENTITY) == []
    if other.fits(space):
        assert served_otherwise(table, IDENTITY, other) == [0]
    unfit = Selection(("depth",), some.fallback)
    assert served_otherwise(table, IDENTITY, unfit) == []


def test_epochs_go_on_where_they_were_kept_and_the_same_version_is_in_force():
    before, after, other = DriftEpochs(), DriftEpochs(), DriftEpochs()
    before.begin("a", [])
    before.begin("b", [0, 2])
    numbers, begins = before.state(("car", "truck", "bus"))
    assert (numbers, begins) == ({"a": 1, "b": 2}, {"car": 2, "bus": 2})
    after.begin("b", [0, 1, 2])
    after.restore(numbers, begins, ("bus", "car", "truck"))
    found = {v: after.current(np.arange(3), v).tolist() for v in ("a", "b", "c")}
    # By name, whatever the order of the slices is now.
    assert found == {"a": [False, False, True], "b": [True] * 3, "c": [False, False, True]}
    other.begin("c", [1])
    other.restore(numbers, begins, ("bus", "car", "truck"))
    assert other.current(np.arange(3), "b").tolist() == [True, False, True]
