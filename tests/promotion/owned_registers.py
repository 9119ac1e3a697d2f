"""Registers with somebody who carries out what they decide, as a sidecar does; no tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from monitor.frames.detections import Limits
from monitor.frames.slices import Chain
from monitor.promotion.decisions import Decision
from monitor.promotion.records import (
    SWAPS,
    Happened,
    PolicySettings,
    PromotionMode,
    PromotionSettings,
    TrialSettings,
)
from monitor.promotion.register import Judgement, Register
from monitor.promotion.tracks import AnyTrack
from monitor.recalibration.class_probabilities import ClassIdentity
from monitor.recalibration.recalibrator import Identity
from monitor.recalibration.scaling import AdaptiveScaling, VarianceScaling
from monitor.recalibration.selection import AnyMethod
from monitor.statistics.observations import finished
from tests.promotion.simulated_tracks import class_tracks, tracks

CAR, BUS, CLASSES = ("car",), ("bus",), ("class probabilities",)
IDENTITY = Identity()
# When the tracks ended that candidates are fitted on, in all tests: before time 0.
FITTED_NS = -(10**12)


def scaled(*factors: float) -> VarianceScaling:
    """By factors on the variance: three, or one for all."""
    return VarianceScaling(tuple(np.sqrt(np.broadcast_to(factors, 3)).tolist()))


def adaptive(
    *factors: float, remembered: float = 20.0, time_constant_s: float = 60.0
) -> AdaptiveScaling:
    """That has seen as many tracks with such factors on the variance, until time 0."""
    variance = np.broadcast_to(factors, 3)
    return AdaptiveScaling(
        scale=tuple(np.sqrt(variance).tolist()),
        time_constant_s=time_constant_s,
        delay_s=0.0,
        ended_s=0.0,
        tracks=remembered,
        nees=tuple((remembered * variance).tolist()),
        prior_scale=(1.0, 1.0, 1.0),
        prior_tracks=0.01,
    )


def settings(
    mode: PromotionMode = PromotionMode.AUTOMATIC,
    trials: TrialSettings | None = None,
    **policy: Any,
) -> PromotionSettings:
    """The defaults, but for these."""
    return PromotionSettings(
        trials=trials or TrialSettings(), policy=PolicySettings(mode, **policy)
    )


class Owner:
    """Of a register and of what serves each slice."""

    def __init__(
        self, given: PromotionSettings | None = None, champion: AnyMethod = IDENTITY
    ) -> None:
        self.register = Register(given or settings(), Limits())
        self.first = champion
        self.champions: dict[str, AnyMethod] = {CLASSES[0]: ClassIdentity()}
        self.latest_ns = 0

    def champion(self, chain: Chain = CAR) -> AnyMethod:
        return self.champions.get(chain[0], self.first)

    def begin(self, candidate: AnyMethod, chain: Chain = CAR) -> tuple[Decision | None, Judgement]:
        """Put on trial what somebody has fitted on ten healthy tracks."""
        made = class_tracks if chain == CLASSES else tracks
        fitted_on: Sequence[AnyTrack] = made(1000, 10, begin_ns=FITTED_NS)
        return self.register.begin(chain, candidate, self.champion(chain), fitted_on)

    def take(self, some: Sequence[AnyTrack], chain: Chain = CAR) -> list[Decision]:
        """Tracks at once; what they decide is done, and after a swap the rest have no say."""
        self.latest_ns = max([self.latest_ns, *(track.ended_ns for track in some)])
        decisions, rest = [], list(some)
        while rest:
            taken, rest = finished(self.register.take(chain, lambda: self.champion(chain), rest))
            decisions += taken
            for decision in taken:
                if decision.what in SWAPS:
                    self.carry_out(decision)
                    return decisions
        return decisions

    def carry_out(self, decision: Decision) -> None:
        if decision.what is Happened.ADAPTED:
            self.champions[decision.slice] = decision.recalibrator
        else:
            guard = decision.what is not Happened.ROLLED_BACK
            self.activate(decision.recalibrator, decision.chain, guard=guard)

    def take_one_by_one(self, some: Sequence[AnyTrack], chain: Chain = CAR) -> list[Decision]:
        """The same, a track at a time."""
        return [decision for track in some for decision in self.take([track], chain)]

    def activate(self, recalibrator: AnyMethod, chain: Chain = CAR, *, guard: bool = True) -> None:
        """Whoever decided it."""
        before = self.champion(chain)
        self.champions[chain[0]] = recalibrator
        self.register.changed(chain, recalibrator, before if guard else None)


def whats(decisions: Sequence[Decision]) -> list[Happened]:
    """What happened, in order."""
    return [decision.what for decision in decisions]
