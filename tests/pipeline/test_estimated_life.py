"""The life of covariances that are estimated for a detector without them: learned, tried, promoted,
kept over a restart, learned anew after a fault. Of many drives the benchmark no_covariance tells.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np
import pytest

from benchmarks.no_covariance import SLICE, Drive, Driven, Sent, frames, run, step
from monitor.frames.detections import Reason
from monitor.pipeline.frame_path import Pipeline
from monitor.promotion.records import SWAPS, Happened, TrialState
from monitor.recalibration.recalibrator import Output
from monitor.statistics.observations import finished
from monitor.store.statistics_state import StoredState, parsed, serialised
from tests import laws
from tests.checkpointed import CLAIMS, Run, begun
from tests.piped import assert_same_statistics, opened, pipeline_of
from tests.states import bits, canonical

XYZ = Drive("three dimensions", (0, 1, 2), tracks=140)
SMALL = 0.1  # of errors: the assumed 1 m is far off


def changes(driven: Driven) -> list[tuple[str, Happened]]:
    return [(one.slice, one.what) for _, one in driven.records if one.what in SWAPS]


@pytest.mark.parametrize("method", ["residual-covariance", "covariance-regression"])
def test_a_detector_without_covariances_gets_them_after_some_tens_of_tracks(method):
    driven = run(0, replace(XYZ, method=method))
    assert changes(driven)[0] == (SLICE, Happened.PROMOTED)
    assert 30 < driven.when(Happened.PROMOTED)[0] < 100
    assert 0.7 < driven.level(0) < 1.4
    assert driven.lost[driven.served > 0].mean() < 0.5 < driven.lost[driven.served == 0].mean()


def test_covariances_that_are_sent_and_right_stay_beside_those_that_are_missing():
    driven = run(1, replace(XYZ, bare=0.1, tracks=200))
    assert {slice for slice, _ in changes(driven)} == {SLICE}


def test_by_default_it_is_advised_and_people_promote_it():
    driven = run(0, replace(XYZ, mode="advise"))
    assert driven.when(Happened.PROVEN)
    assert not changes(driven)
    (proven, *_) = [one for _, one in driven.records if one.what is Happened.PROVEN]
    assert "`promote` makes it active" in proven.reason


def test_of_one_dimension_it_waits_since_tails_do_not_show():
    driven = run(0, replace(XYZ, places=(0,)))
    (proven, *_) = [one for _, one in driven.records if one.what is Happened.PROVEN]
    assert "tracks of one dimension" in proven.reason
    assert not changes(driven)


@pytest.mark.parametrize(
    "drive",
    [replace(XYZ, scores=False), replace(XYZ, places=(0, 1, 2, 3), box=True, scores=False)],
    ids=["no scores", "boxes of an image without scores"],
)
def test_less_that_is_told_makes_it_worse_and_not_impossible(drive):
    driven = run(0, drive)
    assert changes(driven)[0] == (SLICE, Happened.PROMOTED)
    assert 0.6 < driven.level(0) < 1.5


def test_after_errors_have_grown_there_is_an_alarm_and_it_is_learned_anew():
    fault = 150
    driven = run(0, replace(XYZ, size=SMALL, grown=2.5, fault=fault, tracks=300))
    pages = [n for n, severity in driven.alarms if severity == "page"]
    assert pages and fault <= pages[0] < fault + 40
    assert all(n >= fault for n, _ in driven.alarms)
    # Nothing that was fitted before stays on trial, and the next fit is of tracks since then.
    again = driven.when(Happened.PROMOTED, since=fault)
    assert again and again[0] < fault + 120
    assert driven.level(again[0] + 20) < 1.6


def test_errors_that_the_assumed_covariance_suits_better_lead_back_to_it_first():
    fault = 120
    driven = run(0, replace(XYZ, grown=3.5, fault=fault, tracks=280))
    back = driven.when(Happened.ROLLED_BACK)
    assert len(back) == 1 and fault < back[0] < fault + 80
    again = driven.when(Happened.PROMOTED, since=back[0])
    assert again and again[0] < back[0] + 80


# ---- over a restart


@pytest.fixture(autouse=True)
def released():
    yield
    while CLAIMS:
        CLAIMS.pop().release()


@dataclass
class Restarted:
    """Sidecars one after the other that are sent one drive."""

    folder: Any
    coming: Iterator[Sent]
    run: Run = field(init=False)

    def __post_init__(self) -> None:
        self.run = begun(self.folder, mode="automatic")

    def again(self) -> Run:
        """Kills the one that runs after a checkpoint; returns it."""
        before = self.run
        asyncio.run(before.kept())
        self.run = begun(self.folder, mode="automatic")
        return before

    def drive_until(self, enough: Any) -> Sent:
        stream = opened(self.run.pipeline, XYZ.header)
        for sent in self.coming:
            step(self.run.promotions, stream, sent)
            if enough(self.run.promotions):
                return sent
        raise AssertionError("the drive was too short")


def state_of(promotions: Any, state: TrialState) -> list[Any]:
    return [one for one in promotions.trials() if one.state is state]


def test_its_trial_its_statistics_and_what_is_promoted_go_on_after_a_restart(tmp_path):
    drive = Restarted(tmp_path / "state", frames(XYZ, 0))
    running = TrialState.RUNNING
    drive.drive_until(lambda it: any(one.evidence.tracks > 5 for one in state_of(it, running)))
    before = drive.again()
    assert drive.run.promotions.trials() == before.promotions.trials()
    assert_same_statistics(drive.run.pipeline, before.pipeline)
    drive.drive_until(lambda it: it.counters.swaps["promoted"])
    drive.drive_until(lambda it: state_of(it, TrialState.GUARD))
    before = drive.again()
    ours, theirs = drive.run.promotions, before.promotions
    assert ours.trials() == theirs.trials()
    assert ours.recalibrators.selection == theirs.recalibrators.selection
    assert ours.recalibrators.selection.by_slice[SLICE].output is Output.ESTIMATED
    assert ours.pipeline.drift.family.names == theirs.pipeline.drift.family.names
    sent = next(drive.coming)
    answers = [
        one.pipeline.process(opened(one.pipeline, XYZ.header), sent.received)
        for one in (ours, theirs)
    ]
    laws.assert_same(answers[0].forwarded, answers[1].forwarded)
    assert set(answers[0].reason.tolist()) == {Reason.COVARIANCE_ESTIMATED}


def test_a_class_that_is_never_labelled_keeps_what_is_assumed(tmp_path):
    drive = Restarted(tmp_path / "state", frames(XYZ, 0))
    sent = drive.drive_until(lambda it: it.counters.swaps["promoted"])
    detections = replace(sent.received.detections, class_index=np.arange(sent.truth.shape[0]) % 2)
    pipeline = drive.run.pipeline
    later = replace(sent.received, frame_id=10**6, detections=detections)
    answer = pipeline.process(opened(pipeline, XYZ.header), later)
    reasons = [Reason.COVARIANCE_ESTIMATED, Reason.MISSING_COVARIANCE]
    assert answer.reason.tolist() == [reasons[i % 2] for i in range(len(answer.reason))]


# ---- statistics of several sidecars


def exported(pipeline: Pipeline) -> StoredState:
    return parsed(b"".join(serialised(StoredState(finished(pipeline.live.state_in_steps())))))


@pytest.mark.parametrize("bare", [1.0, 0.3])
def test_exports_of_two_sidecars_merge_to_that_of_one_that_saw_all(bare):
    # A track that two sidecars see counts in each.
    drive = replace(XYZ, bare=bare, ids=False, tracks=12)
    left, right, whole = pipeline_of(), pipeline_of(), pipeline_of()
    for i, sent in enumerate(islice(frames(drive, 3), 60)):
        for pipeline in (whole, left if i % 2 else right):
            pipeline.process(opened(pipeline, drive.header), sent.received)
    merged = exported(left).state.merge(exported(right).state)
    of_all = exported(whole).state
    assert {one.name for one in of_all.slices} == ({"car", SLICE} if bare < 1 else {SLICE})
    assert {one.space.assumed for one in of_all.slices} == ({False, True} if bare < 1 else {True})
    # What was only sampled of unlabelled frames is no part of it: all are labelled here.
    assert bits(canonical(merged)) == bits(canonical(of_all))
    imported = pipeline_of()
    finished(imported.live.import_in_steps(merged))
    assert bits(canonical(exported(imported).state)) == bits(canonical(of_all))
