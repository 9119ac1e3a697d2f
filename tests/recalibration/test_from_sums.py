"""Fits on the sample of a state: as good as those on all rows."""

from __future__ import annotations

import numpy as np
import pytest

from monitor.frames.space import packed_covariances
from monitor.recalibration.fit_rows import FitRows
from monitor.recalibration.fitting import FITTINGS, FitOptions
from monitor.recalibration.from_sums import StateEvidence
from monitor.statistics.bins import Binning
from monitor.statistics.clusters import cluster_id
from monitor.statistics.sample import SampledSlice, no_rows
from monitor.statistics.state import SliceState, Slicing, Stages, StatisticsState
from monitor.statistics.windows import Windows
from tests.recalibration.rows import joined, nll, sizes

MOST = 2000
WINDOWS = Windows((60_000_000_000,), 6)


def state_of(**slices: FitRows) -> StatisticsState:
    """As a sidecar with slices by class has it."""
    sums, samples = [], []
    for seed, (name, rows) in enumerate(slices.items()):
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
    evidence = StateEvidence.of(state_of(car=car, person=person))
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
