"""What is usual of slices: given, learned, frozen, and begun anew."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from monitor.drift.bets import Stage
from monitor.drift.evidence import DriftSettings
from monitor.drift.reference import Origin, shipped
from monitor.drift.track_seconds import TrackSeconds
from monitor.drift.usual import Usual
from tests.calibration.drift.drives import K, both, drive, exact_reference
from tests.calibration.drift.watched_rows import Frame, watched

WANTED = DriftSettings(reference_tracks=12, reference_detections=600, reference_seconds=0.0)


def usual_of(wanted: DriftSettings = WANTED, names=("car",), **given) -> Usual:
    usual = Usual(wanted, {name: both(one) for name, one in given.items()})
    for name in names:
        usual.grow(name, K)
    return usual


def taught(usual: Usual, frames: list[Frame], slice: int = 0) -> list[Stage]:
    rows = watched(frames)
    seconds = TrackSeconds(usual.settings).take(rows)
    return list(usual.learn(slice, tuple(Stage), rows, seconds, 0, 100.0, 100.0))


def test_what_was_given_is_usual_at_once_and_in_every_epoch():
    given = exact_reference()
    usual = usual_of(car=given)
    assert usual.references[0] == [given, given]
    assert not usual.learning
    usual.begin_anew(0, Stage.RECALIBRATED)
    assert usual.references[0] == [given, given]
    assert taught(usual, drive(20)) == []


def test_what_was_given_of_other_degrees_of_freedom_is_not_used():
    usual = usual_of(car=exact_reference(K + 1))
    assert usual.references[0][0].origin is Origin.SHIPPED
    assert usual.learning


def test_a_reference_is_frozen_once_enough_is_known_of_it():
    usual = usual_of()
    assert taught(usual, drive(20)) == list(Stage)
    learned = usual.references[0][Stage.RAW]
    assert learned.origin is Origin.LEARNED
    assert learned.detections == 1600
    assert learned.nees_ratio == pytest.approx(1, abs=0.1)
    assert taught(usual, drive(20, made=lambda _: 9.0)) == []
    assert usual.references[0][Stage.RAW] is learned


@pytest.mark.parametrize(
    ("wanted", "seconds"),
    [
        (replace(WANTED, reference_detections=10_000), 20),
        (replace(WANTED, reference_tracks=1000), 20),
    ],
)
def test_before_that_nothing_is_frozen(wanted, seconds):
    usual = usual_of(wanted)
    assert taught(usual, drive(seconds)) == []
    assert usual.references[0][Stage.RAW].origin is Origin.SHIPPED


def test_tracks_that_are_too_few_are_not_waited_for_without_end():
    usual = usual_of(replace(WANTED, reference_tracks=1000, reference_detections=150))
    assert taught(usual, drive(20)) == list(Stage)


def test_who_forgets_begins_to_learn_anew():
    usual = usual_of(replace(WANTED, reference_detections=2000))
    taught(usual, drive(20, made=lambda _: 9.0))
    for stage in Stage:
        usual.forget(0, stage)
    assert taught(usual, drive(20)) == []
    assert taught(usual, drive(20, 1)) == list(Stage)
    assert usual.references[0][Stage.RAW].nees_ratio == pytest.approx(1, abs=0.1)


def test_an_epoch_of_one_stage_leaves_the_other():
    usual = usual_of()
    taught(usual, drive(20))
    usual.begin_anew(0, Stage.RECALIBRATED)
    assert usual.references[0][Stage.RECALIBRATED].origin is Origin.SHIPPED
    assert usual.references[0][Stage.RAW].origin is Origin.LEARNED
    assert taught(usual, drive(20, 1)) == [Stage.RECALIBRATED]


def test_arrays_are_those_of_the_references():
    usual = usual_of(names=("car", "van"), van=exact_reference(tracks=False, tempering=0.5))
    found = usual.arrays(Stage.RAW)
    assert found.levels.tolist() == [True, False]
    levels = shipped(K).levels
    assert levels is not None
    assert found.tempering.tolist() == [shipped(K).tempering, 0.5]
    assert found.mean[0] == levels.mean
    assert found.between[0] == pytest.approx(levels.between**2)
    assert found.within[0] == pytest.approx(levels.within**2)
    some = found.take(np.array([1]))
    assert some.number.tolist() == [1]
    assert some.tempering.tolist() == [0.5]


def test_a_reference_is_learned_over_so_much_driving_at_least():
    usual = usual_of(replace(WANTED, reference_seconds=60.0))
    rows = watched(drive(20))
    seconds = TrackSeconds(usual.settings).take(rows)
    found = [
        list(usual.learn(0, tuple(Stage), rows, seconds, 0, before, fed))
        for before, fed in ((500.0, 510.0), (510.0, 559.0), (559.0, 561.0))
    ]
    assert found == [[], [], list(Stage)]


def test_of_one_stage_is_learned_what_is_not_of_the_other():
    usual = usual_of()
    rows = watched(drive(20))
    seconds = TrackSeconds(usual.settings).take(rows)
    assert list(usual.learn(0, [Stage.RECALIBRATED], rows, seconds, 0, 100.0, 100.0)) == [
        Stage.RECALIBRATED
    ]
    assert usual.references[0][Stage.RAW].origin is Origin.SHIPPED
