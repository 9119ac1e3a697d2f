"""What every recalibrator of class probabilities is: a frozen value that maps opinions to opinions.

All of them work on log-probabilities, to which logits are brought first (log-softmax). What a
softmax leaves out says nothing of the probabilities, so that a model serves both alike.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from scipy.special import logsumexp

from monitor.calibration.space import FloatArray
from monitor.recalibration.recalibrator import Document

# The least probability that is told from none; log-probabilities are bounded by its log.
LEAST = 1e-12
# Beyond this no parameter makes sense, and products of a few of them still are finite.
LARGEST = 1e6


class ClassRecalibrator(Protocol):
    """One fitted method. Immutable, so that it may be swapped between two frames."""

    @property
    def method(self) -> str:
        """The name on the command line."""
        ...

    @property
    def classes(self) -> int | None:
        """C it was fitted on; None if any will do."""
        ...

    def apply(self, log_probabilities: FloatArray) -> FloatArray:
        """Recalibrated probabilities, (n, M, C), of as many opinions; each opinion by itself.

        Several opinions of a detection are averaged only afterwards (Laves et al. 2019,
        eq. 25). A row of NaN stays one. Never writes into its argument.

        log_probabilities  (n, M, C) from from_logits or from_probabilities
        """
        ...

    def parameters(self) -> Document:
        """All that makes it up, as JSON values; exact."""
        ...


def from_logits(logits: FloatArray) -> FloatArray:
    """Log-softmax over the last axis, at least log LEAST."""
    normalised = logits - logsumexp(logits, axis=-1, keepdims=True)
    bounded: FloatArray = np.maximum(normalised, np.log(LEAST))
    return bounded


def from_probabilities(probabilities: FloatArray) -> FloatArray:
    """Their logarithms, at least log LEAST."""
    bounded: FloatArray = np.log(np.maximum(probabilities, LEAST))
    return bounded
