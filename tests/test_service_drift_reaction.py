"""What drift and recalibrators have to do with each other in a real sidecar: epochs, fits after a
page; and what remains where nothing is watched, or where the watch itself fails.
"""

from __future__ import annotations

import math

import pytest

from monitor.recalibration.adaptive_scaling import AdaptiveScaling
from monitor.recalibration.selection import Selection
from monitor.v1 import calibration_pb2, drift_pb2
from monitor.v1 import recalibration_record_pb2 as records_pb
from tests.checkpointed import on_disk
from tests.drifting import (
    NEW_EPOCH,
    PAGE,
    QUIET,
    RAISED,
    TICKET,
    TOO_SMALL,
    Drive,
    acknowledge,
    drift_events,
    drive_until_alarm,
    settings,
    stage,
    standing,
)
from tests.foreign_client import promote, scaling
from tests.promoted import BEGAN, Watcher, active_version, listed, series
from tests.served import PATIENCE, Sidecar, eventually, starting

RAW, FORWARDED = calibration_pb2.STAGE_RAW, calibration_pb2.STAGE_RECALIBRATED
OVER = drift_pb2.DRIFT_DIRECTION_OVER
ADAPTED = records_pb.HAPPENED_ADAPTED
# s of healthy driving after which it is known what is usual: 2,000 detections with truth.
LEARNED = 40.0


@pytest.fixture
def start(tmp_path):
    """Starts sidecars with the default budget that end with the test."""
    with starting(tmp_path, settings()) as begin:
        yield begin


def epoch(sidecar: Sidecar) -> float:
    return sidecar.metric("drift_epochs_total")


def left_out(sidecar: Sidecar, reason: str) -> float:
    return series(sidecar, "drift_left_out_total")[f'reason="{reason}"']


# ---- epochs


def test_a_promotion_ends_the_page_and_what_it_compensates_stays_visible_as_a_ticket(start):
    sidecar = start()
    watcher = Watcher(sidecar)
    drive = Drive(sidecar)
    drive.send(LEARNED)
    drive.variance["car"] = TOO_SMALL
    page = drive_until_alarm(drive, 6)
    promote(sidecar, document=scaling(math.sqrt(5), math.sqrt(5)))
    assert eventually(lambda: drift_events(watcher, NEW_EPOCH))
    (over,) = drift_events(watcher, NEW_EPOCH)
    assert over.alarm == page
    assert standing(sidecar).state in QUIET
    assert stage(sidecar, FORWARDED).reference == "shipped"
    assert stage(sidecar, RAW).reference == "learned"

    ticket = drive_until_alarm(drive, 10, severity=TICKET)
    assert (ticket.stage, ticket.direction, ticket.epoch) == (RAW, OVER, 1)
    assert ticket.scale.lower <= math.sqrt(5) <= ticket.scale.upper
    drive.send(20)
    assert standing(sidecar).state in QUIET
    assert standing(sidecar).peak_hours < 1
    told = [(event.change, event.alarm.severity) for event in drift_events(watcher)]
    assert told == [(RAISED, PAGE), (NEW_EPOCH, PAGE), (RAISED, TICKET)]
    assert eventually(lambda: epoch(sidecar) == 1)


def test_what_is_usual_of_another_recalibrator_is_learned_anew_and_drift_is_found_from_it(start):
    sidecar = start()
    drive = Drive(sidecar)
    drive.send(LEARNED)
    first = promote(sidecar, document=scaling(1.1, 1.1)).after
    drive.send(1)
    assert stage(sidecar, FORWARDED).reference == "shipped"
    drive.send(LEARNED)
    assert stage(sidecar, FORWARDED).reference == "learned"
    # The same again is no other one.
    again = promote(sidecar, version=first)
    assert again.before == again.after == first
    drive.send(1)
    assert stage(sidecar, FORWARDED).reference == "learned"
    drive.variance["car"] = TOO_SMALL
    page = drive_until_alarm(drive, 6)
    assert (page.stage, page.epoch) == (FORWARDED, 1)
    assert page.labelled < 8 * drive.frames
    assert eventually(lambda: epoch(sidecar) == 1)


def test_truth_of_what_the_recalibrator_before_has_made_says_nothing_of_the_new_one(start):
    sidecar = start()
    watcher = Watcher(sidecar)
    drive = Drive(sidecar, delay_seconds=3.0)
    drive.send(LEARNED)
    drive.variance["car"] = TOO_SMALL
    # The detector becomes wrong and is put right before any truth of it has come.
    drive.send(3)
    assert standing(sidecar).state in QUIET
    promote(sidecar, document=scaling(math.sqrt(5), math.sqrt(5)))
    drive.send(20)
    assert standing(sidecar).state in QUIET
    assert eventually(lambda: left_out(sidecar, "superseded") == 8 * 3 * 10)
    assert not [event for event in drift_events(watcher, RAISED) if event.alarm.stage == FORWARDED]


