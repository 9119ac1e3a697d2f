"""Remarks of fit on slices that lean on others, and on factors that were stopped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from monitor.recalibration.binned import HistogramBinning, IsotonicStd
from monitor.recalibration.fitting import WHOLE, FitOptions, SliceFit, worth
from monitor.recalibration.mean_correction import parts_of
from monitor.recalibration.recalibrator import Recalibrator
from monitor.recalibration.scaling import (
    WIDE,
    AdaptiveScaling,
    Clamp,
    CovarianceScaling,
    Scaled,
    VarianceScaling,
)
from monitor.recalibration.selection import Selection
from monitor.statistics.verdicts import FEWEST_TO_JUDGE

# Relative change of a factor on σ below which a remark leaves it out.
_SHOWS = 0.02


def remarks(
    selection: Selection,
    found: Mapping[str, SliceFit],
    wanted: FitOptions,
    previous: Selection | None,
) -> Iterator[str]:
    """Remarks on slices that lean on others or are left to them, and on factors that were stopped.

    found     what came of each slice
    previous  the selection that the fit was drawn towards
    """
    for name, fit in found.items():
        if fit.recalibrator is None:
            to = "the fallback" if fit.leans_on == WHOLE else fit.leans_on
            yield f"slice {name} is left to {to}: {fit.reason}"
        elif fit.reason:
            yield f"slice {name} stays as in {fit.leans_on}: {fit.reason}"
        else:
            yield f"slice {name}: {selection.bases[name]}{_drawn(fit, selection.dimensions)}"
    made = {"all rows": selection.fallback, **selection.by_slice}
    for name, one in made.items() if wanted.correct_mean else ():
        offset, _ = parts_of(one, len(selection.dimensions))
        pairs = zip(selection.dimensions, offset.tolist(), strict=True)
        added = ", ".join(f"{by:+.3g} to {dimension}" for dimension, by in pairs if by)
        yield f"{name}: adds {added or 'nothing to any mean: chance explains its error'}"
    # A factor that was stopped is more often a mistake in the file than of the detector.
    clamp = wanted.clamp or WIDE
    where = "--clamp" if wanted.clamp else f"{WIDE.lowest:g}:{WIDE.highest:g}, and no further"
    for name, one in made.items():
        stopped = [selection.dimensions[i] for i in _stopped(one, clamp)]
        if stopped:
            yield (
                f"{name}: the factor on σ of {', '.join(stopped)} is at an end of {where}: "
                "are units, matches and rows right?"
            )
    for name in sorted(() if previous is None else previous.by_slice):
        if name not in selection.by_slice:
            yield f"slice {name} of --previous has no rows here, and is in the new model no more"


def _drawn(fit: SliceFit, dimensions: Sequence[str]) -> str:
    """Says how far a slice was drawn towards the wider one; nothing where that hardly shows."""
    own, made = (one and parts_of(one, len(dimensions))[1] for one in (fit.alone, fit.recalibrator))
    if not (isinstance(own, Scaled) and isinstance(made, Scaled)):
        return ""
    pairs = tuple(zip(dimensions, own.scale, made.scale, strict=True))
    moved = [f"{name} {a:.2f} to {b:.2f}" for name, a, b in pairs if abs(b / a - 1) > _SHOWS]
    if not moved:
        return ""
    said = f", which draws its factors on σ: {', '.join(moved)}"
    if fit.rows.tracks < FEWEST_TO_JUDGE:
        return said
    # A slice worth twice as many stands alone.
    enough = max(int(worth(fit.rows) / 2), 1)
    return f"{said} (--fewest-tracks {enough} if {fit.rows.tracks} tracks are enough)"


def _stopped(one: Recalibrator, clamp: Clamp) -> list[int]:
    """Positions of the dimensions with a factor on σ at an end of its range."""
    match parts_of(one, 1)[1]:
        case VarianceScaling() | CovarianceScaling() | AdaptiveScaling() as scaling:
            ends = clamp.reached(scaling)
        case HistogramBinning(factors=curves) | IsotonicStd(factor=curves):
            inside = [all(clamp.lowest < f < clamp.highest for f in curve) for curve in curves]
            ends = tuple(not whole for whole in inside)
        case _:
            ends = ()
    return [i for i, at_an_end in enumerate(ends) if at_an_end]
