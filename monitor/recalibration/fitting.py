"""How each method is fitted: the one place that imports all fitting code. A method is one entry.

Serving needs methods.py alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from monitor.calibration.binning import Binning
from monitor.calibration.clusters import ALONE, cluster_id
from monitor.calibration.statistics import StageStatistics, observe
from monitor.recalibration import (
    adaptive_scaling_fit,
    covariance_scaling,
    gp_beta_fit,
    gp_cauchy_fit,
    gp_normal_fit,
    gp_normal_multivariate_fit,
    histogram_binning,
    isotonic_quantiles,
    isotonic_std,
    variance_scaling,
)
from monitor.recalibration.adaptive_scaling import AdaptiveScaling
from monitor.recalibration.adaptive_scaling_fit import TIME_CONSTANT_S
from monitor.recalibration.covariance_scaling import CovarianceScaling, FullInput
from monitor.recalibration.fit_rows import FitRows
from monitor.recalibration.gp_beta import GpBeta
from monitor.recalibration.gp_cauchy import GpCauchy
from monitor.recalibration.gp_cauchy_fit import GpCauchySettings
from monitor.recalibration.gp_normal import GpNormal
from monitor.recalibration.gp_normal_multivariate import GpNormalMultivariate
from monitor.recalibration.hierarchy import worth
from monitor.recalibration.histogram_binning import HistogramBinning
from monitor.recalibration.identity import Identity
from monitor.recalibration.isotonic_quantiles import IsotonicQuantiles
from monitor.recalibration.isotonic_std import IsotonicStd
from monitor.recalibration.processes.hyperparameters import ProcessSettings
from monitor.recalibration.processes.kernels import KernelForm
from monitor.recalibration.processes.sparse_process import Coupling
from monitor.recalibration.recalibrator import Recalibrator
from monitor.recalibration.scale import Objective
from monitor.recalibration.shrinkage import WIDE, Clamp, Prior
from monitor.recalibration.variance_scaling import VarianceScaling


@dataclass(frozen=True, slots=True)
class FitOptions:
    """What a fit may be asked for; None leaves it to the method.

    objective        what a scale satisfies
    full_input       what covariance scaling does to full covariances
    clamp            range of the factors on σ of a scaling
    kernel           of a Gaussian process
    coupling         of the latents of its outputs
    inducing         its inducing points, at most
    surrogate_level  the central interval in which a Cauchy and its Gaussian agree
    time_constant    of adaptive scaling, seconds
    """

    objective: Objective | None = None
    full_input: FullInput | None = None
    clamp: Clamp | None = None
    kernel: KernelForm | None = None
    coupling: Coupling | None = None
    inducing: int | None = None
    surrogate_level: float | None = None
    time_constant: float | None = None

    def given(self) -> dict[str, Any]:
        """Those that are asked for, by name."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


# An earlier fit, or that of a wider slice, that a scaling is drawn towards.
Towards = Prior[Any]


@dataclass(frozen=True, slots=True)
class Fitting:
    """How one method is fitted.

    fit      of rows; raises UnfitData
    uses     names of the options that mean something to it
    borrows  whether it can be drawn towards another fit of the method; else no prior is given
    """

    fit: Callable[[FitRows, FitOptions, Towards | None], Recalibrator]
    uses: frozenset[str] = frozenset()
    borrows: bool = False


def _identity(rows: FitRows, options: FitOptions, prior: Towards | None) -> Identity:
    return Identity()


def _variance_scaling(rows: FitRows, options: FitOptions, prior: Towards | None) -> VarianceScaling:
    return variance_scaling.fit(
        statistics_of(rows), options.objective or Objective.MEAN, prior, options.clamp or WIDE
    )


def _covariance_scaling(
    rows: FitRows, options: FitOptions, prior: Towards | None
) -> CovarianceScaling:
    return covariance_scaling.fit(
        statistics_of(rows),
        options.objective or Objective.MEAN,
        options.full_input or FullInput.SCALE,
        prior,
        options.clamp or WIDE,
    )


def _adaptive_scaling(rows: FitRows, options: FitOptions, prior: Towards | None) -> AdaptiveScaling:
    if prior is not None and rows.n:
        # Priors count for effective rows; what this method remembers are tracks.
        tracks = prior.strength * worth(rows) / (rows.n * rows.weight)
        prior = Prior(prior.previous, tracks)
    wanted = options.time_constant
    return adaptive_scaling_fit.fit(rows, TIME_CONSTANT_S if wanted is None else wanted, prior)


def _of_rows(fit: Callable[[FitRows], Recalibrator]) -> Fitting:
    """A method with nothing to choose."""

    def fitted(rows: FitRows, options: FitOptions, prior: Towards | None) -> Recalibrator:
        return fit(rows)

    return Fitting(fitted)


def _process(
    fit: Callable[[FitRows, Any], Recalibrator], settings: Callable[..., Any], *uses: str
) -> Fitting:
    """A method of Gaussian processes.

    settings  of the fit; has the options it uses under the names that FitOptions has for them
    """

    def fitted(rows: FitRows, options: FitOptions, prior: Towards | None) -> Recalibrator:
        given = options.given()
        return fit(rows, settings(**{name: given[name] for name in uses if name in given}))

    return Fitting(fitted, frozenset(uses))


FITTINGS: Mapping[str, Fitting] = {
    Identity.method: Fitting(_identity),
    VarianceScaling.method: Fitting(_variance_scaling, frozenset({"objective", "clamp"}), True),
    CovarianceScaling.method: Fitting(
        _covariance_scaling, frozenset({"objective", "full_input", "clamp"}), True
    ),
    AdaptiveScaling.method: Fitting(_adaptive_scaling, frozenset({"time_constant"}), True),
    HistogramBinning.method: _of_rows(histogram_binning.fit),
    IsotonicStd.method: _of_rows(isotonic_std.fit),
    IsotonicQuantiles.method: _of_rows(isotonic_quantiles.fit),
    GpNormal.method: _process(gp_normal_fit.fit, ProcessSettings, "inducing", "kernel", "coupling"),
    GpNormalMultivariate.method: _process(
        gp_normal_multivariate_fit.fit, ProcessSettings, "inducing", "kernel"
    ),
    GpBeta.method: _process(gp_beta_fit.fit, ProcessSettings, "inducing", "kernel"),
    GpCauchy.method: _process(
        gp_cauchy_fit.fit, GpCauchySettings, "inducing", "kernel", "surrogate_level"
    ),
}


def statistics_of(rows: FitRows) -> StageStatistics:
    """The sums that the scalings are read off, with how much alike the rows of a track are."""
    cluster = cluster_id((rows.track,))
    cluster[rows.track < 0] = ALONE
    return observe(rows.space, Binning(), rows.error, rows.estimates.covariance, cluster)