def test_an_adaptive_recalibrator_that_follows_stays_in_its_epoch(start):
    more = "mode = 'automatic'\nfit_every_seconds = 1e6\nband = [0.8, 1.25]"
    sidecar = start(settings(more=f"[promotion]\n{more}\n"))
    watcher = Watcher(sidecar)
    drive = Drive(sidecar)
    drive.send(5)
    assert standing(sidecar).state in QUIET
    promote(sidecar, document=Selection(("x", "y"), adaptive()).to_json())
    drive.send(LEARNED)
    before = active_version(sidecar)
    drive.variance["car"] = 1 / 1.6
    for _ in range(60):
        drive.send(2)
        if watcher.of(ADAPTED):
            break
    assert eventually(lambda: watcher.of(ADAPTED))
    assert active_version(sidecar) != before
    drive.send(5)
    assert drive.versions == (active_version(sidecar),)
    assert stage(sidecar, FORWARDED).reference == "learned"
    assert eventually(lambda: epoch(sidecar) == 1)
    assert left_out(sidecar, "superseded") == 0
    assert not drift_events(watcher)


def adaptive() -> AdaptiveScaling:
    """That has followed a calibrated detector in the plane so far."""
    return AdaptiveScaling(
        scale=(1.0, 1.0),
        time_constant_s=10.0,
        delay_s=0.0,
        ended_s=5.0,
        tracks=20.0,
        nees=(20.0, 20.0),
        prior_scale=(1.0, 1.0),
        prior_tracks=0.01,
    )


# ---- a fit after a page


def test_a_page_asks_for_a_fit_and_what_is_fitted_goes_on_trial(start):
    sidecar = start(settings("refit_on_page = true"))
    watcher = Watcher(sidecar)
    drive = Drive(sidecar)
    drive.send(LEARNED)
    assert not watcher.records
    drive.variance["car"] = TOO_SMALL
    drive_until_alarm(drive, 6)
    # No track that is wrong as a whole has ended by then.
    drive.send(15)
    # A fit has the lowest priority: it would wait for us otherwise.
    assert eventually(lambda: watcher.of(BEGAN), 6 * PATIENCE)
    (began,) = watcher.of(BEGAN)
    assert (began.slice, began.actor) == ("car", "drift")
    (trial,) = listed(sidecar).trials
    assert (trial.slice, trial.version) == ("car", began.version)


# ---- not watched


def test_where_nothing_is_watched_nothing_is_told_or_kept(start, tmp_path):
    sidecar = start(settings("watch = false", f"[state]\nfolder = '{tmp_path}/kept'\n"))
    watcher = Watcher(sidecar)
    drive = Drive(sidecar, variance={"car": TOO_SMALL})
    drive.send(LEARNED / 4)
    found = sidecar.calibration()
    assert found.slices[0].stages[0].n == 8 * drive.frames
    assert not found.drift
    assert not found.drift_stages
    assert eventually(lambda: 'slice="car"' in sidecar.get("/metrics"))
    assert "calibration_drift_" not in sidecar.get("/metrics")
    assert acknowledge(sidecar) == []
    sidecar.stop()
    assert not drift_events(watcher)
    assert on_disk(tmp_path / "kept").parts.keys() == {"register", "run", "statistics"}


# ---- the watch fails

# Another sitecustomize: whatever is watched fails while a file is there.
_AT_WATCHING = """
import os, sys

class AsItWatches:
    def find_spec(self, name, path=None, target=None):
        if name == "monitor.pipeline.checkpoints":
            from monitor.drift.family import Family
            well = Family.take

            def take(*arguments):
                if os.path.exists(os.environ["WATCH_FAILS"]):
                    raise ZeroDivisionError("the watch fell over")
                return well(*arguments)

            Family.take = take
        return None

sys.meta_path.insert(0, AsItWatches())
"""


def test_a_watch_that_fails_costs_no_frame_its_answer_and_goes_on_afterwards(tmp_path, monkeypatch):
    fails = tmp_path / "fails"
    seam = tmp_path / "seam"
    seam.mkdir()
    (seam / "sitecustomize.py").write_text(_AT_WATCHING, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(seam))
    monkeypatch.setenv("WATCH_FAILS", str(fails))
    sidecar = Sidecar(tmp_path, settings())
    try:
        inline, later = Drive(sidecar), Drive(sidecar, stream="other", seed=2, delay_seconds=1.0)
        fails.touch()
        # Each frame is answered, and each label matches; or it would fail here.
        for _ in range(4):
            for drive in (inline, later):
                drive.send(LEARNED / 4)
            told = sidecar.calibration().slices[0].stages[0].n
            assert told == 8 * (inline.frames + later.frames - 10)
        frames = inline.frames + later.frames
        assert eventually(lambda: sidecar.metric("frames_total") == frames)
        assert eventually(lambda: sidecar.metric("internal_errors_total") > 0)
        assert "the watch fell over" in sidecar.log.read_text("utf-8")
        fails.unlink()
        inline.send(LEARNED)
        assert stage(sidecar, FORWARDED).reference == "learned"
        inline.variance["car"] = TOO_SMALL
        drive_until_alarm(inline, 6)
        inline.close()
        later.close()
        sidecar.stop()
    finally:
        sidecar.end()
