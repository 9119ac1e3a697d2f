"""Fits of recalibrators by method and by slice.

It is the one file that imports all fitting code; serving needs selection.py alone. Slices form a
hierarchy, and a thin slice borrows from the wider one it lies in. Serving finds its way by the
same names: see chain_of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from monitor.frames.slices import RangeBuckets
from monitor.frames.words import Axes, FullInput, Objective
from monitor.recalibration import binned, class_probabilities, class_scaling, quantiles, scaling
from monitor.recalibration.class_probabilities import ClassIdentity, ClassRecalibrator, ClassRows
from monitor.recalibration.estimated import regression, residual
from monitor.recalibration.fit_rows import Evidence, FitRows, unlike
from monitor.recalibration.mean_correction import fit_offset, less_offset, parts_of, with_offset
from monitor.recalibration.methods import TIME_CONSTANT_S
from monitor.recalibration.parts import FitSlice
from monitor.recalibration.processes import beta, beta_fit, cauchy, normal
from monitor.recalibration.recalibrator import (
    Basis,
    Document,
    Identity,
    Period,
    Recalibrator,
    UnfitData,
)
from monitor.recalibration.scaling import Clamp, Prior
from monitor.recalibration.selection import Selection

# The name of the widest fit, of all rows, where another leans on it.
WHOLE = "fallback"

# The fit that a scaling is drawn towards: an earlier one, or that of a wider slice.
Towards = Prior[Any]
Fit = Callable[[Any, Towards | None], Recalibrator]

# A prior that counts for less moves a slice of one track by a thousandth of the difference.
_NO_PRIOR = 1e-3


@dataclass(frozen=True, slots=True)
class SliceFit:
    """Outcome of the fit of one slice.

    recalibrator  None where it is left to the wider slice it lies in
    leans_on      name of the wider slice, or version of the earlier selection, whose fit it was
                  drawn towards or is left to; None where it stands on its own rows
    reason        why it is left, or stays as it was in the earlier selection
    alone         what its own rows say, where it was drawn towards a wider slice and they suffice
    """

    rows: Evidence
    recalibrator: Recalibrator | None
    leans_on: str | None
    reason: str = ""
    alone: Recalibrator | None = None


def worth(rows: Evidence) -> float:
    """Counts how many independent detections the rows are worth.

    At most as many as tracks: few of them say little of how much alike the rows of each are.
    """
    return min(float(rows.tracks), rows.n * rows.weight)


def prior_strength(rows: Evidence, strength: float) -> float:
    """Raises the strength of a prior, so that it outweighs few tracks as it does few rows.

    A scaling weighs a prior against the effective rows of its statistics, which a single track
    does not tell from its rows; it is drawn as if they were what the rows are worth.
    """
    return strength * rows.n * rows.weight / worth(rows) if rows.n else strength


def borrowed(rows: Evidence, wider: Evidence, strength: float, fewest: float) -> float:
    """Counts for how many independent rows the fit of a wider slice stands in that of a slice.

    All of `strength` where the slice is worth `fewest` rows or less, nothing where it is worth
    twice as many, and in between in proportion: no track more or less changes much.

    Less where the two plainly differ. Let v be the variance of an error size of the slice, d its
    difference from that of the wider one, on the scale of the logarithm, and τ² = d² − v the part
    of it that chance does not explain: then n v/τ² rows are the best weight beside n of its own.

    source  Morris 1983, section 1: empirical Bayes, with one τ²/v for all dimensions of a slice
    """
    independent = worth(rows)
    most = strength * min(max(2.0 - independent / fewest, 0.0), 1.0)
    beyond_chance = unlike(rows, wider) - 1.0
    return min(most, independent / beyond_chance) if beyond_chance > 0 else most


def fit_slices(
    slices: Sequence[tuple[FitSlice, Evidence]],
    fit: Fit,
    whole: SliceFit,
    *,
    strength: float | None,
    fewest: float,
    least: float = 0.0,
    previous: Selection | None = None,
) -> dict[str, SliceFit]:
    """Fits each slice; returns the outcomes by name.

    What can be drawn towards another fit is drawn towards that of the finest wider slice that has
    one, as `borrowed` says. With another method, a slice worth fewer rows than `fewest` is left to
    the wider one.

    slices    with their rows, or sums over them, widest first
    fit       of rows, drawn towards a prior if one is given
    whole     the fit of all rows
    strength  independent rows that a prior counts for; None: the method cannot be drawn
    least     of the strength of a wider slice, where it is drawn towards that at all
    previous  an earlier selection: where it has the slice, that is what is drawn towards
    """
    found: dict[str, SliceFit] = {}
    for entry, rows in slices:
        fitted = (n for n in entry.wider if n in found and found[n].recalibrator is not None)
        wider = next(fitted, WHOLE)
        parent = found.get(wider, whole)
        if strength is None and worth(rows) < fewest:
            reason = (
                f"{rows.n} rows of {rows.tracks} tracks count for {worth(rows):.0f} independent "
                f"ones, and {fewest:g} are needed"
            )
            found[entry.name] = SliceFit(rows, None, wider, reason)
            continue
        left_to, earlier, leans_on, alone = wider, None, None, None
        prior: Towards | None = None
        try:
            if strength is not None and previous is not None and entry.name in previous.by_slice:
                # The limit of a fit that is drawn towards it, on fewer and fewer rows.
                left_to = leans_on = previous.version
                earlier = previous.by_slice[entry.name]
                prior = Prior(earlier, prior_strength(rows, strength))
            elif strength is not None and rows.n:
                drawn = borrowed(rows, parent.rows, strength, fewest)
                if drawn > _NO_PRIOR:
                    leans_on = wider
                    prior = Prior(parent.recalibrator, prior_strength(rows, max(drawn, least)))
                    alone = _unless_unfit(fit, rows)
            found[entry.name] = SliceFit(rows, fit(rows, prior), leans_on, alone=alone)
        except UnfitData as error:
            found[entry.name] = SliceFit(rows, earlier, left_to, str(error).rstrip("."))
    return found


def _unless_unfit(fit: Fit, rows: Evidence) -> Recalibrator | None:
    try:
        return fit(rows, None)
    except UnfitData:
        return None


@dataclass(frozen=True, slots=True)
class FitOptions:
    """Options that a fit may be asked for; None leaves one to the method.

    objective        what a scale satisfies
    full_input       what covariance scaling does to full covariances
    clamp            range of the factors on σ of a scaling
    inducing         points of a Gaussian process, at most
    surrogate_level  the central interval in which a Cauchy and its Gaussian agree
    time_constant    of adaptive scaling, seconds
    axes             in which errors of x and y are described where covariances are estimated
    correct_mean     whether the mean error is corrected first; see mean_correction.py
    """

    objective: Objective | None = None
    full_input: FullInput | None = None
    clamp: Clamp | None = None
    inducing: int | None = None
    surrogate_level: float | None = None
    time_constant: float | None = None
    axes: Axes | None = None
    correct_mean: bool | None = None


class Fitting:
    """Describes how one method is fitted.

    uses       names of the options that mean something to it
    borrows    whether it can be drawn towards another fit of the method; else no prior is given
    least      strength of the fit of a wider slice, at least, where a slice is drawn towards it
    sums       whether the sums over rows are enough
    estimates  whether it estimates covariances from errors alone, whatever was sent
    """

    def __init__(
        self,
        fit: Callable[..., Recalibrator],
        *uses: str,
        borrows: bool = False,
        least: float = 0.0,
        sums: bool = False,
        estimates: bool = False,
    ) -> None:
        """Takes a fit of rows, with a prior if it borrows, and the options it uses by their
        names; an option that is not asked for is left to its default."""
        self._fit, self.uses, self.borrows, self.least = fit, frozenset(uses), borrows, least
        self.sums, self.estimates = sums, estimates

    def fit(self, rows: Evidence, options: FitOptions, prior: Towards | None) -> Recalibrator:
        """Fits rows, or their sums where these are enough. Raises UnfitData.

        Where the mean is corrected, the offset is drawn towards that of the prior, and the rest is
        fitted to what it leaves.
        """
        asked = {name: getattr(options, name) for name in self.uses}
        given = {name: value for name, value in asked.items() if value is not None}
        offset = None
        if options.correct_mean:
            if not isinstance(rows, FitRows):
                raise UnfitData("the mean cannot be corrected from sums alone: fit the raw logs.")
            centre = None
            if prior is not None:
                centre, after = parts_of(prior.previous, rows.space.k)
                prior = Prior(after, prior.strength)
            offset = fit_offset(rows, centre)
            rows = less_offset(rows, offset)
        fitted = self._fit(rows, prior=prior, **given) if self.borrows else self._fit(rows, **given)
        return fitted if offset is None else with_offset(offset, fitted)


def _of_sums(fit: Callable[..., Recalibrator]) -> Callable[..., Recalibrator]:
    """Adapts a fit of statistics to rows, and to sums."""
    return lambda rows, **given: fit(rows.statistics, **given)


def _adaptive_scaling(
    rows: FitRows, prior: Towards | None, time_constant: float = TIME_CONSTANT_S
) -> Recalibrator:
    if prior is not None and rows.n:
        # Priors count for effective rows; what this method remembers are tracks.
        tracks = prior.strength * worth(rows) / (rows.n * rows.weight)
        prior = Prior(prior.previous, tracks)
    return scaling.fit_adaptive_scaling(rows, time_constant, prior)


def _estimated(fit: Callable[..., Recalibrator]) -> Callable[..., Recalibrator]:
    """Adapts a fit that counts a prior in independent rows, whatever covariance was sent."""

    def adapted(rows: FitRows, prior: Towards | None, **given: Any) -> Recalibrator:
        if prior is not None and rows.n:
            strength = prior.strength * worth(rows) / (rows.n * rows.weight)
            prior = Prior(prior.previous, strength)
        return fit(rows, prior=prior, **given)

    return adapted


FITTINGS: Mapping[str, Fitting] = {
    Identity.method: Fitting(lambda rows: Identity()),
    scaling.VarianceScaling.method: Fitting(
        _of_sums(scaling.fit_variance_scaling), "objective", "clamp", borrows=True, sums=True
    ),
    scaling.CovarianceScaling.method: Fitting(
        _of_sums(scaling.fit_covariance_scaling),
        *("objective", "full_input", "clamp"),
        borrows=True,
        sums=True,
    ),
    # When its tracks have faded the prior alone is left: never less than where there is no other.
    scaling.AdaptiveScaling.method: Fitting(
        _adaptive_scaling, "time_constant", borrows=True, least=scaling.PRIOR_TRACKS
    ),
    binned.HistogramBinning.method: Fitting(binned.fit_histogram_binning, sums=True),
    binned.IsotonicStd.method: Fitting(binned.fit_isotonic_std, sums=True),
    quantiles.IsotonicQuantiles.method: Fitting(quantiles.fit_isotonic_quantiles),
    normal.GpNormal.method: Fitting(normal.fit_gp_normal, "inducing"),
    normal.GpNormalMultivariate.method: Fitting(normal.fit_gp_normal_multivariate, "inducing"),
    beta.GpBeta.method: Fitting(beta_fit.fit_gp_beta, "inducing"),
    cauchy.GpCauchy.method: Fitting(cauchy.fit_gp_cauchy, "inducing", "surrogate_level"),
    residual.ResidualCovariance.method: Fitting(
        _estimated(residual.fit_residual_covariance),
        "objective",
        "axes",
        borrows=True,
        estimates=True,
    ),
    regression.CovarianceRegression.method: Fitting(
        _estimated(regression.fit_covariance_regression),
        "objective",
        "axes",
        borrows=True,
        estimates=True,
    ),
}


CLASS_FITS: Mapping[str, Callable[[ClassRows], ClassRecalibrator]] = {
    ClassIdentity.method: lambda rows: ClassIdentity(),
    class_scaling.Temperature.method: class_scaling.fit_temperature,
    class_scaling.VectorScaling.method: class_scaling.fit_vector_scaling,
    class_scaling.AuxiliaryScaling.method: class_scaling.fit_auxiliary_scaling,
    class_probabilities.ClasswiseIsotonic.method: class_probabilities.fit_classwise_isotonic,
}


def fit_selection(
    method: str,
    options: FitOptions,
    dimensions: tuple[str, ...],
    whole: Evidence,
    slices: Sequence[tuple[FitSlice, Evidence]],
    *,
    strength: float,
    fewest: float,
    periods: Mapping[str, Period],
    fitted_on: Document,
    ranges: RangeBuckets | None = None,
    previous: Selection | None = None,
) -> tuple[Selection, dict[str, SliceFit]]:
    """Fits all rows, and each slice; returns also what came of each slice.

    strength, fewest  as of fit_slices
    periods           of each slice by name, and of all rows as WHOLE
    previous          an earlier selection of the method, that fits are drawn towards
    """
    fitting = FITTINGS[method]

    def fit(part: Evidence, prior: Towards | None) -> Recalibrator:
        return fitting.fit(part, options, prior)

    earlier: Towards | None = None
    if previous is not None:
        earlier = Prior(previous.fallback, prior_strength(whole, strength))
    of_all = fit(whole, earlier)
    found = fit_slices(
        slices,
        fit,
        SliceFit(whole, of_all, None),
        strength=strength if fitting.borrows else None,
        least=fitting.least,
        fewest=fewest,
        previous=previous,
    )
    by_slice: dict[str, Recalibrator] = {}
    bases: dict[str, Basis] = {}
    for name, made in found.items():
        if made.recalibrator is None:
            continue
        by_slice[name] = made.recalibrator
        basis = basis_of(made.rows, periods[name], made.leans_on)
        if made.reason and previous is not None:
            basis = previous.bases.get(name)
        if basis is not None:
            bases[name] = basis
    leans_on = None if previous is None else previous.version
    basis = basis_of(whole, periods[WHOLE], leans_on)
    return Selection(dimensions, of_all, by_slice, fitted_on, basis, bases, ranges), found


def basis_of(rows: Evidence, period: Period, borrows_from: str | None) -> Basis | None:
    """Basis of a fit on these rows; None without rows."""
    if rows.n == 0:
        return None
    first, last, clock = period
    return Basis(rows.n, rows.tracks, rows.n * rows.weight, first, last, clock, borrows_from)
