"""The choice by slice; its document is in test_selection_document.py."""

import numpy as np
import pytest

from monitor.frames.detections import Estimates
from monitor.frames.space import Dimension, Space, plain_space
from monitor.recalibration.recalibrator import Identity, Recalibrator
from monitor.recalibration.scaling import CovarianceScaling, VarianceScaling
from monitor.recalibration.selection import IDENTITY, Selection
from tests import laws

XY = plain_space(("x", "y"), "m")
DOUBLE, TRIPLE = VarianceScaling((2.0, 2.0)), VarianceScaling((3.0, 3.0))
FULL = CovarianceScaling(
    (0.1 + 0.2, 1 / 3), ((1.0, 0.3), (0.3, 1.0)), ((1.5, -0.25), (-0.25, 0.1)), (1, 0)
)
BY_SLICE = Selection(("x", "y"), DOUBLE, {"car": TRIPLE, "bus": FULL}, {"rows": 12, "file": "a"})


def chains(*names: str) -> list[tuple[str, ...]]:
    """Of slices that lie in no wider one."""
    return [(name,) for name in names]


def estimates(n, seed=0, diagonal=False) -> Estimates:
    random = np.random.default_rng(seed)
    root = random.normal(size=(n, 2, 2)) + 2 * np.eye(2)
    covariance = root @ root.transpose(0, 2, 1)
    return Estimates(random.normal(size=(n, 2)), covariance, np.full(n, diagonal))


def test_each_detection_is_recalibrated_by_the_one_of_its_slice_or_the_fallback():
    before = estimates(6)
    slices = np.array([0, 1, 2, 0, 2, 1])
    made = BY_SLICE.apply(before, slices, chains("truck", "car", "bus"))
    models: tuple[Recalibrator, ...] = (DOUBLE, TRIPLE, FULL)
    for i, model in enumerate(models):
        here = slices == i
        alone = model.apply(
            Estimates(before.mean[here], before.covariance[here], before.diagonal[here])
        )
        assert np.array_equal(made.covariance[here], alone.covariance)
        assert np.array_equal(made.mean[here], alone.mean)
        assert np.array_equal(made.diagonal[here], alone.diagonal)


@pytest.mark.parametrize("names", [("truck",), ("car",), ("truck", "car", "bus", "tram")])
def test_slices_that_no_detection_is_in_change_nothing(names):
    before = estimates(4)
    made = BY_SLICE.apply(before, np.zeros(4, np.int64), chains(*names))
    laws.assert_same(made, BY_SLICE.of(names[:1]).apply(before))


def test_without_slices_the_fallback_serves_all():
    before = estimates(4)
    found = Selection(("x", "y"), TRIPLE).apply(before, np.zeros(4, np.int64), chains("car"))
    laws.assert_same(found, TRIPLE.apply(before))


def test_the_identity_gives_back_the_very_same_estimates():
    before = estimates(4)
    assert IDENTITY.apply(before, np.zeros(4, np.int64), chains("car")) is before


def test_the_fallback_acts_only_on_rows_that_no_slice_claims():
    seen: list[int] = []

    class Watched(Identity):
        def apply(self, estimates: Estimates) -> Estimates:
            seen.append(estimates.mean.shape[0])
            return estimates

    selection = Selection(("x", "y"), Watched(), {"car": TRIPLE, "bus": DOUBLE})
    three = chains("car", "truck", "bus")
    selection.apply(estimates(6), np.array([0, 1, 2, 0, 1, 1]), three)
    assert seen == [3]
    selection.apply(estimates(3), np.array([0, 2, 2]), three)
    assert seen == [3]


def test_rows_that_the_identity_serves_keep_their_bits():
    before = estimates(5)
    before.covariance[1, 0, 1] = np.nextafter(before.covariance[1, 1, 0], 9)
    before.mean[1, 0] = -0.0
    claims: tuple[dict[str, Recalibrator], ...] = (
        {"car": Identity(), "bus": DOUBLE},
        {"bus": DOUBLE},
    )
    for by_slice in claims:
        made = Selection(("x", "y"), Identity(), by_slice).apply(
            before, np.array([1, 0, 1, 0, 0]), chains("car", "bus")
        )
        kept = np.array([1, 3, 4])
        assert made.mean[kept].tobytes() == before.mean[kept].tobytes()
        assert made.covariance[kept].tobytes() == before.covariance[kept].tobytes()
        assert (made.covariance[[0, 2]] == 4.0 * before.covariance[[0, 2]]).all()


@pytest.mark.parametrize("slices", [[0, 0, 0], [0, 1, 1], [1, 1, 1], []])
def test_where_only_the_identity_acts_the_very_same_estimates_come_back(slices):
    before = estimates(len(slices))
    selection = Selection(("x", "y"), Identity(), {"car": Identity(), "bus": DOUBLE})
    apart = chains("car", "tram", "bus")
    assert selection.apply(before, np.array(slices, np.int64), apart) is before


def test_a_slice_whose_recalibrator_gives_back_fewer_is_a_failure_and_not_repeated_to_all():
    class First(Identity):
        def apply(self, estimates: Estimates) -> Estimates:
            return Estimates(estimates.mean[:1], estimates.covariance[:1], estimates.diagonal[:1])

    selection = Selection(("x", "y"), DOUBLE, {"car": First()})
    with pytest.raises(ValueError, match="gives back as many estimates as it gets"):
        selection.apply(estimates(4), np.array([0, 0, 1, 0]), chains("car", "bus"))


def test_a_selection_keeps_covariances_definite_if_all_of_its_recalibrators_do():
    class Unsure(Identity):
        keeps_definite = False

    assert BY_SLICE.keeps_definite
    assert IDENTITY.keeps_definite
    assert not Selection(("x", "y"), Unsure(), {"car": DOUBLE}).keeps_definite
    assert not Selection(("x", "y"), DOUBLE, {"car": DOUBLE, "bus": Unsure()}).keeps_definite


def test_a_selection_changes_estimates_if_any_of_its_recalibrators_does():
    assert not IDENTITY.changes_estimates
    assert not Selection(("x", "y"), Identity(), {"car": Identity()}).changes_estimates
    assert Selection(("x", "y"), DOUBLE, {"car": Identity()}).changes_estimates
    assert Selection(("x", "y"), Identity(), {"car": DOUBLE}).changes_estimates


def test_a_selection_leaves_its_argument_alone():
    before, same = estimates(5), estimates(5)
    for fallback in (DOUBLE, Identity()):
        Selection(("x", "y"), fallback, {"car": TRIPLE}).apply(
            before, np.array([0, 1, 0, 1, 0]), chains("car", "bus")
        )
        laws.assert_same(before, same)


def test_no_estimates_become_no_estimates():
    made = BY_SLICE.apply(estimates(0), np.zeros(0, np.int64), ())
    assert made.covariance.shape == (0, 2, 2)


def test_a_selection_fits_spaces_of_its_dimension_names_and_the_identity_fits_all():
    assert BY_SLICE.fits(XY)
    assert BY_SLICE.fits(Space((Dimension("x", "px"), Dimension("y", "px"))))
    assert not BY_SLICE.fits(plain_space(("y", "x")))
    assert not BY_SLICE.fits(plain_space(("x", "y", "z")))
    assert IDENTITY.fits(XY)
    assert IDENTITY.fits(plain_space(("u",)))


def test_a_selection_is_called_after_the_method_of_its_slices():
    assert Selection(("x", "y"), Identity(), {"car": DOUBLE}).method == "variance-scaling"
    assert Selection(("x", "y"), FULL).method == "covariance-scaling"
    assert IDENTITY.version.startswith("identity-")
