"""What recalibrators a sidecar begins with, and what it keeps of them for the next run: those that
its configuration names, or those that were in force and on trial when the last run ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from monitor.config import Config, InvalidConfiguration
from monitor.keeping_recalibrators import Kept, RecalibratorKeeper
from monitor.promotion.records import Record
from monitor.promotion.register_state import Configured, RegisterState
from monitor.promotions import Promotions
from monitor.recalibration.any_selection import AnySelection
from monitor.recalibration.classes.class_selection import ClassSelection
from monitor.recalibration.recalibrator import InvalidRecalibrator
from monitor.recalibration.selection import Selection
from monitor.recalibrators import Recalibrators

log = logging.getLogger(__name__)

# Seconds that somebody who has decided waits for the disk, at most.
_SETTLED = 2.0

_KINDS: Mapping[str, type[AnySelection]] = {
    "recalibrator": Selection,
    "class_recalibrator": ClassSelection,
}


def configured(recalibrators: Recalibrators, config: Config) -> dict[str, str]:
    """Versions that the configuration names, by its key; '' where it names none.

    They are known from now on. Raises InvalidConfiguration where a file cannot be used.
    """
    return {key: _learnt(recalibrators, key, getattr(config.recalibration, key)) for key in _KINDS}


def _learnt(recalibrators: Recalibrators, key: str, path: str) -> str:
    if not path:
        return ""
    try:
        selection = recalibrators.learn(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidConfiguration(
            f"[recalibration] {key} = '{path}': {error.strerror}. Check the path."
        ) from None
    except (InvalidRecalibrator, UnicodeDecodeError) as error:
        raise InvalidConfiguration(f"[recalibration] {key} = '{path}': {error}") from None
    if not isinstance(selection, _KINDS[key]):
        other = "class_recalibrator" if key == "recalibrator" else "recalibrator"
        raise InvalidConfiguration(
            f"[recalibration] {key} = '{path}' is a {selection.method}: name it in {other}."
        )
    return selection.version


@dataclass(slots=True)
class KeptPromotions:
    """Of one sidecar.

    named  versions that the configuration names
    """

    promotions: Promotions
    named: Mapping[str, str]
    keeper: RecalibratorKeeper
    every_seconds: float
    # Of the ledger, the last entry that the last run's tracks were told of; None: not known.
    entry: int | None = field(default=None, init=False)
    _unkept: list[Record] = field(default_factory=list)

    # ---- at start

    def begin(self) -> None:
        """Put in force what the last run had in force, and go on with its trials.

        What the configuration names comes in force only if it named something else when that was
        written: then somebody has decided anew. Nothing that is kept can stop the start.
        """
        kept = self.keeper.load()
        try:
            restored = self._restored(kept)
        except Exception:
            log.exception("what the last run left cannot be used: recalibrators begin anew")
            restored = set()
        for key, version in self.named.items():
            if version and key not in restored:
                self.promotions.promote(version, "configuration")

    def _restored(self, kept: Kept) -> set[str]:
        """The kinds of which something is in force as it was."""
        recalibrators, state = self.promotions.recalibrators, kept.state
        keep = recalibrators.needed.union(self.named.values(), state.named if state else ())
        # Where no state says who needs what is there, people may.
        sent = kept.documents if state is None else state.sent
        for version, selection in kept.documents.items():
            if version in keep or version in sent:
                recalibrators.known.admit(selection, keep=keep)
            if version in sent:
                recalibrators.admit(selection.to_json(), selection)
        self.promotions.remember(kept.records, kept.sequence)
        if state is None:
            return set()
        before = self.promotions.before
        before[Selection][:], before[ClassSelection][:] = state.previous, state.class_previous
        restored = set()
        in_force = {"recalibrator": state.selection, "class_recalibrator": state.class_selection}
        for key, version in in_force.items():
            if version not in recalibrators.known:
                continue
            self.promotions.pipeline.put_in_force(version)
            if self.named[key] in ("", getattr(state.configured, key)):
                restored.add(key)
        self._go_on(state, trials="recalibrator" in restored)
        return restored

    def _go_on(self, state: RegisterState, *, trials: bool) -> None:
        register = self.promotions.learning.register
        register.pinned, self.entry = state.pinned, state.entry
        if trials:
            register.spent.update(state.spent)
            register.on_trial.update({entry.trial.slice: entry for entry in state.trials})
            register.guards.update({guard.slice: guard for guard in state.guards})
            register.befores.update({before.slice: before for before in state.befores})
            register.followers.update(state.followers)

    # ---- while it runs

    def note(self, record: Record) -> None:
        """Have a record kept: soon, but after what is going on has come to its end."""
        if not self._unkept:
            asyncio.get_running_loop().call_soon(self.keep)
        self._unkept.append(record)

    def keep(self) -> None:
        """Have all kept as it is now. A fault costs that, and nothing else."""
        try:
            state, known = self._state(), self.promotions.recalibrators.known
            named = [known[version] for version in sorted(state.named) if version in known]
            self.keeper.keep(state, named, self._unkept)
            self._unkept = []
        except Exception:
            log.exception("what became of the recalibrators is not kept")
            self.promotions.pipeline.counters.internal_errors += 1

    async def keep_trials(self) -> None:
        """Keep what tracks have said, now and then, for ever."""
        while True:
            await asyncio.sleep(self.every_seconds)
            self.keep()

    async def settle(self) -> None:
        """Return when what has happened is on the disk; a disk that hangs is not waited for."""
        self.keep()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.keeper.flush(), _SETTLED)

    async def end(self) -> None:
        """Keep all, and let go of the folder."""
        self.keep()
        await self.keeper.flush()
        await asyncio.to_thread(self.keeper.close)

    def _state(self) -> RegisterState:
        register, before = self.promotions.learning.register, self.promotions.before
        recalibrators = self.promotions.recalibrators
        return RegisterState(
            selection=recalibrators.selection.version,
            class_selection=recalibrators.class_selection.version,
            previous=tuple(before[Selection]),
            class_previous=tuple(before[ClassSelection]),
            sent=tuple(sorted(recalibrators.sent)),
            configured=Configured(**self.named),
            pinned=register.pinned,
            sequence=self.promotions.sequence,
            spent=dict(register.spent),
            trials=tuple(register.on_trial.values()),
            guards=tuple(register.guards.values()),
            befores=tuple(register.befores.values()),
            followers=dict(register.followers),
            entry=self.promotions.pipeline.ledger.sequence,
        )
