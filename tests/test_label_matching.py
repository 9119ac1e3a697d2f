"""Labels of a message that cannot be used, or not all of it: nothing is counted by mistake."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from monitor.frames.detections import Reason
from monitor.frames.frame import ReceivedRegion, ReceivedTruth
from monitor.pipeline.frame_path import Pipeline
from tests.piped import CLASSES, HEADER, account_of, opened, pipeline_of, reported
from tests.received import Label, Sent, frame, labels
from tests.test_object_labels import Told, objects

APART = 10.0
OWN = replace(HEADER, coordinate_frame="base")


def three_wait() -> Pipeline:
    pipeline = pipeline_of()
    rows = [Sent(i, (APART * i, 0.0, 0.0), (1.0, 1.0, 1.0)) for i in range(3)]
    pipeline.process(opened(pipeline, OWN), frame(rows, 1))
    return pipeline


def region(dimension: str) -> ReceivedRegion:
    return ReceivedRegion(-1, (dimension,), np.array([-100.0]), np.array([100.0]))


def all_kinds(coordinate_frame: str) -> ReceivedTruth:
    """A label by id; two samples of one object, and another object that is ignored."""
    told = Told(7, 0, (APART, 0.1, 0.0))
    return replace(
        labels([Label(0, (0.1, 0.0, 0.0))], 1, complete=True),
        coordinate_frame=coordinate_frame,
        class_names=CLASSES,
        foreign=objects(told, told, Told(8, 0, (2 * APART, 0.0, 0.0), ignore=True)),
    )


def test_labels_in_another_coordinate_frame_are_all_refused_and_every_detection_stays_open():
    pipeline = three_wait()
    answer = reported(pipeline, all_kinds("map"))
    assert account_of(answer.account) == {"refused": 4}
    (notice,) = answer.notices
    assert (notice.reason, notice.field) == (Reason.COORDINATE_FRAME, "coordinate_frame")
    assert notice.count == 4
    assert "'map'" in notice.message
    assert "'base'" in notice.message
    assert pipeline.ledger.fates.pending == 3
    again = reported(pipeline, all_kinds("base"))
    assert account_of(again.account) == {"matched": 2, "duplicate": 1, "ignored": 1}


@pytest.mark.parametrize("named", ["", "base"])
def test_labels_in_the_frame_of_the_header_or_in_none_that_is_named_are_matched(named):
    answer = reported(three_wait(), all_kinds(named))
    assert account_of(answer.account) == {"matched": 2, "duplicate": 1, "ignored": 1}


@pytest.mark.parametrize(
    ("dimension", "coordinate_frame"), [("X", ""), ("x", "map")], ids=["dimension", "frame"]
)
def test_where_a_region_cannot_be_used_no_detection_is_a_false_positive(
    dimension, coordinate_frame
):
    pipeline = three_wait()
    told = replace(
        labels([], 1, complete=True),
        regions=(region(dimension),),
        coordinate_frame=coordinate_frame,
    )
    answer = reported(pipeline, told)
    assert len(answer.notices) == 1
    assert pipeline.counters.unmatched == 0
    assert pipeline.ledger.fates.pending == 3
    reported(pipeline, replace(told, regions=(region("x"),), coordinate_frame=""))
    assert pipeline.ledger.fates.account["ignored"] == 3


def test_regions_of_a_stream_that_cannot_be_measured_make_no_false_positive():
    pipeline = pipeline_of(matching={"dimensions": ["u"]})
    pipeline.process(opened(pipeline), frame([Sent(0, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))], 1))
    reported(pipeline, replace(labels([], 1, complete=True), regions=(region("x"),)))
    assert pipeline.counters.unmatched == 0
    assert pipeline.ledger.fates.pending == 1
