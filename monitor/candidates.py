"""Candidates on trial by the version that promoting them would put in force, which changes with the
champion beside which they are tried.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from monitor.calibration.space import Space
from monitor.learning import Learning
from monitor.promotion.decision import Decision
from monitor.promotion.records import Happened
from monitor.promotion.standing import TrialStanding, TrialState
from monitor.promotion.step import stepped
from monitor.recalibration.recalibrator import Recalibrator
from monitor.recalibration.selection import Chain, Selection
from monitor.recalibrators import KnownRecalibrators


def _nothing() -> set[str]:
    return set()


@dataclass(slots=True)
class Candidates:
    """They are known as long as they are on trial.

    meant  versions that mean something by themselves, whatever a candidate was called once
    """

    learning: Learning
    known: KnownRecalibrators
    meant: Callable[[], set[str]] = _nothing
    # By slice: the version of each, and of those the ones that nobody else has made known.
    _versions: dict[str, str] = field(default_factory=dict)
    _ours: set[str] = field(default_factory=set)
    # Versions that rolling back would lead to, by slice.
    _guards: dict[str, str] = field(default_factory=dict)
    # Whatever a candidate that is on trial was ever called, and its slice.
    _called: dict[str, str] = field(default_factory=dict)

    def versions(self) -> set[str]:
        """Of all that are on trial."""
        return set(self._versions.values())

    def renew(self) -> None:
        """Know those that are on trial now, beside the champion of now, and no others."""
        register, spaces = self.learning.register, self.learning.spaces()
        chains = {chain[0]: chain for chain in spaces}
        made = {
            slice: self._selection(chains[slice], spaces, entry.trial.recalibrator)
            for slice, entry in register.on_trial.items()
            if slice in chains
        }
        self._versions = {slice: selection.version for slice, selection in made.items()}
        for slice, selection in made.items():
            self._know(slice, selection)
        self._forget(self._ours - self.versions())
        self._guards = {
            slice: self._selection(chains[slice], spaces, guard.recalibrator).version
            if slice in chains
            else ""
            for slice, guard in register.guards.items()
        }
        self._called = {version: slice for version, slice in self._called.items() if slice in made}

    def began(self, slice: str, selection: Selection) -> None:
        """Another candidate is on trial in a slice: the names of the one before lead nowhere."""
        self._called = {version: name for version, name in self._called.items() if name != slice}
        before = self._versions.get(slice)
        self._versions[slice] = selection.version
        self._know(slice, selection)
        self._forget({before} & self._ours - self.versions() if before else set())

    def over(self, slice: str, version: str) -> None:
        """One is discarded; that of the last run too, of which we did not know that it is ours."""
        self._versions.pop(slice, None)
        self._called = {called: name for called, name in self._called.items() if name != slice}
        if version not in self.learning.recalibrators.sent:
            self._forget({version} - self.versions())

    def _know(self, slice: str, selection: Selection) -> None:
        self.known.setdefault(selection.version, selection)
        if selection.version not in self.learning.recalibrators.sent:
            self._ours.add(selection.version)
        self._called[selection.version] = slice

    def _forget(self, versions: set[str]) -> None:
        self._ours -= versions
        for version in versions - self.learning.recalibrators.needed:
            self.known.pop(version, None)

    def _renew_if_others(self) -> None:
        """A track has made a guard of what served before, or a slice of the last run is there."""
        register, chains = self.learning.register, self.learning.chains()
        there = register.on_trial.keys() & chains.keys()
        if not (there <= self._versions.keys() and register.guards.keys() <= self._guards.keys()):
            self.renew()

    def called(self, version: str) -> Decision | None:
        """To promote the candidate that is called so, or was; None where none is."""
        self._renew_if_others()
        now = {called: slice for slice, called in self._versions.items()}
        slice = now.get(version, "")
        if not slice and version not in self.meant():
            slice = self._called.get(version, "")
        entry = self.learning.register.on_trial.get(slice)
        chain = self.learning.chains().get(slice)
        if entry is None or chain is None:
            return None
        trial = entry.trial
        evidence = trial.evidence(self.learning.settings.trials)
        dimensions = self.learning.spaces()[chain].names
        reason = "approved" if entry.proven else "approved before it was proven"
        return Decision(
            Happened.PROMOTED,
            chain,
            dimensions,
            trial.recalibrator,
            reason,
            evidence,
            entry.factors,
        )

    def standings(self) -> tuple[TrialStanding, ...]:
        """All that run: candidates, and what served before."""
        register, settings = self.learning.register, self.learning.settings.trials
        self._renew_if_others()
        found = []
        for slice, entry in sorted(register.on_trial.items()):
            state = TrialState.PROVEN if entry.proven else TrialState.RUNNING
            evidence = entry.trial.evidence(settings)
            version = self._versions.get(slice, "")
            found.append(TrialStanding(slice, version, state, evidence, entry.factors))
        for slice, guard in sorted(register.guards.items()):
            evidence = guard.evidence(settings)
            version = self._guards.get(slice, "")
            found.append(TrialStanding(slice, version, TrialState.GUARD, evidence, ()))
        return tuple(found)

    def _selection(
        self, chain: Chain, spaces: Mapping[Chain, Space], recalibrator: Recalibrator
    ) -> Selection:
        champion, ranges = self.learning.recalibrators.selection, self.learning.slices.ranges
        return stepped(champion, spaces[chain].names, chain, recalibrator, ranges)
