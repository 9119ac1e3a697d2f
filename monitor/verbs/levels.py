"""Confidence levels as options give them."""

from __future__ import annotations

import argparse

import numpy as np

from monitor.calibration.space import FloatArray


def confidence_levels(text: str) -> FloatArray:
    """(T,) ascending, in (0, 1). Raises ArgumentTypeError."""
    try:
        levels = np.unique([float(part) for part in text.split(",")])
    except ValueError:
        levels = np.zeros(1)
    if not ((levels > 0) & (levels < 1)).all():
        raise argparse.ArgumentTypeError(
            f"'{text}': expected levels between 0 and 1, such as 0.5,0.9,0.95"
        )
    return levels
