"""The methods that a document of Gaussians may name. A method is one line here.

Nothing that is imported needs an optimiser: fits in closed form stand beside what they fit, all
others are reached through fitting.py alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from monitor.recalibration.adaptive_scaling import AdaptiveScaling
from monitor.recalibration.covariance_scaling import CovarianceScaling
from monitor.recalibration.gp_beta import GpBeta
from monitor.recalibration.gp_cauchy import GpCauchy
from monitor.recalibration.gp_normal import GpNormal
from monitor.recalibration.gp_normal_multivariate import GpNormalMultivariate
from monitor.recalibration.histogram_binning import HistogramBinning
from monitor.recalibration.identity import Identity
from monitor.recalibration.isotonic_quantiles import IsotonicQuantiles
from monitor.recalibration.isotonic_std import IsotonicStd
from monitor.recalibration.recalibrator import Document, Recalibrator
from monitor.recalibration.variance_scaling import VarianceScaling

METHODS: Mapping[str, Callable[[Document], Recalibrator]] = {
    Identity.method: Identity.from_parameters,
    VarianceScaling.method: VarianceScaling.from_parameters,
    CovarianceScaling.method: CovarianceScaling.from_parameters,
    AdaptiveScaling.method: AdaptiveScaling.from_parameters,
    HistogramBinning.method: HistogramBinning.from_parameters,
    IsotonicStd.method: IsotonicStd.from_parameters,
    IsotonicQuantiles.method: IsotonicQuantiles.from_parameters,
    GpNormal.method: GpNormal.from_parameters,
    GpNormalMultivariate.method: GpNormalMultivariate.from_parameters,
    GpBeta.method: GpBeta.from_parameters,
    GpCauchy.method: GpCauchy.from_parameters,
}
