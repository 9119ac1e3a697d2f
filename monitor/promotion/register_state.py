"""What must outlive a restart, beside the recalibrators themselves and their history."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from monitor.promotion.following import Follower
from monitor.promotion.guard import Guard
from monitor.promotion.on_trial import Before, OnTrial


@dataclass(frozen=True, slots=True)
class Configured:
    """Versions that the configuration named when this was written; '' where it named none."""

    recalibrator: str = ""
    class_recalibrator: str = ""


@dataclass(frozen=True, slots=True)
class RegisterState:
    """What is in force and on trial, at one moment.

    selection, class_selection
               versions in force
    previous, class_previous
               versions that a rollback goes back through, the latest last
    sent       versions of documents that people have sent
    pinned     nothing acts by itself
    sequence   of the latest record
    spent      trials begun since the last change, by slice name
    befores    what served before, where no track has come since
    followers  of adaptive champions, by slice name
    entry      of the ledger, the last one that tracks were told of; None where that is not known
    """

    selection: str
    class_selection: str
    previous: tuple[str, ...] = ()
    class_previous: tuple[str, ...] = ()
    sent: tuple[str, ...] = ()
    configured: Configured = Configured()
    pinned: bool = False
    sequence: int = 0
    spent: Mapping[str, int] = field(default_factory=dict)
    trials: tuple[OnTrial, ...] = ()
    guards: tuple[Guard, ...] = ()
    befores: tuple[Before, ...] = ()
    followers: Mapping[str, Follower] = field(default_factory=dict)
    entry: int | None = None

    @property
    def in_force(self) -> frozenset[str]:
        """Versions without which it cannot be used."""
        return frozenset((self.selection, self.class_selection))

    @property
    def named(self) -> frozenset[str]:
        """All versions that somebody may ask for because of it."""
        return self.in_force.union(self.previous, self.class_previous, self.sent)
