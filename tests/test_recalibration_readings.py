"""What is exported of recalibrators: what was forwarded last by slice, and how trials stand."""

import pytest

from monitor.config import Config
from monitor.pipeline.promotions import Promotions
from monitor.recalibration.selection import Selection
from monitor.service.readings import RecalibrationReader, RecalibrationReading
from monitor.statistics.observations import finished
from tests.learnt import begin, document, known, promoted, promotions_of
from tests.piped import BAD, HEADER, opened, sent
from tests.promotion.owned_registers import scaled
from tests.received import frame


def reading(promotions: Promotions) -> RecalibrationReading:
    """By somebody who has read nothing before."""
    return finished(RecalibrationReader(promotions).read())


def typical(found: RecalibrationReading) -> dict[str, list[float]]:
    return {
        slice: [round(factor.typical, 9) for factor in factors]
        for slice, factors in found.factors.items()
    }


def send(promotions, *classes: int, number: int = 1) -> None:
    """A frame with a detection of each class."""
    rows = [sent(i, classes=1) for i in range(len(classes))]
    stream = opened(promotions.pipeline)
    received = frame(rows, frame_id=number)
    received.detections.class_index[:] = classes
    promotions.pipeline.process(stream, received)


def test_before_any_frame_there_is_nothing_but_counts():
    assert reading(promotions_of("car")) == RecalibrationReading()


def test_factors_are_those_that_were_applied_by_slice():
    promotions = promotions_of()
    (version,) = known(promotions, document(truck=9.0))
    promotions.promote(version, "anna")
    send(promotions, 0, 1, 1)
    found = reading(promotions)
    assert typical(found) == {"car": [1.0] * 3, "truck": [9.0] * 3}
    for factors in found.factors.values():
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
    readings = RecalibrationReader(promotions)
    send(promotions, 0, 1)
    finished(readings.read())
    send(promotions, 0, number=2)
    assert typical(finished(readings.read())) == {"car": [4.0] * 3, "truck": [1.0] * 3}
    assert typical(reading(promotions)) == {"car": [4.0] * 3}


def test_what_another_recalibrator_made_is_forgotten_with_it():
    promotions = promotions_of("car")
    readings = RecalibrationReader(promotions)
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
    readings = RecalibrationReader(promotions)
    send(promotions, 0)
    before = finished(readings.read()).factors
    promotions.pipeline.process(opened(promotions.pipeline, HEADER), frame([BAD]))
    assert finished(readings.read()).factors == before != {}


def test_every_stream_is_a_step_of_its_own():
    promotions = promotions_of()
    send(promotions, 0)
    (recalibrated,) = promotions.pipeline.latest.values()
    promotions.pipeline.latest = dict.fromkeys(("one", "two", "three"), recalibrated)
    assert len(list(RecalibrationReader(promotions).read())) == 3


def test_it_is_as_of_its_moment():
    promotions = promotions_of("car")
    begin(promotions, scaled(4.0))
    found = reading(promotions)
    assert found.trials == promotions.trials()
    assert found.counters.trials["began"] == 1
    assert not found.pinned
    begin(promotions, scaled(5.0))
    promotions.pin(pinned=True, actor="anna")
    promoted(promotions, 9.0)
    promotions.rollback(Selection, "", "anna")
    assert found.counters.trials["began"] == 1
    assert found.counters.swaps["promoted"] == 0
    later = reading(promotions)
    assert later.pinned
    assert (later.counters.trials["began"], later.counters.swaps["rolled_back"]) == (3, 1)
