"""Numbers as options give them: what several options read, each read in one place."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

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


def above_zero(text: str) -> float:
    """A finite number above 0. Raises ArgumentTypeError."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"'{text}': expected a number above 0, such as 30")
    return value


def seconds(text: str) -> float:
    """Finite seconds from 0 on, such as 3 or 3s. Raises ArgumentTypeError."""
    try:
        value = float(text.removesuffix("s"))
    except ValueError:
        value = -1.0
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"'{text}': expected seconds, such as 30s")
    return value


def seconds_above_zero(text: str) -> float:
    """Finite seconds above 0. Raises ArgumentTypeError."""
    value = seconds(text)
    if value == 0:
        raise argparse.ArgumentTypeError(f"'{text}': expected seconds above 0, such as 60s")
    return value


def number_of(what: str, most: int) -> Callable[[str], int]:
    """Reads a whole number of something, from 1 to `most`; it raises ArgumentTypeError."""

    def read(text: str) -> int:
        if not text.isdecimal() or not 1 <= int(text) <= most:
            raise argparse.ArgumentTypeError(
                f"'{text}': expected a number of {what}, from 1 to {most}"
            )
        return int(text)

    return read
