"""What people should know of a fit to Gaussians beside the model itself, in lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from monitor.recalibration.adaptive_scaling import AdaptiveScaling
from monitor.recalibration.covariance_scaling import CovarianceScaling
from monitor.recalibration.fitting import FitOptions
from monitor.recalibration.hierarchy import WHOLE, SliceFit
from monitor.recalibration.histogram_binning import HistogramBinning
from monitor.recalibration.isotonic_std import IsotonicStd
from monitor.recalibration.recalibrator import Recalibrator
from monitor.recalibration.selection import Selection
from monitor.recalibration.shrinkage import WIDE, Clamp
from monitor.recalibration.variance_scaling import VarianceScaling


def remarks(
    selection: Selection,
    found: Mapping[str, SliceFit],
    wanted: FitOptions,
    previous: Selection | None,
) -> Iterator[str]:
    """On slices that lean on others or are left to them, and on factors that were stopped.

    found     what came of each slice
    previous  the selection that the fit was drawn towards
    """
    yield from _of_slices(selection, found)
    yield from _of_factors(selection, wanted)
    yield from _of_forgotten(selection, previous)


def _of_slices(selection: Selection, found: Mapping[str, SliceFit]) -> Iterator[str]:
    """On what each rests, or what it is left to and why."""
    for name, fit in found.items():
        if fit.recalibrator is None:
            to = "the fallback" if fit.leans_on == WHOLE else fit.leans_on
            yield f"slice {name} is left to {to}: {fit.reason}"
        elif fit.reason:
            yield f"slice {name} stays as in {fit.leans_on}: {fit.reason}"
        else:
            yield f"slice {name}: {selection.bases[name]}"


def _of_factors(selection: Selection, wanted: FitOptions) -> Iterator[str]:
    """Which factors have been stopped: more often a mistake in the file than of the detector."""
    clamp = wanted.clamp or WIDE
    where = "--clamp" if wanted.clamp else f"{WIDE.lowest:g}:{WIDE.highest:g}, and no further"
    for name, one in {"all rows": selection.fallback, **selection.by_slice}.items():
        stopped = [selection.dimensions[i] for i in _stopped(one, clamp)]
        if stopped:
            yield (
                f"{name}: the factor on σ of {', '.join(stopped)} is at an end of {where}: "
                "are units, matches and rows right?"
            )


def _stopped(one: Recalibrator, clamp: Clamp) -> list[int]:
    """Positions of the dimensions with a factor on σ at an end of its range."""
    match one:
        case VarianceScaling() | CovarianceScaling() | AdaptiveScaling():
            ends = clamp.reached(one)
        case HistogramBinning(factors=curves) | IsotonicStd(factor=curves):
            inside = [all(clamp.lowest < f < clamp.highest for f in curve) for curve in curves]
            ends = tuple(not whole for whole in inside)
        case _:
            ends = ()
    return [i for i, at_an_end in enumerate(ends) if at_an_end]


def _of_forgotten(selection: Selection, previous: Selection | None) -> Iterator[str]:
    for name in sorted(() if previous is None else previous.by_slice):
        if name not in selection.by_slice:
            yield f"slice {name} of --previous has no rows here, and is in the new model no more"
