"""What people and the clock do to recalibrators, and what comes of it: fits, trials, promotions,
rollbacks and pins of a running sidecar, each of them recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from monitor.config import Config
from monitor.pipeline import Pipeline
from monitor.promotion.records import Record
from monitor.promotion.standing import SliceFitted, TrialStanding
from monitor.recalibration.any_selection import AnySelection


@dataclass(slots=True)
class Promotions:
    """Of one pipeline."""

    pipeline: Pipeline
    config: Config

    @property
    def pinned(self) -> bool:
        """Whether nothing happens by itself."""
        raise NotImplementedError

    def promote(self, version: str, actor: str) -> Record:
        """Put a known recalibrator in force, from the next frame on; of either kind.

        The version of a candidate that was on trial beside an earlier champion puts in force what
        it has become beside the present one: see the record's `after`. Raises UnknownVersion.
        """
        raise NotImplementedError

    def rollback(self, kind: type[AnySelection], slice: str, actor: str) -> Record:
        """Put in force again what was before the last change, of one kind.

        slice   the only one that goes back; '' for all
        raises  NothingToRollBack
        """
        raise NotImplementedError

    def pin(self, *, pinned: bool, actor: str) -> Record:
        """Say whether anything may happen by itself."""
        raise NotImplementedError

    async def fit(self, slices: Sequence[str], method: str, actor: str) -> tuple[SliceFitted, ...]:
        """Fit candidates now, and put them on trial.

        slices  by name; none: all that have enough tracks
        method  of FITTINGS; '': that of the configuration
        raises  CannotFit for a name or a method that there is not, or while a fit runs; FitFailed
        """
        raise NotImplementedError

    def trials(self) -> tuple[TrialStanding, ...]:
        """All that run."""
        raise NotImplementedError

    def records(self, most: int) -> tuple[Record, ...]:
        """The latest, in order."""
        raise NotImplementedError

    def records_of(self, version: str) -> tuple[Record, ...]:
        """All that are remembered and name a version, in order."""
        raise NotImplementedError


class NothingToRollBack(LookupError):
    """Nothing of that kind, or in that slice, was in force before."""


class CannotFit(ValueError):
    """A fit was asked for that cannot be begun; the message names the field, value and remedy."""
