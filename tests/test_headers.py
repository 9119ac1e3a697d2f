"""Headers: what becomes a metric label, or costs memory for good, is bounded."""

import pytest

from monitor.calibration.space import Dimension, Space, plain_space
from monitor.config import Config
from monitor.frames import Header
from monitor.headers import refuse_header

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
