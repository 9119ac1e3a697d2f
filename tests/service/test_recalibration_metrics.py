"""What Prometheus sees of recalibrators: outcomes under their names, and the factors that were
forwarded last, by slice."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from monitor.pipeline.promotions import (
    FIT_OUTCOMES,
    SWAP_OUTCOMES,
    TRIAL_OUTCOMES,
    Promotions,
    RecalibrationCounters,
)
from monitor.pipeline.recalibrators import ActiveRecalibrator
from monitor.promotion.records import SWAPS, Factor
from monitor.recalibration.selection import Selection
from monitor.service.readings import FactorReader
from monitor.service.slice_metrics import recalibrators
from monitor.statistics.observations import finished
from tests import exported
from tests.learnt import promoted, promotions_of
from tests.piped import opened, pipeline_of, sent
from tests.received import frame

IN_FORCE = (ActiveRecalibrator("variance-scaling-0123456789ab", "variance-scaling", "gaussian"),)

OUTCOMES = {
    "recalibrator_swaps": ("promoted", "rolled_back", "adapted"),
    "recalibrator_fits": ("candidate", "nothing", "refused", "failed", "superseded"),
    "recalibrator_trials": (
        *("began", "proven", "promoted"),
        *("discarded_worse", "discarded_unsound", "discarded_over", "superseded"),
    ),
}


@pytest.mark.parametrize(
    ("name", "outcomes"),
    [
        ("recalibrator_swaps", SWAP_OUTCOMES),
        ("recalibrator_fits", FIT_OUTCOMES),
        ("recalibrator_trials", TRIAL_OUTCOMES),
    ],
)
def test_every_outcome_is_counted_under_its_own_name(name, outcomes):
    # Whatever puts another recalibrator in force has an outcome.
    assert {str(what) for what in SWAPS} == set(OUTCOMES["recalibrator_swaps"])
    counts = {outcome: number for number, outcome in enumerate(outcomes, 1)}
    field = name.removeprefix("recalibrator_")
    counted = RecalibrationCounters(**{field: counts})
    promotions = exported.LaidDown(pipeline_of(), counters=counted)
    text = "".join(recalibrators(IN_FORCE, "apply", promotions, {}))
    for number, outcome in enumerate(OUTCOMES[name], 1):
        assert text.count(f'calibration_{name}_total{{outcome="{outcome}"}} {number}.0\n') == 1


# ---- factors that were forwarded

Factors = Mapping[str, tuple[Factor, ...]]


def reading(acting: Promotions) -> Factors:
    """By somebody who has read nothing before."""
    return finished(FactorReader(acting.pipeline).read())


def typical(found: Factors) -> dict[str, list[float]]:
    return {
        slice: [round(factor.typical, 9) for factor in factors] for slice, factors in found.items()
    }


def send(acting, *classes: int, number: int = 1) -> None:
    """A frame with a detection of each class."""
    rows = [sent(i, classes=1) for i in range(len(classes))]
    stream = opened(acting.pipeline)
    received = frame(rows, frame_id=number)
    received.detections.class_index[:] = classes
    acting.pipeline.process(stream, received)


def test_factors_are_those_that_were_forwarded_last_under_what_is_active():
    acting = promotions_of("car")
    send(acting, 0)
    assert typical(reading(acting)) == {"car": [1.0] * 3}
    promoted(acting, 4.0)
    assert typical(reading(acting)) == {}
    readings = FactorReader(acting.pipeline)
    send(acting, 0, 1, number=2)
    finished(readings.read())
    send(acting, 0, number=3)
    # A slice of which nothing came since keeps what was last forwarded, for who has read it.
    assert typical(finished(readings.read())) == {"car": [4.0] * 3, "truck": [1.0] * 3}
    assert typical(reading(acting)) == {"car": [4.0] * 3}
    acting.rollback(Selection, "", "anna")
    assert typical(finished(readings.read())) == {}
