"""The three parameters of a beta map as one latent value moves them: a line, and its bounds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from monitor.calibration.space import FloatArray
from monitor.recalibration.document import numbers
from monitor.recalibration.recalibrator import Document

Triple = tuple[float, float, float]

# |log a| and |log b| at most: a tail up to 7 times as wide or narrow as the factor on σ says.
LARGEST = 4.0
# |c| at most, in nats of the odds.
LARGEST_SHIFT = 30.0
BOUNDS: Triple = (LARGEST, LARGEST, LARGEST_SHIFT)


@dataclass(frozen=True, slots=True)
class BetaLine:
    """(log a, log b, c) = base + loading · f."""

    base: Triple
    loading: Triple

    @classmethod
    def neutral(cls) -> BetaLine:
        """a = b = 1 and c = 0, whatever the latent value: nothing is changed."""
        return cls((0.0, 0.0, 0.0), (0.0, 0.0, 0.0))

    def at(self, latent: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """a, b and c, each of the shape of latent."""
        base, loading = self.base, self.loading
        return (
            np.exp(base[0] + loading[0] * latent),
            np.exp(base[1] + loading[1] * latent),
            base[2] + loading[2] * latent,
        )

    def within(self, low: float, high: float) -> tuple[float, float]:
        """[low, high] with each end moved to where all three are within BOUNDS; the base must
        be."""
        for base, loading, bound in zip(self.base, self.loading, BOUNDS, strict=True):
            if loading != 0:
                # A tenth of a millionth inside, so that rounding does not put an end outside.
                ends = sorted((side * bound - base) / loading * (1 - 1e-7) for side in (-1, 1))
                low, high = (min(max(end, ends[0]), ends[1]) for end in (low, high))
        return low, high

    def bounded(self, low: float, high: float) -> bool:
        """Whether all three are within BOUNDS over [low, high]; false where one is not finite."""
        return all(
            abs(base + loading * end) <= bound
            for base, loading, bound in zip(self.base, self.loading, BOUNDS, strict=True)
            for end in (low, high)
        )

    def parameters(self) -> Document:
        """Both fields, as JSON values."""
        return {"base": list(self.base), "loading": list(self.loading)}

    @classmethod
    def from_parameters(cls, parameters: Document) -> BetaLine:
        """The inverse of parameters; raises InvalidRecalibrator."""
        return cls(_triple(parameters, "base"), _triple(parameters, "loading"))


def _triple(parameters: Document, name: str) -> Triple:
    log_a, log_b, c = numbers(parameters, name, 3)
    return log_a, log_b, c
