"""What is exported of recalibrators: the factors that were forwarded last, by slice."""

from collections.abc import Mapping

import pytest

from monitor.config import Config
from monitor.pipeline.promotions import Promotions
from monitor.promotion.records import Factor
from monitor.recalibration.selection import Selection
from monitor.service.readings import FactorReader
from monitor.statistics.observations import finished
from tests.learnt import document, known, promoted, promotions_of
from tests.piped import BAD, HEADER, opened, sent
from tests.received import frame

Factors = Mapping[str, tuple[Factor, ...]]


def reading(promotions: Promotions) -> Factors:
    """By somebody who has read nothing before."""
    return finished(FactorReader(promotions.pipeline).read())


def typical(found: Factors) -> dict[str, list[float]]:
    return {
        slice: [round(factor.typical, 9) for factor in factors] for slice, factors in found.items()
    }


def send(promotions, *classes: int, number: int = 1) -> None:
    """A frame with a detection of each class."""
    rows = [sent(i, classes=1) for i in range(len(classes))]
    stream = opened(promotions.pipeline)
    received = frame(rows, frame_id=number)
    received.detections.class_index[:] = classes
    promotions.pipeline.process(stream, received)


def test_before_any_frame_there_is_nothing():
    assert reading(promotions_of("car")) == {}


def test_factors_are_those_that_were_applied_by_slice():
    promotions = promotions_of()
    (version,) = known(promotions, document(truck=9.0))
    promotions.promote(version, "anna")
    send(promotions, 0, 1, 1)
    found = reading(promotions)
    assert typical(found) == {"car": [1.0] * 3, "truck": [9.0] * 3}
    for factors in found.values():
        assert [factor.dimension for factor in factors] == ["x", "y", "z"]
        for factor in factors:
            assert factor.lowest == pytest.approx(factor.highest)


def test_a_promotion_is_seen_with_the_next_frame():
    promotions = promotions_of()
    send(promotions, 0)
    assert typical(reading(promotions)) == {"car": [1.0] * 3}
    promoted(promotions, 4.0)
    assert typical(reading(promotions)) == {}
    send(promotions, 0, number=2)
    assert typical(reading(promotions)) == {"car": [4.0] * 3}


def test_slices_of_which_nothing_came_since_keep_what_was_last_forwarded():
    promotions = promotions_of("car")
    promoted(promotions, 4.0)
    readings = FactorReader(promotions.pipeline)
    send(promotions, 0, 1)
    finished(readings.read())
    send(promotions, 0, number=2)
    assert typical(finished(readings.read())) == {"car": [4.0] * 3, "truck": [1.0] * 3}
    assert typical(reading(promotions)) == {"car": [4.0] * 3}


def test_what_another_recalibrator_made_is_forgotten_with_it():
    promotions = promotions_of("car")
    readings = FactorReader(promotions.pipeline)
    promoted(promotions, 4.0)
    send(promotions, 0, 1)
    assert typical(finished(readings.read()))["car"] == [4.0] * 3
    promotions.rollback(Selection, "", "anna")
    # No detection of either slice comes any more.
    assert typical(finished(readings.read())) == {}


def test_in_observe_mode_nothing_is_made_of_what_is_forwarded():
    promotions = promotions_of("car")
    promotions.pipeline.config = Config.model_validate({"recalibration": {"mode": "observe"}})
    promoted(promotions, 4.0)
    send(promotions, 0)
    assert typical(reading(promotions)) == {"car": [1.0] * 3}


def test_a_frame_without_usable_detections_takes_nothing_away():
    promotions = promotions_of("car")
    readings = FactorReader(promotions.pipeline)
    send(promotions, 0)
    before = finished(readings.read())
    promotions.pipeline.process(opened(promotions.pipeline, HEADER), frame([BAD]))
    assert finished(readings.read()) == before != {}


def test_every_stream_is_a_step_of_its_own():
    promotions = promotions_of()
    send(promotions, 0)
    (recalibrated,) = promotions.pipeline.latest.values()
    promotions.pipeline.latest = dict.fromkeys(("one", "two", "three"), recalibrated)
    assert len(list(FactorReader(promotions.pipeline).read())) == 3
