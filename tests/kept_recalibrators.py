"""Keepers of recalibrators as tests start them, and what a sidecar hands over to them."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from monitor.pipeline.recalibrator_checkpoints import Kept, RecalibratorWriter
from monitor.promotion.records import Happened
from monitor.recalibration.classes.class_selection import CLASS_IDENTITY
from monitor.recalibration.selection import IDENTITY
from monitor.store.recalibrator_folder import RegisterState
from tests.promotion.random_records import record
from tests.promotion.random_states import scaled, state


class Keepers:
    """Those of one folder, until `close`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._started: list[RecalibratorWriter] = []

    def __call__(self, where: str | None = None) -> tuple[RecalibratorWriter, Kept]:
        """One more, and what it finds."""
        keeper = RecalibratorWriter(str(self.path) if where is None else where)
        self._started.append(keeper)
        return keeper, keeper.load()

    def close(self) -> None:
        for keeper in self._started:
            keeper.close()


def promoted(number: int) -> RegisterState:
    """After the promotion of the recalibrator of that seed."""
    return state(number, scaled(number).version, CLASS_IDENTITY.version, sequence=number)


def keep(keeper: RecalibratorWriter, number: int) -> None:
    """As a sidecar does at a promotion."""
    promotion = record(number, Happened.PROMOTED, scaled(number).version)
    keeper.keep(promoted(number), [IDENTITY, scaled(number)], [promotion])


def flush(keeper: RecalibratorWriter) -> None:
    asyncio.run(keeper.flush())


def sequences(kept: Kept) -> list[int]:
    return [one.sequence for one in kept.records]


def warnings(caplog) -> list[str]:
    return [entry.getMessage() for entry in caplog.records if entry.levelno == logging.WARNING]
