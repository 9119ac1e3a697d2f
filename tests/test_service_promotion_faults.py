"""Fits that go wrong beside a real sidecar: the champion stays, frames are answered, and nothing is
left behind.
"""

from __future__ import annotations

from typing import Any

import grpc
import numpy as np
import pytest

from monitor.recalibration.selection import IDENTITY
from monitor.v1 import recalibrator_admin_pb2 as admin_pb
from monitor.v1.recalibration_record_pb2 import RecalibrationRecord as Record
from tests.edges.fit_processes import SOON, is_there
from tests.foreign_client import promote, scaling
from tests.promoted import (
    BEGAN,
    FIT_FAILED,
    Traffic,
    Watcher,
    active_version,
    drive,
    drive_for,
    fit,
    series,
    settings,
    trials,
)
from tests.promoted_fits import Fits, is_fitting, workers
from tests.served import PATIENCE, Sidecar, eventually, running, starting

CLASSES = ("car", "van")


@pytest.fixture(scope="module")
def troubled(tmp_path_factory):
    """Fits; and traffic to a sidecar where cars have a candidate on trial beside a champion, and
    vans are fitted all the time.
    """
    with pytest.MonkeyPatch.context() as patch:
        fits = Fits.under(tmp_path_factory.mktemp("fits"), patch)
        # A slice is not fitted while it has a trial that is not decided: so vans alone are.
        config = settings(hysteresis=1.8, alpha=1e-300, trial_tracks=10**6)
        with running(tmp_path_factory.mktemp("troubled"), config) as sidecar:
            traffic, watcher = Traffic(sidecar, CLASSES), Watcher(sidecar)
            promote(sidecar, document=scaling(2.0, 2.0))
            traffic.variance |= {"car": 0.08, "van": 0.25}
            drive(traffic, until=lambda: watcher.of(BEGAN, slice="car"), tracks=3000)
            yield fits, traffic, watcher
            watcher.close()
            traffic.close()


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("crashes", "signal SIGSEGV"),
        ("raises", "the fit fell over"),
        ("says something else", "cannot be used"),
        ("never stops talking", "more than"),
    ],
)
def test_a_fit_that_goes_wrong_changes_nothing_and_is_told(troubled, what, words):
    fits, traffic, watcher = troubled
    sidecar, champion = traffic.sidecar, active_version(traffic.sidecar)
    before = on_trial(sidecar)
    failed, known = counted(sidecar, "failed"), len(watcher.of(FIT_FAILED))
    fits.now(what)

    def told() -> list[Record]:
        return [record for record in watcher.of(FIT_FAILED)[known:] if words in record.reason]

    drive(traffic, until=told, tracks=4000)
    record = told()[0]
    assert (record.slice, record.actor, record.version) == ("van", "schedule", "")
    assert record.before == record.after == champion == active_version(sidecar)
    assert not record.HasField("evidence")
    drive(traffic, until=lambda: tracks_tried(sidecar) > before.evidence.tracks, tracks=1000)
    assert on_trial(sidecar).version == before.version
    assert traffic.versions == (champion,)
    assert eventually(lambda: counted(sidecar, "failed") > failed)

    fits.now("nothing")
    fitted = counted(sidecar, "nothing")
    drive(traffic, until=lambda: counted(sidecar, "nothing") > fitted, tracks=6000)


def on_trial(sidecar: Sidecar) -> admin_pb.Trial:
    """The candidate for cars."""
    return trials(sidecar)["car", admin_pb.TRIAL_STATE_RUNNING]


def tracks_tried(sidecar: Sidecar) -> int:
    found: int = on_trial(sidecar).evidence.tracks
    return found


def counted(sidecar: Sidecar, outcome: str) -> float:
    return series(sidecar, "recalibrator_fits_total")[f'outcome="{outcome}"']


def test_who_asks_for_a_fit_that_goes_wrong_is_told_why(troubled):
    fits, traffic, watcher = troubled
    fits.now("raises")
    known = len(watcher.of(FIT_FAILED))
    with pytest.raises(grpc.RpcError) as caught:
        fit(traffic.sidecar, "van")
    assert "the fit fell over" in str(caught.value)
    assert eventually(lambda: [r for r in watcher.of(FIT_FAILED)[known:] if r.actor == "test"])
    fits.now("nothing")


@pytest.fixture
def begin(tmp_path, monkeypatch):
    """Starts a sidecar whose fits do not come to their end by themselves: traffic to it."""
    fits = Fits.under(tmp_path, monkeypatch)
    with starting(tmp_path, settings()) as started:

        def beginning(what: str, **promotion: Any) -> Traffic:
            fits.now(what)
            return Traffic(started(settings(**promotion)), variance={"car": 0.2})

        yield beginning


def fitting(traffic: Traffic) -> set[int]:
    """The worker of a sidecar, once it has its job."""
    server = traffic.sidecar.process.pid
    drive(traffic, until=lambda: workers(server), tracks=4000)
    assert eventually(lambda: any(map(is_fitting, workers(server))), 6 * PATIENCE)
    return workers(server)


def test_a_fit_that_hangs_is_ended_and_told(begin):
    traffic = begin("hangs", fit_timeout_seconds=3.0)
    sidecar, watcher = traffic.sidecar, Watcher(traffic.sidecar)
    drive(traffic, until=lambda: watcher.of(FIT_FAILED), tracks=4000)
    (record, *_) = watcher.of(FIT_FAILED)
    assert "longer than 3 s" in record.reason
    assert (record.slice, record.before, record.after) == ("car", *[IDENTITY.version] * 2)
    traffic.send(1)
    assert traffic.versions == (active_version(sidecar),) == (IDENTITY.version,)
    assert not trials(sidecar)


def test_frames_are_answered_while_a_fit_runs_and_who_is_told_to_stop_takes_it_along(begin):
    traffic = begin("hangs")
    sidecar = traffic.sidecar
    (worker,) = fitting(traffic)
    frames = traffic.frames
    drive_for(traffic, 300)
    assert workers(sidecar.process.pid) == {worker}
    assert traffic.frames - frames > 100
    assert series(sidecar, "detections_total")['outcome="refused"'] == 0
    assert np.array_equal(traffic.forwarded, traffic.sent)
    sidecar.stop()
    assert not is_there(worker)
    assert sidecar.stopped()[0] == traffic.frames


@pytest.mark.parametrize("what", ["hangs", "is stopped"])
def test_nothing_is_left_of_a_fit_whose_server_is_killed(begin, what):
    traffic = begin(what)
    left = fitting(traffic)
    assert left
    kill(traffic.sidecar)
    assert eventually(lambda: not any(map(is_there, left)), SOON)


def kill(sidecar: Sidecar) -> None:
    sidecar.process.kill()
    sidecar.process.wait(PATIENCE)


def test_nothing_is_left_of_a_fit_that_has_only_begun_when_its_server_is_killed(begin):
    traffic = begin("hangs")
    server, left = traffic.sidecar.process.pid, set[int]()
    drive_for(traffic, 20)
    while not left:
        traffic.send(2)
        left = workers(server)
    kill(traffic.sidecar)
    # It looks for its parent when it comes to it, at the lowest priority.
    assert eventually(lambda: not any(map(is_there, left)), PATIENCE)
