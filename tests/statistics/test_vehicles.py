"""Rows of vehicles add up like the sums they are made of, and tell which vehicle differs."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.vehicles import BAD, SPACE, fleets, tracks
from monitor.statistics.bins import Binning
from monitor.statistics.clusters import cluster_id
from monitor.statistics.holdings import Holdings
from monitor.statistics.observations import finished
from monitor.statistics.state import SliceState, Stages, StatisticsState, observe
from monitor.statistics.vehicles import (
    BIAS,
    FEWEST_VEHICLES,
    JOINT,
    NO_VEHICLES,
    SCALE,
    VehicleRows,
    compare,
    of_state,
    row_layout,
    row_of,
    with_rows,
)
from tests.laws import costly
from tests.states import WINDOWS, bits, counted, merged_in_any_order, random_rows

CAR = f"car {BAD}"


def test_a_row_is_what_the_rows_of_detections_say():
    random, binning = np.random.default_rng(3), Binning()
    z, sigma, track = tracks(random, 20)
    z[5] *= 1e3  # beyond the cut
    stage = observe(SPACE, binning, z * sigma, (sigma**2)[:, :, None] * np.eye(3), track_ids(track))
    layout, width = row_layout(3)
    value = row_of(stage).value
    assert value.size == width
    found = {name: value[place] for name, place in layout.items()}
    n, sizes = track.size, np.bincount(track)
    assert found["n"] == n
    assert found["pairs"] == (sizes * (sizes - 1) // 2).sum()
    x = np.minimum(np.column_stack((z**2, (z**2).sum(axis=1) / 3)), 64)
    np.testing.assert_allclose(found["x"], x.sum(axis=0), rtol=0.01)  # by the middle of the bin
    np.testing.assert_allclose(found["square"], (x**2).sum(axis=0), rtol=0.03)
    np.testing.assert_allclose(found["sigma"], sigma.sum(axis=0))
    np.testing.assert_allclose(found["below"], np.where(z < 0, sigma, 0).sum(axis=0))
    np.testing.assert_allclose(found["log_sigma"], np.log(sigma).sum(axis=0), atol=1e-6)


def track_ids(track):
    return cluster_id((track,))


@costly
@given(seed=st.integers(0, 2**32 - 1), parts=st.integers(1, 5))
def test_rows_of_uploads_add_up_to_the_row_of_all_that_was_counted(seed, parts):
    """Whoever counted which rows, with labels taken back, in any order, to the last bit."""
    random = np.random.default_rng(seed)
    rows = random_rows(seed, 40)
    rows += [replace(row, sign=-1) for row in rows[:10]]
    whole = of_state("car", counted(rows))
    shard = random.integers(parts, size=len(rows))
    states = [
        counted([row for row, of in zip(rows, shard, strict=True) if of == i]) for i in range(parts)
    ]
    found = merged_in_any_order([of_state("car", one) for one in states], VehicleRows.merge, random)
    assert bits(found) == bits(whole)
    cut = int(random.integers(len(rows)))
    earlier, now = counted(rows[:cut]), counted(rows)
    gained = finished(now.since(earlier))
    assert bits(of_state("car", earlier).merge(of_state("car", gained))) == bits(whole)
    assert bits(whole.merge(whole.negated())) == bits(NO_VEHICLES)
    others = whole.merge(of_state("bus", earlier))
    assert bits(others) == bits(of_state("bus", earlier).merge(whole))


def test_only_an_upload_of_one_vehicle_gets_rows_and_a_merged_state_has_those_of_all():
    bare = counted(random_rows(1, 20))
    one, other = (
        with_rows(replace(bare, holds=Holdings.of(name, "a", 1))) for name in ("car 1", "car 2")
    )
    both = one.merge(other)
    assert list(both.vehicles.rows) == ["car 1", "car 2"]
    assert with_rows(both) is both
    assert bits(with_rows(replace(one, vehicles=other.vehicles))) == bits(one)
    assert with_rows(bare) is bare
    assert bits(finished(both.since(one)).vehicles) == bits(other.vehicles)


@pytest.fixture(scope="module")
def fleet() -> dict[str, VehicleRows]:
    return dict(fleets(seed=4, vehicles=60, spread=0.05))


def test_the_vehicle_that_differs_is_named_and_no_other(fleet):
    found = {kind: compare(rows) for kind, rows in fleet.items()}
    assert not found["healthy"].found
    wrong = found["variance ÷ 2.5"]
    assert list(wrong.by_vehicle) == [CAR]
    first = next(one for one in wrong.found if (one.slice, one.dimension) == ("Car", JOINT))
    assert first.quantity == SCALE
    assert 1.4 < first.low < first.size < first.high < 1.75  # √2.5 is 1.58
    assert "as large for the same σ as in the fleet" in first.words
    assert {one.quantity for one in wrong.found} == {SCALE}
    moved = found["moved"]
    assert list(moved.by_vehicle) == [CAR]
    assert {(one.quantity, one.dimension) for one in moved.found} == {(BIAS, "y")}
    assert all(one.size > 0 and one.unit == "m" for one in moved.found)
    assert [moved.different(at, BIAS) for at in moved.slices] == [
        sum(one.slice == at.slice for one in moved.found) for at in moved.slices
    ]


def test_few_vehicles_or_little_data_prove_nothing(fleet):
    rows = fleet["variance ÷ 2.5"].rows
    some = [CAR, *(name for name in rows if name != CAR)]
    few = compare(VehicleRows({name: rows[name] for name in some[: FEWEST_VEHICLES - 1]}))
    assert [(one.compared, one.too_little) for one in few.slices] == [(0, 4)] * 3
    assert not few.found
    assert not compare(NO_VEHICLES).slices
    little = of_state("new", state_of(3, many=5))
    assert compare(fleet["healthy"].merge(little)).slices[0].too_little == 1
    # As much was taken back as came, and more.
    compare(fleet["healthy"].merge(little.negated()))


def state_of(seed: int, many: int = 100, gross: int = 0, made: float = 1.0) -> StatisticsState:
    """A slice `Car` of one vehicle; gross errors; and a recalibrator's factor on variances."""
    z, sigma, track = tracks(np.random.default_rng(seed), many)
    z[:gross] *= 1e9
    variance = (sigma**2)[:, :, None] * np.eye(3)
    ids = track_ids(track)
    raw = observe(SPACE, Binning(), z * sigma, variance, ids)
    last = raw if made == 1 else observe(SPACE, Binning(), z * sigma, made * variance, ids)
    panes = {WINDOWS.oldest: Stages(raw, last)}
    return StatisticsState(Binning(), WINDOWS, slices=(SliceState("Car", SPACE, False, panes),))


def test_a_few_gross_errors_make_no_vehicle_differ_and_a_bad_recalibrator_does():
    fleet = [of_state(f"car {i}", state_of(i)) for i in range(40)]
    rows = reduce(VehicleRows.merge, fleet)
    assert not compare(rows.merge(of_state("gross", state_of(50, gross=3)))).found
    found = compare(rows.merge(of_state("adapted", state_of(51, made=1 / 4))))
    assert {(one.vehicle, one.stage) for one in found.found} == {("adapted", "recalibrated")}
    assert all(1.7 < one.size < 2.3 for one in found.found)
