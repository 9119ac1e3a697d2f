"""The generalised deviation of the joint block, against determinants; the same in any company."""

import numpy as np
import pytest

from monitor.frames.space import Dimension, DimensionKind, Space, plain_space
from monitor.statistics import exact_engine
from monitor.statistics.exact_engine import generalised_deviation

XYZ = plain_space(("x", "y", "z"), "m")
ANGLED = Space(
    (Dimension("x", "m"), Dimension("a", "rad", DimensionKind.ANGLE), Dimension("z", "m"))
)


def covariances(n: int, *, diagonal: bool) -> np.ndarray:
    random = np.random.default_rng(n)
    root = random.normal(size=(n, 3, 3)) + 2 * np.eye(3)
    made = root @ root.transpose(0, 2, 1)
    return made * np.eye(3) if diagonal else made


@pytest.mark.parametrize("space", [XYZ, ANGLED])
@pytest.mark.parametrize("diagonal", [True, False])
def test_it_is_a_root_of_the_determinant_of_the_joint_block(space, diagonal):
    covariance = covariances(20, diagonal=diagonal)
    joint = list(space.joint)
    expected = [
        np.linalg.det(matrix[np.ix_(joint, joint)]) ** (1 / (2 * len(joint)))
        for matrix in covariance
    ]
    for flag in {diagonal, False}:
        found = generalised_deviation(space, covariance, np.full(20, flag))
        assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("space", [XYZ, ANGLED])
def test_a_detection_gets_the_same_bits_alone_and_among_others_of_both_forms(space):
    covariance = covariances(21, diagonal=False)
    diagonal = np.arange(21) % 3 == 0
    covariance[diagonal] *= np.eye(3)
    together = generalised_deviation(space, covariance, diagonal)
    for i in range(21):
        part = slice(i, i + 1)
        alone = generalised_deviation(space, covariance[part], diagonal[part])
        assert alone.tobytes() == together[part].tobytes()


@pytest.mark.parametrize("diagonal", [True, False])
def test_what_is_not_positive_definite_has_none_and_its_neighbours_theirs(diagonal):
    covariance = covariances(6, diagonal=diagonal)
    for i, variance in ((1, 0.0), (2, -1.0), (4, np.nan)):
        covariance[i, 1, 1] = variance
    found = generalised_deviation(XYZ, covariance, np.full(6, diagonal))
    assert np.isnan(found).tolist() == [False, True, True, False, True, False]


def test_variances_alone_are_not_factorised(monkeypatch):
    monkeypatch.setattr(exact_engine, "factorise", None)
    found = generalised_deviation(XYZ, covariances(4, diagonal=True), np.ones(4, bool))
    assert np.isfinite(found).all()


def test_without_detections_there_is_none():
    assert generalised_deviation(XYZ, np.zeros((0, 3, 3)), np.zeros(0, bool)).size == 0
