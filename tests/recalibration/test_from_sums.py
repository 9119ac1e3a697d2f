"""Fits on the sample of a state: as good as those on all rows."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np
import pytest

from monitor.frames.slices import marked
from monitor.frames.space import packed_covariances
from monitor.frames.words import SliceBy
from monitor.recalibration.fit_rows import FitRows
from monitor.recalibration.fitting import FITTINGS, FitOptions
from monitor.recalibration.from_sums import StateEvidence
from monitor.recalibration.recalibrator import UnfitData
from monitor.statistics.bins import Binning
from monitor.statistics.clusters import cluster_id
from monitor.statistics.sample import SampledSlice, no_rows
from monitor.statistics.state import SliceState, Slicing, Stages, StatisticsState
from monitor.statistics.windows import Windows
from tests.recalibration.rows import joined, nll, sizes

MOST = 2000
WINDOWS = Windows((60_000_000_000,), 6)


def state_of(assumed: Collection[str] = (), **slices: FitRows) -> StatisticsState:
    """As a sidecar with slices by class has it; `assumed` names those without a covariance, too."""
    sums, samples = [], []
    kinds = [*slices.items()]
    for name in assumed:
        rows = slices[name]
        kinds.append((marked(name), replace(rows, space=rows.space.with_assumed)))
    for seed, (name, rows) in enumerate(kinds):
        stages = Stages(rows.statistics, rows.statistics)
        sums.append(SliceState(name, rows.space, False, {(1, 0): stages}))
        sent, k = rows.estimates, rows.space.k
        packed = packed_covariances(sent.covariance, k * (k + 1) // 2)
        found = no_rows(k, MOST).seen(
            cluster_id((np.arange(rows.n), seed)),
            np.concatenate((sent.mean, packed, rows.error), axis=1),
            cluster_id((rows.track,)),
            retracted=False,
        )
        samples.append(SampledSlice(name, rows.space, False, found))
    return StatisticsState(
        *(Binning(), WINDOWS, None, tuple(sums)), slicing=Slicing(("class",)), sample=tuple(samples)
    )


def times_two(mean):
    """Of the variance, whatever was seen."""
    return np.full((len(mean), 1), np.log(2.0))


@pytest.mark.parametrize("seed", range(3))
def test_a_process_on_the_sample_loses_less_than_a_hundredth_of_a_nat(seed):
    """Slices differ, and one has ten times as many detections in the same number of rows."""

    def drive(seed: int) -> tuple[FitRows, FitRows]:
        return sizes(seed, 15_000), sizes(seed + 10, 1500, factor=times_two)

    car, person = drive(seed)
    evidence = StateEvidence.of(state_of(car=car, person=person), "gp-normal")
    sample = evidence.taken("gp-normal")
    assert 0.8 * 1500 / 15_000 < sample.n / MOST - 1 < 1.2 * 1500 / 15_000
    assert evidence.taken("gp-normal", np.array([1])).n == 1500
    fresh = joined(*drive(seed + 100))
    losses = []
    for rows in (sample, joined(car, person)):
        made = FITTINGS["gp-normal"].fit(rows, FitOptions(), None).apply(fresh.estimates)
        losses.append(nll(made.deviation, fresh.error))
    assert losses[0] - losses[1] < 0.01
    assert nll(fresh.deviation, fresh.error) - losses[0] > 0.2


def test_covariances_that_were_sent_are_fitted_apart_from_those_that_are_assumed():
    """One state holds both: a method that corrects takes the former, one that estimates the
    latter, and slices have the names of their classes either way."""
    car, person = sizes(0, 1200), sizes(1, 600)
    mixed = state_of(("person",), car=car, person=person)
    for method, n, names in (
        ("variance-scaling", 1800, ["car", "person"]),
        ("covariance-regression", 600, ["person"]),
    ):
        evidence = StateEvidence.of(mixed, method)
        assert evidence.taken(method).n == n
        assert FITTINGS[method].fit(evidence.taken(method), FitOptions(), None).method == method
        assert evidence.space.assumed is (method == "covariance-regression")
        assert [one.name for one in evidence.divided((SliceBy.CLASS,))] == names
        assert evidence.classes == tuple(names)
    # Errors are errors, whatever came with them.
    assert StateEvidence.of(state_of(car=car), "residual-covariance").space == car.space


def test_no_scaling_is_fitted_to_assumed_covariances():
    state = state_of(("car",), car=sizes(0, 100))
    bare = replace(state, slices=tuple(one for one in state.slices if one.space.assumed))
    with pytest.raises(UnfitData, match=r"no labelled .* Give --method covariance-regression"):
        StateEvidence.of(bare, "covariance-scaling")
