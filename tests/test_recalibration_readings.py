"""What is exported of recalibrators: what was applied last in every slice, and how trials stand."""

import pytest

from monitor.recalibration.selection import Selection
from monitor.recalibration_reading import RecalibrationReading, SliceFactors
from monitor.recalibration_readings import reading
from tests.learnt import begin, document, known, promoted, promotions_of
from tests.piped import BAD, HEADER, opened, sent
from tests.promotion.owned_registers import scaled
from tests.received import frame


def typical(found: RecalibrationReading) -> dict[str, list[float]]:
    return {
        entry.slice: [round(factor.typical, 9) for factor in entry.factors]
        for entry in found.factors
    }


def send(promotions, *classes: int, number: int = 1) -> None:
    """A frame with a detection of each class."""
    rows = [sent(i, classes=1) for i in range(len(classes))]
    stream = opened(promotions.pipeline)
    received = frame(rows, frame_id=number)
    received.detections.class_index[:] = classes
    promotions.pipeline.process(stream, received)


def test_before_any_frame_there_is_nothing_but_counts():
    assert reading(promotions_of("car"), 3, ()) == RecalibrationReading(store_failures=3)


def test_factors_are_those_that_were_applied_by_slice():
    promotions = promotions_of()
    (version,) = known(promotions, document(truck=9.0))
    promotions.promote(version, "anna")
    send(promotions, 0, 1, 1)
    found = reading(promotions, 0, ())
    assert typical(found) == {"car": [1.0] * 3, "truck": [9.0] * 3}
    for entry in found.factors:
        assert [factor.dimension for factor in entry.factors] == ["x", "y", "z"]
        for factor in entry.factors:
            assert factor.lowest == pytest.approx(factor.highest)


def test_a_promotion_is_seen_with_the_next_frame():
    promotions = promotions_of()
    send(promotions, 0)
    promoted(promotions, 4.0)
    assert typical(reading(promotions, 0, ())) == {"car": [1.0] * 3}
    send(promotions, 0, number=2)
    assert typical(reading(promotions, 0, ())) == {"car": [4.0] * 3}


def test_slices_of_which_nothing_came_since_keep_what_was_last_applied():
    promotions = promotions_of()
    send(promotions, 0, 1)
    before = reading(promotions, 0, ()).factors
    promoted(promotions, 4.0)
    send(promotions, 0, number=2)
    assert typical(reading(promotions, 0, before)) == {"car": [4.0] * 3, "truck": [1.0] * 3}
    assert typical(reading(promotions, 0, ())) == {"car": [4.0] * 3}


def test_a_frame_without_usable_detections_says_nothing():
    promotions = promotions_of("car")
    promotions.pipeline.process(opened(promotions.pipeline, HEADER), frame([BAD]))
    known_before = (SliceFactors("car", ()),)
    assert reading(promotions, 0, known_before).factors == known_before


def test_it_is_as_of_its_moment():
    promotions = promotions_of("car")
    begin(promotions, scaled(4.0))
    found = reading(promotions, 0, ())
    assert found.trials == promotions.trials()
    assert found.counters.trials.began == 1
    assert not found.pinned
    begin(promotions, scaled(5.0))
    promotions.pin(pinned=True, actor="anna")
    promoted(promotions, 9.0)
    promotions.rollback(Selection, "", "anna")
    assert found.counters.trials.began == 1
    assert found.counters.swaps.promoted == 0
    later = reading(promotions, 0, ())
    assert later.pinned
    assert (later.counters.trials.began, later.counters.swaps.rolled_back) == (3, 1)
