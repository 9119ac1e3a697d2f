"""What a page leads to: a fit when there are tracks of the fault, as long as the alarm stays."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from monitor.frames.slices import TOTAL
from monitor.pipeline.fits import rounds
from monitor.pipeline.fits.rounds import ACTOR, DriftRefits
from monitor.promotion.fits import CannotFit, FitFailed
from monitor.promotion.records import SliceFitted
from tests.alarmed import alarm


def fitted(version: str) -> SliceFitted:
    return SliceFitted("car", version, "", 4, 40)


@dataclass
class Drive:
    """One more track a look; the alarm is over after so many looks.

    answers  to each fit that is asked for, in turn
    """

    answers: list[Sequence[SliceFitted] | Exception]
    looks: int = 0
    over: int = 100
    asked: list[tuple[Sequence[str], int]] = field(default_factory=list)

    def refits(self) -> DriftRefits:
        return DriftRefits(self.fit, lambda _: self.looks < self.over, self.tracks, enough=4)

    def tracks(self, _) -> int:
        self.looks += 1
        return self.looks

    async def fit(self, slices: Sequence[str], method: str, actor: str) -> Sequence[SliceFitted]:
        assert (method, actor) == ("", ACTOR)
        self.asked.append((slices, self.looks))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(rounds, "_REFITS_PERIOD", 0.0)


def asked(drive: Drive, slice: str = "car") -> list[tuple[Sequence[str], int]]:
    async def run() -> None:
        refits = drive.refits()
        refits.ask(replace(alarm(), slice=slice))
        await asyncio.gather(*refits._running)

    asyncio.run(run())
    return drive.asked


def test_a_fit_waits_for_tracks_that_ended_since_the_alarm_began():
    assert asked(Drive([[fitted("a")]])) == [(("car",), 4)]


def test_an_alarm_of_all_slices_together_has_all_fitted():
    assert asked(Drive([[fitted("a")]]), TOTAL) == [((), 4)]


def test_where_nothing_comes_of_it_twice_the_tracks_are_waited_for():
    drive = Drive([[fitted("")], CannotFit("no"), FitFailed("no"), [fitted("a")]])
    assert [looks for _, looks in asked(drive)] == [4, 8, 16, 32]


def test_nothing_is_asked_for_once_the_alarm_is_over():
    assert asked(Drive([], over=3)) == []


def test_an_error_that_nobody_expects_is_said_and_ends_it(caplog):
    assert len(asked(Drive([RuntimeError("a fault")]))) == 1
    assert "after a page, car is not fitted" in caplog.text
    assert "a fault" in caplog.text
