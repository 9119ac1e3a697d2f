"""Labels of many objects are matched off the loop, and count as if they had been on it."""

import threading
from dataclasses import replace

import numpy as np
import pytest

from monitor.frames.frame import ReceivedTruth, TruthAnswer
from monitor.matching.labels import match
from monitor.pipeline import truth
from monitor.pipeline.frame_path import Pipeline
from monitor.pipeline.truth import Ahead
from monitor.store.entries import Kept
from monitor.v1 import perception_monitor_pb2 as pb
from monitor.v1 import truth_pb2
from tests.journals import ListJournal
from tests.ledger_oracle import APART, HEADERS, Came, Message, Named, Thing
from tests.matching.told import Told, objects
from tests.piped import account_of, counted, fateless, opened, pipeline_of
from tests.service.handled import labelled, service_of


def world(journal: ListJournal | None = None, **pending: int) -> Pipeline:
    """A frame of three detections in waiting."""
    pipeline = pipeline_of(journal=journal, pending=pending, tracker={"kind": "none"})
    stream = opened(pipeline, HEADERS["lidar"])
    pipeline.process(stream, Came("lidar", 1, 1).received())
    return pipeline


def told(revision: int = 0) -> ReceivedTruth:
    return Message(
        "lidar", 1, things=tuple(Thing(i, at=i) for i in range(3)), revision=revision
    ).received()


def ahead_of(pipeline: Pipeline, labels: ReceivedTruth, found: Kept | None = None) -> Ahead:
    """Labels matched now, for a report that comes later."""
    heavy = pipeline.ledger.heavy(labels, found)
    assert heavy is not None
    last, matching = heavy
    return last, matching()


def reported(pipeline: Pipeline, labels: ReceivedTruth, ahead: Ahead) -> TruthAnswer:
    answer = pipeline.ledger.report(labels, ahead=ahead)
    assert isinstance(answer, TruthAnswer)
    return answer


@pytest.fixture
def all_heavy(monkeypatch):
    monkeypatch.setattr(truth, "HEAVY", 1)


# ---- what is heavy


def test_covariances_are_heavy_however_few_the_detections_are():
    pipeline = world()
    for n, heavy in ((truth.HEAVY // 12 + 1, True), (truth.HEAVY // 12, False)):
        # n objects that the labeller is unsure of cost n · 3 pairs and n · 3² values.
        rows = [Told(i, 0, (0.0,) * 3, covariance=(1.0,) * 3) for i in range(n)]
        unsure = objects(*rows)
        sure = replace(unsure, covariance_length=np.zeros(n, np.int64))
        assert (pipeline.ledger.heavy(replace(told(), foreign=unsure)) is not None) == heavy
        assert pipeline.ledger.heavy(replace(told(), foreign=sure)) is None


def test_a_frame_that_the_disk_gave_back_is_matched_ahead_once(all_heavy, monkeypatch):
    pipeline = world(journal := ListJournal(), max_bytes=1)
    assert pipeline.ledger.heavy(told()) is None
    found = journal.look_up("lidar", 1, None)
    ahead = ahead_of(pipeline, told(), found)
    monkeypatch.delattr(truth, "match")
    pipeline.ledger.report(told(), found, ahead)
    assert pipeline.ledger.fates.account["matched"] == 3


# ---- what happens meanwhile


def test_labels_that_came_meanwhile_and_those_of_two_streams_at_once_count_once(all_heavy):
    pipeline = world()
    ahead = ahead_of(pipeline, told())
    pipeline.ledger.report(Message("lidar", 1, (Named(1),)).received())
    answer = reported(pipeline, told(), ahead)
    assert account_of(answer.account) == {"matched": 2, "duplicate": 1}
    one, other = ahead_of(pipeline, told(1)), ahead_of(pipeline, told(1))
    first, second = (reported(pipeline, told(1), ahead) for ahead in (one, other))
    assert account_of(first.account) == {"matched": 3}
    assert account_of(second.account) == {"duplicate": 3}
    assert fateless(pipeline.ledger.fates) == pipeline.ledger.fates.pending == 0
    assert counted(pipeline)["total"].raw.n == 3


# ---- on a stream


def answered(pipeline: Pipeline) -> pb.ReportGroundTruthResponse:
    """The three objects over a stream."""
    sent = truth_pb2.FrameTruth(stream="lidar", frame_id=1)
    for i in range(3):
        place = [APART * (i + 1), 0.3, 0.0]
        sent.objects.add(object_id=i, class_index=i, ground_truth=place)
    message = pb.ReportGroundTruthRequest(truth=sent).SerializeToString()
    (answer,) = labelled(service_of(pipeline), message)
    return answer


@pytest.mark.parametrize("where", ["in memory", "fails"])
def test_heavy_labels_are_matched_once_and_off_the_loop_and_on_it_if_that_fails(
    all_heavy, monkeypatch, caplog, where
):
    threads = []

    def noted(*args, **kwargs):
        threads.append(threading.current_thread() is threading.main_thread())
        if where == "fails" and not threads[-1]:
            raise MemoryError
        return match(*args, **kwargs)

    monkeypatch.setattr(truth, "match", noted)
    assert answered(world()).account.matched == 3
    assert threads == ([False, True] if where == "fails" else [False])
    assert ("not matched ahead" in caplog.text) == (where == "fails")
