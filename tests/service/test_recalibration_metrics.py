"""The factors that Prometheus sees are those that were forwarded last, by slice."""

from __future__ import annotations

from collections.abc import Mapping

from monitor.pipeline.promotions import Promotions
from monitor.promotion.records import Factor
from monitor.recalibration.selection import Selection
from monitor.service.http import FactorReader
from monitor.statistics.observations import finished
from tests.learnt import promoted, promotions_of
from tests.piped import opened, sent
from tests.received import frame

Factors = Mapping[str, tuple[Factor, ...]]


def reading(acting: Promotions) -> Factors:
    return finished(FactorReader(acting.pipeline).read())


def typical(found: Factors) -> dict[str, list[float]]:
    return {
        slice: [round(factor.typical, 9) for factor in factors] for slice, factors in found.items()
    }


def send(acting, *classes: int, number: int = 1) -> None:
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
