"""The distribution that a recalibrator itself gives each dimension, alone and side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from monitor.frames.detections import Estimates
from monitor.frames.space import FloatArray
from monitor.recalibration.recalibrator import Output, Recalibrator, marginals_of
from monitor.recalibration.scaling import VarianceScaling
from monitor.recalibration.selection import Selection
from monitor.statistics.measures import NormalMarginals

TAU = np.array([0.1, 0.5, 0.8])


@dataclass(frozen=True)
class Uniform:
    """Says that the truth lies within a σ of the mean, anywhere."""

    mean: FloatArray
    deviation: FloatArray

    def log_density(self, value: FloatArray) -> FloatArray:
        inside = np.abs(value - self.mean) <= self.deviation
        density: FloatArray = np.where(inside, -np.log(2 * self.deviation), -np.inf)
        return density

    def cumulative(self, value: FloatArray) -> FloatArray:
        share: FloatArray = np.clip((value - self.mean) / (2 * self.deviation) + 0.5, 0, 1)
        return share

    def quantiles(self, tau: FloatArray) -> FloatArray:
        found: FloatArray = self.mean + self.deviation * (2 * tau[:, None, None] - 1)
        return found


@dataclass(frozen=True)
class Flat:
    """A method whose own distribution is uniform."""

    method: ClassVar[str] = "flat"
    output: ClassVar[Output] = Output.MOMENTS
    keeps_definite: ClassVar[bool] = True
    k: ClassVar[None] = None

    def apply(self, estimates: Estimates) -> Estimates:
        return Estimates(estimates.mean, estimates.covariance / 3, estimates.diagonal)

    def marginals(self, estimates: Estimates) -> Uniform:
        return Uniform(estimates.mean, deviations(estimates))

    def parameters(self) -> dict[str, Any]:
        return {}


def deviations(estimates: Estimates) -> FloatArray:
    return np.sqrt(np.diagonal(estimates.covariance, axis1=1, axis2=2))


def estimates(n: int) -> Estimates:
    random = np.random.default_rng(n)
    root = random.normal(size=(n, 2, 2)) + 2 * np.eye(2)
    return Estimates(random.normal(size=(n, 2)), root @ root.transpose(0, 2, 1), np.zeros(n, bool))


def test_of_a_method_of_gaussians_it_is_the_gaussian_that_is_forwarded():
    sent, value = estimates(5), np.zeros((5, 2))
    found = marginals_of(VarianceScaling((2.0, 0.5)), sent)
    expected = NormalMarginals(sent.mean, deviations(sent) * [2.0, 0.5])
    assert found.log_density(value) == pytest.approx(expected.log_density(value))
    assert found.cumulative(value) == pytest.approx(expected.cumulative(value))
    assert found.quantiles(TAU) == pytest.approx(expected.quantiles(TAU))


def test_of_a_method_of_another_shape_it_is_not_what_is_forwarded():
    sent = estimates(4)
    found = marginals_of(Flat(), sent)
    assert isinstance(found, Uniform)
    assert np.array_equal(found.mean, sent.mean)


@pytest.mark.parametrize("slices", [[0, 1, 0, 2, 1, 2, 0], [1, 1], [2], [0, 0, 2]])
def test_side_by_side_every_row_has_the_one_of_its_own_recalibrator(slices):
    models: dict[str, Recalibrator] = {"car": Flat(), "bus": VarianceScaling((3.0, 3.0))}
    selection = Selection(("x", "y"), VarianceScaling((2.0, 1.0)), models)
    chains = [("car",), ("bus",), ("tram",)]
    index = np.array(slices)
    sent = estimates(index.size)
    value = sent.mean + 0.3
    found = selection.marginals(sent, index, chains)
    assert found.quantiles(TAU).shape == (3, index.size, 2)
    for row, i in enumerate(slices):
        part = slice(row, row + 1)
        alone = marginals_of(selection.of(chains[i]), sent.take(part))
        assert np.array_equal(found.log_density(value)[part], alone.log_density(value[part]))
        assert np.array_equal(found.cumulative(value)[part], alone.cumulative(value[part]))
        assert np.array_equal(found.quantiles(TAU)[:, part], alone.quantiles(TAU))


def test_a_selection_says_which_outputs_it_may_have():
    scaling = VarianceScaling((2.0, 2.0))
    assert Selection(("x", "y"), scaling).outputs == {Output.GAUSSIAN}
    assert Selection(("x", "y"), Flat(), {"car": Flat()}).outputs == {Output.MOMENTS}
    both = Selection(("x", "y"), scaling, {"car": Flat()})
    assert both.outputs == {Output.GAUSSIAN, Output.MOMENTS}
