"""Headers: what becomes a metric label, or costs memory for good, is bounded."""

import pytest

from monitor.config import Config
from monitor.frames.frame import Header
from monitor.frames.space import Dimension, Space, plain_space
from monitor.pipeline.streams import refuse_header

XYZ = plain_space(("x", "y", "z"), "m")


def refused(header: Header, *, spaces=(), **limits):
    return refuse_header(header, Config.model_validate({"limits": limits}), (), spaces)


def test_a_plain_header_is_usable():
    assert refused(Header("lidar", XYZ, ("car",), "base_link")) is None


@pytest.mark.parametrize("unit", ["m" * 65, "m\n", "\x00"])
def test_a_unit_must_be_short_and_printable(unit):
    space = Space((Dimension("x", unit),))
    found = refused(Header("lidar", space, ("car",)))
    assert found is not None
    assert found.field == "dimensions.unit"


def test_a_coordinate_frame_must_be_short():
    found = refused(Header("lidar", XYZ, ("car",), "f" * 2_000_000))
    assert found is not None
    assert found.field == "coordinate_frame"
    assert len(found.message) < 200


def test_only_so_many_sets_of_dimensions_get_statistics_of_their_own():
    header = Header("lidar", XYZ, ("car",))
    others = [plain_space((name,)) for name in "ab"]
    assert refused(header, spaces=[*others, XYZ], max_spaces=2) is None
    found = refused(header, spaces=others, max_spaces=2)
    assert found is not None
    assert "[limits] max_spaces" in found.message


@pytest.mark.parametrize("levels", [(), (0.5,), (1e-6, 0.5, 1 - 1e-6), tuple(range(1, 20))])
def test_levels_of_quantiles_ascend_within_0_and_1(levels):
    levels = tuple(level / 20 if level >= 1 else level for level in levels)
    assert refused(Header("lidar", XYZ, ("car",), quantile_levels=levels)) is None


@pytest.mark.parametrize(
    ("levels", "words"),
    [
        ((0.0,), "0 after 0: they must ascend"),
        ((0.5, 1.0), "1 after 0.5: they must ascend"),
        ((0.5, 0.5), "0.5 after 0.5: they must ascend"),
        ((0.9, 0.1), "0.1 after 0.9: they must ascend"),
        ((-0.1,), "-0.1 after 0: they must ascend"),
        ((5e-324,), "4.94066e-324 after 0: they must ascend, each from 1e-06 to 1 − 1e-06."),
        ((0.5, 1 - 1e-7), "1 after 0.5: they must ascend"),
        ((float("nan"),), "nan after 0: they must ascend"),
        ((0.5, float("inf")), "inf after 0.5: they must ascend"),
        (tuple(i / 21 for i in range(1, 21)), "20 of them: at most 19."),
    ],
)
def test_other_levels_of_quantiles_are_refused_by_value(levels, words):
    found = refused(Header("lidar", XYZ, ("car",), quantile_levels=levels))
    assert found is not None
    assert found.field == "quantile_levels"
    assert found.message.startswith(words)
