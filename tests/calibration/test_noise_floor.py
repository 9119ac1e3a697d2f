"""What ENCE reads on simulated calibrated errors, against the floor that goes with it."""

from dataclasses import dataclass

import numpy as np
import pytest

from monitor.frames.space import plain_space
from monitor.statistics.evaluation import DimensionMeasures
from monitor.statistics.exact_engine import evaluate_rows

X = plain_space(("x",))


@dataclass(frozen=True)
class Errors:
    """Calibrated errors of tracks: rho from row to row, tails of Student t if degrees are given.

    wander  how far log σ moves from row to row; it is one value a track otherwise
    """

    tracks: int
    rows: int = 1
    rho: float = 0.0
    degrees: float | None = None
    wander: float = 0.0

    def measured(self, seed: int) -> DimensionMeasures:
        random = np.random.default_rng(seed)
        shape = self.tracks, self.rows
        z = random.normal(size=shape)
        for i in range(1, self.rows):
            z[:, i] = self.rho * z[:, i - 1] + np.sqrt(1 - self.rho**2) * z[:, i]
        if self.degrees is not None:
            # Of variance 1.
            z *= np.sqrt((self.degrees - 2) / random.chisquare(self.degrees, shape))
        log_sigma = 0.5 * random.normal(size=(self.tracks, 1))
        sigma = np.exp(log_sigma + self.wander * random.normal(size=shape))
        error = (sigma * z).reshape(-1, 1)
        variance = (sigma**2).reshape(-1, 1, 1)
        track = np.repeat(np.arange(self.tracks), self.rows)
        return evaluate_rows(X, 0 * error, variance, error, cluster=track).dimensions["x"]


# Mean of ENCE over the floor and over the Gaussian floor, of 100 sets (30 of the largest):
# 1.00 and 1.00, 0.99 and 0.99, 1.00 and 1.00 for independent Gaussian errors,
INDEPENDENT = [Errors(500), Errors(5_000), Errors(100_000)]
# 1.02 and 1.57 for correlated ones, 0.94 and 1.77 for heavy tails, 0.96 and 2.12 for both.
CORRELATED = Errors(450, 40, rho=0.65)
HEAVY_TAILED = Errors(5_000, degrees=5)
BOTH = Errors(450, 40, rho=0.65, degrees=5)


def mean_ratios(errors: Errors, sets: int = 20) -> tuple[float, float]:
    """Mean ENCE over the mean floor, and over the floor of independent Gaussian errors."""
    found = [errors.measured(seed) for seed in range(sets)]
    ence = sum(each.ence for each in found)
    return (
        ence / sum(each.ence_noise_floor for each in found),
        ence / sum(each.ence_noise_floor_gaussian for each in found),
    )


@pytest.mark.parametrize("errors", INDEPENDENT)
def test_independent_gaussian_errors_read_either_floor(errors):
    floor, gaussian = mean_ratios(errors)
    assert floor == pytest.approx(1.0, abs=0.1)
    assert gaussian == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize(
    ("errors", "over_gaussian"), [(CORRELATED, 1.57), (HEAVY_TAILED, 1.77), (BOTH, 2.12)]
)
def test_correlated_and_heavy_tailed_errors_read_the_estimated_floor(errors, over_gaussian):
    floor, gaussian = mean_ratios(errors)
    assert floor == pytest.approx(1.0, abs=0.15)
    assert gaussian == pytest.approx(over_gaussian, rel=0.12)


def test_a_wrong_scale_does_not_move_the_floor():
    random = np.random.default_rng(0)
    error = random.standard_t(5, (5_000, 1))
    floors = [
        evaluate_rows(X, 0 * error, np.full((5_000, 1, 1), variance), error)
        .dimensions["x"]
        .ence_noise_floor
        for variance in (0.01, 1.0, 100.0)
    ]
    assert floors == pytest.approx([floors[0]] * 3)


def test_deviations_that_move_along_a_track_make_the_floor_too_high_and_never_too_low():
    # Rows of one track fall in different bins, where they are less alike: 0.69 of the floor.
    floor, gaussian = mean_ratios(Errors(450, 40, rho=0.65, wander=0.5))
    assert 0.6 < floor < 0.8
    assert 1.0 < gaussian < 1.2


def test_a_single_track_cannot_tell_how_alike_its_rows_are():
    found = Errors(1, 200, rho=0.65).measured(0)
    assert (found.n, found.n_eff) == (200, 200.0)
