"""The watch in a running sidecar: a page leads to a fit when there are tracks of the fault, as long
as the alarm stays; references are given before anything is taken in; a fault costs one look.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from monitor.config import InvalidConfiguration
from monitor.drift.bets import Stage
from monitor.drift.reference import Origin
from monitor.drift.usual import ReferenceLearner
from monitor.frames.slices import TOTAL
from monitor.pipeline import alarms
from monitor.pipeline.alarms import ACTOR, DriftAlarms
from monitor.pipeline.drift_watch import DriftWatch
from monitor.pipeline.fits.rounds import FitRounds
from monitor.promotion.fits import CannotFit, FitFailed
from monitor.promotion.records import SliceFitted
from monitor.store.drift_documents import reference_text
from tests.alarmed import RAISED, alarm
from tests.piped import pipeline_of


def fitted(version: str) -> SliceFitted:
    return SliceFitted("car", version, "", 4, 40)


def watching(asked: Any = None, **drift: Any) -> DriftAlarms:
    fits = cast(FitRounds, SimpleNamespace(asked=asked))
    return DriftAlarms(pipeline_of(drift=drift, promotion={"fit_tracks": 4}), fits)


@dataclass
class Drive:
    """One more track a look; the alarm is over after so many looks.

    answers  to each fit that is asked for, in turn
    """

    answers: list[Sequence[SliceFitted] | Exception]
    looks: int = 0
    over: int = 100
    asked: list[tuple[Sequence[str], int]] = field(default_factory=list)

    def tracks(self, *_: object) -> int:
        self.looks += 1
        return self.looks

    async def fit(self, slices: Sequence[str], method: str, actor: str) -> Sequence[SliceFitted]:
        assert (method, actor) == ("", ACTOR)
        self.asked.append((slices, self.looks))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def asked(monkeypatch):
    """Fits that are asked for after a page of a slice."""

    def found(drive: Drive, slice: str = "car") -> list[tuple[Sequence[str], int]]:
        monkeypatch.setattr(alarms, "_REFITS_PERIOD", 0.0)
        monkeypatch.setattr(alarms, "ended_since", drive.tracks)
        monkeypatch.setattr(DriftWatch, "stays", lambda *_: drive.looks < drive.over)

        async def run() -> None:
            watch = watching(drive.fit, refit_on_page=True)
            watch.pipeline.drift.announce(replace(RAISED, alarm=replace(alarm(), slice=slice)))
            await asyncio.gather(*watch._running)

        asyncio.run(run())
        return drive.asked

    return found


def test_a_fit_waits_for_tracks_that_ended_since_the_alarm_began(asked):
    assert asked(Drive([[fitted("a")]])) == [(("car",), 4)]


def test_an_alarm_of_all_slices_together_has_all_fitted(asked):
    assert asked(Drive([[fitted("a")]]), TOTAL) == [((), 4)]


def test_where_nothing_comes_of_it_twice_the_tracks_are_waited_for(asked):
    drive = Drive([[fitted("")], CannotFit("no"), FitFailed("no"), [fitted("a")]])
    assert [looks for _, looks in asked(drive)] == [4, 8, 16, 32]


def test_nothing_is_asked_for_once_the_alarm_is_over(asked):
    assert asked(Drive([], over=3)) == []


def test_an_error_that_nobody_expects_is_said_and_ends_it(asked, caplog):
    assert len(asked(Drive([RuntimeError("a fault")]))) == 1
    assert "after a page, car is not fitted" in caplog.text
    assert "a fault" in caplog.text


def test_a_page_asks_for_no_fit_where_that_is_not_configured(caplog):
    watch = watching()
    watch.pipeline.drift.announce(RAISED)
    assert not watch._running
    assert "car" in caplog.text


def test_a_reference_is_given_to_the_watch_before_any_slice_is(tmp_path):
    learner = ReferenceLearner(2)
    nees = np.random.default_rng(1).chisquare(2, 500)
    learner.add(nees, np.zeros(500, np.uint64), np.arange(500))
    file = tmp_path / "usual.json"
    reference = learner.learned(Origin.FILE, 10)
    file.write_text(reference_text({"car": {Stage.RAW: reference}}), encoding="utf-8")
    family = watching(reference=str(file)).pipeline.drift.family
    family.grow("car", 2)
    assert family.usual.references[0][Stage.RAW].origin is Origin.FILE
    assert family.usual.learners[0][Stage.RAW] is None
    assert family.usual.learners[0][Stage.RECALIBRATED] is not None


@pytest.mark.parametrize("text", [None, "{"])
def test_a_reference_that_cannot_be_used_stops_the_start_by_its_name(tmp_path, text):
    file = tmp_path / "usual.json"
    if text is not None:
        file.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidConfiguration, match=r"\[drift\] reference = .*usual\.json"):
        watching(reference=str(file))


def test_a_fault_in_the_watch_costs_that_look_and_nothing_else(monkeypatch):
    looks: list[None] = []

    def catch_up(_: DriftWatch, **__: bool):
        looks.append(None)
        if len(looks) == 1:
            raise RuntimeError("a fault")
        yield

    monkeypatch.setattr(alarms, "_PERIOD", 0.001)
    monkeypatch.setattr(DriftWatch, "catch_up", catch_up)
    watch = watching()

    async def run() -> None:
        task = asyncio.create_task(watch.keep_watching())
        async with asyncio.timeout(10):
            while len(looks) < 4:
                await asyncio.sleep(0.001)
        task.cancel()
        await watch.end()

    asyncio.run(run())
    assert watch.pipeline.counters.internal_errors == 1
