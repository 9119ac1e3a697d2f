"""Names the methods of recalibration, with what can be asked of a fit, for parsers.

The methods themselves are written elsewhere in this room, and registered in `fitting` and
`selection`; only the standard library is imported here: help comes without NumPy and SciPy.
"""

from __future__ import annotations

from collections.abc import Mapping

# Methods for Gaussians, and which of them leave the mean alone: these go on as they are when it is
# corrected before them.
METHODS: Mapping[str, bool] = {
    "identity": True,
    "variance-scaling": True,
    "covariance-scaling": True,
    "adaptive-scaling": False,
    "histogram-binning": True,
    "isotonic-std": True,
    "isotonic-quantiles": False,
    "gp-normal": True,
    "gp-normal-multivariate": True,
    "gp-beta": False,
    "gp-cauchy": True,
    "residual-covariance": True,
    "covariance-regression": True,
}
OF_CLASSES = (
    *("class-identity", "temperature", "vector-scaling", "auxiliary-scaling"),
    "classwise-isotonic",
)

# Change nothing: of Gaussians, and of class probabilities.
IDENTITY, IDENTITY_OF_CLASSES = "identity", "class-identity"

# Fitted unless another is named: to Gaussians, to rows without a covariance, to probabilities.
USUAL, USUAL_WITHOUT_COVARIANCE, USUAL_OF_CLASSES = (
    "covariance-scaling",
    "covariance-regression",
    "temperature",
)

# The range of factors on σ.
LEAST_FACTOR, LARGEST_FACTOR = 1e-3, 1e3

# Time constant of adaptive scaling: long against labels that come seconds late, and short against
# a drive.
TIME_CONSTANT_S = 60.0

# Inducing points, at most, unless another number is asked for.
INDUCING = 12

# Points of a document at most: the time of a frame grows with their square.
MOST_INDUCING = 256

# The share of a Gaussian within one σ.
SURROGATE_LEVEL = 0.6827

# Levels that surrogates are made of; beyond them σ_s/γ is that of a point or of no interval.
SURROGATE_LEVELS = (0.001, 0.9999)
