"""Sidecars without ports and ledger that keep their state in a folder; no tests."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from monitor.pipeline.checkpoints import Checkpoints
from monitor.pipeline.promotions import Promotions
from monitor.recalibration.class_scaling import Temperature
from monitor.recalibration.selection import AnySelection, ClassSelection
from monitor.store.files import Claim
from monitor.store.journal import Journal
from monitor.store.previous import PreviousPaths
from monitor.store.state import Contents, _read
from tests.learnt import document, promotions_of

ONE, OTHER = document(2.0), document(3.0)
OF_CLASSES = ClassSelection((), Temperature(2.0))
NOTHING_BEFORE = PreviousPaths("", "", "", "")


@dataclass
class LedgerSaid:
    """Stands for the ledger: what it was asked to reach, and told to be covered."""

    reached: list[int] = field(default_factory=list)
    covers: list[int] = field(default_factory=list)

    async def reach(self, sequence: int) -> None:
        self.reached.append(sequence)

    def covered(self, sequence: int, _: int) -> None:
        self.covers.append(sequence)


# Claims of the test that runs, to be released after it.
CLAIMS: list[Claim] = []


@dataclass
class Run:
    """One sidecar, from its start until it is gone, as if killed."""

    checkpoints: Checkpoints
    ledger: LedgerSaid

    @property
    def promotions(self) -> Promotions:
        return self.checkpoints.promotions

    @property
    def pipeline(self):
        return self.promotions.pipeline

    async def kept(self) -> None:
        """Writes a checkpoint, and is gone."""
        await self.checkpoints.write()
        self.gone()

    def gone(self) -> None:
        assert self.checkpoints.claim is not None
        self.checkpoints.claim.release()


def begun(
    folder: Path,
    *slices: str,
    named: Mapping[str, AnySelection] | None = None,
    previous: PreviousPaths = NOTHING_BEFORE,
    sections: Mapping[str, Any] | None = None,
    **promotion: Any,
) -> Run:
    """A sidecar that has loaded what the last one left.

    slices  that have come to it already
    named   what the configuration names, by its key
    """
    promotions = promotions_of(*slices, sections=sections, **promotion)
    versions = {"recalibrator": "", "class_recalibrator": ""}
    for key, selection in (named or {}).items():
        versions[key] = promotions.recalibrators.learn(selection.to_json()).version
    ledger = LedgerSaid()
    ours = Claim(folder)
    CLAIMS.append(ours)
    claim: Claim | None = ours
    with contextlib.suppress(OSError):
        claim = ours if ours.take() else None
    found = Checkpoints(
        promotions=promotions,
        named=versions,
        claim=claim,
        journal=cast(Journal, ledger),
        previous=previous,
    )
    found.load()
    return Run(found, ledger)


def on_disk(folder: Path) -> Contents:
    """The newest generation, of a sidecar that may be running."""
    return _read(folder / "state.db")
