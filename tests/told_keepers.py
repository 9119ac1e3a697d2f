"""Sidecars that begin with what a keeper finds that keeps nothing on disk; no tests."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from monitor.pipeline.promotions import Promotions
from monitor.pipeline.recalibrator_checkpoints import Kept, RecalibratorWriter, RegisterCheckpoints
from monitor.promotion.records import Record
from monitor.recalibration.classes.class_scaling import Temperature
from monitor.recalibration.classes.class_selection import (
    CLASS_IDENTITY,
    AnySelection,
    ClassSelection,
)
from monitor.recalibration.selection import IDENTITY, Selection
from monitor.store.recalibrator_folder import ConfiguredVersions, RegisterState
from tests.learnt import document, promotions_of

ONE, OTHER = document(2.0), document(3.0)
OF_CLASSES = ClassSelection((), Temperature(2.0))
NOTHING = Kept(None, {}, (), 0, ())


@dataclass
class Keeping:
    """Stands for the keeper: what the last run left, and what it is handed."""

    kept: Kept = NOTHING
    states: list[RegisterState] = field(default_factory=list)
    documents: dict[str, AnySelection] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    fails: bool = False

    def load(self) -> Kept:
        return self.kept

    def keep(
        self, state: RegisterState, selections: Collection[AnySelection], records: Sequence[Record]
    ) -> None:
        self.calls.append("keep")
        if self.fails:
            raise RuntimeError("nobody thought of that")
        self.states.append(state)
        self.documents |= {one.version: one for one in selections}
        self.records += records

    async def flush(self) -> None:
        self.calls.append("flush")

    def close(self) -> None:
        self.calls.append("close")

    @property
    def left(self) -> Kept:
        """What the next run finds."""
        records = tuple(self.records)
        sequence = records[-1].sequence if records else 0
        return Kept(self.states[-1], self.documents, records, sequence, ())


def started(
    *slices: str,
    kept: Kept = NOTHING,
    named: dict[str, AnySelection] | None = None,
    **promotion: Any,
) -> tuple[RegisterCheckpoints, Promotions, Keeping]:
    """A sidecar that has begun; named: what the configuration names, by its key."""
    promotions, keeping = promotions_of(*slices, **promotion), Keeping(kept)
    versions = {"recalibrator": "", "class_recalibrator": ""}
    for key, selection in (named or {}).items():
        versions[key] = promotions.recalibrators.learn(selection.to_json()).version
    keeper = cast(RecalibratorWriter, keeping)
    found = RegisterCheckpoints(promotions, versions, keeper, 0.001)
    found.begin()
    return found, promotions, keeping


def left_with(
    selection: Selection = IDENTITY,
    classes: ClassSelection = CLASS_IDENTITY,
    then: str = "",
    **state: Any,
) -> Kept:
    """That these were in force, and the configuration had named one."""
    documents = {one.version: one for one in (selection, classes, IDENTITY, CLASS_IDENTITY)}
    written = RegisterState(
        selection.version,
        classes.version,
        configured=ConfiguredVersions(recalibrator=then),
        **state,
    )
    return Kept(written, documents, (), 0, ())
