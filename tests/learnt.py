"""Promotions of a pipeline without edges, and what they are taught; no tests."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from monitor.config import Config
from monitor.frames.space import Space, plain_space
from monitor.pipeline.frame_path import Pipeline
from monitor.pipeline.learning import TracksToFit
from monitor.pipeline.promotions import Promotions
from monitor.promotion.fits import FitOutcome
from monitor.promotion.records import Happened, Record, SliceFitted
from monitor.promotion.tracks import AnyTrack
from monitor.recalibration.recalibrator import Recalibrator
from monitor.recalibration.selection import AnySelection, Selection
from monitor.statistics.observations import finished
from tests.journals import unkept
from tests.promotion.owned_registers import scaled
from tests.promotion.simulated_tracks import tracks

XYZ = plain_space(("x", "y", "z"), "m")


def document(*factors: float, **by_slice: float) -> Selection:
    """With factors on the variance for all slices, or for some; else the identity."""
    fallback = scaled(*factors) if factors else scaled(1.0)
    return Selection(XYZ.names, fallback, {name: scaled(one) for name, one in by_slice.items()})


def promotions_of(
    *slices: str, space: Space = XYZ, sections: Mapping[str, Any] | None = None, **promotion: Any
) -> Promotions:
    """With these slices, in order, and settings of the section [promotion] and of others."""
    config = Config.model_validate({"promotion": promotion, **(sections or {})})
    pipeline = Pipeline(config, unkept())
    for name in slices:
        pipeline.slices.index(space, "lidar", name)
    clock = count(1)
    return Promotions(pipeline, now_ns=lambda: next(clock))


def known(promotions: Promotions, *selections: AnySelection) -> list[str]:
    """The versions of selections, which are known from now on, as if they were sent."""
    return [promotions.recalibrators.learn(one.to_json()).version for one in selections]


def teach(promotions: Promotions, some: Sequence[AnyTrack]) -> list[Record]:
    """Whole tracks, in order; what came of them."""
    learning, first = promotions.learning, promotions.sequence
    learning.reservoir.add(some)
    by_slice: dict[int, list[AnyTrack]] = defaultdict(list)
    for track in some:
        by_slice[track.slice].append(track)
        learning.latest_ns = max(track.ended_ns, learning.latest_ns or track.ended_ns)
    while by_slice:
        promotions.carry_out(finished(learning.decide(by_slice)))
    return [record for record in promotions.records(1000) if record.sequence > first]


def to_fit(promotions: Promotions, slice: int = 0) -> TracksToFit:
    """Ten healthy tracks of a slice, from before time 0."""
    fitted_on = tracks(1000, 10, begin_ns=-(10**12), slice=slice)
    chain, until = promotions.learning.slices.chains[slice], {0: fitted_on[-1].ended_ns}
    return TracksToFit(chain, fitted_on, until, promotions.learning.champion(chain))


def begin(promotions: Promotions, recalibrator: Recalibrator, slice: int = 0) -> SliceFitted:
    entry = to_fit(promotions, slice)
    outcome = FitOutcome({entry.chain[0]: recalibrator}, {})
    (found,) = finished(promotions.begin([entry], outcome, "anna"))
    return found


def promoted(promotions: Promotions, factor: float, slice: int = 0) -> Record:
    """A candidate approved by somebody, on trial or not."""
    return promotions.promote(begin(promotions, scaled(factor), slice).version, "anna")


def happened(promotions: Promotions) -> list[Happened]:
    return [record.what for record in promotions.records(1000)]


def active_version(promotions: Promotions) -> str:
    return promotions.recalibrators.selection.version
