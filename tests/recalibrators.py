"""A recalibrator that only tests have a use for."""

from tests.promotion.odd_recalibrators import Moving


def Shift() -> Moving:
    """Moves the mean by 1 and leaves the very same covariance."""
    return Moving(1.0)
