"""States of a register with trials, guards and followers, as a run makes them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from monitor.promotion.betting import Bets, Clip, Watch
from monitor.promotion.records import Factor
from monitor.promotion.register import Follower
from monitor.promotion.trial import AwaitingGuard, Candidate, Guard, Trial
from monitor.recalibration.adaptive_scaling import AdaptiveScaling
from monitor.recalibration.recalibrator import Identity, Recalibrator, as_matrix
from monitor.recalibration.scaling import CovarianceScaling, VarianceScaling
from monitor.recalibration.selection import Selection
from monitor.store.recalibrator_documents import ConfiguredVersions, RegisterState

SLICES = ("car", "car, 0-30 m", "bus (u,v)", "Straße")


def scaled(seed: int) -> Selection:
    """One that is like no other."""
    random = np.random.default_rng(seed)
    return Selection(("x", "y", "z"), Identity(), {"car": variance_scaling(random)})


def variance_scaling(random: np.random.Generator) -> VarianceScaling:
    return VarianceScaling(tuple(np.exp(random.normal(size=3)).tolist()))


def adaptive_scaling(random: np.random.Generator) -> AdaptiveScaling:
    scale, nees = np.exp(random.normal(size=(2, 3))).tolist()
    return AdaptiveScaling(
        scale=tuple(scale),
        time_constant_s=60.0,
        delay_s=3.0,
        ended_s=float(random.uniform(0, 1e9)),
        tracks=float(random.uniform(1, 30)),
        nees=tuple(nees),
        prior_scale=(1.0, 1.0, 1.0),
        prior_tracks=3.0,
    )


def recalibrator(random: np.random.Generator) -> Recalibrator:
    matrix = random.normal(size=(3, 3))
    symmetric = as_matrix(matrix @ matrix.T + np.eye(3))
    pick: tuple[Recalibrator, ...] = (
        Identity(),
        variance_scaling(random),
        adaptive_scaling(random),
        CovarianceScaling((1.0, 2.0, 0.5), as_matrix(np.eye(3)), symmetric, (2, 0, 1)),
    )
    return pick[int(random.integers(len(pick)))]


def state(
    seed: int,
    selection: str = "identity",
    class_selection: str = "class-identity",
    previous: tuple[str, ...] = (),
    sequence: int = 7,
) -> RegisterState:
    """With these versions; all else is drawn."""
    random = np.random.default_rng(seed)
    loss, gain = random.uniform(0.01, 1, 2).tolist()
    clip = Clip(1.0, loss, gain, float(random.uniform(1, 32)))
    trials, guards = [], []
    for slice in SLICES[: int(random.integers(5))]:
        trial = Trial(
            slice,
            recalibrator(random),
            int(random.integers(1, 9)),
            clip,
            Bets().taken(random.normal(size=50), np.ones(50, np.int64), clip),
            ("", "fails: ValueError")[int(random.integers(2))],
        )
        lowest, typical, highest = np.sort(np.exp(random.normal(size=3))).tolist()
        found = (Factor("x", lowest, typical, highest), Factor("y", 1.0, 1.0, float("nan")))
        trials.append(
            Candidate(
                trial,
                found[: int(random.integers(2))],
                bool(random.integers(2)),
                proven=True,
                late=float(random.uniform(0, 1)),
            )
        )
        watch = Watch().taken(random.normal(size=9), np.ones(9, np.int64), clip)
        guards.append(Guard(slice, recalibrator(random), clip, watch))
    follower = replace(
        Follower.of(
            adaptive_scaling(random), float(random.uniform(1, 32)), float(random.uniform(0, 1))
        ),
        scaling=adaptive_scaling(random),
        too_late=("", "labels come 60 s late")[int(random.integers(2))],
    )
    return RegisterState(
        selection,
        class_selection,
        previous,
        (),
        (),
        ConfiguredVersions("variance-scaling-0123456789ab", ""),
        bool(random.integers(2)),
        sequence,
        {name: int(random.integers(9)) for name in SLICES},
        tuple(trials),
        tuple(guards),
        (AwaitingGuard("tram", recalibrator(random), 12.5),),
        {"bike": follower},
    )
